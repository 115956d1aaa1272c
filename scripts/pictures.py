"""Draws the pictures of the console in docs/pictures, from a recorded simulated run.

    python scripts/pictures.py                       records the scenario `drift-qwen` and draws it
    python scripts/pictures.py --journal DIR --at 600   draws another recording, 600 s into its run
    python scripts/pictures.py --live DIR --at 60       draws console-live from a recording of live workers

Each size is drawn as SVG by Textual. Where a Chromium is installed, the one of the README becomes a PNG too, since an
SVG of text depends on the fonts of whoever looks at it; ``--png`` makes them of all.
"""

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from prorsa.bus.journal import JournalReader
from prorsa.clock import nanoseconds
from prorsa.console.app import ProrsaConsole
from prorsa.console.commander import BusCommander
from prorsa.console.feeds import HISTORY_S, Sink
from prorsa.console.journal_desk import JournalDesk
from prorsa.console.look import Look
from prorsa.console.model import TOPICS
from prorsa.console.status import FeedStatus

SIZES = ((80, 24), (120, 40), (180, 50))
README = "console-120x40"
LIVE = "console-live"
DEMO_SPEED = 20.0
SCENARIO = "drift-qwen"
AT_S = 590.0
FOLDER = Path(__file__).parents[1] / "docs" / "pictures"


class Still:
    """A feed that stands at one moment of a recording and says what it would have said live, at that speed."""

    player = None

    def __init__(self, journal: Path, at_s: float, speed: float) -> None:
        self.directory = journal
        self.speed = speed
        self.at_ns = nanoseconds(at_s)
        with JournalReader(journal) as reader:
            self.position_seq = reader.seq_before(self.at_ns)

    def status(self) -> FeedStatus:
        """A live feed."""
        where = str(self.directory)
        return FeedStatus("live", "live", where, now_ns=self.at_ns, speed=self.speed, age_s=0.1, view_age_s=0.2)

    async def run(self, sink: Sink) -> None:
        """Fold the half hour before the moment."""
        with JournalReader(self.directory, strict=True) as reader:
            begin = reader.seq_before(max(self.at_ns - nanoseconds(HISTORY_S), 0))
            for stamped in reader.read(begin, self.position_seq, TOPICS):
                sink.apply(stamped)


class NoCommander(BusCommander):
    """Sends nothing, but lets the console offer its actions."""

    def __init__(self) -> None:
        """No hub to send to."""


def record(folder: Path) -> Path:
    """Simulate the scenario and record it."""
    journal = folder / "journal"
    prorsa = Path(sys.executable).with_name("prorsa")
    command = [prorsa, "simulate", SCENARIO, "--policy", "default", "--record", journal, "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return journal


async def draw(still: Still, size: tuple[int, int], keys: tuple[str, ...] = ()) -> str:
    """The console at that moment as SVG, after some keys."""
    desk = JournalDesk(still)
    app = ProrsaConsole(still, NoCommander(), look=Look(), tick_s=3600.0)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        app.model.stand(*await desk.trajectories())
        app.tick()
        await pilot.press(*keys)
        await pilot.pause()
        app.redraw()
        await pilot.pause()
        return app.export_screenshot(title="prorsa console")


def to_png(svg: Path, chromium: str) -> None:
    """Draw an SVG at twice its size with a headless Chromium."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg.read_text())
    assert found is not None
    size = f"{float(found[1]):.0f},{float(found[2]):.0f}"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=2"]
    png = svg.with_suffix(".png")
    command = [chromium, *flags, f"--window-size={size}", f"--screenshot={png}", svg.absolute().as_uri()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journal", type=Path, help="a recording; simulated if left out")
    parser.add_argument("--live", type=Path, help="a recording of live workers, for console-live alone")
    parser.add_argument("--at", type=float, default=AT_S, metavar="S", help="run time to draw")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the pictures")
    parser.add_argument("--png", action="store_true", help="make PNGs of all pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        if options.live:
            still, pictures = Still(options.live, options.at, 1.0), {LIVE: ((120, 40), ())}
        else:
            still = Still(options.journal or record(Path(folder)), options.at, DEMO_SPEED)
            pictures = {f"console-{width}x{height}": ((width, height), ()) for width, height in SIZES}
            pages = {"workers": "2", "trajectories": "3", "forecast": "4", "decisions": "5"}
            pictures |= {f"console-{page}": ((120, 40), tuple(keys)) for page, keys in pages.items()}
            pictures["console-light"] = ((120, 40), ("T",))
        for name, (size, keys) in pictures.items():
            svg = options.out / f"{name}.svg"
            svg.write_text(asyncio.run(draw(still, size, keys)))
            if chromium and (options.png or name in (README, LIVE)):
                to_png(svg, chromium)
            print(svg, file=sys.stderr)


if __name__ == "__main__":
    main()
