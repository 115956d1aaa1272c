"""KV of a rank: what requests hold, and the prefix cache in the rest, least recently used out first.

An *entry* is the evictable leading part of one trajectory's context on one rank. While a request uses it, its tokens
belong to the request (`RANK.locked`) and the entry is empty; when the request leaves, what it held becomes the entry.
The page size is one token, SGLang's default.

The leading ``TRAJECTORY.shared`` tokens of a context are those that its group shares. They are not in the trajectory's
own entry but in the group's *stem*, which each rank holds once: the entry behind those of the trajectories. A stem
that any request uses is locked (`STEM`). When its last user leaves it becomes the newest entry, after the user's own,
so that a stem is always newer than the tails that hang on it, and is evicted after them.

Beneath it may be a host tier (`prorsa.cluster.sim.host`), which reaches at least as far as what HBM has evicted.
"""

from prorsa.cluster.sim.holders import next_holder, note_held
from prorsa.cluster.sim.host import back_up, clear_host, cut_host, demote, host_reach, unlist
from prorsa.cluster.sim.jit import entry, kernel
from prorsa.cluster.sim.state import DONE, L3, State


@kernel
def _unlink(s: State, rank: int, i: int) -> None:
    cached = s.entries[rank, i]
    if cached.older < 0:
        s.ranks[rank].oldest = cached.newer
    else:
        s.entries[rank, cached.older].newer = cached.newer
    if cached.newer < 0:
        s.ranks[rank].newest = cached.older
    else:
        s.entries[rank, cached.newer].older = cached.older
    cached.older = -1
    cached.newer = -1


@kernel
def _shorten(s: State, rank: int, i: int, tokens: int) -> None:
    """Cut an entry down to its first ``tokens``; it leaves the cache where nothing is left."""
    cached = s.entries[rank, i]
    if cached.tokens == tokens:
        return
    s.ranks[rank].cached -= cached.tokens - tokens
    cached.tokens = tokens
    if tokens == 0:
        _unlink(s, rank, i)
        note_held(s, rank, i)


@kernel
def _append(s: State, rank: int, i: int, tokens: int) -> None:
    """Make an entry that is empty the newest one."""
    if tokens == 0:
        return
    r, cached = s.ranks[rank], s.entries[rank, i]
    cached.tokens = tokens
    r.cached += tokens
    cached.older = r.newest
    if r.newest < 0:
        r.oldest = i
    else:
        s.entries[rank, r.newest].newer = i
    r.newest = i
    note_held(s, rank, i)


@kernel
def evict(s: State, rank: int) -> None:
    """Evict cache until requests and cache fit the pool, tails first of what was used least recently."""
    r = s.ranks[rank]
    excess = r.locked + r.cached - r.kv_tokens
    while excess > 0:
        i = r.oldest
        tokens = s.entries[rank, i].tokens
        _shorten(s, rank, i, max(tokens - excess, 0))
        demote(s, rank, i)
        excess -= tokens


@kernel
def lock(s: State, rank: int, tokens: int) -> None:
    """Give requests that hold KV on a rank ``tokens`` more, evicting cache where the pool is full."""
    s.ranks[rank].locked += tokens
    evict(s, rank)


@kernel
def _stem(s: State, i: int) -> int:
    """The entry of the stem that the context of ``i`` begins with; -1 where it shares nothing."""
    if s.trajectories[i].shared == 0:
        return -1
    return s.params[0].trajectories + s.plan[i].group


@kernel
def _stem_on_device(s: State, rank: int, stem: int) -> int:
    pinned = s.stems[rank, stem - s.params[0].trajectories].tokens
    return max(pinned, s.entries[rank, stem].tokens)


@kernel
def on_device(s: State, rank: int, i: int) -> int:
    """Leading tokens of the context of ``i`` in the HBM of a rank that no request of ``i`` uses there."""
    own = s.entries[rank, i].tokens
    stem = _stem(s, i)
    if stem < 0:
        return own
    shared = min(_stem_on_device(s, rank, stem), s.trajectories[i].shared)
    return shared + own if shared == s.trajectories[i].shared else shared


@entry
def reach(s: State, rank: int, i: int) -> int:
    """Leading tokens of the context of ``i`` on a rank, in HBM or in its host tier."""
    own = max(s.entries[rank, i].tokens, host_reach(s, rank, i))
    stem = _stem(s, i)
    if stem < 0:
        return own
    shared = min(max(_stem_on_device(s, rank, stem), host_reach(s, rank, stem)), s.trajectories[i].shared)
    return shared + own if shared == s.trajectories[i].shared else shared


@kernel
def locked_stem(s: State, rank: int, i: int) -> int:
    """Leading tokens of the context of ``i`` that other requests of its group hold on a rank."""
    stem = _stem(s, i)
    if stem < 0:
        return 0
    pinned = s.stems[rank, stem - s.params[0].trajectories].tokens
    return min(pinned, s.trajectories[i].shared, s.trajectories[i].prompt - 1)


@kernel
def hold(s: State, rank: int, i: int, tokens: int, most: int) -> int:
    """Give the request of ``i`` KV for the first ``tokens`` of its context, evicting cache where the pool is full.

    What the rank has of the first ``most`` of them is used: returns how many. What comes from the host tier is noted
    as ``TRAJECTORY.loaded``; the caller waits for it.
    """
    trajectory = s.trajectories[i]
    cached = min(reach(s, rank, i), most)
    trajectory.loaded = max(cached - on_device(s, rank, i), 0)
    stem = _stem(s, i)
    _shorten(s, rank, i, 0)
    unlist(s, rank, i)
    if stem >= 0:
        _pin(s, rank, i, stem, cached, tokens)
    lock(s, rank, tokens)
    return cached


@kernel
def _pin(s: State, rank: int, i: int, stem: int, cached: int, held: int) -> None:
    """Lock the stem for the request of ``i``, which is to hold ``held`` tokens with what it uses of the stem."""
    r, pinned = s.ranks[rank], s.stems[rank, stem - s.params[0].trajectories]
    used = min(cached, s.trajectories[i].shared)
    r.locked -= used
    if pinned.users == 0:
        tokens = s.entries[rank, stem].tokens
        _shorten(s, rank, stem, 0)
        unlist(s, rank, stem)
        # A context that was rewritten within the stem uses a part of it; the rest stays if there is room for it.
        pinned.tokens = tokens if r.locked + held + max(tokens, used) <= r.kv_tokens else used
        r.locked += pinned.tokens
    pinned.users += 1
    loaded = max(used - pinned.tokens, 0)  # from the host tier
    pinned.tokens += loaded
    r.locked += loaded
    note_held(s, rank, stem)
    _set_used(s, rank, i, used)


@kernel
def _used(s: State, rank: int, i: int) -> int:
    trajectory = s.trajectories[i]
    return trajectory.stem_decode if rank == trajectory.decode else trajectory.stem_prefill


@kernel
def _set_used(s: State, rank: int, i: int, tokens: int) -> None:
    trajectory = s.trajectories[i]
    if rank == trajectory.decode:
        trajectory.stem_decode = tokens
    else:
        trajectory.stem_prefill = tokens


@kernel
def share(s: State, rank: int, i: int, computed: int) -> None:
    """The request of ``i`` has the KV of its first ``computed`` tokens: its group can use what is in the stem.

    As when SGLang inserts a prefix into its radix tree, what the tree has already is freed.
    """
    stem = _stem(s, i)
    if stem < 0:
        return
    pinned, used = s.stems[rank, stem - s.params[0].trajectories], _used(s, rank, i)
    target = min(computed, s.trajectories[i].shared)
    if target <= used:
        return
    s.ranks[rank].locked -= min(pinned.tokens, target) - used
    pinned.tokens = max(pinned.tokens, target)
    note_held(s, rank, stem)
    _set_used(s, rank, i, target)


@kernel
def keep_copy(s: State, rank: int, i: int, tokens: int) -> None:
    """The first ``tokens`` of the context of ``i`` are in the radix tree of a rank: the host tier gets a copy."""
    if s.ranks[rank].host_tokens == 0:
        return
    stem = _stem(s, i)
    if stem < 0:
        back_up(s, rank, i, tokens)
        return
    shared = s.trajectories[i].shared
    back_up(s, rank, stem, min(tokens, shared))
    if tokens > shared and host_reach(s, rank, stem) >= shared:
        back_up(s, rank, i, tokens - shared)


@kernel
def release(s: State, rank: int, i: int, held: int, keep: int) -> None:
    """Take ``held`` tokens back from a request; the first ``keep`` of them stay as the newest cache entry.

    Nothing held: the request has not begun on this rank.
    """
    if held == 0:
        return
    r, stem = s.ranks[rank], _stem(s, i)
    r.locked -= held
    own = keep
    if stem >= 0:
        shared, used = s.trajectories[i].shared, _used(s, rank, i)
        r.locked += used
        own = keep - shared if used == shared and keep > shared else 0
    _append(s, rank, i, own)
    if stem >= 0:
        _unpin(s, rank, i, stem)
    keep_copy(s, rank, i, keep)
    demote(s, rank, i)


@kernel
def _unpin(s: State, rank: int, i: int, stem: int) -> None:
    pinned = s.stems[rank, stem - s.params[0].trajectories]
    _set_used(s, rank, i, 0)
    pinned.users -= 1
    if pinned.users == 0:
        tokens = pinned.tokens
        pinned.tokens = 0
        s.ranks[rank].locked -= tokens
        note_held(s, rank, stem)
        _append(s, rank, stem, tokens)
        demote(s, rank, stem)


@kernel
def trim_stems(s: State, rank: int) -> None:
    """Free what no request uses of the stems that are locked on a rank; before anybody is retracted for KV."""
    stems, r = s.stems[rank], s.ranks[rank]
    for group in range(len(stems)):
        stems[group].used = 0
    for i in range(s.params[0].trajectories):
        trajectory = s.trajectories[i]
        if trajectory.shared > 0 and rank in (trajectory.decode, trajectory.prefill):
            stem = stems[s.plan[i].group]
            stem.used = max(stem.used, _used(s, rank, i))
    for group in range(len(stems)):
        stem = stems[group]
        if stem.users > 0:
            r.locked -= stem.tokens - stem.used
            stem.tokens = stem.used
            note_held(s, rank, s.params[0].trajectories + group)


@kernel
def diverge(s: State, i: int, reuse: int) -> None:
    """The context of ``i`` goes on from its first ``reuse`` tokens: everywhere, what is cached beyond can go."""
    trajectory = s.trajectories[i]
    own = max(reuse - trajectory.shared, 0)
    rank = next_holder(s, i, -1)
    while rank >= 0:
        if s.entries[rank, i].tokens > own:
            _shorten(s, rank, i, own)
        cut_host(s, rank, i, own)
        rank = next_holder(s, i, rank)
    trajectory.shared = min(trajectory.shared, reuse)
    trajectory.stored = min(trajectory.stored, reuse)
    trajectory.known = min(trajectory.known, reuse)
    trajectory.lost = min(trajectory.lost, reuse)


@kernel
def drop_all(s: State, rank: int) -> int:
    """Drop the whole cache of a rank, its host tier too; returns the tokens that were in HBM.

    What live trajectories lose is noted with them. A stem that requests still use stays, with them.
    """
    dropped = s.ranks[rank].cached
    for i in range(s.params[0].trajectories):
        if s.trajectories[i].phase != DONE:
            s.trajectories[i].lost = max(s.trajectories[i].lost, reach(s, rank, i))
    while s.ranks[rank].oldest >= 0:
        _shorten(s, rank, s.ranks[rank].oldest, 0)
    clear_host(s, rank)
    return dropped


@kernel
def longest(s: State, i: int) -> int:
    """The longest cached prefix of ``i`` on any rank."""
    best = 0
    rank = next_holder(s, i, -1)
    while rank >= 0:
        best = max(best, reach(s, rank, i))
        rank = next_holder(s, i, rank)
    return best


@kernel
def reusable(s: State, rank: int, i: int) -> int:
    """Tokens of the prompt of ``i`` that ``rank`` need not compute; at least one always is computed."""
    return min(max(reach(s, rank, i), in_store(s, i)), s.trajectories[i].prompt - 1)


@kernel
def in_store(s: State, i: int) -> int:
    """Leading tokens of the context of ``i`` that every rank can fetch from the shared store."""
    if s.params[0].cache != L3:
        return 0
    trajectory = s.trajectories[i]
    if trajectory.shared == 0:
        return trajectory.stored
    return max(trajectory.stored, min(trajectory.shared, s.groups[s.plan[i].group].stored))


@kernel
def store(s: State, i: int, tokens: int) -> None:
    """The first ``tokens`` of the context of ``i`` have been computed, and so are in the shared store."""
    trajectory = s.trajectories[i]
    trajectory.known = max(trajectory.known, tokens)
    trajectory.stored = max(trajectory.stored, tokens)
    if trajectory.shared > 0:
        group = s.groups[s.plan[i].group]
        group.stored = max(group.stored, min(tokens, trajectory.shared))
