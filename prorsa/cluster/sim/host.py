"""The host tier of a rank's prefix cache, after SGLang's HiCache with its default policy, ``write_through``.

What enters the radix tree in HBM is copied to host memory at once, beside the steps, as far as there is room; so the
tier holds copies of what HBM holds too, and is worth something from the size of HBM on. HBM evicts without a further
copy. The host evicts, least recently used first and tails first, only what HBM no longer holds (SGLang's
``evict_host``). Loading back takes `PROFILE.host_s_per_token`; the step that needs it, or the hand-over to decode,
waits for it. Every rank has its own pool: HiCache gives each scheduler process one.

An entry's copy is its leading tokens, `HOST.tokens`. Listed for eviction are those that reach further than HBM does,
in the order in which HBM evicted them.
"""

from prorsa.cluster.sim.holders import note_held
from prorsa.cluster.sim.jit import kernel
from prorsa.cluster.sim.state import State


@kernel
def host_reach(s: State, rank: int, i: int) -> int:
    """Leading tokens of an entry of which the host has a copy."""
    if s.ranks[rank].host_tokens == 0:
        return 0
    return s.hosts[rank, i].tokens


@kernel
def unlist(s: State, rank: int, i: int) -> None:
    """Keep an entry's copy from eviction: HBM holds all of it again, or is about to."""
    if s.ranks[rank].host_tokens == 0 or s.hosts[rank, i].listed == 0:
        return
    copy, r = s.hosts[rank, i], s.ranks[rank]
    if copy.older < 0:
        r.host_oldest = copy.newer
    else:
        s.hosts[rank, copy.older].newer = copy.newer
    if copy.newer < 0:
        r.host_newest = copy.older
    else:
        s.hosts[rank, copy.newer].older = copy.older
    copy.older, copy.newer, copy.listed = -1, -1, 0


@kernel
def demote(s: State, rank: int, i: int) -> None:
    """List an entry for eviction from the host where its copy reaches further than what is left in HBM."""
    if s.ranks[rank].host_tokens == 0:
        return
    copy, r = s.hosts[rank, i], s.ranks[rank]
    if copy.listed != 0 or copy.tokens <= s.entries[rank, i].tokens:
        return
    copy.listed = 1
    copy.older = r.host_newest
    if r.host_newest < 0:
        r.host_oldest = i
    else:
        s.hosts[rank, r.host_newest].newer = i
    r.host_newest = i


@kernel
def back_up(s: State, rank: int, i: int, tokens: int) -> None:
    """Copy an entry's first ``tokens``, as far as the host has room once it has evicted what it may."""
    copy, r = s.hosts[rank, i], s.ranks[rank]
    wanted = tokens - copy.tokens
    if wanted <= 0:
        return
    while r.host_used + wanted > s.ranks[rank].host_tokens and r.host_oldest >= 0:
        _evict_oldest(s, rank, r.host_used + wanted - s.ranks[rank].host_tokens)
    wanted = min(wanted, s.ranks[rank].host_tokens - r.host_used)
    copy.tokens += wanted
    r.host_used += wanted
    note_held(s, rank, i)


@kernel
def _evict_oldest(s: State, rank: int, excess: int) -> None:
    """Take up to ``excess`` tokens off the tail of the copy that HBM evicted first."""
    i = s.ranks[rank].host_oldest
    beyond = s.hosts[rank, i].tokens - s.entries[rank, i].tokens
    if beyond <= excess:
        unlist(s, rank, i)
    taken = min(beyond, excess)
    s.hosts[rank, i].tokens -= taken
    s.ranks[rank].host_used -= taken
    note_held(s, rank, i)


@kernel
def cut_host(s: State, rank: int, i: int, tokens: int) -> None:
    """Forget an entry's copy beyond its first ``tokens``."""
    beyond = host_reach(s, rank, i) - tokens
    if beyond <= 0:
        return
    s.hosts[rank, i].tokens = tokens
    s.ranks[rank].host_used -= beyond
    note_held(s, rank, i)
    if tokens <= s.entries[rank, i].tokens:
        unlist(s, rank, i)


@kernel
def clear_host(s: State, rank: int) -> None:
    """Forget all copies of a rank."""
    if s.ranks[rank].host_tokens == 0:
        return
    for i in range(s.hosts.shape[1]):
        unlist(s, rank, i)
        s.hosts[rank, i].tokens = 0
        note_held(s, rank, i)
    s.ranks[rank].host_used = 0
