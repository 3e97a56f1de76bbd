"""Entries: what a topic's log stores, and what stands behind the command in SEND and MESSAGE (reference §1.1).

    0x0e01  CRC32C over the rest  4-byte metadata size  MessageMetadata  payload

Very old producers leave out magic and checksum: the entry then starts with the metadata size. A broker may put
its own block (0x0e02, 4-byte size, BrokerEntryMetadata) before it all. Every reader here takes all four forms.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from . import pulsar_pb2 as pb
from ._protobuf import parse
from ._varint import varint
from .errors import ChecksumMismatch, MalformedFrame
from .ids import EntryHeader, MarkerType, TxnAction, TxnId, signed64, unsigned64

MAGIC: Final = b"\x0e\x01"
BROKER_MAGIC: Final = b"\x0e\x02"
MARKER_PRODUCER: Final = "pulsar.txn.marker"
"""The producer name in transaction markers."""

_HEAD: Final = struct.Struct(">2sII")
_SIZE: Final = struct.Struct(">I")
_MARKER_START: Final = b"\x0a" + varint(len(MARKER_PRODUCER)) + MARKER_PRODUCER.encode() + b"\x10" + varint(-1) + b"\x18"


def encode_entry(metadata: pb.MessageMetadata, payload: bytes | bytearray | memoryview) -> bytes:
    """The entry of a metadata and a payload (compressed and encrypted already), with its checksum."""
    return _entry(metadata.SerializeToString(), payload)


def _entry(metadata: bytes, payload: bytes | bytearray | memoryview) -> bytes:
    size = len(metadata)
    checksum = crc32c(payload, crc32c(_SIZE.pack(size) + metadata))
    return b"".join((_HEAD.pack(MAGIC, checksum, size), metadata, payload))


def _locate(entry: bytes | memoryview) -> tuple[int, int, int]:
    """Where the checked part begins (0: no checksum), where the metadata begins, and where it ends."""
    start = skip_broker_metadata(entry, 0)
    checked = 0
    if bytes(entry[start : start + 2]) == MAGIC:
        start += 6
        checked = start
    if start + 4 > len(entry):
        raise MalformedFrame(f"an entry of {len(entry)} bytes has no room for its header")
    begin = start + 4
    end = begin + int.from_bytes(entry[start:begin])
    if end > len(entry):
        raise MalformedFrame(f"the metadata is said to have {end - begin} bytes, the entry has {len(entry) - begin}")
    return checked, begin, end


def skip_broker_metadata(data: bytes | memoryview, position: int) -> int:
    """Where the entry begins: behind the broker's own block if there is one at `position`. MalformedFrame."""
    if bytes(data[position : position + 2]) != BROKER_MAGIC:
        return position
    start = position + 6 + int.from_bytes(data[position + 2 : position + 6])
    if start > len(data):
        raise MalformedFrame("the broker's metadata is said to be longer than the entry")
    return start


def split_entry(entry: bytes | memoryview, *, verify: bool = True) -> tuple[bytes, memoryview]:
    """The serialised metadata, and a view on the payload. ChecksumMismatch (with `verify`), MalformedFrame."""
    checked, begin, end = _locate(entry)
    if verify and checked:
        _verify(entry, checked)
    return bytes(entry[begin:end]), memoryview(entry)[end:]


def verify_checksum(entry: bytes | memoryview) -> None:
    """ChecksumMismatch when the bytes are not those that were written, MalformedFrame when there is no entry in them.

    An entry of the old form without checksum passes.
    """
    checked, _, _ = _locate(entry)
    if checked:
        _verify(entry, checked)


def _verify(entry: bytes | memoryview, checked: int) -> None:
    stored = int.from_bytes(entry[checked - 4 : checked])
    computed = crc32c(memoryview(entry)[checked:])
    if stored != computed:
        raise ChecksumMismatch(f"the entry says CRC32C {stored:08x}, its bytes have {computed:08x}")


def read_metadata(entry: bytes | memoryview) -> pb.MessageMetadata:
    """The whole metadata, without a look at the checksum. MalformedFrame."""
    _, begin, end = _locate(entry)
    return parse(pb.MessageMetadata, bytes(entry[begin:end]))


def read_header(entry: bytes | memoryview) -> EntryHeader:
    """What machines and topics need to know of an entry, without a look at the checksum. MalformedFrame.

    `highest_sequence_id` is that of a batch, and `sequence_id` where the entry names none or a smaller one.
    `txn_id` is set only if both of its halves are present.
    """
    _, begin, end = _locate(entry)
    return _header_of(parse(pb.MessageMetadata, bytes(entry[begin:end])))


def _header_of(metadata: pb.MessageMetadata) -> EntryHeader:
    sequence_id = signed64(metadata.sequence_id)
    txn_id = None
    if metadata.HasField("txnid_least_bits") and metadata.HasField("txnid_most_bits"):
        txn_id = TxnId(signed64(metadata.txnid_most_bits), signed64(metadata.txnid_least_bits))
    highest = signed64(metadata.highest_sequence_id) if metadata.HasField("highest_sequence_id") else sequence_id
    return EntryHeader(
        producer_name=metadata.producer_name,
        sequence_id=sequence_id,
        highest_sequence_id=max(highest, sequence_id),
        publish_time_ms=signed64(metadata.publish_time),
        txn_id=txn_id,
        marker_type=metadata.marker_type if metadata.HasField("marker_type") else None,
        num_messages=metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None,
    )


def encode_marker(txn_id: TxnId, action: TxnAction, publish_time_ms: int, *, low_watermark: int = -1) -> bytes:
    """The marker entry that ends a transaction in a topic (reference §1.6): no payload, sequence id -1.

    `low_watermark` of the coordinator (-1: none) travels as `highest_sequence_id` = low_watermark + 1, so that a replay
    knows it too; stock Pulsar does not write the field in markers and does not read it there.
    """
    kind = MarkerType.TXN_COMMIT if action == TxnAction.COMMIT else MarkerType.TXN_ABORT
    return _entry(
        b"".join(
            (
                _MARKER_START,
                varint(publish_time_ms),
                b"\xa0\x01",
                varint(kind),
                b"\xb0\x01",
                varint(txn_id[1]),
                b"\xb8\x01",
                varint(txn_id[0]),
                b"\xc0\x01" + varint(low_watermark + 1) if low_watermark >= 0 else b"",
            )
        ),
        b"",
    )


def with_txn_id(entry: bytes | memoryview, txn_id: TxnId) -> bytes:
    """The same entry with the transaction in its metadata, and a new checksum. MalformedFrame.

    For SENDs whose client names the transaction in the command only: recovery and dispatch read the metadata.
    A broker's block before the entry stays; fields that this version does not know stay too.
    """
    _, begin, end = _locate(entry)
    metadata = parse(pb.MessageMetadata, bytes(entry[begin:end]))
    metadata.txnid_least_bits = unsigned64(txn_id[1])
    metadata.txnid_most_bits = unsigned64(txn_id[0])
    prefix = bytes(entry[: skip_broker_metadata(entry, 0)])
    return prefix + _entry(metadata.SerializeToString(), memoryview(entry)[end:])
