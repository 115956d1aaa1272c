"""A made-up run for the console's tests: eight workers, a burst of prefill, a decode tail, flips, a pin, a plan."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from prorsa.beside import Comparison
from prorsa.clock import nanoseconds
from prorsa.console.feeds import Sink
from prorsa.console.status import FeedStatus
from prorsa.events import (
    Admission,
    Alert,
    Alternative,
    AnyEvent,
    Command,
    Decision,
    Flip,
    Forecast,
    ForecastRow,
    GuardEffect,
    Move,
    Override,
    OverrideView,
    RunBegin,
    Settled,
    ShadowDecision,
    ShadowScore,
    Split,
    Stamped,
    TrajectoryView,
    View,
    WorkerView,
)

WORKERS = 8
KV_CAPACITY = 1_200_000
END_S = 780
FLIPS = (
    (150, "w4", "decode", "prefill"),
    (330, "w4", "prefill", "decode"),
    (345, "w3", "prefill", "decode"),
    (600, "w3", "decode", "prefill"),
)
FLIP_S = 12
FLOWS = {
    "dispatched>sandbox": 9.0,
    "sandbox>ready": 9.0,
    "ready>prefill": 151.0,
    "prefill>decode": 150.0,
    "decode>tool": 138.0,
    "tool>ready": 137.0,
    "decode>reward": 8.0,
    "reward>done": 7.0,
}
"""Moves between states a minute."""


def demand(t_s: float) -> float:
    """Prefill demand of the 15 s after ``t_s``: bursts at the beginning and at each step."""
    burst = 900_000 * math.exp(-(((t_s % 480) - 140) ** 2) / 9000)
    return 180_000 + burst + 40_000 * math.sin(t_s / 17)


def admission(t_s: float) -> float:
    """KV tokens that decode admits in the 15 s after ``t_s``; follows the prefill by a minute."""
    return 0.8 * demand(t_s - 60) + 60_000 * math.cos(t_s / 23)


def roles_at(t_s: float) -> dict[str, str]:
    """The role of each worker."""
    roles = {f"w{index}": "prefill" if index < 4 else "decode" for index in range(WORKERS)}
    return roles | {worker: to_role for at_s, worker, _, to_role in FLIPS if t_s >= at_s + FLIP_S}


def flipping_at(t_s: float) -> dict[str, tuple[str, str, str]]:
    """Worker → (from, to, state) of the flips under way."""
    states = ("fenced", "draining", "draining", "settling", "switching", "warming")
    found = {}
    for at_s, worker, from_role, to_role in FLIPS:
        if at_s <= t_s < at_s + FLIP_S:
            found[worker] = (from_role, to_role, states[int((t_s - at_s) / FLIP_S * len(states))])
    return found


def split_at(t_s: float) -> Split:
    """The split."""
    roles, flipping = roles_at(t_s), flipping_at(t_s)
    serving = [role for worker, role in roles.items() if worker not in flipping]
    return Split(serving.count("prefill"), serving.count("decode"), 0, len(flipping))


def workers_at(t_s: float) -> tuple[WorkerView, ...]:
    """The rows of the table; w7 has never reported its load."""
    roles, flipping = roles_at(t_s), flipping_at(t_s)
    rows = []
    for index in range(WORKERS):
        worker = f"w{index}"
        role = roles[worker]
        wave = 0.5 + 0.4 * math.sin(t_s / 60 + index)
        if index == 7:
            rows.append(WorkerView(worker, role, "serving", 1))
            continue
        rows.append(
            WorkerView(
                worker,
                role,
                flipping[worker][2] if worker in flipping else "serving",
                1 + sum(flip[1] == worker and t_s >= flip[0] + FLIP_S for flip in FLIPS),
                pinned="prefill" if index == 1 and t_s > 400 else None,
                flippable=index != 6,
                to_role=flipping[worker][1] if worker in flipping else None,
                queued=round(14 * wave) if role == "prefill" else round(3 * wave),
                running=2 if role == "prefill" else round(30 * wave),
                kv_used=round(KV_CAPACITY * (0.25 if role == "prefill" else 0.93) * wave),
                kv_cached=round(KV_CAPACITY * 0.3),
                kv_capacity=KV_CAPACITY,
                prefill_tokens_per_s=21_400 * wave if role == "prefill" else 0.0,
                output_tokens_per_s=1_930 * wave if role == "decode" else None,
                busy=min(0.35 + 0.6 * wave, 1.0),
                age_s=0.4,
            )
        )
    return tuple(rows)


def trajectories_at(t_s: float) -> tuple[TrajectoryView, ...]:
    """The trajectories that stand out: one is stuck in a tool, of one nothing is known but its state."""
    return (
        TrajectoryView("t00017", "tool", 412.0, 598.0, 6, 88_412, waits_for="bash", expected_s=8.0, stuck=True),
        TrajectoryView("t00003", "decode", 14.2, t_s, 9, 121_007, 1_204),
        TrajectoryView("t00005", "prefill", 2.1, t_s - 1.0, 11, 97_233),
        TrajectoryView("t00041", "reward"),
    )


def rows_at(t_s: float) -> tuple[ForecastRow, ...]:
    """The forecast that the view carries."""
    rows = []
    for target, value in (("prefill", guess(demand, t_s)), ("decode_admission", guess(admission, t_s))):
        rows.append(ForecastRow(target, 15.0, "total", value, value * 0.78, value, value * 1.27))
        rows.append(ForecastRow(target, 15.0, "ewma", value * 0.9))
    return tuple(rows)


def guess(what, t_s: float) -> float:
    """A forecast that errs a little, in a way that is the same each time."""
    return what(t_s) * (1 + 0.11 * math.sin(t_s / 11) + 0.05 * math.sin(t_s / 3))


def settled_at(t_s: float) -> tuple[Settled, ...]:
    """What is known at ``t_s`` about the forecasts of 16 s before."""
    at_s = t_s - 16
    if at_s < 0:
        return ()
    found = []
    for target, what in (("prefill", demand), ("decode_admission", admission)):
        value = guess(what, at_s)
        found.append(
            Settled(
                target,
                15.0,
                nanoseconds(at_s),
                what(at_s),
                what(at_s) / 2,
                value,
                value * 0.78,
                value,
                value * 1.27,
                value / 2,
                {"ewma": value},
            )
        )
    return tuple(found)


def decision_at(t_s: float) -> Decision:
    """The decision of a tick: every 5 s."""
    moves = tuple(
        Move(worker, from_role, to_role, f"least work lost of the {from_role} workers: 41.2k tokens")
        for at_s, worker, from_role, to_role in FLIPS
        if at_s == t_s
    )
    split = split_at(t_s - 0.1)
    current = Split(split.prefill, split.decode + split.switching)
    step = 0 if not moves else (1 if moves[0].to_role == "prefill" else -1)
    chosen = Split(current.prefill + step, current.decode - step)
    need_prefill, need_decode = demand(t_s) / 270_000, 8 - demand(t_s) / 210_000
    held = not moves and 345 < t_s < 375
    return Decision(
        decision_id=round(t_s / 5),
        tick_ns=nanoseconds(t_s),
        upto_hub_seq=round(t_s * 40),
        config_hash="c0ffee",
        policy="analytic",
        policy_state="",
        mode="auto",
        current=current,
        wanted=chosen,
        chosen=chosen,
        status="applied" if moves else "hold",
        reason=f"15 s ahead ask for {need_prefill:.1f} prefill and {need_decode:.1f} decode: {chosen} "
        + ("is the nearest split that fits" if moves else "has room, it stays"),
        inputs={
            "prefill_demand_tokens": round(demand(t_s)),
            "kv_need_tokens": round(admission(t_s) * 4),
            "prefill_tokens_per_s": 21_400.0,
            "kv_capacity_tokens": float(KV_CAPACITY),
            "need_prefill": round(need_prefill, 2),
            "need_decode": round(need_decode, 2),
        },
        alternatives=tuple(
            Alternative(Split(prefill, 8 - prefill), cost=round(abs(prefill - need_prefill) + 0.2, 2))
            for prefill in range(2, 7)
        ),
        guards=(GuardEffect("dwell", "w4 changed its role less than 30 s ago"),) if held else (),
        moves=moves,
    )


def shadow_at(t_s: float) -> ShadowDecision:
    """What ``learned`` says in shadow beside a decision: it would move earlier, and hands over for a while."""
    decided = decision_at(t_s)
    away = "queue: outside the range of its training" if 700 <= t_s < 760 else None
    step = 1 if 95 <= t_s < 150 or 560 <= t_s < 600 else -1 if 300 <= t_s < 330 else 0
    chosen = Split(decided.current.prefill + step, decided.current.decode - step) if step else decided.chosen
    what = f"{abs(step)} worker(s) to {'prefill' if step > 0 else 'decode'}" if step else "nothing to move"
    reason = f"practised in qwen-async: {what}"
    if away:
        reason = f"analytic decides for learned for {760 - t_s:.0f} s ({away}): {decided.reason}"
    return ShadowDecision(
        decision_id=decided.decision_id,
        tick_ns=decided.tick_ns,
        upto_hub_seq=decided.upto_hub_seq,
        policy="learned",
        policy_state="",
        wanted=chosen,
        chosen=chosen,
        agrees=chosen == decided.chosen,
        reason=reason,
        moves=decided.moves if not step else (Move("w4", "decode", "prefill", reason),),
        handed_over=away,
    )


@cache
def scores() -> dict[int, ShadowScore]:
    """How the shadow compares after the decision of each tick."""
    comparison, found = Comparison("learned", nanoseconds(5.0)), {}
    for tick in range(5, END_S + 1, 5):
        comparison.add(decision_at(float(tick)), shadow_at(float(tick)))
        found[tick] = comparison.score()
    return found


ADMISSION = Admission(
    tick_ns=0,
    mode="advise",
    limit=118,
    live=128,
    room_tokens=8_400_000,
    mean_context_tokens=60_500.0,
    reason="the caches of 4 worker(s) hold 8.40 M tokens and a live trajectory 60.5 k on average: 118 at a time fill "
    "85%; 128 are live",
)


def view_at(t_s: float, **changes: object) -> View:
    """The controller's aggregate at a tick."""
    pin = OverrideView(
        "pin-1",
        "pin",
        "effective",
        "mara",
        "long prompts land here",
        target="w1",
        value="prefill",
        expires_in_s=1800 - (t_s - 400),
    )
    known: dict[str, object] = {
        "tick_ns": nanoseconds(t_s),
        "upto_hub_seq": round(t_s * 40),
        "flows": {name: round(rate * t_s / 60) for name, rate in FLOWS.items()},
        "mean_context_tokens": 61_000.0,
        "mode": "auto",
        "policy": "analytic",
        "split": split_at(t_s),
        "workers": workers_at(t_s),
        "trajectories": {"sandbox": 3, "ready": 9, "prefill": 14, "decode": 61, "tool": 38, "reward": 3, "done": 97},
        "overrides": (pin,) if t_s > 400 else (),
        "forecast": rows_at(t_s),
        "scores": {"prefill": {"15": {"wape": 0.087}}, "decode_admission": {"15": {"wape": 0.094}}},
        "last_decision": decision_at(t_s // 5 * 5),
        "shadow": scores().get(round(t_s // 5 * 5)),
        "admission": ADMISSION,
        "output_tokens_per_s": 6_840.0,
        "prefill_tokens_per_s": 58_200.0,
        "idle": 0.12,
        "scenario": "coding-async",
        "done": 97,
        "total": 256,
    }
    return View(**(known | changes))  # type: ignore[arg-type]


def events(until_s: float = END_S) -> Iterator[tuple[float, AnyEvent]]:
    """The run from its beginning: ``(t_s, event)``."""
    yield 0.0, RunBegin(scenario="coding-async", profile="qwen3-32b-h200-tp2", seed=1, workers=8, concurrency=128)
    for tick in range(int(until_s) + 1):
        t_s = float(tick)
        yield (
            t_s,
            Forecast(
                tick_ns=nanoseconds(t_s),
                upto_hub_seq=tick * 40,
                live_trajectories=128,
                rows=rows_at(t_s),
                settled=settled_at(t_s),
            ),
        )
        if tick % 5 == 0 and tick:
            yield t_s, decision_at(t_s)
            yield t_s, shadow_at(t_s)
        for at_s, worker, from_role, to_role in FLIPS:
            if at_s <= t_s <= at_s + FLIP_S:
                state = flipping_at(t_s)[worker][2] if t_s < at_s + FLIP_S else "serving"
                yield (
                    t_s,
                    Flip(
                        flip_id=f"{worker}-{at_s}",
                        worker_id=worker,
                        from_role=from_role,
                        to_role=to_role,
                        epoch=2,
                        state=state,
                        reason="the split follows the demand",
                        tick_ns=nanoseconds(at_s),
                        elapsed_s=t_s - at_s,
                    ),
                )
        if tick == 398:
            yield (
                t_s,
                Command(
                    client="console",
                    request_id="pin-1",
                    verb="pin",
                    state="accepted",
                    owner="mara",
                    reason="long prompts land here",
                    target="w1",
                    value="prefill",
                    for_s=1800.0,
                ),
            )
        if tick in (398, 399, 400):
            state = {398: "accepted", 399: "draining", 400: "effective"}[tick]
            yield (
                t_s,
                Override(
                    override_id="pin-1",
                    kind="pin",
                    state=state,
                    owner="mara",
                    reason="long prompts land here",
                    target="w1",
                    value="prefill",
                    expires_ns=nanoseconds(398 + 1800),
                ),
            )
        if tick == 600:
            yield (
                t_s,
                Command(
                    client="console",
                    request_id="ask-1",
                    verb="details",
                    state="accepted",
                    owner="mara",
                    reason="",
                    trajectories=trajectories_at(t_s),
                ),
            )
        if tick == 500:
            yield (
                t_s,
                Command(
                    client="cli",
                    request_id="split-1",
                    verb="override",
                    state="rejected",
                    owner="jon",
                    reason="try a deeper split",
                    value="8:0",
                    detail="override: a split is P:D with at least one worker each",
                ),
            )
        if tick % 2 == 0:
            yield t_s, view_at(t_s)


@cache
def _whole() -> tuple[Stamped, ...]:
    return tuple(
        Stamped(index + 1, nanoseconds(t_s), "story", index + 1, 0, event)
        for index, (t_s, event) in enumerate(events())
    )


def stamped(until_s: float = END_S) -> list[Stamped]:
    """The run up to ``until_s`` as the hub would stamp it."""
    return [item for item in _whole() if item.t_ns <= nanoseconds(until_s)]


ALERT = Alert(
    code="stale-worker", severity="warning", text="w7 has not reported for 12 s; it is not flipped", worker_id="w7"
)


def proposal(now_s: float) -> Decision:
    """A plan that waits for approval for another 42 s."""
    base = decision_at(600.0)
    return Decision(
        **{
            name: getattr(base, name) for name in base.__struct_fields__ if name not in ("status", "expires_ns", "mode")
        },
        status="proposed",
        mode="approve",
        expires_ns=nanoseconds(now_s + 42),
    )


@dataclass
class StoryFeed:
    """A feed that hands over all its events at once and then stays as it is."""

    status_now: FeedStatus
    items: list[Stamped] = field(default_factory=list)
    player: object = None

    def status(self) -> FeedStatus:
        """The status that the test set."""
        return self.status_now

    async def run(self, sink: Sink) -> None:
        """Hand over everything."""
        for item in self.items:
            sink.apply(item)


def live(**changes: object) -> FeedStatus:
    """A status of a live feed at the end of the story."""
    known: dict[str, object] = {
        "kind": "live",
        "state": "live",
        "where": "ipc:///run/prorsa/hub",
        "now_ns": nanoseconds(END_S),
        "speed": 20.0,
        "age_s": 0.1,
        "view_age_s": 0.2,
    }
    return FeedStatus(**(known | changes))  # type: ignore[arg-type]
