"""The router's configuration, checked as a whole."""

from pathlib import Path
from typing import Literal

from msgspec import Struct

from prorsa.errors import ConfigError

ResumePolicy = Literal["same_version_only", "allow", "rerun"]


class WorkerSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A worker that the router knows from its configuration.

    ``worker_id`` defaults to ``host:port`` of the URL, which is stable over restarts. ``bootstrap_host`` is the name
    under which decode workers reach a prefill worker; it defaults to the host of the URL.
    """

    url: str
    worker_id: str | None = None
    bootstrap_host: str | None = None


class RouterConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a router runs. Times are wall seconds.

    Attributes:
        host, port: where it listens; port 0 picks a free one.
        workers: workers known from the start; more may be registered through ``/workers``.
        state_file: keeps the role table and the requests in flight over a restart; None keeps nothing.
        hub: ingest endpoint of the hub; None emits no events.
        token_file: bearer token that every call but ``/health`` must carry; None asks for none.
        worker_key_file, worker_admin_key_file: API key and admin key of the workers.
        queue_limit: requests that wait here at most; past it the answer is 503 with ``Retry-After``.
        resume_policy: whether a cancelled request goes on from its tokens so far: only under the same weights
            (``same_version_only``), under any (``allow``), or never (``rerun``: from the start).
        max_attempts: attempts a request gets when workers fail it; cancels for a flip do not count.
        prefill_window_tokens: uncached prompt tokens sent to a prefill worker ahead of what it has computed. It keeps
            the engine's own queue short, so that placing is late and a flip has little to cancel.
        decode_reserve_tokens: KV tokens counted for the output of a request that decodes, at most.
        kv_fill: share of a decode worker's KV that requests are placed into.
        handover_s: longest time until the KV of a request has reached decode; then it is tried elsewhere.
        poll_s: how often each worker is looked at; it counts as dead after ``dead_after`` misses in a row.
        canary_s: limit of a canary request.
        publish_loads: emit ``worker.load`` for the workers; off where the plugin does.
    """

    host: str = "127.0.0.1"
    port: int = 30000
    workers: tuple[WorkerSpec, ...] = ()
    state_file: str | None = None
    hub: str | None = None
    run_id: str | None = None
    name: str = "router"
    token_file: str | None = None
    worker_key_file: str | None = None
    worker_admin_key_file: str | None = None
    queue_limit: int = 4096
    retry_after_s: int = 1
    resume_policy: ResumePolicy = "same_version_only"
    max_attempts: int = 6
    prefill_window_tokens: int = 16_384
    decode_reserve_tokens: int = 512
    kv_fill: float = 0.95
    handover_s: float = 60.0
    poll_s: float = 1.0
    dead_after: int = 3
    canary_s: float = 10.0
    publish_loads: bool = True
    sessions_limit: int = 100_000

    def __post_init__(self) -> None:
        """Raises ConfigError with every fault at once."""
        faults = [
            *(f"{name} must be positive" for name in _POSITIVE if getattr(self, name) <= 0),
            *(["kv_fill must be in (0, 1]"] if not 0 < self.kv_fill <= 1 else []),
            *(["max_attempts must be at most 50: attempts have two digits"] if self.max_attempts > 50 else []),
            *([_open_to_the_world(self.host)] if self.token_file is None and not _loopback(self.host) else []),
        ]
        if faults:
            raise ConfigError("router: " + "; ".join(faults))


_POSITIVE = (
    "queue_limit",
    "retry_after_s",
    "max_attempts",
    "prefill_window_tokens",
    "handover_s",
    "poll_s",
    "dead_after",
    "canary_s",
    "sessions_limit",
)


def read_secret(path: str | None, what: str) -> str | None:
    """A token or key from a file of its own, without the newline at its end; None for None.

    Raises:
        ConfigError: if the file cannot be read or is empty.
    """
    if path is None:
        return None
    try:
        secret = Path(path).read_text().strip()
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}; give a file that this user can read") from error
    if not secret:
        raise ConfigError(f"{what} {path} is empty; put the token on its first line")
    return secret


def _loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _open_to_the_world(host: str) -> str:
    return f"host {host} is reachable from elsewhere: set token_file, or listen on 127.0.0.1"
