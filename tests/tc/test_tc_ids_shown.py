"""What operators see of transactional ids: epoch, last use, and what of each takes room."""

from __future__ import annotations

from typing import Any

import pytest
from insides import state_of
from lane_host import LaneHost
from tc_host import TcHost

from pulsar_txn.tc import FencingCoordinator, IdInfo, TransactionCoordinator
from pulsar_txn.tc.info import TransactionInfo, ids_of
from pulsar_txn.wire.ids import Participant, TxnAction, TxnStatus

APP: dict[str, Any] = {"principal": "anna", "identity": ("app", 1)}


class FencingHost(TcHost):
    """With transactional ids."""

    def fresh(self) -> TransactionCoordinator:
        return FencingCoordinator(self.tc_id, **self.options)


def shown(host: TcHost, info: IdInfo) -> list[TransactionInfo]:
    """The transactions of an id, as its host shows them."""
    found = [host.tc.transaction(least) for least in info.unfinished]
    return [each for each in found if each is not None]


@pytest.mark.seed_rows("B18", "E07", "E08")
def test_an_id_is_described_with_all_that_takes_room_of_it_also_after_a_restart() -> None:
    host = FencingHost()
    committing, still_open, prepared = (host.new(**APP) for _ in range(3))
    host.now_ms += 5
    host.add(committing, Participant("t"), **APP)
    host.now_ms += 5
    host.end(committing, TxnAction.COMMIT, **APP)
    host.prepare(prepared, **APP)
    host.new(principal="bert", identity=("app", 7))
    for restart in (lambda: None, host.crash, host.take_snapshot, host.crash):
        restart()
        info = host.tc.describe("anna", "app")
        assert info is not None
        assert (info.principal, info.transactional_id, info.epoch, info.last_used_ms) == ("anna", "app", 1, 1_000)
        seen = [(each.txn_id, each.status, each.modified_ms, each.prepared) for each in shown(host, info)]
        assert seen == [
            (committing, TxnStatus.COMMITTING, 1_010, False),
            (still_open, TxnStatus.OPEN, 1_000, False),
            (prepared, TxnStatus.PREPARED, 1_010, True),
        ]
        assert [(each.principal, each.epoch) for each in host.tc.ids()] == [("anna", 1), ("bert", 7)]
    host.done(committing)
    host.confirm()
    found = host.tc.describe("anna", "app")
    assert found is not None
    assert [each.txn_id for each in shown(host, found)] == [still_open, prepared]


@pytest.mark.seed_rows("E08")
def test_a_registration_is_a_change_and_one_that_is_known_is_none() -> None:
    host = TcHost()
    txn_id = host.new()
    for ms, changed in ((5, 1_005), (5, 1_005)):
        host.now_ms += ms
        host.add(txn_id, Participant("t"))
        assert host.tc.transactions()[0].modified_ms == changed


def test_an_unknown_id_and_a_coordinator_that_does_not_fence_show_nothing() -> None:
    host = FencingHost()
    host.new(**APP)
    assert host.tc.describe("bert", "app") is None
    assert host.tc.describe("anna", "ap") is None
    plain = TcHost()
    plain.new(**APP)
    assert plain.tc.describe("anna", "app") is None
    assert list(plain.tc.ids()) == []


def test_an_id_that_is_forgotten_is_shown_by_what_it_left_prepared() -> None:
    host = FencingHost(id_retention_ms=100)
    txn_id = host.new(**APP)
    host.prepare(txn_id, **APP)
    host.now_ms += 1_000
    host.new(principal="anna", identity=("other", 1))
    info = host.tc.describe("anna", "app")
    assert isinstance(info, IdInfo)
    assert (info.epoch, info.last_used_ms, [each.txn_id for each in shown(host, info)]) == (1, 1_000, [txn_id])
    assert [each.transactional_id for each in host.tc.ids()] == ["other", "app"]


@pytest.mark.seed_rows("E07")
def test_an_epoch_that_opened_nothing_is_shown_in_lanes_as_well() -> None:
    host = LaneHost()
    host.opened("i", identity=("app", 1))
    host.take_over(2)
    info = host.tc.describe(None, "app")
    assert info is not None
    assert (info.epoch, [each.status for each in shown(host, info)]) == (2, [TxnStatus.ABORTING])


def test_an_id_that_is_forgotten_while_a_list_is_walked_is_passed_over() -> None:
    host = FencingHost(id_retention_ms=100)
    for name in ("app", "other"):
        txn_id = host.new(principal="anna", identity=(name, 1))
        host.end(txn_id, TxnAction.ABORT, principal="anna", identity=(name, 1))
    walk = ids_of(state_of(host.tc))
    assert next(walk).transactional_id == "app"
    host.now_ms += 1_000
    host.new(principal="anna", identity=("third", 1))
    assert list(walk) == []


def test_what_takes_room_and_since_when_what_is_prepared_waits_is_at_hand() -> None:
    host = TcHost()
    ids = [host.new() for _ in range(3)]
    host.now_ms += 7
    host.prepare(ids[1])
    host.take_snapshot()
    host.crash()
    assert list(host.tc.unfinished()) == [txn_id.least for txn_id in ids]
    assert list(host.tc.prepared_since_ms) == [1_007]
    host.end(ids[1], TxnAction.COMMIT)
    assert list(host.tc.prepared_since_ms) == []


def test_so_many_of_the_oldest_are_shown_with_the_count_of_all() -> None:
    host = FencingHost()
    ids = [host.new(**APP) for _ in range(5)]
    for most in (0, 3, 9):
        info = host.tc.describe("anna", "app", most)
        assert info is not None
        assert ([each.txn_id for each in shown(host, info)], info.transaction_count) == (ids[:most], 5)
