"""The held-out cells that benchmarks/judge.py compares policies on: scenarios, pool sizes and seeds nobody tuned on.

All are shorter than the package's scenarios (fewer trajectories, at most ``TURNS`` turns), so that hundreds of runs fit
into an hour of one core. What drifts does so by the index of a trajectory, in units of the number in flight.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from prorsa.cluster.scenario import Scenario, load_scenario
from prorsa.cluster.workloads.shapes import DriftPoint, MixPoint

FIRST_SEED: Final = 500
TURNS: Final = 20
TRACES: Final = Path(__file__).parents[2] / "shared" / "traces"
"""Recorded sessions; they are no part of this repository, and their cells are left out where they are absent."""

DRIFTING: Final = "drifting"
STEADY: Final = "steady"
RECORDED: Final = "recorded"
FLUSHED: Final = "weight updates"
COLD: Final = "flips lose the cache"

_LENGTH: Final = 4
"""Trajectories of an asynchronous cell, in those in flight at a time."""


class Cell(NamedTuple):
    """One comparison: a scenario under all policies; ``kind`` is what it is there for."""

    kind: str
    scenario: Scenario


def cells(traces: Path = TRACES) -> list[Cell]:
    """All cells; those of recorded sessions only where the files are."""
    return [*_drifting(), *_steady(), *_flushed(), *_cold(), *_recorded(traces)]


def _drifting() -> list[Cell]:
    return [
        _cell(DRIFTING, "drift-qwen-8", "drift-qwen", **_drift(128)),
        _cell(DRIFTING, "drift-qwen-4", "drift-qwen", workers=4, **_drift(64)),
        *(
            _cell(DRIFTING, f"drift-v32-{n}", "drift-v32", workers=n, host_kv_tokens=20_000_000, **_drift(64 * n))
            for n in (4, 8, 16)
        ),
        _cell(DRIFTING, "drift-235b-8", "drift-qwen", profile="qwen3-235b-h200-dp4", **_drift(256)),
        _cell(DRIFTING, "reverse-v32-8", "drift-v32", **(_drift(512) | {"mix": _mix(512, (0.9, 0.3, 0.3, 0.9))})),
        _cell(DRIFTING, "alternating-v32-8", "drift-v32", **(_drift(512) | {"mix": _alternating(512)})),
        _cell(DRIFTING, "alternating-qwen-8", "drift-qwen", **(_drift(128) | {"mix": _alternating(128)})),
    ]


def _steady() -> list[Cell]:
    return [
        _cell(STEADY, "coding-v32-8", "v32-coding-async", trajectories=1536, max_turns=TURNS),
        _cell(STEADY, "general-v32-8", "v32-general-async", trajectories=2048),
        _cell(STEADY, "coding-qwen-8", "coding-async", trajectories=512, concurrency=96, max_turns=TURNS),
    ]


def _flushed() -> list[Cell]:
    return [
        _cell(FLUSHED, "weightsync-v32-8", "weightsync-v32", max_turns=TURNS),
        _cell(FLUSHED, "sync-coding-v32-8", "v32-coding-sync", max_turns=TURNS),
        _cell(FLUSHED, "sync-general-v32-4", "v32-general-sync", workers=4, concurrency=256, groups_per_step=32),
    ]


def _cold() -> list[Cell]:
    return [
        _cell(COLD, "cold-drift-v32-8", "drift-v32", cache="cold", **_drift(512)),
        _cell(COLD, "cold-drift-qwen-8", "drift-qwen", cache="cold", **_drift(128)),
        _cell(COLD, "cold-coding-v32-4", "v32-coding-async", cache="cold", workers=4, concurrency=256, max_turns=TURNS),
    ]


def _recorded(traces: Path) -> list[Cell]:
    coding, airline = traces / "coding-sessions.csv.gz", traces / "airline-agent-turns.csv.gz"
    recorded = []
    if coding.exists():
        changes: dict[str, Any] = {"sessions": str(coding), "trajectories": None, "group_size": None}
        recorded = [
            _cell(RECORDED, "sessions-v32-4", "v32-coding-async", workers=4, concurrency=160, max_turns=30, **changes),
            _cell(RECORDED, "sessions-qwen-8", "coding-async", concurrency=96, max_turns=TURNS, **changes),
        ]
    if airline.exists():
        changes = {"sessions": str(airline), "concurrency": 64, "workers": 4}
        recorded.append(_cell(RECORDED, "airline-qwen-4", "general-async", **changes))
    return recorded


def _cell(kind: str, name: str, base: str, **changes: Any) -> Cell:  # noqa: ANN401 - fields of a scenario
    scenario = load_scenario(base)
    return Cell(kind, msgspec.structs.replace(scenario, name=name, description="", **changes))


def _drift(concurrency: int) -> dict[str, Any]:
    """From general to coding agents, gradually, and at once back; tools slow down from a third on."""
    return {
        "concurrency": concurrency,
        "trajectories": _LENGTH * concurrency,
        "max_turns": TURNS,
        "mix": _mix(concurrency, (0.1, 0.8, 0.8, 0.1)),
        "tool_drift": (
            DriftPoint(at=concurrency, factor=1.0),
            DriftPoint(at=3 * concurrency, factor=3.0),
        ),
    }


def _mix(concurrency: int, coding: Sequence[float]) -> tuple[MixPoint, ...]:
    """Shares of coding agents at the start, a third, two thirds, and from there on."""
    third = _LENGTH * concurrency // 3
    return tuple(
        MixPoint(at=at, shares={"coding": share, "general": 1.0 - share})
        for at, share in zip((0, third, 2 * third, 2 * third), coding, strict=True)
    )


def _alternating(concurrency: int) -> tuple[MixPoint, ...]:
    """Half of those in flight are coding agents and then half are not, from one trajectory to the next."""
    points = []
    for start in range(0, _LENGTH * concurrency, concurrency // 2):
        share = 0.9 if start // (concurrency // 2) % 2 else 0.1
        shares = {"coding": share, "general": 1.0 - share}
        points += [MixPoint(at=start, shares=shares), MixPoint(at=start + concurrency // 2, shares=shares)]
    return tuple(points)
