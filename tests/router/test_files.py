"""Configuration, state file and ledger, on real files."""

from pathlib import Path

import pytest

from prorsa.cluster.router.config import RouterConfig, read_secret
from prorsa.cluster.router.process import load_config
from prorsa.cluster.router.state import LEDGER_LINES, Saved, State
from prorsa.errors import ConfigError
from tests.router.build import entry, table


def test_the_table_comes_back(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "router.json")
    saved = Saved(table=table(entry("p", "prefill"), entry("d", "decode")), run_id="r", paused=["paused"])
    assert State(path).load() is None
    State(path).save(saved)
    assert State(path).load() == saved


def test_a_damaged_state_file_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="remove it"):
        State(str(path)).load()


def test_what_was_in_flight_is_known_to_the_next_process(tmp_path: Path) -> None:
    path = str(tmp_path / "router.json")
    first = State(path)
    first.begin("a.00", ("p", "d"))
    first.begin("b.00", ("p", "e"))
    first.end("a.00")
    # The first process is killed here: nothing is closed or flushed.
    assert State(path).left_behind() == {"b.00": ("p", "e")}
    first.close()


def test_a_torn_last_line_is_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    first = State(str(path))
    first.begin("a.00", ("p", "d"))
    with path.with_suffix(".inflight").open("a") as ledger:
        ledger.write("- a.0")
    assert State(str(path)).left_behind() == {"a.00": ("p", "d")}
    first.close()


def test_the_ledger_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    state = State(str(path))
    state.begin("kept.00", ("p", "d"))
    for number in range(LEDGER_LINES):
        state.begin(f"{number}.00", ("p", "d"))
        state.end(f"{number}.00")
    assert len(path.with_suffix(".inflight").read_text().splitlines()) <= LEDGER_LINES
    assert State(str(path)).left_behind() == {"kept.00": ("p", "d")}
    state.close()


def test_every_fault_of_a_configuration_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        RouterConfig(host="0.0.0.0", poll_s=0, kv_fill=1.5)
    assert all(text in str(caught.value) for text in ("token_file", "poll_s", "kv_fill"))


def test_a_configuration_file_names_its_wrong_field(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    path.write_text("prot = 30000\n")
    with pytest.raises(ConfigError, match="prot"):
        load_config(path)
    path.write_text('port = 30001\nworkers = [{url = "http://a:1"}]\n')
    assert load_config(path).workers[0].url == "http://a:1"


def test_secrets_come_from_files(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    assert read_secret(str(path), "token_file") == "secret"
    path.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        read_secret(str(path), "token_file")
    with pytest.raises(ConfigError, match="No such file"):
        read_secret(str(tmp_path / "none"), "token_file")
