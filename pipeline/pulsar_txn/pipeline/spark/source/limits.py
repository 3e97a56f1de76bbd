"""Limits of a micro-batch, and how far they reach: entries are counted by their headers, a little ahead of the tasks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final

import attrs

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.encoded import AsyncEntryReader, RawEntry
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Place, Places
from pulsar_txn.pipeline.spark.source.ranges import reader_at

_QUEUE_BYTES: Final = 16 * 1024 * 1024
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
        """Return what is left of it."""
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
        """Return how far `limit` reaches, shared over the partitions."""
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
            walk = self._walks[topic] = Walk(await reader_at(self._client, topic, start, queue_bytes=_QUEUE_BYTES), start)
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
