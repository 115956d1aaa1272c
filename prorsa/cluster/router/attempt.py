"""One attempt of a request: its two legs, how they can end, and how they are aborted.

Both legs get the same body and a bootstrap room of their own. The decode leg's answer is the answer; the prefill leg's
return says that the KV has been handed over. Whatever ends an attempt, no leg is left running: aborting only one of
them would leave the other waiting for its peer.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec

from prorsa.cluster.router.choose import Pair
from prorsa.cluster.router.inbound import PATHS, Single
from prorsa.cluster.router.merge import Segment
from prorsa.cluster.sglang.client import WorkerClient, error_text
from prorsa.errors import WorkerError

ABORT_AGAIN_S: Final = 0.5
"""An abort that overtakes its request is ignored by the worker, so it is sent again until the legs have ended."""
ABORT_GRACE_S: Final = 5.0
"""Time that aborted legs get to answer, with the tokens they have, before they are given up."""
PREFILL_ANSWER_S: Final = 5.0
"""Time that the prefill leg gets to answer after decode has."""
MAX_ROOM: Final = 2**63 - 1
"""SGLang's bootstrap rooms are positive 64-bit integers; a random one does not occur twice."""


_aborts: set[asyncio.Task[None]] = set()
# The event loop keeps only weak references to tasks.


class ClientGone(Exception):  # noqa: N818 - not a failure: nobody reads the answer any more
    """The client has closed its connection."""


@dataclass(frozen=True, slots=True)
class Done:
    """The request is answered."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class Cut:
    """The attempt was cancelled; ``segment`` holds the tokens it had, if they are known."""

    segment: Segment | None


@dataclass(frozen=True, slots=True)
class Lost:
    """Workers failed the attempt; ``segment`` holds what was streamed before, ``blame`` who may have failed."""

    text: str
    blame: tuple[str, ...]
    segment: Segment | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The workers refuse the request itself: it would be refused anywhere."""

    status: int
    body: bytes


Outcome = Done | Cut | Lost | Refused


@dataclass(slots=True)
class Leg:
    """How one leg ended: ``status`` None means that the connection failed."""

    status: int | None
    body: bytes = b""
    reply: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether it gave an answer."""
        return self.reply is not None

    @property
    def text(self) -> str:
        """What went wrong."""
        return error_text(self.body) if self.status is not None else self.body.decode()


@dataclass(slots=True)
class Attempt:
    """One attempt.

    Attributes:
        rid: its id on the workers.
        body: what is sent, without id and bootstrap fields.
        bootstrap_host: how decode is told the prefill worker's host.
        on_prefilled: called once with the prefill leg's answer when the KV is with decode.
        on_chunk: called with each chunk of a stream (as a dict, before the worker's end mark); None does not stream.
        prompt_tokens: length of the prompt, as far as it is known.
        incremental: the decode worker streams what is new, not all there is (``--incremental-streaming-output``).
    """

    rid: str
    single: Single
    body: dict[str, Any]
    pair: Pair
    prefill: WorkerClient
    decode: WorkerClient
    bootstrap_host: str
    handover_s: float
    prompt_tokens: int
    on_prefilled: Callable[[dict[str, Any] | None], None]
    on_chunk: Callable[["Attempt", dict[str, Any]], Awaitable[None]] | None = None
    incremental: bool = False
    cancelled: str | None = None
    prefilled: bool = False
    chunks: int = 0
    last_chunk: dict[str, Any] | None = None
    prefill_reply: dict[str, Any] | None = None
    _aborting: asyncio.Task[None] | None = None
    _legs: list[asyncio.Task[Leg]] = field(default_factory=list)

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that it still occupies."""
        decode, prefill = self.pair.decode.worker_id, self.pair.prefill.worker_id
        return (decode,) if self.prefilled or self.pair.mixed else (prefill, decode)

    @property
    def deltas(self) -> bool:
        """Whether a chunk says only what is new, so that a stream that was cut cannot be told from its last chunk."""
        return self.on_chunk is not None and (self.incremental or self.single.kind != "generate")

    def cancel(self, reason: str) -> None:
        """Take the attempt off its workers; :meth:`run` then returns what it had."""
        if self.cancelled is None:
            self.cancelled = reason
            self.abort()

    def abort(self) -> None:
        """Abort both legs, and go on doing so until they have ended."""
        if self._aborting is None:
            self._aborting = asyncio.create_task(self._abort_until_ended(), name=f"abort {self.rid}")
            _aborts.add(self._aborting)
            self._aborting.add_done_callback(_aborts.discard)

    async def run(self) -> Outcome:
        """Send both legs and wait for how they end. If the caller is cancelled, both legs are aborted."""
        body = self._upstream_body()
        path = PATHS[self.single.kind]
        decode = asyncio.create_task(self._decode_leg(path, body), name=f"decode {self.rid}")
        self._legs = [decode]
        if not self.pair.mixed:
            prefill_body = {**body, "stream": False}
            prefill_body.pop("stream_options", None)
            prefill = asyncio.create_task(self._post(self.prefill, path, prefill_body), name=f"prefill {self.rid}")
            self._legs.append(prefill)
        for leg in self._legs:
            leg.add_done_callback(_look_at)
        try:
            return await (self._both(prefill, decode) if not self.pair.mixed else self._alone(decode))
        finally:
            await self._leave_nothing()

    def _upstream_body(self) -> dict[str, Any]:
        body = {**self.body, "rid": self.rid, "stream": self.on_chunk is not None}
        if self.on_chunk is not None and self.single.kind != "generate":
            body["stream_options"] = {"include_usage": True}
        if not self.pair.mixed:
            body["bootstrap_host"] = self.bootstrap_host
            body["bootstrap_port"] = self.pair.prefill.bootstrap_port
            body["bootstrap_room"] = random.randint(1, MAX_ROOM)
        return body

    async def _alone(self, decode: asyncio.Task[Leg]) -> Outcome:
        return self._outcome(await _end_of(decode))

    async def _both(self, prefill: asyncio.Task[Leg], decode: asyncio.Task[Leg]) -> Outcome:
        done, _ = await asyncio.wait((prefill, decode), timeout=self.handover_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return await self._hand_over_failed(decode)
        if prefill in done:
            leg = prefill.result()
            if not leg.ok and not decode.done():
                return await self._prefill_failed(leg, decode)
            self._hand_over(leg)
        outcome = self._outcome(await _end_of(decode))
        if isinstance(outcome, Done) and not prefill.done():
            await asyncio.wait((prefill,), timeout=PREFILL_ANSWER_S)
            self._hand_over(prefill.result() if prefill.done() else None)
            outcome = self._outcome(decode.result())
        return outcome

    def _hand_over(self, leg: Leg | None) -> None:
        self.prefilled = True
        self.prefill_reply = leg.reply if leg is not None else None
        self.on_prefilled(self.prefill_reply)

    async def _hand_over_failed(self, decode: asyncio.Task[Leg]) -> Outcome:
        return await self._give_up(decode, f"no KV handed over within {self.handover_s:g} s", self._names())

    async def _prefill_failed(self, leg: Leg, decode: asyncio.Task[Leg]) -> Outcome:
        if leg.status == 400 and self.cancelled is None:
            self.abort()
            return Refused(400, leg.body)
        return await self._give_up(decode, f"prefill: {leg.text}", (self._names()[0],))

    async def _give_up(self, decode: asyncio.Task[Leg], why: str, blame: tuple[str, ...]) -> Outcome:
        """Abort both legs. What decode answers to that is kept: the KV may have arrived all the same."""
        self.abort()
        await asyncio.wait((decode,), timeout=ABORT_GRACE_S)
        outcome = self._outcome(decode.result()) if decode.done() and not decode.cancelled() else Cut(self._streamed())
        if isinstance(outcome, Done) and finish_type(self.single, outcome.segment.reply) != "abort":
            return outcome
        segment = None if isinstance(outcome, Refused) else outcome.segment
        return Cut(segment) if self.cancelled is not None else Lost(why, blame, segment)

    def _outcome(self, leg: Leg) -> Outcome:
        if self.cancelled is not None and self.deltas:
            return Cut(None)
        if leg.reply is not None:
            failed = _failed_status(leg.reply)
            if failed is None:
                aborted = finish_type(self.single, leg.reply) == "abort"
                segment = self.segment(leg.reply)
                return Cut(segment) if aborted and self.cancelled is not None else Done(segment)
            leg = Leg(failed, msgspec.json.encode(leg.reply.get("meta_info", {}).get("finish_reason")))
        if self.cancelled is not None:
            return Cut(self._streamed())
        if leg.status is not None and 400 <= leg.status < 500 and leg.status not in (408, 429):
            return Refused(leg.status, leg.body)
        blame = self._names() if leg.status is not None else (self.pair.decode.worker_id,)
        return Lost(f"decode: {leg.text}", blame, self._streamed())

    def segment(self, reply: dict[str, Any] | None) -> Segment:
        """A reply of the decode leg as what this attempt contributes."""
        return Segment(
            reply=reply or {},
            prefill=self.prefill_reply,
            prefill_worker=self.pair.prefill.worker_id,
            decode_worker=self.pair.decode.worker_id,
            prompt_tokens=self.prompt_tokens,
        )

    def _streamed(self) -> Segment | None:
        return None if self.last_chunk is None or self.deltas else self.segment(self.last_chunk)

    def _names(self) -> tuple[str, ...]:
        return self.pair.prefill.worker_id, self.pair.decode.worker_id

    async def _decode_leg(self, path: str, body: dict[str, Any]) -> Leg:
        if self.on_chunk is None:
            return await self._post(self.decode, path, body)
        return await self._stream(self.on_chunk, path, body)

    async def _post(self, client: WorkerClient, path: str, body: dict[str, Any]) -> Leg:
        headers = {**client.headers, "Content-Type": "application/json"}
        try:
            async with client.session.post(
                client.url + path, data=msgspec.json.encode(body), headers=headers
            ) as answer:
                raw = await answer.read()
                return _leg(answer.status, raw)
        except (aiohttp.ClientError, TimeoutError) as error:
            return Leg(None, f"{client.url}: {error or type(error).__name__}".encode())

    async def _stream(
        self, on_chunk: Callable[["Attempt", dict[str, Any]], Awaitable[None]], path: str, body: dict[str, Any]
    ) -> Leg:
        client = self.decode
        headers = {**client.headers, "Content-Type": "application/json"}
        try:
            async with client.session.post(
                client.url + path, data=msgspec.json.encode(body), headers=headers
            ) as answer:
                if answer.status != 200:
                    return _leg(answer.status, await answer.read())
                async for line in answer.content:
                    if (leg := await self._line(on_chunk, line)) is not None:
                        return leg
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return Leg(None, f"{client.url}: {error or type(error).__name__}".encode())
        return Leg(None, f"{client.url}: the stream ended without its end mark".encode())

    async def _line(self, on_chunk: Callable[["Attempt", dict[str, Any]], Awaitable[None]], line: bytes) -> Leg | None:
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or not data:
            return None
        if data == b"[DONE]":
            if self.last_chunk is None:
                return Leg(500, b"an empty stream")
            return Leg(200, b"", self.last_chunk)
        chunk: dict[str, Any] = msgspec.json.decode(data)
        if (error := chunk.get("error")) is not None:
            status = error.get("code") if isinstance(error, dict) else None
            return Leg(status if isinstance(status, int) else 500, data)
        self.chunks += 1
        # OpenAI streams end with a chunk that has usage and no choices.
        self.last_chunk = {**(self.last_chunk or {}), "usage": chunk["usage"]} if _usage_only(chunk) else chunk
        if self.cancelled is None and _failed_status(chunk) is None:
            await on_chunk(self, chunk)
        return None

    async def _abort_until_ended(self) -> None:
        clients = [self.decode] if self.pair.mixed else [self.decode, self.prefill]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ABORT_GRACE_S):
                while not all(leg.done() for leg in self._legs):
                    await asyncio.gather(*(_abort(client, self.rid) for client in clients))
                    await asyncio.wait(self._legs, timeout=ABORT_AGAIN_S)
        for leg in self._legs:
            leg.cancel()

    async def _leave_nothing(self) -> None:
        if all(leg.done() for leg in self._legs):
            return
        self.abort()


async def _end_of(leg: asyncio.Task[Leg]) -> Leg:
    # To await the task itself would cancel it with its waiter, and close its connection before it can be aborted.
    await asyncio.wait((leg,))
    return leg.result()


async def aborts_sent(timeout_s: float) -> None:
    """Wait until no abort is under way, as at the end of the process."""
    if _aborts:
        await asyncio.wait(_aborts, timeout=timeout_s)


def _look_at(leg: asyncio.Task[Leg]) -> None:
    # A leg may end after everybody has stopped waiting for it; its error is nobody's then.
    if not leg.cancelled():
        leg.exception()


async def _abort(client: WorkerClient, rid: str) -> None:
    with contextlib.suppress(WorkerError):
        await client.abort(rid)


def _leg(status: int, raw: bytes) -> Leg:
    if status != 200:
        return Leg(status, raw)
    try:
        reply = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        return Leg(502, f"not JSON: {error}".encode())
    return Leg(status, raw, reply) if isinstance(reply, dict) else Leg(502, b"not a JSON object")


def _usage_only(chunk: dict[str, Any]) -> bool:
    return chunk.get("choices") == [] and bool(chunk.get("usage"))


def finish_type(single: Single, reply: dict[str, Any]) -> str | None:
    """Why a reply or chunk ended: ``stop``, ``length``, ``abort`` and the like; None if it has not."""
    if single.kind == "generate":
        reason = reply.get("meta_info", {}).get("finish_reason")
        return reason.get("type") if isinstance(reason, dict) else reason
    choices = reply.get("choices") or [{}]
    found = choices[0].get("finish_reason")
    return found if isinstance(found, str) else None


def _failed_status(reply: dict[str, Any]) -> int | None:
    """SGLang ends the stream of a failed request with an abort that carries an HTTP status."""
    meta = reply.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    status = reason.get("status_code") if isinstance(reason, dict) else None
    return status if isinstance(status, int) and status >= 400 else None
