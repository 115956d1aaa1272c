"""Small stories of what the mechanisms do."""

from dataclasses import replace
from typing import Any

import pytest

from prorsa.cluster.effects import Effect
from prorsa.cluster.profile import Experts, Fit, Profile, table_ms
from prorsa.cluster.sim.config import Fault
from prorsa.cluster.sim.simulation import Simulation, Timed
from prorsa.cluster.step import RankWork, step_parts
from prorsa.errors import ConfigError
from prorsa.events import (
    EffectResult,
    LlmAdmitted,
    LlmEnd,
    LlmFirstToken,
    LlmPrefillEnd,
    LlmPrefillStart,
    LlmRetry,
    LlmSubmit,
    Role,
    SamplerState,
    StepBegin,
    StepEnd,
    TrajectoryDispatched,
    TrajectoryEnd,
    TrajectoryReady,
    WeightsUpdateBegin,
    WeightsUpdateEnd,
    WorkerDown,
    WorkerRole,
    WorkerUp,
)
from tests.sim.pools import Flipper, Trip, Turn, make_profile, of, one, pool, run


def events_of(events: list[Timed], kind: type, trajectory: str) -> list[Any]:
    return [event for _, event in of(events, kind) if event.trajectory_id == trajectory]  # type: ignore[attr-defined]


def time_of(events: list[Timed], kind: type, trajectory: str) -> float:
    (at,) = [t for t, event in of(events, kind) if event.trajectory_id == trajectory]  # type: ignore[attr-defined]
    return at


EXPERTS = Experts(prefill=((1, 4.0), (100, 5.0), (1_000, 20.0)), decode=((8, 2.0), (64, 6.0)))


def context_at(profile: Profile, decoding_s: float, first: int) -> int:
    """The context of a request alone in its batch after so long of decoding in whole steps."""
    clock_s, context = 0.0, first
    while clock_s < decoding_s - 1e-9:
        clock_s += profile.decode_step_s(1, context)
        context += 1
    return context


def experts_s(profile: Profile, prompt: int) -> float:
    """Seconds of the experts while one prompt is prefilled in chunks."""
    chunks = [min(profile.chunk_tokens, prompt - done) for done in range(0, prompt, profile.chunk_tokens)]
    return sum(table_ms(profile.experts.prefill, chunk) for chunk in chunks) / 1e3


def effect(action: str, role: str = "prefill", worker: str = "w0", epoch: int = 1, deadline_s: float = 60.0) -> Effect:
    return Effect(
        effect_id=f"{worker}@{epoch}/{action}",
        worker_id=worker,
        action=action,
        role=role,
        epoch=epoch,
        deadline_s=deadline_s,
    )  # type: ignore[arg-type]


class TestTurns:
    def test_a_turn_goes_through_its_stations_in_order(self) -> None:
        profile = make_profile()
        events = run(pool([one(1_500, 5)], profile=profile))
        prefill_s = profile.prefill_s(1_500)
        transfer_s = 1_500 * 100_000 / 40e9 + 0.005
        assert time_of(events, TrajectoryReady, "t00000") == 0
        assert time_of(events, LlmAdmitted, "t00000") == 0
        assert time_of(events, LlmPrefillEnd, "t00000") == pytest.approx(prefill_s)
        assert time_of(events, LlmFirstToken, "t00000") == pytest.approx(prefill_s + transfer_s)
        decode_s = sum(profile.decode_step_s(1, 1_501 + k) for k in range(4))
        assert time_of(events, LlmEnd, "t00000") == pytest.approx(prefill_s + transfer_s + decode_s)

    def test_prefill_has_the_prompt_cached_for_the_next_turn_and_decode_all_of_it(self) -> None:
        trip = Trip((Turn(1_000, 50), Turn(1_150, 50, 1.0)))
        disaggregated = events_of(run(pool([trip])), LlmPrefillEnd, "t00000")
        assert [(e.cached_tokens, e.computed_tokens) for e in disaggregated] == [(0, 1_000), (1_000, 150)]
        colocated = events_of(run(pool([trip], ("mixed",))), LlmPrefillEnd, "t00000")
        assert [(e.cached_tokens, e.computed_tokens) for e in colocated] == [(0, 1_000), (1_050, 100)]

    def test_a_context_that_was_rewritten_is_reused_up_to_where_it_diverges(self) -> None:
        trip = Trip((Turn(1_000, 50), Turn(900, 50, 1.0, reuse=300), Turn(2_000, 5, 1.0)))
        ends = events_of(run(pool([trip], ("mixed",))), LlmPrefillEnd, "t00000")
        assert [e.cached_tokens for e in ends] == [0, 300, 950]

    def test_only_what_decode_lacks_is_transferred(self) -> None:
        profile = make_profile(kv_bytes_per_token=40_000_000, prefill=Fit(a_ms=1.0, b_ms=0.0, c_ms=0.0))
        trip = Trip((Turn(1_000, 50), Turn(1_150, 50, 1.0)))
        events = run(pool([trip], profile=profile))
        ends, tokens = of(events, LlmPrefillEnd), of(events, LlmFirstToken)
        transfers_s = [arrived - sent for (sent, _), (arrived, _) in zip(ends, tokens, strict=True)]
        # A token takes a millisecond; the second turn finds prompt and output of the first on decode.
        assert transfers_s == pytest.approx([1.0 + 0.005, 0.1 + 0.005])


class TestColocation:
    def test_a_prefill_holds_decode_by_exactly_its_time(self) -> None:
        profile = make_profile()
        alone = run(pool([one(500, 100)], ("mixed",), profile=profile))
        crossed = run(pool([one(500, 100), one(1_000, 1, sandbox_s=0.7)], ("mixed",), profile=profile))
        held_s = time_of(crossed, LlmEnd, "t00000") - time_of(alone, LlmEnd, "t00000")
        assert held_s == pytest.approx(profile.prefill_s(1_000), rel=1e-9)

    def test_disaggregated_prefill_holds_nobody(self) -> None:
        alone = run(pool([one(500, 100)]))
        crossed = run(pool([one(500, 100), one(1_000, 1, sandbox_s=0.7)]))
        assert time_of(crossed, LlmEnd, "t00000") == time_of(alone, LlmEnd, "t00000")

    def test_a_ranks_prefill_delays_the_others_tokens_by_exactly_the_profiles_step(self) -> None:
        """The other rank decodes one token in that step: the prefill's attention, and the experts of all tokens."""
        profile = make_profile(ranks=2, experts=EXPERTS)
        alone = run(pool([one(500, 100)], ("mixed",), profile=profile))
        crossed = run(pool([one(500, 100), one(1_000, 1, sandbox_s=0.7)], ("mixed",), profile=profile))
        ranks = {event.trajectory_id: event.dp_rank for _, event in of(crossed, LlmPrefillStart)}  # type: ignore[attr-defined]
        assert ranks == {"t00000": 0, "t00001": 1}
        began_s, ended_s = (time_of(crossed, kind, "t00001") for kind in (LlmPrefillStart, LlmPrefillEnd))
        context = context_at(profile, began_s - time_of(alone, LlmFirstToken, "t00000"), first=501)
        step = step_parts(profile, [RankWork(batch=1, context_tokens=context), RankWork(chunks=((1_000, 0),))])
        assert ended_s - began_s == pytest.approx(step.step_s, rel=1e-9)
        held_s = time_of(crossed, LlmEnd, "t00000") - time_of(alone, LlmEnd, "t00000")
        assert held_s == pytest.approx(step.step_s - profile.decode_step_s(1, context), rel=1e-9)

    def test_a_rank_that_prefills_does_not_decode(self) -> None:
        profile = make_profile(ranks=2, experts=EXPERTS)
        trips = [one(500, 100), one(400, 300), one(1_000, 1, sandbox_s=0.7), one(900, 1, sandbox_s=0.7)]
        alone = run(pool(trips[:2], ("mixed",), profile=profile))
        crossed = run(pool(trips, ("mixed",), profile=profile))
        began_s, ended_s = (time_of(crossed, kind, "t00002") for kind in (LlmPrefillStart, LlmPrefillEnd))
        step = step_parts(profile, [RankWork(chunks=((1_000, 0),)), RankWork(chunks=((900, 0),))])
        assert ended_s - began_s == pytest.approx(step.step_s, rel=1e-9)
        for trajectory in ("t00000", "t00001"):
            held_s = time_of(crossed, LlmEnd, trajectory) - time_of(alone, LlmEnd, trajectory)
            assert held_s == pytest.approx(step.step_s, rel=1e-9)

    def test_ranks_of_a_prefill_worker_share_the_step_and_its_experts(self) -> None:
        profile = make_profile(ranks=2, experts=EXPERTS)
        sim = pool([one(1_000, 1), one(600, 1)], profile=profile)
        events = run(sim)
        step = step_parts(profile, [RankWork(chunks=((1_000, 0),)), RankWork(chunks=((600, 0),))])
        assert [t for t, _ in of(events, LlmPrefillEnd)] == pytest.approx([step.step_s] * 2)
        elapsed_s = sim.report()["makespan_s"]
        shares = sim.report()["gpu_time"]
        # Two workers of one GPU; each of its ranks counts half.
        assert shares["attention"] == pytest.approx(sum(step.attention_s) / 2 / (2 * elapsed_s))
        assert shares["experts"] == pytest.approx(step.experts_s / (2 * elapsed_s))
        assert shares["waiting"] == pytest.approx(step.step_s * step.waiting_ratio / (2 * elapsed_s))

    def test_an_interval_lets_decode_run_between_the_chunks(self) -> None:
        """SGLang's ``--prefill-decode-interval``: three decode steps after each chunk but the last."""
        profile = make_profile()
        trips = [one(500, 200), one(4_000, 1, sandbox_s=0.7)]
        greedy = run(pool(trips, ("mixed",), profile=profile))
        tuned = run(pool(trips, ("mixed",), profile=profile, prefill_interval=3))
        began_s, ended_s = (time_of(tuned, kind, "t00001") for kind in (LlmPrefillStart, LlmPrefillEnd))
        assert began_s == time_of(greedy, LlmPrefillStart, "t00001")
        context = context_at(profile, began_s - time_of(tuned, LlmFirstToken, "t00000"), first=501)
        decode_s = sum(profile.decode_step_s(1, context + k) for k in range(9))
        assert ended_s - began_s == pytest.approx(profile.prefill_s(4_000) + decode_s, rel=1e-9)
        assert time_of(tuned, LlmEnd, "t00000") == pytest.approx(time_of(greedy, LlmEnd, "t00000"), rel=1e-9)

    def test_an_interval_holds_nothing_where_nobody_decodes(self) -> None:
        trips = [one(4_000, 1), one(2_000, 1, sandbox_s=0.1)]
        greedy = run(pool(trips, ("mixed",)))
        assert run(pool(trips, ("mixed",), prefill_interval=50)) == greedy


class TestStageProfiles:
    prefill = make_profile(name="wide", ranks=2, gpus=8, experts=EXPERTS)
    decode = make_profile(name="narrow", gpus=2, kv_tokens=9_000, decode=Fit(4.0, 0.1, 1e-4))

    def test_each_stage_has_the_step_times_of_its_own_profile(self) -> None:
        sim = pool([one(1_500, 5)], profile=self.prefill, decode_profile=self.decode)
        events = run(sim)
        prefill_s, transfer_s = self.prefill.prefill_s(1_500), 1_500 * 100_000 / 40e9 + 0.005
        decode_s = sum(self.decode.decode_step_s(1, 1_501 + k) for k in range(4))
        assert time_of(events, LlmPrefillEnd, "t00000") == pytest.approx(prefill_s)
        assert time_of(events, LlmEnd, "t00000") == pytest.approx(prefill_s + transfer_s + decode_s)
        report = sim.report()
        assert report["gpus"] == 10
        busy_gpu_s = (
            prefill_s * 8 - self.prefill.prefill_s(1_500) * 4 + experts_s(self.prefill, 1_500) * 4 + decode_s * 2
        )
        assert 1 - report["gpu_idle_ratio"] == pytest.approx(busy_gpu_s / 10 / report["makespan_s"])

    def test_workers_say_what_they_are_and_that_their_roles_are_fixed(self) -> None:
        sim = pool([one(1_500, 5)], profile=self.prefill, decode_profile=self.decode)
        ups = {event.worker_id: event for _, event in of(sim.advance(0.0), WorkerUp)}  # type: ignore[attr-defined]
        assert (ups["w0"].dp_size, ups["w0"].kv_capacity, ups["w0"].gpus) == (2, 40_000, 8)
        assert (ups["w1"].dp_size, ups["w1"].kv_capacity, ups["w1"].gpus) == (1, 9_000, 2)
        assert not ups["w0"].flippable
        assert not ups["w1"].flippable
        assert "roles are fixed" in ups["w1"].reason_not_flippable
        sim.perform(effect("fence"))
        (answer,) = sim.perform(effect("switch", "decode"))
        assert not answer[1].ok  # type: ignore[union-attr]
        assert "roles are fixed" in answer[1].detail  # type: ignore[union-attr]

    def test_two_models_or_colocated_workers_are_refused(self) -> None:
        other = make_profile(model="another")
        with pytest.raises(ConfigError, match="give profiles of one model"):
            pool([one(10, 2)], profile=self.prefill, decode_profile=other)
        with pytest.raises(ConfigError, match="colocated"):
            pool([one(10, 2)], ("mixed",), profile=self.prefill, decode_profile=self.decode)


class TestRequestTime:
    def test_a_request_takes_its_time_before_it_can_be_in_a_batch(self) -> None:
        plain, slow = make_profile(), make_profile(request_ms=40.0)
        for roles in (("prefill", "decode"), ("mixed",)):
            first_s = time_of(run(pool([one(500, 9)], roles, profile=plain)), LlmFirstToken, "t00000")  # type: ignore[arg-type]
            later_s = time_of(run(pool([one(500, 9)], roles, profile=slow)), LlmFirstToken, "t00000")  # type: ignore[arg-type]
            assert later_s == pytest.approx(first_s + 0.040)


class TestKvRunsOut:
    crowd = tuple(one(200, 1_500) for _ in range(5))
    profile = make_profile(kv_tokens=5_000)

    def test_decode_retracts_to_host_memory_and_computes_nothing_again(self) -> None:
        sim = pool(self.crowd, profile=self.profile)
        events = run(sim, pace_s=0.5)
        report = sim.report()
        assert report["retractions"] > 0
        assert report["computed_prefill_tokens"] == 5 * 200
        assert [event.output_tokens for _, event in of(events, LlmEnd)] == [1_500] * 5  # type: ignore[attr-defined]

    def test_a_colocated_worker_prefills_what_it_retracted_again(self) -> None:
        sim = pool(self.crowd, ("mixed",), profile=self.profile)
        events = run(sim, pace_s=0.5)
        report = sim.report()
        assert report["retractions"] > 0
        assert report["computed_prefill_tokens"] > 5 * 200
        assert report["output_tokens"] == 5 * 1_500
        assert [event.output_tokens for _, event in of(events, LlmEnd)] == [1_500] * 5  # type: ignore[attr-defined]

    def test_who_has_the_fewest_outputs_goes_first(self) -> None:
        trips = [one(200, 3_000), one(200, 3_000), one(200, 3_000, sandbox_s=2.0)]
        sim = pool(trips, profile=self.profile)
        while sim.report()["retractions"] == 0:
            sim.advance(sim.now_s + 0.05)
        waiting = sim._state.queues["head"][3 + 3 * 1]
        assert waiting == 2


class TestRouter:
    def test_first_turns_are_spread_over_the_workers(self) -> None:
        events = run(pool([one(900, 2) for _ in range(8)], ("prefill",) * 4 + ("decode",)))
        chosen = [event.prefill_worker for _, event in of(events, LlmSubmit)]  # type: ignore[attr-defined]
        assert sorted(chosen) == sorted(["w0", "w1", "w2", "w3"] * 2)

    def test_a_turn_goes_home(self) -> None:
        trips = [Trip((Turn(900, 5), Turn(1_000, 5, 1.0 + i))) for i in range(4)]
        events = run(pool(trips, ("prefill",) * 4 + ("decode",)))
        for i in range(4):
            first, second = events_of(events, LlmSubmit, f"t{i:05d}")
            assert first.prefill_worker == second.prefill_worker
            assert second.new_tokens == 100

    @pytest.mark.parametrize(("queue", "stays"), [(300, True), (9_500, False)])
    def test_a_turn_leaves_home_where_the_queue_costs_more_than_home_saves(self, queue: int, stays: bool) -> None:
        """Home is w1 and holds 400 of the 500 tokens; what arrives just before goes to w1 too: w0 is home to more."""
        trips = [
            Trip((Turn(300, 5), Turn(310, 5, 30.0))),
            Trip((Turn(400, 5), Turn(500, 5, 1.0)), sandbox_s=0.2),
            one(300, 500, sandbox_s=0.4),
            one(queue, 5, sandbox_s=1.27),
        ]
        events = run(pool(trips, ("prefill", "prefill", "decode")))
        sent = {i: [event.prefill_worker for event in events_of(events, LlmSubmit, f"t{i:05d}")] for i in range(4)}
        assert (sent[0][0], sent[2][0], sent[3][0]) == ("w0", "w0", "w1")
        assert sent[1] == ["w1", "w1" if stays else "w0"]

    def test_a_request_that_waits_for_kv_is_not_overtaken(self) -> None:
        trips = [one(6_000, 300), one(6_000, 300, sandbox_s=0.1), one(100, 5, sandbox_s=0.2)]
        events = run(pool(trips, profile=make_profile(kv_tokens=8_000)))
        assert [event.trajectory_id for _, event in of(events, LlmAdmitted)] == ["t00000", "t00001", "t00002"]  # type: ignore[attr-defined]
        assert time_of(events, LlmAdmitted, "t00002") >= time_of(events, LlmEnd, "t00000")


class TestFlips:
    trip = Trip((Turn(2_000, 300), Turn(2_400, 10, 8.0)))
    roles = ("prefill", "prefill", "decode", "decode")

    def flipped(self, cache: str, worker: str) -> tuple[Simulation, list[Timed]]:
        """The worker that holds the trajectory's context is flipped while a tool runs."""
        sim = pool([self.trip], self.roles, cache=cache)
        flipper = Flipper(sim, {f"w{w}": role for w, role in enumerate(self.roles)})  # type: ignore[arg-type]
        flipper.advance(6.0)
        submitted = events_of(flipper.events, LlmSubmit, "t00000")[0]
        flipper.start(getattr(submitted, worker))
        while not sim.done:
            flipper.advance(sim.now_s + 1.0)
        return sim, flipper.events

    def test_a_cold_flip_loses_the_cache(self) -> None:
        sim, events = self.flipped("cold", "decode_worker")
        second = events_of(events, LlmPrefillEnd, "t00000")[1]
        (dropped,) = [e.kv_tokens_dropped for _, e in of(events, EffectResult) if e.action == "switch"]  # type: ignore[attr-defined]
        assert dropped == 2_300
        # The other prefill worker still has the prompt, but the output that decode held is prefilled again.
        assert second.cached_tokens == 2_000
        assert sim.report()["recomputed_tokens"] == 300

    def test_a_warm_flip_keeps_it_and_the_next_turn_goes_there(self) -> None:
        sim, events = self.flipped("retained", "decode_worker")
        first, second = events_of(events, LlmSubmit, "t00000")
        assert second.prefill_worker == first.decode_worker
        assert events_of(events, LlmPrefillEnd, "t00000")[1].cached_tokens == 2_300
        assert sim.report()["recomputed_tokens"] == 0

    def test_a_shared_store_brings_it_back_for_the_time_of_the_fetch(self) -> None:
        sim, events = self.flipped("l3", "decode_worker")
        submitted = [t for t, _ in of(events, LlmSubmit)][1]
        started = [t for t, _ in of(events, LlmPrefillStart)][1]
        assert events_of(events, LlmPrefillEnd, "t00000")[1].cached_tokens == 2_300
        # The prefill worker at home holds the prompt; the output is fetched.
        assert started - submitted == pytest.approx(300 * 100_000 / 20e9)
        assert sim.report()["recomputed_tokens"] == 0

    def test_a_flip_is_counted_and_timed(self) -> None:
        sim, events = self.flipped("retained", "decode_worker")
        report = sim.report()
        assert report["flips"] == 1
        assert report["flip_overhead_s"] == pytest.approx(0.5 + 0.2)
        assert report["flip_idle_ratio"] == pytest.approx(0.7 / (4 * report["makespan_s"]))
        assert [row[1:] for row in report["split"]] == [[2, 2, 0, 0], [2, 1, 0, 1], [3, 1, 0, 0]]
        ((_, role),) = of(events, WorkerRole)
        assert (role.role, role.epoch) == ("prefill", 1)  # type: ignore[attr-defined]

    def test_a_drained_decode_goes_on_elsewhere_from_where_it_was(self) -> None:
        sim = pool([one(1_000, 400)], self.roles)
        events = sim.advance(2.0)
        decode = events_of(events, LlmSubmit, "t00000")[0].decode_worker
        for action in ("fence", "drain"):
            events += sim.perform(effect(action, "decode", decode))
        events += run(sim)
        (retry,) = events_of(events, LlmRetry, "t00000")
        first, second = events_of(events, LlmSubmit, "t00000")
        assert (retry.attempt, retry.from_decode) == (1, decode)
        assert 0 < retry.tokens_kept < 400
        assert second.attempt == 1
        assert second.prompt_tokens == 1_000 + retry.tokens_kept
        assert second.decode_worker != decode
        assert second.new_tokens == retry.tokens_kept  # the prefill worker has the prompt, the output it has not
        (end,) = events_of(events, LlmEnd, "t00000")
        assert (end.attempt, end.output_tokens, end.cached_tokens) == (1, 400, 1_000)
        assert sim.report()["requests_resumed"] == 1
        assert first.decode_worker == decode

    def test_a_cold_flip_costs_exactly_drain_rebuild_and_prefill_again(self) -> None:
        profile, prompt, output = make_profile(), 1_000, 400
        sim = pool([one(prompt, output)], self.roles, profile=profile, cache="cold")
        flipper = Flipper(sim, {f"w{w}": role for w, role in enumerate(self.roles)})  # type: ignore[arg-type]
        flipper.advance(2.0)
        flipper.start(events_of(flipper.events, LlmSubmit, "t00000")[0].decode_worker)
        while flipper.stage or not sim.done:
            flipper.advance(sim.now_s + 1.0)
        (retry,) = events_of(flipper.events, LlmRetry, "t00000")
        kept, first_s = retry.tokens_kept, of(flipper.events, LlmFirstToken)[0][0]
        cancelled_s = first_s + sum(profile.decode_step_s(1, prompt + 1 + k) for k in range(kept - 1))
        answered_s = cancelled_s + 0.03
        assert sim.report()["flip_overhead_s"] == pytest.approx(answered_s - 2.0 + 0.5 + 0.2)
        # Prefill has the prompt still; it computes the output and sends all of it to another decode worker.
        again_s = profile.prefill_s(kept, prompt) + (prompt + kept) * 100_000 / 40e9 + 0.005
        rest_s = sum(profile.decode_step_s(1, prompt + kept + 1 + k) for k in range(output - kept - 1))
        assert sim.report()["makespan_s"] == pytest.approx(answered_s + again_s + rest_s)

    def test_a_drain_takes_effect_at_the_end_of_the_step_and_is_answered_later(self) -> None:
        sim = pool([one(1_000, 400)], self.roles)
        events = sim.advance(2.0)
        decode = events_of(events, LlmSubmit, "t00000")[0].decode_worker
        sim.perform(effect("fence", "decode", decode))
        assert sim.perform(effect("drain", "decode", decode)) == []
        (answered, result) = of(sim.advance(10.0), EffectResult)[0]
        step_s = make_profile().decode_step_s(1, 1_400)
        assert 0.03 <= answered - 2.0 <= 0.03 + step_s
        assert sim.now_s == answered
        assert result.requests_resumed == 1  # type: ignore[attr-defined]

    def test_a_drained_prefill_keeps_the_chunks_that_are_done(self) -> None:
        sim = pool([one(5_000, 5)], ("prefill", "prefill", "decode"))
        events = sim.advance(0.08)  # in the second of five chunks
        prefill = events_of(events, LlmSubmit, "t00000")[0].prefill_worker
        for action in ("fence", "drain", "admit"):
            events += sim.perform(effect(action, "prefill", prefill))
        # Back in the pool, it is where most of the prompt is.
        events += run(sim)
        ends = events_of(events, LlmPrefillEnd, "t00000")
        assert [(end.worker_id, end.cached_tokens) for end in ends] == [(prefill, 2_000)]


class TestSynchronousSteps:
    trips = tuple(Trip((Turn(1_000, 20), Turn(1_100, 20, 1.0)), step=k // 4) for k in range(12))

    def test_steps_end_with_their_last_trajectory_and_pause_for_the_weights(self) -> None:
        sim = pool(self.trips, mode="sync", weight_update_s=7.0, cache_flush=True, concurrency=3)
        events = run(sim)
        begins, ends = of(events, StepBegin), of(events, StepEnd)
        assert [event.step for _, event in begins] == [0, 1, 2]  # type: ignore[attr-defined]
        assert [event.target_groups for _, event in begins] == [2, 2, 2]  # type: ignore[attr-defined]
        starts = of(events, WeightsUpdateBegin)
        assert [t for t, _ in starts] == [t for t, _ in ends[:-1]]
        assert [t for t, _ in of(events, WeightsUpdateEnd)] == [t + 7.0 for t, _ in starts]
        assert [t for t, _ in begins[1:]] == [t + 7.0 for t, _ in starts]
        lengths = [end - begin for (begin, _), (end, _) in zip(begins, ends, strict=True)]
        assert sim.report()["step_s"] == pytest.approx(sum(lengths) / 3)
        for t, event in of(events, TrajectoryDispatched):
            step = int(event.trajectory_id[1:]) // 4  # type: ignore[attr-defined]
            assert begins[step][0] <= t < ends[step][0]

    @pytest.mark.parametrize(("flush", "left"), [(True, 0), (False, 4 * 1_120)])
    def test_a_weight_update_drops_the_caches_where_it_flushes(self, flush: bool, left: int) -> None:
        sim = pool(self.trips, mode="sync", weight_update_s=7.0, cache_flush=flush)
        events = sim.advance(1.0)
        while not of(events, WeightsUpdateEnd):
            events += sim.advance(sim.now_s + 0.01)
        assert sim._state.ranks["cached"][1] == left


class TestDemandAhead:
    def test_the_future_is_what_then_happens(self) -> None:
        trips = [Trip((Turn(1_000, 60), Turn(1_500, 40, 0.3), Turn(2_000, 30, 3.0))) for _ in range(6)]
        sim = pool(trips, ("prefill", "decode", "decode"))
        sim.advance(0.7)
        foreseen = sim.future_demand((2.0, 5.0))
        events = run(sim, pace_s=0.5)
        computed = {
            (event.rid, event.trajectory_id): event.computed_tokens
            for _, event in of(events, LlmPrefillEnd)  # type: ignore[attr-defined]
        }
        for horizon_s, demand in foreseen.items():
            window = [(t, event) for t, event in events if 0.7 < t <= 0.7 + horizon_s]
            arrived = sum(
                computed[(event.request_id + ".00", event.trajectory_id)]  # type: ignore[attr-defined, operator]
                for _, event in of(window, TrajectoryReady)
            )
            outputs = {event.request_id + ".00": event.output_tokens for _, event in of(events, LlmEnd)}  # type: ignore[attr-defined]
            admitted = sum(event.kv_tokens + outputs[event.rid] for _, event in of(window, LlmAdmitted))  # type: ignore[attr-defined]
            assert demand["arrivals"] == arrived > 0
            assert demand["decode_admission"] == admitted > 0
            assert demand["kv_need"] > 0

    def test_the_backlog_is_what_waits_uncached(self) -> None:
        sim = pool([one(3_000, 5) for _ in range(3)], profile=make_profile(kv_tokens=8_000))
        sim.advance(0.0)
        assert sim.future_demand((5.0,))[5.0]["backlog"] == 9_000
        sim.advance(make_profile().prefill_s(1_000))
        assert sim.future_demand((5.0,))[5.0]["backlog"] == 8_000


class TestHostTier:
    """A context of 1,010 tokens is driven out of an HBM pool of 2,000 by a prompt of 1,500, and comes back."""

    trips = (Trip((Turn(1_000, 10), Turn(1_110, 5, 5.0))), one(1_500, 5, sandbox_s=1.0))

    def second_prefill(
        self, host_kv_tokens: int, kv_bytes: int = 100_000, **config: object
    ) -> tuple[Simulation, int, float]:
        """The simulation, what was cached for the second turn, and the seconds its prefill took."""
        profile = make_profile(kv_tokens=2_000, kv_bytes_per_token=kv_bytes)
        sim = pool(self.trips, ("mixed",), profile=profile, host_kv_tokens=host_kv_tokens, **config)
        events = run(sim)
        ended = [(t, e) for t, e in of(events, LlmPrefillEnd) if e.trajectory_id == "t00000"][1]  # type: ignore[attr-defined]
        started = [t for t, e in of(events, LlmPrefillStart) if e.trajectory_id == "t00000"][1]  # type: ignore[attr-defined]
        return sim, ended[1].cached_tokens, ended[0] - started  # type: ignore[attr-defined]

    def test_without_one_what_was_evicted_is_computed_again(self) -> None:
        sim, cached, took_s = self.second_prefill(0)
        # The other request holds 1,505 tokens; the head of the context has the rest.
        assert cached == 495
        assert took_s == pytest.approx(make_profile().prefill_s(1_110 - 495, 495))
        assert sim.report()["prefill_again_tokens"] == 1_010 - 495

    def test_with_one_it_comes_back_while_the_step_computes(self) -> None:
        sim, cached, took_s = self.second_prefill(4_000)
        assert cached == 1_010
        assert took_s == pytest.approx(make_profile().prefill_s(100, 1_010))
        assert sim.report()["prefill_again_tokens"] == 0

    def test_a_step_waits_for_what_takes_longer_to_load_than_to_compute(self) -> None:
        _, cached, took_s = self.second_prefill(4_000, kv_bytes=10_000_000)
        assert cached == 1_010
        assert took_s == pytest.approx((1_010 - 495) * 10_000_000 / 25e9)

    def test_a_tier_holds_copies_of_what_hbm_holds_and_only_the_head_of_what_it_has_no_room_for(self) -> None:
        """The second prompt's copy takes the place of all of the first's that HBM has not kept."""
        sim = self.second_prefill(600)[0]
        assert sim._state.ranks["host_used"][0] == 600
        sim = pool(self.trips, ("mixed",), profile=make_profile(kv_tokens=2_000), host_kv_tokens=600)
        sim.advance(4.0)
        assert sim._state.hosts["tokens"][0].tolist() == [495, 105]

    def test_what_hbm_still_holds_is_not_evicted_from_it(self) -> None:
        """The first context is only in the host tier when the third prompt wants its place."""
        trips = (*self.trips, one(1_200, 5, sandbox_s=2.0))
        sim = pool(trips, ("mixed",), profile=make_profile(kv_tokens=2_000), host_kv_tokens=2_600)
        sim.advance(4.0)
        copies = sim._state.hosts["tokens"][0]
        # 795 tokens of the second context are left in HBM; its copy beyond them is newer than the first one's.
        assert copies.tolist() == [0, 1_395, 1_205]

    def test_decode_loads_its_part_back_and_prefill_sends_the_rest(self) -> None:
        profile = make_profile(
            kv_tokens=2_000, kv_bytes_per_token=10_000_000, prefill=Fit(a_ms=1.0, b_ms=0.0, c_ms=0.0)
        )
        sim = pool(self.trips, profile=profile, host_kv_tokens=4_000)
        events = run(sim)
        ended = [t for t, e in of(events, LlmPrefillEnd) if e.trajectory_id == "t00000"][1]  # type: ignore[attr-defined]
        token = [t for t, e in of(events, LlmFirstToken) if e.trajectory_id == "t00000"][1]  # type: ignore[attr-defined]
        started = [t for t, e in of(events, LlmAdmitted) if e.trajectory_id == "t00000"][1]  # type: ignore[attr-defined]
        sent_s, loaded_s = 100 * 10_000_000 / 40e9 + 0.005, (1_010 - 495) * 10_000_000 / 25e9
        assert token == pytest.approx(max(ended + sent_s, started + loaded_s))

    @pytest.mark.parametrize(("cache", "cached"), [("cold", 0), ("retained", 1_010)])
    def test_a_flip_loses_the_tier_unless_it_is_retained(self, cache: str, cached: int) -> None:
        profile = make_profile(kv_tokens=2_000)
        trips = (Trip((Turn(1_000, 10), Turn(1_110, 5, 20.0))), one(1_500, 5, sandbox_s=1.0))
        sim = pool(
            trips, ("prefill", "prefill", "decode", "decode"), profile=profile, host_kv_tokens=4_000, cache=cache
        )
        flipper = Flipper(sim, {f"w{w}": role for w, role in enumerate(("prefill", "prefill", "decode", "decode"))})  # type: ignore[arg-type]
        flipper.advance(8.0)
        decode = events_of(flipper.events, LlmSubmit, "t00000")[0].decode_worker
        flipper.start(decode)
        while not sim.done:
            flipper.advance(sim.now_s + 1.0)
        second = events_of(flipper.events, LlmPrefillEnd, "t00000")[1]
        assert second.cached_tokens == max(cached, 1_000)  # the prefill worker has the prompt at least
        assert (second.worker_id == decode) == (cache == "retained")


class TestSharedPrompts:
    """Two siblings with the same 800 leading tokens of 1,000; trips 0 and 1 are a group."""

    def siblings(self, apart_s: float, **later: object) -> tuple[Trip, Trip]:
        first = Trip((Turn(1_000, 10),), shared=800)
        return first, Trip((Turn(1_000, 10),), sandbox_s=apart_s, shared=800, **later)  # type: ignore[arg-type]

    def test_what_they_share_is_computed_and_held_once(self) -> None:
        sim = pool(self.siblings(1.0), ("mixed",))
        ends = [e for _, e in of(run(sim), LlmPrefillEnd)]
        assert [(e.cached_tokens, e.computed_tokens) for e in ends] == [(0, 1_000), (800, 200)]  # type: ignore[attr-defined]
        assert sim._state.ranks["cached"][0] == 800 + 2 * 210
        assert sim.report()["prefill_again_tokens"] == 0

    def test_siblings_of_one_step_compute_it_twice_and_hold_it_once(self) -> None:
        """SGLang's default order (fcfs) does not look for prefixes within a batch."""
        sim = pool(self.siblings(0.0), ("mixed",), profile=make_profile(chunk_tokens=2_000))
        events = run(sim)
        assert [e.computed_tokens for _, e in of(events, LlmPrefillEnd)] == [1_000, 1_000]  # type: ignore[attr-defined]
        assert sim._state.ranks["cached"][0] == 800 + 2 * 210

    def test_a_sibling_of_a_later_step_finds_the_chunks_before_it(self) -> None:
        sim = pool(self.siblings(0.0), ("mixed",), profile=make_profile(chunk_tokens=1_000))
        assert [e.computed_tokens for _, e in of(run(sim), LlmPrefillEnd)] == [1_000, 200]  # type: ignore[attr-defined]

    def test_both_hold_it_once_while_they_decode(self) -> None:
        trips = [replace(trip, turns=(Turn(1_000, 2_000),)) for trip in self.siblings(0.0)]
        sim = pool(trips, ("mixed",), profile=make_profile(chunk_tokens=2_000))
        sim.advance(1.0)
        output = sum(e.output_tokens or 0 for _, e in of(sim.advance(1.5), LlmEnd))  # type: ignore[attr-defined]
        assert output == 0
        tails = sim._state.ranks["locked"][0] - 800
        assert 400 < tails < 600  # two times 200 of the prompts, and outputs

    def test_it_outlives_its_users_tails(self) -> None:
        """A prompt of another group needs room: the tails go first, what is shared last."""
        trips = (*self.siblings(1.0), one(1_400, 5, sandbox_s=2.0))
        sim = pool(trips, ("mixed",), profile=make_profile(kv_tokens=2_000))
        sim.advance(2.3)
        entries = sim._state.entries["tokens"][0]
        assert entries.tolist()[:2] == [0, 0]
        assert 0 < entries[3] <= 2_000 - 1_401

    @pytest.mark.parametrize(
        ("shared", "apart_s", "second"), [(800, 0.5, "w0"), (0, 0.5, "w1"), (800, 0.0, "w1")], ids=str
    )
    def test_a_first_turn_goes_where_its_group_is_unless_the_queue_there_is_longer(
        self, shared: int, apart_s: float, second: str
    ) -> None:
        """Elsewhere there are fewer trajectories at home; at once, the first sibling's prompt is the longer queue."""
        trips = [replace(trip, turns=(Turn(1_000, 100),), shared=shared) for trip in self.siblings(apart_s)]
        events = run(pool(trips, ("prefill", "prefill", "decode")))
        assert [events_of(events, LlmSubmit, f"t{i:05d}")[0].prefill_worker for i in range(2)] == ["w0", second]


class TestWeightUpdates:
    """Every second trajectory that ends brings an update, with a pause of 7 s."""

    long = one(1_000, 400)
    short = one(200, 5, sandbox_s=1.0)

    def updated(self, **config: object) -> tuple[Simulation, list[Timed]]:
        trips = (self.long, self.short, self.short)
        sim = pool(trips, update_every=2, weight_update_s=7.0, **config)
        return sim, run(sim)

    def test_requests_are_held_in_place_and_go_on_with_their_kv(self) -> None:
        sim, events = self.updated()
        alone_s = time_of(run(pool([self.long, self.short, self.short])), LlmEnd, "t00000")
        ((begun, _),), ((ended, _),) = of(events, WeightsUpdateBegin), of(events, WeightsUpdateEnd)
        assert begun == max(time_of(events, LlmEnd, f"t0000{i}") for i in (1, 2))
        assert ended == begun + 7.0
        step_s = make_profile().decode_step_s(3, 2_000)
        # The step under way when the pause begins is computed in it.
        assert 7.0 - step_s <= time_of(events, LlmEnd, "t00000") - alone_s <= 7.0
        assert of(events, LlmRetry) == []
        assert sim.report()["weight_updates"] == 1

    def test_a_flush_aborts_them_and_they_prefill_all_again(self) -> None:
        sim, events = self.updated(cache_flush=True)
        (retry,) = events_of(events, LlmRetry, "t00000")
        ((_, ended),) = of(events, WeightsUpdateEnd)
        first, second = events_of(events, LlmPrefillEnd, "t00000")
        assert (retry.reason, retry.attempt) == ("weight update", 1)
        assert 0 < retry.tokens_kept < 400
        assert (second.cached_tokens, second.computed_tokens) == (0, 1_000 + retry.tokens_kept)
        assert ended.cache_flushed  # type: ignore[attr-defined]
        assert sim.report()["requests_interrupted"] == 1
        assert sim.report()["requests_resumed"] == 0
        assert sim.report()["prefill_again_tokens"] == second.computed_tokens
        assert first.computed_tokens == 1_000

    def test_nothing_starts_in_the_pause(self) -> None:
        late = one(300, 5, sandbox_s=2.0)
        events = run(pool([self.long, self.short, self.short, late], update_every=2, weight_update_s=7.0))
        ((_, _),), ((ended, _),) = of(events, WeightsUpdateBegin), of(events, WeightsUpdateEnd)
        assert time_of(events, TrajectoryReady, "t00003") < ended
        assert time_of(events, LlmPrefillStart, "t00003") == ended

    def test_training_before_it_is_announced_and_stops_nothing(self) -> None:
        _, events = self.updated(update_lead_s=0.5)
        (announced, first), (begun, second) = of(events, WeightsUpdateBegin)
        assert (first.expected_in_s, second.expected_in_s) == (0.5, None)  # type: ignore[attr-defined]
        assert begun == announced + 0.5

    @pytest.mark.parametrize(("staleness", "first"), [(0, 2), (1, 4), (None, 6)])
    def test_no_more_are_dispatched_than_the_bound_on_staleness_lets(self, staleness: int | None, first: int) -> None:
        sim = pool([one(500, 20) for _ in range(6)], update_every=2, weight_update_s=1.0, staleness=staleness)
        assert len(of(sim.advance(0.0), TrajectoryDispatched)) == first
        events = run(sim)
        updates = [t for t, _ in of(events, WeightsUpdateEnd)]
        later = [t for t, _ in of(events, TrajectoryDispatched)]
        assert later == [t for t in updates for _ in range(2)][: 6 - first]

    def test_the_sampler_says_what_is_to_come(self) -> None:
        sim = pool([one(500, 20) for _ in range(6)], update_every=2, weight_update_s=1.0, staleness=1)
        states = [event for _, event in of(run(sim, pace_s=0.5), SamplerState)]
        assert (states[0].until_update, states[0].limit) == (2, 4)  # type: ignore[attr-defined]


class TestOverSampling:
    """Three groups of two are dispatched for the two that the step wants."""

    trips = (
        *(one(300, 20) for _ in range(4)),
        Trip((Turn(300, 20), Turn(400, 2_000, 0.1))),
        one(300, 2_000),
        *(replace(one(200, 5), step=1) for _ in range(4)),
    )

    def test_the_step_ends_with_the_last_group_it_wants_and_the_rest_is_aborted(self) -> None:
        sim = pool(self.trips, mode="sync", oversample=1.5, groups_per_step=2, weight_update_s=3.0, concurrency=6)
        events = run(sim)
        statuses = {e.trajectory_id: e.status for _, e in of(events, TrajectoryEnd)}  # type: ignore[attr-defined]
        assert [statuses[f"t{i:05d}"] == "aborted" for i in range(6)] == [False] * 4 + [True] * 2
        complete_s = max(time_of(events, TrajectoryEnd, f"t{i:05d}") for i in range(4))
        (step_end, _), _ = of(events, StepEnd)
        assert complete_s <= step_end <= complete_s + make_profile().decode_step_s(6, 3_000)
        aborted = [e for _, e in of(events, LlmEnd) if e.finish_reason == "abort"]  # type: ignore[attr-defined]
        assert [e.trajectory_id for e in aborted] == ["t00005"]  # type: ignore[attr-defined] # a tool runs for the other
        assert [e.target_groups for _, e in of(events, StepBegin)] == [2, 2]  # type: ignore[attr-defined]
        assert sim.report()["trajectories_aborted"] == 2
        assert (sim._state.ranks["locked"] == 0).all()

    def test_what_was_not_dispatched_yet_is_not(self) -> None:
        sim = pool(self.trips, mode="sync", oversample=1.5, groups_per_step=2, concurrency=2)
        events = run(sim)
        dispatched = [e.trajectory_id for _, e in of(events, TrajectoryDispatched)]  # type: ignore[attr-defined]
        assert sim.done
        assert dispatched == [f"t{i:05d}" for i in (0, 1, 2, 3, 4, 6, 7, 8, 9)]
        assert sim.report()["trajectories_aborted"] == 1


class TestFaults:
    roles = ("prefill", "prefill", "decode", "decode")

    def test_requests_of_a_dead_decode_worker_go_on_elsewhere_from_what_they_have_said(self) -> None:
        fault = Fault(worker=2, at_s=2.0, kind="dies", for_s=1.0)
        sim = pool([one(1_000, 400)], self.roles, faults=(fault,))
        events = run(sim, pace_s=0.5)
        (retry,) = events_of(events, LlmRetry, "t00000")
        first, second = events_of(events, LlmSubmit, "t00000")
        assert (retry.reason, first.decode_worker, second.decode_worker) == ("worker down", "w2", "w3")
        assert 0 < retry.tokens_kept < 400
        (end,) = events_of(events, LlmEnd, "t00000")
        assert (end.output_tokens, end.finish_reason) == (400, "stop")
        # The prefill worker has the prompt; what the dead one decoded is prefilled.
        assert events_of(events, LlmPrefillEnd, "t00000")[1].computed_tokens == retry.tokens_kept
        ((down_s, _),), ((up_s, up),) = of(events, WorkerDown), of(events, WorkerUp)[-1:]
        assert (down_s, up_s, up.worker_id, up.role) == (2.0, 3.0, "w2", "decode")  # type: ignore[attr-defined]
        assert [row[1:] for row in sim.report()["split"]] == [[2, 2, 0, 0], [2, 1, 0, 0], [2, 2, 0, 0]]

    def test_a_dead_prefill_worker_loses_the_chunks_that_it_had_computed(self) -> None:
        fault = Fault(worker=0, at_s=0.08, kind="dies", for_s=60.0)
        events = run(pool([one(5_000, 5)], ("prefill", "prefill", "decode"), faults=(fault,)))
        (end,) = events_of(events, LlmPrefillEnd, "t00000")
        assert (end.worker_id, end.cached_tokens, end.computed_tokens) == ("w1", 0, 5_000)

    def test_a_colocated_worker_that_comes_back_has_nothing_cached(self) -> None:
        fault = Fault(worker=0, at_s=5.0, kind="dies", for_s=1.0)
        trip = Trip((Turn(1_000, 10), Turn(1_200, 10, 8.0)))
        sim = pool([trip], ("mixed",), faults=(fault,))
        ends = events_of(run(sim), LlmPrefillEnd, "t00000")
        assert [end.cached_tokens for end in ends] == [0, 0]
        assert sim.report()["recomputed_tokens"] == 1_010

    def test_a_flip_of_a_dead_worker_fails(self) -> None:
        fault = Fault(worker=2, at_s=2.0, kind="dies", for_s=50.0)
        sim = pool([one(1_000, 400)], self.roles, faults=(fault,))
        sim.advance(1.9)
        sim.perform(effect("fence", "decode", "w2"))
        assert sim.perform(effect("settle", "decode", "w2")) == []
        ((at_s, result),) = of(sim.advance(3.0), EffectResult)
        assert (at_s, result.ok, result.detail) == (2.0, False, "the worker has died")  # type: ignore[attr-defined]
        ((_, refused),) = sim.perform(effect("admit", "decode", "w2"))
        assert (refused.ok, refused.detail) == (False, "the worker is dead")  # type: ignore[union-attr]

    def test_it_comes_back_in_the_role_that_it_was_launched_in(self) -> None:
        fault = Fault(worker=2, at_s=5.0, kind="dies", for_s=2.0)
        sim = pool([one(1_000, 2_000)], self.roles, faults=(fault,))
        flipper = Flipper(sim, {f"w{w}": role for w, role in enumerate(self.roles)})  # type: ignore[arg-type]
        flipper.start("w2")
        flipper.advance(6.0)
        assert flipper.roles["w2"] == "prefill"
        (_, up) = of(sim.advance(8.0), WorkerUp)[-1]
        assert up.role == "decode"  # type: ignore[attr-defined]

    @pytest.mark.parametrize("roles", [("prefill", "decode"), ("mixed",)], ids=str)
    def test_a_slow_worker_takes_so_many_times_as_long(self, roles: tuple[Role, ...]) -> None:
        fault = Fault(worker=len(roles) - 1, at_s=0.0, kind="slows", for_s=100.0, factor=3.0)
        trip = one(1_000, 200, sandbox_s=0.1)
        plain, slow = (run(pool([trip], roles, faults=faults)) for faults in ((), (fault,)))
        last, first = (
            [time_of(events, kind, "t00000") for events in (plain, slow)] for kind in (LlmEnd, LlmFirstToken)
        )
        assert last[1] - first[1] == pytest.approx(3 * (last[0] - first[0]))
        assert (first[1] > first[0]) == (roles == ("mixed",))

    def test_only_steps_that_begin_while_it_is_slow_are(self) -> None:
        fault = Fault(worker=1, at_s=1.0, kind="slows", for_s=1.0, factor=3.0)
        plain, slow = (run(pool([one(1_000, 400)], faults=faults)) for faults in ((), (fault,)))
        longer_s = time_of(slow, LlmEnd, "t00000") - time_of(plain, LlmEnd, "t00000")
        assert longer_s == pytest.approx(1.0 - 1.0 / 3, abs=0.04)
