"""The processes of a run: hub, controller, the embedded cluster, and the supervisor that keeps them up."""
