"""``ordered``: moves as many workers as it is told to, by whoever practises a policy on a simulated pool."""

from prorsa.control.policies.base import Context, Want, shifted


class Ordered:
    """Moves ``shift`` workers to prefill at the next decision, by the rules that hold for Prorsa's own policies.

    Attributes:
        shift: negative for workers to decode; 0 to stay.
        seen: the context of the last decision.
    """

    economy = True
    flips = True
    needs_forecast = True
    needs_events = True

    def __init__(self, name: str = "ordered") -> None:
        self.name = name
        self.shift = 0
        self.seen: Context | None = None

    def decide(self, context: Context) -> Want:
        """The present split with ``shift`` more prefill workers."""
        self.seen = context
        return Want(shifted(context, self.shift), f"told to move {self.shift:+d}")

    def state(self) -> str:
        """What it is told."""
        return str(self.shift)
