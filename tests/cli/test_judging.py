"""``estimate`` and ``evaluate``: what they print and draw, and one clear line for bad input."""

import json
from pathlib import Path

import pytest

from prorsa.cli.app import call
from prorsa.cli.evaluate import Duel, against, duels, table, write_report
from prorsa.errors import ProrsaError
from prorsa.figures import Gain

SESSIONS = "session,turn,prompt_tokens,output_tokens,new_tokens\n1,0,100,10,100\n"


def run(policy: str, seed: int, tokens_per_s: float) -> dict[str, object]:
    return {
        "scenario": "s", "policy": policy, "seed": seed, "steady_output_tokens_per_s": tokens_per_s, "step_s": None,
        "makespan_s": 100.0, "bound_by_trajectory": False,
    }  # fmt: skip


def test_a_duel_is_paired_by_seed_and_names_the_worst_one() -> None:
    runs = [run("new", k, 110.0 - 10.0 * (k == 2)) for k in range(3)] + [run("old", k, 100.0) for k in range(3)]
    (found,) = duels("new", runs)
    assert (found.other, found.worst_seed, found.worst) == ("old", 2, 1.0)
    assert found.gain.mean == pytest.approx(1.21 ** (1 / 3))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.01, 1.2, "better"), (0.9, 0.97, "worse"), (0.95, 0.99, "even"), (0.9, 1.1, "even"), (None, None, "one seed")],
)
def test_a_loss_counts_only_where_the_whole_interval_lies_beyond_two_per_cent(
    low: float | None, high: float | None, verdict: str
) -> None:
    assert Duel("s", "old", "step_s", Gain(1.0, low, high, 3), 0, 1.0, 0).verdict == verdict


def test_a_report_has_its_table_and_picture(tmp_path: Path) -> None:
    found = [Duel("s", "old", "step_s", Gain(1.1, 1.05, 1.15, 3), 7, 1.02, 1)]
    write_report("new", found, tmp_path / "report")
    text = (tmp_path / "report" / "evaluation.md").read_text()
    assert table("new", found) in text
    assert "| s † | `old` | step_s | 1.100× | 1.050–1.150 | better | 7 | 1.020× |" in text
    assert (tmp_path / "report" / "evaluation.png").stat().st_size > 5_000


def test_a_policy_is_not_compared_with_itself() -> None:
    assert against(["analytic", "lookahead", "analytic"], "lookahead") == ("lookahead", "analytic")


def test_a_session_file_does_not_tell_of_the_pool(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text(SESSIONS)
    with pytest.raises(ProrsaError, match="give --profile, --workers, --concurrency, --present"):
        call(["estimate", str(file)])


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProrsaError):
        call(["estimate", str(tmp_path / "nothing")])


def test_evaluate_asks_for_a_scenario() -> None:
    with pytest.raises(ProrsaError, match="name a scenario"):
        call(["evaluate", "lookahead"])


POOL = """
profile = "qwen3-32b-h200-tp2"
workers = 2
concurrency = 4
mode = "async"
workload = "coding"
trajectories = 6
max_turns = 2
"""


def test_a_recorded_run_is_estimated_with_what_the_recording_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, place = tmp_path / "tiny.toml", str(tmp_path / "journal")
    file.write_text(POOL)
    call(["simulate", str(file), "--policy", "static:1:1", "--no-forecast", "--record", place, "--json"])
    capsys.readouterr()
    assert call(["estimate", place, "--policy", "static:1:1", "--draws", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["present_policy"], found["gain"], found["flips_per_hour"]) == ("static:1:1", 1.0, 0.0)
