"""Profiles as TOML text, for files that people read."""

import json
import textwrap
from typing import Final

from prorsa.cluster.profile import Experts, Fit, Point, Profile, Range

_COMMENTS: Final = {
    "kv_tokens": "of one rank",
    "kv_bytes_per_token": "a GPU",
    "chunk_tokens": "of one rank and step",
    "max_running": "of one rank",
    "kv_transfer_gb_s": "one 400 Gb/s port a GPU at 80 % of its line rate",
}
_WIDTH: Final = 110


def profile_toml(profile: Profile) -> str:
    """The profile as a TOML document that `load_profile` reads back as it was."""
    lines, sections = [], []
    for name in profile.__struct_fields__:
        value = getattr(profile, name)
        if isinstance(value, Fit | Range | Experts):
            sections += _section(name, value)
        elif name == "provenance":
            lines += _paragraph(name, value)
        elif value is not None:
            comment = f"  # {_COMMENTS[name]}" if name in _COMMENTS else ""
            lines.append(f"{name} = {json.dumps(value)}{comment}")
    return "\n".join(lines + sections) + "\n"


def _section(name: str, part: Fit | Range | Experts) -> list[str]:
    values = {key: getattr(part, key) for key in part.__struct_fields__}
    if isinstance(part, Fit) and not part.window_tokens:
        values = {key: value for key, value in values.items() if key not in {"d_ms", "window_tokens"}}
    if isinstance(part, Experts):
        values = {key: points for key, points in values.items() if points}
    rows = [
        f"{key} = {_table(value) if isinstance(value, tuple) else json.dumps(value)}" for key, value in values.items()
    ]
    return ["", f"[{name}]", *rows] if rows else []


def _table(points: tuple[Point, ...]) -> str:
    cells = ", ".join(f"[{tokens:g}, {ms:g}]" for tokens, ms in points)
    return "[\n" + textwrap.fill(cells, _WIDTH, initial_indent="  ", subsequent_indent="  ") + ",\n]"


def _paragraph(name: str, text: str) -> list[str]:
    """A multi-line string whose line ends are escaped, so that it reads back as one line."""
    quoted = json.dumps(text, ensure_ascii=False)[1:-1]
    wrapped = textwrap.wrap(quoted, _WIDTH, break_long_words=False)
    return [f'{name} = """\\', *(f"{line} \\" for line in wrapped[:-1]), f'{wrapped[-1]}"""']
