"""Compiled: from forgetting histograms to the tables that a tick looks up."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from prorsa.forecast.jit import compiled

Array = NDArray[np.float64]
Ints = NDArray[np.int32]

_UNLIKELY: Final = 1e-6
"""Weights below this are left out of mixtures."""
_USUALLY_GONE: Final = 0.9
"""The share of a lost context that goes, before any was seen; worth one."""
_SURELY: Final = 1.0 - 1e-9
"""A hazard is at most this, so that its logarithm is finite."""


@compiled
def remember(growth: Array, going_on: Array, half_life: float, lives: float) -> None:
    """Set by how much an observation of each key (float64[keys]) weighs more than the one before: the half-life is at
    least ``lives`` times what goes on of the key, float64[keys, any].
    """
    for k in range(len(growth)):
        growth[k] = 2.0 ** (1.0 / max(half_life, lives * going_on[k].sum()))


@compiled
def hazard_tables(
    ended: Array,
    scale: Array,
    ongoing: Array,
    kind: Ints,
    prior_hazard: Array,
    prior_step: Array,
    strength: Array,
    shrinkage: float,
    widths: Array,
) -> tuple[Array, Array, Array, Array]:
    """Cumulative hazard and survival where each bin begins, the hazard's slope in it, and the mean wait, by key.

    Args:
        ended: float64[keys, bins], ended waits; a key's row counts ``scale`` of itself.
        ongoing: float64[keys, bins], waits under way, where they are now.
        kind: int32[keys], the kind of each key; keys below the number of kinds are those kinds themselves.
        prior_hazard: float64[kinds, bins]; ``prior_step`` float64[kinds, bins], what the cumulative hazard grows by in
            each bin; ``strength`` float64[kinds], how many waits the prior is worth.
        shrinkage: how many waits its kind is worth to a key.
        widths: float64[bins].
    """
    keys, bins = ended.shape
    kinds = len(strength)
    reached = np.empty((keys, bins))
    pooled_ended, pooled_reached = np.zeros((kinds, bins)), np.zeros((kinds, bins))
    for k in range(keys):
        after = 0.0
        for b in range(bins - 1, -1, -1):
            # Waits under way count half in their own bin, as actuaries do.
            reached[k, b] = after + ended[k, b] * scale[k] + 0.5 * ongoing[k, b]
            after += ended[k, b] * scale[k] + ongoing[k, b]
            pooled_ended[kind[k], b] += ended[k, b] * scale[k]
            pooled_reached[kind[k], b] += reached[k, b]
    # Logarithms are what takes long here: where nothing was seen they are those of the prior, or of the kind.
    pooled, pooled_step = prior_hazard.copy(), prior_step.copy()
    for g in range(kinds):
        for b in range(bins):
            if pooled_reached[g, b] > 0.0:
                hazard = (pooled_ended[g, b] + strength[g] * prior_hazard[g, b]) / (pooled_reached[g, b] + strength[g])
                pooled[g, b] = min(hazard, _SURELY)
                pooled_step[g, b] = -np.log1p(-pooled[g, b])
    cumulative, survives, slope = np.empty((keys, bins)), np.empty((keys, bins)), np.empty((keys, bins))
    mean, over_width = np.zeros(keys), 1.0 / widths
    for k in range(keys):
        g = kind[k]
        so_far, survival = 0.0, 1.0
        for b in range(bins):
            hazard, step = pooled[g, b], pooled_step[g, b]
            if k >= kinds and reached[k, b] > 0.0:
                hazard = min((ended[k, b] * scale[k] + shrinkage * hazard) / (reached[k, b] + shrinkage), _SURELY)
                step = -np.log1p(-hazard)
            cumulative[k, b], survives[k, b], slope[k, b] = so_far, survival, step * over_width[b]
            if b < bins - 1:
                mean[k] += survival * (1.0 - 0.5 * hazard) * widths[b]
            so_far += step
            survival *= 1.0 - hazard
    return cumulative, survives, slope, mean


@compiled
def size_tables(
    counts: Array, sums: Array, scale: Array, group: Ints, shrinkage: float, prior_index: int, centres: Array
) -> tuple[Array, Array, Array]:
    """Shares of size bins by key, mean size by key, and mean size within each bin.

    A key is shrunk towards its ``group`` (int32[keys]), and that towards all.
    """
    keys, bins = counts.shape
    groups = group.max() + 1
    pooled, pooled_sums, grouped = np.zeros(bins), np.zeros(bins), np.zeros((groups, bins))
    for k in range(keys):
        for b in range(bins):
            count = counts[k, b] * scale[k]
            pooled[b] += count
            pooled_sums[b] += sums[k, b] * scale[k]
            grouped[group[k], b] += count
    sizes = np.empty(bins)
    for b in range(bins):
        sizes[b] = pooled_sums[b] / pooled[b] if pooled[b] > 0.0 else centres[b]
    pooled[prior_index] += 1.0
    pooled /= pooled.sum()
    for g in range(groups):
        grouped[g] += shrinkage * pooled
        grouped[g] /= grouped[g].sum()
    shares, means = np.empty((keys, bins)), np.zeros(keys)
    for k in range(keys):
        over_total = 1.0 / (shrinkage + counts[k].sum() * scale[k])
        for b in range(bins):
            shares[k, b] = over_total * (counts[k, b] * scale[k] + shrinkage * grouped[group[k], b])
            means[k] += shares[k, b] * sizes[b]
    return shares, means, sizes


@compiled
def transition_chances(counts: Array, workload_of: Ints, classes: int, shrinkage: float) -> Array:
    """Chances that one action follows another, float64[actions, actions].

    Rows are shrunk towards how often each follows any of the same workload class (int32[actions]), that towards all.
    """
    actions = len(counts)
    of, everything = np.zeros((classes, actions)), np.zeros(actions)
    for before in range(actions):
        for after in range(actions):
            of[workload_of[before], after] += counts[before, after]
            everything[after] += counts[before, after]
    everything[0] += 1e-3  # an unknown one before any was seen
    everything /= everything.sum()
    for workload in range(classes):
        of[workload] += everything
        of[workload] /= of[workload].sum()
    chance = np.empty((actions, actions))
    for before in range(actions):
        for after in range(actions):
            chance[before, after] = counts[before, after] + shrinkage * of[workload_of[before], after]
        chance[before] /= chance[before].sum()
    return chance


@compiled
def loss_chances(seen: Array, lost: Array, gone: Array, prior: float, strength: float) -> tuple[Array, Array]:
    """Chance that a context is lost by idle bin, and the share of it that goes then: float64[2, bins] each, of second
    prompts and of later ones.

    Args:
        seen, lost: float64[2, bins], contexts by how long they lay idle, and those of them that were lost; ``gone``
            float64[2, bins], what was missing of these.
        prior: chance at no idle time; ``strength``, contexts that the line through the other bins is worth to a bin.
    """
    bins = seen.shape[1]
    chance = np.empty((2, bins))
    line = _through_known(seen[1], lost[1], prior)
    for b in range(bins):
        chance[1, b] = (lost[1, b] + strength * line[b]) / (seen[1, b] + strength)
    # Second prompts are lost like others, and besides rewritten, at any idle time alike.
    extra = (lost[0].sum() - (seen[0] * chance[1]).sum()) / (seen[0].sum() + strength)
    for b in range(bins):
        expected = chance[1, b] + max(extra, 0.0) * (1.0 - chance[1, b])
        chance[0, b] = (lost[0, b] + strength * expected) / (seen[0, b] + strength)
    _make_rise(chance[1], seen[1] + strength)
    share = np.empty((2, bins))
    for row in range(2):
        pooled = (gone[row].sum() + _USUALLY_GONE) / (lost[row].sum() + 1.0)
        for b in range(bins):
            share[row, b] = min((gone[row, b] + strength * pooled) / (lost[row, b] + strength), 1.0)
    return chance, share


@compiled
def _make_rise(values: Array, weights: Array) -> None:
    """The closest values that never fall, in place: neighbours that do are replaced by their weighted mean."""
    n = len(values)
    level, weight, size = np.empty(n), np.empty(n), np.empty(n, np.int64)
    blocks = 0
    for i in range(n):
        level[blocks], weight[blocks], size[blocks] = values[i], weights[i], 1
        blocks += 1
        while blocks > 1 and level[blocks - 2] > level[blocks - 1]:
            total = weight[blocks - 2] + weight[blocks - 1]
            level[blocks - 2] = (
                level[blocks - 2] * weight[blocks - 2] + level[blocks - 1] * weight[blocks - 1]
            ) / total
            weight[blocks - 2] = total
            size[blocks - 2] += size[blocks - 1]
            blocks -= 1
    at = 0
    for block in range(blocks):
        for _ in range(size[block]):
            values[at] = level[block]
            at += 1


@compiled
def _through_known(seen: Array, lost: Array, prior: float) -> Array:
    """Straight lines through the bins of which something was seen, from ``prior`` before the first; flat at the end."""
    bins = len(seen)
    line = np.empty(bins)
    left, left_value = -1, prior
    b = 0
    while b < bins:
        right = b
        while right < bins and seen[right] < 1.0:
            right += 1
        value = lost[right] / seen[right] if right < bins else left_value
        for at in range(b, min(right + 1, bins)):
            share = (at - left) / (right - left)
            line[at] = left_value + share * (value - left_value)
        left, left_value, b = right, value, right + 1
    return line


@compiled
def end_chances(
    risk: Array, finished: Array, context_risk: Array, cut: Array, prior: float, strength: float
) -> tuple[Array, Array]:
    """Chance that a turn is the last: of its own, and because a limit cuts it off.

    Args:
        risk, finished: float64[classes, turn bins], turns by their number, and those of them that ended of their own.
            They are shrunk by ``strength`` turns towards those of their class, and these towards all and ``prior``.
        context_risk, cut: float64[classes, context bins], turns by their context, and those that were cut off.

    Returns:
        float64[classes, turn bins] and float64[classes, context bins].
    """
    everything = (finished.sum() + prior) / (risk.sum() + 1.0)
    by_turn = np.empty(risk.shape)
    for of in range(len(risk)):
        by_class = (finished[of].sum() + strength * everything) / (risk[of].sum() + strength)
        by_turn[of] = (finished[of] + strength * by_class) / (risk[of] + strength)
    return by_turn, cut / (context_risk + 2.0)


@compiled
def length_factors(usual: Array, put_out: Array, number: Array, typical: Array, strength: float) -> Array:
    """How much longer answers are than usual, by class of workloads and of turns: float64[classes, turns].

    Args:
        usual, put_out: float64[classes, turns], tokens of answers as they usually are, and as they were; ``number`` of
            them.
        typical: float64[classes, turns], the factors before any was seen, worth ``strength`` answers.
    """
    factor = np.empty(usual.shape)
    for of in range(len(usual)):
        prior = strength * usual[of].sum() / max(number[of].sum(), 1e-9) + 1e-9
        # Of what is usual only the proportions count: it is learnt from answers over these factors.
        level = (put_out[of].sum() + 1e-9) / ((usual[of] * typical[of]).sum() + 1e-9)
        factor[of] = (put_out[of] / level + prior * typical[of]) / (usual[of] + prior)
    return factor


@compiled
def move_chances(
    seen: Array, moved: Array, saved: Array, gone: Array, prior: Array, calm: int, prior_share: float, strength: float
) -> tuple[Array, Array]:
    """Chance that a turn leaves its context behind, and the share of what home saves that goes: float64[cells] each.

    Args:
        seen, moved: float64[cells], turns by class of their home, and those of them that left it.
        saved, gone: float64[cells], tokens that homes would have saved, and those of them that were missed.
        prior: float64[cells], the chance before any was seen, worth ``strength`` turns; from cell ``calm`` on homes
            are not crowded, and all have one. ``prior_share`` of what was saved goes then.
    """
    chance, share = np.empty(len(seen)), np.empty(len(seen))
    # Priors are in tokens of the size that the classes have had.
    seen_calm, saved_calm = seen[calm:].sum(), saved[calm:].sum()
    of_calm = (moved[calm:].sum() + strength * prior[calm]) / (seen_calm + strength)
    worth = strength * (saved_calm / seen_calm if seen_calm > 0.0 else 1.0)
    missed_of_calm = (gone[calm:].sum() + worth * prior[calm] * prior_share) / (saved_calm + worth)
    for cell in range(len(seen)):
        before = of_calm if cell >= calm else prior[cell]
        missed_before = missed_of_calm if cell >= calm else prior[cell] * prior_share
        chance[cell] = (moved[cell] + strength * before) / (seen[cell] + strength)
        worth = strength * (saved[cell] / seen[cell] if seen[cell] > 0.0 else 1.0)
        missing = (gone[cell] + worth * missed_before) / (saved[cell] + worth)
        share[cell] = min(missing / chance[cell], 1.0)
    return chance, share


@compiled
def wait_losses(seen: Array, held: Array, gone: Array, pooled: float, strength: float) -> Array:
    """Share of what was held that is gone after a wait, by its length: float64[bins].

    Args:
        seen: float64[bins], waits; ``held`` float64[bins], tokens that were held at their beginning, and ``gone``
            float64[bins] at their end.
        pooled: share of all, worth ``strength`` waits to each bin.
    """
    share = np.empty(len(seen))
    for b in range(len(seen)):
        prior = strength * (held[b] / max(seen[b], 1e-9) if seen[b] > 0.0 else 1.0)
        share[b] = min((gone[b] + prior * pooled) / max(held[b] + prior, 1e-9), 1.0)
    return share


@compiled
def mixed_ends(stays: Array, slope: Array, edges: Array, keys: Ints, weights: Array, x: Array, scale: Ints) -> Array:
    """Probability that mixtures of waits of several keys end between consecutive times: float64[mixtures, n].

    Args:
        stays, slope, edges: of the keys; see :class:`~prorsa.forecast.models.HazardTables`.
        keys: int32[k]; ``weights`` float64[mixtures, k].
        x: float64[scales, n + 1], times that never fall; ``scale`` int32[mixtures], which of them counts.
    """
    bins = stays.shape[1]
    survival = np.zeros((len(weights), x.shape[1]))
    for k in range(len(keys)):
        key = keys[k]
        for of in range(len(x)):
            wanted = 0.0
            for mixture in range(len(weights)):
                if scale[mixture] == of:
                    wanted = max(wanted, weights[mixture, k])
            if wanted <= _UNLIKELY:
                continue
            index = 0
            for i in range(x.shape[1]):
                while index < bins - 1 and x[of, i] > edges[index + 1]:
                    index += 1
                survives = stays[key, index] * np.exp(-slope[key, index] * (x[of, i] - edges[index]))
                for mixture in range(len(weights)):
                    if scale[mixture] == of:
                        survival[mixture, i] += weights[mixture, k] * survives
    return survival[:, :-1] - survival[:, 1:]
