"""A client of a router's admin calls."""

from typing import Any

import aiohttp
import msgspec

from prorsa.cluster.sglang.client import error_text
from prorsa.errors import RefusedError, UnavailableError


class RouterAbsentError(UnavailableError):
    """Nothing listens where the router should: it sends no requests either."""


class RouterClient:
    """Admin calls of one router.

    Args:
        session: shared by all clients of a process.
        url: where the router listens.
        token: its bearer token, if it asks for one.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, *, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def table(self) -> dict[str, Any]:
        """The role table, as ``GET /prorsa/table`` gives it."""
        return await self._call("GET", "/prorsa/table", None, 5.0)

    async def step(self, action: str, worker_id: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """One step of a flip: ``fence``, ``drain``, ``warm`` or ``admit``.

        Raises:
            RefusedError: if the router refuses it, or could not do it in time; says why.
            RouterAbsentError: if nothing listens there.
            UnavailableError: if the router does not answer.
        """
        return await self._call("POST", f"/prorsa/{action}/{worker_id}", body, timeout_s)

    async def put_table(self, table: dict[str, Any]) -> bool:
        """Set the role table; False if the router has this one, or a newer one, already."""
        return bool((await self._call("PUT", "/prorsa/table", table, 5.0))["applied"])

    async def put_admission(self, limit: int | None, lease_epoch: int | None) -> None:
        """Let so many sessions be live at the router; None for no limit."""
        await self._call("PUT", "/prorsa/admission", {"limit": limit, "lease_epoch": lease_epoch}, 5.0)

    async def _call(self, method: str, path: str, body: object, timeout_s: float) -> dict[str, Any]:
        limit = aiohttp.ClientTimeout(total=timeout_s, sock_connect=2.0)
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(
                method, self.url + path, data=data, headers=self._headers, timeout=limit
            ) as answer:
                raw, status = await answer.read(), answer.status
        except aiohttp.ClientConnectorError as error:
            raise RouterAbsentError(f"router {self.url}: {error}; start it, its state file holds the table") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(f"router {self.url}{path} does not answer: {error or 'timed out'}") from error
        if status == 200:
            return msgspec.json.decode(raw, type=dict[str, Any])
        if status == 401:
            raise UnavailableError(f"router {self.url} asks for its token: give the one in its token_file")
        raise RefusedError(f"router {self.url}: {error_text(raw)}")
