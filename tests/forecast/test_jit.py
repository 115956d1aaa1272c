"""What is compiled is compiled again when what it was made of changes, wherever that stands."""

import os
import subprocess
import sys
from pathlib import Path

KERNEL = """
from prorsa.forecast.jit import compiled
from rooms.numbers import SCALE

@compiled
def scaled(value: float) -> float:
    return SCALE * value
"""
ASK = "from rooms.kernel import scaled; print(scaled(1.0), sum(scaled.stats.cache_hits.values()))"


def ask(folder: Path) -> list[float]:
    """The answer of a fresh process, and how many functions it took from the cache."""
    paths = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    run = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(word) for word in run.stdout.split()]


def test_a_constant_of_another_file_is_no_longer_the_old_one_once_it_has_changed(tmp_path: Path) -> None:
    rooms = tmp_path / "rooms"
    rooms.mkdir()
    (rooms / "__init__.py").write_text("")
    (rooms / "kernel.py").write_text(KERNEL)
    (rooms / "numbers.py").write_text("SCALE = 2.0\n")
    assert ask(tmp_path) == [2.0, 0.0]
    assert ask(tmp_path) == [2.0, 1.0]
    (rooms / "numbers.py").write_text("SCALE = 3.25\n")
    assert ask(tmp_path) == [3.25, 0.0]
    assert ask(tmp_path) == [3.25, 1.0]
