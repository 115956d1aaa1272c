"""What has been seen of a generated workload, in the terms of the generators' scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from prorsa.cluster.workloads.posterior import Band, Seen
from prorsa.cluster.workloads.scores import Bools, Floats, Ints
from prorsa.cluster.workloads.standing import ANSWERING, ENDED, REWARD, TOOL, WAITING, Standing
from prorsa.cluster.workloads.turns import TurnModel
from prorsa.cluster.workloads.workload import Workload


def past_turns(standing: Standing) -> Ints:
    """Turns of each trajectory that are over, the answer included."""
    stage = standing.stage
    over: Ints = np.where(stage >= REWARD, standing.turn + 1, np.where(stage >= ANSWERING, standing.turn, 0))
    return over


def ranges(start: Ints, count: Ints) -> Ints:
    """``start[i], …, start[i] + count[i] - 1`` for all i, one after the other."""
    within: Ints = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return within + np.repeat(start, count)


def look_back(model: TurnModel, workload: Workload, standing: Standing, group: Ints) -> Seen:
    """All that is known of the trajectories, as intervals of scores; groups are dense from 0.

    What groups have done that have ended as a whole tells nothing of anybody else, and is left out.
    """
    stage, count = standing.stage, workload.trajectories
    going_on = (np.bincount(group[stage != ENDED], minlength=count) > 0)[group]
    past = np.where(going_on, past_turns(standing), 0)
    dispatched = stage != WAITING
    first_low, first_high = np.full(count, -np.inf), np.full(count, np.inf)
    starts = workload.first_turn[:-1][dispatched]
    first_low[dispatched], first_high[dispatched] = model.first_scores(workload.prompt_tokens[starts])
    # Prompts that have arrived, and answers that are complete or under way.
    arrived = past + (stage == ANSWERING)
    prompts, answers = _turns(workload, arrived), _turns(workload, past)
    tools = np.flatnonzero(stage == TOOL)
    # A trajectory that was cut off at a limit would have had more turns.
    turns = np.where(stage >= ANSWERING, standing.turn + 1 + ((stage >= REWARD) & workload.truncated), 1)
    turns_low, turns_high = model.turns_scores(turns, exact=(stage >= REWARD) & ~workload.truncated)
    return Seen(
        group=group,
        first_low=first_low,
        first_high=first_high,
        turns_low=turns_low,
        turns_high=turns_high,
        known=(stage >= ANSWERING) & going_on,
        output=_known_answers(model, workload, answers),
        open=(opened := _open_answers(model, workload, standing, answers))[0],
        action=opened[1],
        gap=_gaps(model, workload, prompts, tools, standing),
        **_appended(model, workload, prompts),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Turns of a workload: trajectory, position in it, and index."""

    row: Ints
    position: Ints
    at: Ints

    def of(self, chosen: Bools) -> "_Places":
        return _Places(self.row[chosen], self.position[chosen], self.at[chosen])


def _turns(workload: Workload, count: Ints) -> _Places:
    """The first ``count[i]`` turns of each trajectory."""
    row = np.repeat(np.arange(len(count)), count)
    position = ranges(np.zeros(len(count), np.int64), count)
    return _Places(row, position, workload.first_turn[row] + position)


def _is_last(workload: Workload, places: _Places) -> Bools:
    return np.asarray(places.at + 1 == workload.first_turn[places.row + 1])


def _known_answers(model: TurnModel, workload: Workload, answers: _Places) -> Band:
    """Complete answers whose action is known: a tool has followed."""
    places = answers.of(~_is_last(workload, answers))
    low, high = model.output_scores(places.position, workload.tool[places.at + 1], workload.output_tokens[places.at])
    # A first answer that was cut at the context limit is only known to have been at least so long.
    cut = (places.position == 0) & (
        workload.prompt_tokens[places.at] + workload.output_tokens[places.at] >= model.source.max_context
    )
    return Band(places.row, low, np.where(cut, np.inf, high))


def _open_answers(model: TurnModel, workload: Workload, standing: Standing, answers: _Places) -> tuple[Band, Floats]:
    """Answers of which the action is unknown: those under way, longer than what is out, and last ones."""
    last = answers.of(_is_last(workload, answers))
    row = np.flatnonzero(standing.stage == ANSWERING)
    position, at = standing.turn[row], workload.first_turn[row] + standing.turn[row]
    under_way = model.open_scores(position, standing.output_tokens[row], workload.prompt_tokens[at])
    complete = model.any_scores(last.position, workload.output_tokens[last.at])
    before = np.concatenate([workload.tool[last.at], workload.tool[at]])
    low, high = (np.concatenate(pair) for pair in zip(complete, under_way, strict=True))
    return Band(np.concatenate([last.row, row]), low, high), model.chances(before)


def _gaps(model: TurnModel, workload: Workload, prompts: _Places, tools: Ints, standing: Standing) -> Band:
    """Gaps that are over, and those of the tools that run."""
    later = prompts.of(prompts.position > 0)
    low, high = model.gap_scores(workload.tool[later.at], workload.gap_s[later.at])
    running = workload.tool[workload.first_turn[tools] + standing.turn[tools]]
    begun = model.gap_reached(running, standing.elapsed_s[tools])
    return Band(
        np.concatenate([later.row, tools]),
        np.concatenate([low, begun]),
        np.concatenate([high, np.full(len(tools), np.inf)]),
    )


def _appended(model: TurnModel, workload: Workload, prompts: _Places) -> dict[str, Any]:
    """What later prompts have appended, where they have, beside the index of the gap before them."""
    later = prompts.of(prompts.position > 0)
    before = workload.prompt_tokens[later.at - 1]
    context = before + workload.output_tokens[later.at - 1]
    grown = workload.prompt_tokens[later.at] - context
    # A prompt whose answer was dropped keeps the prompt before it; a compacted one is shorter than the context.
    entry = np.flatnonzero((grown > 0) & (workload.reuse_tokens[later.at] != before))
    places = _Places(later.row[entry], later.position[entry], later.at[entry])
    low, high = model.appended_scores(places.position, workload.tool[places.at], grown[entry])
    return {"appended": Band(places.row, low, high), "appended_gap": entry, "second": places.position == 1}
