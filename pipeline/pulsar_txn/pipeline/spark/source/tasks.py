"""Tasks of the source: each reads its ranges, and hands out record batches that are bounded in rows and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.encoded import OpenedEntry, RawEntry, UnreadableEntryError, open_entry, topic_schema
from pulsar_txn.pipeline.spark.background import Background, background
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.chunks import Chunks
from pulsar_txn.pipeline.spark.source.columns import Rows
from pulsar_txn.pipeline.spark.source.layout import Layout
from pulsar_txn.pipeline.spark.source.loss import report_unreadable
from pulsar_txn.pipeline.spark.source.messages import MessageReader
from pulsar_txn.pipeline.spark.source.planning import Work
from pulsar_txn.pipeline.spark.source.ranges import Range, RangeReader

_ROWS: Final = 10_000
_BYTES: Final = 4 * 1024 * 1024


def read_work(options: Options, work: Work, layout: Layout) -> Iterator[Any]:
    """Record batches of all ranges. The client's thread reads on while Spark takes them."""
    local = background()
    client = local.client_of(options)
    for each in work.ranges:
        yield from _RangeTask(local, client, options, each, layout).batches()


class _RangeTask:
    """One range of one task."""

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
