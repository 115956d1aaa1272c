"""The command line's contracts: what it prints, what it loads, how it ends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prorsa import cli

MINI = str(Path(__file__).parent.parent / "serve" / "mini.toml")
RUN_KEYS = {
    "scenario", "profile", "policy", "seed", "workers", "concurrency", "cache", "makespan_s", "t95_s",
    "steady_output_tokens_per_s", "step_s", "bound_by_trajectory", "sessions_skipped", "trajectories_completed",
    "trajectories_truncated", "trajectories_failed", "turns", "prompt_tokens", "computed_prefill_tokens",
    "output_tokens", "output_tokens_per_s", "trajectory_latency_s", "gpus", "gpu_idle_ratio", "gpu_time",
    "flip_idle_ratio", "flips", "flip_overhead_s", "requests_resumed", "recomputed_tokens", "split",
    "forecast", "wall_s",
}  # fmt: skip
SCORE_KEYS = {"wape", "wape_arrivals", "bias", "coverage_80", "last", "ewma", "kalman"}


def prorsa(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.run(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def simulate(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    status, out, err = prorsa(capsys, "simulate", MINI, *arguments, "--json")
    assert status == 0, err
    runs: list[dict[str, Any]] = json.loads(out)["runs"]
    return runs


def test_simulate_prints_every_key_of_the_contract_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    runs = simulate(capsys, "--policy", "colocated", "--policy", "static:2:2", "--policy", "analytic")
    assert [run["policy"] for run in runs] == ["colocated", "static:2:2", "analytic"]
    for run in runs:
        assert run.keys() >= RUN_KEYS
        assert run["forecast"].keys() >= {"prefill", "decode_admission"}
        for target in ("prefill", "decode_admission"):
            assert set(run["forecast"][target]) == {"5", "15", "30"}
            assert all(scores.keys() >= SCORE_KEYS for scores in run["forecast"][target].values())
        assert run["trajectories_completed"] + run["trajectories_truncated"] == 36
        assert set(run["trajectory_latency_s"]) == {"mean", "p50", "p90", "p99"}
    # The workload is the same under every policy.
    for key in ("turns", "prompt_tokens", "output_tokens", "trajectories_truncated"):
        assert len({run[key] for run in runs}) == 1
    assert runs[0]["split"] == [[0.0, 0, 0, 4, 0]]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (simulate(capsys, "--policy", "analytic", "--seed", "1", "2") for _ in range(2))
    for run in first + second:
        run.pop("wall_s")
    assert first == second
    assert first[0]["makespan_s"] != first[1]["makespan_s"]


@pytest.mark.parametrize("forecast", ["lifecycle", "ewma", "perfect"])
def test_a_recording_decides_alike_whatever_the_policy_saw(
    forecast: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = str(tmp_path / "recording")
    simulate(capsys, "--policy", "analytic", "--forecast", forecast, "--record", recording)
    status, out, _ = prorsa(capsys, "replay", recording, "--json")
    result = json.loads(out)
    assert (status, result["first_difference"]) == (0, None)
    assert result["decisions"] == result["equal"] > 20


def test_a_replay_by_another_policy_shows_the_first_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = str(tmp_path / "recording")
    simulate(capsys, "--policy", "static:2:2", "--record", recording)
    status, out, _ = prorsa(capsys, "replay", recording, "--policy", "static:3:1", "--json")
    assert status == 1
    assert json.loads(out)["first_difference"]["fields"]["wanted"]["replayed"] == {
        "prefill": 3, "decode": 1, "mixed": 0, "switching": 0
    }  # fmt: skip


def test_backtest_scores_a_recording_as_the_run_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = str(tmp_path / "recording")
    (run,) = simulate(capsys, "--policy", "static:2:2", "--record", recording)
    status, out, _ = prorsa(capsys, "backtest", recording, "--horizon", "5,15,30", "--json")
    assert status == 0
    forecast = json.loads(out)["forecast"]
    assert forecast["prefill"]["15"]["wape"] == pytest.approx(run["forecast"]["prefill"]["15"]["wape"], rel=0.02)


def test_backtest_runs_scenarios_and_sets_the_oracle_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = tmp_path / "pictures"
    arguments = ("--horizon", "5,15", "--seed", "1", "2", "--until-s", "60", "--oracle", "1", "--plots", str(pictures))
    status, out, _ = prorsa(capsys, "backtest", MINI, *arguments, "--json")
    told = json.loads(out)
    assert status == 0
    assert told["runs"] == ["mini.toml-1", "mini.toml-2"]
    sampled = told["sampled"]["all"]["decode_admission"]["15"]
    assert 0 < sampled["windows"] <= 2
    assert sampled["forecasts"]["oracle"]["wape"] < 1.0
    assert {path.name for path in pictures.iterdir()} == {
        "timeline-mini.toml-1.png", "timeline-mini.toml-2.png", "errors.png", "reliability.png",
    }  # fmt: skip


def test_backtest_takes_session_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"s{i},{turn},{1000 * (turn + 1)},50,1000" for i in range(6) for turn in range(4)]
    sessions = tmp_path / "sessions.csv"
    sessions.write_text("\n".join(["session,turn,prompt_tokens,output_tokens,new_tokens", *rows]))
    arguments = ("--scenario", "coding-async", "--workers", "2", "--concurrency", "3", "--horizon", "5")
    status, out, _ = prorsa(capsys, "backtest", str(sessions), *arguments)
    assert status == 0
    assert "decode_admission" in out
    assert prorsa(capsys, "backtest", str(sessions), *arguments, "--oracle", "1")[0] == 2


def test_without_scores_a_fixed_split_makes_no_forecast_and_an_adaptive_policy_still_decides(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fixed, adaptive = simulate(capsys, "--policy", "static:2:2", "--policy", "analytic", "--no-forecast")
    assert fixed["forecast"] is None
    assert adaptive["forecast"] is None
    (scored,) = simulate(capsys, "--policy", "analytic")
    assert adaptive["split"] == scored["split"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulate", "nowhere", "--policy", "analytic"], "nowhere"),
        (["simulate", "--policy", "analytic"], "name a scenario"),
        (["simulate", MINI, "--policy", "static:4"], "a split is P:D"),
        (["simulate", MINI, "--policy", "best"], "there are analytic"),
        (["simulate", MINI, "--policy", "analytic", "--sessions", "none.csv"], "none.csv"),
        (["simulate", MINI, "--policy", "analytic", "--workers", "1"], "workers"),
        (["simulate", MINI, "--policy", "analytic", "--jobs", "0"], "--jobs 0: give 1 or more"),
        (["simulate", MINI, "--policy", "analytic", "--jobs", "2", "--ray", "auto"], "give one of them"),
        (["simulate", MINI, "--policy", "analytic", "--ray", "auto", "--record", "x"], "record with --jobs"),
        (["replay", "nowhere"], "no journal at nowhere"),
        (["backtest"], "name a journal"),
        (["backtest", "nowhere", "--horizon", "0"], "--horizon 0"),
        (["pin", "w0", "mixed", "--reason", "x"], "prefill"),
        (["freeze", "--reason", "x", "--for", "soon"], "30m"),
        (["dance"], "dance"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = prorsa(capsys, *arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_recording_directory_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    status, _, err = prorsa(capsys, "simulate", MINI, "--policy", "static:2:2", "--record", str(tmp_path))
    assert status == 2
    assert "not empty" in err


def test_help_loads_neither_torch_nor_textual_nor_the_simulator() -> None:
    code = (
        "import sys; from prorsa import cli; cli.run(['--help']); "
        "print([name for name in ('torch', 'textual', 'numba', 'zmq', 'aiohttp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['cyclopts'] = None; from prorsa import cli; raise SystemExit(cli.run(['status']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "prorsa[control]" in done.stderr


def test_jobs_change_neither_results_nor_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--policy", "static:2:2", "colocated", "--seed", "1", "2", "--no-forecast")
    serial, parallel = simulate(capsys, *arguments), simulate(capsys, *arguments, "--jobs", "2")
    for run in serial + parallel:
        run.pop("wall_s")
    assert parallel == serial
    assert [(run["seed"], run["policy"]) for run in parallel] == [
        (seed, policy) for seed in (1, 2) for policy in ("static:2:2", "colocated")
    ]


def test_jobs_record_as_a_serial_run_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = tmp_path / "recordings"
    simulate(capsys, "--policy", "static:2:2", "analytic", "--jobs", "2", "--record", str(recording))
    assert sorted(path.name for path in recording.iterdir()) == ["mini-analytic-0", "mini-static-2-2-0"]
    status, out, _ = prorsa(capsys, "replay", str(recording / "mini-analytic-0"), "--json")
    assert (status, json.loads(out)["first_difference"]) == (0, None)
