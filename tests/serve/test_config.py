"""``prorsa.toml``: what is wrong is told all at once, and nothing is open to the network by oversight."""

from pathlib import Path

import pytest

from prorsa.bus.keys import make_keys
from prorsa.errors import ConfigError
from prorsa.run import LivePlan, plan_of
from prorsa.serve.config import load_config
from prorsa.serve.live import router_config, router_url
from prorsa.serve.rundir import RunDir

GOOD = """
[control]
policy = "static:2:2"
mode = "observe"
profile = "qwen3-32b-h200-tp2"

[[router]]
port = 30000
workers = [{ url = "http://127.0.0.1:30001", worker_id = "w1" }]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prorsa.toml"
    path.write_text(text)
    return path


def faults(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    return str(caught.value)


def test_a_good_configuration_is_read_whole(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    assert config.control.mode == "observe"
    assert config.control.profile is not None
    assert config.routers[0].workers[0].worker_id == "w1"
    assert config.endpoints(tmp_path).ingest.startswith("ipc://")


def test_a_shadow_is_checked_and_the_command_line_goes_first(tmp_path: Path) -> None:
    text = GOOD.replace('mode = "observe"', 'mode = "observe"\nshadow = "lookahead"')
    path = write(tmp_path, text)
    assert load_config(path).control.shadow == "lookahead"
    assert load_config(path, shadow="reactive").control.shadow == "reactive"
    assert load_config(path, shadow="off").control.shadow is None
    with pytest.raises(ConfigError, match="static:2:2: that policy decides already"):
        load_config(path, shadow="static:2:2")


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    text = """
    [control]
    mode = "sometimes"
    policy = "magic"
    [hub]
    ingest = "tcp://127.0.0.1:1"
    [workers]
    admin_key_file = "nowhere.key"
    [extra]
    """
    said = faults(tmp_path, text)
    for fault in ("sometimes", "magic", "all of ingest, fanout and control", "nowhere.key", "[extra]", "[[router]]"):
        assert fault in said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (GOOD.replace("port = 30000", 'port = 30000\nhost = "0.0.0.0"'), "token_file"),
        (GOOD.replace("static:2:2", "magic"), "analytic"),
        (GOOD.replace("qwen3-32b-h200-tp2", "no-such"), "no-such"),
        (GOOD + "[[router]]\nport = 30000\n", "two listen on 127.0.0.1:30000"),
        (GOOD + "colour = 1\n", "colour"),
        (
            GOOD + '[hub]\ningest = "tcp://0.0.0.0:1"\nfanout = "tcp://0.0.0.0:2"\ncontrol = "tcp://0.0.0.0:3"\n',
            "prorsa keys",
        ),
        (GOOD + '[hub]\nkeys = "nowhere"\n', "nowhere"),
        ("not toml", "not TOML"),
    ],
)
def test_each_fault_is_named_with_its_remedy(changed: str, said: str, tmp_path: Path) -> None:
    assert said in faults(tmp_path, changed)


def test_with_keys_the_hub_may_be_reached_from_elsewhere(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    hub = '[hub]\ningest = "tcp://0.0.0.0:1"\nfanout = "tcp://0.0.0.0:2"\ncontrol = "tcp://0.0.0.0:3"\n'
    config = load_config(write(tmp_path, GOOD + hub + f'keys = "{tmp_path / "keys"}"\n'))
    assert config.endpoints(tmp_path).control == "tcp://0.0.0.0:3"


def test_a_plan_survives_the_journal_and_gives_each_router_its_place(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    plan = LivePlan(run_id="r", control=config.control, routers=config.routers, workers=config.workers)
    assert plan_of(plan.to_meta()) == plan
    run = RunDir(tmp_path)
    config.endpoints(run.path).save(run.path)
    router = router_config(plan, run, "router1")
    assert router.state_file == str(tmp_path / "router1.json")
    assert router.hub is not None
    assert router_url(router) == "http://127.0.0.1:30000"
