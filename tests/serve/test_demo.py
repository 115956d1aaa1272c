"""A demo as a user runs it: real processes, the real bus, and what is left when one of them is killed."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prorsa.events import Decision, Flip, Override, Stamped, View, WorkerRole, WorkerUp
from tests.serve.running import MINI, RunningDemo, holes


def test_a_headless_demo_prints_one_run_and_its_journal_decides_alike(tmp_path: Path) -> None:
    with RunningDemo(tmp_path, "--record", str(tmp_path / "recording"), speed=40.0) as demo:
        run = demo.finish()
    assert run["trajectories_completed"] + run["trajectories_truncated"] == 36
    assert run["policy"] == "default"
    assert run["forecast"]["prefill"]["15"]["wape"] is not None
    assert run["split"][0][1:] == [2, 2, 0, 0]
    assert holes(demo.events()) == {}
    for journal in (tmp_path / "recording", demo.run_dir.path):
        replay = subprocess.run(
            [sys.executable, "-m", "prorsa", "replay", str(journal), "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        result = json.loads(replay.stdout)
        assert (replay.returncode, result["first_difference"]) == (0, None)
        assert result["equal"] == result["decisions"] > 10


def test_a_pin_lives_its_life_and_the_commands_say_what_came_of_them(tmp_path: Path) -> None:
    with RunningDemo(tmp_path, "--policy", "static:2:2", speed=5.0) as demo:
        demo.wait_for("worker.load")
        demo.wait(lambda: demo.status()["split"]["prefill"] == 2)
        pinned = demo.cli(
            "pin", "w3", "prefill", "--reason", "look at it", "--for", "60s", "--request-id", "a1", "--json"
        )
        assert pinned.returncode == 0, pinned.stderr
        assert json.loads(pinned.stdout)["state"] == "accepted"
        again = demo.cli(
            "pin", "w3", "prefill", "--reason", "look at it", "--for", "60s", "--request-id", "a1", "--json"
        )
        assert json.loads(again.stdout) == json.loads(pinned.stdout)
        assert [worker["pinned"] for worker in demo.status()["workers"]] == [None, None, None, "prefill"]

        def life() -> list[str]:
            events = [stamped.event for stamped in demo.events("override")]
            return [event.state for event in events if isinstance(event, Override) and event.override_id == "a1"]

        demo.wait(lambda: life()[-1] == "expired", 60.0)
        assert life() == ["accepted", "draining", "effective", "expired"]
        refused = demo.cli("pin", "w9", "decode", "--reason", "typo")
        assert refused.returncode == 3
        assert refused.stderr == "prorsa: no worker 'w9'; there are w0, w1, w2, w3\n"
        no_reason = demo.cli("freeze")
        assert no_reason.returncode == 2
        assert "--reason" in no_reason.stderr


def test_nothing_acknowledged_and_no_override_is_lost_when_hub_controller_and_cluster_are_killed(
    tmp_path: Path,
) -> None:
    with RunningDemo(tmp_path, speed=8.0) as demo:
        demo.wait_for("decision")
        assert demo.cli("pin", "w0", "prefill", "--reason", "keep", "--for", "2h", "--request-id", "p1").returncode == 0
        before = len(demo.events())
        for name in ("hub", "controller", "cluster", "hub"):
            demo.kill(name)
            demo.wait(lambda: demo.status()["workers"][0]["pinned"] == "prefill")
        assert len(demo.events()) > before
        run = demo.finish()
        events = demo.events()
    assert run["trajectories_completed"] + run["trajectories_truncated"] == 36
    assert holes(events) == {}
    assert [stamped.hub_seq for stamped in events] == list(range(1, len(events) + 1))
    times = [stamped.t_ns for stamped in events]
    assert times == sorted(times)
    last_view = [stamped.event for stamped in events if isinstance(stamped.event, View)][-1]
    assert last_view.workers[0].pinned == "prefill"
    _roles_agree(events, last_view)
    decisions = [stamped.event.decision_id for stamped in events if isinstance(stamped.event, Decision)]
    assert decisions == list(range(1, len(decisions) + 1))
    flips = [(stamped.event.flip_id, stamped.event.state) for stamped in events if isinstance(stamped.event, Flip)]
    assert len(set(flips)) == len(flips)


def test_a_second_controller_takes_over_and_the_first_stands_by(tmp_path: Path) -> None:
    with RunningDemo(tmp_path, "--policy", "static:2:2", speed=5.0) as demo:
        demo.wait_for("decision")
        second = subprocess.Popen(
            [sys.executable, "-m", "prorsa.serve", "controller", str(demo.run_dir.path)], stdin=subprocess.PIPE
        )
        try:
            demo.wait(lambda: len(_decided_by(demo)) == 2)
            old, new = _decided_by(demo)
            count = _decided_by(demo)[old]
            time.sleep(3)
            assert _decided_by(demo)[old] == count, "the first one has fallen silent"
        finally:
            second.kill()
            second.communicate()
        demo.wait(lambda: len(_decided_by(demo)) == 3, 40.0)
        decisions = [stamped.event.decision_id for stamped in demo.events("decision")]  # type: ignore[union-attr]
        assert decisions == list(range(1, len(decisions) + 1))
        epochs = [stamped.event.epoch for stamped in demo.events("lease")]  # type: ignore[union-attr]
        assert epochs == sorted(epochs)
        assert new != old


def _decided_by(demo: RunningDemo) -> dict[str, int]:
    """Decisions by each controller, in the order in which they first decided."""
    counts: dict[str, int] = {}
    for stamped in demo.events("decision"):
        counts[stamped.source] = counts.get(stamped.source, 0) + 1
    return counts


def _roles_agree(events: list[Stamped], last_view: View) -> None:
    observed: dict[str, str] = {}
    for stamped in events:
        if isinstance(stamped.event, WorkerRole | WorkerUp):
            observed[stamped.event.worker_id] = stamped.event.role
    assert {worker.worker_id: worker.role for worker in last_view.workers} == observed


def test_a_run_directory_is_used_once(tmp_path: Path) -> None:
    with RunningDemo(tmp_path) as demo:
        demo.wait_for("run.begin")
        second = subprocess.run(
            [sys.executable, "-m", "prorsa", "demo", "--headless", "--run-dir", str(demo.run_dir.path)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert second.returncode == 2
    assert "already holds a run" in second.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scenario", "nothing"], "nothing"),
        (["--policy", "static:9:9"], "9 + 9 is not the pool's 4 workers"),
        (["--policy", "magic"], "analytic"),
        (["--speed", "0"], "--speed 0"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    scenario = [] if "--scenario" in arguments else ["--scenario", str(MINI)]
    done = subprocess.run(
        [sys.executable, "-m", "prorsa", "demo", "--headless", *scenario, *arguments, "--run-dir", str(tmp_path / "r")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_without_a_run_clients_say_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prorsa", "status"],
        capture_output=True,
        text=True,
        check=False,
        env={"XDG_STATE_HOME": str(tmp_path), "PATH": ""},
    )
    assert done.returncode == 4
    assert "no live run" in done.stderr
