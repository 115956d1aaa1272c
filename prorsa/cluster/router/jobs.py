"""A request inside the router: its attempts, what it has so far, and what it wants next."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from prorsa.cluster.router.attempt import Attempt
from prorsa.cluster.router.choose import Pair, Wish
from prorsa.cluster.router.inbound import Single
from prorsa.cluster.router.merge import Segment
from prorsa.cluster.router.ready import Waiting
from prorsa.cluster.router.resume import remaining_tokens, why_not_exact
from prorsa.cluster.router.sessions import Prompt, Reuse, Session
from prorsa.events import FinishReason

Sink = Callable[[dict[str, Any]], Awaitable[None]]
"""Takes each chunk of a streamed answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets: ``body`` as JSON (``raw`` where a worker's refusal is passed on) under an HTTP status."""

    status: int
    body: dict[str, Any] | None = None
    raw: bytes = b""
    finish: FinishReason = "error"
    retry_after_s: int | None = None


@dataclass(eq=False, slots=True)
class Job:
    """One single request on its way.

    Attributes:
        request_id: of fixed length; the rid of attempt ``n`` is ``<request_id>.<nn>``.
        segments: finished parts of the output, from cancelled attempts that were resumed.
        delivered: whether output has reached the client, so that it cannot run again from the start.
        aborted: the client has taken it back.
        wish, pair: what the latest attempt asked for, and where it went.
        final_sent: whether a stream has had its last chunk.
    """

    request_id: str
    single: Single
    prompt: Prompt
    reuse: Reuse
    session: Session | None
    trajectory_id: str | None
    turn: int
    sink: Sink | None = None
    attempts: int = 0
    failures: int = 0
    segments: list[Segment] = field(default_factory=list)
    body: dict[str, Any] = field(default_factory=dict)
    avoid: frozenset[str] = frozenset()
    delivered: bool = False
    aborted: bool = False
    attempt: Attempt | None = None
    waiting: Waiting | None = None
    wish: Wish | None = None
    pair: Pair | None = None
    retry_reason: str = ""
    final_sent: bool = False

    @property
    def answer_id(self) -> str:
        """The id that the client sees."""
        return self.single.client_rid or self.request_id

    @property
    def kept(self) -> list[int]:
        """Output tokens so far."""
        return [token for segment in self.segments for token in segment.output_ids]

    @property
    def version(self) -> str | None:
        """The weights that its tokens so far came from."""
        return self.segments[-1].weight_version if self.segments else None

    @property
    def prompt_tokens(self) -> int:
        """Prompt of the next attempt, in tokens: with the output so far."""
        return self.prompt.tokens + sum(len(segment.output_ids) for segment in self.segments)

    @property
    def max_new_tokens(self) -> int | None:
        """Output tokens that it may still make; None if it names no limit."""
        if self.single.kind == "generate":
            return remaining_tokens(self.single, len(self.kept))
        limit = self.single.body.get("max_completion_tokens") or self.single.body.get("max_tokens")
        return limit if isinstance(limit, int) else None

    @property
    def exact(self) -> bool:
        """Whether it can go on exactly from its tokens so far."""
        return why_not_exact(self.single) is None

    def may_cancel(self, *, resume: bool) -> bool:
        """Whether a cancel loses nothing: it has made no output yet, or can go on from it.

        Args:
            resume: whether the router resumes at all.
        """
        attempt = self.attempt
        if attempt is None or not (attempt.prefilled or attempt.pair.mixed):
            return True
        return resume and self.exact and not attempt.deltas

    def restart(self) -> None:
        """Forget all output: begin again from the prompt."""
        self.segments.clear()
        self.body = self.single.body
        self.reuse = Reuse(self.prompt)

    def keep(self, segment: Segment, prompt_ids: list[int], body: dict[str, Any]) -> None:
        """Go on from what an attempt had; its prefill worker holds the prompt."""
        self.segments.append(segment)
        self.body = body
        self.prompt = Prompt(prompt_ids, len(prompt_ids))
        ids = body["input_ids"]
        self.reuse = Reuse(Prompt(ids, len(ids)), len(prompt_ids), {segment.prefill_worker: len(prompt_ids)})

    def next_wish(self, *, same_version: bool, reserve_tokens: int) -> Wish:
        """What it needs of a pair."""
        limit = self.max_new_tokens
        output = reserve_tokens if limit is None else min(limit, reserve_tokens)
        return Wish(
            reuse=self.reuse,
            kv_tokens=self.prompt_tokens + output,
            version=self.version if same_version and self.segments else None,
            avoid=self.avoid,
        )
