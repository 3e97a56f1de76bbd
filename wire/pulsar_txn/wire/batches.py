"""Batches: many messages in the payload of one entry.

Each message is a 4-byte size, a SingleMessageMetadata of that size, and as many message bytes as its
`payload_size` says. The whole is compressed as one unit, and `num_messages_in_batch` in the entry's metadata
says that it is one. Both directions take plain tuples: a batch is where the cost per message is decided.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from . import pulsar_pb2 as pb
from ._protobuf import parse
from .errors import MalformedBatch, MalformedFrame
from .ids import signed64
from .varints import read_varint, varint

BatchMessage: TypeAlias = tuple[bytes, dict[str, str] | None, str | None, int, int | None, bytes | None, bool, bool, bool]
"""Message as `decode_batch` returns it: `(payload, properties, partition_key, event_time_ms, sequence_id,
ordering_key, null_value, compacted_out, partition_key_b64)`. Absent things are None, `event_time_ms` 0."""

Outgoing: TypeAlias = bytes | tuple[Any, ...]
"""Message as `encode_batch` takes it: a payload, or `(payload, partition_key, properties, event_time_ms, sequence_id,
ordering_key, null_value, partition_key_b64)`, cut off anywhere after the payload."""

_Fields: TypeAlias = tuple[int, dict[str, str] | None, str | None, int, int | None, bytes | None, bool, bool, bool]
"""A `BatchMessage` with the size of the payload in place of the payload."""

_DEFAULTS: Final = (b"", None, None, 0, None, None, False, False)
_SIZE: Final = struct.Struct(">I")
_CACHE_LIMIT: Final = 4096


class _Heads(dict[int, bytes]):
    """Bytes before a plain payload, by `payload size << 4 | bytes of the sequence id` (0: absent)."""

    def __missing__(self, key: int) -> bytes:
        if len(self) >= _CACHE_LIMIT:
            self.clear()
        metadata = b"\x18" + varint(key >> 4) + (b"\x40" if key & 15 else b"")
        head = self[key] = _SIZE.pack(len(metadata) + (key & 15)) + metadata
        return head


_heads: Final = _Heads()


def encode_batch(messages: Iterable[Outgoing]) -> bytes:
    """The payload of a batch, not compressed yet.

    `messages` are payloads, or tuples `(payload, partition_key, properties, event_time_ms, sequence_id, ordering_key,
    null_value, partition_key_b64)`; what is left out at the end counts as absent. Keys are text (base64 when
    `partition_key_b64`), `properties` a mapping of text, an empty one counts as absent. Messages with a payload
    only, or a payload and a sequence id, cost a fraction of the others.
    """
    parts: list[bytes] = []
    extend, heads = parts.extend, _heads
    for message in messages:
        if isinstance(message, bytes):
            extend((heads[len(message) << 4], message))
            continue
        if len(message) == 5:
            payload, key, properties, event_time_ms, sequence_id = message
            plain = key is None and not properties and not event_time_ms
        else:
            payload, sequence_id, plain = _outline(message)
        if not plain:
            metadata = _metadata(*message)
            extend((_SIZE.pack(len(metadata)), metadata, payload))
        elif sequence_id is None:
            extend((heads[len(payload) << 4], payload))
        else:
            number = varint(sequence_id)
            extend((heads[len(payload) << 4 | len(number)], number, payload))
    return b"".join(parts)


def _outline(message: tuple[Any, ...]) -> tuple[bytes, int | None, bool]:
    """Payload, sequence id, and whether there is nothing else."""
    if len(message) == 1:
        return message[0], None, True
    if len(message) < 8:
        message = (*message, *_DEFAULTS[len(message) :])
    payload, key, properties, event_time_ms, sequence_id, ordering_key, null_value, key_b64 = message
    plain = not (key is not None or properties or event_time_ms or ordering_key is not None or null_value or key_b64)
    return payload, sequence_id, plain


def _metadata(
    payload: bytes,
    partition_key: str | None = None,
    properties: Mapping[str, str] | None = None,
    event_time_ms: int = 0,
    sequence_id: int | None = None,
    ordering_key: bytes | None = None,
    null_value: bool = False,
    partition_key_b64: bool = False,
) -> bytes:
    """SingleMessageMetadata, fields in ascending order."""
    metadata = b""
    for name, value in (properties or {}).items():
        pair = _text(b"\x0a", name) + _text(b"\x12", value)
        metadata += b"\x0a" + varint(len(pair)) + pair
    if partition_key is not None:
        metadata += _text(b"\x12", partition_key)
    metadata += b"\x18" + varint(len(payload))
    if event_time_ms:
        metadata += b"\x28" + varint(event_time_ms)
    if partition_key_b64:
        metadata += b"\x30\x01"
    if ordering_key is not None:
        metadata += b"\x3a" + varint(len(ordering_key)) + ordering_key
    if sequence_id is not None:
        metadata += b"\x40" + varint(sequence_id)
    if null_value:
        metadata += b"\x48\x01"
    return metadata


def _text(tag: bytes, text: str) -> bytes:
    raw = text.encode()
    return tag + varint(len(raw)) + raw


def decode_batch(payload: bytes | bytearray | memoryview, num_messages: int) -> list[BatchMessage]:
    """The messages of a batch that is decompressed already; their payloads are copies.

    MalformedBatch when the payload does not divide into exactly `num_messages` messages.
    """
    data = bytes(payload)
    messages: list[BatchMessage] = []
    append, unpack = messages.append, _SIZE.unpack_from
    position, end = 0, len(data)
    try:
        while position < end and len(messages) < num_messages:
            begin = position + 4
            body = begin + unpack(data, position)[0]
            size, sequence_id = _plain(data, begin, body)
            if size >= 0:
                position = body + size
                append((data[body:position], None, None, 0, sequence_id, None, False, False, False))
            else:
                message = _single(data, begin, body)
                position = body + len(message[0])
                append(message)
    except (struct.error, IndexError) as error:
        raise MalformedBatch(f"the batch ends inside message {len(messages)} of {num_messages}") from error
    if position != end or len(messages) != num_messages:
        raise MalformedBatch(f"{num_messages} messages are announced, {len(messages)} take {position} of {end} bytes")
    return messages


def split_batch(
    payload: bytes | bytearray | memoryview, num_messages: int
) -> tuple[list[bytes], dict[int, int], dict[int, BatchMessage]]:
    """The messages of a batch as `decode_batch` finds them, for those who want columns.

    Returns the payloads; the sequence ids of messages that have nothing else, by index; and whole messages by index for
    those that have anything more. MalformedBatch as `decode_batch`.
    """
    data = bytes(payload)
    payloads: list[bytes] = []
    numbers: dict[int, int] = {}
    others: dict[int, BatchMessage] = {}
    append, unpack = payloads.append, _SIZE.unpack_from
    position, end = 0, len(data)
    try:
        while position < end and len(payloads) < num_messages:
            begin = position + 4
            body = begin + unpack(data, position)[0]
            if body == begin + 2 and data[begin] == 0x18 and (size := data[begin + 1]) < 128:
                position = body + size
            elif body == begin + 3 and data[begin] == 0x18 and (size := data[begin + 1]) > 127 > data[begin + 2]:
                position = body + size + data[begin + 2] * 128 - 128
            else:
                size, sequence_id = _plain(data, begin, body)
                if size >= 0:
                    position = body + size
                    if sequence_id is not None:
                        numbers[len(payloads)] = sequence_id
                else:
                    message = others[len(payloads)] = _single(data, begin, body)
                    position = body + len(message[0])
            append(data[body:position])
    except (struct.error, IndexError) as error:
        raise MalformedBatch(f"the batch ends inside message {len(payloads)} of {num_messages}") from error
    if position != end or len(payloads) != num_messages:
        raise MalformedBatch(f"{num_messages} messages are announced, {len(payloads)} take {position} of {end} bytes")
    return payloads, numbers, others


def _plain(data: bytes, at: int, body: int) -> tuple[int, int | None]:
    """Payload size and sequence id of a metadata (from `at` to `body`) that has nothing else; (-1, None) for any other.

    Producers that set neither key nor properties send this, so it is worth a reader of its own.
    IndexError when the data end before.
    """
    if data[at] != 0x18:
        return -1, None
    size = data[at + 1]
    at += 2
    if size > 127:
        if data[at] > 127:
            return -1, None
        size += data[at] * 128 - 128
        at += 1
    left = body - at
    if left == 0:
        return size, None
    if left < 2 or data[at] != 0x40:
        return -1, None
    last = data[body - 1]
    if last > 127:
        return -1, None
    if left == 2:
        return size, last
    first = data[at + 1]
    if left == 3 and first > 127:
        return size, last * 128 + first - 128
    second = data[at + 2]
    if left == 4 and first > 127 and second > 127:
        return size, last * 16384 + second * 128 + first - 16512
    third = data[at + 3]
    if left == 5 and first > 127 and second > 127 and third > 127:
        return size, last * 2097152 + third * 16384 + second * 128 + first - 2113664
    return -1, None


def _single(data: bytes, begin: int, body: int) -> BatchMessage:
    """Any message; by hand if its metadata is in a usual form, or else by way of protobuf."""
    metadata = data[begin:body]
    if len(metadata) != body - begin:
        raise MalformedBatch("the metadata of a message is said to be longer than the batch")
    try:
        fields = _fields(metadata)
    except (IndexError, OverflowError, UnicodeDecodeError):
        fields = None
    size, *rest = fields or _parsed(metadata)
    end = body + size
    if end > len(data):
        raise MalformedBatch(f"a message of {size} bytes, the batch has {len(data) - body} left")
    return (data[body:end], *rest)  # type: ignore[return-value] # mypy forgets the types in a starred target


def _fields(metadata: bytes) -> _Fields | None:  # noqa: C901 - one branch per field; split up it costs a third more
    """Fields of a metadata; None, or an exception, when it takes the real parser to tell."""
    properties: dict[str, str] | None = None
    partition_key: str | None = None
    ordering_key: bytes | None = None
    sequence_id: int | None = None
    size, event_time_ms, null_value, compacted_out, key_b64 = -1, 0, False, False, False
    position, end = 0, len(metadata)
    while position < end:
        tag, value = metadata[position], metadata[position + 1]
        position += 2
        if value > 127:
            value, position = read_varint(metadata, position - 1)
        if tag == 0x18:
            size = value
        elif tag == 0x40:
            sequence_id = signed64(value)
        elif tag == 0x0A:
            pair = _pair(metadata, position, position + value)
            position += value
            if pair is None:
                return None
            if properties is None:
                properties = {}
            properties[pair[0]] = pair[1]
        elif tag == 0x12:
            partition_key = metadata[position : position + value].decode()
            position += value
        elif tag == 0x28:
            event_time_ms = signed64(value)
        elif tag == 0x3A:
            ordering_key = metadata[position : position + value]
            position += value
        elif tag == 0x20:
            compacted_out = value != 0
        elif tag == 0x30:
            key_b64 = value != 0
        elif tag == 0x48:
            null_value = value != 0
        else:
            return None
    if position != end or not 0 <= size < 1 << 31:
        return None
    return size, properties, partition_key, event_time_ms, sequence_id, ordering_key, null_value, compacted_out, key_b64


def _pair(metadata: bytes, start: int, end: int) -> tuple[str, str] | None:
    """A KeyValue with key and value below 128 bytes each, in this order; None for any other."""
    key_size = metadata[start + 1]
    middle = start + 2 + key_size
    value_size = metadata[middle + 1]
    if metadata[start] != 0x0A or metadata[middle] != 0x12 or key_size > 127 or value_size > 127:
        return None
    if middle + 2 + value_size != end:
        return None
    return metadata[start + 2 : middle].decode(), metadata[middle + 2 : end].decode()


def _parsed(metadata: bytes) -> _Fields:
    """Fields of any metadata. Raises MalformedBatch."""
    try:
        single = parse(pb.SingleMessageMetadata, metadata)
    except MalformedFrame as error:
        raise MalformedBatch(str(error)) from error
    if single.payload_size < 0:
        raise MalformedBatch(f"a message of {single.payload_size} bytes")
    return (
        single.payload_size,
        {pair.key: pair.value for pair in single.properties} if single.properties else None,
        single.partition_key if single.HasField("partition_key") else None,
        signed64(single.event_time),
        signed64(single.sequence_id) if single.HasField("sequence_id") else None,
        single.ordering_key if single.HasField("ordering_key") else None,
        single.null_value,
        single.compacted_out,
        single.partition_key_b64_encoded,
    )
