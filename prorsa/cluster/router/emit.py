"""The router's events. Where there is no hub, or it is away, nothing changes for clients."""

from prorsa.bus.keys import Keys
from prorsa.bus.publisher import Publisher
from prorsa.events import Event


class Emitter:
    """Publishes events of the router; without a hub it does nothing.

    Args:
        hub: the hub's ingest endpoint, or None.
        name: the source's name.
        run_id: the run they belong to.

    The keys for a hub that asks for them are those that ``PRORSA_KEYS`` names.
    """

    def __init__(self, hub: str | None, name: str, run_id: str | None) -> None:
        self._publisher = None if hub is None else Publisher(hub, name, run_id=run_id, keys=Keys.find(None))

    def __call__(self, event: Event) -> None:
        """Publish an event; never blocks and never raises."""
        if self._publisher is not None:
            self._publisher.publish(event)

    def close(self) -> None:
        """Give what is buffered a moment to leave."""
        if self._publisher is not None:
            self._publisher.close(timeout_s=1.0)
