"""Cells on a Ray cluster of two local nodes: serial results in serial order, also when a node is lost.

Ray warns about itself in many ways, at import and at exit; the warnings of its own modules are let pass here alone.
"""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prorsa.cluster.scenario import load_scenario
from prorsa.errors import CellError, ConfigError, UnavailableError
from prorsa.run import make_plan
from prorsa.runner import Cell, SerialExecutor, run_cells
from prorsa.runner.simulations import simulation_cells
from tests.runner import work

pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

MINI = Path(__file__).parent.parent / "serve" / "mini.toml"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    repository = str(Path(__file__).parents[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", repository)  # nodes need the code of these tests
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        made.add_node(num_cpus=1)
        made.wait_for_nodes()
        yield made
        made.shutdown()


@pytest.fixture
def executor(cluster: Any) -> Iterator[Any]:
    from prorsa.runner.on_ray import RayExecutor

    made = RayExecutor(cluster.address)
    yield made
    made.close()


def test_simulations_are_those_of_a_serial_run(executor: Any) -> None:
    scenario = load_scenario(MINI)
    plans = [
        make_plan(scenario, policy=policy, run_id=f"{policy}-{seed}", seed=seed, scored=False)
        for seed in (0, 1)
        for policy in ("static:2:2", "colocated")
    ]
    cells = simulation_cells(plans, [None] * len(plans))
    assert [{**row, "wall_s": None} for row in run_cells(cells, executor)] == [
        {**row, "wall_s": None} for row in run_cells(cells, SerialExecutor())
    ]


def test_a_failure_names_its_cell(executor: Any) -> None:
    with pytest.raises(CellError, match="second failed: ZeroDivisionError"):
        run_cells([Cell("first", partial(work.square, 1)), Cell("second", work.divide)], executor)


def test_the_cells_of_a_lost_node_run_on_another(cluster: Any, executor: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    lost = False

    def lose_a_node(_number: int, share: float) -> None:
        nonlocal lost
        if share == 1.0 and not lost:
            lost = True
            cluster.remove_node(node, allow_graceful=False)

    # Four cells start, one on a core; when the first is done, the others still run, two of them on the node that goes.
    cells = [Cell("first", partial(work.slow, 0, 1.0)), *(Cell(f"{x}", partial(work.slow, x, 8.0)) for x in (1, 2, 3))]
    assert run_cells(cells, executor, lose_a_node) == [0, 1, 2, 3]
    assert lost


def test_no_cluster_at_the_address_is_one_clear_line() -> None:
    from prorsa.runner.on_ray import RayExecutor

    with pytest.raises(UnavailableError, match=r"--ray 127\.0\.0\.1:1: .*start one with `ray start --head`"):
        RayExecutor("127.0.0.1:1")


def test_an_address_that_is_none_is_refused() -> None:
    from prorsa.runner.on_ray import RayExecutor

    with pytest.raises(ConfigError, match="--ray somewhere: give auto, local, or a HOST:PORT"):
        RayExecutor("somewhere")


def test_without_ray_the_command_line_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['ray'] = None; from prorsa import cli; "
        f"raise SystemExit(cli.run(['simulate', {str(MINI)!r}, '--policy', 'static:2:2', '--ray', 'local']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "prorsa: --ray: Ray is not installed: this needs `pip install 'prorsa[ray]'`\n"
