"""``prorsa train``: practise a policy in the simulator and write its file."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from prorsa import __version__
from prorsa.cli.output import narrate
from prorsa.errors import ConfigError, InputError

if TYPE_CHECKING:
    from prorsa.control.learn.episodes import Source

_LEARN_MODULES = frozenset({"torch", "gymnasium", "stable_baselines3", "sb3_contrib", "tensorboard"})


def train(
    *scenarios: str,
    out: Path,
    recordings: Annotated[
        tuple[Path, ...], Parameter(name="--from", consume_multiple=True, negative="", show_default=False)
    ] = (),
    profile: str | None = None,
    workers: int | None = None,
    cache: Literal["cold", "retained", "l3"] | None = None,
    host_kv_tokens: int | None = None,
    expert: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = ("lookahead", "analytic"),
    shown: int = 24000,
    rounds: int = 200,
    minutes: float | None = None,
    environments: int = 2,
    validations: int = 12,
    ray: str | None = None,
    seed: int = 0,
    tensorboard: Path | None = None,
    resume: bool = False,
) -> int:
    """Train an allocation policy offline: it imitates experts first, then practises.

    Parameters
    ----------
    scenarios
        What is practised on, names or TOML files, varied at random; by default what the shipped policy practised on.
    out
        Directory for the policy, learned.safetensors, and the checkpoint.
    recordings
        Practise on what these journals or run directories hold instead: their trajectories, drawn anew, on their pool.
    profile
        Performance of the recorded workers; by default what the recording says.
    workers
        Number of workers; by default the recording's.
    cache
        What a flip does to a worker's prefix cache; by default what the recording says, else retained.
    host_kv_tokens
        Host tier of a worker's prefix cache, in tokens; by default what the recording says, else none.
    expert
        Of these policies the one that does best in practice is imitated first.
    shown
        Decisions of its that are imitated.
    rounds
        Rounds of practice at most; it ends earlier when validation gets no better.
    minutes
        Begin no further round after so long.
    environments
        Simulated pools side by side, each in a process of its own.
    validations
        Runs that a validation is made of.
    ray
        Run them on this Ray cluster instead: auto, local or HOST:PORT.
    tensorboard
        Directory for TensorBoard's log.
    resume
        Go on from the checkpoint in the directory.
    """
    _need_learn()
    from prorsa.control.learn.training import Report, TrainingOptions, train

    def told(report: Report) -> None:
        left = "" if report.left_s is None else f", {report.left_s / 60:.1f} min left"
        narrate(f"{report.stage}: {report.done:.0%}{left}; {report.text}")

    if recordings and scenarios:
        raise InputError("give scenarios or --from, not both: a policy practises on the ones or on the others")
    if recordings:
        from prorsa.cli.recorded import recorded_domain

        domain: Source = recorded_domain(
            recordings, profile=profile, workers=workers, cache=cache, host_kv_tokens=host_kv_tokens
        )
    else:
        domain = _domain(scenarios)
    options = TrainingOptions(
        domain=domain,
        out=out,
        experts=expert,
        shown=shown,
        rounds=rounds,
        budget_s=None if minutes is None else 60.0 * minutes,
        environments=environments,
        validations=validations,
        ray=ray,
        seed=seed,
        tensorboard=tensorboard,
        resume=resume,
        trained={
            "prorsa": __version__,
            "data": " ".join(map(str, recordings or scenarios)) or "practice",
            "seed": str(seed),
            "experts": " ".join(expert),
        },
    )
    train(options, told)
    narrate(f"wrote {out / options.name}.safetensors: --policy learned:{out / options.name}.safetensors")
    return 0


def _need_learn() -> None:
    try:
        import prorsa.control.learn.training  # noqa: F401 - is it there
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _LEARN_MODULES:
            raise
        raise ConfigError(
            f"{error.name} is not installed: `prorsa train` needs `pip install 'prorsa[learn]'`"
        ) from error


def _domain(scenarios: tuple[str, ...]) -> "Source":
    from prorsa.cluster.scenario import load_scenario
    from prorsa.control.learn.episodes import practice

    domain = practice()
    if not scenarios:
        return domain
    return replace(domain, scenarios=tuple(load_scenario(name) for name in scenarios), profiles=())
