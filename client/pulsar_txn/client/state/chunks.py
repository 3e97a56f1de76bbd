"""Messages that are larger than a broker takes, put together again from their chunks (PIP-37); and entries that stay unsettled.

A chunk says which message it belongs to (uuid), its number, how many there are, and the size of the whole. Chunks of one
message come in order; those of several producers may be mixed. The message has the position of its last chunk;
acknowledging it, or asking for it again, means all of its chunks.

An entry is unsettled when it is more than this program takes, or a chunk of a message that was given up: it stays with the
broker, to be delivered again another time, and no cumulative acknowledgement may take it along. When the server starts over,
what is unsettled comes again, too; until it has, or something after it has, it may not be acknowledged along either.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from pulsar_txn.client.state.effects import Effects, Log
from pulsar_txn.client.state.owners import MessagePosition
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import Position

REMEMBERED: Final = 10_000
"""Complete messages whose chunks are remembered, and messages that were given up; chunks of older ones are left to expire."""

LIMIT: Final = 10_000
"""Unsettled places that are remembered one by one; of those after them only the first."""


class UnsettledEntries:
    """Entries of one partition that are neither handed out nor acknowledged.

    Without `watched` nothing is remembered, for subscriptions without order or memory.
    """

    def __init__(self, *, watched: bool) -> None:
        self._watched = watched
        self._places: list[Position] = []
        self._others: Position | None = None
        self.owed: list[Position] = []
        """Chunked messages that the server, which has started over, has not passed yet."""

    def add(self, positions: Iterable[Position]) -> None:
        """Add some."""
        if self._watched:
            for position in positions:
                self._add(position)

    def _add(self, position: Position) -> None:
        at = bisect.bisect_left(self._places, position)
        if self._places[at : at + 1] == [position]:
            return
        self._places.insert(at, position)
        if len(self._places) > LIMIT:
            last = self._places.pop()
            self._others = last if self._others is None else min(last, self._others)

    def before(self, position: Position) -> bool:
        """True if one of them is before a place."""
        firsts = (self._places[:1], self.owed[:1], [] if self._others is None else [self._others])
        return any(first < position for each in firsts for first in each)

    def start_over(self, incomplete: Iterable[Position]) -> None:
        """All of them come again, and so do these."""
        self.add(incomplete)
        others = [] if self._others is None else [self._others]
        self.owed = sorted({*self.owed, *self._places, *others})[:LIMIT]
        self._places, self._others = [], None

    def came(self, position: Position) -> None:
        """The server has delivered this; what is not after it is owed no more."""
        del self.owed[: bisect.bisect_right(self.owed, position)]


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
    """The chunks of one partition's consumer. At most `max_pending` incomplete messages, of `max_bytes` each, are kept."""

    def __init__(self, topic: str, effects: Effects, *, max_pending: int, max_bytes: int, watches_unsettled: bool) -> None:
        self.unsettled = UnsettledEntries(watched=watches_unsettled)
        self._topic = topic
        self._effects = effects
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
            self._log("error", "%s %s: chunks of %s are more than they were said to be", self._topic, position, uuid)
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
                self.unsettled.add([position])
                return []
        text = "%s %s: chunk %d of message %s came without its first chunk; it stays unacknowledged"
        self._log("warning", text, self._topic, position, metadata.chunk_id, uuid)
        return []

    def _leave_too_large(self, partial: _Partial, metadata: pb.MessageMetadata) -> None:
        self._log(
            "error",
            "%s: the message in chunks %s has %d bytes, more than max_uncompressed_bytes=%d; its chunks stay unacknowledged: "
            "subscribe with a larger limit to get it, or acknowledge %s to be rid of it",
            self._topic,
            metadata.uuid,
            metadata.total_chunk_msg_size,
            self._max_bytes,
            partial.positions,
        )
        self.unsettled.add(partial.positions)
        if len(partial.chunks) < partial.total:
            _remember(self._too_large, metadata.uuid)

    def _make_room(self) -> list[Position]:
        given_up: list[Position] = []
        while len(self._partial) >= self._max_pending:
            uuid = next(iter(self._partial))
            text = "%s: more than max_pending_chunked_messages=%d chunked messages are incomplete; %s is given up"
            self._log("warning", text, self._topic, self._max_pending, uuid)
            given_up += self._partial.pop(uuid).positions
            _remember(self._evicted, uuid)
        return given_up

    def expire(self, since: float) -> list[Position]:
        """Give up messages whose first chunk came before `since`; their positions."""
        late = [uuid for uuid, partial in self._partial.items() if partial.since <= since]
        if late:
            self._log("warning", "%s: messages in chunks stayed incomplete: %s", self._topic, ", ".join(late))
        return [position for uuid in late for position in self._partial.pop(uuid).positions]

    def clear(self) -> None:
        """All that is incomplete or unsettled comes again."""
        self.unsettled.start_over(position for partial in self._partial.values() for position in partial.positions)
        for those in (self._partial, self._evicted, self._too_large):
            those.clear()

    def holds_before(self, position: Position) -> bool:
        """True if there is something before a position that must not be acknowledged together with it.

        That is a chunk of a message that is not complete, or is complete further on, or an unsettled entry.
        """
        return (
            self.unsettled.before(position)
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

    def positions(self, positions: Iterable[MessagePosition]) -> list[MessagePosition]:
        """The same for places."""
        return [each for at in positions for each in (*((earlier, -1, 0) for earlier in self._behind.get(at[0], ())), at)]

    def _log(self, level: Literal["warning", "error"], text: str, *values: object) -> None:
        self._effects.append(Log(level, text, values))


def _remember(those: dict[str, None], uuid: str) -> None:
    those[uuid] = None
    if len(those) > REMEMBERED:
        del those[next(iter(those))]
