"""The record of a decision says who decided, and a reader of the log finds it again."""

from __future__ import annotations

from typing import Any

import pytest
from lane_host import LaneHost

from pulsar_txn.tc import records
from pulsar_txn.tc.causes import Cause, cause_of
from pulsar_txn.tc.records_pb2 import TransactionMetadataEntry
from pulsar_txn.wire.ids import TxnAction, TxnId, TxnStatus

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
APP = ("app", 1)


def decided(host: LaneHost, txn_id: TxnId) -> Cause | None:
    """As the bytes in the log say."""
    (found,) = (
        record.cause
        for record in (host.tc.decode("log", data) for data in host.log)
        if record.operation == records.UPDATE
        and record.new_status in (TxnStatus.COMMITTING, TxnStatus.ABORTING)
        and txn_id.least in (record.least, *record.group)
    )
    return cause_of(found)


def by_its_timeout(host: LaneHost) -> TxnId:
    txn_id = host.opened(timeout_ms=10)
    host.now_ms += 10
    host.expire()
    return txn_id


def by_its_lease(host: LaneHost) -> TxnId:
    txn_id = host.opened(timeout_ms=10**9)
    host.now_ms += 30_000
    host.expire()
    return txn_id


def by_a_goodbye(host: LaneHost) -> TxnId:
    txn_id = host.opened()
    host.goodbye()
    return txn_id


def by_a_goodbye_with_much_open(host: LaneHost) -> TxnId:
    ids = [host.opened() for _ in range(300)]
    host.goodbye()
    host.expire()
    return ids[-1]


def because_it_is_gone(host: LaneHost) -> TxnId:
    txn_id = host.opened()
    host.vanish()
    return txn_id


def by_the_next_epoch(host: LaneHost) -> TxnId:
    txn_id = host.opened(identity=APP)
    host.opened(identity=("app", 2))
    return txn_id


def by_a_take_over(host: LaneHost) -> TxnId:
    txn_id = host.opened(identity=APP)
    host.take_over(2)
    return txn_id


def by_its_client(host: LaneHost) -> TxnId:
    txn_id = host.opened(principal="anna")
    host.end(txn_id, COMMIT, principal="anna")
    return txn_id


def by_its_client_who_is_a_superuser(host: LaneHost) -> TxnId:
    txn_id = host.opened(principal="anna")
    host.end(txn_id, ABORT, principal="anna", superuser=True)
    return txn_id


def by_an_operator(host: LaneHost) -> TxnId:
    txn_id = host.opened(principal="anna")
    host.end(txn_id, ABORT, principal="admin", superuser=True)
    return txn_id


def by_an_operator_without_a_name(host: LaneHost) -> TxnId:
    txn_id = host.opened()
    host.end(txn_id, ABORT, superuser=True)
    return txn_id


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (by_its_timeout, Cause.TIMEOUT),
        (by_its_lease, Cause.LEASE),
        (by_a_goodbye, Cause.GOODBYE),
        (by_a_goodbye_with_much_open, Cause.GOODBYE),
        (because_it_is_gone, Cause.LEASE),
        (by_the_next_epoch, Cause.FENCED),
        (by_a_take_over, Cause.FENCED),
        (by_its_client, Cause.CLIENT),
        (by_its_client_who_is_a_superuser, Cause.CLIENT),
        (by_an_operator, Cause.OPERATOR),
        (by_an_operator_without_a_name, Cause.OPERATOR),
    ],
)
def test_who_decided_is_in_the_log(end: Any, cause: Cause) -> None:
    host = LaneHost(expire_limit=100)
    txn_id = end(host)
    host.confirm()
    assert decided(host, txn_id) is cause


def test_a_decision_of_a_client_has_the_bytes_that_it_always_had() -> None:
    record = records.update_status(7, 0, 1, 1000, 7)
    data = records.Writer(3).encode("log", record)
    assert not TransactionMetadataEntry.FromString(data).HasField("cause")


def test_the_bytes_are_those_of_protobuf() -> None:
    for group in ((), (8, 9)):
        record = records.update_together(7, group, 0, 3, 1000, 9, Cause.OPERATOR)
        data = records.Writer(3).encode("log", record)
        assert TransactionMetadataEntry.FromString(data).SerializeToString() == data
        assert records.decode(3, data)._replace(data=None) == record  # type: ignore[call-arg]  # no batch


def test_a_cause_of_a_newer_version_is_not_guessed() -> None:
    assert cause_of(99) is None
