"""Performance profiles: how long a worker takes for a prefill chunk and for a decode step, and how much KV it holds."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from prorsa.errors import ConfigError

Point = tuple[float, float]
"""Tokens, milliseconds."""


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Attention of one rank: coefficients of a latency fit, in milliseconds a step, token, or pair of tokens.

    ``d_ms`` and ``window_tokens`` are for prefill with sparse attention (DeepSeek-V3.2 attends to 2,048 chosen tokens
    and scores all of them): ``d_ms`` for each pair of a new token and a token that it attends to, at most
    ``window_tokens`` of them; ``c_ms`` then is the scoring.
    """

    a_ms: float
    b_ms: float
    c_ms: float
    d_ms: float = 0.0
    window_tokens: int = 0


class Experts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Experts and their communication: milliseconds by the tokens of all ranks of the worker in the step.

    Piecewise linear; below the first point that point's value (the weights are read for one token too), beyond the
    last one the last slope. No points: no time.

    Attributes:
        prefill: for steps in which any rank prefills.
        decode: for steps in which all ranks decode; these replay a CUDA graph.
    """

    prefill: tuple[Point, ...] = ()
    decode: tuple[Point, ...] = ()


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The range of the data behind a fit; tokens and batches outside it are counted as extrapolated."""

    new_tokens: int
    context_tokens: int
    batch: int


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model on one kind of worker.

    A step takes as long as the attention of the slowest rank and the experts of all ranks' tokens together::

        step = max over ranks of attention(rank) + experts(sum of the ranks' tokens)

    ``prefill``: the attention of a rank that prefills takes ``a + b·Σn + c·Σ n(n/2 + p) + d·Σ Σ min(p + j, window)``
    for chunks of ``n`` new tokens after ``p`` cached ones, ``j`` = 1 to ``n``.
    ``decode``: that of a rank that decodes takes ``a + b·B + c·Σcontext`` for a batch of ``B`` requests with
    ``Σcontext`` tokens of KV in all. A rank runs either of the two in a step, prefill first, as SGLang does by default.
    "Attention" is everything that a rank computes for its own tokens alone. `prorsa.cluster.step.step_parts` puts the
    parts together.

    Attributes:
        gpus: GPUs of one worker.
        ranks: attention data-parallel ranks of one worker; 1 for plain tensor parallelism.
        kv_tokens: KV capacity of one rank, in tokens.
        chunk_tokens: prefill budget of one step and rank: SGLang's ``--chunked-prefill-size``, which it divides by the
            ranks.
        max_running: requests that one rank runs at a time.
        model_context: the longest prompt + output of the model.
        flippable: whether SGLang lets such a worker change its role; ``why_not_flippable`` says why it does not.
        kv_transfer_gb_s: KV transfer rate between two workers, in 10^9 bytes a second.
        matched_rows: measured latency rows that match this set-up; fewer than 10 means the profile is unvalidated.
        request_ms: time of a request outside the engine's steps (HTTP, tokenizer, scheduling) before it can be in a
            prefill batch.
    """

    name: str
    model: str
    system: str
    parallel: str
    provenance: str
    gpus: int
    ranks: int
    kv_tokens: int
    kv_bytes_per_token: int
    chunk_tokens: int
    max_running: int
    model_context: int
    flippable: bool
    kv_transfer_gb_s: float
    matched_rows: int
    prefill: Fit
    decode: Fit
    measured: Range
    experts: Experts = Experts()
    request_ms: float = 0.0
    why_not_flippable: str | None = None

    @property
    def validated(self) -> bool:
        """Whether at least 10 measured rows match this profile."""
        return self.matched_rows >= 10

    @property
    def kv_capacity(self) -> int:
        """KV capacity of a whole worker, in tokens."""
        return self.kv_tokens * self.ranks

    @property
    def max_context(self) -> int:
        """The longest prompt + output that a trajectory may reach here: min(model_context, 0.9 x KV of a rank)."""
        return min(self.model_context, int(0.9 * self.kv_tokens))

    def prefill_s(self, new_tokens: float, prefix_tokens: float = 0.0) -> float:
        """Seconds to prefill ``new_tokens`` after ``prefix_tokens``, in chunks, with nothing else on the worker."""
        whole, rest = divmod(new_tokens, self.chunk_tokens)
        steps = int(whole) + (rest > 0)
        experts_ms = int(whole) * table_ms(self.experts.prefill, self.chunk_tokens)
        experts_ms += table_ms(self.experts.prefill, rest) if rest > 0 else 0.0
        # What consecutive chunks pay for pairs of tokens sums to what one piece would; each chunk pays the constant.
        ms = self.prefill.a_ms * steps + prefill_tokens_ms(self.prefill, new_tokens, prefix_tokens)
        return (ms + experts_ms) / 1e3

    def prefill_tokens_per_s(self, new_tokens: float, prefix_tokens: float = 0.0) -> float:
        """Prefill rate of a whole worker whose ranks all do full steps, for prompts of these sizes."""
        tokens = self.chunk_tokens
        ms = self.prefill.a_ms + prefill_tokens_ms(self.prefill, new_tokens, prefix_tokens) * tokens / new_tokens
        ms += table_ms(self.experts.prefill, tokens * self.ranks)
        return tokens * self.ranks * 1e3 / ms

    def decode_step_s(self, batch: float, context_tokens: float) -> float:
        """Seconds of one decode step of ``batch`` requests on one rank that hold ``context_tokens`` of KV in all."""
        attention_ms = self.decode.a_ms + self.decode.b_ms * batch + self.decode.c_ms * context_tokens
        return (attention_ms + table_ms(self.experts.decode, batch)) / 1e3


def prefill_tokens_ms(fit: Fit, new_tokens: float, prefix_tokens: float) -> float:
    """Milliseconds of a rank's attention for new tokens after a prefix, without the step's constant."""
    pairs = new_tokens * (new_tokens / 2 + prefix_tokens)
    windowed = windowed_pairs(new_tokens, prefix_tokens, fit.window_tokens)
    return fit.b_ms * new_tokens + fit.c_ms * pairs + fit.d_ms * windowed


def windowed_pairs(new_tokens: float, prefix_tokens: float, window_tokens: float) -> float:
    """Σ min(prefix + j, window) over the new tokens, j = 1 to ``new_tokens``."""
    growing = min(max(window_tokens - prefix_tokens, 0), new_tokens)
    return growing * (prefix_tokens + (growing + 1) / 2) + (new_tokens - growing) * window_tokens


def table_ms(points: tuple[Point, ...], tokens: float) -> float:
    """Milliseconds of ``tokens`` by a table of `Experts`."""
    if not points:
        return 0.0
    if tokens <= points[0][0] or len(points) == 1:
        return points[0][1]
    k = min(bisect_left(points, tokens, key=lambda point: point[0]), len(points) - 1)
    (low, low_ms), (high, high_ms) = points[k - 1], points[k]
    return low_ms + (tokens - low) * (high_ms - low_ms) / (high - low)


@dataclass(frozen=True)
class _Source:
    name: str
    text: str


def profile_names() -> list[str]:
    """Names of the profiles that the package carries."""
    folder = resources.files("prorsa.cluster") / "profiles"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_profile(name: str) -> Profile:
    """Load a profile by its name in the package, or from a TOML file.

    Raises:
        ConfigError: if there is no such profile or the file does not fit; names what is wrong.
    """
    source = _read(name)
    try:
        profile = msgspec.toml.decode(source.text.encode(), type=Profile)
    except msgspec.DecodeError as error:
        raise ConfigError(f"profile {source.name}: {error}") from error
    check_profile(profile, source.name)
    return profile


def check_profile(profile: Profile, name: str | None = None) -> None:
    """Refuse a profile whose figures make no sense.

    Raises:
        ConfigError: names every field that is wrong.
    """
    problems = list(_problems(profile))
    if problems:
        raise ConfigError(f"profile {name or profile.name}: {'; '.join(problems)}")


_COUNTS: Final = ("gpus", "ranks", "kv_tokens", "kv_bytes_per_token", "chunk_tokens", "max_running", "model_context")


def _problems(profile: Profile) -> Iterator[str]:
    for name in _COUNTS:
        if getattr(profile, name) < 1:
            yield f"{name} is {getattr(profile, name)}: give at least 1"
    if not 0 < profile.kv_transfer_gb_s < math.inf:
        yield f"kv_transfer_gb_s is {profile.kv_transfer_gb_s}: give a rate above 0"
    if not 0 <= profile.request_ms < math.inf:
        yield f"request_ms is {profile.request_ms}: give 0 or more"
    yield from _fit_problems(profile)
    for stage in ("prefill", "decode"):
        yield from _table_problems(f"experts.{stage}", getattr(profile.experts, stage))


def _fit_problems(profile: Profile) -> Iterator[str]:
    """Coefficients must be such that no step takes no time, and no token makes one shorter."""
    for stage, fit, table in (
        ("prefill", profile.prefill, profile.experts.prefill),
        ("decode", profile.decode, profile.experts.decode),
    ):
        for name in ("a_ms", "b_ms", "c_ms", "d_ms", "window_tokens"):
            value = getattr(fit, name)
            if not 0 <= value < math.inf:
                yield f"{stage}.{name} is {value}: give 0 or more"
        if fit.a_ms + fit.b_ms + table_ms(table, 1) <= 0:
            yield f"a {stage} step takes no time: give positive coefficients"
    if profile.decode.d_ms or profile.decode.window_tokens:
        yield "decode.d_ms and decode.window_tokens: these are for prefill, leave them out"
    if profile.prefill.d_ms > 0 and profile.prefill.window_tokens == 0:
        yield "prefill.d_ms without prefill.window_tokens: give the tokens that a new token attends to"


def _table_problems(name: str, points: tuple[Point, ...]) -> Iterator[str]:
    for (low, low_ms), (high, high_ms) in pairwise(points):
        if not low < high or low_ms > high_ms:
            yield f"{name} goes from {low:g} tokens, {low_ms:g} ms to {high:g}, {high_ms:g}: neither may go back"
    for tokens, ms in points:
        if not (0 <= tokens < math.inf and 0 <= ms < math.inf):
            yield f"{name} has the point {tokens:g} tokens, {ms:g} ms: give 0 or more"


def _read(name: str) -> _Source:
    path = Path(name)
    if path.suffix == ".toml":
        try:
            return _Source(name, path.read_text())
        except OSError as error:
            raise ConfigError(f"profile {name}: {error.strerror}; give a name ({_known()}) or a TOML file") from error
    entry: Any = resources.files("prorsa.cluster") / "profiles" / f"{name}.toml"
    if not entry.is_file():
        raise ConfigError(f"no profile {name!r}; there are {_known()}, or give a TOML file")
    return _Source(name, entry.read_text())


def _known() -> str:
    return ", ".join(profile_names())
