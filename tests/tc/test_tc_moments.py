"""Parking, resuming and holding while a snapshot is written, and records and sums that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from check_host import CheckHost
from insides import lanes_of, state_of
from lane_host import LaneHost
from tc_host import TcHost

from pulsar_txn.ledger.machine import NOTHING
from pulsar_txn.tc import (
    BeginIncarnation,
    Check,
    FencingCoordinator,
    PulsarIds,
    ReleaseHeld,
    ResumeTxn,
    TransactionCoordinator,
    records,
)
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.check_times import CHECK_AFTER_MS, CHECK_INTERVAL_MS
from pulsar_txn.tc.ids import lane_of
from pulsar_txn.tc.lane_table import Lane
from pulsar_txn.tc.log_incarnations import FIRST_SERVICE
from pulsar_txn.tc.records_pb2 import TransactionMetadataEntry
from pulsar_txn.wire.errors import Refusal, WireError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

ONE, TWO = FIRST_SERVICE + 1, FIRST_SERVICE + 2


class LivesHost(LaneHost):
    """A coordinator beside a cluster, in its first life."""

    def __init__(self, service: int) -> None:
        super().__init__(has_incarnations=True)
        self.begin(service)

    def begin(self, service: int, *hold: TxnId, **more: Any) -> None:
        self.ask(BeginIncarnation(object(), service, tuple(each.least for each in hold), **more))
        self.confirm()


class FencingHost(CheckHost):
    def fresh(self) -> TransactionCoordinator:
        return FencingCoordinator(self.tc_id, **self.options)


def begun(host: Any) -> Any:
    """A snapshot of this moment, of which a part was read."""
    parts = iter(host.tc.snapshot())
    next(parts)
    return parts


def test_what_is_parked_and_resumed_while_a_snapshot_is_written_is_as_without_one() -> None:
    found = []
    for writes in (False, True):
        host = FencingHost(max_checks=1)
        txn_id = host.opened(principal="anna", identity=("app", 1))
        host.join(principal="anna")
        host.passes(CHECK_AFTER_MS)
        first = begun(host) if writes else None
        host.passes(CHECK_INTERVAL_MS)
        (info,) = host.tc.transactions()
        assert info.parked_ms is not None
        del first
        second = begun(host) if writes else None
        host.ask(ResumeTxn("token", txn_id, superuser=True))
        host.confirm()
        (info,) = host.tc.transactions()
        assert (info.status, info.parked_ms) == (TxnStatus.OPEN, None)
        del second
        host.tc.check_invariants()
        found.append(b"".join(host.tc.snapshot()))
    assert found[0] == found[1]


def test_records_about_what_is_not_there_or_is_of_no_group_change_nothing() -> None:
    host = CheckHost()
    plain = host.new(1000)
    before = b"".join(host.tc.snapshot())
    for least in (plain.least, 99):
        for record in (records.parked(least, (), 5, 0), records.resumed(least, 5, 0)):
            state_of(host.tc)._parked(record.least, 5) if record.operation == records.PARKED else state_of(host.tc)._resumed(
                least, 5
            )
    assert b"".join(host.tc.snapshot()) == before


def test_what_is_held_and_released_while_a_snapshot_is_written_is_fenced_and_asked_for_again() -> None:
    host = LivesHost(ONE)
    txn_id = host.new(incarnation="i", identity=("app", 1), check=Check("orders", b"", 1))
    host.crash()
    parts = begun(host)
    host.begin(TWO, txn_id, cause=Cause.DOUBT)
    host.ask(ReleaseHeld("token", (txn_id.least,)))
    host.confirm()
    assert host.tc.status(txn_id) is TxnStatus.OPEN
    del parts
    host.tc.check_invariants()


def test_nothing_ends_by_itself_before_a_life_has_begun() -> None:
    host = LivesHost(ONE)
    txn_id = host.opened("i", timeout_ms=5)
    host.crash()
    assert host.tc.expire(host.now_ms + 10_000) == NOTHING
    assert host.tc.status(txn_id) is TxnStatus.OPEN


def test_a_life_without_its_numbers_is_no_record() -> None:
    entry = TransactionMetadataEntry(metadata_op=TransactionMetadataEntry.INCARNATION, txnid_most_bits=3, record_version=6)
    with pytest.raises(WireError, match="an INCARNATION without its service"):
        TransactionCoordinator(3).decode("log", entry.SerializeToString())


@pytest.mark.parametrize("sum_of", ["parked_bytes", "prepared_bytes"])
def test_a_sum_that_is_wrong_is_found(sum_of: str) -> None:
    host = CheckHost()
    host.opened()
    extra = state_of(host.tc).extra
    setattr(extra, sum_of, getattr(extra, sum_of) + 1)
    with pytest.raises(AssertionError, match="L7"):
        host.tc.check_invariants()


def test_what_is_parked_and_then_held_is_asked_for_again_when_it_is_released() -> None:
    host = FencingHost(max_checks=1, has_incarnations=True, ids=PulsarIds(first_least=1))
    host.ask(BeginIncarnation(0, ONE, first_least=1, until_least=100))
    txn_id = host.opened(principal="anna", identity=("app", 1))
    host.join(principal="anna")
    host.passes(CHECK_AFTER_MS)
    host.passes(CHECK_INTERVAL_MS)
    assert host.tc.transactions()[0].parked_ms is not None
    host.crash()
    host.ask(BeginIncarnation(1, TWO, (txn_id.least,), cause=Cause.DOUBT, first_least=100, until_least=200))
    assert host.tc.status(txn_id) is TxnStatus.HELD
    host.take_snapshot()
    host.crash()
    host.ask(BeginIncarnation(2, TWO + 1, first_least=200, until_least=300))
    host.ask(ReleaseHeld("token", (txn_id.least,)))
    (info,) = host.tc.transactions()
    assert (info.status, info.parked_ms) == (TxnStatus.OPEN, None)
    host.tc.check_invariants()


def test_what_all_roles_have_prepared_takes_at_most_half_of_the_bytes() -> None:
    host = TcHost(max_state_bytes=16_000)
    for role in ("anna", "bert", "carl"):
        txn_id = host.new(600_000, principal=role)
        host.add(txn_id, Participant("t" * 3_000), principal=role)
        if role != "carl":
            host.prepare(txn_id, principal=role)
    with pytest.raises(Refusal, match="half of maxTransactionStateSizeInMB"):
        host.prepare(txn_id, principal="carl")
    host.tc.check_invariants()


def test_an_idle_lane_of_an_older_life_is_found() -> None:
    host = LivesHost(ONE)
    txn_id = host.opened("i")
    host.crash()
    host.begin(TWO)
    lanes = lanes_of(host.tc)
    lane = lane_of(txn_id.most)
    lanes.kept[lane] = lanes.kept[lane]._replace(state=Lane.IDLE)
    assert f"lane {lane} of an older incarnation is IDLE" in [text for _, text in lanes.contradictions([])]


def test_what_was_parked_and_is_ending_is_ending_after_a_restart_with_a_snapshot() -> None:
    host = FencingHost(max_checks=1)
    txn_id = host.opened(principal="anna")
    host.join(principal="anna")
    host.passes(CHECK_AFTER_MS)
    host.passes(CHECK_INTERVAL_MS)
    assert host.tc.transactions()[0].parked_ms is not None
    host.end(txn_id, TxnAction.COMMIT, principal="anna")
    host.confirm()
    host.take_snapshot()
    host.confirm()
    host.crash()
    assert host.tc.status(txn_id) is TxnStatus.COMMITTING
    host.tc.check_invariants()
