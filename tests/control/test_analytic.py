"""The analytic policy and its guards: the formula as documented, and no flip that does not pay."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.clock import nanoseconds
from prorsa.cluster.profile import load_profile
from prorsa.cluster.registry import Registry
from prorsa.cluster.step import RankWork, step_parts
from prorsa.control.controller import Controller
from prorsa.control.cost import CostModel
from prorsa.events import ForecastRow, Role, Stamped, TrajectoryReady, WorkerLoad, WorkerUp
from prorsa.forecast.frame import Frame
from tests.control.pool import Pool
from tests.control.test_homes import submit

KV = 700_000
HALF: tuple[Role, ...] = ("prefill",) * 4 + ("decode",) * 4
RATE = load_profile("qwen3-32b-h200-tp2").prefill_tokens_per_s(8192, 20_000)


class Scripted:
    """A predictor that says what it is told: prefill and KV demand, in workers, over 15 s and over 60 s."""

    def __init__(self) -> None:
        self.prefill: dict[float, float] = {15.0: 0.0, 60.0: 0.0}
        self.decode = 0.0
        self.backlog_tokens = 0.0

    def observe(self, stamped: Stamped) -> None:
        """It knows already."""

    def tick(self, t_ns: int) -> Frame:
        rows = []
        for horizon_s, workers in self.prefill.items():
            tokens, kv = workers * horizon_s * RATE * 0.85, self.decode * KV / 1.1
            for target, value in (("prefill", tokens), ("kv_need", kv)):
                rows.append(ForecastRow(target, horizon_s, "total", value, value, value, value))  # type: ignore[arg-type]
        return Frame(
            t_ns,
            1,
            tuple(rows),
            backlog_tokens=self.backlog_tokens,
            mean_new_tokens=8192,
            mean_prefix_tokens=20_000,
            mean_output_tokens=500,
            request_output_tokens_per_s=50,
        )


def pool_of(roles: Sequence[Role] = HALF, **settings: object) -> tuple[Pool, Scripted]:
    scripted = Scripted()
    pool = Pool(roles, policy="analytic", make=lambda config: Controller(config, scripted), **settings)  # type: ignore[arg-type]
    return pool, scripted


def ask(scripted: Scripted, prefill: float, decode: float, *, lasting: bool = True) -> None:
    scripted.prefill = {15.0: prefill, 60.0: prefill if lasting else 0.0}
    scripted.decode = decode


def test_the_need_is_that_of_the_formula() -> None:
    pool, scripted = pool_of()
    ask(scripted, 5.5, 1.5)
    pool.run(1)
    inputs = pool.decisions()[0].inputs
    assert inputs["need_prefill"] == pytest.approx(5.5, rel=1e-3)
    assert inputs["need_decode"] == pytest.approx(1.5, rel=1e-3)


def test_the_split_follows_a_demand_that_lasts() -> None:
    pool, scripted = pool_of()
    ask(scripted, 5.5, 1.5)
    pool.run(6)
    assert pool.roles().count("P") == 6
    assert "nearest split that fits" in pool.decisions()[0].reason


def test_a_burst_that_is_worked_off_in_time_flips_nothing() -> None:
    pool, scripted = pool_of()
    ask(scripted, 5.5, 1.5, lasting=False)
    pool.run(12)
    assert pool.roles() == "PPPPDDDD"
    assert "payback" in {guard.guard for guard in pool.decisions()[-1].guards}


def test_demand_to_and_fro_does_not_make_the_pool_swing() -> None:
    pool, scripted = pool_of()
    for turn in range(24):
        ask(scripted, *((6.5, 1.0) if turn % 2 else (1.0, 6.5)))
        pool.run(5)
    changed = [decision for decision in pool.decisions() if decision.status == "applied"]
    # Two minutes of demand that turns each 5 s: at most one change of direction in each dwell time.
    assert len({(move.worker_id, decision.decision_id) for decision in changed for move in decision.moves}) <= 16
    assert any("turns back" in guard.text for decision in pool.decisions() for guard in decision.guards)
    assert pool.roles().isupper()


def test_without_a_forecast_or_a_capacity_the_split_stays() -> None:
    pool = Pool(HALF, policy="analytic")
    pool.run(6)
    assert "no forecast yet" in pool.decisions()[-1].reason
    assert pool.roles() == "PPPPDDDD"


def at_home(pool: Pool, trajectories: int, tokens: int) -> None:
    """So many trajectories have had a turn on the first four workers, with a context of so many tokens each."""
    for k in range(trajectories):
        pool.feed(submit(f"t{k}", f"w{k % 4}", tokens))


@pytest.mark.parametrize(("cache", "flips"), [("retained", False), ("cold", False), ("l3", True)])
def test_prefixes_that_a_flip_loses_make_it_dearer(cache: str, flips: bool) -> None:
    pool, scripted = pool_of(cache=cache)
    at_home(pool, 64, 40_000)
    ask(scripted, 1.0, 4.15)
    pool.run(6)
    assert (pool.roles().count("D") == 5) == flips
    assert flips or "payback" in {guard.guard for guard in pool.decisions()[-1].guards}
    empty, scripted = pool_of(cache=cache)
    ask(scripted, 1.0, 4.15)
    empty.run(6)
    assert empty.roles().count("D") == 5


@settings(max_examples=60, deadline=None)
@given(
    trajectories=st.integers(0, 200),
    tokens=st.integers(1_000, 60_000),
    prefill=st.floats(0.0, 8.0),
    decode=st.floats(0.0, 12.0),
)
def test_no_flip_gains_less_than_the_prefill_it_causes(
    trajectories: int, tokens: int, prefill: float, decode: float
) -> None:
    pool, scripted = pool_of(mode="observe")  # so that the pool is after the decision as it was before
    at_home(pool, trajectories, tokens)
    ask(scripted, prefill, decode)
    pool.run(1)
    controller = pool.controller
    moved = [move.worker_id for move in pool.decisions()[0].moves if move.from_role == "prefill"]
    lost = sum(min(controller.homes.tokens(worker_id), KV) for worker_id in moved)
    rate = controller.cost.prefill_tokens_per_s(tokens, 0.0)
    gain_s = controller.policy.decide(controller.context(nanoseconds(pool.t_s))).relief_s
    assert rate is not None
    assert gain_s is not None
    assert not moved or gain_s > lost / rate


def test_a_backlog_that_stands_pays_for_flips_that_a_burst_does_not() -> None:
    """Where all trajectories wait in turn no more come than are answered: what arrives seems to fit any split."""
    pool, scripted = pool_of()
    at_home(pool, 128, 40_000)
    ask(scripted, 6.0, 1.0)
    scripted.backlog_tokens = 6.0 * 60.0 * RATE * 0.85
    pool.run(50)
    assert pool.roles() == "PPPPDDDD"
    assert "payback" in {guard.guard for guard in pool.decisions()[-1].guards}
    pool.run(30)
    assert pool.roles().count("P") > 4


def test_the_victim_is_the_worker_that_loses_least() -> None:
    loads: list[dict[str, object]] = [{"kv_used": 100_000} for _ in range(8)]
    loads[6] = {"kv_used": 10}
    pool, scripted = pool_of(loads=loads)
    ask(scripted, 4.9, 1.0)
    pool.run(2)
    assert [move.worker_id for decision in pool.decisions() for move in decision.moves] == ["w6"]


def test_the_same_inputs_give_the_same_decisions() -> None:
    def decide() -> list[object]:
        pool, scripted = pool_of()
        for turn in range(6):
            ask(scripted, 2.0 + turn, 6.0 - turn)
            pool.run(5)
        assert pool.t_s == 30.0
        assert nanoseconds(pool.t_s) == 30_000_000_000
        return list(pool.decisions())

    assert decide() == decide()


def test_prompts_that_wait_for_kv_ask_for_decode_and_not_for_prefill_alone() -> None:
    """Past saturation a forecast of what decode holds ends at what it can hold; the split must still come back."""
    pool, scripted = pool_of(("prefill",) * 7 + ("decode",))
    ask(scripted, 12.0, 1.0)
    for i in range(400):
        pool.feed(TrajectoryReady(trajectory_id=f"t{i}", request_id=f"t{i}-0000", prompt_tokens=60_000))
    pool.run(60)
    decision = pool.decisions()[0]
    assert decision.inputs["need_decode"] is not None
    assert decision.inputs["need_decode"] > 1.0
    assert pool.roles().count("D") > 1


def test_a_worker_that_waits_for_work_does_not_count_as_slow() -> None:
    profile = load_profile("qwen3-32b-h200-tp2")
    cost, registry = CostModel(profile), Registry()
    up = WorkerUp(worker_id="w0", role="prefill", epoch=0, pool="p", flippable=True)
    registry.observe(Stamped(1, 0, "router", 0, 0, up))
    expected = profile.prefill_tokens_per_s(8192, 20_000)
    for second in range(60):
        load = WorkerLoad(
            worker_id="w0", epoch=0, queued_tokens=0, prefill_tokens_total=100 * second, busy_us_total=10**6 * second
        )
        cost.observe(load, registry)
    assert cost.prefill_tokens_per_s(8192, 20_000) == expected
    for second in range(60, 120):
        load = WorkerLoad(
            worker_id="w0",
            epoch=0,
            queued_tokens=2 * profile.chunk_tokens,
            prefill_tokens_total=9_000 * second,
            busy_us_total=10**6 * second,
        )
        cost.observe(load, registry)
    assert cost.prefill_tokens_per_s(8192, 20_000) == pytest.approx(9_000, rel=0.01)


def test_full_steps_of_all_ranks_are_what_a_worker_can_do() -> None:
    profile = load_profile("dsv32-h200-dp8")
    chunk = RankWork(chunks=((profile.chunk_tokens, 0),))
    step = step_parts(profile, [chunk] * profile.ranks)
    full = profile.prefill_tokens_per_s(profile.chunk_tokens, 0)
    assert full == pytest.approx(profile.ranks * profile.chunk_tokens / step.step_s)
