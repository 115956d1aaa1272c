"""Runs many independent cells of work: in this process, on the cores of this machine, or on a Ray cluster.

A cell is a name and a picklable call. Whatever runs them, the results are those of a serial run, in the order of the
cells; the first cell that fails ends the rest, and the error names it.

    results = run_cells([Cell("a", partial(work, 1)), Cell("b", partial(work, 2))], ProcessExecutor(jobs=2))

``work`` is a module-level function; its last argument, which the executor adds, tells how far the cell is (0 to 1).
"""

from prorsa.runner.cells import Cell, Executor, SerialExecutor, Tell, Watch, run_cells
from prorsa.runner.processes import ProcessExecutor

__all__ = ["Cell", "Executor", "ProcessExecutor", "SerialExecutor", "Tell", "Watch", "run_cells"]
