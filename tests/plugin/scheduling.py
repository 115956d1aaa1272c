"""The shapes of SGLang's objects that the plugin's bookkeeping reads; the live tests run it on the real ones."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class Req:
    rid: str
    origin_input_ids: list[int]
    output_ids: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    prefix_len: int = 0
    finished_reason: Any = None

    @property
    def kv(self) -> SimpleNamespace:
        return SimpleNamespace(kv_allocated_len=len(self.origin_input_ids))

    def finish(self, kind: str = "stop", status_code: int | None = None) -> None:
        reason = {"type": kind, "status_code": status_code}
        self.finished_reason = SimpleNamespace(to_json=lambda: reason)


def batch(mode: str, *reqs: Req) -> SimpleNamespace:
    """A batch of forward mode ``extend``, ``decode`` or ``prebuilt``."""
    forward_mode = SimpleNamespace(is_extend=lambda: mode == "extend", is_decode=lambda: mode == "decode")
    return SimpleNamespace(forward_mode=forward_mode, reqs=list(reqs))


def admitted(*reqs: Req) -> tuple[list[SimpleNamespace], list[SimpleNamespace]]:
    """What the admission queue returns: admitted and failed."""
    return [SimpleNamespace(req=req) for req in reqs], []
