"""Bytes of connections, cut into the frames that the check of the wire (K17) takes."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.frames import NAMES, FrameReader, decode_command

Frame = tuple[str, int, str, int | None, dict[str, Any]]


class FrameTap:
    """Takes what each side of each connection writes; `connections` has the frames in the order of their writes."""

    def __init__(self) -> None:
        self.connections: dict[str, list[Frame]] = {}
        self._readers: dict[tuple[str, str], FrameReader] = {}

    def feed(self, connection: str, direction: str, t_ns: int, data: bytes) -> None:
        """Take a segment. The direction is to_broker or to_client."""
        reader = self._readers.setdefault((connection, direction), FrameReader())
        frames = self.connections.setdefault(connection, [])
        for frame in reader.feed(data):
            frames.append((direction, t_ns, *_parsed(frame)))


def _parsed(frame: bytes) -> tuple[str, int | None, dict[str, Any]]:
    try:
        command = decode_command(frame)
    except WireError as error:
        return "UNPARSED", None, {"error": str(error), "frame": frame[:100].hex()}
    body: Message = getattr(command, NAMES[command.type])
    fields = {field.name: _plain(value) for field, value in body.ListFields()}
    # Protobuf does not list repeated fields that are empty; nothing needs them.
    request_id = fields.pop("request_id", None)
    return pb.BaseCommand.Type.Name(command.type), request_id, fields


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Message) else value
