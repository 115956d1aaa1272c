"""One process that has imported SGLang and forks workers on demand: two seconds a worker instead of thirty.

Reads one JSON object a line from standard input, ``{"argv": [...], "env": {...}, "log": PATH}``, forks a worker that
runs SGLang's own server with these arguments, and answers ``{"pid": PID}``; ``{"ready": true}`` says that it can. The
worker and its scheduler and detokenizer are a process group of their own. The end of the input ends all workers.
"""

import gc
import json
import multiprocessing
import os
import select
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

REAP_S = 0.2


def import_everything() -> None:
    """Import what a worker's three processes need, so that they share it."""
    import mooncake.engine  # noqa: F401
    import sglang.launch_server
    import sglang.srt.disaggregation.mooncake.conn
    import sglang.srt.entrypoints.http_server
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.models.registry  # noqa: F401 - imports every model
    import torch._inductor.select_algorithm  # noqa: F401


def run_worker(argv: list[str], env: dict[str, str], log: str) -> None:
    """Become a worker; returns when its server has ended."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(env)
    # Each worker needs a metrics folder of its own; the library reads the variable when it makes a metric.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(dir=os.environ["PROMETHEUS_MULTIPROC_DIR"])
    set_start_method = multiprocessing.set_start_method
    # The server asks for spawned children, which would import everything again.
    multiprocessing.set_start_method = lambda *_, **__: set_start_method("fork", force=True)
    sys.argv = ["sglang.launch_server", *argv]
    from sglang.launch_server import kill_process_tree, load_plugins, prepare_server_args, run_server

    load_plugins()
    try:
        run_server(prepare_server_args(argv))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


def fork_worker(order: dict[str, Any]) -> int:
    """Fork a worker; returns its process id in the parent and never returns in the child."""
    pid = os.fork()
    if pid == 0:
        try:
            run_worker(order["argv"], order["env"], order["log"])
        finally:
            os._exit(1)
    return pid


def reap(pids: set[int]) -> None:
    """Take note of workers that have ended."""
    for pid in list(pids):
        if os.waitpid(pid, os.WNOHANG)[0]:
            pids.discard(pid)


def serve(pids: set[int]) -> None:
    """Fork a worker for each line of the input, until its end."""
    while True:
        if select.select([sys.stdin], [], [], REAP_S)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            pid = fork_worker(json.loads(line))
            pids.add(pid)
            print(json.dumps({"pid": pid}), flush=True)
        reap(pids)


def main() -> None:
    """Import, announce, serve; end all workers at the end."""
    metrics = tempfile.mkdtemp(prefix="prorsa-metrics-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
    pids: set[int] = set()
    try:
        import_everything()
        gc.collect()
        gc.freeze()
        print(json.dumps({"ready": True, "threads": len(list(Path("/proc/self/task").iterdir()))}), flush=True)
        serve(pids)
    finally:
        for pid in pids:
            os.killpg(pid, signal.SIGKILL)
        shutil.rmtree(metrics, ignore_errors=True)


if __name__ == "__main__":
    main()
