"""Starts the console in a terminal: on a run by its directory or its sockets, or on a recording."""

import os
import sys
from pathlib import Path

from prorsa.bus.keys import Keys
from prorsa.bus.wire import Endpoints
from prorsa.console.app import ProrsaConsole
from prorsa.console.commander import BusCommander
from prorsa.console.desk import BusDesk
from prorsa.console.feeds import LiveFeed
from prorsa.console.look import ASCII, DARK, LIGHT, UNICODE, Look
from prorsa.errors import ConfigError, InputError

THEME_VARIABLE = "PRORSA_THEME"
"""Environment variable with the theme to begin with: ``dark`` (the default) or ``light``."""


def look_of_environment() -> Look:
    """ASCII if ``PRORSA_ASCII`` is set or the terminal's encoding is not UTF-8; no colour if ``NO_COLOR`` is set.

    Raises:
        ConfigError: if ``PRORSA_THEME`` names no theme.
    """
    theme = os.environ.get(THEME_VARIABLE, "dark")
    if theme not in ("dark", "light"):
        raise ConfigError(f"{THEME_VARIABLE}={theme}: there are dark and light")
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    only_ascii = bool(os.environ.get("PRORSA_ASCII")) or encoding != "utf8"
    glyphs, palette = ASCII if only_ascii else UNICODE, LIGHT if theme == "light" else DARK
    return Look(glyphs, colour="NO_COLOR" not in os.environ, palette=palette)


def run_console(
    *,
    run_dir: Path | None,
    endpoints: Endpoints | None,
    replay: Path | None,
    read_only: bool = False,
    owner: str,
    keys: Keys | None = None,
) -> int:
    """Run the console in this terminal until it is left; returns the exit code.

    Args:
        run_dir: a run to attach to, by its directory.
        endpoints: a run to attach to, by its sockets; found in ``run_dir`` if None.
        replay: a journal to play instead.
        read_only: send no commands.
        owner: in whose name commands are sent.
        keys: for a hub that asks for keys.

    Raises:
        InputError: if nothing is named to attach to or to play, or the journal cannot be read.
        UnavailableError: if there is no hub in ``run_dir``.
        RefusedError: if another run came to be served at the endpoints.
    """
    app = make_console(run_dir=run_dir, endpoints=endpoints, replay=replay, read_only=read_only, owner=owner, keys=keys)
    app.run()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0


def make_console(
    *,
    run_dir: Path | None,
    endpoints: Endpoints | None,
    replay: Path | None,
    read_only: bool,
    owner: str,
    keys: Keys | None = None,
) -> ProrsaConsole:
    """The console that :func:`run_console` runs; see there."""
    if replay is not None:
        # What a live console does not need would only make it slower to start.
        from prorsa.console.journal_desk import JournalDesk
        from prorsa.console.playback import JournalFeed

        recording = JournalFeed(replay)
        return ProrsaConsole(recording, None, desk=JournalDesk(recording), journal=replay, look=look_of_environment())
    if endpoints is None and run_dir is None:
        raise InputError("nothing to show: name a run directory, a hub's endpoints, or a journal to replay")
    if endpoints is None:
        assert run_dir is not None
        endpoints = Endpoints.load(run_dir)
    # A viewer's keys only look, whatever the command line says: the hub would refuse its commands.
    looks = read_only or (keys is not None and keys.role == "viewer")
    feed = LiveFeed(endpoints, where=str(run_dir) if run_dir is not None else None, keys=keys)
    return ProrsaConsole(
        feed,
        None if looks else BusCommander(endpoints, owner=owner, keys=keys),
        desk=BusDesk(endpoints, owner=owner, keys=keys),
        journal=run_dir / "journal" if run_dir is not None else None,
        look=look_of_environment(),
    )
