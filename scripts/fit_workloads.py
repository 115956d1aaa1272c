"""Fit the statistics that the generated workloads are drawn from, and compare the two.

Reads two public traces (their form: ``docs/workloads.md``) and writes ``prorsa/cluster/workloads/fitted/*.json``:

    python scripts/fit_workloads.py TRACES               # coding-sessions.csv.gz and airline-agent-turns.csv.gz
    python scripts/fit_workloads.py TRACES --compare     # real beside generated, as the table of docs/workloads.md
    python scripts/fit_workloads.py TRACES --compare --plots docs/pictures    # and its pictures

The fit is deterministic: the same traces give the same files, byte for byte.
"""

import argparse
import csv
import gzip
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np
from scipy.stats import rankdata

from prorsa.cluster.profile import load_profile
from prorsa.cluster.workloads import fitted
from prorsa.cluster.workloads.fitted import Action, Correlations, Fitted, LogNormal, Siblings, Steps, Table
from prorsa.cluster.workloads.generators import generate
from prorsa.cluster.workloads.limits import Bools, Cut, Floats, Ints, cut, offsets
from prorsa.cluster.workloads.sessions import ROUNDING_TOKENS, load_sessions
from prorsa.cluster.workloads.workload import Workload

CODING: Final = "coding-sessions.csv.gz"
GENERAL: Final = "airline-agent-turns.csv.gz"

FIT_CONTEXT: Final = 163_840
"""Turns beyond the longest context of the models that Prorsa has latency data for are left out of the fit."""

TURNS_CONTEXT: Final = 140_000
"""The recorded agents' own limit ends sessions more and more beyond this; below it, sessions end when they are done."""

SCORES: Final = np.arange(-16, 17) / 4
CDF: Final = np.array([NormalDist().cdf(z) for z in SCORES])
BUCKETS: Final = (0, 1, 2, 4, 9, 30)
MIN_SAMPLES: Final = 60
"""A bucket of an action with fewer samples than this takes the action's pooled table."""

MIN_CALLS: Final = 10
"""Tools of the general agent that are called less often than this are one."""

LARGE_TURN_TOKENS: Final = 20_000
"""Turns that compute more than this are the tail of which the comparison gives the share."""

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


def spaced(samples: Floats) -> tuple[float, ...]:
    """Quantiles at 81 equally spaced probabilities from 0 to 1."""
    return tuple(np.rint(np.quantile(samples, np.linspace(0, 1, 81))).tolist())


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
    if not known.any():
        return 0.0
    within = np.sum((scores[known] - means[session[known]]) ** 2) / (known.sum() - np.sum(~np.isnan(means)))
    return round(float(max(0.0, 1 - within / np.var(scores[known]))), 3)


def session_correlations(data: Trace, means: Sequence[Floats]) -> Floats:
    """5 x 5: first prompt, turns, and the session means of the scores; the turns only with the first prompt.

    The tables are pooled over turns, where long sessions weigh more: tied to the number of turns, the effects would
    shift what the tables give.
    """
    lengths = np.bincount(data.session)
    everyone = np.ones(len(lengths), bool)
    columns = [normal_ranks(data.prompt[data.first], everyone), normal_ranks(lengths.astype(float), everyone), *means]
    known = [column for column in columns if not np.isnan(column).all()]
    enough = np.all(~np.isnan(known), axis=0) & (lengths > 5)
    matrix = np.eye(5)
    matrix[: len(known), : len(known)] = np.corrcoef(np.array(known)[:, enough])
    matrix[1, 2:] = matrix[2:, 1] = 0.0
    return matrix


def correlations(data: Trace, appended: Floats, goes_on: Bools) -> Correlations:
    sessions = int(data.session[-1]) + 1
    gap_known = ~data.first & ~np.isnan(data.gap_s)
    scores = [
        normal_ranks(appended, goes_on),
        normal_ranks(data.output, np.ones(len(data.turn), bool)),
        normal_ranks(data.gap_s, gap_known),
    ]
    means = [session_means(score, data.session, sessions) for score in scores]
    own = [score - mean[data.session] for score, mean in zip(scores, means, strict=True)]
    second = goes_on & (data.turn == 1)
    firsts = normal_ranks(data.prompt[data.first], np.ones(sessions, bool))[data.session]
    return Correlations(
        trajectory=tuple(tuple(round(float(value), 3) for value in row) for row in session_correlations(data, means)),
        appended=explained(scores[0], data.session, means[0]),
        output=explained(scores[1], data.session, means[1]),
        gap=explained(scores[2], data.session, means[2]),
        first_appended=correlation(firsts, normal_ranks(appended, second), second),
        gap_appended=correlation(own[0], own[2], goes_on & gap_known),
    )


def correlation(a: Floats, b: Floats, among: Bools) -> float:
    """Correlation, 0 where there is nothing to correlate."""
    return round(float(np.corrcoef(a[among], b[among])[0, 1]), 3) if among.any() else 0.0


# --- siblings -------------------------------------------------------------------------------------------------------

TASKS: Final = 50
"""The general trace is of 50 tasks, each tried 4 times: session i is of task i mod 50. The first prompts say so too."""

ASSUMED_SIBLINGS: Final = 0.5
"""Correlation of siblings in what no trace times: their tools run in the same repository or on the same database, their
sandboxes start from the same image, and their rewards run the same tests; what is left is the load of the moment."""


def sibling_correlation(values: Floats, share_of_variance: float = 1.0) -> float:
    """Correlation between tries of a task, by one-way analysis of variance.

    Args:
        values: a score of each session, with variance 1; or the means of its turns' scores.
        share_of_variance: of the turns' scores that the sessions' effects explain; the noise of the means is not
            shared between siblings.
    """
    tries = values.reshape(-1, TASKS)
    between = len(tries) * np.var(tries.mean(axis=0), ddof=1)
    within = np.mean(np.var(tries, axis=0, ddof=1))
    return round(float(np.clip((between - within) / len(tries) / share_of_variance, 0.0, 0.95)), 2)


def siblings(folder: Path) -> Siblings:
    data = general_trace(folder)
    everything = np.ones(len(data.turn), bool)
    lengths = np.bincount(data.session).astype(float)
    later = ~data.first
    appended = normal_ranks(prompts(data).appended, later)
    output = normal_ranks(data.output, everything)
    means = [session_means(scores, data.session, len(lengths)) for scores in (appended, output)]
    return Siblings(
        turns=sibling_correlation(normal_ranks(lengths, np.ones(len(lengths), bool))),
        appended=sibling_correlation(means[0], explained(appended, data.session, means[0])),
        output=sibling_correlation(means[1], explained(output, data.session, means[1])),
        gap=ASSUMED_SIBLINGS,
        sandbox=ASSUMED_SIBLINGS,
        reward=ASSUMED_SIBLINGS,
    )


# --- the two workloads ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prompts:
    """How each prompt follows from the context before it: the kinds of the model, bool[T], and sizes, float64[T]."""

    goes_on: Bools
    dropped: Bools
    rewritten: Bools
    compacted: Bools
    tool: Ints
    before: Floats
    answer: Floats
    appended: Floats
    kept: Floats


def prompts(data: Trace) -> Prompts:
    before, answer = data.before(data.prompt), data.before(data.output)
    missed = before - (data.prompt - data.new)
    later = ~data.first
    goes_on = later & (missed < ROUNDING_TOKENS) & (data.prompt > before + answer)
    compacted = later & (missed >= REWRITE_TOKENS) & (data.prompt < before)
    rewritten = later & (missed >= REWRITE_TOKENS) & ~compacted
    return Prompts(
        goes_on=goes_on,
        dropped=later & ~goes_on & ~compacted & ~rewritten,
        rewritten=rewritten,
        compacted=compacted,
        tool=np.where(data.first, -1, np.roll(data.action, 1)),
        before=before,
        answer=answer,
        appended=data.prompt - before - answer,
        kept=(data.prompt - data.new) / np.minimum(data.prompt, before),
    )


def limited(whole: Trace, max_context: int) -> tuple[Trace, Cut]:
    """The turns that a limit of context leaves, and where it cuts the sessions."""
    ends = cut(offsets(np.bincount(whole.session)), whole.prompt.astype(int), whole.output.astype(int), max_context)
    kept = select(whole, ends.kept)
    return replace(kept, session=np.unique(kept.session, return_inverse=True)[1]), ends


def coding_action(data: Trace, seen: Prompts, number: int) -> Action:
    here, after = data.action == number, seen.tool == number
    timed = after & ~np.isnan(data.gap_s)
    return Action(
        name=data.names[number],
        start=share(here, data.first),
        next=tuple(share(data.action == other, after) for other in range(len(data.names))),
        output=bucketed(data.turn, data.output, here),
        appended=bucketed(data.turn, seen.appended, after & seen.goes_on),
        gap_s=table(data.gap_s[timed]),
        rewritten=steps(GAP_EDGES_S, data.gap_s, seen.rewritten, timed & (data.turn > 1)),
    )


def fit_coding(folder: Path) -> Fitted:
    columns = read(folder / CODING)
    # An answer whose stop reason is unknown counts as one that called a tool, as 94 % of the known ones do.
    whole = trace(columns, ["user" if stop == "end_turn" else "tool" for stop in columns["stop_reason"]])
    data, _ = limited(whole, FIT_CONTEXT)
    _, ends = limited(whole, TURNS_CONTEXT)
    seen = prompts(data)
    return Fitted(
        name="coding",
        provenance=(
            "Fitted by scripts/fit_workloads.py to 484 coding-agent sessions derived from the public repository "
            "callanjfox/kv-cache-tester (traces/*.json, Apache-2.0). Not in the data and assumed: sandbox_s, reward_s, "
            "siblings (turns, appended and output as in the general workload)."
        ),
        scores=tuple(SCORES.tolist()),
        first_prompt=spaced(whole.prompt[whole.first]),
        turns=natural_turns(ends.turns[ends.turns > 0], ends.truncated[ends.turns > 0]),
        buckets=BUCKETS,
        actions=tuple(coding_action(data, seen, number) for number in range(len(data.names))),
        correlations=correlations(data, seen.appended, seen.goes_on),
        siblings=siblings(folder),
        answer_dropped=steps(ANSWER_EDGES, seen.answer, seen.dropped, seen.dropped | seen.goes_on),
        dropped_growth=table(np.maximum(0.0, (data.prompt - seen.before) / seen.answer)[seen.dropped]),
        first_rewritten=share(seen.rewritten, data.turn == 1),
        rewritten_kept=table(seen.kept[seen.rewritten]),
        compacted=steps(CONTEXT_EDGES, seen.before + seen.answer, seen.compacted, ~data.first),
        compacted_size=table((data.prompt / seen.before)[seen.compacted]),
        compacted_kept=table(seen.kept[seen.compacted]),
        sandbox_s=LogNormal(median_s=5.0, p99_s=45.0),
        reward_s=LogNormal(median_s=12.0, p99_s=90.0),
    )


RELATIVE_DURATION: Final = {"user": 2.0, "search_direct_flight": 2.0, "search_onestop_flight": 4.0, "think": 0.2,
                            "calculate": 0.2, "book_reservation": 1.5}  # fmt: skip
"""Assumed durations of the general agent's tools, as the trace has no times: relative medians, 1 where not named."""

GAP_MEDIAN_S: Final = 2.0
GAP_P90_S: Final = 10.0


def bisect(low: float, high: float, too_high: Callable[[float], bool]) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if too_high(middle) else (middle, high)
    return (low + high) / 2


def gap_shares(data: Trace) -> Floats:
    """Shares of the actions in the gaps of generated trajectories, which a chain of actions makes."""
    kinds = range(len(data.names))
    later = ~data.first
    tool = np.where(data.first, -1, np.roll(data.action, 1))
    chain = np.array([[share(data.action == b, later & (tool == a)) for b in kinds] for a in kinds])
    now = np.array([share(data.action == a, data.first) for a in kinds])
    total = np.zeros(len(kinds))
    for turn in range(1, int(data.turn.max()) + 1):
        total += now * np.sum(data.turn == turn)
        now = now @ chain
    return total / total.sum()


def general_gaps(shares: Floats, relative: Floats) -> list[Table]:
    """Lognormal gaps of each action, such that all together have the median and 90th percentile given above."""
    normal = NormalDist()

    def below(gap_s: float, shift: float, sigma: float) -> float:
        scores = (np.log(gap_s) - shift - np.log(relative)) / sigma
        return float(np.dot(shares, [normal.cdf(score) for score in scores]))

    def shift_for(sigma: float) -> float:
        return bisect(-10.0, 10.0, lambda shift: below(GAP_MEDIAN_S, shift, sigma) < 0.5)

    sigma = bisect(0.1, 5.0, lambda wide: below(GAP_P90_S, shift_for(wide), wide) < 0.9)
    shift = shift_for(sigma)
    return [Table(tuple(float(f"{v:.5g}") for v in factor * np.exp(shift + sigma * SCORES))) for factor in relative]


NONE: Final = Steps((), (0.0,))


def general_action(data: Trace, seen: Prompts, number: int, gap_s: Table) -> Action:
    here, after = data.action == number, seen.tool == number
    return Action(
        name=data.names[number],
        start=share(here, data.first),
        next=tuple(share(data.action == other, after) for other in range(len(data.names))),
        output=(table(data.output[here]),),
        appended=(table(seen.appended[after]),),
        gap_s=gap_s,
        rewritten=NONE,
    )


def general_trace(folder: Path) -> Trace:
    columns = read(folder / GENERAL)
    counts = Counter(columns["next_action"])
    # A transfer to a person ends the conversation with the agent, as the user's last word does.
    calls = ["user" if name.startswith("transfer") else name for name in columns["next_action"]]
    return trace(columns, [name if counts[name] >= MIN_CALLS else "other" for name in calls])


def fit_general(folder: Path) -> Fitted:
    data = general_trace(folder)
    seen = prompts(data)
    later = ~data.first
    kinds = range(len(data.names))
    gaps = general_gaps(gap_shares(data), np.array([RELATIVE_DURATION.get(name, 1.0) for name in data.names]))
    lengths = np.bincount(data.session)
    nothing = Table((0.0,) * len(SCORES))
    return Fitted(
        name="general",
        provenance=(
            "Sizes, turns and tools fitted by scripts/fit_workloads.py to 200 trajectories of sierra-research/"
            "tau-bench (historical_trajectories/gpt-4o-airline.json, MIT; tokens are characters / 4). Not in the data "
            "and assumed: gaps (lognormal, median 2 s, 90th percentile 10 s over all tools), reward_s, "
            "siblings' gap, sandbox and reward; no sandbox."
        ),
        scores=tuple(SCORES.tolist()),
        first_prompt=spaced(data.prompt[data.first]),
        turns=natural_turns(lengths, np.zeros(len(lengths), bool)),
        buckets=(0,),
        actions=tuple(general_action(data, seen, number, gaps[number]) for number in kinds),
        correlations=correlations(data, seen.appended, later),
        siblings=siblings(folder),
        answer_dropped=NONE,
        dropped_growth=nothing,
        first_rewritten=0.0,
        rewritten_kept=nothing,
        compacted=NONE,
        compacted_size=nothing,
        compacted_kept=nothing,
        sandbox_s=None,
        reward_s=LogNormal(median_s=0.5, p99_s=3.0),
    )


def write(statistics: Fitted) -> None:
    folder = Path(fitted.__file__).parent / "fitted"
    (folder / f"{statistics.name}.json").write_bytes(msgspec.json.encode(statistics) + b"\n")


# --- real beside generated ------------------------------------------------------------------------------------------


def measures(workload: Workload) -> dict[str, Floats]:
    later = np.ones(workload.turns, bool)
    later[workload.first_turn[:-1]] = False
    computed = workload.prompt_tokens - workload.reuse_tokens
    starts = workload.first_turn[:-1]
    return {
        "turns": np.diff(workload.first_turn).astype(float),
        "first prompt": workload.prompt_tokens[~later].astype(float),
        "prompt": workload.prompt_tokens.astype(float),
        "output": workload.output_tokens.astype(float),
        "computed, later turns": computed[later].astype(float),
        "computed a trajectory": np.add.reduceat(computed, starts).astype(float),
        "output a trajectory": np.add.reduceat(workload.output_tokens, starts).astype(float),
        "gap, s": workload.gap_s[later],
    }


def tail_share(workload: Workload) -> float:
    computed = workload.prompt_tokens - workload.reuse_tokens
    return float(computed[computed > LARGE_TURN_TOKENS].sum() / computed.sum())


def compare(folder: Path, name: str, file: str) -> None:
    profile = load_profile("qwen3-32b-h200-tp2")
    real = load_sessions(folder / file, profile=profile)
    generated = generate(name, profile=profile, trajectories=4096, seed=0)
    print(f"\n| {name} | real p50 | p90 | mean | generated p50 | p90 | mean |\n|---|---|---|---|---|---|---|")
    other = measures(generated)
    for label, values in measures(real).items():
        cells = [
            f"{f(v):,.4g}" for v in (values, other[label]) for f in (np.median, lambda v: np.quantile(v, 0.9), np.mean)
        ]
        print(f"| {label} | {' | '.join(cells)} |")
    for label, f in (("truncated", lambda w: np.mean(w.truncated)), ("tail share", tail_share)):
        print(f"| {label} | | | {f(real):.1%} | | | {f(generated):.1%} |")


# --- pictures -------------------------------------------------------------------------------------------------------

REAL_COLOUR: Final = "#0072B2"
GENERATED_COLOUR: Final = "#D55E00"

PANELS: Final = (
    ("turns", "turns of a trajectory"),
    ("first prompt", "tokens of the first prompt"),
    ("computed, later turns", "new tokens of a later turn"),
    ("output", "output tokens of a turn"),
    ("gap, s", "gap before a turn, s"),
    ("computed a trajectory", "new tokens of a trajectory"),
)

TURN_COLUMNS: Final = ("turn", "prompt", "new tokens", "output", "gap")
TRAJECTORY_COLUMNS: Final = ("first prompt", "turns", "mean new", "mean output", "mean gap")


def turn_columns(workload: Workload) -> list[Floats]:
    """Of later turns: position, prompt, new tokens, output, gap before it."""
    position = np.arange(workload.turns) - np.repeat(workload.first_turn[:-1], np.diff(workload.first_turn))
    new = workload.prompt_tokens - workload.reuse_tokens
    columns = (position, workload.prompt_tokens, new, workload.output_tokens, workload.gap_s)
    return [column[position > 0].astype(float) for column in columns]


def trajectory_columns(workload: Workload) -> list[Floats]:
    """First prompt, turns, and means of the logarithms over later turns, of trajectories with at least 5 turns."""
    turns = np.diff(workload.first_turn)
    later = np.arange(workload.turns) != np.repeat(workload.first_turn[:-1], turns)
    new = workload.prompt_tokens - workload.reuse_tokens

    def mean(values: Floats | Ints) -> Floats:
        return np.add.reduceat(np.where(later, np.log1p(values), 0.0), workload.first_turn[:-1]) / np.maximum(
            turns - 1, 1
        )

    columns = (workload.prompt_tokens[~later], turns, mean(new), mean(workload.output_tokens), mean(workload.gap_s))
    return [column[turns >= 5].astype(float) for column in columns]


def rank_correlations(columns: Sequence[Floats]) -> Floats:
    """Spearman's; NaN for what does not vary."""
    ranks = np.array([rankdata(column) for column in columns])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.corrcoef(ranks)


def draw_distributions(name: str, real: Workload, generated: Workload, timed: bool, path: Path) -> None:
    """Shares of values above x, both axes logarithmic where tails are heavy: as they matter for load."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter, NullFormatter

    figure, axes = plt.subplots(2, 3, figsize=(11, 6.2), layout="constrained")
    ours, theirs = measures(generated), measures(real)
    for axis, (key, label) in zip(axes.flat, PANELS, strict=True):
        known = timed or key != "gap, s"
        for values, colour, style, who in (
            (theirs[key] if known else None, REAL_COLOUR, "-", f"recorded ({real.trajectories})"),
            (ours[key], GENERATED_COLOUR, "--", f"generated ({generated.trajectories:,})"),
        ):
            if values is not None:
                ordered = np.sort(values)
                axis.step(ordered, 1 - np.arange(len(ordered)) / len(ordered), style, color=colour, label=who, lw=1.6)
        low = float(np.quantile(ours[key], 0.002))
        if float(ours[key].max()) / max(low, 0.1) > 30:
            axis.set_xscale("log")
            axis.set_xlim(max(low, 0.1), 1.3 * max(ours[key].max(), theirs[key].max()))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_yscale("log")
        axis.set_ylim(1e-3, 1.2)
        axis.set_xlabel(label + ("" if known else " (no times in the trace: assumed)"))
        axis.grid(alpha=0.25)
    for row in axes:
        row[0].set_ylabel("share above")
    axes.flat[0].legend(frameon=False)
    figure.suptitle(f"{name}: recorded and generated")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_correlations(name: str, real: Workload, generated: Workload, timed: bool, path: Path) -> None:
    """Rank correlations of turns and of trajectories, recorded beside generated."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9.4, 8.2), layout="constrained")
    for row, labels, columns in zip(
        axes, (TURN_COLUMNS, TRAJECTORY_COLUMNS), (turn_columns, trajectory_columns), strict=True
    ):
        kept = labels if timed else labels[:-1]  # no times: nothing to correlate with
        for axis, workload, who in zip(row, (real, generated), ("recorded", "generated"), strict=True):
            matrix = rank_correlations(columns(workload)[: len(kept)])
            image = axis.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu_r")
            axis.set_xticks(range(len(kept)), kept, rotation=30, ha="right")
            axis.set_yticks(range(len(kept)), kept)
            for (i, j), value in np.ndenumerate(matrix):
                axis.text(j, i, f"{value:.2f}", ha="center", va="center", color="w" if abs(value) > 0.6 else "k")
            of = "later turns" if labels is TURN_COLUMNS else "trajectories of 5 turns or more"
            axis.set_title(f"{who}: {of}", fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.6, label="rank correlation")
    figure.suptitle(name)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw(folder: Path, name: str, file: str, target: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    profile = load_profile("qwen3-32b-h200-tp2")
    real = load_sessions(folder / file, profile=profile)
    generated = generate(name, profile=profile, trajectories=4096, seed=0)
    timed = name == "coding"
    target.mkdir(parents=True, exist_ok=True)
    draw_distributions(name, real, generated, timed, target / f"workloads-{name}.png")
    draw_correlations(name, real, generated, timed, target / f"workloads-{name}-correlations.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, help="folder of the two traces")
    parser.add_argument("--compare", action="store_true", help="print tables instead of writing the fits")
    parser.add_argument(
        "--plots", type=Path, metavar="DIR", help="with --compare: draw the two as well, to this folder"
    )
    given = parser.parse_args()
    if given.plots and not given.compare:
        parser.error("--plots goes with --compare")
    for name, file, fit in (("coding", CODING, fit_coding), ("general", GENERAL, fit_general)):
        if not given.compare:
            write(fit(given.traces))
            continue
        compare(given.traces, name, file)
        if given.plots:
            draw(given.traces, name, file, given.plots)


if __name__ == "__main__":
    main()
