import pytest

from prorsa.cluster.plugin import register
from prorsa.cluster.plugin.settings import Settings
from prorsa.errors import ConfigError

HUB = {"PRORSA_HUB": "tcp://127.0.0.1:1"}


def test_without_a_hub_the_plugin_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.from_environment({}) is None
    assert Settings.from_environment({"PRORSA_HUB": "", "PRORSA_RETAIN_CACHE": "nonsense"}) is None
    monkeypatch.delenv("PRORSA_HUB", raising=False)
    register()  # SGLang is not installed here: this would fail if it did anything


def test_what_is_not_said_is_unknown() -> None:
    settings = Settings.from_environment(HUB)
    assert settings == Settings(hub=HUB["PRORSA_HUB"])
    assert settings.retain_cache is None
    assert settings.worker_id is None


@pytest.mark.parametrize(("text", "value"), [("1", True), ("on", True), ("TRUE", True), ("0", False), ("No", False)])
def test_switches(text: str, value: bool) -> None:
    settings = Settings.from_environment({**HUB, "PRORSA_RETAIN_CACHE": text, "PRORSA_WATCH_PEERS": text})
    assert settings is not None
    assert (settings.retain_cache, settings.watch_peers) == (value, value)


@pytest.mark.parametrize(
    ("name", "value"), [("PRORSA_HUB", "localhost:5555"), ("PRORSA_RETAIN_CACHE", "maybe"), ("PRORSA_WATCH_PEERS", "2")]
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}='{value}'"):
        Settings.from_environment({**HUB, name: value})
