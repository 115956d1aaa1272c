"""Shows the console's screens in a real terminal (tmux), on a running embedded cluster, and keeps what was on them.

    python scripts/console_tour.py                 writes docs/pictures/console-tour.md
    python scripts/console_tour.py --out TOUR.md --scenario quick --speed 20

A demo is started, and a console attached to it in a terminal of each size. A worker is pinned from the outside, so that
there is something to see on the audit page. Every screen is captured as text, as an operator would see it.
"""

import argparse
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from prorsa.console.actions import PAGES

SIZES: Final = ((80, 24), (120, 40), (180, 50))
DETAILED: Final = ("workers", "decisions")
OUT: Final = Path(__file__).parents[1] / "docs" / "pictures" / "console-tour.md"
SETTLE_S: Final = 2.5
"""Wall seconds that a screen has to come up."""
UP_WITHIN_S: Final = 120.0
HEAD: Final = """# A tour of the console

Each screen of the console in a terminal of 80×24, 120×40 and 180×50, as `scripts/console_tour.py` captured it in tmux
from a run of the embedded cluster. Colours are left out; what they say is said by letters and signs too.
"""


def prorsa(*arguments: str) -> list[str]:
    """A command of this environment."""
    return [sys.executable, "-m", "prorsa", *arguments]


def tmux(*arguments: str) -> str:
    """Run tmux and return what it prints."""
    return subprocess.run(["tmux", *arguments], check=True, capture_output=True, text=True).stdout


@contextmanager
def demo(scenario: str, speed: float, run_dir: Path) -> Iterator[None]:
    """A demo without a console, up and deciding while the block runs."""
    command = prorsa("demo", "--headless", "--scenario", scenario, "--speed", f"{speed:g}", "--run-dir", str(run_dir))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + UP_WITHIN_S
        while subprocess.run(status(run_dir), capture_output=True, check=False).returncode:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit("the demo did not come up")
            time.sleep(1.0)
        yield
    finally:
        process.terminate()
        process.wait()


def status(run_dir: Path) -> list[str]:
    """Asks the run how it stands."""
    return prorsa("status", "--json", "--connect", str(run_dir))


def pin_one(run_dir: Path) -> None:
    """Something for the audit page."""
    reason = ["--reason", "long prompts land here", "--for", "30m", "--owner", "mara"]
    subprocess.run(prorsa("pin", "w1", "prefill", *reason, "--connect", str(run_dir)), check=True, capture_output=True)


@contextmanager
def terminal(size: tuple[int, int], run_dir: Path) -> Iterator[str]:
    """A console in a terminal of that size; gives the name of the tmux session."""
    name = f"tour-{uuid.uuid4().hex[:8]}"
    columns, rows = size
    console = " ".join(prorsa("console", "--connect", str(run_dir)))
    tmux("new-session", "-d", "-s", name, "-x", str(columns), "-y", str(rows), console)
    try:
        deadline_s = time.monotonic() + UP_WITHIN_S
        while "LIVE" not in screen(name):
            if time.monotonic() > deadline_s:
                raise SystemExit("the console did not come up")
            time.sleep(0.5)
        yield name
    finally:
        tmux("kill-session", "-t", name)


def screen(name: str) -> str:
    """What is on a terminal now."""
    return tmux("capture-pane", "-t", name, "-p").rstrip("\n")


def leave(name: str) -> None:
    """Escape from what is open; a key that followed at once would be taken for one pressed with Alt."""
    tmux("send-keys", "-t", name, "Escape")
    time.sleep(SETTLE_S)


def tour(name: str, size: tuple[int, int]) -> Iterator[str]:
    """The sections of one size."""
    yield f"\n## {size[0]}×{size[1]}\n"
    for number, page in enumerate(PAGES, 1):
        tmux("send-keys", "-t", name, str(number))
        time.sleep(SETTLE_S)
        yield section(page, screen(name))
        if page in DETAILED:
            tmux("send-keys", "-t", name, "Enter")
            time.sleep(SETTLE_S)
            yield section(f"{page}: details", screen(name))
            leave(name)
    tmux("send-keys", "-t", name, "1")
    tmux("send-keys", "-t", name, "P")
    time.sleep(2 * SETTLE_S)
    yield section("a dialog, with the controller's dry run", screen(name))
    leave(name)
    tmux("send-keys", "-t", name, "?")
    time.sleep(SETTLE_S)
    yield section("keys and commands", screen(name))


def section(title: str, text: str) -> str:
    """One screen under its title."""
    return f"\n### {title}\n\n```text\n{text}\n```\n"


def main() -> None:
    """Take the tour and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="coding-async")
    parser.add_argument("--speed", type=float, default=20.0, help="run seconds in a second")
    parser.add_argument("--run-in", type=float, default=30.0, metavar="S", help="wall seconds before the first capture")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    parts = [HEAD]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        with demo(given.scenario, given.speed, run_dir):
            pin_one(run_dir)
            time.sleep(given.run_in)
            for size in SIZES:
                with terminal(size, run_dir) as name:
                    parts += tour(name, size)
                print(f"{size[0]}×{size[1]}", file=sys.stderr)
    given.out.write_text("".join(parts))


if __name__ == "__main__":
    main()
