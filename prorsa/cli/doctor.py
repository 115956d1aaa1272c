"""``prorsa doctor`` on the command line."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from prorsa.cli.output import print_json
from prorsa.cluster.doctor import Finding, ask, examine
from prorsa.cluster.router.config import read_secret
from prorsa.errors import InputError
from prorsa.serve.config import load_config

_MARKS = {"ok": "ok      ", "warning": "warning ", "problem": "PROBLEM "}


def run_doctor(
    urls: Sequence[str], config: Path | None, key_file: Path | None, admin_key_file: Path | None, *, as_json: bool
) -> int:
    """Examine the workers; 1 if there is a problem.

    Raises:
        InputError: if there are no workers to look at.
        ConfigError: for a faulty configuration or key file.
    """
    known = list(urls)
    if config is not None:
        checked = load_config(config)
        known += [worker.url for router in checked.routers for worker in router.workers]
        key_file = key_file or _path(checked.workers.key_file)
        admin_key_file = admin_key_file or _path(checked.workers.admin_key_file)
    if not known:
        raise InputError("doctor: name the workers' URLs, or a configuration whose routers list them (--config)")
    key = read_secret(_name(key_file), "key_file")
    admin_key = read_secret(_name(admin_key_file), "admin_key_file")
    findings = examine(asyncio.run(ask(list(dict.fromkeys(known)), key=key, admin_key=admin_key)))
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        print("\n".join(map(_line, findings)))
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def _line(finding: Finding) -> str:
    remedy = f"\n         → {finding.remedy}" if finding.remedy else ""
    return f"{_MARKS[finding.level]} {finding.where}: {finding.text}{remedy}"


def _name(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(name: str | None) -> Path | None:
    return Path(name) if name else None
