"""The published rules, each by its own conditions, driven by load reports and router events as live."""

from collections.abc import Sequence

import pytest

from prorsa.cluster.profile import load_profile
from prorsa.control.model import shipped
from prorsa.control.policies import POLICIES, SIMULATED, make_policy, make_simulated
from prorsa.errors import ConfigError
from prorsa.events import Role, TrajectoryReady
from tests.control.pool import Pool

PROFILE = load_profile("qwen3-32b-h200-tp2")
CAPACITY = 700_000
HALF: tuple[Role, ...] = ("prefill",) * 4 + ("decode",) * 4
RULES = ("reactive", "reactive:arrow", "reactive:proportional", "dynamo-like")


class Loads:
    """A pool under a rule, and what its workers and its router say."""

    def __init__(self, policy: str, roles: Sequence[Role] = HALF, **settings: object) -> None:
        self.loads: list[dict[str, object]] = [{} for _ in roles]
        self._output = [0] * len(roles)
        self.pool = Pool(roles, policy=policy, loads=self.loads, **settings)  # type: ignore[arg-type]
        self._waiting = 0
        self.set()

    def set(self, *, kv: float = 0.5, running: int = 10, token_s: float = 0.05) -> None:
        """What every worker reports from now on; decode's output grows with each tick."""
        self._running, self._token_s = running, token_s
        for load in self.loads:
            load.update(kv_used=int(kv * CAPACITY), running=running, queued_tokens=0)

    def wait(self, tokens: int) -> None:
        """So many uncached tokens more wait in the router."""
        self._waiting += 1
        request = f"q{self._waiting}"
        self.pool.feed(
            TrajectoryReady(trajectory_id=request, request_id=request, prompt_tokens=tokens, new_tokens=tokens)
        )

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            for index, load in enumerate(self.loads):
                self._output[index] += int(self._running / self._token_s)
                load["output_tokens_total"] = self._output[index]
            self.pool.tick()

    @property
    def prefill(self) -> int:
        return self.pool.controller.registry.destined().prefill

    @property
    def moves(self) -> int:
        return sum(len(decision.moves) for decision in self.pool.decisions() if decision.status == "applied")


# --- dynamo-like ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("short", "prefill"), [(0, 5), (1, 4)])
def test_dynamo_scales_prefill_up_from_a_context_length_a_worker(short: int, prefill: int) -> None:
    loads = Loads("dynamo-like")
    loads.wait(4 * PROFILE.model_context - short)
    loads.run(1)
    assert loads.prefill == prefill


def test_dynamo_gives_a_worker_away_where_the_queue_is_empty_and_decode_is_not_low() -> None:
    loads = Loads("dynamo-like")
    loads.set(kv=0.7)
    loads.run(1)
    assert loads.prefill == 3


def test_dynamo_moves_nothing_where_both_sides_ask() -> None:
    loads = Loads("dynamo-like")
    loads.set(kv=0.99)
    loads.wait(5 * PROFILE.model_context)
    loads.run(30)
    assert loads.moves == 0


# --- reactive -------------------------------------------------------------------------------------------------------


def test_reactive_needs_patience_and_cools_down() -> None:
    loads = Loads("reactive")
    loads.wait(2_000_000)
    loads.run(5)
    assert loads.prefill == 4  # one decision is not enough
    loads.run(1)
    assert loads.prefill == 5
    loads.run(24)
    assert loads.prefill == 5  # cools down
    loads.run(10)
    assert loads.prefill == 6


def test_reactive_stays_hot_between_its_thresholds() -> None:
    loads = Loads("reactive")
    loads.set(kv=0.95)
    loads.run(1)
    loads.set(kv=0.8)
    loads.run(5)
    assert loads.prefill == 3
    fresh = Loads("reactive")
    fresh.set(kv=0.8)
    fresh.run(30)
    assert fresh.prefill == 4


# --- Arrow ----------------------------------------------------------------------------------------------------------


def test_arrow_gives_decode_a_worker_where_none_meets_its_token_time_and_prefill_has_time() -> None:
    loads = Loads("reactive:arrow")
    loads.set(token_s=0.2)
    loads.wait(1000)
    loads.run(6)
    assert loads.prefill == 3


def test_arrow_gives_none_where_prefill_has_no_time() -> None:
    loads = Loads("reactive:arrow")
    loads.set(token_s=0.2)
    loads.wait(2_000_000)
    loads.run(6)
    assert loads.prefill == 4


def test_arrow_gives_one_all_the_same_where_decode_has_fewer_workers() -> None:
    loads = Loads("reactive:arrow", ("prefill",) * 5 + ("decode",) * 3)
    loads.set(token_s=0.2)
    loads.wait(2_000_000)
    loads.run(6)
    assert loads.prefill == 4


def test_arrow_takes_an_idle_decode_worker_at_once() -> None:
    loads = Loads("reactive:arrow")
    loads.loads[6].update(running=0, kv_used=0)
    loads.run(1)
    moved = [move.worker_id for decision in loads.pool.decisions() for move in decision.moves]
    assert moved == ["w6"]


# --- HeteroScale ----------------------------------------------------------------------------------------------------


def test_proportional_follows_the_output_rate() -> None:
    loads = Loads("reactive:proportional", ("prefill",) * 2 + ("decode",) * 6)
    loads.set(kv=0.2, running=10, token_s=0.05)  # 1,200 tok/s over six workers that could each do more
    loads.run(30)
    few = loads.pool.controller.registry.destined().decode
    inputs = loads.pool.decisions()[-1].inputs
    assert few < 6
    assert inputs["output_tokens_per_s"] == pytest.approx(few * 200, rel=0.01)


def test_proportional_tolerates_a_tenth() -> None:
    loads = Loads("reactive:proportional")
    loads.run(6)
    asked = loads.pool.decisions()[-1].inputs
    full = asked["full_tokens_per_s"]
    assert full is not None
    fitting = Loads("reactive:proportional")
    fitting.set(running=10, token_s=10 / (0.95 * full))
    fitting.run(30)
    assert fitting.prefill == 4


# --- all ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_unknown_is_not_idle(rule: str) -> None:
    pool = Pool(HALF, policy=rule)
    pool.run(60)
    assert pool.roles() == "PPPPDDDD"
    assert {decision.status for decision in pool.decisions()} == {"hold"}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_also_comes_with_guards(rule: str) -> None:
    assert make_policy(f"{rule}+guards").economy
    assert not make_policy(rule).economy


@pytest.mark.parametrize("name", ["reactive+", "reactive+guard", "colocated:-1", "colocated:8:0", "colocated:1:2:3"])
def test_a_name_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        make_policy(name, 8)


@pytest.mark.parametrize("name", SIMULATED)
def test_what_knows_the_future_never_runs_live(name: str) -> None:
    with pytest.raises(ConfigError, match="prorsa simulate"):
        make_policy(name, 8)


def test_a_batch_names_what_only_a_batch_can_run() -> None:
    with pytest.raises(ConfigError, match="clairvoyant"):
        make_simulated("nothing", 8)


def test_every_listed_name_can_be_made() -> None:
    for listed in POLICIES:
        name = listed.replace("P:D", "3:5").replace(":N", ":8").replace("FILE", str(shipped("learned")))
        made = make_policy(name, 8)
        assert made.name
