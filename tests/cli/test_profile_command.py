"""``prorsa profile`` from the command line."""

import json
import sys
from pathlib import Path

import pytest

from prorsa.cli import run as main
from prorsa.cluster.profile import load_profile, profile_names

FIT = ["profile", "fit", "--kv-bytes-per-token", "1024"]


def test_list_names_every_profile_with_its_validation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["profiles"]
    assert [entry["name"] for entry in listed] == profile_names()
    assert all(entry["validated"] == (entry["matched_rows"] >= 10) for entry in listed)
    assert main(["profile", "list"]) == 0
    assert "unvalidated" in capsys.readouterr().out


def test_show_takes_a_profile_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "show", "dsv32-h200-dp8", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    alone, one, *_, everybody = shown["steps"]
    assert alone["waiting_ratio"] == everybody["waiting_ratio"] == 0
    assert one["waiting_ratio"] > 0.2, "seven ranks wait for the one that prefills"
    assert one["step_ms"] == pytest.approx(one["attention_ms"] + one["experts_ms"])
    assert main(["profile", "show", "dsv3-h200-dp8ep8"]) == 0
    text = capsys.readouterr().out
    assert "expert parallelism" in text
    assert "aiconfigurator-core" in text


def test_make_writes_a_profile_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("aiconfigurator_core")
    output = tmp_path / "mine.toml"
    order = ["profile", "make", "--model", "Qwen/Qwen3-32B", "--system", "h200_sxm", "--tp", "2", "-o", str(output)]
    assert main(order) == 0
    profile = load_profile(str(output))
    assert (profile.name, profile.parallel, profile.validated) == ("mine", "TP2", False)
    assert main(order) == 2
    assert "is there already" in capsys.readouterr().err


def test_make_without_the_extra_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "aiconfigurator_core"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    order = ["profile", "make", "--model", "a/b", "--system", "h200_sxm", "-o", str(tmp_path / "a.toml")]
    assert main(order) == 2
    assert capsys.readouterr().err.strip().endswith("pip install 'prorsa[profile]'")


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (["profile", "show", "nothing"], "no profile 'nothing'"),
        ([*FIT, "--from", "http://127.0.0.1:9", "-o", "x.json"], "ends in .toml"),
        ([*FIT, "--from", "http://127.0.0.1:9", "--for", "1s", "-o", "/none/x.toml"], "no folder"),
        ([*FIT, "--from", "http://127.0.0.1:9", "some/journal", "-o", "NEW"], "not both"),
        ([*FIT, "--from", "FOLDER", "-o", "NEW"], "no journal"),
        (["profile", "make", "--model", "a/b", "--system", "s", "--tp", "4", "--moe-tp", "3", "-o", "NEW"], "4 GPUs"),
    ],
)
def test_bad_input_is_one_line(order: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"NEW": str(tmp_path / "new.toml"), "FOLDER": str(tmp_path)}
    assert main([names.get(word, word) for word in order]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error.splitlines()[-1]


def test_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT, "--from", "http://127.0.0.1:9", "-o", str(tmp_path / "a.toml")]) == 4
    assert "does not answer" in capsys.readouterr().err
