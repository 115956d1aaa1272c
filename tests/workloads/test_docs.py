"""``docs/workloads.md`` says what is: its table of scenarios, and its defaults."""

from pathlib import Path

import msgspec

from prorsa.cluster.scenario import Scenario, load_scenario, scenario_names

DOC = Path(__file__).parents[2] / "docs" / "workloads.md"


def row(scenario: Scenario) -> str:
    flush = ", flush" if scenario.cache_flush else ""
    generated = f"{2 * scenario.concurrency if scenario.trajectories is None else scenario.trajectories}"
    cells = (
        f"`{scenario.name}`",
        scenario.workload,
        scenario.mode,
        str(scenario.workers),
        str(scenario.concurrency),
        f"{scenario.steps} x {scenario.groups_per_step} x {scenario.group_size}" if scenario.steps else generated,
        f"{scenario.weight_update_s:g} s{flush}" if scenario.weight_update_s else "-",
        f"{scenario.gap_cap_s:g} s",
        str(scenario.max_turns or "-"),
    )
    return f"| {' | '.join(cells)} |"


def test_the_table_of_scenarios_is_the_files() -> None:
    lines = DOC.read_text().splitlines()
    start = lines.index(next(line for line in lines if line.startswith("| name | workload |"))) + 2
    table = [line for line in lines[start : start + len(scenario_names()) + 1] if line.startswith("|")]
    assert table == [row(load_scenario(name)) for name in scenario_names()]


def test_every_field_of_a_scenario_is_explained() -> None:
    text = DOC.read_text().split("The fields:")[1]
    for field in msgspec.structs.fields(Scenario):
        assert f"`{field.name}`" in text or f"[{field.name}]" in text, field.name
