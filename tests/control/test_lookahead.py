"""``lookahead`` on small pools: it moves where that pays, holds where it does not, and says why."""

import time
from itertools import pairwise

import pytest

from prorsa.cluster.profile import load_profile
from prorsa.control.config import ControlConfig
from prorsa.control.cost import CostModel
from prorsa.control.homes import Homes
from prorsa.control.lookahead import AGREEING, Lookahead
from prorsa.control.policies import Context, make_policy
from prorsa.control.solver import Bounds
from prorsa.events import ForecastRow, LlmSubmit, Split
from prorsa.forecast.frame import Frame
from tests.control.test_failures import HALF, WIDE, Run, alternating

PROFILE = load_profile("qwen3-32b-h200-tp2")


def context(
    split: Split, *, arrivals: float, decode_batch: int, t_s: float = 0.0, homes: Homes | None = None
) -> Context:
    """A pool of eight workers with short contexts; ``arrivals`` in uncached tokens a second."""
    total = arrivals * 60.0
    row = ForecastRow("prefill", 60.0, "total", total, 0.9 * total, total, 1.1 * total)
    frame = Frame(
        t_ns=round(t_s * 1e9),
        live_trajectories=600,
        rows=(row,),
        waiting_requests=0,
        decode_batch=decode_batch,
        mean_context_tokens=8_000.0,
        mean_new_tokens=2_000.0,
        mean_prefix_tokens=6_000.0,
        mean_output_tokens=300.0,
        requests_per_s=arrivals / 2_000.0,
        arrivals_per_s=(arrivals,) * 60,
    )
    return Context(
        t_ns=frame.t_ns,
        current=split,
        bounds=Bounds(8, 1, 7),
        frame=frame,
        cost=CostModel(PROFILE),
        kv_capacity=PROFILE.kv_tokens,
        config=ControlConfig(profile=PROFILE),
        homes=homes or Homes(),
    )


def confirmed(policy: Lookahead, split: Split, **pool: float) -> Split:
    """What the policy wants once it has been asked often enough."""
    return [
        policy.decide(context(split, t_s=5.0 * k, **pool)).split  # type: ignore[arg-type]
        for k in range(AGREEING)
    ][-1]


def test_a_burst_of_prompts_gets_prefill_workers() -> None:
    assert confirmed(Lookahead(), Split(2, 6), arrivals=120_000.0, decode_batch=20).prefill > 2


def test_more_answers_than_two_workers_decode_get_decode_workers() -> None:
    assert confirmed(Lookahead(), Split(6, 2), arrivals=30_000.0, decode_batch=320).prefill < 6


def test_a_pool_with_room_to_spare_stays() -> None:
    policy = Lookahead()
    for k in range(5):
        want = policy.decide(context(Split(4, 4), arrivals=5_000.0, decode_batch=5, t_s=5.0 * k))
        assert want.split == Split(4, 4)
        assert "stays" in want.reason


def test_one_decision_alone_moves_nothing() -> None:
    want = Lookahead().decide(context(Split(2, 6), arrivals=120_000.0, decode_batch=20))
    assert want.split == Split(2, 6)
    assert "to be confirmed" in want.reason


def test_every_reachable_split_is_among_the_alternatives_with_its_cost() -> None:
    want = Lookahead().decide(context(Split(2, 6), arrivals=120_000.0, decode_batch=20))
    costs = {alternative.split.prefill: alternative.cost for alternative in want.alternatives}
    assert costs.keys() == set(range(1, 8))
    assert costs[4] < costs[2] <= 0.0
    assert want.inputs["best_gain_s"] == pytest.approx(-min(costs.values()), abs=0.01)


def test_what_it_remembers_is_in_its_state() -> None:
    policy = Lookahead()
    fresh = policy.state()
    policy.decide(context(Split(2, 6), arrivals=120_000.0, decode_batch=20))
    assert policy.state() != fresh


def test_without_a_forecast_it_holds_and_says_so() -> None:
    blind = Context(0, Split(4, 4), Bounds(8, 1, 7), None, CostModel(PROFILE), PROFILE.kv_tokens, ControlConfig())
    want = make_policy("lookahead").decide(blind)
    assert (want.split, want.reason) == (Split(4, 4), "no forecast yet: the split stays")


def test_prefixes_that_a_flip_loses_speak_against_it() -> None:
    pool = {"arrivals": 20_000.0, "decode_batch": 300}
    homes = Homes()
    for k in range(600):
        homes.observe(_submit(k), flip_loses=False)
    costs = [
        {a.split.prefill: a.cost for a in Lookahead().decide(context(Split(6, 2), homes=held, **pool)).alternatives}  # type: ignore[arg-type]
        for held in (Homes(), homes)
    ]
    assert costs[1][5] >= costs[0][5]


def _submit(k: int) -> LlmSubmit:
    return LlmSubmit(
        trajectory_id=f"t{k}", request_id=f"t{k}", attempt=0, turn=0, prompt_tokens=8_000, prefill_worker=f"w{k % 6}"
    )


@pytest.mark.parametrize("policy", ["lookahead", "analytic"])
def test_alternating_load_flips_no_worker_more_than_once_a_minute(policy: str) -> None:
    run = Run(policy, alternating(140), HALF, profile=WIDE, until_s=140.0)
    when: dict[str, list[float]] = {}
    for at_s, worker in run.flips:
        when.setdefault(worker, []).append(at_s)
    between_s = [after - before for times in when.values() for before, after in pairwise(times)]
    assert min(between_s, default=60.0) >= 60.0


def test_a_decision_takes_a_few_milliseconds() -> None:
    policy, pool = Lookahead(), context(Split(4, 4), arrivals=40_000.0, decode_batch=60)
    policy.decide(pool)
    took_s = []
    for _ in range(20):
        began = time.process_time()
        policy.decide(pool)
        took_s.append(time.process_time() - began)
    assert min(took_s) < 0.010
