"""``dynamo-like``: the load loop of NVIDIA Dynamo's planner (1.6), mapped to flips within a fixed pool."""

from typing import Final

from prorsa.control.policies.base import Context, Want, shifted
from prorsa.control.policies.signals import decode_kv_use, queued_prefill_tokens, workers_of

PREFILL_UP: Final = 1.0
PREFILL_DOWN: Final = 0.1
DECODE_UP: Final = 1.0
DECODE_DOWN: Final = 0.6


class DynamoLike:
    """Each side by its own load, one replica at a time, each decision (5 s).

    Prefill: queued tokens of a worker / the model's context length, up from 1.0, down below 0.1. Decode: KV use, that
    of the prompts that wait for it included, up above 1.0, down below 0.6. Dynamo adds and gives back replicas; in a
    fixed pool a replica that one side gains is one that the other loses. So the side that asks for more gets a worker
    from the side that asks for less; where both ask alike nothing moves, as Dynamo's budget of GPUs would have it. As
    in Dynamo nothing is scaled down, hence nothing is flipped, while an earlier change is pending.
    """

    economy = False
    flips = True
    needs_forecast = False
    needs_events = True

    def __init__(self, name: str = "dynamo-like") -> None:
        self.name = name

    def decide(self, context: Context) -> Want:
        """One step to the side that asks for more."""
        prefill, decode = _prefill_load(context), decode_kv_use(context)
        if prefill is None or decode is None:
            return Want(context.current, "queue or KV unknown: the split stays")
        up = _ask(prefill, PREFILL_DOWN, PREFILL_UP, reach=True) - _ask(decode, DECODE_DOWN, DECODE_UP)
        inputs: dict[str, float | None] = {"prefill_load": round(prefill, 4), "decode_kv_use": round(decode, 4)}
        reason = f"prefill load {prefill:.2f}, decode KV use {decode:.2f}"
        if context.flips_under_way:
            return Want(context.current, f"{reason}: a change is pending", inputs)
        return Want(shifted(context, (up > 0) - (up < 0)), reason, inputs)

    def state(self) -> str:
        """Nothing to remember."""
        return ""


def _prefill_load(context: Context) -> float | None:
    profile, queued = context.config.profile, queued_prefill_tokens(context)
    count = len(workers_of(context, "prefill"))
    if profile is None or queued is None or not count:
        return None
    return queued / (count * profile.model_context)


def _ask(load: float, down: float, up: float, *, reach: bool = False) -> int:
    """1 for one more, -1 for one less; ``reach`` says whether the upper threshold itself is enough."""
    if load > up or (reach and load == up):
        return 1
    return -1 if load < down else 0
