"""Compiled: one pass over the live trajectories, from where each stands to what is expected of it.

Everything is summed up on the way, so that the rest of a tick does not depend on how many there are.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.beliefs import Array, Beliefs, Expected, Ints, Places, Slots
from prorsa.forecast.jit import compiled

TURN_BUCKETS: Final = 5
"""Classes of turns whose sizes differ: the second, the third and fourth, to the ninth, to the thirtieth, later ones."""

_FREE, _DISPATCHED, _SANDBOX, _READY, _PREFILL, _DECODE, _TOOL, _REWARD = -1, 0, 1, 2, 3, 4, 5, 6
_RETURN, _HINTED = 1, 7
_SMALL_HAZARD: Final = 0.3
_REPORT_S: Final = 2.0
"""Reports come once a second: what has been put out since the last is known well enough, but not for ever."""
_CONTEXT_LOW, _CONTEXT_PER_OCTAVE, _TURN_PER_OCTAVE = 1024.0, 8, 8
_DURATION_LOW, _DURATION_PER_OCTAVE = 2.0**-5, 8
_FRACTION_BITS, _EXPONENT_OF_1, _FRACTION = 52, 1023, (1 << 52) - 1
"""How a float64 (IEEE 754) is made up."""
_QUARTERS = tuple(int(np.float64(2.0 ** (q / 4)).view(np.int64)) & _FRACTION for q in (1, 2, 3))
"""The fractions of a number where the second, third and fourth quarter of an octave begin."""
LENGTHS: Final = TURN_BUCKETS + 1
"""Classes of turns whose answers differ in length."""
EARLY_AGAIN: Final = 0.65
AGAIN_TOKENS: Final = 2500.0
"""What siblings that come before a first prompt is computed compute again of it, before any was seen: such a share, at
most so many tokens. Generated groups on seeds 101 and 102: 0.6 to 0.7 of prompts of 1.6k tokens, 0.065 of 41k."""
CROWDED: Final = (0.25, 0.5, 0.75, 1.0, 1.5, 3.0)
"""From which crowding on each class of homes begins; those below the first are told apart by what they alone hold."""
_OWN_LOW = 64.0
MOVE_CELLS: Final = len(CROWDED) + 13
"""Classes of crowded homes, then what others hold by the tokens past the first prompt, in octaves."""


@compiled
def _log_bin(value: float, low: float, per_octave: int, bins: int) -> int:
    if value <= low:
        return 0
    return min(int(np.log2(value / low) * per_octave) + 1, bins - 1)


@compiled
def _turn_bucket(turn: int) -> int:
    if turn <= 1:
        return 0
    if turn <= 3:
        return 1
    if turn <= 8:
        return 2
    return 3 if turn <= 29 else 4


@compiled
def turn_bucket(turn: int) -> int:
    """The class of a turn (from 0)."""
    return _turn_bucket(turn)


@compiled
def _length_class(turn: int) -> int:
    return 0 if turn <= 0 else 1 + _turn_bucket(turn)


@compiled
def length_class(turn: int) -> int:
    """The class of turns whose answers are alike: first ones apart, then as those of sizes."""
    return _length_class(turn)


@compiled
def place(
    s: Slots, t_s: float, output_rate: float, output_key: Ints, lengths: Array, at: Places, ongoing: Array
) -> None:
    """Where each trajectory is in its wait at ``t_s``; counts them by key and bin in ``ongoing``.

    Answers are counted in tokens over what ``lengths`` (float64[workloads, length classes]) says of their turns.
    """
    bins = ongoing.shape[1]
    for i in range(len(s.state)):
        at.key[i] = -1
        state = s.state[i]
        if state in (_FREE, _READY, _PREFILL):
            continue
        if state == _DECODE:
            since_s = t_s - s.output_at_s[i]
            length = lengths[s.workload[i], _length_class(s.turn[i])] * s.longer[i]
            at.key[i], at.speed[i] = output_key[s.action[i]], output_rate / length
            at.x[i] = s.output_tokens[i]
            if since_s > 0.0:
                at.x[i] += output_rate * min(since_s, _REPORT_S)
            at.x[i] /= length
        else:
            elapsed_s = t_s - s.since_s[i]
            elapsed_s = max(0.0, elapsed_s)
            hinted = s.expected_s[i] > 0.0
            at.key[i] = _HINTED if hinted else s.key[i]
            usual_s = s.slower[i] if state == _TOOL and s.key[i] != _RETURN else 1.0
            at.speed[i] = 1.0 / (s.expected_s[i] if hinted else usual_s)
            at.x[i] = elapsed_s * at.speed[i]
        ongoing[at.key[i], _log_bin(at.x[i], _DURATION_LOW, _DURATION_PER_OCTAVE, bins)] += 1.0


@compiled
def _stays(hazard: float) -> float:
    """``exp(-hazard)``; where that is small, as within a bin it nearly always is, by its series, to a millionth."""
    if hazard > _SMALL_HAZARD:
        return float(np.exp(-hazard))
    h = hazard
    return float(1.0 - h * (1.0 - h * (1 / 2) * (1.0 - h * (1 / 3) * (1.0 - h * (1 / 4) * (1.0 - h * (1 / 5))))))


@compiled
def _reached(m: Beliefs, key: int, x: float, speed: float, still_s: float, edges_s: Array, out: Array) -> None:
    """Probability that a wait at ``x`` has ended by each edge; it stands still for ``still_s`` first."""
    bins = m.survival.shape[1]
    index = _log_bin(x, _DURATION_LOW, _DURATION_PER_OCTAVE, bins)
    # Divisions are what takes long here.
    over_now = 1.0 / (m.survival[key, index] * _stays(m.slope[key, index] * (x - m.edges[index])))
    for e in range(len(edges_s)):
        later = x + speed * max(edges_s[e] - still_s, 0.0)
        while index < bins - 1 and later > m.edges[index + 1]:
            index += 1
        stays = m.survival[key, index] * _stays(m.slope[key, index] * (later - m.edges[index])) * over_now
        out[e] = max(1.0 - stays, 0.0)


@compiled
def _end_chance(m: Beliefs, workload: int, turn: int, context: float, fate: float) -> float:
    """Chance that a turn is the last; ``fate`` times as likely, for what siblings did, where no limit cuts it off."""
    by_turn = m.ends_by_turn[workload, _log_bin(turn + 1.0, 1.0, _TURN_PER_OCTAVE, m.ends_by_turn.shape[1])]
    bins = m.ends_by_context.shape[1]
    by_context = m.ends_by_context[workload, _log_bin(context, _CONTEXT_LOW, _CONTEXT_PER_OCTAVE, bins)]
    return float(1.0 - (1.0 - min(fate * by_turn, 1.0)) * (1.0 - by_context))


@compiled
def _answer(m: Beliefs, workload: int, action: int, turn: int) -> float:
    """Expected tokens of an answer at a turn."""
    return float(m.output_mean[action] * m.lengths[workload, _length_class(turn)])


@compiled
def next_answers(m: Beliefs, s: Slots, slots: NDArray[np.intp]) -> tuple[Array, Array]:
    """Of the answers that given slots wait for, the chance that they are the last, and expected tokens: float64[n]."""
    ends, tokens = np.empty(len(slots)), np.empty(len(slots))
    for n in range(len(slots)):
        i = slots[n]
        tokens[n] = _answer(m, s.workload[i], s.action[i], s.turn[i]) * s.longer[i]
        ends[n] = _end_chance(m, s.workload[i], s.turn[i], s.prompt_tokens[i] + tokens[n], s.fate[i])
    return ends, tokens


@compiled
def _lost(chance: Array, shares: Array, in_wait: float, at: int, f: float) -> tuple[float, float]:
    """Chance that a context is lost that has lain idle so long (see :func:`_between`) when its prompt becomes ready,
    and the share of it that goes: then, or while the prompt waits (``in_wait``).
    """
    lost = (1.0 - f) * chance[at] + f * chance[at + 1]
    later = (1.0 - lost) * in_wait
    if lost + later <= 0.0:
        return 0.0, 1.0
    share = (1.0 - f) * shares[at] + f * shares[at + 1]
    return lost + later, (lost * share + later) / (lost + later)


@compiled
def _between(centres: Array, x: float, at: int) -> tuple[int, float]:
    """The centre before ``x``, from ``at`` on, and how far it is from there to the next; ends count as far as the last
    one.
    """
    last = len(centres) - 2
    while at < last and centres[at + 1] < x:
        at += 1
    return at, min(max((x - centres[at]) / (centres[at + 1] - centres[at]), 0.0), 1.0)


@compiled
def after_gaps(m: Beliefs, idle_s: Array, seconds: Array) -> tuple[Array, Array, Array]:
    """Of prompts that become ready after so much idle time (float64[n]), such shares of them second ones (float64[c]).

    Returns:
        Two float64[c, n], chances and shares (see :func:`_lost`), and float64[n], how much more than usual is appended.
    """
    lost, share = np.empty((len(seconds), len(idle_s))), np.empty((len(seconds), len(idle_s)))
    growth = np.empty(len(idle_s))
    for i in range(len(idle_s)):
        at, f = _between(m.idle_centres, idle_s[i], 0)
        growth[i] = (1.0 - f) * m.growth[at] + f * m.growth[at + 1]
        second, second_share = _lost(m.loss_chance[0], m.loss_share[0], m.lost_in_wait, at, f)
        later, later_share = _lost(m.loss_chance[1], m.loss_share[1], m.lost_in_wait, at, f)
        for of in range(len(seconds)):
            seconds_lost, later_lost = second * seconds[of], later * (1.0 - seconds[of])
            lost[of, i] = seconds_lost + later_lost
            share[of, i] = (seconds_lost * second_share + later_lost * later_share) / max(lost[of, i], 1e-12)
    return lost, share, growth


@compiled
def _move_cell(crowding: float, saved_tokens: float, first_tokens: float) -> int:
    if crowding < CROWDED[0]:
        # Siblings have left the first prompt on other ranks.
        own = saved_tokens if np.isnan(first_tokens) else saved_tokens - first_tokens
        return len(CROWDED) + _log_bin(own, _OWN_LOW, 1, MOVE_CELLS - len(CROWDED))
    cell = 0
    while cell < len(CROWDED) - 1 and crowding >= CROWDED[cell + 1]:
        cell += 1
    return cell


@compiled
def move_cell(crowding: float, saved_tokens: float, first_tokens: float) -> int:
    """The class of a home by its crowding, or by the tokens that it saves beyond the first prompt (NaN if unknown)."""
    return _move_cell(crowding, saved_tokens, first_tokens)


@compiled
def _home_cell(
    work: Array, least: float, tokens_per_s: float, home: int, context: float, first: float, ahead_s: float
) -> int:
    """The class of a home when a turn becomes ready ``ahead_s`` from now; -1 where it is not crowded then.

    Until then the ranks work their queues off; what joins them meanwhile joins the shortest.
    """
    if home < 0 or home >= len(work):
        return -1
    done = tokens_per_s * ahead_s
    crowding = (max(work[home] - done, 0.0) - max(least - done, 0.0)) / max(context, 1.0)
    return _move_cell(crowding, context, first) if crowding >= CROWDED[0] else -1


@compiled
def size_bin(tokens: float, sizes: int) -> int:
    """As :func:`_log_bin` from 1 on in quarters of octaves, by the bits of the number, since logarithms take long."""
    if tokens <= 1.0:
        return 0
    bits = np.float64(tokens).view(np.int64)
    octave, within = int(bits >> _FRACTION_BITS) - _EXPONENT_OF_1, int(bits & _FRACTION)
    quarter = (within >= _QUARTERS[0]) + (within >= _QUARTERS[1]) + (within >= _QUARTERS[2])
    return min(4 * octave + quarter + 1, sizes - 1)


@compiled
def _add_known(out: Expected, h: int, chance: float, tokens: float) -> None:
    """A part of known size that comes with some chance: a yes-or-no varies less than a Poisson number does."""
    if tokens >= 1.0:
        out.counts[h, size_bin(tokens, out.counts.shape[1])] += chance * (1.0 - chance)
        out.sure[h] += chance * chance * tokens


@compiled
def _add_admissible(out: Expected, h: int, index: int, chance: float, tokens: float) -> None:
    out.admissible[h, index] += chance
    out.admissible2[h, index] += chance * chance
    out.squares[h] += chance * chance * tokens


@compiled
def _start_up(s: Slots, i: int, m: Beliefs, reached: Array, horizons: NDArray[np.intp], out: Expected) -> None:
    """A trajectory that has not had a request yet: its prompt is known, or taken as the mean."""
    prompt = s.prompt_tokens[i]
    if not prompt > 0.0:
        prompt = m.first_tokens
    new = prompt * m.first_share[0]
    if s.sibling[i]:
        new = min(m.first_share[1] * min(EARLY_AGAIN * prompt, AGAIN_TOKENS), prompt)
    size = prompt + _answer(m, s.workload[i], s.action[i], 0)
    index = size_bin(size, out.admissible.shape[1])
    before = 0.0
    for e in range(len(reached)):
        step = reached[e] - before
        before = reached[e]
        out.box[0, e] += step
        out.box[1, e] += step * new
        out.box[2, e] += step * prompt
    for h in range(len(horizons)):
        chance = reached[horizons[h]]
        _add_known(out, h, chance, new)
        _add_admissible(out, h, index, chance, size)


@compiled
def _tool(
    s: Slots, i: int, t_s: float, m: Beliefs, reached: Array, edges_s: Array, horizons: NDArray[np.intp], out: Expected
) -> None:
    """A trajectory in a tool: what the tool brings is new; of the context before it, what was lost is new again."""
    action, turn = s.action[i], s.turn[i] + 1
    cell = action * TURN_BUCKETS + _turn_bucket(turn)
    row = 0 if turn == 1 else 1
    answer, prompt = s.output_tokens[i], s.prompt_tokens[i]
    context = prompt + answer
    known = m.uncached_output * answer
    following = _answer(m, s.workload[i], action, turn) * s.longer[i]
    idle_s = max(t_s - s.answered_s[i], 0.0) if s.answered_s[i] == s.answered_s[i] else 0.0
    first = s.first_tokens[i]
    calm = _move_cell(0.0, prompt, first)
    e, before, at = 0, 0.0, 0
    for h in range(len(horizons)):
        ahead_s = edges_s[horizons[h]]
        at, f = _between(m.idle_centres, idle_s + 0.5 * ahead_s, at)
        lost, share = _lost(m.loss_chance[row], m.loss_share[row], m.lost_in_wait, at, f)
        if s.flushed[i]:
            lost, share = 1.0, 1.0
        grows = ((1.0 - f) * m.growth[at] + f * m.growth[at + 1]) * s.larger[i]
        appended = m.appended[cell] * grows
        again = context + appended
        lost_tokens = share * prompt + answer + appended
        crowded = _home_cell(m.rank_work, m.least_work, m.rank_tokens_per_s, s.home[i, 0], prompt, first, 0.5 * ahead_s)
        home = crowded if crowded >= 0 else calm
        moved, missed = m.move_chance[home], m.move_share[home] * prompt
        new = (1.0 - lost) * (known + appended + moved * missed) + lost * lost_tokens
        while e <= horizons[h]:
            step = reached[e] - before
            before = reached[e]
            out.tool[0, e] += step
            out.tool[1, e] += step * new
            out.tool[2, e] += step * again
            e += 1
        chance = reached[horizons[h]]
        found = chance * (1.0 - lost)
        _add_known(out, h, found, known)
        _add_known(out, h, found * moved, missed)
        _add_known(out, h, chance * lost, lost_tokens)
        out.found[h, cell] += found * grows
        size = again + following
        _add_admissible(out, h, size_bin(size, out.admissible.shape[1]), chance, size)


@compiled
def _decode(
    s: Slots,
    i: int,
    x: float,
    m: Beliefs,
    reached: Array,
    edges_s: Array,
    horizons: NDArray[np.intp],
    out: Expected,
) -> None:
    """A trajectory whose answer is under way: it ends, and the trajectory ends with it or goes on."""
    prompt = s.prompt_tokens[i]
    x *= m.lengths[s.workload[i], _length_class(s.turn[i])] * s.longer[i]
    likely = x + _answer(m, s.workload[i], s.action[i], s.turn[i]) * s.longer[i]
    end = _end_chance(m, s.workload[i], s.turn[i], prompt + likely, s.fate[i])
    before = 0.0
    for e in range(len(reached)):
        step = reached[e] - before
        before = reached[e]
        answer = x + m.output_rate * max(edges_s[e] - m.pause_s, 0.0)
        # Within a step of the axis an answer is as long as in the middle of it, about.
        answer = 0.5 * (answer + (x if e == 0 else x + m.output_rate * max(edges_s[e - 1] - m.pause_s, 0.0)))
        out.going[0, e] += step * (1.0 - end)
        out.going[1, e] += step * (1.0 - end) * (prompt + answer)
        out.going[2, e] += step * (1.0 - end) * answer
        out.ending[e] += step * end
        out.released[e] += step * (prompt + answer)
    for h in range(len(horizons)):
        done = reached[horizons[h]]
        out.finish_variance[h] += done * (1.0 - done) * (prompt + x) ** 2
    out.coming[s.action[i] * TURN_BUCKETS + _turn_bucket(s.turn[i] + 1)] += 1.0 - end
    out.totals[1] += 1.0
    out.totals[2] += prompt + x


@compiled
def scan(
    s: Slots, at: Places, t_s: float, m: Beliefs, edges_s: Array, horizons: NDArray[np.intp], out: Expected
) -> None:
    """Sum up what is expected of every live trajectory; ``horizons`` are indices of edges, ascending."""
    reached = np.empty(len(edges_s))
    later_s = 0.5 * edges_s[-1]
    for i in range(len(s.state)):
        state = s.state[i]
        if state == _FREE:
            continue
        out.totals[0] += 1.0
        if s.turn[i] >= 0:
            out.contexts[size_bin(s.prompt_tokens[i], len(out.contexts))] += 1.0
            out.totals[3] += s.prompt_tokens[i]
            out.totals[4] += 1.0
            crowded = _home_cell(
                m.rank_work,
                m.least_work,
                m.rank_tokens_per_s,
                s.home[i, 0],
                s.prompt_tokens[i],
                s.first_tokens[i],
                later_s,
            )
            home = crowded if crowded >= 0 else _move_cell(0.0, s.prompt_tokens[i], s.first_tokens[i])
            out.totals[5] += m.move_chance[home]
            out.totals[6] += m.move_chance[home] * m.move_share[home] * s.prompt_tokens[i]
        if state in (_READY, _PREFILL):
            out.coming[s.action[i] * TURN_BUCKETS + _turn_bucket(s.turn[i] + 1)] += 1.0
            continue
        still_s = m.pause_s if state == _DECODE else 0.0
        _reached(m, at.key[i], at.x[i], at.speed[i], still_s, edges_s, reached)
        if state == _DECODE:
            _decode(s, i, at.x[i], m, reached, edges_s, horizons, out)
        elif state == _REWARD:
            out.rewarded[0] += reached[0]
            for e in range(1, len(reached)):
                out.rewarded[e] += reached[e] - reached[e - 1]
        elif s.turn[i] < 0:
            _start_up(s, i, m, reached, horizons, out)
        else:
            _tool(s, i, t_s, m, reached, edges_s, horizons, out)
