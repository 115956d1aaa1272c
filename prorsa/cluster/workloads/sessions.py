"""Workloads from recorded sessions: CSV files of turns (``docs/workloads.md`` states the form and the rules)."""

import csv
import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

import numpy as np

from prorsa.cluster.profile import Profile
from prorsa.cluster.workloads.limits import Bools, Floats, Ints, check_common, cut, offsets
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import InputError

REQUIRED_COLUMNS: Final = ("session", "turn", "prompt_tokens", "output_tokens", "new_tokens")

BLOCK_TOKENS: Final = 64
"""Prefix caches of the recorded services work in blocks of 64 tokens."""

ROUNDING_TOKENS: Final = 2 * BLOCK_TOKENS
"""A previous prompt that is covered up to fewer tokens than this counts as reused in full: the covered part is rounded
down to whole blocks, and a recorder may leave out the last one."""

GAP_WITHOUT_RECORD_S: Final = 2.0
"""Gap of files that record no gap at all: the median of the ``general`` workload."""

_TOOL_OF_STOP: Final = {"tool_use": "tool", "tool_calls": "tool", "end_turn": "user", "stop": "user"}
_MAX_TOKENS: Final = 2**40


@dataclass(frozen=True, slots=True)
class _Rows:
    """Cells of a session file by column, with the line each row begins on."""

    path: Path
    lines: list[int]
    columns: dict[str, tuple[str, ...]]

    def error(self, row: int, text: str) -> InputError:
        return InputError(f"{self.path}:{self.lines[row]}: {text}")


@dataclass(frozen=True, slots=True, eq=False)
class _Turns:
    """Recorded turns as flat arrays, grouped by session in the order of their first appearance."""

    first_turn: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    new_tokens: Ints
    gap_s: Floats
    tool: Ints
    tools: tuple[str, ...]


def load_sessions(
    path: str | Path,
    *,
    profile: Profile,
    gap_cap_s: float = 60.0,
    seed: int = 0,
    trajectories_per_step: int | None = None,
    max_turns: int | None = None,
    workload: str = "sessions",
) -> Workload:
    """Make a workload of a session file: each session once, in an order shuffled by ``seed``.

    Args:
        path: a ``.csv`` or ``.csv.gz`` file with at least :data:`REQUIRED_COLUMNS`.
        profile: its ``max_context`` truncates sessions, and leaves out those whose first turn does not fit.
        gap_cap_s: longer gaps are cut to this.
        seed: of the order; the sessions themselves are as recorded.
        trajectories_per_step: how many sessions a synchronous step dispatches; None for one asynchronous run.
        max_turns: sessions end as truncated after this many turns; None for no limit.
        workload: the class of the workload.

    Raises:
        InputError: if the file cannot be read, lacks a column, or has a bad row; names the line.
        ConfigError: if another argument is out of range.
    """
    check_common(seed=seed, gap_cap_s=gap_cap_s, max_turns=max_turns)
    turns = _turns(_read(Path(path)))
    ends = cut(turns.first_turn, turns.prompt_tokens, turns.output_tokens, profile.max_context, max_turns)
    dispatched = np.random.default_rng(seed).permutation(np.flatnonzero(ends.turns > 0))
    if not len(dispatched):
        raise InputError(
            f"{path}: no session's first turn fits in {profile.max_context} tokens, what {profile.name} allows; "
            "use another profile"
        )
    pick = _turns_of(dispatched, turns.first_turn, ends.turns)
    count = len(dispatched)
    step = np.arange(count) // (trajectories_per_step or count)
    return Workload(
        first_turn=offsets(ends.turns[dispatched]),
        group=np.full(count, -1),
        step=step,
        sandbox_s=np.zeros(count),
        reward_s=np.zeros(count),
        truncated=ends.truncated[dispatched],
        prompt_tokens=turns.prompt_tokens[pick],
        reuse_tokens=reuse_tokens(turns.first_turn, turns.prompt_tokens, turns.output_tokens, turns.new_tokens)[pick],
        output_tokens=turns.output_tokens[pick],
        gap_s=np.minimum(turns.gap_s, gap_cap_s)[pick],
        tool=turns.tool[pick],
        tools=turns.tools,
        workload=workload,
        sessions_skipped=int(np.sum(ends.turns == 0)),
    )


def reuse_tokens(first_turn: Ints, prompt_tokens: Ints, output_tokens: Ints, new_tokens: Ints) -> Ints:
    """Leading tokens of each prompt that the context before it (previous prompt and output) holds too: int64[T].

    What a file records as new is what the previous *prompt* does not cover, the previous answer included. Where the
    previous prompt is reused in full (up to :data:`ROUNDING_TOKENS`), the conversation goes on, and the answer is
    reused as well; unless the prompt is no longer than the two together: then the answer did not come back as it was
    (its reasoning was dropped), and the previous prompt alone is reused. Elsewhere it is prompt - new.
    """
    before_prompt, before_output = _previous(prompt_tokens), _previous(output_tokens)
    context = before_prompt + before_output
    covered = prompt_tokens - new_tokens
    whole = covered > before_prompt - ROUNDING_TOKENS
    goes_on = np.where(prompt_tokens > context, context, np.minimum(before_prompt, prompt_tokens - 1))
    # A cache answers for all but one token at most: the last one is always computed.
    reuse: Ints = np.minimum(np.where(whole, goes_on, covered), np.minimum(context, prompt_tokens - 1))
    reuse[first_turn[:-1]] = 0
    return reuse


def _previous(values: Ints) -> Ints:
    return np.concatenate(([0], values[:-1]))


def _turns_of(trajectories: Ints, first_turn: Ints, turns: Ints) -> Ints:
    """Indices of the first ``turns`` turns of each of ``trajectories``, in that order."""
    counts = turns[trajectories]
    within: Ints = np.arange(counts.sum()) - np.repeat(offsets(counts)[:-1], counts)
    return within + np.repeat(first_turn[trajectories], counts)


# --- from rows to turns ---------------------------------------------------------------------------------------------


def _turns(rows: _Rows) -> _Turns:
    codes, order, first_turn = _grouped(rows)
    prompt, output, new = (_tokens(rows, name) for name in ("prompt_tokens", "output_tokens", "new_tokens"))
    _check(rows, prompt < 1, "prompt_tokens is 0; a turn has a prompt")
    _check(rows, new > prompt, "new_tokens is more than prompt_tokens; it is a part of the prompt")
    gap_s = _gaps(rows, codes)[order]
    tool, tools = _tools(rows, order, first_turn)
    gap_s[first_turn[:-1]] = 0.0
    # An answer that was recorded as empty still took the one token that ended it.
    return _Turns(first_turn, prompt[order], np.maximum(output, 1)[order], new[order], gap_s, tool, tools)


def _grouped(rows: _Rows) -> tuple[Ints, Ints, Ints]:
    """Session number of each row, the order that groups rows by session, and the offsets of the sessions in it."""
    sessions = rows.columns["session"]
    _check(rows, np.array(sessions) == "", "session is empty; it is needed")
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(name, len(numbers)) for name in sessions], dtype=np.int64)
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    first_turn = offsets(counts)
    expected = np.empty(len(codes), dtype=np.int64)
    expected[order] = np.arange(len(codes)) - np.repeat(first_turn[:-1], counts)
    turn = _tokens(rows, "turn")
    wrong = np.flatnonzero(turn != expected)
    if len(wrong):
        row = int(wrong[0])
        raise rows.error(row, f"turn {turn[row]} of session {sessions[row]!r} where turn {expected[row]} comes next; "
                              "turns count from 0 without holes")  # fmt: skip
    return codes, order, first_turn


def _tokens(rows: _Rows, name: str) -> Ints:
    values = _numbers(rows, name)
    _check(rows, np.isnan(values), f"{name} is empty; it is needed")
    _check(rows, values < 0, f"{name} is negative")
    _check(rows, values > _MAX_TOKENS, f"{name} is out of range")
    _check(rows, values != np.floor(values), f"{name} is not a whole number")
    return values.astype(np.int64)


def _gaps(rows: _Rows, codes: Ints) -> Floats:
    """Seconds of each row; where unknown, the median of the session's known gaps, else of the file's."""
    if "gap_s" not in rows.columns:
        return np.full(len(codes), GAP_WITHOUT_RECORD_S)
    gaps = _numbers(rows, "gap_s")
    _check(rows, gaps < 0, "gap_s is negative; leave it empty where it is unknown")
    known = ~np.isnan(gaps)
    usual = float(np.median(gaps[known])) if known.any() else GAP_WITHOUT_RECORD_S
    for row in np.flatnonzero(~known):
        own = gaps[(codes == codes[row]) & known]
        gaps[row] = np.median(own) if len(own) else usual
    return gaps


def _tools(rows: _Rows, order: Ints, first_turn: Ints) -> tuple[Ints, tuple[str, ...]]:
    """What ran in the gap before each turn (grouped order; -1 for first turns), by what the file records of it."""
    if "next_action" in rows.columns:
        actions = rows.columns["next_action"]
        names = [None, *(actions[row] or "unknown" for row in order[:-1])]
    else:
        stops = rows.columns.get("previous_stop_reason", ("",) * len(order))
        names = [_TOOL_OF_STOP.get(stops[row], stops[row] or "unknown") for row in order]
    for first in first_turn[:-1]:
        names[first] = None
    tools = tuple(sorted({name for name in names if name is not None}))
    index: dict[str | None, int] = {None: -1} | {name: number for number, name in enumerate(tools)}
    return np.array([index[name] for name in names], dtype=np.int64), tools


def _numbers(rows: _Rows, name: str) -> Floats:
    """A column as float64[rows]; empty cells are NaN."""
    cells = [cell or "nan" for cell in rows.columns[name]]
    try:
        values = np.array(cells).astype(np.float64)
    except ValueError:
        row = next(row for row, cell in enumerate(cells) if not _is_number(cell))
        raise rows.error(row, f"{name} is {cells[row]!r}, which is not a number") from None
    spelled = np.array([cell != "" for cell in rows.columns[name]])
    _check(rows, spelled & ~np.isfinite(values), f"{name} is not a finite number; leave it empty where it is unknown")
    return values


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _check(rows: _Rows, wrong: Bools, text: str) -> None:
    if wrong.any():
        raise rows.error(int(np.argmax(wrong)), text)


# --- from files to rows ---------------------------------------------------------------------------------------------


def _read(path: Path) -> _Rows:
    try:
        with _open(path) as file:
            return _parse(path, file)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: {why}; give a CSV file of sessions (.csv or .csv.gz)") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: {error}; give a CSV file of sessions in UTF-8") from error


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _parse(path: Path, file: TextIO) -> _Rows:
    reader = csv.reader(file)
    header = [name.strip() for name in next(reader, [])]
    _check_header(path, header)
    lines: list[int] = []
    cells: list[Sequence[str]] = []
    for row in reader:
        if not row:
            continue
        if len(row) != len(header):
            raise InputError(f"{path}:{reader.line_num}: {len(row)} cells where the header names {len(header)}")
        lines.append(reader.line_num)
        cells.append(row)
    if not cells:
        raise InputError(f"{path}: no turns; give a file with at least one session")
    return _Rows(path, lines, dict(zip(header, zip(*cells, strict=True), strict=True)))


def _check_header(path: Path, header: Sequence[str]) -> None:
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    if missing:
        raise InputError(f"{path}:1: no column {', '.join(missing)}; needed are {', '.join(REQUIRED_COLUMNS)}")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise InputError(f"{path}:1: column {', '.join(repeated)} twice; name each column once")
