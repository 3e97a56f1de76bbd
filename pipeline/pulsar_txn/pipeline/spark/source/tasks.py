"""What a task does: it reads its ranges, and hands out record batches that are bounded in rows and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.encoded import OpenedEntry, RawEntry, UnreadableEntryError, open_entry
from pulsar_txn.pipeline.spark.background import Background, background
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.chunks import Chunks
from pulsar_txn.pipeline.spark.source.columns import Rows
from pulsar_txn.pipeline.spark.source.loss import report_loss
from pulsar_txn.pipeline.spark.source.planning import Work
from pulsar_txn.pipeline.spark.source.ranges import Range, RangeReader

_ROWS: Final = 10_000
_BYTES: Final = 4 * 1024 * 1024


def read_work(options: Options, work: Work) -> Iterator[Any]:
    """Record batches of all ranges. The client's thread reads on while Spark takes them."""
    local = background()
    client = local.run(local.client(options))
    for each in work.ranges:
        yield from _RangeTask(local, client, options, each).batches()


class _RangeTask:
    """One range of one task."""

    def __init__(self, local: Background, client: AsyncClient, options: Options, wanted: Range) -> None:
        self._local = local
        self._options = options
        self._topic = wanted.topic
        self._reader = reader = RangeReader(client, options, wanted)
        self._chunks = Chunks(lambda uuid, first: local.run(reader.earlier_chunks(uuid, first)))

    def batches(self) -> Iterator[Any]:
        """All rows of the range."""
        rows = Rows(self._topic, partition_number(self._topic))
        try:
            while entries := self._local.run(self._reader.next()):
                for entry in entries:
                    self._add(rows, entry)
                    if rows.count >= _ROWS or rows.size >= _BYTES:
                        yield rows.batch()
            if rows.count:
                yield rows.batch()
        finally:
            self._local.run(self._reader.close())

    def _add(self, rows: Rows, entry: RawEntry) -> None:
        try:
            opened: OpenedEntry | None = open_entry(entry.data)
            if opened is not None and opened.metadata.num_chunks_from_msg > 1:
                opened = self._chunks.whole(opened)
            if opened is not None:
                rows.add(entry.position, opened)
        except UnreadableEntryError as error:
            report_loss(self._options, f"{self._topic}: the entry {entry.position} cannot be read: {error}")


def partition_number(topic: str) -> int:
    """The number at the end of a partition's name; -1 for a topic without partitions."""
    _, found, number = topic.rpartition("-partition-")
    return int(number) if found and number.isdecimal() else -1
