"""Messages that are larger than a broker takes, put together again from their chunks (PIP-37).

A chunk says which message it belongs to (uuid), its number, how many there are, and the size of the whole. Chunks of one
message come in order; those of several producers may be mixed. The message stands at the position of its last chunk;
acknowledging it, or asking for it again, means all of its chunks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from pulsar_txn.client.acks import Place
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import Position

logger = logging.getLogger("pulsar_txn.client.consumer")

MAX_CHUNKED: Final = 256 * 1024 * 1024
"""Bytes that a message in chunks may have, also after decompression."""

REMEMBERED: Final = 10_000
"""Complete messages whose chunks are remembered; chunks of older ones are left to expire."""


class _Partial:
    """A message of which some chunks are here."""

    __slots__ = ("chunks", "left", "positions", "since", "total")

    def __init__(self, total: int, size: int, since: float) -> None:
        self.total = total
        self.left = size
        self.since = since
        self.chunks: list[bytes] = []
        self.positions: list[Position] = []


class ChunkedMessages:
    """The chunks of one partition's consumer. At most `max_pending` incomplete messages are kept."""

    def __init__(self, topic: str, max_pending: int) -> None:
        self._topic = topic
        self._max_pending = max_pending
        self._partial: dict[str, _Partial] = {}
        self._behind: dict[Position, tuple[Position, ...]] = {}

    @property
    def incomplete(self) -> int:
        """How many messages lack chunks."""
        return len(self._partial)

    @property
    def remembers_any(self) -> bool:
        """Whether there are messages that stand for more than their own entry."""
        return bool(self._behind)

    def add(
        self, position: Position, metadata: pb.MessageMetadata, payload: bytes | memoryview, now: float
    ) -> tuple[bytes | None, list[Position]]:
        """A chunk came in: the whole payload if it was the last one; and positions that were given up for it."""
        uuid, number = metadata.uuid, metadata.chunk_id
        known = self._partial.get(uuid)
        if number == 0:
            earlier = [] if known is None else known.positions  # sent or delivered anew
            self._partial.pop(uuid, None)
            given_up = self._make_room()
            known = self._partial[uuid] = _Partial(metadata.num_chunks_from_msg, metadata.total_chunk_msg_size, now)
            known.positions += [each for each in earlier if each != position]
        else:
            given_up = []
        if known is None or number > len(known.chunks):
            self._partial.pop(uuid, None)
            logger.warning("%s %s: chunk %d of %s has no beginning here; it is left", self._topic, position, number, uuid)
            return None, given_up
        known.positions.append(position)
        if number < len(known.chunks):
            return None, given_up  # the producer sent it twice
        known.chunks.append(bytes(payload))
        known.left -= len(payload)
        if known.left < 0 or metadata.total_chunk_msg_size > MAX_CHUNKED:
            del self._partial[uuid]
            logger.error("%s %s: chunks of %s are more than %d bytes", self._topic, position, uuid, MAX_CHUNKED)
            return None, given_up
        if len(known.chunks) < known.total:
            return None, given_up
        del self._partial[uuid]
        self._behind[position] = tuple(each for each in known.positions if each != position)
        if len(self._behind) > REMEMBERED:
            del self._behind[next(iter(self._behind))]
        return b"".join(known.chunks), given_up

    def _make_room(self) -> list[Position]:
        given_up: list[Position] = []
        while len(self._partial) >= self._max_pending:
            uuid = next(iter(self._partial))
            logger.warning(
                "%s: more than %d messages in chunks are incomplete; %s is left", self._topic, self._max_pending, uuid
            )
            given_up += self._partial.pop(uuid).positions
        return given_up

    def expire(self, since: float) -> list[Position]:
        """Give up messages whose first chunk came before `since`; their positions."""
        late = [uuid for uuid, partial in self._partial.items() if partial.since <= since]
        if late:
            logger.warning("%s: messages in chunks stayed incomplete: %s", self._topic, ", ".join(late))
        return [position for uuid in late for position in self._partial.pop(uuid).positions]

    def clear(self) -> None:
        """All that is incomplete comes again."""
        self._partial.clear()

    def holds_before(self, position: Position) -> bool:
        """Whether there is an incomplete message in front of a position, which must not be acknowledged along with it."""
        return any(each < position for partial in self._partial.values() for each in partial.positions)

    def with_chunks(self, positions: Sequence[Position]) -> list[Position]:
        """Positions, and those of the other chunks of messages that stand there."""
        behind = self._behind
        return [each for position in positions for each in (*behind.get(position, ()), position)]

    def places(self, places: Iterable[Place]) -> list[Place]:
        """The same for places."""
        return [each for place in places for each in (*((earlier, -1, 0) for earlier in self._behind.get(place[0], ())), place)]
