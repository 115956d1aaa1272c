"""Training of allocation policies: the Gymnasium environment over the simulator, and what trains in it."""
