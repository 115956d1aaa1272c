"""Cells: the same results in the same order whatever runs them, and failures that say which cell it was."""

import os
import time
from functools import partial
from pathlib import Path

import pytest

from prorsa.errors import CellError, ConfigError
from prorsa.runner import Cell, Executor, ProcessExecutor, SerialExecutor, run_cells
from tests.runner import work

EXECUTORS = [pytest.param(SerialExecutor(), id="serial"), pytest.param(ProcessExecutor(2), id="processes")]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_results_come_in_the_order_of_the_cells(executor: Executor) -> None:
    # The first cell takes longest: with several processes it ends last.
    cells = [Cell("long", partial(work.slow, 9, 0.4)), *(Cell(f"{x}", partial(work.square, x)) for x in range(4))]
    assert run_cells(cells, executor) == [9, 0, 1, 4, 9]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_no_cells_are_no_results(executor: Executor) -> None:
    assert run_cells([], executor) == []


@pytest.mark.parametrize("executor", EXECUTORS)
def test_progress_grows_and_ends_at_one(executor: Executor) -> None:
    seen: dict[int, list[float]] = {0: [], 1: []}
    cells = [Cell("a", partial(work.slow, 1, 1.2)), Cell("b", partial(work.square, 2))]
    run_cells(cells, executor, lambda number, share: seen[number].append(share))
    for shares in seen.values():
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
    assert len(seen[0]) > 2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_failure_names_its_cell(executor: Executor) -> None:
    cells = [Cell("fine", partial(work.square, 1)), Cell("coding-async-analytic-3", work.divide)]
    with pytest.raises(CellError, match=r"coding-async-analytic-3 failed: ZeroDivisionError: division by zero"):
        run_cells(cells, executor)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_bad_input_in_a_cell_is_bad_input(executor: Executor) -> None:
    with pytest.raises(ConfigError, match="no profile 'abacus'"):
        run_cells([Cell("bad", work.refuse)], executor)


def test_an_error_that_does_not_pickle_says_what_it_said() -> None:
    with pytest.raises(CellError, match=r"odd failed: RuntimeError: _UnsendableError: 1 and 2"):
        run_cells([Cell("odd", work.unsendable)], ProcessExecutor(1))


def test_a_process_that_dies_names_its_cell_and_ends_the_others(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    cells = [Cell("endless", partial(work.write_pid, str(pid_file))), Cell("doomed", partial(_die_after, pid_file))]
    with pytest.raises(CellError, match=r"doomed: its process died \(signal SIGKILL"):
        run_cells(cells, ProcessExecutor(2))
    assert _gone(int(pid_file.read_text()))


def _die_after(pid_file: Path, tell: object) -> int:
    """Die once the other cell runs."""
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.01)
    return work.die(lambda _share: None)


def test_an_interrupt_ends_every_process(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    cells = [Cell("endless", partial(work.write_pid, str(pid_file))), Cell("telling", _tell_often)]

    def interrupt(_number: int, _share: float) -> None:
        if pid_file.exists() and pid_file.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, ProcessExecutor(2), interrupt)
    assert _gone(int(pid_file.read_text()))


def _tell_often(tell: work.Tell) -> int:
    while True:
        time.sleep(0.05)
        tell(0.5)


def _gone(pid: int) -> bool:
    """Whether a process has ended; what its parent has not yet collected counts as ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("jobs", [0, -2])
def test_refuses_no_jobs(jobs: int) -> None:
    with pytest.raises(ConfigError, match=f"--jobs {jobs}: give 1 or more"):
        ProcessExecutor(jobs)
