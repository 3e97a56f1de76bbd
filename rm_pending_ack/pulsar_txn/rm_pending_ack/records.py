"""The records of the redo log: Pulsar's PendingAckMetadataEntry with our fields from 100 up.

One entry of the log is one record. Records are written by hand, because each acknowledgement in a transaction writes one
(0.7 us, where protobuf's objects take 1.1), and tests compare the bytes. Protobuf reads them. Pulsar's own records decode here,
except its batched form, which starts with 0x0e01 and is off by default. A decoded record keeps the bytes it came from, so what
a newer version added survives an `encode`.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from pulsar_txn.rm_pending_ack import records_pb2 as pb
from pulsar_txn.rm_pending_ack.requests import AckItem
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import (
    AckKey,
    Position,
    TxnId,
    ack_set_from_words,
    ack_set_to_words,
    full_ack_set,
    signed64,
    unsigned64,
)
from pulsar_txn.wire.varints import MINUS_ONE, cached_varint, varint

NO_TXN: Final = TxnId(-1, -1)
"""Of a record that belongs to no transaction."""

RECORD_VERSION: Final = 1
"""Version of what this code writes; a record of a newer one is refused by `decode`."""

_VERSION_FIELD: Final = b"\xa0\x06" + varint(RECORD_VERSION)

_FULL_WORD: Final = b"\x18" + MINUS_ONE
"""Nearly every word of the ack set of a large batch: an acknowledgement in a transaction names few of its messages."""

_SHORT: Final = 32
"""Bytes of items that are kept as they are; of more, a hash is."""


class Op(enum.IntEnum):
    """Operation of a record (`pending_ack_op`)."""

    ACK = 1
    COMMIT = 2
    ABORT = 3
    PLAIN_ACK = 100
    CURSOR_STORED = 101
    CURSOR_RESET = 102


_WITH_ITEMS: Final = (Op.ACK, Op.PLAIN_ACK)


class Record(NamedTuple):
    """One record. `items`: what is acknowledged; for CURSOR_STORED and CURSOR_RESET one item that is just a position.

    `txn_id` is NO_TXN for what belongs to no transaction. `low_watermark` -1: none was told. `key`: of an ACK whose client gave
    it one. `data`: the bytes a decoded record came from.
    """

    op: Op
    txn_id: TxnId = NO_TXN
    items: tuple[AckItem, ...] = ()
    cumulative: bool = False
    low_watermark: int = -1
    key: AckKey | None = None
    data: bytes | None = None


def encode_record(log: str, record: Record) -> bytes:
    """The bytes of a record; the bytes it was decoded from, if it was. `log` is always "log"."""
    op, txn_id, items, cumulative, low_watermark, key, data = record
    if data is not None:
        return data
    named = b"" if txn_id is NO_TXN else b"\x18%b\x20%b" % (cached_varint(txn_id[1]), cached_varint(txn_id[0]))
    told = b"" if low_watermark < 0 else b"\xa8\x06%b" % cached_varint(low_watermark)
    keyed = b"" if key is None else b"\xb1\x06%b\xb8\x06%b" % (key[0].to_bytes(8, "little"), varint(key[1]))
    return b"\x08%c\x10%c%b%b%b%b%b" % (op, cumulative, named, b"".join(map(_encode_item, items)), _VERSION_FIELD, told, keyed)


def content_of(items: Iterable[AckItem], *, cumulative: bool) -> bytes:
    """A short name of what an acknowledgement takes; other items have another one."""
    whole = b"%c%b" % (cumulative, b"".join(map(_encode_item, items)))
    return whole if len(whole) <= _SHORT else hashlib.blake2b(whole, digest_size=_SHORT).digest()


@lru_cache(64)
def _encode_item(item: AckItem) -> bytes:
    """Encode what `put_item` writes, as an element of the entry. The record of an ACK is written, and then its content is."""
    (ledger_id, entry_id), bits, batch_size = item
    body = b"\x08%b\x10%b" % (cached_varint(ledger_id), varint(entry_id))
    if bits is not None:
        words = ack_set_to_words(full_ack_set(batch_size) & ~bits, batch_size)
        body += b"".join([_FULL_WORD if word == -1 else b"\x18" + varint(word) for word in words])
    if batch_size:
        body += b"\x20" + varint(batch_size)
    return b"\x2a%b%b" % (cached_varint(len(body)), body)


def decode_record(data: bytes) -> Record:
    """The record of an entry. Raises WireError: not protobuf, an unknown op, or of a newer version."""
    entry = pb.PendingAckMetadataEntry()
    try:
        entry.ParseFromString(data)
    except DecodeError as error:
        raise WireError(f"not a pending-ack record: {error}") from error
    if not entry.IsInitialized():
        raise WireError("not a pending-ack record: a position lacks its ledger or its entry")
    if entry.record_version > RECORD_VERSION:
        raise WireError(f"a pending-ack record of version {entry.record_version}; this version reads up to {RECORD_VERSION}")
    if not entry.HasField("pending_ack_op"):
        raise WireError("a pending-ack record that does not say what it does, or says what this version does not know")
    op, cumulative = Op(entry.pending_ack_op), entry.ack_type == pb.Cumulative
    if op < Op.PLAIN_ACK and not (entry.HasField("txnid_most_bits") and entry.HasField("txnid_least_bits")):
        raise WireError(f"a pending-ack record {op.name} that does not say of which transaction")
    if (op > Op.PLAIN_ACK or (cumulative and op in _WITH_ITEMS)) and len(entry.pending_ack_metadata) != 1:
        raise WireError(f"a pending-ack record {op.name} with {len(entry.pending_ack_metadata)} positions; it has exactly one")
    return Record(
        op,
        TxnId(entry.txnid_most_bits, entry.txnid_least_bits) if op < Op.PLAIN_ACK else NO_TXN,
        get_items(entry.pending_ack_metadata),
        cumulative,
        entry.low_watermark if entry.HasField("low_watermark") else -1,
        (entry.acker, entry.ack_number) if op is Op.ACK and entry.HasField("acker") and entry.HasField("ack_number") else None,
        bytes(data),
    )


def put_item(target: pb.PendingAckMetadata, item: AckItem) -> None:
    """Write an ack item; the words of the ack set say what stays unacknowledged, a whole entry has none."""
    (ledger_id, entry_id), bits, batch_size = item
    target.ledgerId = unsigned64(ledger_id)
    target.entryId = unsigned64(entry_id)
    if batch_size:
        target.batch_size = batch_size
    if bits is not None:
        target.ack_set.extend(ack_set_to_words(full_ack_set(batch_size) & ~bits, batch_size))


def get_item(source: pb.PendingAckMetadata) -> AckItem:
    """The inverse of `put_item`. Words without a batch size count as full words, as in Pulsar."""
    position = (signed64(source.ledgerId), signed64(source.entryId))
    if not source.ack_set:
        return (position, None, source.batch_size)
    batch_size = source.batch_size or 64 * len(source.ack_set)
    return (position, full_ack_set(batch_size) & ~ack_set_from_words(list(source.ack_set)), batch_size)


def get_items(source: Iterable[pb.PendingAckMetadata]) -> tuple[AckItem, ...]:
    """The ack items of a repeated field."""
    return tuple(map(get_item, source))


def position_record(op: Op, position: Position) -> Record:
    """A record whose one item is just a position (CURSOR_STORED, CURSOR_RESET)."""
    return Record(op, items=((position, None, 0),))
