"""Making performance profiles: from AIConfigurator, from measured rows, and from a live worker's counters."""
