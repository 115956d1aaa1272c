"""Runs inside the workers' environment: what SGLang does with the plugin in differently prepared processes.

usage: python -m tests.live.plugin.inside    (prints one JSON object: case → what was seen)
"""

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from prorsa.cluster.launch import WorkerOptions, server_arguments
from tests.plugin.scheduling import Scheduler


def main() -> None:
    """Import SGLang once and play each case in a child of its own."""
    import sglang.srt.disaggregation.mooncake.conn
    import sglang.srt.managers.scheduler  # noqa: F401

    json.dump({case.__name__: in_child(case) for case in CASES}, sys.stdout)


def stock() -> dict[str, Any]:
    """No plugin."""
    os.environ.pop("PRORSA_HUB", None)
    return load_and_flip()


def plugin() -> dict[str, Any]:
    """The plugin as it comes."""
    return load_and_flip()


def cold() -> dict[str, Any]:
    """The plugin without warm flips."""
    os.environ["PRORSA_RETAIN_CACHE"] = "0"
    return load_and_flip()


def unchecked_version() -> dict[str, Any]:
    """An SGLang that nobody has checked."""
    import sglang

    sglang.__version__ = "0.6.0"
    return load_and_flip()


def unchecked_version_forced() -> dict[str, Any]:
    """The same, where the user wants warm flips all the same."""
    os.environ["PRORSA_RETAIN_CACHE"] = "1"
    return unchecked_version()


def missing_target() -> dict[str, Any]:
    """An SGLang that has lost a function."""
    from sglang.srt.managers.scheduler import Scheduler as RealScheduler

    del RealScheduler.publish_load_snapshot
    return load_and_flip()


def wrong_setting() -> dict[str, Any]:
    """A setting that makes no sense."""
    os.environ["PRORSA_RETAIN_CACHE"] = "perhaps"
    return load_and_flip()


def flags() -> dict[str, Any]:
    """SGLang's own parser reads what Prorsa launches GPU workers with."""
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    seen = vars(parser.parse_args(server_arguments(WorkerOptions(model_path="m", role="decode", dp_size=2))))
    names = ("disaggregation_mode", "enable_pd_role_switch", "disaggregation_decode_enable_radix_cache", "dp_size")
    return {name: seen[name] for name in names}


CASES: tuple[Callable[[], dict[str, Any]], ...] = (
    stock,
    plugin,
    cold,
    unchecked_version,
    unchecked_version_forced,
    missing_target,
    wrong_setting,
    flags,
)


def load_and_flip() -> dict[str, Any]:
    """Load SGLang's plugins as a worker does, then release a prefix cache as a role switch does."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    from sglang.srt.disaggregation import role_switch
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry

    load_plugins()
    scheduler = Scheduler()
    role_switch._release_prefix_cache_for_role_switch(scheduler)
    return {
        "storage_wiped": scheduler.tree_cache.storage_wiped,
        "cache_kept": not scheduler.cleared,
        "patched": sorted(HookRegistry._patched),
        "said": said,
    }


def in_child(case: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Play a case in a forked process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.environ["PRORSA_HUB"] = "ipc:///nobody/listens"
        with os.fdopen(writing, "w") as out:
            json.dump(case(), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    seen: dict[str, Any] = json.loads(text)
    return seen


if __name__ == "__main__":
    main()
