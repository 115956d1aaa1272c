"""A pool of real SGLang workers on this machine's CPU, for tests and benchmarks.

Needs the environment that ``make sglang-env`` builds; runs in any Python, since the workers are processes::

    with Pool(["prefill", "decode"]) as pool:
        prefill, decode = pool.workers

Workers are forked from one process that has imported SGLang (:mod:`testbed.zygote`), so that a pool is up after the
time of one import and a further worker takes two seconds.
"""

import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from prorsa.cluster.launch import WorkerOptions, launch_environment, server_arguments
from testbed import client

ROOT: Final = Path(__file__).parents[1]
PYTHON: Final = ROOT / ".venv-sglang" / "bin" / "python"
PAGE_TOKENS: Final = 16
KV_TOKENS: Final = 8192
CONTEXT_TOKENS: Final = 2048
START_S: Final = 120.0

Role = Literal["prefill", "decode"]

_FLAGS: Final = (
    *("--max-total-tokens", str(KV_TOKENS), "--context-length", str(CONTEXT_TOKENS)),
    *("--served-model-name", "tiny", "--skip-server-warmup"),
)


class BedError(RuntimeError):
    """The test bed is not there, or a worker did not start; names the log."""


@dataclass(slots=True)
class Worker:
    """One worker process group. ``role`` is the role of its launch; ask :meth:`live_role` for the present one."""

    name: str
    role: Role
    port: int
    bootstrap_port: int
    log: Path
    pid: int | None = None
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Its HTTP address."""
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, timeout_s: float = 30.0) -> Any:
        """GET as JSON; raises :class:`testbed.client.HttpError` on a status that is not 200."""
        return client.request("GET", self.url + path, None, timeout_s)

    def post(self, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 60.0) -> Any:
        """POST JSON; raises :class:`testbed.client.HttpError` on a status that is not 200."""
        return client.request("POST", self.url + path, body or {}, timeout_s)

    def is_ready(self) -> bool:
        """Whether it takes requests."""
        try:
            self.get("/ready", timeout_s=5.0)
        except (client.HttpError, OSError):
            return False
        return True

    def live_role(self) -> str:
        """The role that it has now."""
        role: str = self.get("/model_info")["disaggregation_mode"]
        return role

    def switch(self, role: Role) -> Any:
        """Switch its role; it must be idle."""
        # There are no graphs to capture on a CPU, but SGLang wants to hear how much room they may take.
        return self.post("/pd_role_switch", {"new_role": role, "decode_cuda_graph_memory_gb": 0})

    def load(self) -> dict[str, Any]:
        """Its load as SGLang reports it."""
        loads: list[dict[str, Any]] = self.get("/v1/loads")["loads"]
        return loads[0]

    def wait_idle(self, timeout_s: float = 20.0) -> None:
        """Wait until nothing runs, waits or holds KV outside of the prefix cache."""
        deadline = time.monotonic() + timeout_s
        while True:
            load = self.load()
            busy = load["num_running_reqs"], load["num_waiting_reqs"], load["num_used_tokens"]
            queues = [count for name, count in load["disaggregation"].items() if name.endswith("_reqs")]
            if not any(busy) and not any(queues):
                return
            if time.monotonic() > deadline:
                raise BedError(f"{self.name} is not idle after {timeout_s} s: {load}")
            time.sleep(0.02)

    def log_text(self) -> str:
        """What it has logged since its first start."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Pool:
    """Workers A, B, C, … in the given roles, ready when the constructor returns.

    Args:
        roles: one for each worker.
        hub: a hub's ingest endpoint; turns Prorsa's plugin on in each worker.
        run_id: the run that the plugin's events belong to.
        env: further environment variables of every worker.
        flags: further SGLang arguments of every worker.
        home: folder for the model and the logs; None is a new temporary one.

    Raises:
        BedError: if the environment is missing or a worker does not start.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        *,
        hub: str | None = None,
        run_id: str | None = None,
        env: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
        home: Path | None = None,
    ) -> None:
        if not PYTHON.exists():
            raise BedError(f"{PYTHON} is missing: run `make sglang-env`")
        self.home = home or Path(tempfile.mkdtemp(prefix="prorsa-bed-"))
        self.model = model(self.home)
        self.workers: list[Worker] = []
        self._hub, self._run_id, self._env, self._flags = hub, run_id, dict(env or {}), tuple(flags)
        self._zygote = self._start_zygote()
        try:
            for role in roles:
                self.add(role, wait=False)
            for worker in self.workers:
                self.wait_ready(worker)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __getitem__(self, name: str) -> Worker:
        return next(worker for worker in self.workers if worker.name == name)

    def add(
        self, role: Role, *, flags: Sequence[str] = (), env: Mapping[str, str] | None = None, wait: bool = True
    ) -> Worker:
        """Start one more worker."""
        name = chr(ord("A") + len(self.workers))
        port, bootstrap_port = free_ports(2)
        worker = Worker(
            name, role, port, bootstrap_port, self.home / f"{name}.log", flags=tuple(flags), env=dict(env or {})
        )
        self.workers.append(worker)
        self._launch(worker)
        if wait:
            self.wait_ready(worker)
        return worker

    def kill(self, worker: Worker) -> None:
        """SIGKILL to the worker's whole process group, as when its machine dies."""
        if worker.pid is not None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.pid = None

    def restart(self, worker: Worker, role: Role | None = None) -> None:
        """Kill the worker and start it again on the same ports, in its launch role unless told otherwise."""
        self.kill(worker)
        worker.role = role or worker.role
        self._launch(worker)
        self.wait_ready(worker)

    def wait_ready(self, worker: Worker, timeout_s: float = START_S) -> None:
        """Wait until the worker takes requests."""
        deadline = time.monotonic() + timeout_s
        while True:
            if worker.is_ready():
                return
            if worker.pid is None or not Path(f"/proc/{worker.pid}").exists():
                raise BedError(f"{worker.name} ended while starting: {_tail(worker.log)}")
            if time.monotonic() > deadline:
                raise BedError(f"{worker.name} is not ready after {timeout_s} s: {_tail(worker.log)}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End all workers and the process that they came from."""
        for worker in self.workers:
            self.kill(worker)
        if self._zygote.poll() is None:
            assert self._zygote.stdin is not None
            self._zygote.stdin.close()
            try:
                self._zygote.wait(10.0)
            except subprocess.TimeoutExpired:
                self._zygote.kill()
                self._zygote.wait()
        if self._zygote.stdout is not None:
            self._zygote.stdout.close()

    def _start_zygote(self) -> "subprocess.Popen[str]":
        environment = {**os.environ, **launch_environment(self._options("prefill", 1, 2))}
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "MC_FORCE_TCP": "1", **self._env}
        environment.pop("VIRTUAL_ENV", None)
        with (self.home / "zygote.log").open("a") as log:
            zygote = subprocess.Popen(
                [PYTHON, "-m", "testbed.zygote"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        _answer(zygote, "ready", self.home / "zygote.log")
        return zygote

    def _launch(self, worker: Worker) -> None:
        options = self._options(worker.role, worker.port, worker.bootstrap_port, worker.name, worker.flags)
        env = {**launch_environment(options), **self._env, **worker.env}
        order = {"argv": server_arguments(options), "env": env, "log": str(worker.log)}
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(json.dumps(order) + "\n")
        self._zygote.stdin.flush()
        worker.pid = _answer(self._zygote, "pid", self.home / "zygote.log")

    def _options(
        self, role: Role, port: int, bootstrap_port: int, name: str | None = None, flags: tuple[str, ...] = ()
    ) -> WorkerOptions:
        return WorkerOptions(
            model_path=str(self.model),
            role=role,
            device="cpu",
            port=port,
            bootstrap_port=bootstrap_port,
            page_size=PAGE_TOKENS,
            max_running_requests=16,
            dtype="float32",
            hub=self._hub,
            run_id=self._run_id,
            worker_id=name,
            extra=(*_FLAGS, *self._flags, *flags),
        )


def model(home: Path, seed: int = 0) -> Path:
    """The tiny model with the weights of ``seed``, made on first use; kept beside the environment."""
    folder = PYTHON.parents[1] / "models" / f"tiny-{seed}"
    if not (folder / "config.json").exists():
        draft = Path(tempfile.mkdtemp(dir=home)) / "model"
        subprocess.run([PYTHON, "-m", "testbed.model", draft, str(seed)], cwd=ROOT, check=True, capture_output=True)
        folder.parent.mkdir(exist_ok=True)
        try:
            draft.rename(folder)
        except OSError:  # another run was first, or the temporary folder is on another disk
            if not (folder / "config.json").exists():
                return draft
    return folder


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the system gives to outgoing connections."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def _answer(zygote: "subprocess.Popen[str]", key: str, log: Path) -> Any:
    """The next answer of the zygote; whatever else the imports print is passed over."""
    assert zygote.stdout is not None
    for line in zygote.stdout:
        if line.startswith("{"):
            return json.loads(line)[key]
    raise BedError(f"the zygote has ended: {_tail(log)}")


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    return f"{log}: " + " | ".join(text.splitlines()[-8:])
