"""What a comparison of two futures of a run says; see :mod:`prorsa.whatif`, which makes it."""

from typing import Any

import msgspec
from msgspec import Struct

from prorsa.events import Split


class CoursePoint(Struct, frozen=True):
    """A future at one of its moments, counted from where it began: split, and what was done since."""

    t_s: float
    split: Split
    output_tokens: int
    ended: int


class Future(Struct, frozen=True):
    """What came of one policy over ``over_s`` run seconds; ``finished_s`` is when the rollout ended, if it did."""

    policy: str
    over_s: float
    output_tokens: int
    prefill_tokens: int
    trajectories_ended: int
    gpu_idle_ratio: float | None
    flips: int
    finished_s: float | None
    course: tuple[CoursePoint, ...]


class Likeness(Struct, frozen=True):
    """How far the copy had come at the moment, beside what was recorded then."""

    ended: int
    ended_recorded: int | None
    split: Split
    split_recorded: Split | None


class WhatIf(Struct, frozen=True):
    """Two futures from a moment of a run, in run seconds from its beginning."""

    scenario: str
    at_s: float
    as_it_was: Future
    supposed: Future
    copy: Likeness

    @property
    def gain(self) -> float | None:
        """The supposed future's output tokens relative to the other's; None where that has none."""
        before = self.as_it_was.output_tokens
        return self.supposed.output_tokens / before - 1.0 if before else None

    def to_json(self) -> dict[str, Any]:
        """As the command line prints it."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | {"gain": self.gain}
