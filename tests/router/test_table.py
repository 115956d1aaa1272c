"""The role table: who may work with whom, and whose word counts."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorsa.cluster.router.table import RoleTable, Table, TableRow
from prorsa.errors import RefusedError
from tests.router.build import entry, table


def test_a_pair_serves_only_once_it_is_proven() -> None:
    prefill, decode = entry("p", "prefill"), entry("d", "decode")
    made = table(prefill, decode, prove=False)
    assert not made.may_pair(prefill, decode)
    assert made.unproven() == [(prefill, decode)]
    made.prove(prefill, decode)
    assert made.may_pair(prefill, decode)
    assert made.unproven() == []


def test_another_life_of_a_worker_is_unproven() -> None:
    made = table(entry("p", "prefill"), entry("d", "decode"))
    again = made.update("p", life=1)
    assert not made.may_pair(again, made.get("d"))
    made.forget_old_lives()
    assert made.proven == set()


def test_weight_versions_never_mix() -> None:
    made = table(entry("p", "prefill", weight_version="1"), entry("d", "decode", weight_version="1"))
    assert made.may_pair(made.get("p"), made.get("d"))
    made.update("d", weight_version="2")
    assert not made.may_pair(made.get("p"), made.get("d"))
    assert made.unproven() == [], "no canary is sent across versions either"


def test_peers_limit_pairs_from_both_sides() -> None:
    made = table(entry("p", "prefill"), entry("d", "decode"), entry("e", "decode"))
    made.update("p", peers=("d",))
    assert made.may_pair(made.get("p"), made.get("d"))
    assert not made.may_pair(made.get("p"), made.get("e"))


def test_a_controller_that_lost_its_lease_is_refused() -> None:
    made = table(entry("w", "prefill"))
    made.check_lease(7)
    with pytest.raises(RefusedError, match="lost its lease"):
        made.check_lease(6)
    with pytest.raises(RefusedError, match="lost its lease"):
        made.apply(RoleTable(lease_epoch=6, version=99, workers=()))
    made.check_lease(None)


def test_an_older_table_of_the_same_lease_changes_nothing() -> None:
    made = table(entry("w", "prefill"))
    newer = RoleTable(lease_epoch=1, version=5, workers=(TableRow(worker_id="w", role="decode", epoch=1),))
    older = RoleTable(lease_epoch=1, version=4, workers=(TableRow(worker_id="w", role="prefill", epoch=2),))
    assert made.apply(newer)
    assert not made.apply(older)
    assert not made.apply(newer), "a table that is repeated is taken once"
    assert made.get("w").role == "decode"
    assert made.get("w").life == 1, "a changed role is another life of the worker's KV manager"


def test_a_row_older_than_what_the_router_saw_is_passed_over() -> None:
    made = table(entry("w", "decode", epoch=4), entry("x", "prefill"))
    rows = (TableRow(worker_id="w", role="prefill", epoch=3), TableRow(worker_id="x", role="prefill", epoch=1))
    assert made.apply(RoleTable(lease_epoch=1, version=1, workers=rows))
    assert (made.get("w").role, made.get("w").epoch) == ("decode", 4)
    assert made.get("x").epoch == 1


def test_an_effect_of_a_flip_that_is_over_is_refused() -> None:
    made = table(entry("w", "decode", epoch=4))
    with pytest.raises(RefusedError, match="stale"):
        made.check_epoch("w", 3)
    assert made.check_epoch("w", 4).worker_id == "w"


def test_an_unknown_worker_is_named_with_those_there_are() -> None:
    with pytest.raises(RefusedError, match=r"no worker 'x'.*there are: p, d"):
        table(entry("p", "prefill"), entry("d", "decode")).get("x")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(["prefill", "decode"]))))
def test_what_was_applied_never_goes_back(tables: list[tuple[int, int, str]]) -> None:
    made = table(entry("w", "prefill"))
    seen = [(0, 0)]
    for lease_epoch, version, role in tables:
        row = TableRow(worker_id="w", role=role, epoch=0)
        try:
            made.apply(RoleTable(lease_epoch=lease_epoch, version=version, workers=(row,)))
        except RefusedError:
            assert lease_epoch < seen[-1][0]
        seen.append((made.lease_epoch, made.version))
    assert seen == sorted(seen)


def test_a_table_survives_its_file() -> None:
    made = table(entry("p", "prefill", peers=("d",)), entry("d", "decode", life=3))
    assert msgspec.json.decode(msgspec.json.encode(made), type=Table) == made
