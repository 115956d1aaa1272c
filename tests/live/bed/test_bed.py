"""The test bed itself: real workers, as its users rely on them."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.client import HttpError, generate
from testbed.pool import PYTHON, ROOT, BedError, Pool, free_ports

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(["prefill", "decode"]) as running:
        yield running


def test_a_pair_answers_and_repeats_itself(pool: Pool) -> None:
    prefill, decode = pool.workers
    answers = [generate(prefill, decode, range(3, 100), 12) for _ in range(2)]
    assert answers[0].output_ids == answers[1].output_ids
    assert (len(answers[0].output_ids), answers[0].finish_reason) == (12, "length")


def test_workers_say_who_they_are(pool: Pool) -> None:
    assert [worker.live_role() for worker in pool.workers] == ["prefill", "decode"]
    assert pool["B"] is pool.workers[1]
    assert len({worker.url for worker in pool.workers} | {worker.bootstrap_port for worker in pool.workers}) == 4


def test_a_worker_switches_its_role(pool: Pool) -> None:
    prefill = pool.workers[0]
    prefill.wait_idle()
    assert prefill.switch("decode")["success"]
    assert prefill.live_role() == "decode"
    prefill.switch("prefill")


def test_a_killed_worker_is_gone_and_a_restarted_one_is_back_on_its_ports(pool: Pool) -> None:
    decode = pool.workers[1]
    url, pid = decode.url, decode.pid
    assert pid is not None
    pool.kill(decode)
    assert not decode.is_ready()
    pool.restart(decode, "prefill")
    assert (decode.url, decode.live_role()) == (url, "prefill")
    assert not Path(f"/proc/{pid}").exists(), "nothing of it is left"
    pool.restart(decode, "decode")
    generate(pool.workers[0], decode, range(3, 50), 4)


def test_a_refusal_is_an_error_with_its_status(pool: Pool) -> None:
    with pytest.raises(HttpError) as error:
        pool.workers[0].post("/pd_role_switch", {"new_role": "both"})
    assert error.value.status == 400


def test_a_worker_that_cannot_start_is_reported_with_its_log(pool: Pool) -> None:
    before = time.monotonic()
    with pytest.raises(BedError, match=r"log: .*"):
        pool.add("prefill", flags=["--kv-cache-dtype", "nonsense"])
    assert time.monotonic() - before < 30
    pool.workers.pop()


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


def test_prorsa_changes_no_package_of_the_workers_environment() -> None:
    """Its base install needs only what SGLang's own pins satisfy."""
    report = subprocess.run(
        [PYTHON, "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.returncode == 0, report.stderr
    assert [item["metadata"]["name"] for item in json.loads(report.stdout)["install"]] == ["prorsa"]


def test_prorsa_is_installed_beside_sglang_with_its_plugin() -> None:
    script = (
        "import json; from importlib.metadata import entry_points; "
        "print(json.dumps({e.name: e.value for e in entry_points(group='sglang.srt.plugins')}))"
    )
    found = json.loads(subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, check=True).stdout)
    assert found["prorsa"] == "prorsa.cluster.plugin:register"
