"""The router as a process of its own."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import msgspec
import structlog
from aiohttp import web

from prorsa.cluster.router.app import make_app
from prorsa.cluster.router.config import RouterConfig
from prorsa.errors import ConfigError, ProrsaError

log = structlog.get_logger(__name__)


def run_router(config: RouterConfig) -> None:
    """Serve until SIGTERM or SIGINT."""
    asyncio.run(serve(config))


async def serve(config: RouterConfig, stop: asyncio.Event | None = None) -> None:
    """Serve until ``stop`` is set, or a signal asks to end."""
    stop = stop or _on_signals()
    runner = web.AppRunner(make_app(config), handler_cancellation=True, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, config.host, config.port)
        await site.start()
        log.info("router listens", addresses=[str(address) for address in runner.addresses])
        await stop.wait()
    except OSError as error:
        raise ConfigError(f"router cannot listen on {config.host}:{config.port}: {error.strerror}") from error
    finally:
        await runner.cleanup()


def load_config(path: Path) -> RouterConfig:
    """Read a router's configuration from a TOML file, or from JSON if its name ends so.

    Raises:
        ConfigError: if it cannot be read or does not fit; names the field.
    """
    decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
    try:
        return decode(path.read_bytes(), type=RouterConfig)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def _on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def main(arguments: list[str] | None = None) -> int:
    """``python -m prorsa.cluster.router CONFIG.toml``."""
    parser = argparse.ArgumentParser(prog="python -m prorsa.cluster.router", description=__doc__)
    parser.add_argument("config", type=Path, help="TOML or JSON file with the fields of RouterConfig")
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        run_router(load_config(parser.parse_args(arguments).config))
    except ProrsaError as error:
        print(f"prorsa router: {error}", file=sys.stderr)
        return error.exit_code
    return 0
