"""The records of a half-topic buffer's own logs: halves (entries as they were sent) and ops (markers, never shown to readers).

A record is a version, the header's numbers, the producer's name, and the bytes of the entry, unchanged. An op names its
transaction and, behind the header, the first and the last of its halves and how many they are, so that a program that reads
the logs finds them (RocketMQ's op holds the queue offset of its half).
"""

from __future__ import annotations

import struct
from typing import Final

from pulsar_txn.rm_producer.requests import TopicRecord
from pulsar_txn.wire.entries import read_header
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import DispatchHints, EntryHeader, Position, TxnId, signed64, unsigned64

VERSION: Final = 1
_HEADER: Final = struct.Struct("<BQQqQQhiH")  # version, sequence ids, time, transaction, marker, batch, length of the name
_SPAN: Final = struct.Struct("<qqqqI")
_NONE: Final = -1


def encode(record: TopicRecord) -> bytes:
    """The bytes of a half, or of an op."""
    header = record.header
    txn_id, name = header.txn_id, header.producer_name.encode()
    assert txn_id is not None  # noqa: S101 - `decide` writes nothing else
    marker = _NONE if header.marker_type is None else header.marker_type
    count = _NONE if header.num_messages is None else header.num_messages
    head = _HEADER.pack(
        VERSION,
        unsigned64(header.sequence_id),
        unsigned64(header.highest_sequence_id),
        header.publish_time_ms,
        *txn_id,
        marker,
        count,
        len(name),
    )
    return b"".join((head, name, record.data))


def decode(data: bytes) -> TopicRecord:
    """The inverse; the hints are read from the entry, if there is one. Raises WireError."""
    try:
        version, sequence_id, highest, time_ms, most, least, marker, count, length = _HEADER.unpack_from(data)
        name = bytes(data[_HEADER.size : _HEADER.size + length]).decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(f"not a record of a half-topic buffer: {error}") from error
    if version != VERSION:
        raise WireError(f"a record of a half-topic buffer of version {version}; this one reads {VERSION}")
    if len(data) < _HEADER.size + length:
        raise WireError("a record of a half-topic buffer that ends too early")
    body = bytes(data[_HEADER.size + length :])
    header = EntryHeader(
        name,
        signed64(sequence_id),
        signed64(highest),
        time_ms,
        TxnId(most, least),
        None if marker == _NONE else marker,
        None if count == _NONE else count,
        _hints(body) if marker == _NONE else None,
    )
    return TopicRecord(header, body)


def _hints(entry: bytes) -> DispatchHints | None:
    """Of a message that is sent in chunks, or later; None also for bytes that are no entry."""
    try:
        return read_header(entry).hints
    except WireError:
        return None


def op(marker: TopicRecord, first: Position, last: Position, count: int) -> TopicRecord:
    """The op of an outcome: the marker that the host made, with the span of the halves in place of the entry."""
    return TopicRecord(marker.header, _SPAN.pack(*first, *last, count))


def span(record: TopicRecord) -> tuple[Position, Position, int]:
    """The first half of an op's transaction, the last one, and their number. Raises WireError."""
    try:
        first_ledger, first_entry, last_ledger, last_entry, count = _SPAN.unpack(record.data)
    except struct.error as error:
        raise WireError(f"not an op of a half-topic buffer: {error}") from error
    return (first_ledger, first_entry), (last_ledger, last_entry), count
