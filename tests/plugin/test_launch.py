import os
import shlex

import pytest

from prorsa.cluster.launch import (
    WorkerOptions,
    launch_command,
    launch_environment,
    run_worker,
    server_arguments,
    shell_line,
)
from prorsa.errors import ConfigError


def options(**changes: object) -> WorkerOptions:
    return WorkerOptions(**{"model_path": "/models/m", **changes})  # type: ignore[arg-type]


def value(arguments: list[str], flag: str) -> str:
    return arguments[len(arguments) - 1 - arguments[::-1].index(flag) + 1]


def test_workers_of_both_roles_are_launched_alike() -> None:
    prefill, decode = (server_arguments(options(role=role)) for role in ("prefill", "decode"))
    assert [(a, b) for a, b in zip(prefill, decode, strict=True) if a != b] == [("prefill", "decode")]
    assert {"--enable-pd-role-switch", "--disaggregation-decode-enable-radix-cache"} <= set(prefill)
    assert value(prefill, "--cuda-graph-backend-decode") == "full", "captured at start, also in a prefill worker"


def test_ports_of_one_host_differ() -> None:
    assert value(server_arguments(options(port=30001)), "--disaggregation-bootstrap-port") == "31001"
    with pytest.raises(ConfigError, match="bootstrap port must differ"):
        launch_command(options(bootstrap_port=30000))


def test_extra_arguments_come_last_so_that_they_win() -> None:
    arguments = server_arguments(options(extra=("--page-size", "32")))
    assert arguments[-2:] == ["--page-size", "32"]


def test_a_cpu_worker_uses_what_runs_there() -> None:
    cpu = options(device="cpu")
    arguments = server_arguments(cpu)
    assert value(arguments, "--disaggregation-transfer-backend") == "mooncake_tcp"
    assert value(arguments, "--cuda-graph-backend-decode") == "disabled"
    assert launch_environment(cpu)["SGLANG_USE_CPU_ENGINE"] == "1"
    assert "SGLANG_USE_CPU_ENGINE" not in launch_environment(options())


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        (("--ep-size", "8"), "expert parallelism"),
        (("--ep=8",), "expert parallelism"),
        (("--moe-a2a-backend", "deepep"), "all-to-all"),
        (("--pp-size", "2"), "pipeline"),
        (("--dcp-size", "2"), "context parallelism"),
        (("--speculative-algorithm", "EAGLE"), "speculative"),
        (("--disaggregation-transfer-backend", "nixl"), "mooncake"),
        (("--disaggregation-decode-allocation-policy", "prefill_complete"), "allocation after prefill"),
        (("--disaggregation-decode-host-receive-threshold=0.8",), "host memory"),
        (("--enable-dp-attention-local-control-broadcast",), "every rank"),
        (("--disaggregation-mode", "null"), "role to switch"),
        (("--disable-radix-cache",), "prefix cache"),
    ],
)
def test_what_cannot_flip_is_refused_with_its_reason(extra: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as error:
        launch_command(options(extra=extra))
    assert extra[0].split("=")[0] in str(error.value)
    assert "leave it out" in str(error.value)


@pytest.mark.parametrize(
    "extra",
    [
        ("--ep-size", "1"),
        ("--moe-a2a-backend", "none"),
        ("--speculative-num-steps", "3"),
        ("--disaggregation-transfer-backend", "mori"),
        ("--enable-dp-attention", "--mem-fraction-static", "0.8"),
    ],
)
def test_what_can_flip_is_not_refused(extra: tuple[str, ...]) -> None:
    assert launch_command(options(extra=extra))[-len(extra) :] == list(extra)


def test_all_problems_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_DISAGG_STAGING_BUFFER", "1")
    with pytest.raises(ConfigError) as error:
        launch_command(options(transfer_backend="nixl", max_running_requests=0, extra=("--pp-size", "2")))
    for part in ("nixl", "max_running_requests", "--pp-size 2", "SGLANG_DISAGG_STAGING_BUFFER"):
        assert part in str(error.value)


def test_the_plugin_is_configured_by_the_environment() -> None:
    assert not [name for name in launch_environment(options()) if name.startswith("PRORSA")]
    env = launch_environment(options(hub="tcp://h:1", run_id="r", retain_cache=False))
    assert env == {
        "PRORSA_HUB": "tcp://h:1",
        "PRORSA_WORKER_ID": "127.0.0.1:30000",
        "PRORSA_RUN_ID": "r",
        "PRORSA_RETAIN_CACHE": "0",
    }


def test_the_printed_line_is_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = options(model_path="/models/with space", hub="ipc:///tmp/a b")
    run_worker(chosen, print_only=True)
    words = shlex.split(capsys.readouterr().out)
    assert words == shlex.split(shell_line(chosen))
    assert words[0] == "PRORSA_HUB=ipc:///tmp/a b"
    assert words[-len(launch_command(chosen)) :] == launch_command(chosen)


def test_without_sglang_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "execvpe", lambda *_: pytest.fail("there is nothing to run"))
    monkeypatch.setattr("prorsa.cluster.launch.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="workers' environment"):
        run_worker(options())
