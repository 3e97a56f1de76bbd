"""Entries: what a topic's log stores, and what follows the command in SEND and MESSAGE (reference §1.1).

    0x0e01  CRC32C over the rest  4-byte metadata size  MessageMetadata  payload

Very old producers leave out magic and checksum: the entry then starts with the metadata size. A broker may put
its own block (0x0e02, 4-byte size, BrokerEntryMetadata) before it all. Every reader here takes all four forms.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import Any, Final

from . import checksums
from . import pulsar_pb2 as pb
from ._protobuf import parse
from .errors import ChecksumMismatch, MalformedFrame
from .ids import DispatchHints, EntryHeader, MarkerType, TxnAction, TxnId, signed64, unsigned64
from .varints import LAST, MORE, NUMBER, NUMBERS, cached_varint, read_varint, signed32, varint

MAGIC: Final = b"\x0e\x01"
BROKER_MAGIC: Final = b"\x0e\x02"
MARKER_PRODUCER: Final = "pulsar.txn.marker"
"""The producer name in transaction markers."""

_HEAD: Final = struct.Struct(">2sII")
_SIZE: Final = struct.Struct(">I")
_BEGIN: Final = 10
"""Offset of the metadata in nearly every entry: after magic, checksum and its size."""
_MAX_LONG: Final = (1 << 63) - 1
_new: Final = tuple.__new__
_COMMIT_KIND: Final = b"\xa0\x01" + varint(MarkerType.TXN_COMMIT) + b"\xb0\x01"
_ABORT_KIND: Final = b"\xa0\x01" + varint(MarkerType.TXN_ABORT) + b"\xb0\x01"
"""The kind of a marker, and the tag of what follows."""
_MARKER_START: Final = b"\x0a" + varint(len(MARKER_PRODUCER)) + MARKER_PRODUCER.encode() + b"\x10" + varint(-1) + b"\x18"


def encode_entry(metadata: pb.MessageMetadata, payload: bytes | bytearray | memoryview) -> bytes:
    """The entry of a metadata and a payload (compressed and encrypted already), with its checksum."""
    return _entry(metadata.SerializeToString(), payload)


def _entry(metadata: bytes, payload: bytes | bytearray | memoryview) -> bytes:
    size = len(metadata)
    checksum = checksums.crc32c(payload, checksums.crc32c(_SIZE.pack(size) + metadata))
    return b"".join((_HEAD.pack(MAGIC, checksum, size), metadata, payload))


def _locate(entry: bytes | memoryview) -> tuple[int, int, int]:
    """Beginning of the checked part (0: no checksum), beginning of the metadata, and its end."""
    start = checked = 0
    if entry[:2] != MAGIC:
        start = skip_broker_metadata(entry, 0)
    if entry[start : start + 2] == MAGIC:
        start += 6
        checked = start
    begin = start + 4
    if begin > len(entry):
        raise MalformedFrame(f"an entry of {len(entry)} bytes has no room for its header")
    end = begin + _SIZE.unpack_from(entry, start)[0]
    if end > len(entry):
        raise MalformedFrame(f"the metadata is said to have {end - begin} bytes, the entry has {len(entry) - begin}")
    return checked, begin, end


def skip_broker_metadata(data: bytes | memoryview, position: int) -> int:
    """Beginning of the entry: after the broker's own block if there is one at `position`. Raises MalformedFrame."""
    if data[position : position + 2] != BROKER_MAGIC:
        return position
    start = position + 6 + int.from_bytes(data[position + 2 : position + 6])
    if start > len(data):
        raise MalformedFrame("the broker's metadata is said to be longer than the entry")
    return start


def broker_metadata(entry: bytes | memoryview) -> pb.BrokerEntryMetadata | None:
    """The broker's own block, if there is one. MalformedFrame."""
    end = skip_broker_metadata(entry, 0)
    return parse(pb.BrokerEntryMetadata, bytes(entry[6:end])) if end else None


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
    computed = checksums.crc32c(memoryview(entry)[checked:])
    if stored != computed:
        raise ChecksumMismatch(f"the entry says CRC32C {stored:08x}, its bytes have {computed:08x}")


def read_metadata(entry: bytes | memoryview) -> pb.MessageMetadata:
    """The whole metadata, without a look at the checksum. MalformedFrame."""
    _, begin, end = _locate(entry)
    return parse(pb.MessageMetadata, bytes(entry[begin:end]))


def is_encrypted(entry: bytes | memoryview) -> bool:
    """True if the metadata names the key that the payload is encrypted with; no for a metadata that cannot be read."""
    try:
        return len(read_metadata(entry).encryption_keys) > 0
    except MalformedFrame:
        return False


def read_header(entry: bytes | memoryview, *, verify: bool = False) -> EntryHeader:
    """Decode what machines and topics need to know of an entry. Raises MalformedFrame, with `verify` ChecksumMismatch.

    `highest_sequence_id` is that of a batch, and `sequence_id` where the entry names none or a smaller one.
    `txn_id` is set only if both of its halves are present. Fields that are not returned are passed over, not checked.
    """
    if entry[:2] == MAGIC and len(entry) >= _BEGIN and (end := _BEGIN + int.from_bytes(entry[6:_BEGIN])) <= len(entry):
        begin = _BEGIN
        if verify and checksums.crc32c(memoryview(entry)[6:]) != int.from_bytes(entry[2:6]):
            _verify(entry, 6)
    else:
        checked, begin, end = _locate(entry)
        if verify and checked:
            _verify(entry, checked)
    if (found := _USUAL(entry, begin, end)) is not None:
        size, name, sequence, published, key_size, key, count, marker, least, most, highest = found.groups()
        fits = len(name) == size[0] and (key is None or len(key) == key_size[0])
        if fits and (producer_name := _name(name)) is not None:
            if marker is None and highest is None and len(sequence) <= 9 >= len(published):
                if least is None:
                    txn_id = None
                elif len(least) <= 9 >= len(most):
                    txn_id = _new(TxnId, (NUMBERS[most], NUMBERS[least]))
                else:
                    txn_id = TxnId(signed64(NUMBERS[most]), signed64(NUMBERS[least]))
                return EntryHeader(
                    producer_name,
                    sequence_id := NUMBERS[sequence],
                    sequence_id,
                    NUMBERS[published],
                    txn_id,
                    None,
                    None if count is None else signed32(NUMBERS[count]),
                    None,
                    0 if txn_id is None else _checksum(entry),
                )
            return _header(
                producer_name,
                NUMBERS[sequence],
                NUMBERS[published],
                None if count is None else NUMBERS[count],
                None if marker is None else NUMBERS[marker],
                None if least is None else NUMBERS[least],
                None if most is None else NUMBERS[most],
                None if highest is None else NUMBERS[highest],
                checksum=_checksum(entry),
            )
    try:
        numbers = _numbers(entry, begin, end)
        first, size = numbers[1]
        return _header(
            bytes(entry[first : first + size]).decode(),
            numbers[2],
            numbers[3],
            numbers.get(11),
            numbers.get(20),
            numbers.get(22),
            numbers.get(23),
            numbers.get(24),
            _hints(entry, numbers) if 19 in numbers or 26 in numbers else None,
            checksum=_checksum(entry),
        )
    except (KeyError, IndexError, OverflowError, TypeError, UnicodeDecodeError):
        return _header_by_protobuf(bytes(entry[begin:end]), _checksum(entry))


def _checksum(entry: bytes | memoryview) -> int:
    return int.from_bytes(entry[2:6]) if entry[:2] == MAGIC else 0


_USUAL: Final = re.compile(
    (
        rb"\x0a([\x00-\x7f])(.*?)\x10N\x18N"  # producer name, sequence id, publish time
        rb"(?:\x32([\x00-\x7f])(.*?))?"  # partition key
        rb"(?:\x40[\x00-\x7f])?(?:\x48(?:N))?(?:\x58N)?"  # compression and size before it, messages in the batch
        rb"(?:\xa0\x01N)?(?:\xb0\x01N\xb8\x01N)?(?:\xc0\x01N)?"  # marker, transaction, highest sequence id
    )
    .replace(b"(?:N)", NUMBER.replace(b"(", b"(?:"))
    .replace(b"N", NUMBER),
    re.DOTALL,
).fullmatch
"""The metadata of nearly every entry: what has more fields, or others, goes through the loop."""


def usual_key(entry: bytes | memoryview) -> bytes | None:
    """The partition key of an entry of the usual form, if it is ASCII. None: `read_metadata` says what its key is."""
    if entry[:2] != MAGIC or (end := _BEGIN + int.from_bytes(entry[6:_BEGIN])) > len(entry):
        return None
    found = _USUAL(entry, _BEGIN, end)
    if found is None:
        return None
    size, name, _, _, key_size, key, *_ = found.groups()
    if key is None or len(key) != key_size[0] or len(name) != size[0]:
        return None
    return key if key.isascii() and _name(name) is not None else None


@lru_cache(4096)
def _name(data: bytes) -> str | None:
    """A producer's name; None when it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _numbers(entry: bytes | memoryview, position: int, end: int) -> dict[int, Any]:
    """Field number -> value of numbers, -> (position, size) of everything with a size; the last one counts."""
    fields: dict[int, Any] = {}
    while position < end:
        tag = entry[position]
        position += 1
        if tag > 127:
            tag = tag & 127 | entry[position] << 7
            if tag > 16383:
                raise OverflowError
            position += 1
        value = entry[position]
        position += 1
        if value > 127:
            byte = entry[position]
            if byte < 128:
                value += byte * 128 - 128
                position += 1
            else:
                value, position = read_varint(entry, position - 1)
        kind = tag & 7
        if kind == 0:
            fields[tag >> 3] = value
        elif kind == 2:
            fields[tag >> 3] = (position, value)
            position += value
        else:
            raise OverflowError
    if position != end:
        raise OverflowError
    return fields


def _hints(entry: bytes | memoryview, numbers: dict[int, Any]) -> DispatchHints | None:
    deliver_at, chunks, uuid = numbers.get(19), signed32(numbers.get(27, 0)), None
    if 26 in numbers and chunks > 1:
        first, size = numbers[26]
        uuid = bytes(entry[first : first + size])
    return _asked(None if deliver_at is None else signed64(deliver_at), uuid, signed32(numbers.get(29, 0)), chunks)


def _asked(deliver_at_ms: int | None, chunk_of: bytes | None, chunk_id: int, chunks: int) -> DispatchHints | None:
    if chunk_of is not None:
        return DispatchHints(deliver_at_ms, chunk_of, chunk_id, chunks)
    return None if deliver_at_ms is None else DispatchHints(deliver_at_ms)


def _header(
    producer_name: str,
    sequence_id: int,
    publish_time_ms: int,
    num_messages: int | None,
    marker_type: int | None,
    least: int | None,
    most: int | None,
    highest: int | None,
    hints: DispatchHints | None = None,
    *,
    checksum: int,
) -> EntryHeader:
    """The header from numbers as they are on the wire."""
    if sequence_id > _MAX_LONG:
        sequence_id -= 1 << 64
    highest = sequence_id if highest is None else max(signed64(highest), sequence_id)
    txn_id = None if least is None or most is None else TxnId(signed64(most), signed64(least))
    return EntryHeader(
        producer_name,
        sequence_id,
        highest,
        signed64(publish_time_ms),
        txn_id,
        None if marker_type is None else signed32(marker_type),
        None if num_messages is None else signed32(num_messages),
        hints,
        0 if txn_id is None else checksum,
    )


def _header_by_protobuf(data: bytes, checksum: int) -> EntryHeader:
    metadata = parse(pb.MessageMetadata, data)
    has = metadata.HasField
    return _header(
        metadata.producer_name,
        metadata.sequence_id,
        metadata.publish_time,
        metadata.num_messages_in_batch if has("num_messages_in_batch") else None,
        metadata.marker_type if has("marker_type") else None,
        metadata.txnid_least_bits if has("txnid_least_bits") else None,
        metadata.txnid_most_bits if has("txnid_most_bits") else None,
        metadata.highest_sequence_id if has("highest_sequence_id") else None,
        _asked(
            metadata.deliver_at_time if has("deliver_at_time") else None,
            metadata.uuid.encode() if has("uuid") and metadata.num_chunks_from_msg > 1 else None,
            metadata.chunk_id,
            metadata.num_chunks_from_msg,
        ),
        checksum=checksum,
    )


def encode_marker(txn_id: TxnId, action: TxnAction, publish_time_ms: int, *, low_watermark: int = -1) -> bytes:
    """The marker entry that ends a transaction in a topic (reference §1.6): no payload, sequence id -1.

    `low_watermark` of the coordinator (-1: none) travels as `highest_sequence_id` = low_watermark + 1, so that a replay
    knows it as well; stock Pulsar does not write the field in markers and does not read it there.
    """
    most, least = txn_id
    metadata = b"".join(
        (
            _MARKER_START,
            cached_varint(publish_time_ms),
            _COMMIT_KIND if action == TxnAction.COMMIT else _ABORT_KIND,
            (LAST[least] if least < 16384 else MORE[least & 16383] + LAST[least >> 14])
            if 0 <= least < 1 << 28
            else varint(least),
            b"\xb8\x01",
            LAST[most] if 0 <= most < 16384 else varint(most),
            b"\xc0\x01" + cached_varint(low_watermark + 1) if low_watermark >= 0 else b"",
        )
    )
    head = _SIZE.pack(len(metadata))
    return MAGIC + _SIZE.pack(checksums.crc32c(head + metadata)) + head + metadata


def with_txn_id(entry: bytes | memoryview, txn_id: TxnId) -> bytes:
    """The same entry with the transaction in its metadata, and a new checksum. MalformedFrame.

    For SENDs whose client names the transaction in the command only: recovery and dispatch read the metadata.
    A broker's block before the entry stays; and so do fields that this version does not know.
    """
    _, begin, end = _locate(entry)
    metadata = parse(pb.MessageMetadata, bytes(entry[begin:end]))
    metadata.txnid_least_bits = unsigned64(txn_id[1])
    metadata.txnid_most_bits = unsigned64(txn_id[0])
    prefix = bytes(entry[: skip_broker_metadata(entry, 0)])
    return prefix + _entry(metadata.SerializeToString(), memoryview(entry)[end:])
