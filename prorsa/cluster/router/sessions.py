"""Sessions: which trajectory a request belongs to, and what each worker is believed to hold of it. No I/O.

The index keeps, for each session, its last context (prompt and output) and for every worker the number of leading
units of that context that the worker has seen. A unit is a token, or a character where the client sends text. It is a
belief, not an account: workers evict, and nobody tells the router.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SESSION_HEADERS: Final = ("X-Prorsa-Trajectory", "X-SMG-Routing-Key", "X-Session-ID", "x-dynamo-trajectory-id")
"""Headers that carry a session key, strongest first; the body's ``session_id`` comes after them."""

FIRST_TOKENS_PER_CHAR: Final = 0.25
"""Tokens of a character of text, until answers have told."""

Units = list[int] | str


@dataclass(slots=True)
class Prompt:
    """A prompt as the router sees it: token ids, or text whose token count is an estimate."""

    units: Units
    tokens: int

    def tokens_of(self, units: int) -> int:
        """Tokens that ``units`` leading units make up."""
        return round(units * self.tokens / len(self.units)) if self.units else 0


@dataclass(slots=True)
class Session:
    """One trajectory. ``held`` maps worker ids to leading units of ``context`` that the worker has."""

    key: str
    turn: int = 0
    context: Units = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    home: str | None = None
    tokens: int = 0


class Sessions:
    """All sessions of a router, the least recently used dropped past ``limit``; they count tokens for each home."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._home_tokens: dict[str, int] = {}
        self._tokens_per_char = FIRST_TOKENS_PER_CHAR

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: str) -> Session:
        """The session of a key, made when it is new."""
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = Session(key)
            while len(self._sessions) > self._limit:
                self.finish(next(iter(self._sessions)))
        self._sessions.move_to_end(key)
        return session

    def finish(self, key: str) -> bool:
        """Forget a session; False if there is none of that key."""
        session = self._sessions.pop(key, None)
        if session is None:
            return False
        self._move_home(session, None, 0)
        return True

    def drop_worker(self, worker_id: str) -> int:
        """A worker has lost its cache; returns the tokens it was believed to hold."""
        lost = 0
        for session in self._sessions.values():
            units = session.held.pop(worker_id, 0)
            if units and session.context:
                lost += round(units * session.tokens / len(session.context))
            if session.home == worker_id:
                self._move_home(session, None, 0)
        return lost

    def clear_caches(self) -> None:
        """Every worker has lost its cache, as after a weight update."""
        for session in self._sessions.values():
            session.held.clear()

    def prompt_of(self, units: Units) -> Prompt:
        """A prompt with its exact or estimated token count."""
        return Prompt(units, len(units) if isinstance(units, list) else round(len(units) * self._tokens_per_char))

    def learn_density(self, chars: int, tokens: int) -> None:
        """Take an answered text prompt into the estimate of tokens in a character (exponential mean, weight 0.1)."""
        if chars > 0:
            self._tokens_per_char += 0.1 * (tokens / chars - self._tokens_per_char)

    def answered(
        self, session: Session, context: Units, tokens: int, prefill: str, prompt_units: int, decode: str
    ) -> None:
        """A turn is answered: prefill has the prompt, decode the prompt and the output."""
        shared = common_prefix(session.context, context)
        session.held = {worker: min(units, shared) for worker, units in session.held.items() if min(units, shared) > 0}
        session.context = context
        session.held[prefill] = max(session.held.get(prefill, 0), prompt_units)
        session.held[decode] = len(context)
        session.turn += 1
        self._move_home(session, prefill, tokens)

    def home_tokens(self, worker_id: str) -> int:
        """Context tokens of the sessions that have their home on a worker."""
        return self._home_tokens.get(worker_id, 0)

    def _move_home(self, session: Session, home: str | None, tokens: int) -> None:
        if session.home is not None:
            self._home_tokens[session.home] -= session.tokens
        if home is not None:
            self._home_tokens[home] = self._home_tokens.get(home, 0) + tokens
        session.home, session.tokens = home, tokens


@dataclass(slots=True)
class Reuse:
    """What workers hold of one prompt, in tokens."""

    prompt: Prompt
    shared: int = 0
    held: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, session: Session | None, prompt: Prompt) -> "Reuse":
        """Compare a prompt with its session's last context."""
        if session is None or not session.held:
            return cls(prompt)
        return cls(prompt, common_prefix(session.context, prompt.units), dict(session.held))

    def cached(self, worker_id: str) -> int:
        """Leading tokens of the prompt that a worker is believed to hold; never the whole prompt, as in SGLang."""
        units = min(self.shared, self.held.get(worker_id, 0))
        return min(self.prompt.tokens_of(units), max(0, self.prompt.tokens - 1))

    def new_tokens(self, worker_id: str) -> int:
        """Tokens of the prompt that a worker would have to compute."""
        return self.prompt.tokens - self.cached(worker_id)

    def least_new_tokens(self) -> int:
        """Tokens to compute on the worker that holds most."""
        return min((self.new_tokens(worker) for worker in self.held), default=self.prompt.tokens)


def session_key(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """The session key of a request, or None."""
    for name in SESSION_HEADERS:
        if value := headers.get(name):
            return value
    value = body.get("session_id")
    return value if isinstance(value, str) and value else None


def common_prefix(a: Units, b: Units) -> int:
    """Length of the longest common prefix; 0 of tokens and text. O(n) in C, by halving."""
    if type(a) is not type(b):
        return 0
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
