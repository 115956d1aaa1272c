"""Simulated runs as cells."""

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import msgspec

from prorsa.bus.journal import JournalWriter, row_of
from prorsa.cluster.scenario import Scenario
from prorsa.cluster.workloads.workload import Workload
from prorsa.events import Stamped
from prorsa.run import RunPlan, make_workload
from prorsa.runner.cells import Cell, Tell

Row = dict[str, object]
"""One element of ``runs``."""


def simulation_cells(plans: Sequence[RunPlan], records: Sequence[Path | None]) -> list[Cell[Row]]:
    """A cell for each plan, with the directory that its journal goes to; None for no journal.

    A session file is read here, so that it need not be where the cell runs; what is generated is generated there.

    Raises:
        InputError: if a session file is bad.
    """
    recorded: dict[tuple[str, int], Workload] = {}
    cells = []
    for plan, record in zip(plans, records, strict=True):
        workload = None
        if plan.sessions or plan.scenario.sessions:
            key = (plan.scenario.name, plan.seed)
            workload = recorded.get(key) or recorded.setdefault(key, make_workload(plan))
        cells.append(Cell(plan.run_id, partial(_simulate, plan, workload, record)))
    return cells


def _simulate(plan: RunPlan, workload: Workload | None, record: Path | None, tell: Tell) -> Row:
    from prorsa.simulate import simulate

    workload = workload or _generated(msgspec.json.encode(plan.scenario), plan.seed)
    total = workload.trajectories
    if record is None:
        return simulate(plan, workload=workload, progress=lambda sim: tell(sim.ended / total))
    writer = JournalWriter(record, run_id=plan.run_id, meta=plan.to_meta())

    def keep(events: list[Stamped]) -> None:
        writer.append([row_of(stamped) for stamped in events])

    try:
        return simulate(plan, workload=workload, recorder=keep, progress=lambda sim: tell(sim.ended / total))
    finally:
        writer.close()


@lru_cache(maxsize=2)
def _generated(scenario: bytes, seed: int) -> Workload:
    """The workload of a seed, kept for the next policy that runs on it in this process."""
    return msgspec.json.decode(scenario, type=Scenario).make_workload(seed)
