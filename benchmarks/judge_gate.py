"""The admission gate against the best fixed concurrency, past the cliff and where everything fits.

    python -m benchmarks.judge_gate [--rows FILE]

Pools with HBM alone are asked to run several times what they hold, with ``admission = gate`` and without, and at each
of a few fixed concurrencies, which an operator would have to find by trying: the same trajectories each time, by steady
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
    """A pool that is asked for ``asked`` trajectories in flight, beside fixed numbers of them."""

    name: str
    scenario: Scenario
    policy: str
    asked: int
    fixed: tuple[int, ...]


def pools() -> list[Pool]:
    """Coding agents, long enough that contexts outgrow the caches."""
    plain = msgspec.structs.replace(load_scenario("coding-async"), trajectories=384, max_turns=40)
    parallel = msgspec.structs.replace(
        load_scenario("v32-coding-async"), trajectories=1024, host_kv_tokens=0, workers=4, max_turns=40
    )
    return [
        Pool("TP2, colocated, past the cliff", plain, "colocated", 256, (32, 48, 64, 96)),
        Pool("TP2, 6P:2D, past the cliff", plain, "static:6:2", 256, (32, 48, 64, 96)),
        Pool("DP8, colocated, past the cliff", parallel, "colocated", 512, (64, 96, 128, 192)),
        Pool("TP2, colocated, everything fits", plain, "colocated", 32, ()),
        Pool("DP8, 2P:2D, everything fits", parallel, "static:2:2", 32, ()),
    ]


def measure(pool: Pool) -> dict[str, Any]:
    """Tokens a second with the gate, and at each fixed concurrency, the one asked for among them."""
    fixed = {concurrency: _rate(pool, concurrency, "advise") for concurrency in (*pool.fixed, pool.asked)}
    return {"name": pool.name, "asked": pool.asked, "gate": _rate(pool, pool.asked, "gate"), "fixed": fixed}


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
