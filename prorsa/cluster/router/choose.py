"""Which pair of workers a request goes to. Pure: the state of the pool in, a pair and its reason out.

Prefill: the worker that is soonest done with the prompt, counted in tokens that it has to compute, those before it
included; so a session stays where its prefix is until the queue there is longer than the recomputation elsewhere. A
new session goes where the fewest context tokens have their home, which keeps homes balanced.

Decode: the least filled worker, except that a session stays where its KV is unless that worker is clearly fuller. What
has no room waits; it never goes to a worker that is full while a better one will soon have room.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from prorsa.cluster.router.sessions import Reuse
from prorsa.cluster.router.table import Entry, Table

STAY_MARGIN: Final = 0.15
"""Share of a decode worker's capacity by which another one must be emptier for a session to leave its KV."""


@dataclass(slots=True)
class Load:
    """What the router has placed on a worker and not seen finished.

    Attributes:
        prefill_tokens: uncached prompt tokens that wait for, or are in, prefill there.
        prefilling: requests that make them up.
        kv_tokens: KV counted for the requests that decode there, or will.
        decoding: their number.
    """

    prefill_tokens: int = 0
    prefilling: int = 0
    kv_tokens: int = 0
    decoding: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request needs.

    Attributes:
        reuse: what workers hold of its prompt.
        kv_tokens: KV to count for it on decode.
        version: the weight version that it must go on with; None for any.
        avoid: workers that have failed it; used again only if there is no other.
    """

    reuse: Reuse
    kv_tokens: int
    version: str | None = None
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is placed: see :class:`prorsa.cluster.router.config.RouterConfig`."""

    prefill_window_tokens: int
    kv_fill: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Where a request goes; one worker twice if it is mixed."""

    prefill: Entry
    decode: Entry
    new_tokens: int

    @property
    def mixed(self) -> bool:
        """Whether one worker does both."""
        return self.prefill.worker_id == self.decode.worker_id


@dataclass(frozen=True, slots=True)
class Pool:
    """What there is to choose from."""

    table: Table
    loads: dict[str, Load]
    home_tokens: Callable[[str], int]
    limits: Limits

    def load(self, worker_id: str) -> Load:
        """The load of a worker."""
        return self.loads.setdefault(worker_id, Load())


def choose(pool: Pool, wish: Wish) -> Pair | None:
    """The pair for a request, or None if it has to wait."""
    entries = [entry for entry in pool.table if entry.serving]
    if wish.version is not None:
        entries = [entry for entry in entries if entry.weight_version == wish.version]
    trusted = [entry for entry in entries if entry.worker_id not in wish.avoid]
    for candidates in (trusted, entries):
        options = _options(pool, candidates)
        if options:
            return _best(pool, wish, options)
    return None


def exists(pool: Pool) -> bool:
    """Whether any pair can serve, now or once it has room."""
    return bool(_options(pool, [entry for entry in pool.table if entry.serving]))


def _options(pool: Pool, entries: Sequence[Entry]) -> list[tuple[Entry, list[Entry]]]:
    decodes = [entry for entry in entries if entry.role == "decode"]
    options = []
    for entry in entries:
        if entry.role == "mixed":
            options.append((entry, [entry]))
        elif entry.role == "prefill":
            peers = [decode for decode in decodes if pool.table.may_pair(entry, decode)]
            if peers:
                options.append((entry, peers))
    return options


def _best(pool: Pool, wish: Wish, options: list[tuple[Entry, list[Entry]]]) -> Pair | None:
    def cost(option: tuple[Entry, list[Entry]]) -> tuple[int, int, str]:
        worker = option[0].worker_id
        new = wish.reuse.new_tokens(worker)
        fresh = new >= wish.reuse.prompt.tokens
        wait = pool.load(worker).prefill_tokens
        return wait + new, pool.home_tokens(worker) if fresh else 0, worker

    def home_first(option: tuple[Entry, list[Entry]]) -> tuple[int, int, int, str]:
        worker = option[0].worker_id
        crowded = not _room_to_prefill(pool, option[0], wish)
        return crowded, pool.home_tokens(worker), *cost(option)[:1], worker

    known = any(wish.reuse.cached(entry.worker_id) for entry, _ in options)
    prefill, peers = min(options, key=cost if known else home_first)
    if not _room_to_prefill(pool, prefill, wish):
        return None
    decode = _decode(pool, wish, peers)
    return None if decode is None else Pair(prefill, decode, wish.reuse.new_tokens(prefill.worker_id))


def _decode(pool: Pool, wish: Wish, peers: list[Entry]) -> Entry | None:
    free = [peer for peer in peers if _room_to_decode(pool, peer, wish)]
    if not free:
        return None
    emptiest = min(free, key=lambda peer: (_fill(pool, peer), pool.load(peer.worker_id).decoding, peer.worker_id))
    warmest = max(free, key=lambda peer: (wish.reuse.cached(peer.worker_id), -_fill(pool, peer), peer.worker_id))
    if wish.reuse.cached(warmest.worker_id) and _fill(pool, warmest) <= _fill(pool, emptiest) + STAY_MARGIN:
        return warmest
    return emptiest


def _room_to_prefill(pool: Pool, entry: Entry, wish: Wish) -> bool:
    load = pool.load(entry.worker_id)
    new = wish.reuse.new_tokens(entry.worker_id)
    return load.prefilling == 0 or load.prefill_tokens + new <= pool.limits.prefill_window_tokens


def _room_to_decode(pool: Pool, entry: Entry, wish: Wish) -> bool:
    load = pool.load(entry.worker_id)
    if load.decoding == 0:
        return True
    if entry.max_running is not None and load.decoding >= entry.max_running:
        return False
    capacity = entry.kv_capacity
    return capacity is None or load.kv_tokens + wish.kv_tokens <= capacity * pool.limits.kv_fill


def _fill(pool: Pool, entry: Entry) -> float:
    load = pool.load(entry.worker_id)
    if entry.kv_capacity:
        return load.kv_tokens / entry.kv_capacity
    return load.decoding / (entry.max_running or 256)
