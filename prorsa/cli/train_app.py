"""``prorsa train``: practise a policy in the simulator and write its file."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prorsa import __version__
from prorsa.cli.output import narrate
from prorsa.errors import ConfigError

_LEARN_MODULES = frozenset({"torch", "gymnasium", "stable_baselines3", "sb3_contrib", "tensorboard"})


def train(
    *scenarios: str,
    out: Path,
    expert: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = ("lookahead",),
    shown: int = 24000,
    rounds: int = 200,
    minutes: float | None = None,
    environments: int = 2,
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
    expert
        Policies that are imitated first.
    shown
        Decisions of theirs that are imitated.
    rounds
        Rounds of practice at most; it ends earlier when validation gets no better.
    minutes
        Begin no further round after so long.
    environments
        Simulated pools side by side, each in a process of its own.
    ray
        Run them on this Ray cluster instead: auto, local or HOST:PORT.
    tensorboard
        Directory for TensorBoard's log.
    resume
        Go on from the checkpoint in the directory.
    """
    try:
        from prorsa.control.learn.episodes import practice
        from prorsa.control.learn.training import Report, TrainingOptions, train
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _LEARN_MODULES:
            raise
        raise ConfigError(
            f"{error.name} is not installed: `prorsa train` needs `pip install 'prorsa[learn]'`"
        ) from error

    from prorsa.cluster.scenario import load_scenario

    def told(report: Report) -> None:
        left = "" if report.left_s is None else f", {report.left_s / 60:.1f} min left"
        narrate(f"{report.stage}: {report.done:.0%}{left}; {report.text}")

    domain = practice()
    if scenarios:
        domain = replace(domain, scenarios=tuple(load_scenario(name) for name in scenarios), profiles=())
    options = TrainingOptions(
        domain=domain,
        out=out,
        experts=expert,
        shown=shown,
        rounds=rounds,
        budget_s=None if minutes is None else 60.0 * minutes,
        environments=environments,
        ray=ray,
        seed=seed,
        tensorboard=tensorboard,
        resume=resume,
        trained={"prorsa": __version__, "seed": str(seed), "experts": " ".join(expert)},
    )
    train(options, told)
    narrate(f"wrote {out / options.name}.safetensors: --policy learned:{out / options.name}.safetensors")
    return 0
