"""Tasks of the source: each reads its ranges, and hands out record batches that are bounded in rows and bytes.

Long ranges are cut between entries (`minPartitions`), and small ones share a task (`maxPartitions`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.encoded import OpenedEntry, RawEntry, UnreadableEntryError, open_entry, topic_schema
from pulsar_txn.pipeline.spark.connecting import Background, background
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.columns import MessageReader, Rows
from pulsar_txn.pipeline.spark.source.layout import Layout
from pulsar_txn.pipeline.spark.source.ranges import Chunks, Range, RangeReader, first_visible, report_unreadable


class Work(InputPartition):
    """Work of one task: what it reads, one range after the other."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.ranges = tuple(ranges)


def together(ranges: Sequence[Range], most: int | None) -> list[Work]:
    """One task per range, or `most` tasks with about as many entries each."""
    if most is None or len(ranges) <= most:
        return [Work([each]) for each in ranges]
    shares: list[list[Range]] = [[] for _ in range(most)]
    sizes = [0] * most
    for each in sorted(ranges, key=entries_in, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(each)
        sizes[least] += entries_in(each)
    return [Work(share) for share in shares if share]


def entries_in(each: Range) -> int:
    """About how many entries a range has: of its last ledger only, because ids do not count those of others."""
    first = each.start[1] if each.start[0] == each.end[0] else -1
    return max(1, each.end[1] - first)


async def cut(client: AsyncClient, ranges: Sequence[Range], least: int) -> list[Range]:
    """The same ranges in `least` pieces or more, as far as they have entries enough. Use it on the client's loop."""
    total = sum(entries_in(each) for each in ranges)
    pieces: list[Range] = []
    for each in ranges:
        wanted = -(-least * entries_in(each) // total) if len(ranges) < least else 1
        pieces += await _cut_one(client, each, wanted)
    return pieces


async def _cut_one(client: AsyncClient, each: Range, wanted: int) -> list[Range]:
    """Pieces between visible entries, so that each task can see that nothing was lost before its piece."""
    ledger_id, last = each.end
    first = each.start[1] if each.start[0] == ledger_id else -1
    places = [each.start]
    for number in range(1, min(wanted, last - first)):
        found = await first_visible(client, each.topic, (ledger_id, first + (last - first) * number // wanted))
        if found is not None and places[-1] < found < each.end:
            places.append(found)
    places.append(each.end)
    known = [each.next_known] + [None] * len(places)
    return [
        Range(each.topic, *pair, next_known=known[number], ends_visibly=pair[1] != each.end or each.ends_visibly)
        for number, pair in enumerate(itertools.pairwise(places))
    ]


_ROWS: Final = 10_000
_BYTES: Final = 4 * 1024 * 1024


def read_work(options: Options, work: Work, layout: Layout) -> Iterator[Any]:
    """Record batches of all ranges. The client's thread reads on while Spark takes them."""
    local = background()
    client = local.client_of(options)
    for each in work.ranges:
        yield from _RangeTask(local, client, options, each, layout).batches()


class _RangeTask:
    """Range of one task."""

    def __init__(self, local: Background, client: AsyncClient, options: Options, wanted: Range, layout: Layout) -> None:
        self._local = local
        self._client = client
        self._layout = layout
        self._options = options
        self._topic = wanted.topic
        self._reader = reader = RangeReader(client, options, wanted)
        self._chunks = Chunks(lambda uuid, first: local.run(reader.earlier_chunks(uuid, first)))

    def batches(self) -> Iterator[Any]:
        """All rows of the range."""
        rows = self._rows()
        try:
            while not self._reader.is_done:
                for entry in self._local.run(self._reader.next()):
                    self._add(rows, entry)
                    if rows.count >= _ROWS or rows.size >= _BYTES:
                        yield rows.batch()
            if rows.count:
                yield rows.batch()
            rows.finish()
        finally:
            self._local.start(self._reader.close())  # the broker's answer is not waited for

    def _rows(self) -> Rows:
        reader, typed = None, self._layout.typed
        if typed is not None:
            reader = MessageReader(
                self._topic,
                typed,
                lambda version: self._local.run(topic_schema(self._client, self._topic, version)),
            )
        return Rows(self._topic, partition_number(self._topic), self._layout, reader)

    def _add(self, rows: Rows, entry: RawEntry) -> None:
        try:
            opened: OpenedEntry | None = open_entry(entry.data)
            if opened is not None and opened.metadata.num_chunks_from_msg > 1:
                opened = self._chunks.whole(opened)
            if opened is not None:
                rows.add(entry.position, opened)
        except UnreadableEntryError as error:
            report_unreadable(self._options, f"{self._topic}: the entry {entry.position} cannot be read: {error}")


def partition_number(topic: str) -> int:
    """The number at the end of a partition's name; -1 for a topic without partitions."""
    _, found, number = topic.rpartition("-partition-")
    return int(number) if found and number.isdecimal() else -1
