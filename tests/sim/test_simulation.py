"""The facade: determinism, copies, checkpoints, effects and the form of events."""

import collections
import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.cluster.effects import Effect
from prorsa.cluster.sim.config import FlipTimes, SimConfig
from prorsa.cluster.sim.simulation import Simulation, Timed
from prorsa.cluster.sim.state import duplicate
from prorsa.errors import ConfigError, InputError
from prorsa.events import (
    AnyEvent,
    EffectResult,
    LlmAdmitted,
    LlmEnd,
    LlmFirstToken,
    LlmPrefillEnd,
    LlmPrefillStart,
    LlmProgress,
    LlmSubmit,
    RunBegin,
    RunEnd,
    SamplerState,
    TrajectoryReady,
    WorkerLoad,
    WorkerUp,
)
from tests.sim.pools import Flipper, Trip, Turn, check, make_profile, make_workload, of, one, pool, run

ROLES = ("prefill", "prefill", "decode", "decode")


def trips(seed: int = 3, count: int = 16) -> list[Trip]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        turns, context = [], 0
        for _ in range(rng.integers(1, 5)):
            new, output = int(rng.integers(50, 1_500)), int(rng.integers(2, 200))
            turns.append(Turn(context + new, output, float(rng.exponential(1.0))))
            context += new + output
        made.append(Trip(tuple(turns), sandbox_s=float(rng.uniform(0, 2)), reward_s=0.5))
    return made


def busy_pool(*, emit: bool = True, **config: object) -> Simulation:
    return pool(trips(), ROLES, emit=emit, concurrency=10, **config)


def in_mid_flip(sim: Simulation) -> Flipper:
    flipper = Flipper(sim, {f"w{w}": role for w, role in enumerate(ROLES)})
    flipper.advance(3.0)
    flipper.start("w2")
    flipper.take(sim.advance(3.01))
    return flipper


def end_flips(flipper: Flipper) -> list[Timed]:
    flipper.events = []
    while not flipper.sim.done or flipper.stage:
        flipper.advance(flipper.sim.now_s + 0.9)
    return flipper.events


class TestDeterminism:
    def test_the_same_workload_gives_the_same_events(self) -> None:
        assert run(busy_pool()) == run(busy_pool())

    @given(st.lists(st.floats(0.001, 3.0), min_size=1, max_size=30))
    @settings(max_examples=15, deadline=None)
    def test_how_it_is_advanced_changes_nothing(self, paces: list[float]) -> None:
        sim, events = busy_pool(), []
        for pace_s in paces:
            events += sim.advance(sim.now_s + pace_s)
        assert events + run(sim) == run(busy_pool())

    def test_without_events_everything_else_is_the_same(self) -> None:
        quiet, loud = busy_pool(emit=False), busy_pool()
        events, all_events = run(quiet), run(loud)
        assert quiet.report() == loud.report()
        kinds = {type(event) for _, event in events}
        assert kinds == {RunBegin, RunEnd, WorkerUp, WorkerLoad}
        assert events == [(t, event) for t, event in all_events if type(event) in kinds]

    def test_reading_changes_nothing(self) -> None:
        sim, events = busy_pool(), []
        while not sim.done:
            events += sim.advance(sim.now_s + 0.4)
            sim.report()
            sim.future_demand((1.0, 5.0))
            sim.copy().advance(sim.now_s + 7.0)
            sim.register_again()
        assert events == run(busy_pool())


class TestCopies:
    def test_a_copy_goes_on_as_the_original_in_mid_flip(self) -> None:
        flipper = in_mid_flip(busy_pool())
        copied = Flipper(flipper.sim.copy(), dict(flipper.roles), dict(flipper.stage), dict(flipper.epochs))
        first = end_flips(copied)
        check(flipper.sim)
        assert first == end_flips(flipper)
        assert copied.sim.report() == flipper.sim.report()

    def test_a_copy_shares_no_state_that_is_written(self) -> None:
        state = busy_pool()._state
        copied = duplicate(state)
        shared = [name for name in state._fields if np.shares_memory(getattr(state, name), getattr(copied, name))]
        assert shared == ["profiles", "experts", "plan", "turns"]


class TestCheckpoints:
    def test_a_loaded_checkpoint_goes_on_as_the_original_in_mid_flip(self, tmp_path: Path) -> None:
        flipper = in_mid_flip(busy_pool(cache="cold", seed=7, flip=FlipTimes(cancel_s=0.1)))
        flipper.sim.save(tmp_path / "run.checkpoint")
        loaded = Simulation.load(tmp_path / "run.checkpoint")
        resumed = Flipper(loaded, dict(flipper.roles), dict(flipper.stage), dict(flipper.epochs))
        assert end_flips(resumed) == end_flips(flipper)
        assert loaded.report() == flipper.sim.report()

    def test_after_a_restart_workers_and_sampler_say_what_they_are(self, tmp_path: Path) -> None:
        flipper = in_mid_flip(busy_pool())
        end_flips(flipper)
        flipper.sim.save(tmp_path / "c")
        events = [event for _, event in Simulation.load(tmp_path / "c").register_again()]
        assert [(e.worker_id, e.role, e.epoch) for e in events if isinstance(e, WorkerUp)] == [
            ("w0", "prefill", 0),
            ("w1", "prefill", 0),
            ("w2", "prefill", 1),
            ("w3", "decode", 0),
        ]
        assert isinstance(events[-1], SamplerState)

    def test_a_restart_in_mid_flip_leaves_no_worker_out_of_the_pool(self, tmp_path: Path) -> None:
        flipper = in_mid_flip(busy_pool())
        flipper.sim.save(tmp_path / "c")
        loaded = Simulation.load(tmp_path / "c")
        loaded.register_again()
        check(loaded)
        events = run(loaded)
        assert loaded.report()["split"][-1][1:] == [2, 2, 0, 0]
        assert not any(isinstance(event, EffectResult) for _, event in events)
        assert loaded.report()["output_tokens"] == sum(turn.output for trip in trips() for turn in trip.turns)

    @pytest.mark.parametrize("content", [None, b"", b"not a checkpoint", b"PK\x03\x04broken"])
    def test_a_bad_checkpoint_is_refused_by_name(self, tmp_path: Path, content: bytes | None) -> None:
        path = tmp_path / "bad"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=str(path)):
            Simulation.load(path)


def effect(action: str, role: str = "decode", worker: str = "w2", **changes: object) -> Effect:
    values = {"effect_id": f"{worker}/{action}", "epoch": 1, "deadline_s": 60.0} | changes
    return Effect(worker_id=worker, action=action, role=role, **values)  # type: ignore[arg-type]


def only_result(events: list[Timed]) -> EffectResult:
    (result,) = [event for _, event in events if isinstance(event, EffectResult)]
    return result


class TestEffects:
    def test_an_effect_is_done_once_and_answered_as_often_as_it_is_asked_for(self) -> None:
        sim = busy_pool()
        sim.advance(3.0)
        first = only_result(sim.perform(effect("fence")))
        assert first.ok
        assert sim.perform(effect("drain")) == []
        assert sim.perform(effect("drain")) == []  # under way
        drained = only_result(sim.advance(9.0))
        resumed = sim.report()["requests_resumed"]
        assert drained.requests_resumed == resumed > 0
        assert only_result(sim.perform(effect("drain"))) == drained
        assert only_result(sim.perform(effect("fence"))) == first
        assert sim.report()["requests_resumed"] == resumed

    def test_lower_epochs_than_seen_are_refused(self) -> None:
        sim = busy_pool()
        sim.perform(effect("fence", epoch=4))
        late = only_result(sim.perform(effect("admit", effect_id="late", epoch=3)))
        assert not late.ok
        assert "epoch 3" in (late.detail or "")
        assert sim.report()["split"][-1][4] == 1

    def test_a_busy_worker_is_not_switched(self) -> None:
        sim = busy_pool()
        sim.advance(3.0)
        result = only_result(sim.perform(effect("switch", "prefill")))
        assert (result.ok, result.safe_to_restore) == (False, True)
        assert "idle" in (result.detail or "")

    def test_a_mixed_worker_is_not_switched(self) -> None:
        sim = pool(trips(), ("mixed", "mixed"))
        sim.perform(effect("fence", "mixed", "w1"))
        result = only_result(sim.perform(effect("switch", "prefill", "w1")))
        assert (result.ok, result.safe_to_restore) == (False, True)

    def test_a_worker_is_admitted_only_in_the_role_that_it_has(self) -> None:
        sim = busy_pool()
        sim.perform(effect("fence"))
        assert not only_result(sim.perform(effect("admit", "prefill"))).ok
        assert only_result(sim.perform(effect("admit", "decode"))).ok  # the same effect, put right

    def test_what_takes_too_long_is_answered_at_its_deadline(self) -> None:
        sim = pool(trips(), ROLES, flip=FlipTimes(to_prefill_s=9.0))
        sim.perform(effect("fence"))
        sim.perform(effect("switch", "prefill", deadline_s=2.0))
        result = only_result(sim.advance(5.0))
        assert (result.ok, sim.now_s) == (False, 2.0)
        assert only_result(sim.perform(effect("admit", "decode"))).ok

    def test_another_effect_takes_the_place_of_the_one_under_way(self) -> None:
        sim = busy_pool()
        sim.advance(3.0)
        sim.perform(effect("fence"))
        sim.perform(effect("drain"))
        results = [event for _, event in sim.perform(effect("admit")) if isinstance(event, EffectResult)]
        assert [(result.action, result.ok) for result in results] == [("drain", False), ("admit", True)]
        run(sim)
        check(sim)

    @pytest.mark.parametrize("worker", ["w9", "w02", "x", ""])
    def test_an_unknown_worker_is_named(self, worker: str) -> None:
        result = only_result(busy_pool().perform(effect("fence", worker=worker)))
        assert not result.ok
        assert repr(worker)[1:-1] in (result.detail or "")


class TestEvents:
    def test_all_of_them_fit_the_schema_and_come_in_order(self) -> None:
        flipper = in_mid_flip(busy_pool())
        events = [*flipper.events, *end_flips(flipper)]
        for _, event in events:
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=AnyEvent) == event
        times = [t for t, _ in events]
        assert times == sorted(times)
        assert isinstance(events[0][1], RunBegin)
        assert sum(isinstance(event, RunEnd) for _, event in events) == 1

    def test_a_request_passes_its_stations_in_order(self) -> None:
        stations = (TrajectoryReady, LlmSubmit, LlmAdmitted, LlmPrefillStart, LlmPrefillEnd, LlmFirstToken, LlmEnd)
        passed: dict[str, list[type]] = collections.defaultdict(list)
        for _, event in run(busy_pool()):
            if isinstance(event, stations):
                name = getattr(event, "request_id", None) or event.rid.rpartition(".")[0]  # type: ignore[attr-defined]
                passed[name].append(type(event))
        assert len(passed) == busy_pool()._workload.turns
        assert all(tuple(kinds) == stations for kinds in passed.values())
        assert {len(name) for name in passed} == {len("t00000-0000")}

    def test_telemetry_comes_each_second_and_adds_up(self) -> None:
        sim = busy_pool()
        events = run(sim)
        loads = [(t, event) for t, event in events if isinstance(event, WorkerLoad) and event.worker_id == "w3"]
        assert [t for t, _ in loads] == [float(k) for k in range(1, len(loads) + 1)]
        totals = [event.output_tokens_total for _, event in loads]
        assert totals == sorted(totals)  # type: ignore[type-var]
        assert totals[-1] > 0  # type: ignore[operator]

    def test_progress_is_what_the_request_has_by_then(self) -> None:
        events = run(pool([one(1_000, 300), one(5_000, 300, sandbox_s=0.8)]))
        (at_s, prefill), (_, decode), *_ = of(events, LlmProgress)
        assert at_s == 1.0
        first = next(at for at, e in of(events, LlmFirstToken) if e.trajectory_id == "t00000")  # type: ignore[attr-defined]
        steps, clock = 0, first
        while clock + (step := make_profile().decode_step_s(1, 1_001 + steps)) <= 1.0:
            clock, steps = clock + step, steps + 1
        assert decode.output == (("t00000-0000.00", 1 + steps),)  # type: ignore[attr-defined]
        assert prefill.prefilled == (("t00001-0000.00", 3_000),)  # type: ignore[attr-defined]

    def test_the_sampler_speaks_when_something_has_changed(self) -> None:
        states = [event for _, event in of(run(busy_pool()), SamplerState)]
        assert states[0].queued == 16  # type: ignore[attr-defined]
        assert states[-1].queued == 0  # type: ignore[attr-defined]
        assert all(a != b for a, b in itertools.pairwise(states))


class TestInputs:
    def test_a_turn_that_fits_no_rank_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="does not fit the 20000 KV tokens"):
            pool([one(19_990, 11)])

    def test_an_empty_pool_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="without workers"):
            pool([one(10, 1)], ())

    def test_a_workload_whose_steps_go_back_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="order its trajectories by step"):
            pool([Trip((Turn(10, 1),), step=1), Trip((Turn(10, 1),), step=0)])

    def test_time_does_not_go_back(self) -> None:
        sim = busy_pool()
        sim.advance(2.0)
        with pytest.raises(ConfigError, match=r"it is 2\.0 s already"):
            sim.advance(1.0)

    @pytest.mark.parametrize("changes", [{"concurrency": 0}, {"weight_update_s": float("nan")}])
    def test_a_bad_configuration_is_refused(self, changes: dict[str, float]) -> None:
        with pytest.raises(ConfigError, match=next(iter(changes))):
            SimConfig(**changes)  # type: ignore[arg-type]

    def test_the_test_workload_is_well_formed(self) -> None:
        assert make_workload(trips()).trajectories == 16
