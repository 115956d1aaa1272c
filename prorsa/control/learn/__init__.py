"""Training of allocation policies: the Gymnasium environment over the simulator, and what trains in it.

Importing it registers ``prorsa/RoleAllocation-v0``.
"""

import gymnasium as gym

from prorsa.control.learn.episodes import Domain, Episode, Source, practice

__all__ = ["ENVIRONMENT", "Domain", "Episode", "Source", "practice"]

ENVIRONMENT = "prorsa/RoleAllocation-v0"

gym.register(ENVIRONMENT, entry_point="prorsa.control.learn.env:RoleAllocation")
