"""Policies on episodes of the practice domain that no training has drawn, paired episode by episode.

    python -m benchmarks.learned analytic lookahead learned:FILE… [--episodes 40] [--seed 2000] [--json]

Each policy plays the same episodes in the training environment, as the nearest of its actions that the guards allow,
for ten minutes of the run. The figure is the mean reward (output by what the pool could put out at best) relative to
that of the first policy, as a geometric mean with Student's 95 % interval over the episodes.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from prorsa.control.actions import STAY
from prorsa.control.learn import Episode, practice
from prorsa.control.learn.env import RoleAllocation
from prorsa.control.policies import make_policy
from prorsa.figures import student_95

DECISIONS: Final = 120


class Score(NamedTuple):
    """A policy's reward by that of the first one; ``worst`` is that of its worst episode."""

    policy: str
    mean: float
    low: float
    high: float
    worst: float
    flips_per_hour: float


def play(env: RoleAllocation, episode: Episode, name: str) -> tuple[float, float]:
    """Mean reward of a decision, and decisions to move something an hour."""
    env.reset(seed=episode.seed, options={"episode": episode})
    policy, rewards, moves, over = make_policy(name, episode.scenario.workers), [], 0, False
    while not over:
        action = env.order_of(policy)
        moves += action != STAY
        _, reward, done, cut, _ = env.step(np.int64(action))
        rewards.append(reward)
        over = done or cut
    return statistics.fmean(rewards), moves * 720.0 / len(rewards)


def score(names: Sequence[str], episodes: int, seed: int) -> list[Score]:
    """Scores of all policies on the same episodes."""
    env, domain, rng = RoleAllocation(decisions=DECISIONS), practice(), np.random.default_rng(seed)
    played = []
    for number in range(episodes):
        episode = domain.draw(rng)
        played.append([play(env, episode, name) for name in names])
        sys.stderr.write(f"episode {number + 1} of {episodes}\n")
    return [_score(name, [(row[k], row[0]) for row in played]) for k, name in enumerate(names)]


def _score(name: str, pairs: list[tuple[tuple[float, float], tuple[float, float]]]) -> Score:
    logs = [math.log(max(own[0], 1e-6) / max(first[0], 1e-6)) for own, first in pairs]
    mean = statistics.fmean(logs)
    half = student_95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    moves = statistics.fmean(own[1] for own, _ in pairs)
    return Score(name, *(math.exp(value) for value in (mean, mean - half, mean + half, min(logs))), moves)


def main() -> None:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policies", nargs="+")
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=2000, help="of the episodes; trainings draw theirs from other ones")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.episodes < 2:
        parser.error("--episodes: an interval needs at least 2")
    scores = score(args.policies, args.episodes, args.seed)
    if args.json:
        print(json.dumps([each._asdict() for each in scores]))
        return
    for each in scores:
        print(
            f"{each.policy:40} {each.mean:.3f} ({each.low:.3f} to {each.high:.3f}), worst {each.worst:.3f}, "
            f"{each.flips_per_hour:.0f} moves an hour"
        )


if __name__ == "__main__":
    main()
