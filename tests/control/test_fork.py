"""A fork of a controller: goes on by itself, and changes nothing of what it came from."""

from prorsa.clock import nanoseconds
from prorsa.control.policies import Planned
from prorsa.events import Split
from tests.control.pool import Pool


def test_a_fork_goes_on_alone_from_the_middle_of_a_flip() -> None:
    pool = Pool(["prefill"] * 4 + ["decode"] * 4, policy="static:5:3", slow=("drain",))
    pool.run(1)
    original = pool.controller
    before = [(worker.worker_id, worker.role, worker.state) for worker in original.registry]
    fork = original.fork(Planned("clairvoyant", ((0.0, Split(prefill=6, decode=2)),)))
    step = fork.tick(nanoseconds(10.0), pool.hub_seq)
    assert len(fork.executor) == 2
    assert {effect.action for effect in step.effects} == {"fence"}
    assert len(original.executor) == 1
    assert [(worker.worker_id, worker.role, worker.state) for worker in original.registry] == before
    assert fork.predictor is None


def test_a_fork_keeps_what_operators_have_taken_out() -> None:
    pool = Pool(["prefill"] * 4 + ["decode"] * 4, policy="static:4:4")
    pool.command("drain", target="w0")
    fork = pool.controller.fork(Planned("clairvoyant"))
    pool.command("readmit", target="w0")
    pool.run(2)
    out, back = fork.registry.get("w0"), pool.controller.registry.get("w0")
    assert out is not None
    assert back is not None
    assert back.serving
    assert not out.serving
