"""From a recorded run to practice on it: its structure is found, its trajectories are drawn anew, holes are refused."""

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from prorsa.cli.app import call
from prorsa.cli.recorded import recorded_domain
from prorsa.control.actions import STAY
from prorsa.control.learn.env import RoleAllocation
from prorsa.control.learn.recorded import PoolFacts, RecordedDomain, RecordedRun, read_run
from prorsa.control.learn.redrawing import redrawn
from prorsa.control.model import load_model
from prorsa.errors import InputError, JournalError, ProrsaError
from prorsa.events import (
    AnyEvent,
    BusOverflow,
    LlmEnd,
    Stamped,
    StepBegin,
    TrajectoryDispatched,
    TrajectoryEnd,
    TrajectoryReady,
    WeightsUpdateBegin,
    WeightsUpdateEnd,
    WorkerDown,
    WorkerUp,
)

SCENARIO = """
profile = "qwen3-32b-h200-tp2"
workers = 4
concurrency = 16
mode = "async"
workload = "coding"
trajectories = 48
group_size = 4
max_turns = 4
update_every = 16
weight_update_s = 10
cache_flush = true
cache = "cold"
host_kv_tokens = 1_000_000
faults = [{ worker = 1, at_s = 30, kind = "dies", for_s = 40 }]
"""


@pytest.fixture(scope="module")
def journal(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "updating.toml").write_text(SCENARIO)
    assert (
        call(["simulate", str(folder / "updating.toml"), "--policy", "static:2:2", "--record", str(folder / "j")]) == 0
    )
    return folder / "j"


def domain_of(*journals: Path, **given) -> RecordedDomain:
    fields = {"profile": None, "workers": None, "cache": None, "host_kv_tokens": None}
    return recorded_domain(journals, **fields | given)


def run_of(*timed: tuple[float, AnyEvent], **facts) -> RecordedRun:
    rows = [Stamped(k, round(t_s * 1e9), "s", k, 0, event) for k, (t_s, event) in enumerate(timed)]
    return read_run(rows, "journal", PoolFacts(**{"profile": "qwen3-32b-h200-tp2"} | facts))


def trajectory(
    name: str, begin_s: float, group: str | None, prompt_tokens: int = 1_000
) -> list[tuple[float, AnyEvent]]:
    return [
        (begin_s, TrajectoryDispatched(trajectory_id=name, group_id=group)),
        (begin_s, TrajectoryReady(trajectory_id=name, request_id=name, prompt_tokens=prompt_tokens)),
        (begin_s + 1, LlmEnd(trajectory_id=name, request_id=name, attempt=0, output_tokens=9, finish_reason="stop")),
        (begin_s + 2, TrajectoryEnd(trajectory_id=name, status="completed")),
    ]


POOL: list[tuple[float, AnyEvent]] = [
    (0.0, WorkerUp(worker_id="w0", role="prefill", epoch=0)),
    (0.0, WorkerUp(worker_id="w1", role="decode", epoch=0)),
]


def test_a_journal_of_a_simulated_run_tells_what_it_ran(journal):
    (run,) = domain_of(journal).runs
    scenario = run.scenario
    assert (scenario.mode, scenario.workers, scenario.concurrency, scenario.group_size) == ("async", 4, 16, 4)
    assert (scenario.cache, scenario.host_kv_tokens, scenario.cache_flush) == ("cold", 1_000_000, True)
    assert (scenario.profile, scenario.update_every) == ("qwen3-32b-h200-tp2", 16)
    assert scenario.weight_update_s == pytest.approx(10.0, abs=1.0)
    (fault,) = scenario.faults
    assert (fault.worker, fault.kind) == (1, "dies")
    assert (fault.at_s, fault.for_s) == (pytest.approx(30.0, abs=1.0), pytest.approx(40.0, abs=1.0))
    assert run.workload.trajectories == 48
    assert set(np.bincount(run.workload.group)) == {4}


def test_synchronous_steps_are_found_and_announced_updates_begin_when_they_were_due():
    events = list(POOL)
    for step in range(2):
        begin_s = 100.0 * step
        events.append((begin_s, StepBegin(step=step)))
        for k in range(6):
            events += trajectory(f"t{step}{k}", begin_s + 3 * k, f"g{step}{k // 2}")
        events.append((begin_s + 50, WeightsUpdateBegin(version=str(step), expected_in_s=10.0)))
        events.append((begin_s + 75, WeightsUpdateEnd(version=str(step), cache_flushed=True)))
    scenario = run_of(*events).scenario
    assert (scenario.mode, scenario.groups_per_step, scenario.group_size) == ("sync", 3, 2)
    assert (scenario.weight_update_s, scenario.cache_flush) == (15.0, True)


def test_a_worker_that_does_not_come_back_is_gone_to_the_end():
    events = [*POOL, *trajectory("a", 1.0, None), (40.0, WorkerDown(worker_id="w1")), *trajectory("b", 60.0, None)]
    (fault,) = run_of(*events).scenario.faults
    assert (fault.worker, fault.at_s, fault.for_s) == (1, 40.0, 22.0)


def test_groups_are_drawn_whole_and_near_the_place_that_they_had():
    events = list(POOL)
    for group in range(40):
        for member in range(3):
            events += trajectory(f"{group}-{member}", 10.0 * group, f"g{group}", prompt_tokens=1_000 + group)
    run = run_of(*events, concurrency=30)
    drawn = redrawn(
        run.workload, RecordedDomain((run,)).draw(np.random.default_rng(1)).scenario, np.random.default_rng(2)
    )
    prompts = drawn.prompt_tokens.reshape(-1, 3)
    assert (prompts == prompts[:, :1]).all()
    assert (drawn.shared_tokens == drawn.prompt_tokens).all()
    assert (drawn.group == np.repeat(np.arange(len(prompts)), 3)).all()
    steps = np.diff(prompts[:, 0]) % 40
    assert np.minimum(steps, 40 - steps).max() <= 9  # 10 % of 40 groups either way, and one further each time


def test_episodes_are_the_same_for_the_same_seed_and_differ_in_load_and_faults(journal):
    domain = domain_of(journal)
    drawn = [domain.draw(np.random.default_rng(seed)) for seed in range(30)]
    assert (
        drawn[3].workload().prompt_tokens.tolist()
        == domain.draw(np.random.default_rng(3)).workload().prompt_tokens.tolist()
    )
    assert len({episode.scenario.concurrency for episode in drawn}) > 4
    assert {episode.scenario.faults[0].worker for episode in drawn} == {0, 1, 2, 3}
    env = RoleAllocation(domain, 8)
    env.reset(seed=1)
    assert sum(env.step(np.int64(STAY))[1] for _ in range(8)) > 0.0


def test_a_policy_is_trained_from_a_journal(journal, tmp_path):
    short = ["--expert", "analytic", "--rounds", "0", "--shown", "40", "--environments", "1", "--validations", "1"]
    assert call(["train", "--from", str(journal), *short, "--out", str(tmp_path)]) == 0
    assert load_model(tmp_path / "learned.safetensors").card.trained["data"] == str(journal)


def test_a_journal_with_holes_is_refused_in_one_line(journal, tmp_path):
    holed = tmp_path / "holed"
    shutil.copytree(journal, holed)
    with sqlite3.connect(next(holed.glob("segment-*.sqlite"))) as db:
        db.execute("DELETE FROM events WHERE hub_seq BETWEEN 40 AND 49")
    with pytest.raises(JournalError, match="events 40 to 49 are missing") as caught:
        domain_of(holed)
    assert "\n" not in str(caught.value)
    next(holed.glob("segment-*.sqlite")).unlink()
    with pytest.raises(JournalError, match=r"segment-00001.sqlite cannot be read") as caught:
        domain_of(holed)
    assert "\n" not in str(caught.value)


def test_a_recording_whose_publisher_lost_events_is_refused(tmp_path, journal):
    from prorsa.bus.journal import JournalWriter, row_of

    rows = [Stamped(1, 0, "router", 0, 0, BusOverflow(lost=7, first_seq=3))]
    with JournalWriter(tmp_path / "lossy", run_id="r", meta={}) as writer:
        writer.append([row_of(row) for row in rows])
    with pytest.raises(JournalError, match="router lost 7 events"):
        domain_of(tmp_path / "lossy")


def test_what_a_recording_does_not_say_must_be_given():
    with pytest.raises(InputError, match="give --workers"):
        run_of(POOL[0], *trajectory("a", 1.0, None))
    assert run_of(POOL[0], *trajectory("a", 1.0, None), workers=3).scenario.workers == 3
    with pytest.raises(ProrsaError, match="scenarios or --from, not both"):
        call(["train", "quick", "--from", "somewhere", "--out", "somewhere"])
