"""What the console costs and how far behind it is: a real hub, a busy bus, the console in a terminal of its own.

    python -m benchmarks.console [--workers 512] [--rate 10000] [--seconds 15] [--json]

A publisher sends events of requests and tools at the given rate, and the aggregate of so many workers twice a second,
as a controller does. Each aggregate has a mark in its policy's name; the time until that mark comes out of the terminal
of the console is the time from event to screen. CPU time is that of the console's process, as a share of one core, on
each of two screens. Start-up is from the start of the process to the first aggregate on its screen; its CPU time is
given beside it, since others may use the machine.
"""

import argparse
import fcntl
import json
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prorsa.bus.publisher import Publisher
from prorsa.bus.wire import Endpoints
from prorsa.clock import nanoseconds
from prorsa.events import AnyEvent, Forecast, ForecastRow, LlmSubmit, Split, ToolEnd, ToolStart, View, WorkerView

COLUMNS: Final = 140
ROWS: Final = 45
VIEW_EVERY_S: Final = 0.5
START_TIMEOUT_S: Final = 30.0
TARGETS: Final = {"cpu_share": 0.25, "latency_s": 1.0, "first_data_s": 1.5}
SOURCES: Final = ("ready", "tool", "sampler", "ewma", "last")
_MARK: Final = re.compile(rb"mark(\d{6})")
_CLOCK_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def view(number: int, workers: int, t_s: float) -> View:
    """An aggregate of that many workers, every one of them a little different from the one before."""
    rows = tuple(
        WorkerView(
            f"w{index}",
            "prefill" if index % 2 else "decode",
            "serving",
            index % 7,
            queued=(index + number) % 9,
            running=(3 * index + number) % 40,
            kv_used=(7919 * (index + number)) % 700_000,
            kv_cached=300_000,
            kv_capacity=719_000,
            prefill_tokens_per_s=float((31 * index + number) % 20_000),
            output_tokens_per_s=float((17 * index + number) % 2_000),
            busy=((index + number) % 100) / 100,
            age_s=0.4,
        )
        for index in range(workers)
    )
    return View(
        tick_ns=nanoseconds(t_s),
        upto_hub_seq=number,
        mode="auto",
        policy=f"mark{number:06d}",
        split=Split(workers // 2, workers - workers // 2),
        workers=rows,
        trajectories={"ready": 90, "prefill": 140, "decode": 610, "tool": 380, "reward": 3, "done": number},
        forecast=forecast_rows(number),
        output_tokens_per_s=684_000.0,
        prefill_tokens_per_s=5_820_000.0,
        idle=0.12,
    )


def forecast_rows(number: int) -> tuple[ForecastRow, ...]:
    """As many rows as a real forecast has."""
    rows = []
    for target in ("prefill", "decode_admission", "kv_need"):
        for horizon_s in (5.0, 15.0, 30.0, 60.0):
            value = 1e5 * (1 + number % 13)
            rows.append(ForecastRow(target, horizon_s, "total", value, 0.8 * value, value, 1.3 * value))
            rows += [
                ForecastRow(target, horizon_s, name, value) for name in ("ready", "tool", "sampler", "ewma", "last")
            ]
    return tuple(rows)


def traffic() -> Iterator[AnyEvent]:
    """Events of requests and tools, without end."""
    number = 0
    while True:
        number += 1
        name = f"t{number % 4096:05d}"
        yield ToolStart(trajectory_id=name, tool_name="bash", expected_s=4.0)
        yield ToolEnd(trajectory_id=name, tool_name="bash", status="ok", output_tokens=310)
        yield LlmSubmit(
            trajectory_id=name, request_id=f"{name}-{number}", attempt=0, turn=number % 20, prompt_tokens=20_000
        )


def publish(run_dir: Path, workers: int, rate: float) -> None:
    """The publisher's process: send until killed, and write when each mark was sent to standard output."""
    began_s = time.monotonic()
    events, sent, number, view_at_s = traffic(), 0, 0, 0.0
    with Publisher(Endpoints.load(run_dir).ingest, "load") as publisher:
        while True:
            now_s = time.monotonic() - began_s
            if now_s >= view_at_s:
                number, view_at_s = number + 1, now_s + VIEW_EVERY_S
                aggregate = view(number, workers, now_s)
                print(f"{number} {time.monotonic():.6f} {sent}", flush=True)
                publisher.publish(aggregate)
                publisher.publish(
                    Forecast(
                        tick_ns=aggregate.tick_ns, upto_hub_seq=number, live_trajectories=1223, rows=aggregate.forecast
                    )
                )
            for _ in range(max(0, min(int(rate * now_s) - sent, 500))):
                publisher.publish(next(events))
                sent += 1
            time.sleep(0.005)


@dataclass
class Terminal:
    """The console in a pseudo-terminal, and when each mark came out of it."""

    pid: int
    file: int
    seen_s: dict[int, float] = field(default_factory=dict)
    _rest: bytes = b""

    @classmethod
    def open(cls, run_dir: Path) -> "Terminal":
        """Start the console."""
        pid, file = pty.fork()
        if pid == 0:
            os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
            command = [sys.executable, "-m", "prorsa", "console", "--connect", str(run_dir), "--read-only"]
            os.execv(sys.executable, command)
        fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        return cls(pid, file)

    def read_for(self, length_s: float, *, until_mark: bool = False) -> None:
        """Take what comes out for some time."""
        end_s = time.monotonic() + length_s
        while (left_s := end_s - time.monotonic()) > 0 and not (until_mark and self.seen_s):
            if select.select([self.file], [], [], left_s)[0]:
                data = self._rest + os.read(self.file, 1 << 16)
                now_s = time.monotonic()
                for found in _MARK.finditer(data):
                    self.seen_s.setdefault(int(found[1]), now_s)
                self._rest = data[-16:]

    def cpu_s(self) -> float:
        """CPU time of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS_PER_S

    def press(self, keys: str) -> None:
        """Type something."""
        os.write(self.file, keys.encode())

    def close(self) -> None:
        """End the console."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.file)


def measure(workers: int, rate: float, seconds: float) -> dict[str, Any]:
    """One run of hub, publisher and console."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        hub = subprocess.Popen([sys.executable, "-m", "prorsa.bus.hub", "--run-dir", folder], stderr=subprocess.DEVNULL)
        try:
            wait_for(run_dir / "endpoints.json")
            load = [sys.executable, "-m", "benchmarks.console", "--publish", folder]
            command = [*load, "--workers", str(workers), "--rate", str(rate)]
            publisher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                time.sleep(3.0)
                found = watch(run_dir, seconds)
            finally:
                publisher.kill()
            assert publisher.stdout is not None
            sent = [line.split() for line in publisher.stdout.read().splitlines()]
        finally:
            hub.terminate()
            hub.wait()
    return summary(
        {int(n): (float(at_s), int(events)) for n, at_s, events in (row for row in sent if len(row) == 3)}, found
    )


@dataclass
class Watched:
    """What was seen of one console: CPU shares by screen, start-up, and when each mark came."""

    first_data_s: float
    first_data_cpu_s: float
    cpu_share: dict[str, float]
    seen_s: dict[int, float]
    from_s: float
    to_s: float


def watch(run_dir: Path, seconds: float) -> Watched:
    """Open a console, and look at two of its screens for so long each."""
    started_s = time.monotonic()
    terminal = Terminal.open(run_dir)
    try:
        terminal.read_for(START_TIMEOUT_S, until_mark=True)
        if not terminal.seen_s:
            raise SystemExit("the console showed no data in time")
        first_s, first_cpu_s = min(terminal.seen_s.values()) - started_s, terminal.cpu_s()
        terminal.read_for(3.0)
        begin_s, shares = time.monotonic(), {}
        for name, key in (("overview", "1"), ("workers", "2")):
            terminal.press(key)
            terminal.read_for(1.0)
            before_s, at_s = terminal.cpu_s(), time.monotonic()
            terminal.read_for(seconds)
            shares[name] = (terminal.cpu_s() - before_s) / (time.monotonic() - at_s)
        return Watched(first_s, first_cpu_s, shares, dict(terminal.seen_s), begin_s, time.monotonic())
    finally:
        terminal.close()


def summary(sent: dict[int, tuple[float, int]], watched: Watched) -> dict[str, Any]:
    """The figures, and whether each meets its target."""
    within = {n: row for n, row in sent.items() if watched.from_s <= row[0] <= watched.to_s - 2.0}
    delays = [watched.seen_s[n] - at_s for n, (at_s, _) in within.items() if n in watched.seen_s]
    first, last = min(within), max(within)
    events = (within[last][1] - within[first][1]) / (within[last][0] - within[first][0])
    figures = {
        "first_data_s": round(watched.first_data_s, 2),
        "first_data_cpu_s": round(watched.first_data_cpu_s, 2),
        "cpu_share": {name: round(share, 3) for name, share in watched.cpu_share.items()},
        "latency_s": {
            "median": round(statistics.median(delays), 3),
            "worst": round(max(delays), 3),
            "drawn": f"{len(delays)} of {len(within)}",
        },
        "events_per_s": round(events),
    }
    met = {
        "cpu_share": max(watched.cpu_share.values()) < TARGETS["cpu_share"],
        "latency_s": max(delays) < TARGETS["latency_s"],
        "first_data_s": watched.first_data_s < TARGETS["first_data_s"],
    }
    return {**figures, "targets": TARGETS, "met": met}


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{path.name} did not come")
        time.sleep(0.05)


def main() -> None:
    """Run, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=512)
    parser.add_argument("--rate", type=float, default=10_000.0, help="events a second on the bus")
    parser.add_argument("--seconds", type=float, default=15.0, help="time on each screen")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--publish", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.publish:
        publish(given.publish, given.workers, given.rate)
        return
    found = measure(given.workers, given.rate, given.seconds)
    if given.json:
        print(json.dumps({"console": found}))
        return
    for name, figure in found.items():
        print(f"{name}: {figure}")


if __name__ == "__main__":
    main()
