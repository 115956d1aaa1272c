"""KV of a rank: what requests hold, and the prefix cache in the rest, least recently used out first.

An *entry* is the evictable leading part of one trajectory's context on one rank. While a request uses it, its tokens
belong to the request (`RANK.locked`) and the entry is empty; when the request leaves, what it held becomes the entry.
The page size is one token, SGLang's default.
"""

from prorsa.cluster.sim.jit import kernel
from prorsa.cluster.sim.state import DONE, L3, State


@kernel
def _unlink(s: State, rank: int, i: int) -> None:
    entry = s.entries[rank, i]
    if entry.older < 0:
        s.ranks[rank].oldest = entry.newer
    else:
        s.entries[rank, entry.older].newer = entry.newer
    if entry.newer < 0:
        s.ranks[rank].newest = entry.older
    else:
        s.entries[rank, entry.newer].older = entry.older
    entry.older = -1
    entry.newer = -1


@kernel
def _shorten(s: State, rank: int, i: int, tokens: int) -> None:
    """Cut an entry down to its first ``tokens``; it leaves the cache where nothing is left."""
    entry = s.entries[rank, i]
    s.ranks[rank].cached -= entry.tokens - tokens
    entry.tokens = tokens
    if tokens == 0:
        _unlink(s, rank, i)


@kernel
def evict(s: State, rank: int) -> None:
    """Evict cache until requests and cache fit the pool, tails first of what was used least recently."""
    r = s.ranks[rank]
    excess = r.locked + r.cached - s.params[0].kv_tokens
    while excess > 0:
        i = r.oldest
        tokens = s.entries[rank, i].tokens
        _shorten(s, rank, i, max(tokens - excess, 0))
        excess -= tokens


@kernel
def take(s: State, rank: int, i: int, most: int) -> int:
    """Hand the entry of ``i`` over to its request; returns how many leading tokens of at most ``most`` it covers.

    The caller locks them together with what the request needs beyond them.
    """
    tokens = s.entries[rank, i].tokens
    if tokens == 0:
        return 0
    _shorten(s, rank, i, 0)
    return min(tokens, most)


@kernel
def lock(s: State, rank: int, tokens: int) -> None:
    """Give ``tokens`` of KV to requests, evicting cache where the pool is full."""
    s.ranks[rank].locked += tokens
    evict(s, rank)


@kernel
def release(s: State, rank: int, i: int, held: int, keep: int) -> None:
    """Take ``held`` tokens back from a request; the first ``keep`` of them stay as the newest cache entry."""
    r = s.ranks[rank]
    r.locked -= held
    if keep == 0:
        return
    entry = s.entries[rank, i]
    entry.tokens = keep
    r.cached += keep
    entry.older = r.newest
    if r.newest < 0:
        r.oldest = i
    else:
        s.entries[rank, r.newest].newer = i
    r.newest = i


@kernel
def diverge(s: State, i: int, reuse: int) -> None:
    """The context of ``i`` goes on from its first ``reuse`` tokens: everywhere, what is cached beyond can go."""
    for rank in range(len(s.ranks)):
        if s.entries[rank, i].tokens > reuse:
            _shorten(s, rank, i, reuse)
    trajectory = s.trajectories[i]
    trajectory.stored = min(trajectory.stored, reuse)
    trajectory.lost = min(trajectory.lost, reuse)


@kernel
def drop_all(s: State, rank: int) -> int:
    """Drop the whole cache of a rank; returns its tokens. What live trajectories lose is noted with them."""
    dropped = s.ranks[rank].cached
    while s.ranks[rank].oldest >= 0:
        i = s.ranks[rank].oldest
        trajectory = s.trajectories[i]
        if trajectory.phase != DONE:
            trajectory.lost = max(trajectory.lost, s.entries[rank, i].tokens)
        _shorten(s, rank, i, 0)
    return dropped


@kernel
def longest(s: State, i: int) -> int:
    """The longest cached prefix of ``i`` on any rank."""
    best = 0
    for rank in range(len(s.ranks)):
        best = max(best, s.entries[rank, i].tokens)
    return best


@kernel
def reusable(s: State, rank: int, i: int) -> int:
    """Tokens of the prompt of ``i`` that ``rank`` need not compute; at least one always is computed."""
    trajectory = s.trajectories[i]
    tokens = s.entries[rank, i].tokens
    if s.params[0].cache == L3:
        tokens = max(tokens, trajectory.stored)
    return min(tokens, trajectory.prompt - 1)


@kernel
def store(s: State, i: int, tokens: int) -> None:
    """The first ``tokens`` of the context of ``i`` have been computed, and so are in the shared store."""
    trajectory = s.trajectories[i]
    trajectory.stored = max(trajectory.stored, tokens)
