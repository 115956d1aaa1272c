"""Run directories: where a run keeps its journal, sockets, pids and logs, and how a client finds the newest one."""

import fcntl
import os
import secrets
from datetime import datetime
from pathlib import Path
from typing import IO

import msgspec

from prorsa.errors import ConfigError, RefusedError, UnavailableError
from prorsa.run import AnyPlan

_LOCK_FILE = "run.lock"
_PLAN_FILE = "run.json"
_RESULT_FILE = "result.json"


class RunDir:
    """The paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def run_id(self) -> str:
        """The run's id, which is the directory's name."""
        return self.path.name

    @property
    def journal(self) -> Path:
        """Directory of the journal."""
        return self.path / "journal"

    @property
    def checkpoint(self) -> Path:
        """The embedded cluster's state, so that its process can be restarted."""
        return self.path / "cluster.npz"

    @property
    def cluster_ready(self) -> Path:
        """Exists once the embedded cluster is compiled and loaded."""
        return self.path / "cluster.ready"

    def log(self, process: str) -> Path:
        """Log file of a process."""
        return self.path / "logs" / f"{process}.log"

    def pid_file(self, process: str) -> Path:
        """File that holds the pid of a process while it runs."""
        return self.path / "pids" / process

    def create(self, *, resume: bool = False) -> None:
        """Make the directory and its folders.

        Raises:
            ConfigError: if it cannot be made, or holds a run and is not to be resumed.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not resume and (self.path / _PLAN_FILE).exists():
                raise ConfigError(f"{self.path} already holds a run; name another directory or remove it")
            for folder in ("logs", "pids"):
                (self.path / folder).mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(f"run directory {self.path}: {error.strerror}; name one that can be written") from error

    def hold(self) -> None:
        """Mark the run as live for as long as this process is; a supervisor does so.

        Raises:
            RefusedError: if it is live already.
        """
        self._lock = (self.path / _LOCK_FILE).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedError(
                f"{self.path} is live already: stop that one first, or name another directory"
            ) from error

    @property
    def live(self) -> bool:
        """Whether a supervisor holds the run."""
        try:
            with (self.path / _LOCK_FILE).open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def save_plan(self, plan: AnyPlan) -> None:
        """Write what the processes are told."""
        _write(self.path / _PLAN_FILE, msgspec.json.format(msgspec.json.encode(plan), indent=2))

    def load_plan(self) -> AnyPlan:
        """Read what the supervisor has written.

        Raises:
            ConfigError: if it is missing or does not fit.
        """
        path = self.path / _PLAN_FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=AnyPlan)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{path}: {error}; start the run again") from error

    def save_result(self, result: dict[str, object]) -> None:
        """Write what the embedded cluster reports at its end."""
        _write(self.path / _RESULT_FILE, msgspec.json.encode(result))

    def load_result(self) -> dict[str, object] | None:
        """Read the report; None while there is none."""
        try:
            result: dict[str, object] = msgspec.json.decode((self.path / _RESULT_FILE).read_bytes())
        except OSError:
            return None
        return result


def runs_root() -> Path:
    """Where runs are kept: ``$XDG_STATE_HOME/prorsa/runs``, by default below ``~/.local/state``."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "prorsa" / "runs"


def new_run_dir(scenario: str) -> RunDir:
    """A directory for a new run: scenario, local time, and four letters so that two never meet."""
    started = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return RunDir(runs_root() / f"{scenario}-{started}-{secrets.token_hex(2)}")


def find_run(connect: Path | None) -> RunDir:
    """The run that a client means: the directory it names, else the newest live run.

    Raises:
        UnavailableError: if there is no such run, or no live one.
    """
    if connect is not None:
        if not connect.is_dir():
            raise UnavailableError(f"no run directory {connect}; `--connect` takes the directory that the run printed")
        return RunDir(connect)
    root = runs_root()
    runs = [RunDir(path) for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    live = [run for run in runs if run.live]
    if not live:
        raise UnavailableError(f"no live run below {root}; start one (prorsa demo), or name its directory (--connect)")
    return max(live, key=lambda run: run.path.stat().st_mtime_ns)


def _write(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_bytes(content)
    draft.replace(path)
