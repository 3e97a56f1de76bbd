"""The source: batch reads and streams of what is committed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.columns import record_batch
from pulsar_txn.pipeline.spark.source.offsets import (
    NOTHING,
    Place,
    Places,
    at_least,
    at_most,
    from_offset,
    parse_user_offset,
    ranges,
    to_offset,
)
from pulsar_txn.pipeline.spark.source.topics import RangeReader, Topics, report_loss
from pulsar_txn.pipeline.spark.steps import OnStep, reached

logger = logging.getLogger(__name__)

_ROWS_PER_BATCH: Final = 5000


class TopicRange(InputPartition):
    """What one task reads: a topic partition from after one entry up to and with another."""

    def __init__(self, topic: str, start: Place, end: Place) -> None:
        self.topic = topic
        self.start = start
        self.end = end


class _Reading:
    """What batch and stream share: planning and reading ranges. Travels to the tasks, so it holds options only."""

    _options: Options

    def _plan(self, start: Mapping[str, Place], end: Mapping[str, Place]) -> list[TopicRange]:
        return [TopicRange(topic, first, last) for topic, first, last in ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches of one range, in the order of the topic."""
        assert isinstance(partition, TopicRange)  # noqa: S101  # we planned it
        local = background()
        client = local.run(local.client(self._options))
        reader = RangeReader(client, self._options, partition.topic, partition.start, partition.end)
        try:
            while messages := local.run(reader.next(_ROWS_PER_BATCH)):
                yield record_batch(messages)
        finally:
            local.run(reader.close())


def start_places(text: str, ends: Mapping[str, Place]) -> Places:
    """`startingOffsets`, for the partitions that there are now. OptionError for topics that are not read."""
    if text in ("earliest", "latest"):
        return dict(ends) if text == "latest" else dict.fromkeys(ends, NOTHING)
    given = parse_user_offset(text)
    if unknown := sorted(set(given) - set(ends)):
        raise OptionError(f"startingOffsets names {', '.join(unknown)}; this query reads {', '.join(sorted(ends))}")
    return {topic: given.get(topic, NOTHING) for topic in ends}


class PulsarBatchReader(_Reading, DataSourceReader):
    """`spark.read.format("pulsar")`: a snapshot, taken when the query is planned."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[TopicRange]:
        """One range per topic partition that has something to read."""
        local = background()
        topics = Topics(local.run(local.client(self._options)), self._options)
        try:
            ends = local.run(topics.ends())
        finally:
            local.run(topics.close())
        start = start_places(self._options.starting_offsets or "earliest", ends)
        # Spark needs one task at least: an empty range is one.
        return self._plan(start, self._ends(ends)) or [
            TopicRange(topic, place, place) for topic, place in list(ends.items())[:1]
        ]

    def _ends(self, ends: Places) -> Places:
        if self._options.ending_offsets == "latest":
            return ends
        wanted = parse_user_offset(self._options.ending_offsets)
        for topic, place in wanted.items():
            if place > ends.get(topic, NOTHING):
                raise OptionError(
                    f"endingOffsets asks for {topic} up to {list(place)}; committed is {list(ends.get(topic, NOTHING))}: "
                    "is a transaction still open there?"
                )
        return wanted


class PulsarStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("pulsar")`. On the driver it keeps readers; the copies in the tasks have only `read`."""

    def __init__(self, options: Options, on_step: OnStep = None) -> None:
        self._options = options
        self._on_step = on_step
        self._topics: Topics | None = None
        self._frozen: Places | None = None
        self._newest: Places = {}
        self._unstored: Places | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Where a new query starts. Spark asks again until a micro-batch is committed, and does not store it."""
        text = self._options.starting_offsets or "latest"
        start = start_places(text, self._ends())
        self._unstored = start if text == "latest" else None
        if self._options.subscription_name:
            background().run(self._open().subscribe(start))
        return to_offset(start)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """How far the next micro-batch goes."""
        first = from_offset(start)
        unstored, self._unstored = self._unstored, None
        if unstored is not None and first == unstored:
            # Spark stores ends only: an empty first micro-batch makes the start durable. Otherwise a restart before its
            # end would start at a later "latest", and what came in between would be lost.
            return to_offset(first)
        end = self._reachable(first)
        if isinstance(limit, ReadMaxRows):
            end = background().run(self._open().limited(first, end, limit.max_rows))
        return to_offset(end)

    def _reachable(self, start: Places) -> Places:
        ends = self._ends()
        for topic in sorted(start):
            if topic not in ends:
                report_loss(self._options, f"{topic} is gone")
            elif NOTHING < ends[topic] < start[topic]:
                report_loss(self._options, f"{topic} ends at {ends[topic]}, before {start[topic]}: it was created again")
                start[topic] = NOTHING
        known = {topic: place for topic, place in start.items() if topic in ends}
        if self._frozen is not None:
            ends = at_most(ends, self._frozen)
        return at_least(ends, known)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """`maxMessagesPerTrigger`, else everything."""
        most = self._options.max_messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """The run goes up to what is committed now; data of transactions that are open come with the next run."""
        self._frozen = self._ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """The newest committed end that was seen."""
        return to_offset(self._newest) if self._newest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[TopicRange]:
        """One range per topic partition that has something to read."""
        return self._plan(from_offset(start), from_offset(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has stored that everything up to `end` is done: the subscription may let go of it."""
        reached(self._on_step, "source.commit")
        if self._options.subscription_name:
            background().run(self._open().acknowledge(from_offset(end)))

    def stop(self) -> None:
        """Close the readers. Spark does not always call it; nothing rests on it."""
        if self._topics is not None:
            background().run(self._topics.close())
            self._topics = None

    def _open(self) -> Topics:
        if self._topics is None:
            local = background()
            self._topics = Topics(local.run(local.client(self._options)), self._options)
        return self._topics

    def _ends(self) -> Places:
        self._newest = background().run(self._open().ends())
        return dict(self._newest)
