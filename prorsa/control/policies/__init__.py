"""The policies: pure functions from what is known to a wanted split, with the reason.

A policy wants; overrides and guards decide what comes of it. ``alternatives`` and ``inputs`` go into the decision
event as they are.
"""

from prorsa.control.policies.base import Context, Policy, Want
from prorsa.control.policies.fixed import (
    CLAIRVOYANT,
    COLOCATED_TUNED,
    Colocated,
    Planned,
    Static,
    colocated_settings,
    parse_split,
    rollouts_of,
)
from prorsa.control.policies.names import (
    POLICIES,
    SIMULATED,
    STATIC_BEST,
    make_policy,
    make_simulated,
)

__all__ = [
    "CLAIRVOYANT",
    "COLOCATED_TUNED",
    "POLICIES",
    "SIMULATED",
    "STATIC_BEST",
    "Colocated",
    "Context",
    "Planned",
    "Policy",
    "Static",
    "Want",
    "colocated_settings",
    "make_policy",
    "make_simulated",
    "parse_split",
    "rollouts_of",
]
