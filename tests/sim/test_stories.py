"""Small stories of what the mechanisms do."""

from typing import Any

import pytest

from prorsa.cluster.effects import Effect
from prorsa.cluster.profile import Experts, Fit, Profile, table_ms
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
    StepBegin,
    StepEnd,
    TrajectoryDispatched,
    TrajectoryReady,
    WeightsUpdateBegin,
    WeightsUpdateEnd,
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
