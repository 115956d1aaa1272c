"""The rollout SDK: tells Prorsa what rollout code is about to do, and never gets in its way.

Needs msgspec and pyzmq alone. Without a hub (no endpoint given, no ``PRORSA_HUB``) every call is a no-op. Nothing here
blocks, and nothing raises into the rollout: values that make no sense and calls that come at the wrong time are
dropped, counted (:meth:`Tracker.stats`) and logged once under ``prorsa.rollout``. ``docs/sdk.md`` shows how to use it
with slime, verl, AReaL and SkyRL.
"""

from prorsa.rollout.advice import Advice
from prorsa.rollout.spans import Reward, Sandbox, Span, Tool
from prorsa.rollout.tracker import Step, Tracker, TrackerStats, WeightsUpdate
from prorsa.rollout.trajectory import Trajectory

__all__ = [
    "Advice",
    "Reward",
    "Sandbox",
    "Span",
    "Step",
    "Tool",
    "Tracker",
    "TrackerStats",
    "Trajectory",
    "WeightsUpdate",
]
