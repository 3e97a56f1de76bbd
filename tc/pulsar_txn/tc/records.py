"""The records of the coordinator's log: how they are made, written and read.

A record *is* a protobuf message of `records.proto`, so fields that a newer version added survive decode and encode.
Readers also take the batched entries of a stock coordinator's log (PIP-160); we never write them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from pulsar_txn.tc.records_pb2 import (
    BatchedTransactionMetadataEntry,
    Subscription,
    TransactionMetadataEntry,
    TxnStatus,
)
from pulsar_txn.tc.requests import Identity
from pulsar_txn.wire.errors import WireError

Record: TypeAlias = TransactionMetadataEntry | BatchedTransactionMetadataEntry

NEW: Final = TransactionMetadataEntry.NEW
ADD_PARTITION: Final = TransactionMetadataEntry.ADD_PARTITION
ADD_SUBSCRIPTION: Final = TransactionMetadataEntry.ADD_SUBSCRIPTION
UPDATE: Final = TransactionMetadataEntry.UPDATE

RECORD_VERSION: Final = 1
"""Written into each record; a reader refuses what is newer. Stock Pulsar writes none, which reads as 0."""

BATCH_PREFIX: Final = bytes.fromhex("0e010001")
"""Magic and version of a batched entry. A bare record never starts so: its first byte is a field tag."""


def new_transaction(
    tc_id: int, least: int, timeout_ms: int, now_ms: int, principal: str | None, identity: Identity | None
) -> TransactionMetadataEntry:
    """Give the id `least` to a transaction that starts at `now_ms`."""
    record = TransactionMetadataEntry(
        metadata_op=NEW,
        txnid_least_bits=least,
        txnid_most_bits=tc_id,
        timeout_ms=timeout_ms,
        start_time=now_ms,
        last_modification_time=now_ms,
        max_local_txn_id=least,
        owner=principal,
        record_version=RECORD_VERSION,
    )
    if identity is not None:
        record.transactional_id, record.transactional_epoch = identity
    return record


def add_partitions(tc_id: int, least: int, topics: Iterable[str], now_ms: int, max_id: int) -> TransactionMetadataEntry:
    """Register topic partitions. `max_id` is the highest id given so far."""
    return TransactionMetadataEntry(
        metadata_op=ADD_PARTITION,
        txnid_least_bits=least,
        txnid_most_bits=tc_id,
        partitions=topics,
        last_modification_time=now_ms,
        max_local_txn_id=max_id,
        record_version=RECORD_VERSION,
    )


def add_subscriptions(
    tc_id: int, least: int, subscriptions: Iterable[tuple[str, str]], now_ms: int, max_id: int
) -> TransactionMetadataEntry:
    """Register (topic, subscription) pairs."""
    return TransactionMetadataEntry(
        metadata_op=ADD_SUBSCRIPTION,
        txnid_least_bits=least,
        txnid_most_bits=tc_id,
        subscriptions=[Subscription(topic=topic, subscription=name) for topic, name in subscriptions],
        last_modification_time=now_ms,
        max_local_txn_id=max_id,
        record_version=RECORD_VERSION,
    )


def update_status(
    tc_id: int, least: int, expected: TxnStatus, new: TxnStatus, now_ms: int, max_id: int
) -> TransactionMetadataEntry:
    """Move a transaction from `expected` to `new`; the record to COMMITTING or ABORTING is the decision."""
    return TransactionMetadataEntry(
        metadata_op=UPDATE,
        txnid_least_bits=least,
        txnid_most_bits=tc_id,
        expected_status=expected,
        new_status=new,
        last_modification_time=now_ms,
        max_local_txn_id=max_id,
        record_version=RECORD_VERSION,
    )


def encode(record: Record) -> bytes:
    """The bytes of a record, a batch with the prefix that tells it from a bare one."""
    if record.__class__ is BatchedTransactionMetadataEntry:
        return BATCH_PREFIX + record.SerializeToString()
    return record.SerializeToString()


def decode(tc_id: int, data: bytes) -> Record:
    """The record of an entry. Raises WireError: not a record, another coordinator's, or written by a newer version."""
    try:
        if data[:2] == BATCH_PREFIX[:2]:
            return _decode_batch(tc_id, data)
        return _checked(tc_id, TransactionMetadataEntry.FromString(data))
    except DecodeError as error:
        raise WireError(f"not a coordinator record ({len(data)} bytes): {error}") from error


def _decode_batch(tc_id: int, data: bytes) -> BatchedTransactionMetadataEntry:
    if data[:4] != BATCH_PREFIX:
        raise WireError(f"a batch of coordinator records in format {data[2:4].hex()!r}; this version reads '0001'")
    batch = BatchedTransactionMetadataEntry.FromString(data[4:])
    for record in batch.transaction_logs:
        _checked(tc_id, record)
    return batch


def _checked(tc_id: int, record: TransactionMetadataEntry) -> TransactionMetadataEntry:
    if record.record_version > RECORD_VERSION:
        raise WireError(f"a coordinator record of version {record.record_version}; this version reads up to {RECORD_VERSION}")
    if not record.HasField("metadata_op"):
        raise WireError("not a coordinator record: it says no known metadata_op")
    if record.txnid_most_bits != tc_id:
        raise WireError(f"a record of coordinator {record.txnid_most_bits} in the log of coordinator {tc_id}")
    if record.metadata_op == UPDATE and not (record.HasField("expected_status") and record.HasField("new_status")):
        raise WireError("not a coordinator record: an UPDATE without a known expected_status and new_status")
    return record
