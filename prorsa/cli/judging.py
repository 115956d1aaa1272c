"""The commands that judge policies, ``estimate`` and ``evaluate``: their parameters and their help."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

from cyclopts import Parameter

Cache = Literal["cold", "retained", "l3"]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object to stdout.")]


def estimate(
    recording: Path,
    *,
    policy: str = "lookahead",
    profile: str | None = None,
    present: str | None = None,
    present_profile: str | None = None,
    accepted_tokens: float = 1.0,
    workers: int | None = None,
    concurrency: int | None = None,
    cache: Cache = "retained",
    host_kv_tokens: int = 0,
    draws: int = 5,
    seed: int = 0,
    as_json: Json = False,
) -> int:
    """Estimate what Prorsa would have gained on a recorded run, with an interval; it may say that it is nothing.

    Parameters
    ----------
    recording
        A journal or run directory (mode observe will do), or a session file (.csv, .csv.gz).
    policy
        What would have decided.
    profile
        Performance of the workers; by default what the recording says.
    present
        How the pool ran, as in colocated or static:4:4; by default the roles in the recording.
    present_profile
        Performance of the workers as they ran, if Prorsa would need others: expert parallelism cannot be flipped.
    accepted_tokens
        Tokens a decode step gave by speculative decoding, which cannot be flipped either.
    workers
        Number of workers; by default the recording's.
    concurrency
        Trajectories in flight; by default the recording's.
    cache
        What a flip would do to a worker's prefix cache.
    host_kv_tokens
        Host tier of a worker's prefix cache, in tokens.
    draws
        Times that the trajectories are drawn anew for the interval.
    seed
        Of these draws.
    """
    from prorsa.cli.estimate import EstimateOptions, run_estimate

    return run_estimate(
        EstimateOptions(
            recording=recording,
            policy=policy,
            profile=profile,
            present=present,
            present_profile=present_profile,
            accepted_tokens=accepted_tokens,
            workers=workers,
            concurrency=concurrency,
            cache=cache,
            host_kv_tokens=host_kv_tokens,
            draws=draws,
            seed=seed,
            as_json=as_json,
        )
    )


def evaluate(
    policy: str,
    *scenarios: str,
    against: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    seeds: str = "100:105",
    workers: int | None = None,
    concurrency: int | None = None,
    cache: Cache | None = None,
    jobs: int = 1,
    ray: str | None = None,
    report: Path | None = None,
    as_json: Json = False,
) -> int:
    """Compare a policy with others, paired by seed, with intervals and worst cases.

    Parameters
    ----------
    policy
        The policy to evaluate.
    scenarios
        Names of scenarios, or TOML files, that it was not tuned on.
    against
        Policies to compare with; by default analytic, static:best, colocated:tuned, reactive and dynamo-like.
    seeds
        A range of seeds.
    workers
        Number of workers, instead of the scenario's.
    concurrency
        Trajectories in flight, instead of the scenario's.
    cache
        What a flip does to a worker's prefix cache, instead of what the scenario says.
    jobs
        Runs at a time, each on a core of this machine.
    ray
        Run on a Ray cluster: auto finds one, local starts one, or its HOST:PORT.
    report
        Write a report with a picture to this directory (the `plots` extra).
    """
    from prorsa.cli.batch import SimulateOptions
    from prorsa.cli.evaluate import EvaluateOptions, run_evaluate
    from prorsa.cli.evaluate import against as compared
    from prorsa.cli.options import seeds_of

    simulations = SimulateOptions(
        scenarios=scenarios,
        policies=compared(against, policy),
        seeds=seeds_of(None, seeds),
        sessions=None,
        gap_cap_s=None,
        workers=workers,
        concurrency=concurrency,
        cache=cache,
        forecast="lifecycle",
        scored=False,
        record=None,
        jobs=jobs,
        ray=ray,
        as_json=as_json,
    )
    return run_evaluate(EvaluateOptions(policy, simulations, report))


JUDGING: Final[tuple[Callable[..., int], ...]] = (estimate, evaluate)
"""The commands of this module."""
