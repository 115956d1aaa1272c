"""Which pair a request goes to."""

from hypothesis import given
from hypothesis import strategies as st

from prorsa.cluster.router.choose import choose, exists
from tests.router.build import entry, load, pool, table, wish

P1, P2 = entry("p1", "prefill"), entry("p2", "prefill")
D1, D2 = entry("d1", "decode", kv_capacity=1000), entry("d2", "decode", kv_capacity=1000)
STATES = ["serving", "fenced", "draining", "warming", "dead", "unmet"]


def test_a_session_goes_where_its_prefix_is() -> None:
    chosen = choose(pool(table(P1, P2, D1)), wish(shared=80, held={"p2": 80}))
    assert chosen is not None
    assert (chosen.prefill.worker_id, chosen.new_tokens) == ("p2", 20)


def test_it_leaves_when_the_queue_there_is_longer_than_computing_anew() -> None:
    made = pool(table(P1, P2, D1))
    made.loads["p2"] = load(prefill_tokens=79, prefilling=1)
    assert choose(made, wish(shared=80, held={"p2": 80})).prefill.worker_id == "p2"
    made.loads["p2"] = load(prefill_tokens=81, prefilling=1)
    assert choose(made, wish(shared=80, held={"p2": 80})).prefill.worker_id == "p1"


def test_new_sessions_balance_homes() -> None:
    assert choose(pool(table(P1, P2, D1), homes={"p1": 500, "p2": 100}), wish()).prefill.worker_id == "p2"


def test_a_warm_flipped_worker_is_chosen_for_what_it_decoded() -> None:
    turned = entry("d0", "prefill", life=1)
    chosen = choose(pool(table(P1, turned, D1)), wish(200, shared=150, held={"p1": 100, "d0": 150}))
    assert (chosen.prefill.worker_id, chosen.new_tokens) == ("d0", 50)


def test_decode_goes_to_the_emptier_worker_but_stays_for_little() -> None:
    made = pool(table(P1, D1, D2))
    made.loads["d1"] = load(kv_tokens=100, decoding=1)
    assert choose(made, wish()).decode.worker_id == "d2"
    assert choose(made, wish(shared=50, held={"d1": 50})).decode.worker_id == "d1"
    made.loads["d1"] = load(kv_tokens=300, decoding=3)
    assert choose(made, wish(shared=50, held={"d1": 50})).decode.worker_id == "d2"


def test_what_has_no_room_waits() -> None:
    made = pool(table(P1, D1), window=150)
    made.loads["p1"] = load(prefill_tokens=100, prefilling=1)
    assert choose(made, wish(100)) is None
    made.loads["p1"] = load(prefill_tokens=50, prefilling=1)
    assert choose(made, wish(100)) is not None
    made.loads["d1"] = load(kv_tokens=900, decoding=2)
    assert choose(made, wish(100)) is None


def test_an_idle_worker_takes_even_what_is_larger_than_its_window() -> None:
    assert choose(pool(table(P1, D1), window=10, fill=0.01), wish(500)) is not None


def test_a_worker_takes_no_more_requests_than_it_runs() -> None:
    made = pool(table(P1, entry("d", "decode", max_running=2)))
    made.loads["d"] = load(decoding=2, kv_tokens=0)
    assert choose(made, wish()) is None


def test_workers_that_failed_a_request_come_last() -> None:
    made = pool(table(P1, P2, D1))
    assert choose(made, wish(shared=80, held={"p2": 80}, avoid=frozenset({"p2"}))).prefill.worker_id == "p1"
    assert choose(made, wish(avoid=frozenset({"p1", "p2", "d1"}))) is not None


def test_a_request_that_began_under_some_weights_waits_for_them() -> None:
    old = [entry("p1", "prefill", weight_version="1"), entry("d1", "decode", weight_version="1")]
    new = [entry("p2", "prefill", weight_version="2"), entry("d2", "decode", weight_version="2")]
    made = pool(table(*old, *new))
    assert choose(made, wish(version="2")).prefill.worker_id == "p2"
    assert choose(made, wish(version="3")) is None


def test_a_mixed_worker_is_a_pair_of_its_own() -> None:
    chosen = choose(pool(table(entry("m", "mixed"))), wish())
    assert chosen.mixed


def test_nothing_serves_without_a_proven_pair() -> None:
    assert not exists(pool(table(P1, D1, prove=False)))
    assert not exists(pool(table(P1, entry("d", "decode", state="fenced"))))
    assert exists(pool(table(P1, D1)))


@given(
    states=st.lists(
        st.sampled_from(["serving", "fenced", "draining", "warming", "dead", "unmet"]), min_size=4, max_size=4
    ),
    loads=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    tokens=st.integers(1, 400),
)
def test_a_chosen_pair_may_always_serve(states: list[str], loads: list[int], tokens: int) -> None:
    roles = ["prefill", "prefill", "decode", "decode"]
    entries = [
        entry(f"w{i}", role, state=state, kv_capacity=600, max_running=3)
        for i, (role, state) in enumerate(zip(roles, states, strict=True))
    ]
    made = pool(table(*entries), window=500)
    for i, count in enumerate(loads):
        tokens_there = 150 * count
        made.loads[f"w{i}"] = load(
            prefill_tokens=tokens_there, prefilling=count, kv_tokens=tokens_there, decoding=count
        )
    chosen = choose(made, wish(tokens))
    if chosen is None:
        return
    assert (chosen.prefill.role, chosen.decode.role) == ("prefill", "decode")
    assert chosen.prefill.serving
    assert chosen.decode.serving
    assert made.load(chosen.decode.worker_id).decoding < 3
