"""The admission gate against the best fixed concurrency, past the cliff and where everything fits.

    python -m benchmarks.judge_gate [--rows FILE]

Pools with HBM alone run the same trajectories at each of a few fixed concurrencies, which an operator would have to
find by trying. Then they are asked for four times the best of them, with ``admission = gate`` and without, by steady
output tokens a second. Where everything fits, the gate must cost nothing. Rows go to ``build/gate.jsonl`` by default.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from prorsa.cluster.scenario import Scenario, load_scenario
from prorsa.run import make_plan
from prorsa.simulate import simulate

SEEDS: Final = (101, 102)


class Pool(NamedTuple):
    """A pool that is tried at ``fixed`` numbers of trajectories in flight, and asked for ``times`` the best of them."""

    name: str
    scenario: Scenario
    policy: str
    fixed: tuple[int, ...]
    times: int


def pools() -> list[Pool]:
    """Coding agents, long enough that contexts outgrow the caches.

    A run has about three times as many trajectories as it is asked for, so that most are not the first to be let in.
    """
    plain = msgspec.structs.replace(load_scenario("coding-async"), trajectories=960, max_turns=40)
    parallel = msgspec.structs.replace(
        load_scenario("v32-coding-async"), trajectories=2304, host_kv_tokens=0, workers=4, max_turns=40
    )
    return [
        Pool("TP2, colocated, past the cliff", plain, "colocated", (48, 64, 80, 96), 4),
        Pool("TP2, 6P:2D, past the cliff", plain, "static:6:2", (48, 64, 80, 96), 4),
        Pool("DP8, colocated, past the cliff", parallel, "colocated", (128, 160, 192, 224), 4),
        Pool("DP8, 2P:2D, past the cliff", parallel, "static:2:2", (64, 80, 96, 112), 4),
        Pool("TP2, colocated, everything fits", plain, "colocated", (32,), 1),
        Pool("TP2, 6P:2D, everything fits", plain, "static:6:2", (32,), 1),
        Pool("DP8, colocated, everything fits", parallel, "colocated", (96,), 1),
        Pool("DP8, 2P:2D, everything fits", parallel, "static:2:2", (32,), 1),
    ]


def measure(pool: Pool) -> dict[str, Any]:
    """Tokens a second at each fixed concurrency, and with the gate and without it at the one that is asked for."""
    fixed = {concurrency: _rate(pool, concurrency, "advise") for concurrency in pool.fixed}
    asked = pool.times * max(fixed, key=lambda concurrency: fixed[concurrency])
    if asked not in fixed:
        fixed[asked] = _rate(pool, asked, "advise")
    return {"name": pool.name, "asked": asked, "gate": _rate(pool, asked, "gate"), "fixed": fixed}


def _rate(pool: Pool, concurrency: int, admission: Literal["advise", "gate"]) -> float:
    scenario = msgspec.structs.replace(pool.scenario, concurrency=concurrency)
    rates = []
    for seed in SEEDS:
        plan = make_plan(
            scenario, policy=pool.policy, run_id="gate", seed=seed, scored=False, admission=admission
        )  # fmt: skip
        rates.append(float(str(simulate(plan)["steady_output_tokens_per_s"])))
    return statistics.fmean(rates)


def main() -> None:
    """Measure all pools."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=Path, default=Path("build/gate.jsonl"))
    args = parser.parse_args()
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for pool in pools():
        rows.append(measure(pool))
        print(rows[-1], file=sys.stderr, flush=True)
        args.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
