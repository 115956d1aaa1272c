"""Token accounts close whatever is cancelled, retracted, evicted and resumed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorsa.cluster.effects import Effect
from prorsa.cluster.profile import Experts, Profile
from prorsa.cluster.sim.config import Fault
from prorsa.cluster.sim.simulation import Simulation
from prorsa.events import LlmEnd, LlmPrefillEnd, Role, TrajectoryEnd
from tests.sim.pools import ORDER, Flipper, Trip, Turn, check, make_profile, of, pool

TIGHT_KV = 4_000


@st.composite
def trips(draw: st.DrawFn) -> list[Trip]:
    """A few trajectories whose contexts fill a tight pool several times over."""
    count = draw(st.integers(2, 12))
    made = []
    for i in range(count):
        turns, context = [], 0
        for _ in range(draw(st.integers(1, 4))):
            new, output = draw(st.integers(1, 900)), draw(st.one_of(st.integers(1, 300), st.integers(900, 2_500)))
            reuse = draw(st.one_of(st.none(), st.integers(0, context)))
            prompt = (context if reuse is None else reuse) + new
            if prompt + output > TIGHT_KV and turns:
                break
            turns.append(Turn(prompt, output, draw(st.floats(0, 3)), reuse))
            context = prompt + output
        sandbox_s, reward_s = draw(st.sampled_from([0.0, 0.7])), draw(st.sampled_from([0.0, 0.3]))
        made.append(Trip(tuple(turns), sandbox_s, reward_s, step=i // 4))
    shares = draw(st.lists(st.integers(0, 900), min_size=count // 2, max_size=count // 2))
    return [replace(trip, shared=_shared(made, shares, i)) for i, trip in enumerate(made)]


def _shared(made: list[Trip], shares: list[int], i: int) -> int:
    """What both trips of a group can share."""
    if i // 2 == len(shares):
        return 0
    return min(shares[i // 2], *(trip.turns[0].prompt for trip in made[i // 2 * 2 : i // 2 * 2 + 2]))


ROLES: tuple[tuple[Role, ...], ...] = (
    ("prefill", "decode"),
    ("prefill", "decode", "prefill", "decode"),
    ("prefill", "decode", "decode", "decode"),
    ("prefill", "prefill", "decode", "prefill"),
)
UPDATES = st.one_of(
    st.just({"mode": "async"}),
    st.just({"mode": "sync"}),
    st.just({"mode": "sync", "oversample": 2.0, "groups_per_step": 1}),
    st.fixed_dictionaries(
        {
            "mode": st.just("async"),
            "update_every": st.integers(1, 4),
            "update_lead_s": st.sampled_from([0.0, 0.4]),
            "staleness": st.sampled_from([None, 0, 1]),
        }
    ),
)
"""How weights are updated; trips come in groups of two and steps of four."""
COMMON = st.fixed_dictionaries(
    {
        "cache": st.sampled_from(["cold", "retained", "l3"]),
        "host_kv_tokens": st.sampled_from([0, TIGHT_KV // 2, 3 * TIGHT_KV]),
        "concurrency": st.integers(3, 12),
        "cache_flush": st.booleans(),
        "weight_update_s": st.sampled_from([0.0, 2.0]),
        "prefill_interval": st.sampled_from([0, 0, 1, 5]),
    }
)
POOLS = st.builds(lambda common, updates: common | updates, COMMON, UPDATES)
PROFILES = st.builds(
    make_profile,
    kv_tokens=st.integers(TIGHT_KV, 3 * TIGHT_KV),
    chunk_tokens=st.sampled_from([128, 1_000]),
    max_running=st.integers(1, 12),
    ranks=st.sampled_from([1, 1, 2, 4]),
    experts=st.sampled_from([Experts(), Experts(((1, 2.0), (500, 9.0)), ((4, 1.0), (8, 3.0)))]),
    request_ms=st.sampled_from([0.0, 0.0, 15.0]),
)


def finish(sim: Simulation, seen: list[Any]) -> None:
    """Run to the end and check what every run must have brought about."""
    for _ in range(20_000):
        if sim.done:
            break
        seen += sim.advance(sim.now_s + 5.0)
    assert sim.done, f"stuck at {sim.now_s} s"
    check(sim)
    workload, report = sim._workload, sim.report()
    ends = [event for _, event in of(seen, LlmEnd)]
    answers = {end.request_id: end.output_tokens for end in ends if end.finish_reason == "stop"}  # type: ignore[attr-defined]
    assert len({end.request_id for end in ends}) == len(ends)  # type: ignore[attr-defined]
    asked = {
        f"t{i:05d}-{k - workload.first_turn[i]:04d}": int(workload.output_tokens[k])
        for i in range(workload.trajectories)
        for k in range(workload.first_turn[i], workload.first_turn[i + 1])
    }
    over = [event for _, event in of(seen, TrajectoryEnd)]
    cut = sum(event.status == "aborted" for event in over)  # type: ignore[attr-defined]
    assert answers.items() <= asked.items()
    assert report["output_tokens"] == sum(end.output_tokens for end in ends)  # type: ignore[attr-defined]
    assert report["trajectories_aborted"] == cut
    if sim._config.oversample == 1:
        assert (answers, len(over), cut) == (asked, workload.trajectories, 0)
        assert report["prompt_tokens"] == workload.prompt_tokens.sum()
    assert (sim._state.ranks["locked"] == 0).all()
    assert report["prefill_again_tokens"] <= report["computed_prefill_tokens"]
    assert (sim._state.ranks["held"] == 0).all()
    assert (sim._state.ranks["outstanding"] == 0).all()
    assert (sim._state.ranks["homes"] == 0).all()
    assert (sim._state.workers["requests"] == 0).all()
    times = [t for t, _ in seen]
    assert times == sorted(times)
    shares = report["gpu_time"]
    assert all(share >= 0 for share in shares.values())
    assert sum(shares.values()) <= 1 + 1e-9
    assert report["gpu_idle_ratio"] == pytest.approx(1 - shares["attention"] - shares["experts"], abs=1e-9)


@given(
    trips(),
    st.sampled_from(ROLES),
    POOLS,
    PROFILES,
    st.lists(st.tuples(st.floats(0, 9), st.integers(0, 3)), max_size=8),
)
@settings(max_examples=120, deadline=None)
def test_whole_flips_at_any_time_lose_and_repeat_no_token(
    made: list[Trip],
    roles: Sequence[Role],
    settings_: dict[str, Any],
    profile: Profile,
    flips: list[tuple[float, int]],
) -> None:
    sim = pool(made, roles, profile=profile, **settings_)
    flipper = Flipper(sim, {f"w{w}": role for w, role in enumerate(roles)})
    for at_s, w in sorted(flips):
        flipper.advance(at_s)
        check(sim)
        after = [role for worker, role in flipper.roles.items() if worker not in flipper.stage and worker != f"w{w}"]
        if w < len(roles) and {"prefill", "decode"} <= set(after):
            flipper.start(f"w{w}")
        check(sim)
    while flipper.stage:
        flipper.advance(sim.now_s + 1.0)
    finish(sim, flipper.events)


@given(trips(), st.sampled_from(ROLES), POOLS, PROFILES, PROFILES)
@settings(max_examples=60, deadline=None)
def test_pools_of_two_profiles_lose_and_repeat_no_token(
    made: list[Trip], roles: Sequence[Role], settings_: dict[str, Any], profile: Profile, decode_profile: Profile
) -> None:
    sim = pool(made, roles, profile=profile, decode_profile=decode_profile, **settings_)
    seen: list[Any] = []
    for _ in range(20):
        seen += sim.advance(sim.now_s + 0.37)
        check(sim)
    finish(sim, seen)


@st.composite
def disorder(draw: st.DrawFn) -> list[tuple[float, int, str]]:
    """Effects in no order at all, on any worker but the first two."""
    effect = st.tuples(st.floats(0, 9), st.integers(2, 3), st.sampled_from(ORDER))
    return sorted(draw(st.lists(effect, max_size=14)))


FAULTS = st.lists(
    st.builds(
        Fault,
        worker=st.integers(0, 3),
        at_s=st.floats(0, 6),
        kind=st.sampled_from(["dies", "dies", "slows"]),
        for_s=st.floats(0.001, 5),
        factor=st.sampled_from([1.5, 20.0]),
    ),
    max_size=3,
)


@given(trips(), st.sampled_from([*ROLES[1:], ("mixed",) * 4]), POOLS, PROFILES, disorder(), FAULTS)
@settings(max_examples=120, deadline=None)
def test_effects_in_disorder_lose_and_repeat_no_token(
    made: list[Trip],
    roles: Sequence[Role],
    settings_: dict[str, Any],
    profile: Profile,
    effects: list[tuple[float, int, str]],
    faults: list[Fault],
) -> None:
    """And workers die and come back at any time, in the midst of each other's faults too."""
    if "mixed" not in roles:
        roles = ("prefill", "decode", *roles[2:])
    sim = pool(made, roles, profile=profile, faults=tuple(faults), **settings_)
    seen: list[Any] = []
    for k, (at_s, w, action) in enumerate(effects):
        while sim.now_s < at_s:
            seen += sim.advance(at_s)
        role: Role = ("prefill", "decode")[k % 2]
        seen += sim.perform(
            Effect(effect_id=f"e{k}", worker_id=f"w{w}", action=action, role=role, epoch=0, deadline_s=1.5)  # type: ignore[arg-type]
        )
        check(sim)
    finish(sim, seen)


CROWDS = st.lists(st.tuples(st.integers(50, 400), st.integers(700, 1_800)), min_size=8, max_size=12)


@given(CROWDS, st.sampled_from([("prefill", "decode"), ("mixed",)]), st.integers(TIGHT_KV, TIGHT_KV + 900), st.data())
@settings(max_examples=30, deadline=None)
def test_capacity_holds_and_retraction_keeps_every_token(
    crowd: list[tuple[int, int]], roles: Sequence[Role], kv_tokens: int, data: st.DataObject
) -> None:
    made = [Trip((Turn(prompt, output), Turn(prompt + output + 10, 20, 0.5))) for prompt, output in crowd]
    profile = make_profile(kv_tokens=kv_tokens, ranks=data.draw(st.sampled_from([1, 2, 4])))
    interval = data.draw(st.sampled_from([0, 8]))
    sim = pool(made * profile.ranks, roles, profile=profile, prefill_interval=interval)
    seen: list[Any] = []
    for k in range(60):
        seen += sim.advance(sim.now_s + 0.731)
        if k == 30:
            drain = Effect(effect_id="d", worker_id="w0", action="drain", role=roles[0], epoch=0, deadline_s=60.0)
            seen += sim.perform(drain)
        check(sim)
    finish(sim, seen)
    assert sim.report()["retractions"] > 0


def test_an_answer_that_ends_beside_others_prefill_ends_with_that_step() -> None:
    """Its rank has nothing to compute, decodes while the other prefills chunk by chunk, and is done at once."""
    made = [Trip((Turn(500, 3),)), Trip((Turn(6_000, 5),))]
    sim = pool(made, ("mixed",), profile=make_profile(ranks=2))
    seen: list[Any] = []
    while not sim.done:
        seen += sim.advance(sim.now_s + 0.01)
        check(sim)
    ended = [t for t, event in of(seen, LlmEnd) if event.trajectory_id == "t00000"]  # type: ignore[attr-defined]
    computed = [t for t, event in of(seen, LlmPrefillEnd) if event.computed_tokens == 6_000]  # type: ignore[attr-defined]
    assert ended[0] < computed[0]
