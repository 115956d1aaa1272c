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


SLOTS = 1000
ROWS = 16


class Tree:
    """A prefix cache with a storage backend behind it."""

    def __init__(self) -> None:
        self.evictable = 600
        self.protected = 0
        self.storage_wiped = False

    def evictable_size(self) -> int:
        return self.evictable

    def protected_size(self) -> int:
        return self.protected

    def reset(self) -> None:
        self.evictable = self.protected = 0

    def clear_storage_backend(self) -> None:
        self.storage_wiped = True


class Scheduler:
    """What a role switch's decision on the prefix cache reads, and what a reset touches."""

    def __init__(self) -> None:
        self.disable_radix_cache = False
        self.tree_cache: Any = Tree()
        self.cleared: list[str] = []
        self.free = SLOTS - 600
        self.token_to_kv_pool_allocator = SimpleNamespace(
            size=SLOTS, available_size=lambda: self.free, clear=self._clear_slots
        )
        self.req_to_token_pool = SimpleNamespace(
            size=ROWS, free_slots=list(range(ROWS)), clear=lambda: self.cleared.append("rows")
        )

    def _clear_slots(self) -> None:
        self.cleared.append("slots")
        self.free = SLOTS

    @property
    def kept(self) -> bool:
        assert self.cleared in ([], ["rows", "slots"])
        assert not self.tree_cache.storage_wiped, "the store that all workers share is never wiped by a flip"
        return not self.cleared
