"""Scenarios: those of the package, files of the user, overrides, and errors that name everything at once."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from prorsa.cluster.profile import load_profile
from prorsa.cluster.scenario import FlipTimes, Scenario, load_scenario, scenario_names
from prorsa.errors import ConfigError

ASYNC = """
profile = "qwen3-32b-h200-tp2"
workers = 4
concurrency = 6
mode = "async"
workload = "general"
"""
SYNC = ASYNC.replace("async", "sync") + "steps = 3\ngroups_per_step = 2\ngroup_size = 2\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


# --- the package's own ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["coding-async", "coding-sync", "general-async", "general-sync"])
def test_the_main_scenarios_are_as_stated(name: str) -> None:
    scenario = load_scenario(name)
    workload, mode = name.split("-")
    assert (scenario.name, scenario.workload, scenario.mode) == (name, workload, mode)
    assert (scenario.workers, scenario.concurrency, scenario.profile) == (8, 128, "qwen3-32b-h200-tp2")
    assert (scenario.cache, scenario.gap_cap_s, scenario.initial_prefill) == ("retained", 60.0, 4)
    made = scenario.make_workload(0)
    assert (made.trajectories, made.workload) == (256, workload)
    if mode == "sync":
        assert (scenario.weight_update_s, scenario.cache_flush) == (20.0, True)
        assert np.bincount(made.step).tolist() == [128, 128]
        assert np.bincount(made.group).tolist() == [8] * 32
    else:
        assert set(made.step.tolist()) == {0}


def test_every_scenario_says_what_it_is() -> None:
    assert {"quick", "v32-coding-async", "v32-coding-sync", "v32-general-async", "v32-general-sync"} < {
        *scenario_names()
    }
    for name in scenario_names():
        assert load_scenario(name).description.endswith(".")


def test_a_seed_is_one_workload() -> None:
    scenario = load_scenario("quick")
    a, b, c = (scenario.make_workload(seed).prompt_tokens for seed in (7, 7, 8))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


# --- files of the user ----------------------------------------------------------------------------------------------


def test_a_file_takes_its_own_name(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, ASYNC))
    assert scenario.name == "mine"
    assert scenario.make_workload(1).trajectories == 12


def test_length_of_a_run(tmp_path: Path) -> None:
    assert load_scenario(written(tmp_path, ASYNC + "trajectories = 5")).make_workload(1).trajectories == 5
    sync = load_scenario(written(tmp_path, SYNC)).make_workload(1)
    assert sync.step.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_flip_times_can_be_set_one_by_one(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, ASYNC + "[flip]\nto_decode_s = 3\n"))
    assert scenario.flip == FlipTimes(to_decode_s=3.0)


def test_sessions_beside_the_file(tmp_path: Path) -> None:
    rows = [f"s{n},0,{100 + n},5,100" for n in range(10)]
    (tmp_path / "turns.csv").write_text("session,turn,prompt_tokens,output_tokens,new_tokens\n" + "\n".join(rows))
    scenario = load_scenario(written(tmp_path, ASYNC + 'sessions = "turns.csv"\n'))
    workload = scenario.make_workload(1)
    assert sorted(workload.prompt_tokens.tolist()) == list(range(100, 110))
    assert workload.workload == "general"
    sync = load_scenario(written(tmp_path, SYNC)).make_workload(1, tmp_path / "turns.csv")
    assert np.bincount(sync.step).tolist() == [4, 4, 2]


def test_max_turns_ends_trajectories(tmp_path: Path) -> None:
    workload = load_scenario(written(tmp_path, ASYNC + "max_turns = 2")).make_workload(1)
    assert np.diff(workload.first_turn).tolist() == [2] * 12
    assert workload.truncated.all()


def test_a_profile_of_the_caller_counts() -> None:
    short = msgspec.structs.replace(load_profile("qwen3-32b-h200-tp2"), model_context=2000)
    workload = load_scenario("general-async").make_workload(0, profile=short)
    assert (workload.prompt_tokens + workload.output_tokens).max() <= 2000


def test_goes_through_json_unchanged() -> None:
    for name in scenario_names():
        scenario = load_scenario(name)
        assert msgspec.json.decode(msgspec.json.encode(scenario), type=Scenario) == scenario


# --- overrides ------------------------------------------------------------------------------------------------------


def test_overrides_replace_what_is_given() -> None:
    scenario = load_scenario("coding-async")
    changed = scenario.with_overrides(workers=3, concurrency=10, cache="cold", gap_cap_s=5)
    assert (changed.workers, changed.concurrency, changed.cache, changed.gap_cap_s) == (3, 10, "cold", 5)
    assert changed.initial_prefill == 1
    assert changed.make_workload(0).trajectories == 20
    assert changed.make_workload(0).gap_s.max() == 5
    assert scenario.with_overrides() == scenario


def test_overrides_are_checked() -> None:
    scenario = load_scenario("coding-async")
    with pytest.raises(ConfigError, match=r"workers is 0: give 1 to 1,024; concurrency is -1: give"):
        scenario.with_overrides(workers=0, concurrency=-1)


# --- refusals -------------------------------------------------------------------------------------------------------


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_scenario(written(tmp_path, text))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_all_wrong_types_are_named_at_once(tmp_path: Path) -> None:
    text = 'workers = "four"\nmode = "sometimes"\nworkload = "general"\nspeed = 3\n[flip]\nto_decode = 1\n'
    message = refused(tmp_path, text)
    for part in (
        "unknown field speed",
        "profile is missing",
        "concurrency is missing",
        "workers is 'four'",
        "mode is 'sometimes'",
        "flip is {'to_decode': 1}",
    ):
        assert part in message


def test_all_wrong_values_are_named_at_once(tmp_path: Path) -> None:
    text = ASYNC.replace("general", "chess").replace("qwen3-32b-h200-tp2", "abacus").replace("= 6", "= 0")
    message = refused(tmp_path, text + "prefill_workers = 4\ngap_cap_s = nan\n[flip]\nwarm_s = -1\n")
    for part in (
        "concurrency is 0: give 1 to 100,000",
        "prefill_workers is 4 of 4 workers",
        "gap_cap_s is nan",
        "flip.warm_s is -1.0",
        "no profile 'abacus'; there are ",
        "workload is 'chess': give one of coding, general",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (SYNC + "trajectories = 5", "trajectories is for mode async"),
        (SYNC.replace("steps = 3\n", ""), "steps is missing: mode sync needs steps, groups_per_step, group_size"),
        (ASYNC + "steps = 2", "steps is for mode sync"),
        (ASYNC + "cache_flush = true", "for mode sync, or an asynchronous run with weight updates: give update_every"),
        (ASYNC + "workers = 5", "Cannot overwrite a value"),
        (ASYNC + "trajectories = 2000000", "trajectories is 2000000: give 1 to 1,000,000"),
    ],
)
def test_a_file_that_does_not_fit_together(tmp_path: Path, text: str, part: str) -> None:
    assert part in refused(tmp_path, text)


def test_names_and_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no scenario 'slow'; there are coding-async"):
        load_scenario("slow")
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file or directory; give a name \(coding-async"):
        load_scenario(tmp_path / "absent.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        load_scenario(binary)
