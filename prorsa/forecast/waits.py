"""Names of what a trajectory waits for and of what it does, as small integers that arrays can hold."""

from enum import IntEnum
from typing import Final

import numpy as np

MAX_TOOLS: Final = 256
MAX_WORKLOADS: Final = 16


class Wait(IntEnum):
    """Kinds of waits, and the keys of those that are told apart no further. Other keys belong to one of the kinds."""

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
    STEP_BREAK = 8
    """from the end of a step to the next one, whatever comes between"""
    UNKNOWN_TOOL = 9
    """a gap between two requests of which no tool event has told"""


class WaitKeys:
    """Numbers workload classes, tools by name and class, and their waits.

    An *action* is a tool of a class, or a class's beginning (what came before its first answer); action 0 is unknown.
    What an answer is like, and which tool follows it, depends on the action before it. Past ``MAX_TOOLS`` tools and
    ``MAX_WORKLOADS`` classes, further names count as unknown.

    Attributes:
        kind: the :class:`Wait` of each key; ``kinds`` int32[keys], the same.
        gap_key, output_key: int32 by action, keys of its own wait (a beginning has none of its own) and of the answer
            that follows it.
        workload_of: int32 by action.
    """

    def __init__(self) -> None:
        self.kind: list[int] = list(Wait)
        self.kinds = np.array(self.kind, np.int32)
        self.gap_key = np.array([Wait.UNKNOWN_TOOL], np.int32)
        self.output_key = np.array([Wait.OUTPUT], np.int32)
        self.workload_of = np.zeros(1, np.int32)
        self.workloads: list[str | None] = [None]
        self.start_key = [int(Wait.START)]
        self.reward_key = [int(Wait.REWARD)]
        self.beginning = [0]
        self._names: dict[str, int] = {}
        self._tools: dict[tuple[int, str], int] = {}
        self._tool_names: dict[int, str] = {}

    def workload(self, name: str | None) -> int:
        """The number of a workload class; 0 for one that is unknown."""
        if name is None:
            return 0
        known = self._names.get(name)
        if known is not None:
            return known
        if len(self.workloads) >= MAX_WORKLOADS:
            return 0
        number = self._names[name] = len(self.workloads)
        self.workloads.append(name)
        self.start_key.append(self._key(Wait.START))
        self.reward_key.append(self._key(Wait.REWARD))
        self.beginning.append(self._action(Wait.UNKNOWN_TOOL, number))
        return number

    def tool(self, name: str, workload: int = 0) -> int:
        """The action of the tool ``name`` in a workload class."""
        action = self._tools.get((workload, name))
        if action is not None:
            return action
        if len(self._tools) >= MAX_TOOLS:
            return 0
        key = self._key(Wait.UNKNOWN_TOOL)
        action = self._action(key, workload)
        self._tools[workload, name], self._tool_names[key] = action, name
        return action

    def tools_of(self, workload: int) -> dict[str, int]:
        """Actions of the tools of a class by name."""
        return {name: action for (number, name), action in self._tools.items() if number == workload}

    @property
    def actions(self) -> int:
        """How many actions there are."""
        return len(self.gap_key)

    def name(self, key: int) -> str | None:
        """The tool of a key; None for a wait that is no tool."""
        return self._tool_names.get(key)

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self.kind)

    def _key(self, kind: Wait) -> int:
        self.kind.append(kind)
        self.kinds = np.append(self.kinds, np.int32(kind))
        return len(self.kind) - 1

    def _action(self, gap_key: int, workload: int) -> int:
        self.gap_key = np.append(self.gap_key, np.int32(gap_key))
        self.output_key = np.append(self.output_key, np.int32(self._key(Wait.OUTPUT)))
        self.workload_of = np.append(self.workload_of, np.int32(workload))
        return len(self.gap_key) - 1
