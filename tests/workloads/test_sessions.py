"""Session files: what the turns become, what is refused, and how fast."""

import csv
import gzip
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prorsa.cluster.profile import Profile
from prorsa.cluster.workloads.sessions import GAP_WITHOUT_RECORD_S, load_sessions
from prorsa.cluster.workloads.workload import Workload
from prorsa.errors import InputError

Write = Callable[..., Path]


def turns_of(workload: Workload, trajectory: int) -> slice:
    return slice(*workload.first_turn[trajectory : trajectory + 2])


def reuse(profile: Profile, path: Path) -> list[int]:
    return load_sessions(path, profile=profile).reuse_tokens.tolist()


# --- what a context holds -------------------------------------------------------------------------------------------


def test_a_conversation_that_goes_on_reuses_prompt_and_answer(profile: Profile, session_file: Write) -> None:
    assert reuse(profile, session_file(("a", 0, 1000, 50, 1000), ("a", 1, 1200, 10, 240))) == [0, 1050]


def test_a_prompt_that_misses_the_last_block_still_goes_on(profile: Profile, session_file: Write) -> None:
    # 1000 - 127 tokens are covered: the block of the end, and the one before it, which a recorder may leave out.
    assert reuse(profile, session_file(("a", 0, 1000, 50, 1000), ("a", 1, 1200, 10, 327))) == [0, 1050]
    assert reuse(profile, session_file(("a", 0, 1000, 50, 1000), ("a", 1, 1200, 10, 328))) == [0, 872]


def test_an_answer_that_the_prompt_cannot_hold_was_dropped(profile: Profile, session_file: Write) -> None:
    assert reuse(profile, session_file(("a", 0, 1000, 500, 1000), ("a", 1, 1400, 10, 440))) == [0, 1000]


def test_a_rewritten_prompt_reuses_what_is_not_new(profile: Profile, session_file: Write) -> None:
    assert reuse(profile, session_file(("a", 0, 1000, 50, 1000), ("a", 1, 900, 10, 700))) == [0, 200]


def test_files_whose_new_tokens_leave_the_answer_out_mean_the_same(profile: Profile, session_file: Write) -> None:
    assert reuse(profile, session_file(("a", 0, 1000, 50, 1000), ("a", 1, 1200, 10, 150))) == [0, 1050]


def test_a_token_is_always_left_to_compute(profile: Profile, session_file: Write) -> None:
    assert reuse(profile, session_file(("a", 0, 1000, 50, 1000), ("a", 1, 1000, 10, 0))) == [0, 999]


def test_first_turns_reuse_nothing_whatever_the_service_had_cached(profile: Profile, session_file: Write) -> None:
    assert reuse(profile, session_file(("a", 0, 1000, 50, 200))) == [0]


# --- sessions, order, limits ----------------------------------------------------------------------------------------


def test_truncates_skips_and_counts(small: Callable[[int], Profile], session_file: Write) -> None:
    path = session_file(
        ("fits", 0, 100, 10, 100), ("cut", 0, 100, 10, 100), ("cut", 1, 190, 11, 90), ("huge", 0, 300, 1, 300)
    )
    workload = load_sessions(path, profile=small(200))
    assert (workload.trajectories, workload.turns, workload.sessions_skipped) == (2, 2, 1)
    assert sorted(workload.truncated.tolist()) == [False, True]


def test_each_session_once_in_an_order_of_the_seed(profile: Profile, session_file: Write) -> None:
    path = session_file(*(("s" + str(n), 0, 1000 + n, 5, 1000) for n in range(50)))
    orders = [load_sessions(path, profile=profile, seed=seed).prompt_tokens.tolist() for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(1000, 1050))


def test_interleaved_sessions_are_taken_apart(profile: Profile, session_file: Write) -> None:
    path = session_file(("a", 0, 10, 5, 10), ("b", 0, 20, 5, 20), ("a", 1, 30, 5, 15), ("b", 1, 40, 5, 15))
    workload = load_sessions(path, profile=profile)
    prompts = [workload.prompt_tokens[turns_of(workload, i)].tolist() for i in range(2)]
    assert sorted(prompts) == [[10, 30], [20, 40]]


def test_synchronous_steps_take_sessions_in_order(profile: Profile, session_file: Write) -> None:
    path = session_file(*(("s" + str(n), 0, 1000, 5, 1000) for n in range(5)))
    assert load_sessions(path, profile=profile, trajectories_per_step=2).step.tolist() == [0, 0, 1, 1, 2]


# --- gaps and tools -------------------------------------------------------------------------------------------------

HEADER = "session,turn,prompt_tokens,output_tokens,new_tokens,gap_s,previous_stop_reason\n"


def test_gaps_are_capped_and_unknown_ones_take_the_median(profile: Profile, session_file: Write) -> None:
    rows = [
        "a,0,9,1,9,,",
        "a,1,19,1,9,4,",
        "a,2,29,1,9,,",
        "a,3,39,1,9,6,",
        "a,4,49,1,9,500,",
        "b,0,9,1,9,,",
        "b,1,19,1,9,,",
    ]
    workload = load_sessions(session_file(text=HEADER + "\n".join(rows)), profile=profile, gap_cap_s=30)
    gaps = {tuple(workload.gap_s[turns_of(workload, i)].tolist()) for i in range(2)}
    assert gaps == {(0.0, 4.0, 6.0, 6.0, 30.0), (0.0, 6.0)}


def test_a_file_without_gaps_gets_the_stated_one(profile: Profile, session_file: Write) -> None:
    workload = load_sessions(session_file(("a", 0, 10, 5, 10), ("a", 1, 30, 5, 15)), profile=profile)
    assert workload.gap_s.tolist() == [0.0, GAP_WITHOUT_RECORD_S]


def test_tools_come_from_the_stop_reason(profile: Profile, session_file: Write) -> None:
    rows = ["a,0,9,1,9,,", "a,1,19,1,9,4,tool_use", "a,2,29,1,9,4,end_turn", "a,3,39,1,9,4,"]
    workload = load_sessions(session_file(text=HEADER + "\n".join(rows)), profile=profile)
    names = [None if tool < 0 else workload.tools[tool] for tool in workload.tool]
    assert names == [None, "tool", "user", "unknown"]


def test_tools_come_from_the_action_before(profile: Profile, session_file: Write) -> None:
    text = "session,turn,prompt_tokens,output_tokens,new_tokens,next_action\na,0,9,1,9,search\na,1,19,1,9,user\n"
    workload = load_sessions(session_file(text=text), profile=profile)
    assert (workload.tools, workload.tool.tolist()) == (("search",), [-1, 0])


# --- refusals -------------------------------------------------------------------------------------------------------

GOOD = "a,0,9,1,9,,\n"


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ("a,0,9,1,9\n", ":2: 5 cells where the header names 7"),
        (GOOD + "a,2,9,1,9,,\n", ":3: turn 2 of session 'a' where turn 1 comes next"),
        (GOOD + "a,0,9,1,9,,\n", ":3: turn 0 of session 'a' where turn 1 comes next"),
        ("a,1,9,1,9,,\n", ":2: turn 1 of session 'a' where turn 0 comes next"),
        ("a,0,x,1,9,,\n", ":2: prompt_tokens is 'x', which is not a number"),
        ("a,0,9,-1,9,,\n", ":2: output_tokens is negative"),
        ("a,0,9,1.5,9,,\n", ":2: output_tokens is not a whole number"),
        ("a,0,9,,9,,\n", ":2: output_tokens is empty"),
        ("a,0,0,1,0,,\n", ":2: prompt_tokens is 0"),
        ("a,0,9,1,10,,\n", ":2: new_tokens is more than prompt_tokens"),
        ("a,0,1e300,1,9,,\n", ":2: prompt_tokens is out of range"),
        (",0,9,1,9,,\n", ":2: session is empty"),
        (GOOD + "\n\na,1,9,1,9,-3,\n", ":5: gap_s is negative"),
        (GOOD + "a,1,9,1,9,nan,\n", ":3: gap_s is not a finite number"),
        (GOOD + "a,1,9,1,9,inf,\n", ":3: gap_s is not a finite number"),
        ("", "no turns"),
    ],
)
def test_a_bad_row_is_named(profile: Profile, session_file: Write, rows: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        load_sessions(session_file(text=HEADER + rows), profile=profile)
    assert text in str(caught.value)
    assert "sessions.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("session,turn,output_tokens\n", "no column prompt_tokens, new_tokens"),
        ("", "no column session, turn"),
        (HEADER.replace("gap_s", "turn"), "column turn twice"),
    ],
)
def test_a_bad_header_is_named(profile: Profile, session_file: Write, header: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        load_sessions(session_file(text=header), profile=profile)


def test_files_that_cannot_be_read(profile: Profile, tmp_path: Path) -> None:
    cut_short = tmp_path / "cut.csv.gz"
    cut_short.write_bytes(gzip.compress(b"x" * 10_000)[:-20])
    not_gzip = tmp_path / "plain.csv.gz"
    not_gzip.write_text(HEADER)
    not_text = tmp_path / "latin.csv"
    not_text.write_bytes(b"session,\xff\xfe")
    for path in (tmp_path / "absent.csv", tmp_path, cut_short, not_gzip, not_text):
        with pytest.raises(InputError, match="give a CSV file of sessions") as caught:
            load_sessions(path, profile=profile)
        assert str(path) in str(caught.value)


def test_no_session_fits(small: Callable[[int], Profile], session_file: Write) -> None:
    with pytest.raises(InputError, match="no session's first turn fits in 50 tokens"):
        load_sessions(session_file(("a", 0, 100, 10, 100)), profile=small(50))


# --- the recorded traces --------------------------------------------------------------------------------------------


def test_coding_trace(profile: Profile, traces: Path) -> None:
    """Each session once, cut by the stated rule, as counted from the file by another way."""
    path = traces / "coding-sessions.csv.gz"
    sessions: dict[str, list[tuple[int, int]]] = {}
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            size = int(row["prompt_tokens"]), max(1, int(row["output_tokens"]))
            sessions.setdefault(row["session"], []).append(size)
    expected, truncated = [], 0
    for turns in sessions.values():
        fits = [prompt + output <= profile.max_context for prompt, output in turns]
        run = fits.index(False) if False in fits else len(fits)
        expected.append(tuple(turns[:run]))
        truncated += 0 < run < len(fits)
    workload = load_sessions(path, profile=profile, seed=3)
    got = [
        tuple(zip(workload.prompt_tokens[k].tolist(), workload.output_tokens[k].tolist(), strict=True))
        for k in (turns_of(workload, i) for i in range(workload.trajectories))
    ]
    assert sorted(got) == sorted(turns for turns in expected if turns)
    assert workload.sessions_skipped == expected.count(())
    assert workload.truncated.sum() == truncated
    assert workload.gap_s.max() == 60.0


def test_coding_trace_loads_fast(profile: Profile, traces: Path) -> None:
    best_s = min(timed(lambda: load_sessions(traces / "coding-sessions.csv.gz", profile=profile)) for _ in range(2))
    assert best_s < 2.0


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def test_airline_trace(profile: Profile, traces: Path) -> None:
    workload = load_sessions(traces / "airline-agent-turns.csv.gz", profile=profile)
    later = np.ones(workload.turns, bool)
    later[workload.first_turn[:-1]] = False
    context = np.roll(workload.prompt_tokens + workload.output_tokens, 1)
    assert workload.trajectories == 200
    assert (workload.reuse_tokens[later] == context[later]).all()
    assert "search_direct_flight" in workload.tools
    assert "unknown" not in workload.tools
