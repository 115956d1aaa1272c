"""``docs/workloads.md`` says what is: its table of scenarios, and its defaults."""

from pathlib import Path

import msgspec

from prorsa.cluster.scenario import Scenario, load_scenario, scenario_names

DOC = Path(__file__).parents[2] / "docs" / "workloads.md"


HEADER = (
    "| name | profile | workload | mode | workers | in flight | trajectories | weight update | host tier | gap cap "
    "| turns at most | besides |"
)


def row(scenario: Scenario) -> str:
    cells = (
        f"`{scenario.name}`",
        scenario.profile,
        scenario.workload,
        scenario.mode,
        str(scenario.workers),
        str(scenario.concurrency),
        length(scenario),
        update(scenario),
        f"{scenario.host_kv_tokens / 1e6:g} M" if scenario.host_kv_tokens else "-",
        f"{scenario.gap_cap_s:g} s",
        str(scenario.max_turns or "-"),
        besides(scenario),
    )
    return f"| {' | '.join(cells)} |"


def length(scenario: Scenario) -> str:
    if scenario.steps:
        more = f" x {scenario.oversample:g}" if scenario.oversample != 1 else ""
        return f"{scenario.steps} x {scenario.groups_per_step}{more} x {scenario.group_size}"
    count = 2 * scenario.concurrency if scenario.trajectories is None else scenario.trajectories
    return f"{count // scenario.group_size} x {scenario.group_size}" if scenario.group_size else str(count)


def update(scenario: Scenario) -> str:
    if not scenario.weight_update_s:
        return "-"
    every = f" each {scenario.update_every}" if scenario.update_every else ""
    return f"{scenario.weight_update_s:g} s{every}{', flush' if scenario.cache_flush else ''}"


def besides(scenario: Scenario) -> str:
    names = ("mix", "tool_drift", "slow_tools", "sandbox_bursts", "faults", "staleness")
    return ", ".join(f"`{name}`" for name in names if getattr(scenario, name)) or "-"


def test_the_table_of_scenarios_is_the_files() -> None:
    lines = DOC.read_text().splitlines()
    start = lines.index(HEADER) + 2
    table = [line for line in lines[start : start + len(scenario_names()) + 1] if line.startswith("|")]
    assert table == [row(load_scenario(name)) for name in scenario_names()]


def test_every_field_of_a_scenario_is_explained() -> None:
    text = DOC.read_text().split("The fields:")[1]
    for field in msgspec.structs.fields(Scenario):
        assert f"`{field.name}`" in text or f"[{field.name}]" in text, field.name
