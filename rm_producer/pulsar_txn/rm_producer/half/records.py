"""The records of a half-topic buffer's own logs: halves (entries as they were sent) and ops (markers, never shown to readers).

A record is a version, the header's numbers, for a chunk of a message its own number and how many there are (version 2), the
producer's name, and the bytes of the entry, unchanged. An op names its
transaction and, behind the header, the first and the last of its halves and how many they are, so that a program that reads
the logs finds them (RocketMQ's op holds the queue offset of its half).
"""

from __future__ import annotations

import struct
from typing import Final

from pulsar_txn.rm_producer.requests import TopicRecord
from pulsar_txn.rm_producer.sent_ids import NO_CHECKSUM
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import DispatchHints, EntryHeader, Position, TxnId, signed64, unsigned64

VERSION: Final = 1
CHUNK_VERSION: Final = 2
_HEADER: Final = struct.Struct("<BQQqQQhiH")  # version, sequence ids, time, transaction, marker, batch, length of the name
_CHUNK: Final = struct.Struct("<ii")
_SPAN: Final = struct.Struct("<qqqqI")
_NONE: Final = -1
_CHECKED: Final = b"\x0e\x01"  # an entry begins so when its checksum follows


def encode(record: TopicRecord) -> bytes:
    """The bytes of a half, or of an op."""
    header = record.header
    txn_id, name = header.txn_id, header.producer_name.encode()
    assert txn_id is not None  # noqa: S101 - `decide` writes nothing else
    marker = _NONE if header.marker_type is None else header.marker_type
    count = _NONE if header.num_messages is None else header.num_messages
    hints = header.hints
    chunk = b"" if hints is None or hints.chunk_of is None else _CHUNK.pack(hints.chunk_id, hints.chunks)
    head = _HEADER.pack(
        CHUNK_VERSION if chunk else VERSION,
        unsigned64(header.sequence_id),
        unsigned64(header.highest_sequence_id),
        header.publish_time_ms,
        *txn_id,
        marker,
        count,
        len(name),
    )
    return b"".join((head, chunk, name, record.data))


def decode(data: bytes) -> TopicRecord:
    """The inverse; of the hints of dispatchers it knows the number of a chunk only. Raises WireError."""
    try:
        version, sequence_id, highest, time_ms, most, least, marker, count, length = _HEADER.unpack_from(data)
        if version not in (VERSION, CHUNK_VERSION):
            raise WireError(f"a record of a half-topic buffer of version {version}; this one reads up to {CHUNK_VERSION}")
        begin = _HEADER.size if version == VERSION else _HEADER.size + _CHUNK.size
        hints = None if version == VERSION else DispatchHints(None, b"", *_CHUNK.unpack_from(data, _HEADER.size))
        name = bytes(data[begin : begin + length]).decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(f"not a record of a half-topic buffer: {error}") from error
    if len(data) < begin + length:
        raise WireError("a record of a half-topic buffer that ends too early")
    entry = bytes(data[begin + length :])
    header = EntryHeader(
        name,
        signed64(sequence_id),
        signed64(highest),
        time_ms,
        TxnId(most, least),
        None if marker == _NONE else marker,
        None if count == _NONE else count,
        hints,
        int.from_bytes(entry[2:6]) if entry[:2] == _CHECKED else NO_CHECKSUM,
    )
    return TopicRecord(header, entry)


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
