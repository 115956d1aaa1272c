"""Names of what a trajectory waits for, as small integers that arrays can hold."""

from enum import IntEnum
from typing import Final

MAX_TOOLS: Final = 256


class Wait(IntEnum):
    """The waits that are no tool. Numbers from ``len(Wait)`` on are tools."""

    START = 0
    """from the dispatch, or the start of the sandbox, to the sandbox or the first request"""
    RETURN = 1
    """from the end of a tool (or from a sandbox that is up) to the request that follows"""
    REWARD = 2
    """from the start of a reward to its end"""
    OUTPUT = 3
    """an answer under way; counted in output tokens, not in seconds"""
    STEP_GAP = 4
    """from the end of a step to the next dispatch"""
    UPDATE = 5
    """from the beginning of a weight update to its end"""
    RESUME = 6
    """from the end of a weight update to the next dispatch"""
    HINTED = 7
    """a wait whose owner said how long it takes; counted in multiples of that"""
    UNKNOWN_TOOL = 8
    """a gap between two requests of which no tool event has told"""


class WaitKeys:
    """Numbers tools by name; past ``MAX_TOOLS`` names, further ones count as unknown."""

    def __init__(self) -> None:
        self._tools: dict[str, int] = {}
        self._names: list[str] = []

    def tool(self, name: str) -> int:
        """The key of the tool ``name``."""
        key = self._tools.get(name)
        if key is not None:
            return key
        if len(self._tools) >= MAX_TOOLS:
            return Wait.UNKNOWN_TOOL
        key = len(Wait) + len(self._tools)
        self._tools[name] = key
        self._names.append(name)
        return key

    def name(self, key: int) -> str | None:
        """The tool of a key; None for a wait that is no tool."""
        index = key - len(Wait)
        return self._names[index] if 0 <= index < len(self._names) else None

    def __len__(self) -> int:
        """Keys in use: all of :class:`Wait` and the tools seen."""
        return len(Wait) + len(self._tools)
