"""Readers of the source: batch reads and streams of committed messages.

`RefusedStreamReader` is a stream whose options were refused, and raises at Spark's first call. If `streamReader` itself
raised, the clean-up of Spark's worker would fail as well (it closes the reader that it did not get), and the user would read
`UnboundLocalError` as the last line of the error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pulsar_txn.pipeline.spark.connecting import background
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.layout import Layout
from pulsar_txn.pipeline.spark.source.limits import Limit
from pulsar_txn.pipeline.spark.source.offsets import (
    NOTHING,
    Place,
    Places,
    at_least,
    at_most,
    from_offset,
    parse_user_offset,
    places_at,
    ranges,
    to_offset,
)
from pulsar_txn.pipeline.spark.source.ranges import Patience, Range, report_gone, report_loss
from pulsar_txn.pipeline.spark.source.tasks import Work, cut, read_work, together
from pulsar_txn.pipeline.spark.source.topics import Topics, behind
from pulsar_txn.pipeline.spark.steps import OnStep, reached

logger = logging.getLogger(__name__)

T = TypeVar("T")

_QUIET_SECONDS: Final = 0.1
"""Time that an idle query waits for something new before it answers Spark, which asks every 10 ms."""

_ASK_SECONDS: Final = 1.0
"""Interval at which an idle query asks the broker although nothing has come."""

_FIRST_LOOK_SECONDS: Final = 2.0
"""Time that the first micro-batch waits for the admin API's answer about open transactions."""

_ASKING: Final = "asking for the ends of topics"


class _Reading:
    """Part that batch and stream share: planning and reading ranges. Travels to the tasks, so it holds options only."""

    _options: Options
    _layout: Layout

    def _plan(
        self, topics: Topics, start: Mapping[str, Place], end: Mapping[str, Place], *, ends_visibly: bool = True
    ) -> list[Work]:
        found = [
            Range(topic, first, last, topics.heads.first_after(topic, first), ends_visibly)
            for topic, first, last in ranges(start, end)
        ]
        least = self._options.min_partitions
        if least is not None and found:
            patience = Patience(self._options.fail_after_ms)
            found = background().run(patience.insist(lambda: cut(topics.client, found, least), "cutting ranges"))
        return together(found, self._options.max_partitions)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches of some ranges, in the order of their topics."""
        assert isinstance(partition, Work)  # noqa: S101  # we planned it
        return read_work(self._options, partition, self._layout)


def start_places(text: str, ends: Mapping[str, Place]) -> Places:
    """`startingOffsets`, for the partitions that there are now. OptionError for topics that are not read."""
    if text in ("earliest", "latest"):
        return dict(ends) if text == "latest" else dict.fromkeys(ends, NOTHING)
    given = parse_user_offset(text)
    if unknown := sorted(set(given) - set(ends)):
        raise OptionError(f"startingOffsets names {', '.join(unknown)}; this query reads {', '.join(sorted(ends))}")
    return {topic: given.get(topic, NOTHING) for topic in ends}


def check_missing(options: Options, missing: Sequence[str]) -> None:
    """A new query needs its topics. OptionError, unless the option `waitForTopic` is true."""
    if missing and not options.wait_for_topic:
        raise OptionError(
            f"{', '.join(missing)} does not exist, and reading creates no topics: check the name, create it first, or set "
            "waitForTopic=true to read it once it exists"
        )


class PulsarBatchReader(_Reading, DataSourceReader):
    """`spark.read.format("pulsar")`: a snapshot, taken when the query is planned."""

    def __init__(self, options: Options, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def partitions(self) -> Sequence[Work]:
        """The ranges of the topic partitions that have something to read."""
        local = background()
        topics = Topics(local.run(local.client(self._options)), self._options)
        try:
            ends = local.run(Patience(self._options.fail_after_ms).insist(topics.ends, _ASKING))
            check_missing(self._options, topics.missing)
            start = start_places(self._options.starting_offsets or "earliest", ends)
            wanted, until = self._ends(ends), self._options.ending_timestamp
            if self._options.starting_timestamp is not None:
                start |= local.run(places_at(topics.client, self._options.starting_timestamp, ends))
            if until is not None:
                wanted = wanted | local.run(places_at(topics.client, until, ends))
            # Spark needs one task at least: an empty one will do.
            return self._plan(topics, start, wanted, ends_visibly=until is None) or [Work([])]
        finally:
            local.run(topics.close())

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

    def __init__(self, options: Options, layout: Layout, on_step: OnStep = None) -> None:
        self._options = options
        self._layout = layout
        self._on_step = on_step
        self._topics: Topics | None = None
        self._patience = Patience(options.fail_after_ms)
        self._asked_at = 0.0
        self._frozen: Places | None = None
        self._newest: Places = {}
        self._read_after: Places = {}
        """Position of the query after the micro-batch that begins now."""
        self._unstored: Places | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_layout": self._layout}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Offset at which a new query starts. Spark asks again until a micro-batch is committed, and does not store it."""
        text = self._options.starting_offsets or "latest"
        ends = self._ends()
        check_missing(self._options, self._open().missing)
        start = start_places(text, ends)
        times = self._options.starting_timestamp
        if times is not None:
            start |= self._insist(lambda: places_at(self._open().client, times, ends), "looking for the start by time")
        self._unstored = start if text == "latest" or times is not None else None
        if self._options.subscription_name:
            self._insist(lambda: self._open().subscribe(start), "subscribing")
        return to_offset(start)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Offset at which the next micro-batch ends."""
        end = self._next_end(start, limit)
        self._read_after = end
        return to_offset(end)

    def _next_end(self, start: dict[str, Any], limit: ReadLimit) -> Places:
        first = from_offset(start)
        unstored, self._unstored = self._unstored, None
        if unstored is not None and first == unstored:
            # Spark stores ends only: an empty first micro-batch makes the start durable. Otherwise a restart before its
            # end would start at a later "latest", and what came in between would be lost.
            return first
        bound = self._bound(limit)
        ends = dict(self._newest) if bound is not None and self._knows_more(first) else self._ends_if_new(first)
        if ends is None:
            return first
        end = self._reachable(first, ends)
        if bound is not None and end != first:
            end = self._insist(lambda: self._open().limits.reach(first, end, bound), "counting messages")
        return end

    def _bound(self, limit: ReadLimit) -> Limit | None:
        """The limit that Spark hands over, which is one of ours, and our other one; none when it asks for everything."""
        if isinstance(limit, ReadMaxRows):
            return Limit(rows=limit.max_rows, size=self._options.max_bytes_per_trigger)
        return Limit(size=limit.max_bytes) if isinstance(limit, ReadMaxBytes) else None

    def _knows_more(self, start: Places) -> bool:
        """True if the ends that were seen a moment ago are not reached yet: a limited micro-batch needs no newer ones."""
        newest = self._newest
        if time.monotonic() - self._asked_at >= _ASK_SECONDS or newest.keys() != start.keys():
            return False
        return newest != start and all(place <= newest[topic] for topic, place in start.items())

    def _ends_if_new(self, start: Places) -> Places | None:
        """The ends of all partitions; None while the cluster does not answer, and Spark may go on and ask again.

        While nothing is new it waits a little, and seldom asks the broker.
        """
        topics = self._open()
        if self._frozen is not None or not self._newest:
            return self._ends()  # a run that must not end early
        if self._newest == start:
            quiet = background().run(topics.heads.is_quiet(start, _QUIET_SECONDS))
            if quiet and time.monotonic() - self._asked_at < _ASK_SECONDS:
                return dict(start)
        found = background().run(self._patience.attempt(topics.watched_ends, _ASKING))
        return None if found is None else self._seen(found)

    def _reachable(self, start: Places, ends: Places) -> Places:
        for topic in sorted(start):
            if topic not in ends:
                self._report_gone(topic, start[topic])
            elif NOTHING < ends[topic] < start[topic]:
                report_loss(self._options, f"{topic} ends at {ends[topic]}, before {start[topic]}: it was created again")
                start[topic] = NOTHING
            elif ends[topic] == NOTHING and self._was_emptied(topic, start[topic]):
                report_loss(
                    self._options, f"{topic} is empty: {start[topic]}, which was read last, is gone, and more may be missing"
                )
                start[topic] = NOTHING
        known = {topic: place for topic, place in start.items() if topic in ends}
        if self._frozen is not None:
            ends = at_most(ends, self._frozen)
        return at_least(ends, known)

    def _report_gone(self, topic: str, read: Place) -> None:
        """A topic was deleted. One of a pattern that was read whole is no loss."""
        whole = self._open().heads.was_read_whole(topic, read)
        if whole and self._options.topics_pattern is not None:
            logger.info("%s was deleted; all of it was read, so the query goes on without it", topic)
            return
        what = "all of it was read" if whole else f"it was read up to {list(read)}, and what came after that is not known"
        report_gone(self._options, f"{topic} was deleted; {what}")

    def _was_emptied(self, topic: str, start: Place) -> bool:
        """True if a topic without messages may have lost some after `start`.

        A subscription keeps what comes after it. Without one, nothing was lost when the head has sat there since, or when
        the run has read all that it is to read.
        """
        if start == NOTHING or self._options.subscription_name:
            return False
        if self._frozen is not None and NOTHING < self._frozen.get(topic, NOTHING) <= start:
            return False
        return not self._open().heads.has_waited(topic, start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """`maxMessagesPerTrigger` or `maxBytesPerTrigger`, else everything."""
        most, size = self._options.max_messages_per_trigger, self._options.max_bytes_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """The run goes up to what is committed now; data of transactions that are open come with the next run."""
        self._frozen = self._ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        """The newest committed end that was seen, and what there is to say about the way to it (`source_progress`)."""
        if not self._newest:
            return None
        report = to_offset(self._newest)
        waited = self._patience.waited
        if waited:
            report["unreachable_for_seconds"] = int(waited)
        hidden = self._open().hidden
        if hidden.is_told:
            background().run(hidden.watch(self._newest, _FIRST_LOOK_SECONDS))
        if hidden.found:
            report |= behind(hidden.found, self._read_after, self._newest)
            report["seen_ms_ago"] = int(hidden.age_seconds * 1000)
        return report

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Work]:
        """The ranges of the topic partitions that have something to read."""
        return self._plan(self._open(), from_offset(start), from_offset(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has stored that everything up to `end` is done: the subscription may let go of it."""
        reached(self._on_step, "source.commit")
        if self._options.subscription_name:
            background().run(self._acknowledge(self._open(), from_offset(end)))

    async def _acknowledge(self, topics: Topics, end: Places) -> None:
        topics.acknowledge(end)
        if self._frozen is not None:
            await topics.acknowledged()  # this run ends soon, and nobody waits for its next micro-batch

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
        return self._seen(self._insist(self._open().watched_ends, _ASKING))

    def _seen(self, ends: Places) -> Places:
        self._newest = ends
        self._asked_at = time.monotonic()
        return dict(ends)

    def _insist(self, attempt: Callable[[], Awaitable[T]], what: str) -> T:
        return background().run(self._patience.insist(attempt, what))


class RefusedStreamReader(PulsarStreamReader):
    """Raises its error at every call but `stop`."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def __getstate__(self) -> dict[str, Any]:
        return {"_error": self._error}

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        del given, named
        raise self._error

    initialOffset = latestOffset = reportLatestOffset = partitions = read = commit = _refuse  # noqa: N815  # Spark's names
    getDefaultReadLimit = prepareForTriggerAvailableNow = _refuse  # noqa: N815  # Spark's names

    def stop(self) -> None:
        """Nothing was opened."""
