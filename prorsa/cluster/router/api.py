"""What clients call: generation in SGLang's and OpenAI's forms, and the end of sessions."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from prorsa.cluster.router.attempt import ClientGone
from prorsa.cluster.router.dispatch import Dispatcher
from prorsa.cluster.router.inbound import Inbound, Kind, Single, take_apart
from prorsa.cluster.router.jobs import Answer
from prorsa.cluster.router.merge import join_openai
from prorsa.cluster.router.sessions import Session, session_key
from prorsa.cluster.router.web import answer_reply, read_object, reply
from prorsa.errors import InputError


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is."""

    session: Session | None
    trajectory_id: str | None


class GenerationApi:
    """Handlers of generation requests."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def routes(self) -> list[web.RouteDef]:
        """The routes served here."""
        return [
            web.post("/generate", self._handler("generate")),
            web.put("/generate", self._handler("generate")),
            web.post("/v1/completions", self._handler("completions")),
            web.post("/v1/chat/completions", self._handler("chat")),
            web.post("/finish_session", self.finish_session),
        ]

    async def finish_session(self, request: web.Request) -> web.Response:
        """``POST /finish_session?session_id=``: the trajectory is over, forget what is held of it."""
        key = request.query.get("session_id") or session_key(request.headers, await read_object(request))
        if key is None:
            raise InputError("which session: give ?session_id=")
        self._dispatcher.gate.leave(key)
        return reply({"finished": self._dispatcher.sessions.finish(key)})

    def _handler(self, kind: Kind) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await read_object(request)
            inbound = take_apart(kind, body)
            caller = self._caller(request, body, inbound)
            if inbound.stream:
                return await _Stream(self._dispatcher, request, inbound, caller).run()
            answers = await asyncio.gather(*(self._run(single, caller) for single in inbound.singles))
            return _joined(inbound, answers)

        return handle

    def _run(self, single: Single, caller: Caller) -> Awaitable[Answer]:
        return self._dispatcher.run(single, session=caller.session, trajectory_id=caller.trajectory_id)

    def _caller(self, request: web.Request, body: dict[str, Any], inbound: Inbound) -> Caller:
        key = session_key(request.headers, body)
        if key is None:
            return Caller(None, None)
        # The singles of a batch are different conversations: together they are no session to learn from.
        session = self._dispatcher.sessions.get(key) if len(inbound.singles) == 1 else None
        return Caller(session, key[:256])


def _joined(inbound: Inbound, answers: list[Answer]) -> web.Response:
    failed = next((answer for answer in answers if answer.status != 200), None)
    if failed is not None or not inbound.many:
        return answer_reply(failed or answers[0])
    bodies = [answer.body or {} for answer in answers]
    if inbound.kind == "generate":
        return reply(bodies)
    return reply(join_openai(bodies, [single.prompt_index for single in inbound.singles]))


class _Stream:
    """One streamed request: server-sent events, as many streams in one as the request has singles."""

    def __init__(self, dispatcher: Dispatcher, request: web.Request, inbound: Inbound, caller: Caller) -> None:
        self._dispatcher = dispatcher
        self._request = request
        self._inbound = inbound
        self._caller = caller
        self._response: web.StreamResponse | None = None
        self._lock = asyncio.Lock()

    async def run(self) -> web.StreamResponse:
        """Stream until all is said. What fails before the first chunk is answered with its HTTP status."""
        answers = await asyncio.gather(*(self._one(single) for single in self._inbound.singles))
        failed = [answer for answer in answers if answer.status != 200]
        if failed and self._response is None:
            return answer_reply(failed[0])
        for answer in failed:
            await self._write(answer.body or msgspec.json.decode(answer.raw))
        if self._inbound.include_usage and self._inbound.many and not failed:
            await self._write(self._usage([answer.body or {} for answer in answers]))
        response = await self._open()
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _one(self, single: Single) -> Answer:
        async def sink(chunk: dict[str, Any]) -> None:
            if (said := self._shape(single, chunk)) is not None:
                await self._write(said)

        return await self._dispatcher.run(
            single, session=self._caller.session, trajectory_id=self._caller.trajectory_id, sink=sink
        )

    def _shape(self, single: Single, chunk: dict[str, Any]) -> dict[str, Any] | None:
        if single.kind == "generate":
            return {**chunk, "index": single.index} if self._inbound.many else chunk
        if not chunk.get("choices"):
            return chunk if self._inbound.include_usage and not self._inbound.many else None
        if not self._inbound.many:
            return chunk
        return {**chunk, "choices": [{**choice, "index": single.index} for choice in chunk["choices"]]}

    def _usage(self, bodies: list[dict[str, Any]]) -> dict[str, Any]:
        whole = join_openai(
            [{**body, "choices": [{}]} for body in bodies], [single.prompt_index for single in self._inbound.singles]
        )
        return {**whole, "choices": []}

    async def _write(self, chunk: dict[str, Any]) -> None:
        async with self._lock:
            response = await self._open()
            try:
                await response.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
            except ConnectionError as error:
                raise ClientGone from error

    async def _open(self) -> web.StreamResponse:
        if self._response is None:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
            await response.prepare(self._request)
            self._response = response
        return self._response
