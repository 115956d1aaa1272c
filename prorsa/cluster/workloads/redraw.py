"""Other futures of a generated workload: what has happened stays, the rest is drawn anew, given what has happened.

A redrawn future is a draw from the generator's own distribution, conditional on all that has been seen of a run: sizes
and gaps of finished turns, how long a tool has run, how many tokens of an answer are out, that a trajectory has not
ended. So forecasts made of many of them know the generator and the state, but not the draws: nobody can do better.
"""

from typing import Final

import numpy as np

from prorsa.cluster.workloads.draws import sibling_correlations
from prorsa.cluster.workloads.fitted import Fitted, LogNormal
from prorsa.cluster.workloads.limits import offsets
from prorsa.cluster.workloads.posterior import FIRST, OUTPUT, TURNS, EffectsPosterior, SharedScores
from prorsa.cluster.workloads.scores import Floats, Ints
from prorsa.cluster.workloads.seen import look_back, past_turns, ranges
from prorsa.cluster.workloads.standing import ANSWERING, REWARD, SANDBOX, TOOL, WAITING, Standing
from prorsa.cluster.workloads.turns import Source, TurnModel, Turns
from prorsa.cluster.workloads.workload import Workload

_TRIES: Final = 64


class Redraw:
    """Draws futures of ``workload`` that agree with all that has been seen of it.

    Args:
        source: what the workload was generated from.
        workload: as it is; of its future nothing is used.
        standing: where its trajectories stand.
        rng: all randomness.
        token_s: what a token of an answer takes at least. Turns are drawn until a trajectory cannot need more within
            the time asked for.
    """

    def __init__(
        self, source: Source, workload: Workload, standing: Standing, rng: np.random.Generator, *, token_s: float
    ) -> None:
        self._model = TurnModel(source)
        self._workload = workload
        self._standing = standing
        self._rng = rng
        self._token_s = token_s
        self._past = past_turns(standing)
        fitted, group = source.fitted, _dense(workload.group)
        alike = _siblings(fitted) if workload.group[0] >= 0 else np.zeros(7)
        seen = look_back(self._model, workload, standing, group)
        self._posterior = EffectsPosterior(fitted.correlations, alike[:5], seen, rng)
        self._sandbox = _Seconds(fitted.sandbox_s, workload.sandbox_s, standing, SANDBOX, (alike[5], group, rng))
        self._reward = _Seconds(fitted.reward_s, workload.reward_s, standing, REWARD, (alike[6], group, rng))

    def draw(self, window_s: float) -> Workload:
        """A workload with the same past, whose turns go on for at least ``window_s`` from now."""
        scores = self._posterior.draw()
        turns = self._future(scores, window_s)
        return self._joined(turns)

    # --- turns ------------------------------------------------------------------------------------------------------

    def _future(self, scores: Floats, window_s: float) -> list[tuple[Ints, Turns]]:
        """Turns from the present one on, as (trajectories, one turn of each), in order."""
        standing = self._standing
        out = [self._present(scores)]
        limit = self._model.natural_turns(scores[:, TURNS])
        position = standing.turn.copy()
        after_s = np.zeros(len(position))
        while len(out[-1][0]):
            rows, turns = out[-1]
            elapsed = np.where(position[rows] == standing.turn[rows], standing.elapsed_s[rows], 0.0)
            after_s[rows] += np.maximum(turns.gap_s - elapsed, 0.0) + turns.output * self._token_s
            goes_on = (position[rows] + 1 < limit[rows]) & (after_s[rows] < window_s)
            position[rows] += 1
            out.append(self._next(scores, rows[goes_on], turns.of(goes_on), position))
        return out

    def _present(self, scores: Floats) -> tuple[Ints, Turns]:
        """The turn that each trajectory is in or comes to next."""
        stage = self._standing.stage
        starts = np.flatnonzero((stage == WAITING) | (stage == SANDBOX))
        answering, tools = np.flatnonzero(stage == ANSWERING), np.flatnonzero(stage == TOOL)
        parts = [(starts, self._first(scores, starts)), (answering, self._answering(scores, answering))]
        parts.append((tools, self._after_tool(scores, tools)))
        rows = np.concatenate([part[0] for part in parts])
        order = np.argsort(rows)
        return rows[order], Turns.joined([part[1] for part in parts]).of(order)

    def _first(self, scores: Floats, rows: Ints) -> Turns:
        prompt = self._model.first_prompts(scores[rows, FIRST])
        seen = self._standing.stage[rows] != WAITING
        prompt[seen] = self._workload.prompt_tokens[self._workload.first_turn[rows[seen]]]
        return self._model.first_turns(self._rng, prompt, scores[rows, OUTPUT])

    def _answering(self, scores: Floats, rows: Ints) -> Turns:
        """The rest of an answer, given how long it is already and that it fits."""
        at = self._workload.first_turn[rows] + self._standing.turn[rows]
        workload, position = self._workload, self._standing.turn[rows]
        before = np.where(position > 0, workload.tool[at], -1)
        return self._model.answers(
            self._rng,
            position,
            before,
            scores[rows, OUTPUT],
            Turns(
                prompt=workload.prompt_tokens[at],
                reuse=workload.reuse_tokens[at],
                output=self._standing.output_tokens[rows],
                gap_s=workload.gap_s[at],
                before=before,
                action=np.zeros(len(rows), np.int64),
                fits=np.ones(len(rows), np.bool_),
            ),
        )

    def _after_tool(self, scores: Floats, rows: Ints) -> Turns:
        """The turn after the tool: drawn again until it fits, for it is known to come."""
        at = self._workload.first_turn[rows] + self._standing.turn[rows] - 1
        workload = self._workload
        before = Turns(
            prompt=workload.prompt_tokens[at],
            reuse=workload.reuse_tokens[at],
            output=workload.output_tokens[at],
            gap_s=workload.gap_s[at],
            before=np.full(len(rows), -1),
            action=workload.tool[at + 1],
            fits=np.ones(len(rows), np.bool_),
        )
        elapsed_s, position = self._standing.elapsed_s[rows], self._standing.turn[rows]
        turns = self._model.next_turns(self._rng, scores[rows], position, before, elapsed_s)
        for _ in range(_TRIES):
            misfits = np.flatnonzero(~turns.fits)
            if not len(misfits):
                break
            again = self._model.next_turns(
                self._rng, scores[rows[misfits]], position[misfits], before.of(misfits), elapsed_s[misfits]
            )
            turns.put(misfits, again)
        return self._model.fitted_in(turns)

    def _next(self, scores: Floats, rows: Ints, before: Turns, position: Ints) -> tuple[Ints, Turns]:
        turns = self._model.next_turns(self._rng, scores[rows], position[rows], before, np.zeros(len(rows)))
        return rows[turns.fits], turns.of(turns.fits)

    # --- the workload -----------------------------------------------------------------------------------------------

    def _joined(self, future: list[tuple[Ints, Turns]]) -> Workload:
        workload, past = self._workload, self._past
        counts = past.copy()
        for rows, _ in future:
            counts[rows] += 1
        first_turn = offsets(counts)
        columns = {name: np.zeros(first_turn[-1], getattr(workload, name).dtype) for name in _COLUMNS}
        kept = ranges(workload.first_turn[:-1], past)
        place = ranges(first_turn[:-1], past)
        for name, column in columns.items():
            column[place] = getattr(workload, name)[kept]
        free = first_turn[:-1] + past
        for rows, turns in future:
            for name, column in columns.items():
                column[free[rows]] = turns.column(name)
            free[rows] += 1
        return Workload(
            first_turn=first_turn,
            group=workload.group,
            step=workload.step,
            sandbox_s=self._sandbox.draw(),
            reward_s=self._reward.draw(),
            truncated=np.zeros(len(past), np.bool_),
            tools=workload.tools,
            workload=workload.workload,
            sessions_skipped=workload.sessions_skipped,
            shared_tokens=np.where(workload.shared_tokens > 0, columns["prompt_tokens"][first_turn[:-1]], 0),
            classes=workload.classes,
            class_index=workload.class_index,
            **columns,
        )


class _Seconds:
    """Times of sandboxes or rewards: those that are over stay, one under way is longer than it is now."""

    def __init__(
        self,
        distribution: LogNormal | None,
        known_s: Floats,
        standing: Standing,
        stage: int,
        shared: tuple[float, Ints, np.random.Generator],
    ) -> None:
        self._distribution, self._known_s = distribution, known_s
        self._over = standing.stage > stage
        if distribution is None:
            return
        elapsed_s = np.where(self._over, known_s, np.where(standing.stage == stage, standing.elapsed_s, 0.0))
        low = distribution.scores(elapsed_s)
        high = np.where(self._over, low + _EXACT, np.inf)
        correlation, group, rng = shared
        self._scores = SharedScores(correlation, group, np.where(self._over, low - _EXACT, low), high, rng)

    def draw(self) -> Floats:
        if self._distribution is None:
            return self._known_s
        return np.where(self._over, self._known_s, self._distribution.at(self._scores.draw()))


_EXACT: Final = 1e-9
"""Half the width of the interval that a known score stands for."""

_COLUMNS: Final = ("prompt_tokens", "reuse_tokens", "output_tokens", "gap_s", "tool")


def _siblings(fitted: Fitted) -> Floats:
    """Correlations float64[7] between siblings: of the five heads of a trajectory, of its sandbox and its reward."""
    return sibling_correlations(np.linalg.cholesky(np.array(fitted.correlations.trajectory)), fitted.siblings)


def _dense(group: Ints) -> Ints:
    """Numbers of groups without holes; a trajectory without a group is one by itself."""
    numbers: Ints = np.unique(np.where(group < 0, -1 - np.arange(len(group)), group), return_inverse=True)[1]
    return numbers
