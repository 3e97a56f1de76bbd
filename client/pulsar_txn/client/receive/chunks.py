"""Messages that are larger than a broker takes, put together again from their chunks (PIP-37); and entries that are left.

A chunk says which message it belongs to (uuid), its number, how many there are, and the size of the whole. Chunks of one
message come in order; those of several producers may be mixed. The message has the position of its last chunk;
acknowledging it, or asking for it again, means all of its chunks.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pulsar_txn.client.receive.entry_checks import BeyondUsError
from pulsar_txn.client.receive.left import LeftEntries
from pulsar_txn.client.receive.line import Line
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.receive.owners import Place
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import Position

logger = logging.getLogger("pulsar_txn.client.consumer")

REMEMBERED: Final = 10_000
"""Complete messages whose chunks are remembered, and messages that were given up; chunks of older ones are left to expire."""

LEAST_PAUSE: Final = 0.1
"""Seconds at least before chunks that were given up are asked for again: there is no room for them yet."""

ASKED_TOGETHER: Final = 10_000
"""Chunks that were given up and are asked for in one request."""


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
    """The chunks of one partition's consumer. At most `max_pending` incomplete messages, of `max_bytes` each, are kept.

    `left` has what stays with the broker: it is to come again, and not to be acknowledged together with later messages.
    """

    def __init__(self, topic: str, max_pending: int, max_bytes: int, left: LeftEntries) -> None:
        self.left = left
        self._topic = topic
        self._max_pending = max_pending
        self._max_bytes = max_bytes
        self._partial: dict[str, _Partial] = {}
        self._evicted: dict[str, None] = {}
        self._too_large: dict[str, None] = {}
        self._behind: dict[Position, tuple[Position, ...]] = {}
        self._ends: list[Position] = []  # the keys of `_behind` in the order of their places

    @property
    def incomplete(self) -> int:
        """The number of messages that lack chunks."""
        return len(self._partial)

    @property
    def remembers_any(self) -> bool:
        """True if there are messages that consist of more than their own entry."""
        return bool(self._behind)

    def add(
        self, position: Position, metadata: pb.MessageMetadata, payload: bytes | memoryview, now: float
    ) -> tuple[bytes | None, list[Position]]:
        """A chunk came in: the whole payload if it was the last one; and positions that were given up for lack of room."""
        uuid, number = metadata.uuid, metadata.chunk_id
        given_up = self._begin(position, metadata, now) if number == 0 else []
        known = self._partial.get(uuid)
        if known is None or number > len(known.chunks):
            self._partial.pop(uuid, None)
            return None, given_up + self._without_beginning(position, metadata)
        known.positions.append(position)
        if number < len(known.chunks):
            return None, given_up  # the producer sent it twice
        known.chunks.append(bytes(payload))
        known.left -= len(payload)
        if known.left < 0:
            del self._partial[uuid]
            logger.error("%s %s: chunks of %s are more than they were said to be", self._topic, position, uuid)
            return None, given_up
        if metadata.total_chunk_msg_size > self._max_bytes:
            self._leave_too_large(self._partial.pop(uuid), metadata)
            return None, given_up
        if len(known.chunks) < known.total:
            return None, given_up
        del self._partial[uuid]
        self._complete(position, known)
        return b"".join(known.chunks), given_up

    def _complete(self, position: Position, whole: _Partial) -> None:
        if position not in self._behind:
            bisect.insort(self._ends, position)
        self._behind[position] = tuple(each for each in whole.positions if each != position)
        if len(self._behind) > REMEMBERED:
            oldest = next(iter(self._behind))
            del self._behind[oldest]
            del self._ends[bisect.bisect_left(self._ends, oldest)]

    def _begin(self, position: Position, metadata: pb.MessageMetadata, now: float) -> list[Position]:
        """The first chunk, for the first time or sent or delivered again; positions that were given up for it."""
        uuid = metadata.uuid
        before = self._partial.pop(uuid, None)
        self._evicted.pop(uuid, None)
        self._too_large.pop(uuid, None)
        given_up = self._make_room()
        fresh = self._partial[uuid] = _Partial(metadata.num_chunks_from_msg, metadata.total_chunk_msg_size, now)
        if before is not None:
            fresh.positions += [each for each in before.positions if each != position]
        return given_up

    def _without_beginning(self, position: Position, metadata: pb.MessageMetadata) -> list[Position]:
        """A chunk that continues nothing: given up if its message was; of one that is too large it is left with the others."""
        uuid = metadata.uuid
        last = metadata.chunk_id == metadata.num_chunks_from_msg - 1
        for those in (self._evicted, self._too_large):
            if uuid in those:
                if last:
                    del those[uuid]
                if those is self._evicted:
                    return [position]
                self.left.add([position])
                return []
        logger.warning(
            "%s %s: chunk %d of %s has no beginning here; it is left", self._topic, position, metadata.chunk_id, uuid
        )
        return []

    def _leave_too_large(self, partial: _Partial, metadata: pb.MessageMetadata) -> None:
        logger.error(
            "%s: the message in chunks %s has %d bytes, more than max_uncompressed_bytes=%d; its chunks stay unacknowledged: "
            "subscribe with a larger limit to get it, or acknowledge %s to be rid of it",
            self._topic,
            metadata.uuid,
            metadata.total_chunk_msg_size,
            self._max_bytes,
            partial.positions,
        )
        self.left.add(partial.positions)
        if len(partial.chunks) < partial.total:
            _remember(self._too_large, metadata.uuid)

    def _make_room(self) -> list[Position]:
        given_up: list[Position] = []
        while len(self._partial) >= self._max_pending:
            uuid = next(iter(self._partial))
            logger.warning(
                "%s: more than max_pending_chunked_messages=%d messages in chunks are incomplete; %s is given up for now",
                self._topic,
                self._max_pending,
                uuid,
            )
            given_up += self._partial.pop(uuid).positions
            _remember(self._evicted, uuid)
        return given_up

    def expire(self, since: float) -> list[Position]:
        """Give up messages whose first chunk came before `since`; their positions."""
        late = [uuid for uuid, partial in self._partial.items() if partial.since <= since]
        if late:
            logger.warning("%s: messages in chunks stayed incomplete: %s", self._topic, ", ".join(late))
        return [position for uuid in late for position in self._partial.pop(uuid).positions]

    def clear(self) -> None:
        """All that is incomplete, or was left, comes again."""
        self.left.start_over(position for partial in self._partial.values() for position in partial.positions)
        for those in (self._partial, self._evicted, self._too_large):
            those.clear()

    def holds_before(self, position: Position) -> bool:
        """True if there is something before a position that must not be acknowledged together with it.

        That is a chunk of a message that is not complete, or is complete further on, or an entry that was left.
        """
        return (
            self.left.before(position)
            or any(each < position for partial in self._partial.values() for each in partial.positions)
            or any(
                min(self._behind[end], default=end) < position
                for end in self._ends[bisect.bisect_right(self._ends, position) :]
            )
        )

    def begin(self, after: Position) -> Position | None:
        """The place of the first chunk of the messages that end after a position; None when all of them begin after it."""
        whole = (min(self._behind[end], default=end) for end in self._ends[bisect.bisect_right(self._ends, after) :])
        incomplete = (min(partial.positions) for partial in self._partial.values() if partial.positions)
        return min((first for first in (*whole, *incomplete) if first <= after), default=None)

    def with_chunks(self, positions: Sequence[Position]) -> list[Position]:
        """Positions, and those of the other chunks of the messages that are there."""
        behind = self._behind
        return [each for position in positions for each in (*behind.get(position, ()), position)]

    def places(self, places: Iterable[Place]) -> list[Place]:
        """The same for places."""
        return [each for place in places for each in (*((earlier, -1, 0) for earlier in self._behind.get(place[0], ())), place)]


def _remember(those: dict[str, None], uuid: str) -> None:
    those[uuid] = None
    if len(those) > REMEMBERED:
        del those[next(iter(those))]


class Chunking:
    """Puts the messages in chunks of one partition together, in time, and keeps what is left.

    `acknowledge(place)` acknowledges a chunk; `again(positions)` has chunks delivered again.
    """

    def __init__(
        self, line: Line, *, acknowledge: Callable[[Place], None], again: Callable[[Sequence[Position]], None]
    ) -> None:
        options = line.options
        left = LeftEntries(watched=watches(options))
        self.messages = ChunkedMessages(line.topic, options.max_pending_chunked_messages, options.max_uncompressed_bytes, left)
        self._line = line
        self._acknowledge = acknowledge
        self._again = again
        self._timer: asyncio.Handle | None = None
        self._given_up: list[Position] = []
        self._asking: asyncio.Handle | None = None
        self._warned_of_beyond = False

    def add(self, position: Position, metadata: pb.MessageMetadata, payload: bytes | memoryview) -> bytes | None:
        """The whole payload when this was the last chunk. What stays incomplete for too long is acknowledged and gone."""
        options, runtime = self._line.options, self._line.core.runtime
        whole, given_up = self.messages.add(position, metadata, payload, runtime.monotonic())
        if given_up:
            self._on_given_up(given_up)
        if self._timer is None and self.messages.incomplete and options.expire_incomplete_chunks:
            self._timer = runtime.call_later(options.expire_incomplete_chunks, self._expire_chunks)
        return whole

    def _on_given_up(self, positions: Sequence[Position]) -> None:
        """Chunks for which there was no room: with the option acknowledged; else asked for again where that is possible."""
        if self._line.options.auto_ack_oldest_chunked_message:
            self._give_up_chunks(positions)
            return
        self.messages.left.add(positions)
        if self._line.single:  # asking would bring everything back, in the same order
            return
        self._given_up += positions
        if len(self._given_up) >= ASKED_TOGETHER:
            self._ask_for_given_up()
        elif self._asking is None:
            delay = max(self._line.options.negative_ack_delay, LEAST_PAUSE)
            self._asking = self._line.core.runtime.call_later(delay, self._ask_for_given_up)

    def _ask_for_given_up(self) -> None:
        self._cancel_asking()
        positions, self._given_up = self._given_up, []
        if positions and self._line.connection is not None:
            self._again(positions)

    def _cancel_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _expire_chunks(self) -> None:
        self._timer = None
        period = self._line.options.expire_incomplete_chunks
        self._give_up_chunks(self.messages.expire(self._line.core.runtime.monotonic() - period))
        if self.messages.incomplete:
            self._timer = self._line.core.runtime.call_later(period, self._expire_chunks)

    def _give_up_chunks(self, positions: Sequence[Position]) -> None:
        for position in positions:
            self._acknowledge((position, -1, 0))

    def leave(self, position: Position, error: BeyondUsError) -> None:
        """An entry that is fine, but not for this program: it stays with the broker, for one that takes it."""
        self.messages.left.add(self.messages.with_chunks([position]))
        level = logging.WARNING if self._warned_of_beyond else logging.ERROR
        self._warned_of_beyond = True
        logger.log(
            level,
            "%s %s stays unacknowledged, and is not handed out: %s; or acknowledge its id to be rid of it",
            self._line.topic,
            position,
            error,
        )

    def start_over(self) -> None:
        """A new connection brings everything again."""
        self._given_up.clear()

    def close(self) -> None:
        """Do nothing more by itself."""
        for timer in (self._timer, self._asking):
            if timer is not None:
                timer.cancel()


def watches(options: ConsumerOptions) -> bool:
    """True if a cumulative acknowledgement of such a subscription can take along what was left."""
    return options.durable and options.consumer_type.is_single
