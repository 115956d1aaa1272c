"""What one step of a worker costs, part by part: the model that the simulator runs on, for tables and for checks."""

from collections.abc import Sequence

from msgspec import Struct

from prorsa.cluster.profile import Profile, prefill_tokens_ms, table_ms


class RankWork(Struct, frozen=True, kw_only=True):
    """What a rank does in a step: it prefills where there are chunks, else it decodes; with neither it idles.

    Attributes:
        chunks: (new tokens, tokens before them) of each prompt it works on.
        batch: requests that it decodes.
        context_tokens: tokens of KV that these hold in all.
    """

    chunks: tuple[tuple[int, int], ...] = ()
    batch: int = 0
    context_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that the rank puts through the experts."""
        return sum(new for new, _ in self.chunks) if self.chunks else self.batch


class StepParts(Struct, frozen=True, kw_only=True):
    """Where the time of a step goes, in seconds.

    ``experts_s`` is everybody's: the GPUs of all ranks compute the tokens of all ranks. What a rank's attention takes
    less than the slowest rank's, it waits.
    """

    attention_s: tuple[float, ...]
    experts_s: float

    @property
    def step_s(self) -> float:
        """Seconds of the step: the slowest rank's attention and the experts."""
        return max(self.attention_s) + self.experts_s

    @property
    def waiting_ratio(self) -> float:
        """Share of the worker's rank-seconds in the step that ranks wait for the slowest one."""
        slowest_s = max(self.attention_s)
        waiting_s = sum(slowest_s - attention_s for attention_s in self.attention_s)
        return waiting_s / (self.step_s * len(self.attention_s))


def step_parts(profile: Profile, ranks: Sequence[RankWork]) -> StepParts:
    """The parts of a step in which the worker's ranks do this; at least one of them does something."""
    prefilling = any(work.chunks for work in ranks)
    table = profile.experts.prefill if prefilling else profile.experts.decode
    return StepParts(
        attention_s=tuple(_attention_ms(profile, work) / 1e3 for work in ranks),
        experts_s=table_ms(table, sum(work.tokens for work in ranks)) / 1e3,
    )


def _attention_ms(profile: Profile, work: RankWork) -> float:
    if work.chunks:
        return profile.prefill.a_ms + sum(prefill_tokens_ms(profile.prefill, *chunk) for chunk in work.chunks)
    if work.batch:
        return profile.decode.a_ms + profile.decode.b_ms * work.batch + profile.decode.c_ms * work.context_tokens
    return 0.0
