"""Performance profiles: how long a worker takes for a prefill chunk and for a decode step, and how much KV it holds."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from prorsa.errors import ConfigError


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coefficients of a latency fit, in milliseconds (per token, per token squared; see :class:`Profile`)."""

    a_ms: float
    b_ms: float
    c_ms: float


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The range of the data behind a fit; tokens and batches outside it are counted as extrapolated."""

    new_tokens: int
    context_tokens: int
    batch: int


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model on one kind of worker.

    ``prefill``: a + b·n + c·n·(n/2 + p) for ``n`` new tokens after ``p`` cached ones.
    ``decode``: a + b·B + c·Σcontext for a batch of ``B`` requests with ``Σcontext`` tokens of KV in all.
    Both in milliseconds per rank. A colocated worker runs either of the two in a step, prefill first, as SGLang does
    by default.

    Attributes:
        gpus: GPUs of one worker.
        ranks: attention data-parallel ranks of one worker; 1 for plain tensor parallelism.
        kv_tokens: KV capacity of one rank, in tokens.
        chunk_tokens: prefill budget of one step and rank (SGLang ``--chunked-prefill-size``).
        max_running: requests that one rank runs at a time.
        model_context: the longest prompt + output of the model.
        flippable: whether SGLang lets such a worker change its role; ``why_not_flippable`` says why it does not.
        kv_transfer_gb_s: KV transfer rate between two workers, in 10^9 bytes a second.
        matched_rows: measured latency rows that match this set-up; fewer than 10 means the profile is unvalidated.
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
        fit = self.prefill
        # The quadratic term of consecutive chunks sums to that of one piece; each chunk pays the constant.
        ms = fit.a_ms * steps + fit.b_ms * new_tokens + fit.c_ms * new_tokens * (new_tokens / 2 + prefix_tokens)
        return ms / 1e3

    def decode_step_s(self, batch: float, context_tokens: float) -> float:
        """Seconds of one decode step of ``batch`` requests that hold ``context_tokens`` of KV in all."""
        return (self.decode.a_ms + self.decode.b_ms * batch + self.decode.c_ms * context_tokens) / 1e3


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
        ConfigError: if there is no such profile or the file does not fit; names the field.
    """
    source = _read(name)
    try:
        return msgspec.toml.decode(source.text.encode(), type=Profile)
    except msgspec.DecodeError as error:
        raise ConfigError(f"profile {source.name}: {error}") from error


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
