"""The front's splitting of streams: what is wanted comes whole, all else comes as it was, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.tc_service.front.commands import MAX_WANTED_BYTES, PASS_THROUGH, FrameSplitter, with_size
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.errors import FrameTooLarge, MalformedFrame, WireError
from pulsar_txn.wire.frames import FrameReader, command, frame_type
from pulsar_txn.wire.hot import encode_send
from pulsar_txn.wire.pulsar_pb2 import MessageMetadata

LOOKUP, PONG, SEND = 23, 19, 6
METADATA = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)


def lookup(topic: str) -> bytes:
    return command("lookupTopic", topic=topic, request_id=1)


def send(payload: bytes) -> bytes:
    return b"".join(encode_send(1, 2, 1, encode_entry(METADATA, payload)))


FRAMES = st.one_of(
    st.text(max_size=300).map(lookup),
    st.binary(max_size=3000).map(send),
    st.just(command("pong")),
    st.just(command("ping")),
)


@given(st.lists(FRAMES, max_size=12), st.lists(st.integers(1, 400), max_size=60))
def test_wanted_frames_come_whole_and_in_their_place_and_every_byte_comes_once(frames: list[bytes], sizes: list[int]) -> None:
    splitter, stream = FrameSplitter({LOOKUP, PONG}, strict=True), b"".join(frames)
    at, out, wanted = 0, b"", []
    for size in [*sizes, len(stream)]:
        for kind, piece in splitter.feed(stream[at : at + size]):
            out += piece if kind == PASS_THROUGH else with_size(piece)
            if kind != PASS_THROUGH:
                wanted.append((kind, piece))
        at += size
        assert splitter.held <= 400
    assert out == stream
    assert splitter.is_between
    every = FrameReader(1 << 20).feed(stream)
    assert wanted == [(frame_type(each), each) for each in every if frame_type(each) in (LOOKUP, PONG)]


def test_a_message_of_any_size_passes_without_being_put_together() -> None:
    splitter = FrameSplitter({LOOKUP}, strict=True)
    frame = send(bytes(40 << 20))
    step = 1 << 16
    for at in range(0, len(frame), step):
        assert splitter.feed(frame[at : at + step]) == [(PASS_THROUGH, frame[at : at + step])]
        assert splitter.held == 0
    assert splitter.feed(lookup("t")) == [(LOOKUP, lookup("t")[4:])]


def test_a_segment_in_which_nothing_is_wanted_is_not_copied() -> None:
    segment = b"".join(send(b"%d" % number) for number in range(100))
    ((kind, piece),) = FrameSplitter({LOOKUP}, strict=True).feed(segment)
    assert kind == PASS_THROUGH
    assert piece is segment


def test_between_two_frames_is_known_byte_by_byte() -> None:
    splitter, frame = FrameSplitter((), strict=False), send(b"x" * 50)
    out = b""
    for index in range(len(frame)):
        out += b"".join(piece for _, piece in splitter.feed(frame[index : index + 1]))
        assert splitter.is_between == (len(out) in (0, len(frame)))
    assert out == frame


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\0\0\0\x05" + bytes(20), MalformedFrame),
        (b"\0\0\0\0" + bytes(20), MalformedFrame),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", MalformedFrame),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600), MalformedFrame),
        (b"\0\0\0\x10\0\0\0\x0c\x12\x00\x08\x17" + bytes(8), MalformedFrame),  # a LOOKUP whose type comes last
        (b"\0\0\0\x10\0\0\0\x0c\x08\x97\x01" + bytes(9), MalformedFrame),  # a type that is written in more bytes than it needs
        ((MAX_WANTED_BYTES + 1).to_bytes(4) + b"\0\0\0\x0c\x08\x17", FrameTooLarge),
    ],
)
def test_what_no_client_sends_closes_the_connection(data: bytes, error: type[WireError]) -> None:
    with pytest.raises(error):
        FrameSplitter({LOOKUP}, strict=True).feed(data)


def test_a_broker_may_say_what_is_not_known_here() -> None:
    frame = b"\0\0\0\x10\0\0\0\x0c\x08\x97\x02" + bytes(9)
    assert FrameSplitter({LOOKUP}, strict=False).feed(frame) == [(PASS_THROUGH, frame)]


@given(st.binary(max_size=4000), st.booleans())
def test_no_bytes_break_it_otherwise(data: bytes, strict: bool) -> None:
    splitter = FrameSplitter({LOOKUP}, strict=strict)
    out = b""
    try:
        for at in range(0, len(data), 7):
            for kind, piece in splitter.feed(data[at : at + 7]):
                out += piece if kind == PASS_THROUGH else with_size(piece)
    except WireError:
        return
    assert data.startswith(out)
    assert len(data) - len(out) == splitter.held
