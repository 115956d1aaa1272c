"""What the cells of these tests do: module-level functions, which other processes can import."""

import os
import signal
import time

from prorsa.errors import ConfigError
from prorsa.runner import Tell


def square(x: int, tell: Tell) -> int:
    tell(0.5)
    return x * x


def slow(x: int, pause_s: float, tell: Tell) -> int:
    """Tells at each quarter of its time."""
    for quarter in range(4):
        time.sleep(pause_s / 4)
        tell(quarter / 4)
    return x


def die(tell: Tell) -> int:
    """As if memory had run out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def divide(tell: Tell) -> float:
    return 1 / 0


def refuse(tell: Tell) -> int:
    raise ConfigError("no profile 'abacus'")


class _UnsendableError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def unsendable(tell: Tell) -> int:
    raise _UnsendableError(1, 2)


def write_pid(path: str, tell: Tell) -> int:
    """Writes its process's id, then works for a minute."""
    with open(path, "w") as file:  # noqa: PTH123
        file.write(str(os.getpid()))
    time.sleep(60)
    return 0
