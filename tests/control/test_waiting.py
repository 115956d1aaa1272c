"""The queue before prefill, folded from the router's events."""

from hypothesis import given
from hypothesis import strategies as st

from prorsa.control.waiting import Waiting
from prorsa.events import AnyEvent, LlmEnd, LlmPrefillEnd, LlmRetry, LlmSubmit, RunBegin, TrajectoryEnd, TrajectoryReady


def ready(request: str, prompt: int, new: int | None = None) -> TrajectoryReady:
    return TrajectoryReady(trajectory_id=f"t-{request}", request_id=request, prompt_tokens=prompt, new_tokens=new)


def submit(request: str, prompt: int, new: int, attempt: int = 0) -> LlmSubmit:
    return LlmSubmit(
        trajectory_id=f"t-{request}", request_id=request, attempt=attempt, turn=0, prompt_tokens=prompt, new_tokens=new
    )


def prefilled(request: str, attempt: int = 0) -> LlmPrefillEnd:
    return LlmPrefillEnd(rid=f"{request}.{attempt:02d}", worker_id="w0", cached_tokens=0)


def fold(*events: AnyEvent) -> Waiting:
    waiting = Waiting()
    for event in events:
        waiting.observe(event)
    return waiting


def test_nothing_is_known_before_a_router_has_spoken() -> None:
    assert not fold(prefilled("a"), LlmEnd(request_id="a", attempt=0, output_tokens=1, finish_reason="stop")).known


def test_a_request_waits_from_ready_to_the_end_of_its_prefill() -> None:
    waiting = fold(ready("a", 1000, 300), ready("b", 500))
    assert (waiting.uncached_tokens, waiting.held_prompt_tokens) == (800, 1500)
    waiting.observe(submit("a", 1000, 250))
    assert (waiting.uncached_tokens, waiting.held_prompt_tokens) == (750, 500)
    waiting.observe(prefilled("a"))
    assert (waiting.uncached_tokens, waiting.held_prompt_tokens) == (500, 500)


def test_a_cancelled_decode_waits_with_what_it_keeps() -> None:
    waiting = fold(ready("a", 1000, 300), submit("a", 1000, 300), prefilled("a"))
    waiting.observe(LlmRetry(trajectory_id="t-a", request_id="a", attempt=1, reason="drain", tokens_kept=40))
    assert (waiting.uncached_tokens, waiting.held_prompt_tokens) == (40, 1040)
    waiting.observe(submit("a", 1040, 60, attempt=1))
    assert (waiting.uncached_tokens, waiting.held_prompt_tokens) == (60, 0)


def test_an_aborted_trajectory_waits_no_more() -> None:
    assert len(fold(ready("a", 1000), TrajectoryEnd(trajectory_id="t-a", status="aborted"))) == 0


def test_a_new_run_starts_from_nothing() -> None:
    begin = RunBegin(scenario="s", profile="p", seed=0, workers=2, concurrency=1, trajectories=1, cache="retained")
    waiting = fold(ready("a", 1000), begin)
    assert (len(waiting), waiting.uncached_tokens, waiting.held_prompt_tokens) == (0, 0, 0)


_EVENTS = st.one_of(
    st.builds(ready, st.sampled_from("abc"), st.integers(1, 9), st.none() | st.integers(0, 9)),
    st.builds(submit, st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 9)),
    st.builds(prefilled, st.sampled_from("abc")),
    st.builds(
        lambda r, k: LlmRetry(trajectory_id=f"t-{r}", request_id=r, attempt=1, reason="drain", tokens_kept=k),
        st.sampled_from("abc"),
        st.none() | st.integers(0, 9),
    ),
    st.builds(lambda r: LlmEnd(request_id=r, attempt=0, output_tokens=1, finish_reason="stop"), st.sampled_from("abc")),
)


@given(st.lists(_EVENTS, max_size=40))
def test_the_sums_are_those_of_what_waits_whatever_comes(events: list[AnyEvent]) -> None:
    waiting = fold(*events)
    assert waiting.uncached_tokens >= 0
    assert waiting.held_prompt_tokens >= 0
    for request in "abc":
        waiting.observe(LlmEnd(request_id=request, attempt=0, output_tokens=1, finish_reason="stop"))
    assert (len(waiting), waiting.uncached_tokens, waiting.held_prompt_tokens) == (0, 0, 0)
    assert waiting.mean_uncached_tokens is None
