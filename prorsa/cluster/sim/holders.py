"""Which ranks hold anything of a context: one bit a rank, so that nobody asks every rank about every context.

A bit is set while the rank has tokens of the entry in HBM or in its host tier; for a stem also while requests use it
there. What a trajectory's own request holds is not counted, as in `prorsa.cluster.sim.cache.reach`.
"""

from typing import Final

from numba.cpython.unsafe.numbers import trailing_zeros

from prorsa.cluster.sim.jit import kernel
from prorsa.cluster.sim.state import HOLDER_BITS, State

_ALL: Final = (1 << HOLDER_BITS) - 1


@kernel
def note_held(s: State, rank: int, column: int) -> None:
    """Keep the rank's bit of an entry true; due after every change of its tokens, of its copy's or of its stem's."""
    held = s.entries[rank, column].tokens
    if s.ranks[rank].host_tokens > 0:
        held += s.hosts[rank, column].tokens
    stem = column - s.params[0].trajectories
    if stem >= 0:
        held += s.stems[rank, stem].tokens
    word, bit = rank // HOLDER_BITS, 1 << (rank % HOLDER_BITS)
    if held > 0:
        s.holders[column, word] |= bit
    else:
        s.holders[column, word] &= _ALL - bit


@kernel
def next_holder(s: State, i: int, after: int) -> int:
    """The first rank beyond ``after`` that holds anything of the context of ``i``, its stem too; -1 for none."""
    stem = s.params[0].trajectories + s.plan[i].group if s.trajectories[i].shared > 0 else i
    word = (after + 1) // HOLDER_BITS
    below = (after + 1) % HOLDER_BITS
    while word < s.holders.shape[1]:
        bits = (s.holders[i, word] | s.holders[stem, word]) >> below << below
        if bits != 0:
            return word * HOLDER_BITS + trailing_zeros(bits)  # type: ignore[call-arg]  # numba's intrinsic
        word, below = word + 1, 0
    return -1
