"""The frame reader, and commands through protobuf: whatever the segments, whatever the bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.wire import frames
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import FrameTooLarge, MalformedFrame, UnknownCommand, WireError
from pulsar_txn.wire.frames import FrameReader, command, decode_command, frame_type

PING = command("ping")


def _sized(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def _frame(body: bytes, rest: bytes = b"") -> bytes:
    return len(body).to_bytes(4) + body + rest


@given(
    bodies=st.lists(st.binary(min_size=4, max_size=300), max_size=8),
    cuts=st.lists(st.integers(0, 2000), max_size=12),
    kind=st.sampled_from([bytes, bytearray, memoryview]),
)
def test_any_segmentation_gives_the_same_frames(bodies: list[bytes], cuts: list[int], kind: type):
    stream = b"".join(map(_sized, bodies))
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    reader = FrameReader()
    out: list[bytes] = []
    for start, stop in itertools.pairwise(places):
        out += reader.feed(kind(stream[start:stop]))
        assert reader.buffered == stop - sum(4 + len(body) for body in out)
    assert out == bodies
    assert reader.buffered == 0


def test_byte_by_byte_gives_the_same_frames():
    stream = PING + command("newTxn", request_id=1) + PING
    reader = FrameReader()
    out = [frame for i in range(len(stream)) for frame in reader.feed(stream[i : i + 1])]
    assert out == FrameReader().feed(stream)
    assert len(out) == 3


def test_a_segment_may_be_reused_after_it_was_taken():
    buffer = bytearray(PING + PING[:6])
    reader = FrameReader()
    out = reader.feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert out + reader.feed(PING[6:]) == [PING[4:], PING[4:]]


def test_a_large_frame_in_small_pieces_costs_memory_and_time_in_proportion():
    copied = 0

    class Counting(bytearray):
        def __iadd__(self, other: bytes) -> Counting:
            nonlocal copied
            copied += len(other)
            return super().__iadd__(other)

    reader = FrameReader()
    reader._tail = Counting()
    body = bytes(1_000_000)
    stream = _sized(body) * 2
    out = [frame for i in range(0, len(stream), 100) for frame in reader.feed(stream[i : i + 100])]
    assert out == [body, body]
    assert copied <= len(stream) + 200


@pytest.mark.parametrize("head", [b"\x00\x00\x10\x01", b"\xff\xff\xff\xff", b"GET ", b"\x16\x03\x01\x02"])
def test_an_oversize_frame_is_refused_at_its_first_four_bytes(head: bytes):
    reader = FrameReader(max_frame_size=4096)
    assert reader.feed(head[:3]) == []
    with pytest.raises(FrameTooLarge, match=r"4096 are allowed; raise maxMessageSize"):
        reader.feed(head[3:])


def test_a_frame_of_exactly_the_limit_is_taken():
    reader = FrameReader(max_frame_size=16)
    assert reader.feed(_sized(bytes(16))) == [bytes(16)]
    with pytest.raises(FrameTooLarge):
        reader.feed(_sized(bytes(17)))


def test_the_default_limit_is_that_of_pulsar():
    assert frames.MAX_MESSAGE_SIZE + frames.FRAME_PADDING == 5_253_120
    with pytest.raises(FrameTooLarge):
        FrameReader().feed((5_253_121).to_bytes(4))
    assert FrameReader().feed((5_253_120).to_bytes(4)) == []


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_frame_without_room_for_a_command_is_malformed(size: int):
    with pytest.raises(MalformedFrame, match="no room for a command"):
        FrameReader().feed(size.to_bytes(4) + bytes(size))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"\x00\x00\x00",
        _frame(b""),
        b"\x00\x00\x00\x09" + PING[8:],
        b"\xff\xff\xff\xff\x08\x12",
        _frame(b"\x92\x01\x00"),
        _frame(b"\x0b"),
        _frame(b"\x08"),
        _frame(b"\x08" + b"\xff" * 11),
        _frame(b"\x08\x12"),
        _frame(b"\x08\x12\x9a\x01\x00"),
        _frame(b"\x08\x32\x92\x03\x02\x10\x01"),
        _frame(b"\x08\x12\x92\x01\x05\x00"),
    ],
)
def test_contradicting_sizes_missing_bodies_and_missing_fields_are_malformed(frame: bytes):
    with pytest.raises(MalformedFrame):
        decode_command(frame)


@pytest.mark.parametrize("number", [0, 1, 41, 49, 69, 70, 81, 200, 2**31, 2**64 - 1])
def test_an_unknown_type_is_told_by_its_number_whatever_the_order(number: int):
    plain = b"\x08" + _varint(number)
    for body in (plain, b"\xca\x3e\x02ab" + plain, b"\x9d\x3e1234" + b"\x99\x3e12345678" + b"\x98\x3e\x05" + plain):
        assert frame_type(_frame(body)) == number
        with pytest.raises(UnknownCommand, match=f"unknown command type {number}:") as caught:
            decode_command(_frame(body))
        assert caught.value.type == number


def test_the_type_is_found_behind_the_body_too():
    body = command("newTxn", request_id=7)[8:]
    swapped = _frame(body[2:] + body[:2])
    assert frame_type(swapped) == 50
    assert decode_command(swapped).newTxn.request_id == 7


def test_bytes_behind_the_command_do_not_disturb():
    assert decode_command(_frame(PING[8:], b"rest")).type == pb.BaseCommand.PING


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("lookupTopic", b"\x0a\x01\xff\x10\x01"),
        ("getTopicsOfNamespaceResponse", b"\x08\x01\x12\x02\xc3\x28"),
        ("addSubscriptionToTxn", b"\x08\x01\x22\x06\x0a\x01t\x12\x01\xff"),
        ("producer", b"\x0a\x01t\x10\x01\x18\x01\x32\x06\x0a\x01\xff\x12\x01v"),
    ],
)
def test_text_that_is_not_utf8_is_malformed_and_named(name: str, body: bytes):
    number = pb.BaseCommand.DESCRIPTOR.fields_by_name[name].number
    frame = _frame(b"\x08" + _varint(number) + _varint(number << 3 | 2) + _varint(len(body)) + body)
    with pytest.raises(MalformedFrame, match="is not UTF-8 text"):
        decode_command(frame)


def test_a_command_by_name_equals_the_message_put_together():
    message = pb.BaseCommand(type=pb.BaseCommand.ERROR)
    message.error.request_id, message.error.error, message.error.message = 2**64 - 1, pb.NotAllowedError, "no ü"
    assert command("error", request_id=2**64 - 1, error=pb.NotAllowedError, message="no ü") == frames.encode_command(message)
    assert (
        command("lookupTopic", topic="t" * 300, request_id=1)[4:]
        == frames.encode_command(
            pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=pb.CommandLookupTopic(topic="t" * 300, request_id=1))
        )[4:]
    )


def test_a_command_that_does_not_exist_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="no command has the name 'pingg'"):
        command("pingg")
    with pytest.raises(ValueError, match="requestid"):
        command("success", requestid=1)


@given(st.binary(max_size=80))
def test_garbage_raises_wire_errors_only(data: bytes):
    for frame in (data, _frame(data), _frame(b"\x08" + data)):
        try:
            decoded = decode_command(frame)
        except WireError:
            continue
        assert decoded.HasField(frames.NAMES[decoded.type])


@given(st.binary(max_size=200), st.integers(4, 64))
def test_a_garbage_stream_raises_wire_errors_only(data: bytes, limit: int):
    reader = FrameReader(limit)
    try:
        out = reader.feed(data)
    except WireError:
        return
    assert sum(4 + len(frame) for frame in out) + reader.buffered == len(data)
    assert all(4 <= len(frame) <= limit for frame in out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
