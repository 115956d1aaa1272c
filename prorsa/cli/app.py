"""The commands, their parameters and their help; what they do is imported when they are called."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from prorsa import __version__
from prorsa.cli import profile_app, train_app
from prorsa.cli.acting import ACTING
from prorsa.cli.judging import JUDGING
from prorsa.cli.options import Duration, Looking, duration
from prorsa.errors import InputError

Cache = Literal["cold", "retained", "l3"]
ForecastSeen = Literal["lifecycle", "ewma", "perfect"]
Role = Literal["prefill", "decode"]

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object to stdout.")]
Sessions = Annotated[
    Path | None, Parameter(name="--sessions", help="Replay the sessions of this CSV file (.csv or .csv.gz) instead.")
]
Shadow = Annotated[
    str | None,
    Parameter(help="A second policy that decides beside the active one; it is recorded and compared; off for none."),
]

app = App(
    name="prorsa",
    version=__version__,
    help="Moves SGLang workers between prefill and decode while an agentic-RL rollout runs.",
    help_format="plaintext",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
app.command(profile_app.app)
app.command(train_app.train)


def call(argv: Sequence[str]) -> int:
    """Parse and run; wrong arguments raise :class:`InputError`."""
    try:
        status = app(list(argv), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        text = " ".join(str(error).split())
        raise InputError(f"{text} (prorsa {argv[0] if argv else ''} --help)".replace("  ", " ")) from error
    return status if isinstance(status, int) else 0


@app.command
def demo(
    *,
    scenario: str = "v32-coding-async",
    policy: str = "default",
    seed: int = 0,
    speed: float = 20.0,
    cache: Cache | None = None,
    headless: Annotated[bool, Parameter(negative="")] = False,
    as_json: Json = False,
    record: Path | None = None,
    run_dir: Path | None = None,
    mode: Literal["auto", "approve", "observe"] = "auto",
    shadow: Shadow = None,
) -> int:
    """Roll out on an embedded cluster, in scaled real time, with the console.

    Parameters
    ----------
    scenario
        Name of a scenario, or a TOML file.
    policy
        Who decides the split: analytic, default, lookahead, learned[:FILE], static:P:D, colocated.
    seed
        Seed of the workload.
    speed
        Run seconds in one second of wall time.
    cache
        What a flip does to a worker's prefix cache; by default what the scenario says.
    headless
        Without the console; ends when the rollout has ended.
    record
        Copy the journal to this directory at the end.
    run_dir
        Directory for journal, sockets, pids and logs; by default a new one below the user's state directory.
    mode
        Whether decisions act at once, wait for approval, or are only recorded.
    """
    from prorsa.serve.demo import DemoOptions, run_demo

    return run_demo(
        DemoOptions(
            scenario=scenario,
            policy=policy,
            seed=seed,
            speed=speed,
            cache=cache,
            headless=headless,
            as_json=as_json,
            record=record,
            run_dir=run_dir,
            mode=mode,
            shadow=shadow,
        )
    )


@app.command
def serve(
    *,
    config: Annotated[Path, Parameter(name=["--config", "-c"])],
    run_dir: Path | None = None,
    shadow: Shadow = None,
) -> int:
    """Serve live SGLang workers: hub, routers and controller, until interrupted.

    Parameters
    ----------
    config
        The configuration, prorsa.toml.
    run_dir
        Directory of the run, instead of the configuration's; one that has a run is continued.
    """
    from prorsa.serve.live import run_serve

    return run_serve(config, run_dir, shadow)


@app.command
def worker(
    *extra: Annotated[str, Parameter(allow_leading_hyphen=True)],
    model_path: str,
    role: Role = "prefill",
    device: Literal["cuda", "cpu"] = "cuda",
    host: str = "127.0.0.1",
    port: int = 30000,
    bootstrap_port: int | None = None,
    tp_size: int = 1,
    dp_size: int = 1,
    transfer_backend: str | None = None,
    page_size: int = 64,
    max_running_requests: int = 64,
    decode_extra_slots: int | None = None,
    dtype: str | None = None,
    hub: str | None = None,
    run_id: str | None = None,
    worker_id: str | None = None,
    retain_cache: bool | None = None,
    python: str | None = None,
    print_only: Annotated[bool, Parameter(name="--print", negative="")] = False,
) -> int:
    """Launch an SGLang worker that can switch between prefill and decode, with the plugin.

    Workers that will flip must be launched alike. Prorsa's base install must be in their environment for the plugin.

    Parameters
    ----------
    extra
        After `--`: further arguments for SGLang, which overrule those chosen here.
    role
        The role to begin with.
    bootstrap_port
        Where the worker answers decode workers; one of its own for each worker of a host (default: port + 1000).
    transfer_backend
        mooncake, mooncake_tcp, mori or ascend.
    max_running_requests
        Requests that decode at once.
    hub
        The hub's ingest endpoint, which turns the plugin on.
    worker_id
        The worker's name, stable over restarts (default: host:port).
    retain_cache
        Whether a flip keeps the prefix cache; by default where the version was checked.
    python
        Interpreter of the environment that SGLang is installed in; by default the one that runs this command.
    print_only
        Print the command instead of running it.
    """
    from prorsa.cluster.launch import WorkerOptions, run_worker

    run_worker(
        WorkerOptions(
            model_path=model_path,
            role=role,
            device=device,
            host=host,
            port=port,
            bootstrap_port=bootstrap_port,
            tp_size=tp_size,
            dp_size=dp_size,
            transfer_backend=transfer_backend,
            page_size=page_size,
            max_running_requests=max_running_requests,
            decode_extra_slots=decode_extra_slots,
            dtype=dtype,
            hub=hub,
            run_id=run_id,
            worker_id=worker_id,
            retain_cache=retain_cache,
            python=python,
            extra=extra,
        ),
        print_only=print_only,
    )
    return 0


@app.command
def simulate(
    *scenarios: str,
    policy: Annotated[list[str], Parameter(consume_multiple=True, negative="")],
    sessions: Sessions = None,
    gap_cap_s: float | None = None,
    workers: int | None = None,
    concurrency: int | None = None,
    cache: Cache | None = None,
    forecast: ForecastSeen = "lifecycle",
    no_forecast: Annotated[bool, Parameter(negative="")] = False,
    admission: Literal["advise", "gate"] = "advise",
    shadow: Shadow = None,
    seed: Annotated[list[int] | None, Parameter(consume_multiple=True, negative="")] = None,
    seeds: str | None = None,
    record: Path | None = None,
    jobs: int = 1,
    ray: str | None = None,
    as_json: Json = False,
) -> int:
    """Run scenarios in simulation, as fast as it goes.

    Parameters
    ----------
    scenarios
        Names of scenarios, or TOML files.
    policy
        A policy to run; several give a run each, and are compared with the first: analytic, lookahead, static:P:D,
        static:best, colocated[:N[:CHUNK]], colocated:tuned, reactive, reactive:arrow, reactive:proportional,
        dynamo-like (these four also with +guards), clairvoyant[:ROLLOUTS].
    gap_cap_s
        Cap on the gaps between turns, in seconds; by default the scenario's (60).
    workers
        Number of workers, instead of the scenario's.
    concurrency
        Trajectories in flight, instead of the scenario's.
    cache
        What a flip does to a worker's prefix cache, instead of what the scenario says.
    forecast
        What an adaptive policy sees: the lifecycle forecast, the EWMA baseline, or perfect knowledge.
    no_forecast
        Score no forecast, and make none for policies that need none: faster.
    admission
        With gate, hold the first turns of more trajectories than the prefix caches hold.
    seed
        Seeds of the workload; several give a run each (default 0).
    seeds
        A range of seeds instead: 0:5 are 0 to 4.
    record
        Write the journal of each run to this directory (of several runs: to a folder in it).
    jobs
        Runs at a time, each on a core of this machine.
    ray
        Run on a Ray cluster: auto finds one, local starts one, or its HOST:PORT.
    """
    from prorsa.cli.batch import SimulateOptions, run_simulate
    from prorsa.cli.options import seeds_of

    return run_simulate(
        SimulateOptions(
            scenarios=scenarios,
            policies=tuple(policy),
            seeds=seeds_of(seed, seeds),
            sessions=sessions,
            gap_cap_s=gap_cap_s,
            workers=workers,
            concurrency=concurrency,
            cache=cache,
            forecast=forecast,
            scored=not no_forecast,
            admission=admission,
            shadow=shadow,
            record=record,
            jobs=jobs,
            ray=ray,
            as_json=as_json,
        )
    )


@app.command
def replay(journal: Path, *, policy: str | None = None, as_json: Json = False) -> int:
    """Decide again over a journal and compare; ends with status 1 where a decision differs.

    Parameters
    ----------
    journal
        A journal directory, as `--record` makes it, or a run directory.
    policy
        Decide by this policy instead of the recorded one.
    """
    from prorsa.cli.batch import run_replay

    return run_replay(journal, policy, as_json=as_json)


@app.command
def backtest(
    *inputs: str,
    horizon: str = "5,15,30",
    scenario: str = "v32-coding-async",
    policy: str | None = None,
    seed: Annotated[list[int] | None, Parameter(name=["--seed", "--seeds"], consume_multiple=True, negative="")] = None,
    workers: int | None = None,
    concurrency: int | None = None,
    until_s: float | None = None,
    oracle: int = 0,
    arima: Annotated[bool, Parameter(negative="")] = False,
    plots: Path | None = None,
    as_json: Json = False,
) -> int:
    """Score the forecast over recordings, session files or scenarios, beside baselines and what could be known.

    Parameters
    ----------
    inputs
        Journal or run directories, session files (.csv, .csv.gz), and scenarios; their scores are pooled.
    horizon
        Horizons in seconds, separated by commas.
    scenario
        What session files are run on.
    policy
        Policy of simulated runs; by default the scenario's split, frozen.
    seed
        Seeds of simulated runs (default 0).
    workers
        Number of workers, instead of the scenario's.
    concurrency
        Trajectories in flight, instead of the scenario's.
    until_s
        Leave simulated runs off after so many simulated seconds.
    oracle
        Let the distribution oracle forecast at so many times of each phase of a scenario's run.
    arima
        Score ARIMA too (the `baselines` extra); slow.
    plots
        Draw pictures into this directory (the `plots` extra).
    """
    from prorsa.cli.backtest import BacktestOptions, run_backtest

    return run_backtest(
        BacktestOptions(
            inputs=inputs,
            horizon=horizon,
            scenario=scenario,
            policy=policy,
            seeds=tuple(seed or (0,)),
            workers=workers,
            concurrency=concurrency,
            until_s=until_s,
            oracle=oracle,
            arima=arima,
            plots=plots,
            as_json=as_json,
        )
    )


@app.command
def whatif(
    policy: str,
    *,
    at: Looking | None = None,
    journal: Path | None = None,
    at_s: Annotated[Duration | None, Parameter(name="--at", converter=duration)] = None,
    for_s: Annotated[Duration, Parameter(name="--for", converter=duration)] = 120.0,
    to_the_end: Annotated[bool, Parameter(negative="")] = False,
    as_json: Json = False,
) -> int:
    """Compare the policy that decides with another one from a moment on, on copies of the simulated pool.

    Parameters
    ----------
    policy
        The policy to suppose; static:P:D is a split.
    journal
        A recording, as a journal or run directory, instead of the live run.
    at_s
        The moment, in run time from the beginning, as in 12m; by default the latest.
    for_s
        How far both go on, in run time.
    to_the_end
        Go on to the end of the rollout.
    """
    from prorsa.cli.clients import show_what_if

    return show_what_if(at or Looking(), policy, journal, at_s, None if to_the_end else for_s, as_json=as_json)


@app.command
def console(*, at: Looking | None = None, replay: Path | None = None, read_only: bool = False) -> int:
    """Open the operator console on a live run or a recording.

    Parameters
    ----------
    replay
        Play this journal or run directory instead of a live run.
    read_only
        Only look.
    """
    from prorsa.cli.clients import open_console

    return open_console(at or Looking(), replay, read_only=read_only)


@app.command
def status(*, at: Looking | None = None, as_json: Json = False) -> int:
    """Say how the run stands."""
    from prorsa.cli.clients import show_status

    return show_status(at or Looking(), as_json=as_json)


@app.command
def watch(*, at: Looking | None = None, as_json: Json = False) -> int:
    """Follow decisions, flips, overrides and alerts, a line each, until interrupted."""
    from prorsa.cli.clients import follow

    return follow(at or Looking(), as_json=as_json)


for _command in (*ACTING, *JUDGING):
    app.command(_command)


@app.command
def keys(directory: Path) -> int:
    """Make the CURVE keys of a hub and its clients: publishers, operators and viewers.

    Parameters
    ----------
    directory
        Where to write them; keys that are there are never overwritten.
    """
    from prorsa.bus.keys import write_keys
    from prorsa.cli.output import narrate

    narrate(write_keys(directory))
    return 0


@app.command
def doctor(
    *urls: str,
    config: Annotated[Path | None, Parameter(name=["--config", "-c"])] = None,
    key_file: Path | None = None,
    admin_key_file: Path | None = None,
    as_json: Json = False,
) -> int:
    """Look at live workers and say what stands in the way of flipping them; ends with 1 if something does.

    Parameters
    ----------
    urls
        The workers, as in http://10.0.0.7:30000; with a configuration, those of its routers too.
    config
        A prorsa.toml, which is checked as well.
    key_file
        File with the workers' API key.
    admin_key_file
        File with the workers' admin key.
    """
    from prorsa.cli.doctor import run_doctor

    return run_doctor(urls, config, key_file, admin_key_file, as_json=as_json)
