"""What a ``with`` block and an ``async with`` block have in common."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Scope(ABC):
    """A stretch of rollout code, marked by ``with``, by ``async with``, or by calls of ``start`` and ``end``.

    Entering and leaving never wait, so both kinds of block do the same; exceptions of the block go on as they are.
    """

    __slots__ = ()

    @abstractmethod
    def start(self) -> Self:
        """Mark the beginning."""

    @abstractmethod
    def _leave(self, error: BaseException | None) -> None:
        """Mark the end of the block, which ``error`` has ended, or None."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)
