"""Fit the statistics that the generated workloads are drawn from, and compare the two.

Reads two public traces (their form: ``docs/workloads.md``) and writes ``prorsa/cluster/workloads/fitted/*.json``:

    python scripts/fit_workloads.py TRACES               # coding-sessions.csv.gz and airline-agent-turns.csv.gz
    python scripts/fit_workloads.py TRACES --compare     # real beside generated, as the table of docs/workloads.md

The fit is deterministic: the same traces give the same files, byte for byte.
"""

import argparse
import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from prorsa.cluster.workloads import fitted
from prorsa.cluster.workloads.fitted import Action, Correlations, Fitted, LogNormal, Steps, Table
from prorsa.cluster.workloads.limits import cut, offsets
from prorsa.cluster.workloads.sessions import ROUNDING_TOKENS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FIT_CONTEXT: Final = 163_840
"""Turns beyond the longest context of the models that Prorsa has latency data for are left out of the fit."""

TURNS_CONTEXT: Final = 140_000
"""The recorded agents' own limit ends sessions more and more beyond this; below it, sessions end when they are done."""

SCORES: Final = np.arange(-16, 17) / 4
CDF: Final = np.array([NormalDist().cdf(z) for z in SCORES])
BUCKETS: Final = (0, 1, 2, 4, 9, 30)
MIN_SAMPLES: Final = 60
"""A bucket of an action with fewer samples than this takes the action's pooled table."""

GAP_EDGES_S: Final = (60.0, 300.0)
ANSWER_EDGES: Final = (100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0)
CONTEXT_EDGES: Final = (60_000.0, 100_000.0, 120_000.0, 140_000.0, 150_000.0, 157_000.0)
REWRITE_TOKENS: Final = 256
"""A prompt that misses no more than this of the previous one counts as one whose answer was dropped."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Turns of a trace, grouped by session; float64[T] but for the last two, with the values of the turn before."""

    session: Ints
    turn: Ints
    prompt: Floats
    output: Floats
    new: Floats
    gap_s: Floats
    action: Ints
    names: tuple[str, ...]

    @property
    def first(self) -> Bools:
        return self.turn == 0

    def before(self, values: Floats | Ints) -> Floats:
        return np.where(self.first, np.nan, np.roll(values, 1))


def read(path: Path) -> dict[str, list[str]]:
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def numbers(cells: Sequence[str]) -> Floats:
    return np.array([cell or "nan" for cell in cells]).astype(float)


def trace(columns: dict[str, list[str]], actions: Sequence[str]) -> Trace:
    names = tuple(dict.fromkeys(actions))
    turn = numbers(columns["turn"]).astype(int)
    return Trace(
        session=np.cumsum(turn == 0) - 1,
        turn=turn,
        prompt=numbers(columns["prompt_tokens"]),
        output=np.maximum(1.0, numbers(columns["output_tokens"])),
        new=numbers(columns["new_tokens"]),
        gap_s=numbers(columns["gap_s"]) if "gap_s" in columns else np.full(len(turn), np.nan),
        action=np.array([names.index(action) for action in actions]),
        names=names,
    )


def select(whole: Trace, keep: Bools) -> Trace:
    picked = {name: getattr(whole, name)[keep] for name in whole.__dataclass_fields__ if name != "names"}
    return Trace(**picked, names=whole.names)


# --- pieces of the fit ----------------------------------------------------------------------------------------------


def table(samples: Floats) -> Table:
    """Quantiles at the scores, and 4 significant digits of them."""
    return Table(values=tuple(float(f"{value:.4g}") for value in np.quantile(samples, CDF)))


def share(mask: Bools, among: Bools) -> float:
    return round(float(np.sum(mask & among) / max(1, np.sum(among))), 4)


def steps(edges: Sequence[float], x: Floats, event: Bools, among: Bools) -> Steps:
    """Frequencies of an event by the value of ``x``."""
    cell = np.searchsorted(edges, x, side="right")
    return Steps(tuple(edges), tuple(share(event, among & (cell == i)) for i in range(len(edges) + 1)))


def bucketed(turn: Ints, samples: Floats, among: Bools) -> tuple[Table, ...]:
    cell = np.searchsorted(BUCKETS, turn, side="right") - 1
    parts = [samples[among & (cell == i)] for i in range(len(BUCKETS))]
    return tuple(table(part if len(part) >= MIN_SAMPLES else samples[among]) for part in parts)


def natural_turns(turns: Ints, cut_off: Bools) -> Table:
    """Kaplan and Meier's estimate of the number of turns, where sessions that meet the limit are censored."""
    lengths = np.arange(1, turns.max() + 1)
    at_risk = np.array([np.sum(turns >= n) for n in lengths])
    ended = np.array([np.sum((turns == n) & ~cut_off) for n in lengths])
    cdf = 1 - np.cumprod(1 - ended / at_risk)
    inside = np.minimum(np.searchsorted(cdf, CDF, side="left"), len(lengths) - 1)
    return Table(values=tuple(float(value) for value in lengths[inside]))


def normal_ranks(values: Floats, among: Bools) -> Floats:
    """Standard-normal scores of the ranks of ``values``; NaN outside ``among``. Ties are broken by order."""
    scores = np.full(len(values), np.nan)
    ranks = np.argsort(np.argsort(values[among], kind="stable"), kind="stable")
    inverse = NormalDist().inv_cdf
    scores[among] = [inverse((rank + 0.5) / len(ranks)) for rank in ranks]
    return scores


def session_means(scores: Floats, session: Ints, sessions: int) -> Floats:
    known = ~np.isnan(scores)
    counts = np.bincount(session[known], minlength=sessions)
    sums = np.bincount(session[known], scores[known], minlength=sessions)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def explained(scores: Floats, session: Ints, means: Floats) -> float:
    """Share of the variance between sessions (one-way analysis of variance)."""
    known = ~np.isnan(scores)
    within = np.sum((scores[known] - means[session[known]]) ** 2) / (known.sum() - np.sum(~np.isnan(means)))
    return round(float(max(0.0, 1 - within / np.var(scores[known]))), 3)


def correlations(data: Trace, appended: Floats, goes_on: Bools, lengths: Ints) -> Correlations:
    sessions = len(lengths)
    gap_known = ~data.first & ~np.isnan(data.gap_s)
    scores = [
        normal_ranks(appended, goes_on),
        normal_ranks(data.output, np.ones(len(data.turn), bool)),
        normal_ranks(data.gap_s, gap_known),
    ]
    means = [session_means(score, data.session, sessions) for score in scores]
    own = [score - mean[data.session] for score, mean in zip(scores, means, strict=True)]
    both = goes_on & gap_known
    everyone = np.ones(sessions, bool)
    columns = [normal_ranks(data.prompt[data.first], everyone), normal_ranks(lengths.astype(float), everyone), *means]
    enough = np.all(~np.isnan(columns), axis=0) & (lengths > 5)
    matrix = np.corrcoef(np.array(columns)[:, enough]) if gap_known.any() else np.eye(5)
    # The tables are pooled over turns, where long sessions weigh more: tied to the number of turns, effects would shift
    # what the tables give.
    matrix[1, 2:] = matrix[2:, 1] = 0.0
    second = goes_on & (data.turn == 1)
    firsts = normal_ranks(data.prompt[data.first], everyone)[data.session]
    return Correlations(
        trajectory=tuple(tuple(round(float(value), 3) for value in row) for row in matrix),
        appended=explained(scores[0], data.session, means[0]),
        output=explained(scores[1], data.session, means[1]),
        gap=explained(scores[2], data.session, means[2]) if gap_known.any() else 0.0,
        first_appended=round(float(np.corrcoef(firsts[second], normal_ranks(appended, second)[second])[0, 1]), 3),
        gap_appended=round(float(np.corrcoef(own[0][both], own[2][both])[0, 1]), 3) if both.any() else 0.0,
    )


# --- the two workloads ----------------------------------------------------------------------------------------------


def fit_coding(folder: Path) -> Fitted:
    columns = read(folder / "coding-sessions.csv.gz")
    # An answer whose stop reason is unknown counts as one that called a tool, as 94 % of the known ones do.
    whole = trace(columns, ["user" if stop == "end_turn" else "tool" for stop in columns["stop_reason"]])
    whole_lengths = np.bincount(whole.session)
    ends = cut(offsets(whole_lengths), whole.prompt.astype(int), whole.output.astype(int), FIT_CONTEXT)
    data = select(whole, ends.kept)
    early = cut(offsets(whole_lengths), whole.prompt.astype(int), whole.output.astype(int), TURNS_CONTEXT)
    session = np.unique(data.session, return_inverse=True)[1]
    data = Trace(**{**data.__dict__, "session": session})
    before, answer = data.before(data.prompt), data.before(data.output)
    tool = np.where(data.first, -1, np.roll(data.action, 1))
    missed = before - (data.prompt - data.new)
    later = ~data.first
    goes_on = later & (missed < ROUNDING_TOKENS) & (data.prompt > before + answer)
    compacted = later & (missed >= REWRITE_TOKENS) & (data.prompt < before)
    rewritten = later & (missed >= REWRITE_TOKENS) & ~compacted
    dropped = later & ~goes_on & ~compacted & ~rewritten
    appended = data.prompt - before - answer
    kept = (data.prompt - data.new) / np.minimum(data.prompt, before)
    gap_known = later & ~np.isnan(data.gap_s)
    actions = []
    for number, name in enumerate(data.names):
        here, after = data.action == number, tool == number
        following = after & later
        actions.append(
            Action(
                name=name,
                start=share(here, data.first),
                next=tuple(share(data.action == other, following) for other in range(len(data.names))),
                output=bucketed(data.turn, data.output, here),
                appended=bucketed(data.turn, appended, after & goes_on),
                gap_s=table(data.gap_s[after & gap_known]),
                rewritten=steps(GAP_EDGES_S, data.gap_s, rewritten, after & gap_known & (data.turn > 1)),
            )
        )
    return Fitted(
        name="coding",
        provenance=(
            "Fitted by scripts/fit_workloads.py to 484 coding-agent sessions derived from the public repository "
            "callanjfox/kv-cache-tester (traces/*.json, Apache-2.0). Not in the data and assumed: sandbox_s, reward_s."
        ),
        scores=tuple(SCORES.tolist()),
        first_prompt=tuple(np.rint(np.quantile(whole.prompt[whole.first], np.linspace(0, 1, 81))).tolist()),
        turns=natural_turns(early.turns[early.turns > 0], early.truncated[early.turns > 0]),
        buckets=BUCKETS,
        actions=tuple(actions),
        correlations=correlations(data, appended, goes_on, np.bincount(data.session)),
        answer_dropped=steps(ANSWER_EDGES, answer, dropped, dropped | goes_on),
        dropped_growth=table(np.maximum(0.0, (data.prompt - before) / answer)[dropped]),
        first_rewritten=share(rewritten, data.turn == 1),
        rewritten_kept=table(kept[rewritten]),
        compacted=steps(CONTEXT_EDGES, before + answer, compacted, later),
        compacted_size=table((data.prompt / before)[compacted]),
        compacted_kept=table(kept[compacted]),
        sandbox_s=LogNormal(median_s=5.0, p99_s=45.0),
        reward_s=LogNormal(median_s=12.0, p99_s=90.0),
    )


RELATIVE_DURATION: Final = {"user": 2.0, "search_direct_flight": 2.0, "search_onestop_flight": 4.0, "think": 0.2,
                            "calculate": 0.2, "book_reservation": 1.5}  # fmt: skip
"""Assumed durations of the general agent's tools, as the trace has no times: relative medians, 1 where not named."""

GAP_MEDIAN_S: Final = 2.0
GAP_P90_S: Final = 10.0


def general_gaps(shares: Floats, relative: Floats) -> list[Table]:
    """Lognormal gaps of each action, such that all together have the median and 90th percentile given above."""
    normal = NormalDist()

    def mixture(log_s: float, shift: float, sigma: float) -> float:
        return float(
            sum(w * normal.cdf((log_s - shift - np.log(r)) / sigma) for w, r in zip(shares, relative, strict=True))
        )

    def shift_for(sigma: float) -> float:
        low, high = -10.0, 10.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if mixture(np.log(GAP_MEDIAN_S), middle, sigma) > 0.5 else (low, middle)
        return low

    low, high = 0.1, 5.0
    for _ in range(60):
        sigma = (low + high) / 2
        wide = mixture(np.log(GAP_P90_S), shift_for(sigma), sigma) < 0.9
        low, high = (low, sigma) if wide else (sigma, high)
    shift = shift_for(sigma)
    return [Table(tuple(float(f"{v:.5g}") for v in r * np.exp(shift + sigma * SCORES))) for r in relative]


def fit_general(folder: Path) -> Fitted:
    columns = read(folder / "airline-agent-turns.csv.gz")
    counts = {name: columns["next_action"].count(name) for name in columns["next_action"]}
    # A transfer to a person ends the conversation with the agent, as the user's last word does.
    merged = ["user" if name.startswith("transfer") else name if counts[name] > 10 else "other"
              for name in columns["next_action"]]  # fmt: skip
    data = trace(columns, merged)
    later = ~data.first
    before, answer = data.before(data.prompt), data.before(data.output)
    appended = data.prompt - before - answer
    tool = np.where(data.first, -1, np.roll(data.action, 1))
    shares = np.bincount(tool[later], minlength=len(data.names)) / later.sum()
    gaps = general_gaps(shares, np.array([RELATIVE_DURATION.get(name, 1.0) for name in data.names]))
    none, zeros = Steps((), (0.0,)), Table((0.0,) * len(SCORES))
    actions = tuple(
        Action(
            name=name,
            start=share(data.action == number, data.first),
            next=tuple(share(data.action == other, later & (tool == number)) for other in range(len(data.names))),
            output=(table(data.output[data.action == number]),),
            appended=(table(appended[tool == number]),),
            gap_s=gaps[number],
            rewritten=none,
        )
        for number, name in enumerate(data.names)
    )
    lengths = np.bincount(data.session)
    return Fitted(
        name="general",
        provenance=(
            "Sizes, turns and tools fitted by scripts/fit_workloads.py to 200 trajectories of sierra-research/tau-bench "
            "(historical_trajectories/gpt-4o-airline.json, MIT; tokens are characters / 4). Not in the data and "
            "assumed: gaps (lognormal, median 2 s, 90th percentile 10 s over all tools), reward_s; no sandbox."
        ),
        scores=tuple(SCORES.tolist()),
        first_prompt=tuple(np.rint(np.quantile(data.prompt[data.first], np.linspace(0, 1, 81))).tolist()),
        turns=natural_turns(lengths, np.zeros(len(lengths), bool)),
        buckets=(0,),
        actions=actions,
        correlations=correlations(data, appended, later, lengths),
        answer_dropped=none,
        dropped_growth=zeros,
        first_rewritten=0.0,
        rewritten_kept=zeros,
        compacted=none,
        compacted_size=zeros,
        compacted_kept=zeros,
        sandbox_s=None,
        reward_s=LogNormal(median_s=0.5, p99_s=3.0),
    )


def write(statistics: Fitted) -> None:
    folder = Path(fitted.__file__).parent / "fitted"
    text = msgspec.json.format(msgspec.json.encode(statistics), indent=0)
    (folder / f"{statistics.name}.json").write_bytes(text + b"\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    folder = parser.parse_args().traces
    write(fit_coding(folder))
    write(fit_general(folder))
