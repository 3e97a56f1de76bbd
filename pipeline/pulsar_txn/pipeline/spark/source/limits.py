"""Limits of a micro-batch, and the entries that they admit: entries are counted by their headers, a little ahead of the tasks.

`Heads` knows the end of each topic partition, and does not ask the broker when nothing is new.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Collection, Mapping
from typing import Final

import attrs

from pulsar_txn.client import LATEST_ID, AsyncClient, PulsarError, TopicNotFound
from pulsar_txn.client.encoded import AsyncEntryReader, RawEntry, open_entry_reader
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Place, Places
from pulsar_txn.pipeline.spark.source.ranges import reader_at

_QUEUE_BYTES: Final = 1024 * 1024
_SETTLE_SECONDS: Final = 5.0
_REST_SECONDS: Final = 1.0
"""Time after an end was seen before the heads open readers there, unless the query has nothing else to do."""

_BRIEF_SECONDS: Final = 5.0
"""In such a time nothing comes, is acknowledged and is deleted: topics move between brokers, and a head goes on."""


class Head:
    """A reader of one partition. Seated at an end that was seen, it is sent the first message that comes after it."""

    def __init__(self, reader: AsyncEntryReader) -> None:
        self.reader = reader
        self.seat: Place | None = None
        self.saw_seat = False
        """True if the reader's entry was still there when it was opened, so that nothing after it was gone."""
        self._after: Place | None = None

    @property
    def after(self) -> Place | None:
        """The first visible entry after the seat, once one has come."""
        if self._after is None and (waiting := self.reader.waiting()):
            self._after = waiting[0].position
        return self._after

    async def move(self, client: AsyncClient, topic: str, seat: Place) -> None:
        """Sit down after the entry `seat`."""
        reader = await reader_at(client, topic, seat, queue_bytes=_QUEUE_BYTES, most=2)
        old, self.reader, self.seat, self.saw_seat, self._after = self.reader, reader, seat, False, None
        await old.close()
        if seat != NOTHING:  # then it comes first, and is not new
            first = await reader.take(1, _SETTLE_SECONDS)
            self.saw_seat = bool(first) and first[0].position == seat
            if first and first[0].position > seat:
                self._after = first[0].position


class Heads:
    """The heads of all partitions of a source. Use it on the client's loop."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._heads: dict[str, Head] = {}
        self._gone: dict[str, Place] = {}
        """Partitions that were deleted while their heads sat at their ends, and where: nothing of them is unread."""
        self._moving: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    async def ends(self, wanted: Mapping[str, bool]) -> tuple[Places, list[str]]:
        """The last visible message by partition (NOTHING for none), and those that do not exist.

        `wanted` says of each partition whether asking may create it.
        """
        await self._stop_moving()
        for topic in set(self._heads) - set(wanted):
            await self._left(topic)
        found = await asyncio.gather(*(self._end(topic, may_create=wanted[topic]) for topic in wanted))
        ends = {topic: place for topic, place in zip(wanted, found, strict=True) if place is not None}
        return ends, [topic for topic in wanted if topic not in ends]

    async def _end(self, topic: str, *, may_create: bool) -> Place | None:
        head = self._heads.get(topic)
        try:
            if head is None:
                reader = await open_entry_reader(
                    self._client, topic, LATEST_ID, queue_bytes=_QUEUE_BYTES, most=1, may_create=may_create
                )
                head = self._heads[topic] = Head(reader)
            elif not head.reader.is_connected and head.reader.trouble is not None:
                raise head.reader.trouble
            last = await head.reader.last_message_id()
        except TopicNotFound:
            if head is not None:
                await self._left(topic)
            return None
        self._gone.pop(topic, None)
        return last.position if last.entry_id >= 0 else NOTHING

    async def _left(self, topic: str) -> None:
        """A partition is not there any more."""
        head = self._heads.pop(topic)
        if head.seat is not None and head.after is None and (head.saw_seat or head.seat == NOTHING):
            self._gone[topic] = head.seat
        await head.reader.close()

    def was_read_whole(self, topic: str, place: Place) -> bool:
        """True if a partition that was deleted had nothing after `place`: its head sat there, and nothing has come."""
        return self._gone.get(topic) == place

    def sit(self, ends: Places) -> None:
        """Have every head wait for what comes after `ends`, without waiting for that here."""
        if self._moving is None:
            self._hurry = asyncio.Event()
            self._moving = asyncio.get_running_loop().create_task(self._move(ends))

    async def _move(self, ends: Places) -> None:
        with contextlib.suppress(TimeoutError):  # a query that has much to do asks again before
            async with asyncio.timeout(_REST_SECONDS):
                await self._hurry.wait()
        self._hurry.set()
        late = [(topic, head) for topic, head in self._heads.items() if topic in ends and head.seat != ends[topic]]
        moves = (head.move(self._client, topic, ends[topic]) for topic, head in late)
        for result in await asyncio.gather(*moves, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, PulsarError):
                raise result  # a broker that is away is noticed by whoever asks for ends

    async def _moved(self) -> None:
        """Wait until the heads sit where they were last told."""
        moving, self._moving = self._moving, None
        if moving is not None:
            self._hurry.set()
            await moving

    async def _stop_moving(self) -> None:
        """No head needs to sit down any more; one that is doing so may finish."""
        if self._moving is not None and not self._hurry.is_set():
            self._moving.cancel()
            await asyncio.wait([self._moving])
            self._moving = None
        await self._moved()

    async def is_quiet(self, ends: Places, seconds: float) -> bool:
        """True if all heads sit at `ends` and nothing has come after them, also not within so many seconds.

        Heads that have not sat down after some seconds, because a broker is away, are not quiet.
        """
        if (moving := self._moving) is not None:
            self._hurry.set()
            await asyncio.wait([moving], timeout=_SETTLE_SECONDS)
            if not moving.done():
                return False
        await self._moved()
        heads = [self._heads.get(topic) for topic in ends]
        if any(head is None or head.seat != ends[topic] for topic, head in zip(ends, heads, strict=True)):
            return False
        seated = [head for head in heads if head is not None]
        if not seated or any(head.after is not None or not head.reader.is_connected for head in seated):
            return not seated
        waits = [asyncio.ensure_future(head.reader.wait(seconds)) for head in seated]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        return all(head.after is None for head in seated)

    def first_after(self, topic: str, place: Place) -> Place | None:
        """The first visible entry after `place`, if that is known: it says what a topic that was trimmed since has lost."""
        head = self._heads.get(topic)
        if head is None or head.seat != place or head.reader.unsure_seconds > _BRIEF_SECONDS:
            return None
        return head.after

    def has_waited(self, topic: str, place: Place) -> bool:
        """True if a head has sat at `place` since the entry there was seen, and nothing has come after it."""
        head = self._heads.get(topic)
        return head is not None and head.seat == place and head.saw_seat and head.after is None

    def topics(self) -> Collection[str]:
        """The partitions that were found."""
        return self._heads.keys()

    async def close(self) -> None:
        """Close all readers."""
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.wait([self._moving])
            self._moving = None
        heads, self._heads = self._heads, {}
        for head in heads.values():
            await head.reader.close()


_WALK_QUEUE_BYTES: Final = 16 * 1024 * 1024
_TAKE_BYTES: Final = 256 * 1024
_SLICE_SECONDS: Final = 1.0


@attrs.frozen
class Limit:
    """Limit of what a micro-batch takes; None is no bound. Entries are not cut, and each partition has one at least."""

    rows: int | None = None
    size: int | None = None

    def shared(self, among: int) -> Limit:
        """An equal part for one of `among` partitions."""
        return Limit(
            None if self.rows is None else max(1, self.rows // among), None if self.size is None else max(1, self.size // among)
        )

    def less(self, rows: int, size: int) -> Limit:
        """The limit that is left after so many rows and bytes."""
        return Limit(
            None if self.rows is None else max(0, self.rows - rows), None if self.size is None else max(0, self.size - size)
        )

    def is_reached(self, rows: int, size: int) -> bool:
        """True if so much is enough."""
        return (self.rows is not None and rows >= self.rows) or (self.size is not None and size >= self.size)


class Limits:
    """The walks of one query over its partitions; each is kept for the next micro-batch. Use it on the client's loop."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._walks: dict[str, Walk] = {}

    async def reach(self, start: Mapping[str, Place], end: Mapping[str, Place], limit: Limit) -> Places:
        """Positions that `limit` reaches, shared over the partitions."""
        reached = dict(end)
        behind = sorted(topic for topic in end if start.get(topic, NOTHING) < end[topic])
        walks = await asyncio.gather(*(self._walk(topic, start.get(topic, NOTHING)) for topic in behind))
        for number, (topic, walk) in enumerate(zip(behind, walks, strict=True)):
            reached[topic], rows, size = await walk.go(end[topic], limit.shared(len(behind) - number))
            limit = limit.less(rows, size)
        return reached

    async def _walk(self, topic: str, start: Place) -> Walk:
        walk = self._walks.get(topic)
        if walk is None or walk.place != start:
            if walk is not None:
                await walk.reader.close()
            walk = self._walks[topic] = Walk(await reader_at(self._client, topic, start, queue_bytes=_WALK_QUEUE_BYTES), start)
        return walk

    async def close(self) -> None:
        """Close the readers."""
        walks, self._walks = self._walks, {}
        for walk in walks.values():
            await walk.reader.close()


class Walk:
    """A reader that has counted up to `place`. It reads on while the tasks work, as far as its queue goes."""

    def __init__(self, reader: AsyncEntryReader, place: Place) -> None:
        self.reader = reader
        self.place = place
        self._taken: deque[RawEntry] = deque()  # not counted yet

    async def go(self, end: Place, limit: Limit) -> tuple[Place, int, int]:
        """Count on, to `limit` or up to `end`: the place, and how many messages and bytes that were."""
        rows = size = 0
        while self.place < end and not limit.is_reached(rows, size):
            if not self._taken and not await self._take():
                self.place = end  # the rest is gone; whoever reads the range says so
                break
            entry = self._taken.popleft()
            position = (entry.ledger_id, entry.entry_id)
            if position > self.place:
                rows += entry.num_messages
                size += len(entry.data)
                self.place = position
        return min(self.place, end), rows, size

    async def _take(self) -> bool:
        """Have some more to count, many entries at once; False at the end."""
        while not self._taken:
            self._taken.extend(await self.reader.take(_TAKE_BYTES, _SLICE_SECONDS))
            if not self._taken and (await self.reader.last_message_id()).position <= self.place:
                return False
        return True
