"""Frames: the stream cut into commands, and commands in and out of protobuf.

A frame is a 4-byte total size, a 4-byte command size, a BaseCommand, and for SEND and MESSAGE an entry after
it (reference §1.1). Everything here works on frames *without* the total size, as `FrameReader` returns them.
The commands that travel per message have faster codecs of their own in `wire.hot`; this is for all others.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from google.protobuf.message import Message

from . import pulsar_pb2 as pb
from ._protobuf import check_text, parse_complete
from .errors import FrameTooLarge, MalformedFrame, UnknownCommand
from .varints import read_varint, varint

MAX_MESSAGE_SIZE: Final = 5 * 1024 * 1024
"""Bytes of metadata and payload that a broker takes by default, and announces in CONNECTED."""

FRAME_PADDING: Final = 10 * 1024
"""Bytes by which a frame may exceed the largest message: room for the command before it."""

NAMES: Final[dict[int, str]] = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields if field.number > 1}
"""Command type -> the BaseCommand field of its body."""

_SIZES: Final = struct.Struct(">II")
_SIZE: Final = struct.Struct(">I")
_OTHER_PROTOCOLS: Final = {b"HTTP": "HTTP: this is an HTTP port", b"SSH-": "SSH: this is its port"}
"""First bytes of servers of another kind, where a frame has its size."""


def _encoders() -> dict[str, tuple[bytes, type[Message]]]:
    """Field name -> (what comes before the size of the body, class of the body)."""
    return {
        field.name: (
            b"\x08" + varint(field.number) + varint(field.number << 3 | 2),
            getattr(pb, field.message_type.name),
        )
        for field in pb.BaseCommand.DESCRIPTOR.fields
        if field.message_type is not None
    }


_ENCODERS: Final = _encoders()


class FrameReader:
    """Cuts a byte stream into frames, whatever the segments it arrives in.

    Each byte is copied a bounded number of times, so a frame that arrives in many small pieces costs no
    more than one that arrives whole. Memory held is at most one incomplete frame. After an error the stream
    has lost its frame boundaries: close the connection.
    """

    __slots__ = ("_tail", "max_frame_size", "needed")

    def __init__(self, max_frame_size: int = MAX_MESSAGE_SIZE + FRAME_PADDING) -> None:
        self.max_frame_size = max_frame_size
        self._tail = bytearray()
        self.needed = 4
        """Bytes of the frame that is incomplete, its total size included; 4 while even that is not known."""

    @property
    def buffered(self) -> int:
        """Bytes of an incomplete frame that wait for more."""
        return len(self._tail)

    def allow(self, max_frame_size: int) -> None:
        """Take frames of this size from here on."""
        self.max_frame_size = max_frame_size

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take the next segment; return the frames that are complete now, without their total size.

        The segment is copied, its memory may be reused. FrameTooLarge when a frame announces more than
        `max_frame_size`, MalformedFrame when it announces less than a command size; both lose the frames
        that came before in the same segment.
        """
        tail = self._tail
        if tail:
            tail += data
            if len(tail) < self.needed:
                return []
            segment = bytes(tail)
            tail.clear()
        else:
            segment = bytes(data)
        frames = []
        position, end = 0, len(segment)
        self.needed = 4
        while end - position >= 4:
            (size,) = _SIZE.unpack_from(segment, position)
            if not 4 <= size <= self.max_frame_size:
                raise self._refuse(size)
            stop = position + 4 + size
            if stop > end:
                self.needed = 4 + size
                break
            frames.append(segment[position + 4 : stop])
            position = stop
        if position < end:
            tail += segment[position:] if position else segment
        return frames

    def _refuse(self, size: int) -> FrameTooLarge | MalformedFrame:
        if size < 4:
            return MalformedFrame(f"a frame of {size} bytes has no room for a command; is the peer a Pulsar client or broker?")
        start = _SIZE.pack(size)
        if start in _OTHER_PROTOCOLS:
            return FrameTooLarge(f"its first bytes are those of {_OTHER_PROTOCOLS[start]}")
        return FrameTooLarge(
            f"a frame of {size} bytes is announced, {self.max_frame_size} are allowed; raise maxMessageSize on both sides, "
            "or the peer does not speak the Pulsar protocol (TLS towards a plain port looks like this)"
        )


def command_end(frame: bytes) -> int:
    """End of the command, where in SEND and MESSAGE the entry begins. Raises MalformedFrame when the sizes contradict."""
    if len(frame) < 4:
        raise MalformedFrame(f"a frame of {len(frame)} bytes has no room for a command size")
    end = 4 + int.from_bytes(frame[:4])
    if end > len(frame):
        raise MalformedFrame(f"the command is said to have {end - 4} bytes, the frame has {len(frame) - 4}")
    return end


def frame_type(frame: bytes) -> int:
    """The type of the command, also one that this protocol version does not have; MalformedFrame if absent.

    All known peers write the type first, which makes this two look-ups; other orders are found as well.
    """
    if len(frame) > 5 and frame[4] == 8 and frame[5] < 128 and int.from_bytes(frame[:4]) >= 2:
        return frame[5]
    end = command_end(frame)
    position = 4
    try:
        while position < end:
            tag, position = read_varint(frame, position)
            kind = tag & 7
            if kind == 0:
                value, position = read_varint(frame, position)
                if tag == 8 and position <= end:
                    return value
            elif kind == 2:
                size, position = read_varint(frame, position)
                position += size
            elif kind in {1, 5}:
                position += 8 if kind == 1 else 4
            else:
                break
    except (IndexError, OverflowError) as error:
        raise MalformedFrame("the command is not protobuf") from error
    raise MalformedFrame("the command has no type")


def decode_command(frame: bytes) -> pb.BaseCommand:
    """Any command; its body is present, complete, and its text is text.

    UnknownCommand for a type outside this protocol version, MalformedFrame for everything else that is wrong.
    """
    kind = frame_type(frame)
    name = NAMES.get(kind)
    if name is None:
        raise UnknownCommand(kind)
    command = parse_complete(pb.BaseCommand, frame[4 : command_end(frame)])
    if command.type != kind or not command.HasField(name):
        raise MalformedFrame(f"the command says it is of type {kind} and has no {name}")
    check_text(getattr(command, name))
    return command


def encode_command(cmd: pb.BaseCommand) -> bytes:
    """The whole frame, ready to be written. Protobuf's EncodeError when a required field is not set."""
    body = cmd.SerializeToString()
    return _SIZES.pack(len(body) + 4, len(body)) + body


def command(name: str, **fields: Any) -> bytes:
    """The frame of one command: `name` is the BaseCommand field, `fields` are those of its body.

    `command("ping")`, `command("success", request_id=7)`. ValueError for a name or field that does not exist,
    and for numbers that do not fit (wire numbers are unsigned: see `ids.unsigned64`).
    """
    encoder = _ENCODERS.get(name)
    if encoder is None:
        raise ValueError(f"no command has the name {name!r}; names are the fields of BaseCommand")
    prefix, body_type = encoder
    body = body_type(**fields).SerializeToString()
    head = prefix + varint(len(body))
    size = len(head) + len(body)
    return _SIZES.pack(size + 4, size) + head + body
