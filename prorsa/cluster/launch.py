"""The command that launches an SGLang worker which can switch between prefill and decode.

Workers that will flip must be launched alike: SGLang derives its configuration from the role at launch and does not
derive it again when the role changes. So everything that depends on the role is given explicitly here, and options that
SGLang 0.5.23 cannot combine with role switching are refused before a model is loaded.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, Literal

from prorsa.errors import ConfigError

TRANSFER_BACKENDS: Final = ("mooncake", "mooncake_tcp", "mori", "ascend")
"""Those that can be torn down and rebuilt while the process lives."""

_CPU_ENVIRONMENT: Final = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    # Sending the cached prefix early makes a CUDA event.
    "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """How to launch one worker.

    Attributes:
        role: the role to begin with.
        bootstrap_port: where the worker answers decode workers while it prefills; one of its own for each worker of a
            host. None is ``port + 1000``.
        transfer_backend: None is ``mooncake``, on a CPU ``mooncake_tcp``.
        max_running_requests: requests that decode at once. Explicit, because the default depends on the role.
        decode_extra_slots: requests whose KV may arrive while ``max_running_requests`` decode; None is twice that.
        hub: the hub's ingest endpoint, which turns the plugin on; None leaves it off.
        worker_id: the worker's name, stable over restarts; None is ``host:port``.
        retain_cache: whether a flip keeps the prefix cache; None leaves it to the plugin.
        dtype: None leaves it to the model.
        python: interpreter of the workers' environment; None is the one that runs this.
        extra: further SGLang arguments, passed on as they are after those made here.
    """

    model_path: str
    role: Literal["prefill", "decode"] = "prefill"
    device: Literal["cuda", "cpu"] = "cuda"
    host: str = "127.0.0.1"
    port: int = 30000
    bootstrap_port: int | None = None
    tp_size: int = 1
    dp_size: int = 1
    transfer_backend: str | None = None
    page_size: int = 64
    max_running_requests: int = 64
    decode_extra_slots: int | None = None
    dtype: str | None = None
    hub: str | None = None
    run_id: str | None = None
    worker_id: str | None = None
    retain_cache: bool | None = None
    python: str | None = None
    extra: tuple[str, ...] = ()


def launch_command(options: WorkerOptions) -> list[str]:
    """The command as a list of arguments, to be run with :func:`launch_environment`.

    Raises:
        ConfigError: if the worker could not switch roles; says which option is in the way and what to do.
    """
    check(options)
    return [options.python or sys.executable, "-m", "sglang.launch_server", *server_arguments(options)]


def server_arguments(options: WorkerOptions) -> list[str]:
    """SGLang's arguments alone. Later ones win, so that ``extra`` can overrule what is chosen here."""
    slots = options.decode_extra_slots
    named = {
        "model-path": options.model_path,
        "host": options.host,
        "port": options.port,
        "tp-size": options.tp_size,
        "dp-size": options.dp_size,
        "page-size": options.page_size,
        "max-running-requests": options.max_running_requests,
        "disaggregation-mode": options.role,
        "disaggregation-transfer-backend": _transfer_backend(options),
        "disaggregation-bootstrap-port": _bootstrap_port(options),
        "disaggregation-decode-extra-slots": 2 * options.max_running_requests if slots is None else slots,
        "disaggregation-decode-retraction-backup": "cpu_tensor",
    }
    if options.dtype is not None:
        named["dtype"] = options.dtype
    named |= _device_arguments(options.device)
    switches = ["--enable-pd-role-switch", "--disaggregation-decode-enable-radix-cache", "--sleep-on-idle"]
    return [part for name, value in named.items() for part in (f"--{name}", str(value))] + switches + [*options.extra]


def launch_environment(options: WorkerOptions) -> dict[str, str]:
    """The environment variables that the command needs, beside those that are set already."""
    env = dict(_CPU_ENVIRONMENT) if options.device == "cpu" else {}
    if options.device == "cpu" and options.host == "127.0.0.1":
        env["SGLANG_HOST_IP"] = options.host
    if options.hub is not None:
        env |= {"PRORSA_HUB": options.hub, "PRORSA_WORKER_ID": options.worker_id or f"{options.host}:{options.port}"}
        if options.run_id is not None:
            env["PRORSA_RUN_ID"] = options.run_id
        if options.retain_cache is not None:
            env["PRORSA_RETAIN_CACHE"] = str(int(options.retain_cache))
    return env


def shell_line(options: WorkerOptions) -> str:
    """The command with its environment, as one would type it."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in launch_environment(options).items()]
    return " ".join([*variables, shlex.join(launch_command(options))])


def run_worker(options: WorkerOptions, *, print_only: bool = False) -> None:
    """Become the worker; with ``print_only`` print the shell line instead.

    Raises:
        ConfigError: if the worker could not switch roles, or SGLang is not installed here.
    """
    command = launch_command(options)
    if print_only:
        sys.stdout.write(shell_line(options) + "\n")
        return
    if options.python is None and find_spec("sglang") is None:
        raise ConfigError(
            f"SGLang is not installed for {sys.executable}: name the Python of the workers' environment (--python), "
            "or use --print and run the line there"
        )
    os.execvpe(command[0], command, {**os.environ, **launch_environment(options)})  # noqa: S606 - no shell is meant


def check(options: WorkerOptions) -> None:
    """Refuse what could not switch roles.

    Raises:
        ConfigError: names every such option with its reason and the remedy.
    """
    problems = [*_option_problems(options), *_extra_problems(options.extra), *_environment_problems()]
    if problems:
        raise ConfigError("this worker could not switch roles: " + "; ".join(problems))


def _option_problems(options: WorkerOptions) -> Iterator[str]:
    backend = _transfer_backend(options)
    if backend not in TRANSFER_BACKENDS:
        yield f"transfer backend {backend} cannot be rebuilt at run time: use one of {', '.join(TRANSFER_BACKENDS)}"
    if options.bootstrap_port == options.port:
        yield f"the bootstrap port must differ from the port ({options.port})"
    if options.max_running_requests < 1:
        yield "max_running_requests must be at least 1"


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A flag of SGLang that stands in the way when ``refused`` holds for its value."""

    flags: tuple[str, ...]
    refused: Callable[[str], bool]
    reason: str


def _above_one(value: str) -> bool:
    return not value.isdigit() or int(value) > 1


_REFUSALS: Final = (
    _Refusal(("ep-size", "expert-parallel-size", "ep"), _above_one, "expert parallelism keeps state of its role"),
    _Refusal(("moe-a2a-backend",), lambda v: v != "none", "MoE all-to-all keeps state of its role"),
    _Refusal(("pp-size", "pipeline-parallel-size"), _above_one, "pipeline parallelism keeps state of its role"),
    _Refusal(("dcp-size",), _above_one, "decode context parallelism keeps state of its role"),
    _Refusal(("speculative-algorithm",), lambda _: True, "speculative decoding keeps state of its role"),
    _Refusal(
        ("enable-dp-attention-local-control-broadcast",),
        lambda _: True,
        "a switch must reach every rank at once, which local control broadcast does not do",
    ),
    _Refusal(
        ("disaggregation-decode-allocation-policy",),
        lambda v: v == "prefill_complete",
        "allocation after prefill is not rebuilt on a switch",
    ),
    _Refusal(
        ("disaggregation-decode-host-receive-threshold",),
        lambda v: v not in {"1", "1.0"},
        "receiving KV in host memory is not rebuilt on a switch",
    ),
    _Refusal(
        ("disaggregation-transfer-backend",),
        lambda v: v not in TRANSFER_BACKENDS,
        f"only {', '.join(TRANSFER_BACKENDS)} can be rebuilt at run time",
    ),
    _Refusal(
        ("disaggregation-mode",),
        lambda v: v not in {"prefill", "decode"},
        "only prefill and decode workers have a role to switch",
    ),
    _Refusal(
        ("disable-radix-cache",),
        lambda _: True,
        "without a prefix cache every turn of a trajectory prefills its whole context again",
    ),
)


def _extra_problems(extra: Sequence[str]) -> Iterator[str]:
    for flag, value in _flags(extra):
        for refusal in _REFUSALS:
            if flag in refusal.flags and refusal.refused(value):
                yield f"--{flag} {value}".rstrip() + f": {refusal.reason}; leave it out"


def _environment_problems() -> Iterator[str]:
    if os.environ.get("SGLANG_DISAGG_STAGING_BUFFER", "0").lower() in {"1", "true", "yes"}:
        yield "SGLANG_DISAGG_STAGING_BUFFER: the staging buffer is not rebuilt on a switch; unset it"


def _flags(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """``(name, value)`` of each flag among SGLang's arguments; the value of a switch is empty."""
    for index, argument in enumerate(arguments):
        if argument.startswith("--"):
            name, _, value = argument[2:].partition("=")
            following = arguments[index + 1] if index + 1 < len(arguments) else "--"
            yield name.replace("_", "-"), value or ("" if following.startswith("--") else following)


def _transfer_backend(options: WorkerOptions) -> str:
    return options.transfer_backend or ("mooncake_tcp" if options.device == "cpu" else "mooncake")


def _bootstrap_port(options: WorkerOptions) -> int:
    return options.port + 1000 if options.bootstrap_port is None else options.bootstrap_port


def _device_arguments(device: Literal["cuda", "cpu"]) -> dict[str, str]:
    # Graphs for decode are captured at start in either role; a later capture would need room that nobody kept free.
    graphs = {"cuda-graph-backend-decode": "full", "cuda-graph-backend-prefill": "disabled"}
    if device == "cuda":
        return graphs
    return {
        "device": "cpu",
        "attention-backend": "torch_native",
        "cuda-graph-backend-decode": "disabled",
        "cuda-graph-backend-prefill": "disabled",
    }
