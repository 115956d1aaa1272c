"""The executor: every way in which a flip can go."""

from hypothesis import given
from hypothesis import strategies as st

from prorsa.clock import NS_PER_S
from prorsa.cluster.effects import Effect
from prorsa.cluster.executor import Actions, Executor, ExecutorConfig
from prorsa.cluster.registry import Registry, Worker
from prorsa.events import EffectResult, Flip, Stamped, WorkerUp

ORDER = ["fence", "drain", "settle", "switch", "warm", "admit"]


def make_worker(role: str = "prefill") -> tuple[Registry, Worker]:
    registry = Registry()
    registry.observe(Stamped(1, 0, "t", 1, 0, WorkerUp(worker_id="w0", role=role, epoch=3, flippable=True)))
    worker = registry.get("w0")
    assert worker is not None
    return registry, worker


def answer(effect: Effect, *, ok: bool = True, safe: bool | None = None) -> EffectResult:
    return EffectResult(
        effect_id=effect.effect_id, worker_id=effect.worker_id, action=effect.action, ok=ok, safe_to_restore=safe
    )


def states(actions: Actions) -> list[str]:
    return [event.state for event in actions.events if isinstance(event, Flip)]


def start(executor: Executor, worker: Worker) -> Effect:
    actions = executor.start(worker, "decode", reason="demand", decision_id=1, t_ns=0)
    assert states(actions) == ["fenced"]
    (effect,) = actions.effects
    return effect


def advance_to(executor: Executor, worker: Worker, action: str) -> Effect:
    effect = start(executor, worker)
    while effect.action != action:
        (effect,) = executor.on_result(answer(effect), 0).effects
    return effect


def test_a_flip_goes_through_all_states_and_ends_serving_with_the_next_epoch() -> None:
    _, worker = make_worker()
    executor = Executor(ExecutorConfig())
    effect = start(executor, worker)
    actions, entered, roles = [effect.action], [worker.state], [effect.role]
    while effect is not None:
        step = executor.on_result(answer(effect), 2 * NS_PER_S)
        entered += states(step)
        effect = step.effects[0] if step.effects else None
        if effect is not None:
            actions.append(effect.action)
            roles.append(effect.role)
            assert effect.epoch == 4
    assert actions == ORDER
    assert entered == ["fenced", "draining", "settling", "switching", "warming", "serving"]
    assert roles == ["prefill", "prefill", "prefill", "decode", "decode", "decode"]
    assert (worker.role, worker.state, worker.epoch, worker.to_role) == ("decode", "serving", 4, None)
    assert len(executor) == 0


def test_a_result_that_comes_twice_or_late_changes_nothing() -> None:
    _, worker = make_worker()
    executor = Executor(ExecutorConfig())
    effect = start(executor, worker)
    executor.on_result(answer(effect), 0)
    assert executor.on_result(answer(effect), 0) == Actions()
    assert worker.state == "draining"


def test_what_fails_before_the_role_changed_is_undone() -> None:
    for action in ("fence", "drain", "settle", "switch"):
        _, worker = make_worker()
        executor = Executor(ExecutorConfig())
        effect = advance_to(executor, worker, action)
        (undo,) = executor.on_result(answer(effect, ok=False, safe=True), 0).effects
        assert (undo.action, undo.role, undo.epoch) == ("admit", "prefill", 4)
        assert states(executor.on_result(answer(undo), 0)) == ["restored"]
        assert (worker.role, worker.state) == ("prefill", "serving")


def test_a_failed_switch_that_is_not_safe_to_restore_is_quarantined() -> None:
    for safe in (False, None):
        _, worker = make_worker()
        executor = Executor(ExecutorConfig())
        effect = advance_to(executor, worker, "switch")
        step = executor.on_result(answer(effect, ok=False, safe=safe), 0)
        assert states(step) == ["quarantined"]
        assert step.effects == []
        assert worker.state == "quarantined"


def test_a_canary_is_tried_again_before_the_worker_is_quarantined() -> None:
    _, worker = make_worker()
    executor = Executor(ExecutorConfig(tries=3))
    effect = advance_to(executor, worker, "warm")
    for _ in range(2):
        (again,) = executor.on_result(answer(effect, ok=False), 0).effects
        assert again == effect
    assert states(executor.on_result(answer(effect, ok=False), 0)) == ["quarantined"]


def test_what_is_not_answered_is_asked_for_again_and_then_given_up() -> None:
    for action, end in [("drain", "admit"), ("switch", None)]:
        _, worker = make_worker()
        config = ExecutorConfig(tries=2)
        executor = Executor(config)
        effect = advance_to(executor, worker, action)
        late_ns = round(config.deadline_s(effect.action) * NS_PER_S)
        assert executor.on_tick(late_ns - 1).effects == []
        assert executor.on_tick(late_ns).effects == [effect]
        step = executor.on_tick(2 * late_ns)
        if end is None:
            assert states(step) == ["quarantined"]
        else:
            assert [effect.action for effect in step.effects] == [end]


def test_a_worker_that_dies_in_any_state_leaves_the_executor_and_its_epoch_is_not_used_again() -> None:
    for action in ORDER:
        registry, worker = make_worker()
        executor = Executor(ExecutorConfig())
        advance_to(executor, worker, action)
        assert states(executor.on_worker_gone(worker, 0, "killed")) == ["dead"]
        assert len(executor) == 0
        registry.observe(Stamped(2, 0, "t", 2, 0, WorkerUp(worker_id="w0", role="prefill", epoch=0, flippable=True)))
        back = registry.get("w0")
        assert back is not None
        assert (back.state, back.role, back.to_role) == ("serving", "prefill", None)
        assert start(executor, back).epoch == 5


def test_outstanding_effects_are_those_without_an_answer() -> None:
    _, worker = make_worker()
    executor = Executor(ExecutorConfig())
    effect = advance_to(executor, worker, "settle")
    assert executor.outstanding() == [effect]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([True, False, None]), st.booleans()), max_size=40))
def test_whatever_is_answered_the_worker_ends_serving_or_quarantined(
    answers: list[tuple[bool, bool | None, bool]],
) -> None:
    _, worker = make_worker()
    executor = Executor(ExecutorConfig())
    waiting: list[Effect] = [start(executor, worker)]
    t_ns = 0
    # Whatever the workers answer at first, in the end they answer well.
    for ok, safe, in_time in [*answers, *[(True, None, True)] * len(ORDER)]:
        if not waiting:
            break
        t_ns += 60 * NS_PER_S
        step = executor.on_result(answer(waiting[0], ok=ok, safe=safe), t_ns) if in_time else executor.on_tick(t_ns)
        waiting = executor.outstanding()
        assert set(step.effects) <= set(waiting)
    assert worker.state in ("serving", "quarantined")
    assert (worker.worker_id in executor) is bool(waiting)
