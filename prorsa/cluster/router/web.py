"""What the router's HTTP handlers share: bodies, replies, errors and tokens."""

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from prorsa.cluster.router.jobs import Answer
from prorsa.cluster.router.replying import error_body
from prorsa.errors import InputError, ProrsaError, RefusedError, UnavailableError

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN_PATHS = frozenset({"/health", "/ready"})


async def read_object(request: web.Request) -> dict[str, Any]:
    """The JSON object in a request's body; an empty body is an empty object.

    Raises:
        InputError: if it is something else.
    """
    raw = await request.read()
    try:
        body = msgspec.json.decode(raw) if raw else {}
    except msgspec.DecodeError as error:
        raise InputError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InputError("the body must be a JSON object")
    return body


async def read_as(request: web.Request, kind: type[T]) -> T:
    """The body as a struct.

    Raises:
        InputError: if it does not fit; names the field.
    """
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise InputError(f"{request.path}: {error}") from error


def reply(body: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON response."""
    return web.Response(body=msgspec.json.encode(body), status=status, headers=headers, content_type="application/json")


def answer_reply(answer: Answer) -> web.Response:
    """An answer as a response."""
    if answer.body is None:
        return web.Response(body=answer.raw, status=answer.status, content_type="application/json")
    headers = None if answer.retry_after_s is None else {"Retry-After": str(answer.retry_after_s)}
    return reply(answer.body, answer.status, headers)


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error of Prorsa's as one JSON reply with the status that fits."""
    try:
        return await handler(request)
    except ProrsaError as error:
        status = 400 if isinstance(error, InputError) else 409 if isinstance(error, RefusedError) else 500
        if isinstance(error, UnavailableError):
            status = 502
        return reply(error_body(str(error), kind=type(error).__name__, retryable=status == 502), status)


def bearer_check(token: str | None) -> Middleware:
    """A middleware that lets only bearers of the token in, except to the health checks."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token is not None and request.path not in OPEN_PATHS:
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                why = "send `Authorization: Bearer <token>`, the token is in the router's token_file"
                return reply(error_body(why, kind="unauthorized", retryable=False), 401)
        return await handler(request)

    return check
