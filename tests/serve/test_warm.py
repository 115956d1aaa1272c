"""What a controller compiles ahead is all that a run asks for."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import importlib, json, pkgutil
import prorsa.forecast
from prorsa.cluster.scenario import load_scenario
from prorsa.forecast.warm import warm_up
from prorsa.run import make_plan
from prorsa.simulate import simulate

def compiled():
    names = [found.name for found in pkgutil.iter_modules(prorsa.forecast.__path__, "prorsa.forecast.")]
    rooms = [importlib.import_module(name) for name in names]
    kernels = {f"{m.__name__}.{n}": f for m in rooms for n, f in vars(m).items()}
    return {name: len(kernel.signatures) for name, kernel in kernels.items() if hasattr(kernel, "signatures")}

warm_up()
before = compiled()
for name in ("mini", "mini_steps"):
    simulate(make_plan(load_scenario(f"tests/serve/{name}.toml"), policy="analytic", run_id="warm"))
print(json.dumps([before, compiled()]))
"""


@pytest.mark.slow
def test_nothing_is_left_to_compile_in_the_middle_of_a_run() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert any(before.values())
    assert after == before
