"""Batches against protobuf in both directions, and batches that do not divide."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.wire import batches
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import decode_batch, encode_batch
from pulsar_txn.wire.errors import MalformedBatch
from pulsar_txn.wire.ids import signed64, unsigned64

U64 = st.integers(0, 300) | st.sampled_from([n for b in (7, 14, 21, 28, 35, 64) for n in ((1 << b) - 1, 1 << b & 2**64 - 1)])
LONG = U64.map(signed64)
PAYLOAD = st.binary(max_size=20) | st.sampled_from([127, 128, 16383, 16384]).map(bytes)
TEXT = st.text(max_size=5) | st.sampled_from([127, 128]).map(lambda size: "x" * size)
OUTGOING = st.one_of(
    st.tuples(PAYLOAD),
    st.tuples(PAYLOAD, st.none(), st.none() | st.just(()), st.just(0), st.none() | LONG),
    st.tuples(
        PAYLOAD,
        st.none() | TEXT,
        st.none() | st.just(()) | st.dictionaries(TEXT, TEXT, max_size=3),
        LONG,
        st.none() | LONG,
        st.none() | st.binary(max_size=5),
        st.booleans(),
        st.booleans(),
    ).flatmap(lambda message: st.integers(1, 8).map(lambda length: message[:length])),
)


def as_protobuf(message: tuple[Any, ...]) -> pb.SingleMessageMetadata:
    payload, key, properties, event_time_ms, sequence_id, ordering_key, null_value, key_b64 = (
        *message,
        *(None, None, None, 0, None, None, False, False)[len(message) :],
    )
    single = pb.SingleMessageMetadata(payload_size=len(payload))
    for name, value in (properties or {}).items():
        single.properties.add(key=name, value=value)
    if key is not None:
        single.partition_key = key
    if event_time_ms:
        single.event_time = unsigned64(event_time_ms)
    if key_b64:
        single.partition_key_b64_encoded = True
    if ordering_key is not None:
        single.ordering_key = ordering_key
    if sequence_id is not None:
        single.sequence_id = unsigned64(sequence_id)
    if null_value:
        single.null_value = True
    return single


def sized(single: pb.SingleMessageMetadata | bytes) -> bytes:
    raw = single if isinstance(single, bytes) else single.SerializeToString()
    return len(raw).to_bytes(4) + raw


def decoded(single: pb.SingleMessageMetadata, payload: bytes) -> tuple[Any, ...]:
    return (
        payload,
        {pair.key: pair.value for pair in single.properties} or None,
        single.partition_key if single.HasField("partition_key") else None,
        signed64(single.event_time),
        signed64(single.sequence_id) if single.HasField("sequence_id") else None,
        single.ordering_key if single.HasField("ordering_key") else None,
        single.null_value,
        single.compacted_out,
        single.partition_key_b64_encoded,
    )


def typed(messages: list[Any]) -> list[Any]:
    return [[(type(value), value) for value in message] for message in messages]


@given(st.lists(OUTGOING, max_size=6))
def test_a_batch_is_written_as_protobuf_writes_it_and_read_back(messages: list[tuple[Any, ...]]):
    singles = [as_protobuf(message) for message in messages]
    batch = encode_batch(messages)
    assert batch == b"".join(sized(single) + message[0] for single, message in zip(singles, messages, strict=True))
    expected = [decoded(single, message[0]) for single, message in zip(singles, messages, strict=True)]
    for kind in (bytes, bytearray, memoryview):
        assert typed(decode_batch(kind(batch), len(messages))) == typed(expected)


UNKNOWN = st.sampled_from([b"\x78\x05", b"\x7a\x02ab", b"\x79" + b"12345678", b"\x7d" + b"1234", b"\x50\x01", b"\xa0\x06\x01"])


@given(data=st.data())
def test_field_order_unknown_fields_and_odd_forms_change_nothing(data: st.DataObject):
    message = data.draw(OUTGOING)
    single = as_protobuf(message)
    if data.draw(st.booleans()):
        single.compacted_out = data.draw(st.booleans())
    pieces = data.draw(st.lists(UNKNOWN, max_size=2))
    for field, value in single.ListFields():
        part = pb.SingleMessageMetadata()
        if field.is_repeated:
            for pair in value:
                raw = data.draw(st.sampled_from([pair.SerializeToString(), _turned(pair)]))
                pieces.append(b"\x0a" + _varint(len(raw)) + raw)
            continue
        setattr(part, field.name, value)
        pieces.append(part.SerializePartialToString())
    raw = b"".join(data.draw(st.permutations(pieces)))
    read = pb.SingleMessageMetadata.FromString(raw)
    assert typed(decode_batch(sized(raw) + message[0], 1)) == typed([decoded(read, message[0])])


PIECE = st.one_of(
    st.builds(lambda tag, value: bytes((tag,)) + _varint(value), st.integers(0, 90), U64),
    st.builds(
        lambda tag, inner: bytes((tag, len(inner))) + inner, st.sampled_from([0x0A, 0x12, 0x3A, 0x7A]), st.binary(max_size=8)
    ),
    st.sampled_from(
        [
            b"\x18\x80\x00",
            b"\x18\x05",
            b"\x40\x80\x80\x00",
            b"\x0a\x06\x0a\x01k\x12\x01v",
            b"\x0a\x05\x0a\x00\x12\x01\xff",
            b"\x12\x01\xff",
        ]
    ),
)


@given(st.lists(PIECE, max_size=4), st.binary(max_size=8))
def test_metadata_is_taken_and_refused_as_by_protobuf(pieces: list[bytes], payload: bytes):
    agrees_with_protobuf(b"".join(pieces), payload)


# Metadata that a reader by hand could take for something else; chance does not find them.
ODD = {
    "a lone tag behind a size of three bytes": (b"\x18\x80\x80\x40\x05", 16384),
    "a size of three bytes": (b"\x18\x80\x80\x40", 1 << 20),
    "a size of three bytes and a sequence id": (b"\x18\x80\x80\x01\x40\x05", 16384),
    "a size of four bytes": (b"\x18\x85\x80\x80\x00\x40\x05", 5),
    "a lone tag behind a short sequence id": (b"\x18\x05\x40\x01\x05", 5),
    "a size behind a short sequence id": (b"\x18\x05\x40\x01\x18\x06", 6),
    "a size behind a longer sequence id": (b"\x18\x05\x40\x81\x01\x18\x06", 6),
    "a sequence id that goes on into the payload": (b"\x18\x05\x40\x81", 5),
    "a size that goes on into the payload": (b"\x18\x85", 5),
    "a lone tag": (b"\x18\x05\x40", 5),
    "a size above its range": (b"\x18\x85\x80\x80\x80\x20", 5),
    "a property with a field of the future": (b"\x0a\x08\x0a\x01k\x12\x01v\x78\x05\x18\x05", 5),
    "a property longer than its metadata": (b"\x18\x05\x0a\x0f\x0a\x01k\x12\x01v", 5),
    "a property with a long key": (b"\x18\x05\x0a\x08\x0a\x82\x00kk\x12\x01v", 5),
    "a property without a value": (b"\x18\x05\x0a\x03\x0a\x01k", 5),
    "a key longer than its metadata": (b"\x18\x05\x12\x0fk", 5),
    "more than 64 bits": (b"\x18\x05\x40" + b"\xff" * 9 + b"\x7f\x48\x00", 5),
    "eleven bytes of nothing": (b"\x18\x05\x40" + b"\x80" * 10 + b"\x00", 5),
    "ten bytes of nothing": (b"\x18\x05\x40" + b"\x80" * 9 + b"\x00", 5),
}


@pytest.mark.parametrize("odd", list(ODD))
def test_odd_metadata_is_taken_and_refused_as_by_protobuf(odd: str):
    raw, size = ODD[odd]
    agrees_with_protobuf(raw, b"\x01" * size)


def agrees_with_protobuf(raw: bytes, payload: bytes) -> None:
    batch = sized(raw) + payload
    try:
        single = pb.SingleMessageMetadata.FromString(raw)
        texts = [single.partition_key, *(text for pair in single.properties for text in (pair.key, pair.value))]
        readable = single.IsInitialized() and all(isinstance(text, str) for text in texts)
    except DecodeError:
        readable = False
    if readable and single.payload_size == len(payload):
        assert typed(decode_batch(batch, 1)) == typed([decoded(single, payload)])
    else:
        with pytest.raises(MalformedBatch):
            decode_batch(batch, 1)


@given(st.lists(OUTGOING, min_size=1, max_size=4))
def test_every_truncation_and_every_wrong_count_is_refused(messages: list[tuple[Any, ...]]):
    batch = encode_batch(messages)
    cuts = {0, 1, 3, 4, 5, len(batch) // 2, len(batch) - 1} & set(range(len(batch)))
    for cut in cuts:
        with pytest.raises(MalformedBatch):
            decode_batch(batch[:cut], len(messages))
    for count in (len(messages) - 1, len(messages) + 1, 2**31 - 1, -1):
        with pytest.raises(MalformedBatch):
            decode_batch(batch, count)
    with pytest.raises(MalformedBatch):
        decode_batch(batch + b"\0", len(messages))


@given(st.binary(max_size=60), st.integers(-1, 5))
def test_garbage_raises_malformed_batch_only(data: bytes, count: int):
    for batch in (data, b"\x00\x00\x00" + data, sized(b"\x18" + data)):
        try:
            messages = decode_batch(batch, count)
        except MalformedBatch:
            continue
        assert len(messages) == count or (count <= 0 and not messages)


def test_no_messages_are_no_bytes():
    assert encode_batch([]) == b""
    assert decode_batch(b"", 0) == []


def test_a_negative_payload_size_is_refused():
    with pytest.raises(MalformedBatch, match="-1 bytes"):
        decode_batch(sized(pb.SingleMessageMetadata(payload_size=-1)), 1)


def test_the_cache_of_heads_is_bounded_and_forgets_without_harm():
    payloads = [bytes(size) for size in range(5000)]
    for payload in payloads:
        assert decode_batch(encode_batch([(payload,)]), 1)[0][0] == payload
    assert len(batches._heads) <= batches._CACHE_LIMIT


def test_properties_of_two_messages_are_not_the_same_dict():
    first, second = decode_batch(encode_batch([(b"a", "k", {"n": "v"}), (b"a", "k", {"n": "v"})]), 2)
    assert first == second
    assert first[1] is not second[1]


def _turned(pair: pb.KeyValue) -> bytes:
    key, value = pair.key.encode(), pair.value.encode()
    return b"\x12" + _varint(len(value)) + value + b"\x0a" + _varint(len(key)) + key


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
