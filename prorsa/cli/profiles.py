"""``prorsa profile``: the profiles that there are, and making new ones."""

import asyncio
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from prorsa.cli.options import journal_in
from prorsa.cli.output import narrate, number, print_json, print_table
from prorsa.cluster.profile import Profile, check_profile, load_profile, profile_names
from prorsa.cluster.profiling.writing import profile_toml
from prorsa.cluster.step import RankWork, step_parts
from prorsa.errors import InputError

_SHARES = (0, 1, 2, 4, 8)
"""Ranks that prefill in the steps that ``show`` takes apart, as far as there are so many."""


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What ``prorsa profile fit`` is given."""

    sources: tuple[str, ...]
    for_s: float
    output: Path
    kv_bytes_per_token: int
    chunk_tokens: int
    kv_tokens: int | None
    gpus: int
    model_context: int | None
    request_ms: float
    key_file: Path | None


def list_profiles(*, as_json: bool) -> int:
    """Print the profiles of the package."""
    profiles = [load_profile(name) for name in profile_names()]
    if as_json:
        print_json({"profiles": [_summary(profile) for profile in profiles]})
        return 0
    columns = ("profile", "model", "GPU", "form", "GPUs", "rows", "validated", "flips")
    print_table(columns, [_line(profile) for profile in profiles])
    return 0


def show_profile(name: str, *, as_json: bool) -> int:
    """Print what a profile says and what its steps cost."""
    profile = load_profile(name)
    steps = _steps(profile)
    if as_json:
        print_json(msgspec.to_builtins(profile) | _summary(profile) | {"steps": steps})
        return 0
    print(profile.name)
    for fact, value in _facts(profile):
        print(f"  {fact:20} {value}")
    print(
        f"\nSteps of its {profile.ranks} ranks, of which some prefill a chunk of {profile.chunk_tokens:,} tokens "
        "and the others decode 8 requests at 8,192 tokens:\n"
    )
    print_table(
        ("ranks that prefill", "attention ms", "experts ms", "step ms", "waiting"), [_step_line(step) for step in steps]
    )
    print()
    print("\n".join(textwrap.wrap(profile.provenance, 110)))
    return 0


def make(name: str, model: str, system: str, sizes: Sequence[int], output: Path, chunk_tokens: int | None) -> int:
    """Make a profile from AIConfigurator and write it."""
    from prorsa.cluster.profiling.making import Request, check_form, make_profile
    from prorsa.cluster.profiling.measured import Form

    _check_output(output)
    form = Form(*sizes)
    check_form(form)
    return _write(make_profile(Request(name, model, system, form, chunk_tokens=chunk_tokens)), output)


def fit(options: FitOptions) -> int:
    """Fit a profile to what workers or journals show, and write it."""
    from prorsa.cluster.profiling.live import Known, live_profile, watch
    from prorsa.cluster.router.config import read_secret

    _check_output(options.output)
    known = Known(
        name=options.output.stem,
        kv_bytes_per_token=options.kv_bytes_per_token,
        model_context=options.model_context,
        request_ms=options.request_ms,
    )
    if not all("://" in source for source in options.sources):
        launch, seen = _from_journals(options)
        source = f"the journals {', '.join(options.sources)}"
    else:
        narrate(f"watching {len(options.sources)} workers for {options.for_s:g} s: they must be under load")
        key = read_secret(str(options.key_file) if options.key_file else None, "key_file")
        launch, seen = asyncio.run(watch(options.sources, options.for_s, api_key=key))
        source = f"counters of {len(options.sources)} live workers over {options.for_s:g} s"
    return _write(live_profile(launch, seen, known, source), options.output)


def _from_journals(options: FitOptions) -> tuple[Any, Any]:
    from prorsa.bus.reading import JournalReader
    from prorsa.cluster.profiling.live import Launch
    from prorsa.cluster.profiling.observed import Observed, observe_journal

    seen, capacity = Observed(), options.kv_tokens
    for source in options.sources:
        if "://" in source:
            raise InputError("--from takes workers' URLs or journals, not both: fit a profile of each")
        found = observe_journal(JournalReader(journal_in(Path(source))).read(), options.chunk_tokens)
        seen.prefill += found.prefill
        seen.decode += found.decode
    if capacity is None:
        raise InputError("a journal does not say how the workers were launched: give --kv-tokens, of one worker")
    return Launch("live", "live", options.gpus, capacity, options.chunk_tokens, 256, None), seen


def _check_output(output: Path) -> None:
    if output.suffix != ".toml":
        raise InputError(f"--output {output}: profiles are TOML files, name one that ends in .toml")
    if output.exists():
        raise InputError(f"--output {output}: it is there already, name a new file")
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: there is no folder {output.parent}")


def _write(profile: Profile, output: Path) -> int:
    check_profile(profile)
    output.write_text(profile_toml(profile))
    narrate(f"wrote {output}: {profile.parallel} on {profile.system}, unvalidated (no measured rows)")
    return 0


def _summary(profile: Profile) -> dict[str, object]:
    names = ("name", "model", "system", "parallel", "gpus", "ranks", "matched_rows", "flippable", "why_not_flippable")
    return {name: getattr(profile, name) for name in names} | {"validated": profile.validated}


def _line(profile: Profile) -> tuple[str, ...]:
    return (
        profile.name,
        profile.model,
        profile.system,
        profile.parallel,
        str(profile.gpus),
        str(profile.matched_rows),
        "yes" if profile.validated else "unvalidated",
        "yes" if profile.flippable else "no",
    )


def _facts(profile: Profile) -> list[tuple[str, str]]:
    flips = "yes" if profile.flippable else f"no: {profile.why_not_flippable}"
    rows = f"{profile.matched_rows} measured rows match"
    return [
        ("model", f"{profile.model}, {profile.parallel} on {profile.gpus} × {profile.system}"),
        ("validated", f"yes: {rows}" if profile.validated else f"no: {rows}, 10 are needed"),
        ("flips", flips),
        ("KV of a rank", f"{profile.kv_tokens:,} tokens"),
        ("longest context", f"{profile.max_context:,} tokens"),
        ("requests of a rank", f"{profile.max_running:,} at most"),
        ("range of the data", f"{profile.measured.context_tokens:,} tokens of context, batch {profile.measured.batch}"),
        ("prefill of 8,192", f"{profile.prefill_s(8192) * 1e3:,.0f} ms on one rank"),
        ("a request outside", f"{profile.request_ms:g} ms"),
    ]


def _steps(profile: Profile) -> list[dict[str, float]]:
    """A step by how many ranks prefill a whole chunk in it; the other ranks have 8 requests at 8,192 tokens."""
    decoding = RankWork(batch=8, context_tokens=8 * 8192)
    prefilling = RankWork(chunks=((profile.chunk_tokens, 0),))
    rows = []
    for count in (share for share in _SHARES if share <= profile.ranks):
        parts = step_parts(profile, [prefilling] * count + [decoding] * (profile.ranks - count))
        rows.append(
            {
                "prefilling_ranks": count,
                "attention_ms": max(parts.attention_s) * 1e3,
                "experts_ms": parts.experts_s * 1e3,
                "step_ms": parts.step_s * 1e3,
                "waiting_ratio": parts.waiting_ratio,
            }
        )
    return rows


def _step_line(step: dict[str, float]) -> tuple[str, ...]:
    times = [number(step[name], ",.1f") for name in ("attention_ms", "experts_ms", "step_ms")]
    return (str(step["prefilling_ranks"]), *times, f"{step['waiting_ratio']:.0%}")
