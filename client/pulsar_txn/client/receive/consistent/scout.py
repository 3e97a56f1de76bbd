"""Reads one partition ahead, for what its entries say of transactions, and samples its end while transactions are incomplete.

The physical end of a partition is where a new reader stands that begins at the end of the topic: every broker tells this place
(its mark-delete position) with GET_LAST_MESSAGE_ID. How far the scout is comes from the same field of its own reader.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from pulsar_txn.client.errors import MessagesMissing, PulsarError
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.consistent.half_topic import SampledEnds
from pulsar_txn.client.receive.consistent.planner import Planner, Shown
from pulsar_txn.client.receive.consistent.position import PartitionPlace
from pulsar_txn.client.receive.entry_reader import AsyncEntryReader, Ends, RawEntry
from pulsar_txn.client.receive.message import EARLIEST_ID, LATEST_ID
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.entries import read_header, split_entry
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import EARLIEST, MessageId, Position

logger = logging.getLogger("pulsar_txn.client.consistent_reader")

QUEUE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of entries that wait to be looked at, of each partition."""

AHEAD: Final = 10_000
"""Runs of messages that are looked at in advance while a program does not take what is ready."""

_IDLE_SECONDS: Final = 60.0
_SLOWER: Final = 1.5
_SLOWEST: Final = 10.0


_PENDING: Final = 1000
"""Incomplete messages in chunks whose beginnings are known; the oldest is forgotten for one more."""


class ChunkTrail:
    """Follows the chunks as a consumer puts them together, without their payload."""

    def __init__(self) -> None:
        self._pending: dict[str, tuple[Position, int]] = {}
        self._whole: deque[tuple[Position, Position]] = deque()

    def add(self, position: Position, metadata: pb.MessageMetadata) -> bool:
        """A chunk comes next; whether a message is complete with it."""
        uuid, number = metadata.uuid, metadata.chunk_id
        if number == 0:
            self._pending.pop(uuid, None)
            if len(self._pending) >= _PENDING:
                del self._pending[next(iter(self._pending))]
            self._pending[uuid] = (position, 0)
        known = self._pending.get(uuid)
        if known is None or number > known[1]:
            self._pending.pop(uuid, None)
            return False
        if number < known[1]:
            return False  # the producer sent it twice
        first, _ = self._pending[uuid] = (known[0], number + 1)
        if number + 1 < metadata.num_chunks_from_msg:
            return False
        del self._pending[uuid]
        self._whole.append((position, first))
        return True

    def begin(self, after: Position) -> Position | None:
        """The place where reading has to begin so that messages that end after `after` are whole; None: after it.

        `after` grows.
        """
        while self._whole and self._whole[0][0] <= after:
            self._whole.popleft()
        firsts = [*(first for _, first in self._whole), *(first for first, _ in self._pending.values())]
        return min((first for first in firsts if first <= after), default=None)


class Scout:
    """Shows a planner one partition. `changed()` is called after something was told."""

    def __init__(
        self,
        core: Core,
        topic: str,
        partition: int,
        place: PartitionPlace,
        planner: Planner,
        *,
        interval: float,
        changed: Callable[[], None],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.place = place
        self.trail = ChunkTrail()
        self.wanted = asyncio.Event()
        """Set when something is to be looked at: a transaction that is incomplete, or room for more."""
        self._core = core
        self._planner = planner
        self._interval = interval
        self._changed = changed
        self._index = -1
        self._sampled = 0
        self._ends = SampledEnds()
        self._read = EARLIEST if place.begin else place.after
        first = place.begin or (EARLIEST if place.after == EARLIEST else (place.after[0], place.after[1] + 1))
        start = EARLIEST_ID if first == EARLIEST else MessageId(*first)
        self._reader = AsyncEntryReader(core, topic, partition, start, queue_bytes=QUEUE_BYTES, may_create=True)

    async def start(self) -> None:
        """Attach; raises as `AsyncEntryReader.start`."""
        await self._reader.start()

    def join(self) -> None:
        """Become a partition of the planner."""
        self._index = self._planner.add_partition(self.place.since)

    async def close(self) -> None:
        """Leave the broker; idempotent."""
        await self._reader.close()

    # --- looking ahead ------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Read ahead until it is cancelled. Raises CutTooLarge, MessagesMissing, and what ends the reading."""
        while True:
            while self._planner.ahead >= min(AHEAD, self._planner.limits.ahead) and self._planner.is_ready:
                self.wanted.clear()
                await self.wanted.wait()
            self._planner.check_ahead()
            self._show(await self._reader.take(QUEUE_BYTES, _IDLE_SECONDS))
            self._tell()

    def _show(self, entries: Sequence[RawEntry]) -> None:
        if entries:
            self._planner.show(self._index, self._shown(entries))
            self._read = max(self._read, entries[-1].position)

    def _tell(self) -> None:
        self._planner.mark_complete()
        self._changed()

    def _shown(self, entries: Sequence[RawEntry]) -> Iterator[Shown]:
        for entry in entries:
            try:
                header = read_header(entry.data)
                messages = entry.num_messages
                if header.hints is not None:  # few entries have any
                    metadata = pb.MessageMetadata.FromString(split_entry(entry.data)[0])
                    if metadata.num_chunks_from_msg > 1:
                        messages = int(self.trail.add(entry.position, metadata))
            except (WireError, DecodeError) as error:
                raise MessagesMissing(f"the entry {entry.position} of {self.topic} is damaged: {error}") from error
            if entry.position > self.place.after:
                yield Shown(entry.position, header.txn_id, messages, len(entry.data))

    # --- sampling -----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Sample until it is cancelled, while transactions are incomplete: often while that helps, less often after that."""
        slower = 1.0
        before: Any = None
        while True:
            while not self._planner.incomplete:
                self.wanted.clear()
                await self.wanted.wait()
                slower = 1.0
            try:
                now = await self._sample()
            except PulsarError as error:
                if not error.retriable:
                    raise
                now = before
            slower = 1.0 if now != before else min(slower * _SLOWER, _SLOWEST)
            before = now
            # A reader of many partitions asks no more often than one of ten.
            await asyncio.sleep(self._interval * max(1.0, len(self._planner.lookaheads) / 10) * slower)

    async def _sample(self) -> object:
        """Ask once; what is different when something has moved."""
        planner, number = self._planner, self._planner.begin_sample()
        asked = None
        if self._sampled < planner.newest:
            self._ends.begin()
            asked = await ends_of_new_reader(self._core, self.topic, self.partition)
        ends = await self._reader.ends(self._read)
        # What the broker counts as passed is here by now, and must be known before that is said.
        self._show(await self._reader.take(1 << 62, 0.0) if self._reader.waiting() else ())
        if asked is not None and (counts := self._ends.answered(number, asked.half_messages)) > self._sampled:
            planner.sampled(self._index, counts, asked.passed)
            self._sampled = counts
        planner.passed(self._index, ends.passed)
        self._tell()
        return ends, planner.newest, planner.incomplete


async def ends_of_new_reader(core: Core, topic: str, partition: int) -> Ends:
    """Ends for a reader that begins at the end of the topic: `passed` is after all that was stored when this began.

    Raises as `AsyncEntryReader.start` and `AsyncEntryReader.ends`.
    """
    reader = AsyncEntryReader(core, topic, partition, LATEST_ID, queue_bytes=1, may_create=True)
    try:
        await reader.start()
        return await reader.ends()
    finally:
        await reader.close()
