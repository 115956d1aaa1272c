"""Keys on the bus and a token on the router: who has them works as before, who has not is kept out."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from prorsa.events import LlmPrefillEnd
from prorsa.rollout import Tracker
from tests.live.router.running import Client
from tests.live.stack.running import Stack, client_of, references, roll_out


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path, keys=True) as running:
        yield running


async def test_with_keys_and_token_everything_works_and_without_nothing_does(
    locked: Stack, http: aiohttp.ClientSession
) -> None:
    client = await client_of(locked, http)
    known = await references(client, 8, 2)
    turns = iter(range(4))
    assert locked.keys is not None
    with Tracker(locked.endpoints.ingest, run_id=locked.run.run_id, keys=locked.keys / "publisher.key") as tracker:
        ended = await roll_out(client, tracker, known, 8, lambda: next(turns, None) is not None, concurrency=2)
    assert all(trajectory.outputs == known[seed] for seed, trajectory in ended)
    assert any(isinstance(stamped.event, LlmPrefillEnd) for stamped in locked.events("llm.prefill_end"))
    accepted = locked.cli("override", "1:3", "--reason", "exercise")
    assert accepted.returncode == 0, accepted.stderr
    await locked.until(lambda: locked.status()["split"]["prefill"] == 1)

    status, _ = await Client(http, locked.url).post("/generate", {"input_ids": [5], "sampling_params": {}})
    assert status == 401
    keyless = _prorsa(locked, "status")
    assert keyless.returncode != 0
    assert "key" in keyless.stderr
    looker = _prorsa(locked, "freeze", "--reason", "no", "--keys", str(locked.keys / "viewer.key"))
    assert looker.returncode != 0
    assert _prorsa(locked, "status", "--keys", str(locked.keys / "viewer.key")).returncode == 0


def test_doctor_finds_the_pool_fit_and_says_what_is_wrong_with_another(locked: Stack) -> None:
    urls = [worker.url for worker in locked.pool.workers]
    fit = subprocess.run([sys.executable, "-m", "prorsa", "doctor", *urls], capture_output=True, text=True, check=False)
    assert fit.returncode == 0, fit.stdout
    assert fit.stdout.count("flippable") == 4
    alone = subprocess.run(
        [sys.executable, "-m", "prorsa", "doctor", urls[0], "http://127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 1
    assert "does not answer" in alone.stdout
    assert "one worker of each role" in alone.stdout


def _prorsa(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prorsa", *arguments, "--connect", str(stack.run.path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
