"""Cells, what runs them, and how their results come together."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from prorsa.errors import CellError, ProrsaError

T = TypeVar("T")

Tell = Callable[[float], None]
"""Told by a cell how far it is, from 0 to 1, as often as it likes."""

Watch = Callable[[int, float], None]
"""Told the number of a cell and how far it is; 1 once its result is here."""


@dataclass(frozen=True, slots=True)
class Cell(Generic[T]):
    """One independent piece of work; ``work`` and what it returns must pickle, unless a serial executor runs it."""

    name: str
    work: Callable[[Tell], T]


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What has come of the cell ``number``: its result, or the error that ended it."""

    number: int
    result: T | None = None
    error: BaseException | None = None


class Executor(Protocol):
    """Runs cells somewhere."""

    def run(self, cells: Sequence[Cell[T]], watch: Watch) -> Iterator[Outcome[T]]:
        """The outcomes of all cells, as they come in; closing the iterator ends those that still run."""
        ...


def run_cells(cells: Sequence[Cell[T]], executor: Executor, watch: Watch = lambda _number, _share: None) -> list[T]:
    """Run all cells and return their results, in the order of the cells.

    Raises:
        ProrsaError: of the first cell that failed, as the cell raised it, where it is an error of the tree.
        CellError: where a cell failed otherwise, or its process died; names the cell.
    """
    results: dict[int, T] = {}
    outcomes = executor.run(cells, watch)
    try:
        for outcome in outcomes:
            if outcome.error is not None:
                raise _named(cells[outcome.number].name, outcome.error) from outcome.error
            results[outcome.number] = outcome.result  # type: ignore[assignment]
            watch(outcome.number, 1.0)
    finally:
        close = getattr(outcomes, "close", None)
        if close is not None:
            close()
    return [results[number] for number in range(len(cells))]


def _named(name: str, error: BaseException) -> BaseException:
    if isinstance(error, ProrsaError) or not isinstance(error, Exception):
        return error
    return CellError(f"{name} failed: {type(error).__name__}: {error}")


class SerialExecutor:
    """Runs cells one after the other, in this process."""

    def run(self, cells: Sequence[Cell[T]], watch: Watch) -> Iterator[Outcome[T]]:
        """See :meth:`Executor.run`."""
        for number, cell in enumerate(cells):
            try:
                result = cell.work(lambda share, number=number: watch(number, share))  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 - the root of a cell
                yield Outcome(number, error=error)
            else:
                yield Outcome(number, result)
