"""Publication of micro-batches exactly once: the protocols alone, without Pulsar, Spark or a clock.

`SinkCommitter.commit` is a generator: it yields requests (`control`), and is sent their replies or thrown their errors.
`drive` in `store` carries them out with a client; tests carry them out in a simulated store and stop at any of them.

    take over   Fence → epoch; Barrier written; read until the barrier is visible, ending every transaction that an
                earlier run had announced and not finished (settle)
    decide      by the last marker m:  of another query: an error | m = b and the same work: published already |
                m = b-1, or none and b = 0: go on | else an error
    publish     NewTxn, Intent, rows, marker in one transaction; rows counted; END_TXN. Rows come with the tasks' messages,
                or are copied from the staging topic, where tasks put them without a transaction
    doubt       whatever END_TXN answered other than "done": a new barrier, settle, and the last marker tells

Rows and marker are decided together, and a marker can only be written by the newest epoch. So of two runs the older one
either has written its marker before the fence, and the newer one waits for its decision after the barrier, or it can never
commit.

`GroupedCommitter` is the protocol `grouped`: tasks send straight to the targets, each attempt in a transaction of its own.
Only the driver knows which attempts count: those whose messages Spark delivers to the commit. One record of the coordinator
then commits exactly their transactions and the one of the marker, and aborts what else the sink has open: attempts that
were truncated, failed, or lost against a twin. So no byte of the rows goes through the driver.

    take over   as above; `Fence` also makes an end of what older epochs of the sink's transactional id have open
    publish     NewTxn, marker; EndGroup with the transactions that were delivered
    doubt       as above. Delivered transactions cannot be filled again, so a group that was refused (one of them
                timed out, or a newer run has aborted it) ends the query, and the replay sends the rows again
    skip        a replay of what is published already: `Sweep` aborts what its tasks have sent

Spark makes a new writer for each commit, and hands the commits of all queries of a session to a pool of processes, in any
order. `KeptSinks` keeps the sinks of this process between commits; one that is kept is out of date when the commit before
was done elsewhere.
"""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import attrs

from pulsar_txn.client.inside import parse_topic
from pulsar_txn.pipeline.spark.errors import (
    AckConflict,
    CheckpointOlderThanSink,
    CommitUndecided,
    ForeignCheckpoint,
    GroupRefused,
    RowsMissing,
    SinkFenced,
    SinkStateLost,
    SkipRefused,
    StoreFailed,
)
from pulsar_txn.pipeline.spark.sink.control import (
    Acknowledge,
    Barrier,
    EndGroup,
    EndReply,
    EndTxn,
    Fence,
    Forward,
    Intent,
    Marker,
    NewTxn,
    OpenStaging,
    Pause,
    Place,
    Publish,
    ReadRecords,
    ReadStaging,
    Receipts,
    Record,
    ReleaseStaging,
    Request,
    Sweep,
    WriteRecord,
)

Steps: TypeAlias = Generator[Request, Any, Any]

ANY_TOPIC: Final = "*"
"""The target of rows that name their topics themselves."""

ATTEMPTS: Final = 3
"""Transactions that one `commit` begins at most, when sends fail or a transaction is ended by somebody else."""


class PublishResult(enum.Enum):
    """Result of publishing a micro-batch."""

    PUBLISHED = "published"
    SKIPPED = "skipped"
    """An earlier run, or an earlier call, had published it."""


@attrs.frozen
class Work:
    """A micro-batch as its tasks have delivered it, and nothing of attempts that Spark has dropped.

    `rows` counts by topic what both carriers hold. `places` are the entries that wait on the staging topic. `source_ends` go
    into the marker, for people who have to continue elsewhere.
    """

    batch_id: int
    rows: Mapping[str, int]
    places: Sequence[Place] = ()
    source_ends: Sequence[str] = ()
    acks: Mapping[str, Place] = attrs.field(factory=dict)
    """Up to where the subscription of `ackSubscription` is acknowledged, by topic partition."""
    target: str = ""
    """As in a marker."""
    offsets: str = ""
    """As in a marker."""


class SinkCommitter:
    """One sink, as seen by one run. Keep it for the following micro-batches: then no fence and no reading is needed.

    `query_id` is the id in the checkpoint of the query that runs. `adopt` (option `adoptCheckpoint`) accepts a last marker
    that does not fit the micro-batch, also that of another query: the micro-batch is published after it, and from then on
    the sink is this query's. `inherited` is the last marker of the sink under a former name, while it has none of its own.
    """

    def __init__(
        self,
        sink_id: str,
        query_id: str = "",
        *,
        adopt: bool = False,
        inherited: Marker | None = None,
    ) -> None:
        self.sink_id = sink_id
        self.query_id = query_id
        self._adopt = adopt
        self._inherited = inherited
        self._epoch: int | None = None
        self._my_epochs: set[int] = set()
        self._replaces = False
        self._barriers = 0
        self._last: Marker | None = None
        self._announced: dict[str, None] = {}

    @property
    def last_marker(self) -> Marker | None:
        """The newest micro-batch known to be published."""
        return self._last

    def commit(self, work: Work) -> Steps:
        """Publish a micro-batch; returns a PublishResult.

        Raises a SinkError; the next call then takes over again. Safe to abandon at any request.
        """
        epoch, self._epoch = self._epoch, None  # known again only when this call ends well
        if epoch is None:
            epoch = yield from self._take_over()
        for attempt in range(ATTEMPTS + 1):
            if self._is_published(work):
                self._check_mine(work)
                if work.places:
                    yield ReleaseStaging(max(work.places))
                self._epoch = epoch
                return PublishResult.PUBLISHED if attempt else PublishResult.SKIPPED
            if attempt < ATTEMPTS:
                yield from self._attempt(work, epoch)
        raise StoreFailed(f"micro-batch {work.batch_id} could not be published in {ATTEMPTS} transactions; restart the query")

    def replaces(self, former: SinkCommitter) -> None:
        """Go on for a committer of the same run that was fenced, by another process of that run or by another run."""
        self._my_epochs |= former._my_epochs
        self._replaces = True

    def _check_mine(self, work: Work) -> None:
        """A run is given a micro-batch once. So when another process has published it, that was another run."""
        marker, replaces, self._replaces = self._last, self._replaces, False
        if not replaces or marker is None or marker.epoch in self._my_epochs:
            return
        if not marker.offsets or marker.offsets != work.offsets:
            raise SinkFenced(
                f"another run of sink {self.sink_id} has published micro-batch {work.batch_id} meanwhile: two queries on one "
                "checkpoint, or one sinkId twice"
            )

    def learn(self) -> Steps:
        """Take over, and publish nothing; returns the last marker."""
        yield from self._take_over()
        return self._last

    def _take_over(self) -> Generator[Request, Any, int]:
        self._last = self._inherited
        self._announced.clear()
        epoch: int = yield Fence()
        self._my_epochs.add(epoch)
        yield from self._read_up_to_now(epoch)
        return epoch

    def _read_up_to_now(self, epoch: int) -> Steps:
        """Read until a barrier of our own is visible: everything before it is decided then."""
        self._barriers += 1
        barrier = Barrier(self.sink_id, epoch, self._barriers)
        yield WriteRecord(barrier)
        seen = False
        while True:
            for record in (yield ReadRecords()):
                seen |= self._note(record) == barrier
            undecided = yield from self._settle()
            if seen and EndReply.UNKNOWN not in undecided:
                # One that is on its way to its other end has no marker before the barrier that could still appear.
                self._announced.clear()
                return
            if not (yield Pause()):
                raise CommitUndecided(
                    f"sink {self.sink_id}: transactions {', '.join(self._announced) or 'of others on its control topic'} "
                    "stay undecided; restart the query once the cluster is well"
                )

    def _note(self, record: Record) -> Record:
        if record.sink_id != self.sink_id:
            raise SinkStateLost(
                f"the control topic belongs to sink {record.sink_id!r}, not {self.sink_id!r}: give each sink its own"
            )
        if isinstance(record, Intent):
            self._announced[record.txn_id] = None
        elif isinstance(record, Marker):
            # Its run had settled everything announced before its own transaction, and that one is committed.
            self._last = record
            self._announced.clear()
        return record

    def _settle(self) -> Generator[Request, Any, list[EndReply]]:
        """Abort what was announced and has no marker; returns the replies of those that are not over yet."""
        undecided: list[EndReply] = []
        for txn_id in list(self._announced):
            reply: EndReply = yield EndTxn(txn_id, commit=False)
            if reply in (EndReply.DONE, EndReply.OVER):
                del self._announced[txn_id]
            else:
                undecided.append(reply)
        return undecided

    def _is_published(self, work: Work) -> bool:
        marker, batch_id = self._last, work.batch_id
        if marker is not None and marker.query_id and marker.query_id != self.query_id:
            if self._adopt:
                return False
            raise ForeignCheckpoint(_foreign(marker, self.query_id, batch_id))
        last = -1 if marker is None else marker.batch_id
        if marker is not None and last == batch_id:
            why = _not_the_same(marker, work)
            if why is None or self._adopt:
                return why is None
            raise SkipRefused(
                f"sink {self.sink_id} has published micro-batch {batch_id}, and {why}. Nothing was written. "
                "adoptCheckpoint=true publishes it all the same"
            )
        if last == batch_id - 1 or self._adopt:
            return False
        if last > batch_id:
            raise CheckpointOlderThanSink(
                f"sink {self.sink_id} has published micro-batch {last}, and the checkpoint goes on with {batch_id}: use the "
                "newest checkpoint, or another sinkId for a new start, or adoptCheckpoint=true to publish all the same"
            )
        raise SinkStateLost(
            f"sink {self.sink_id} is given micro-batch {batch_id}, and its last marker is "
            f"{'missing' if last < 0 else f'that of {last}'}: is sinkId or controlTopic another one than before, or did a "
            "message TTL expire it? adoptCheckpoint=true goes on all the same"
        )

    def _attempt(self, work: Work, epoch: int) -> Steps:
        """One transaction; afterwards the last marker tells whether it is committed."""
        txn_id: str = yield NewTxn()
        marker = self._marker(work, epoch, txn_id)
        self._announced[txn_id] = None
        try:
            yield WriteRecord(Intent(self.sink_id, work.batch_id, txn_id))
            yield from self._fill(marker, work.places)
            if work.acks:
                yield Acknowledge(txn_id, work.acks)
        except (RowsMissing, AckConflict, SinkFenced):
            yield EndTxn(txn_id, commit=False)
            raise
        except StoreFailed:
            yield from self._read_up_to_now(epoch)
            return
        if (yield EndTxn(txn_id, commit=True)) is EndReply.DONE:
            self._note(marker)
        else:
            yield from self._read_up_to_now(epoch)

    def _marker(self, work: Work, epoch: int, txn_id: str) -> Marker:
        return Marker(
            self.sink_id,
            work.batch_id,
            epoch,
            txn_id,
            dict(work.rows),
            self.query_id,
            list(work.source_ends),
            work.target,
            work.offsets,
        )

    def _fill(self, marker: Marker, places: Sequence[Place]) -> Steps:
        yield from fill(f"micro-batch {marker.batch_id}", marker.txn_id, marker.rows, places)
        yield WriteRecord(marker, txn_id=marker.txn_id)


def fill(what: str, txn_id: str, rows: Mapping[str, int], places: Sequence[Place]) -> Steps:
    """Send the rows of both carriers in a transaction. RowsMissing when these are not `rows`; then it must be aborted."""
    sent: dict[str, int] = dict((yield Publish(txn_id)))
    if places:
        for topic, count in (yield from _forward(what, txn_id, places)).items():
            sent[topic] = sent.get(topic, 0) + count
    if sent != rows:
        raise RowsMissing(f"{what}: the tasks handed over {dict(rows)} rows, and {sent} were sent")


def _forward(what: str, txn_id: str, places: Sequence[Place]) -> Generator[Request, Any, dict[str, int]]:
    """Copy what the tasks have staged; what dropped attempts have left between it is not in `places`."""
    wanted, last = set(places), max(places)
    yield OpenStaging(min(places))
    while wanted:
        found: Sequence[Place] = yield ReadStaging()
        for place in found:
            if place in wanted:
                wanted.remove(place)
                yield Forward(txn_id, place)
        if wanted and (not found or found[-1] >= last):
            raise RowsMissing(
                f"{what}: {len(wanted)} of {len(places)} staged entries are gone from the staging topic, the first is "
                f"{min(wanted)}: did somebody delete the topic or its subscription? A replay stages them again"
            )
    sent: dict[str, int] = yield Receipts()
    return sent


def _not_the_same(marker: Marker, work: Work) -> str | None:
    """Reason why the work differs from the one that the marker of its number stands for; None if it does not."""
    if marker.offsets and work.offsets and marker.offsets != work.offsets:
        return (
            "this checkpoint has planned other offsets under that number: it was copied, or restored from a backup. Use the "
            f"checkpoint that the sink has seen last{_up_to(marker)}"
        )
    return not_same_target(marker.target, marker.rows, work)


def not_same_target(target: str, rows: Mapping[str, int], work: Work) -> str | None:
    """The same for where rows go: `target`, or for records of older versions the topics of `rows`."""
    if not work.target:
        return None
    if not target:
        written = sorted({full_name(topic) for topic in rows})
        if work.target == ANY_TOPIC or not set(written) - {work.target}:
            return None
        target = ", ".join(written)
    if target == work.target:
        return None
    said = {ANY_TOPIC: "the topics of its column topic"}
    return (
        f"that went to {said.get(target, target)}, while this call writes to {said.get(work.target, work.target)}: give each "
        "frame a name of its own (sinkName with write_batch, txnAppId with df.write)"
    )


def full_name(topic: str) -> str:
    """The full name of a topic."""
    return str(parse_topic(topic))


def _up_to(marker: Marker) -> str:
    ends = " and ".join(marker.source_ends)
    return f", whose micro-batch ended with {ends}" if ends else ""


def _foreign(marker: Marker, query_id: str, batch_id: int) -> str:
    """Advice for a last marker that is of another query."""
    ends = " and ".join(marker.source_ends)
    start = f"with startingOffsets={ends}, where that query had ended," if ends else "where that query had ended"
    return (
        f"sink {marker.sink_id} belongs to the query {marker.query_id}, which published micro-batch {marker.batch_id} last; "
        f"this checkpoint is of the query {query_id}, which begins with micro-batch {batch_id}. Use the checkpoint of the "
        f"first one; or give the new query a sinkId of its own; or, to continue in place of the first one, start it {start} "
        "and set adoptCheckpoint=true: nothing is skipped then, so rows that it reads again are published again"
    )


logger = logging.getLogger(__name__)


class _Store(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=SinkCommitter)
S = TypeVar("S", bound=_Store)
T = TypeVar("T")

_OUT_OF_DATE: Final = (SinkFenced, SinkStateLost)


class KeptSinks(Generic[C, S]):
    """Committers with their stores, by process and key. Use it on the client's loop."""

    def __init__(self) -> None:
        self._sinks: dict[tuple[Any, ...], tuple[C, S]] = {}

    async def commit(self, *key: Any, make: Callable[[], Awaitable[tuple[C, S]]], work: Callable[[C, S], Awaitable[T]]) -> T:
        """Do `work` with the sink of this key. A kept one that is fenced or sees a gap is replaced by a new one, once.

        A sink is closed and forgotten when its commit fails.
        """
        mine = (os.getpid(), *key)
        kept = self._sinks.pop(mine, None)
        if kept is None:
            return await self._use(mine, await make(), work)
        try:
            return await self._use(mine, kept, work)
        except _OUT_OF_DATE as error:
            logger.info("this process reads the state of the sink %s again: %s", kept[0].sink_id, error)
        anew = await make()
        anew[0].replaces(kept[0])
        return await self._use(mine, anew, work)

    async def _use(self, mine: tuple[Any, ...], sink: tuple[C, S], work: Callable[[C, S], Awaitable[T]]) -> T:
        try:
            done = await work(*sink)
        except BaseException:
            await sink[1].close()
            raise
        self._sinks[mine] = sink
        return done

    async def close(self) -> None:
        """Close all."""
        while self._sinks:
            _, (_, store) = self._sinks.popitem()
            await store.close()


@attrs.frozen
class GroupWork(Work):
    """A micro-batch whose rows are in the transactions `delivered`, which are open and of which nobody sends any more."""

    delivered: Sequence[str] = ()


class GroupedCommitter(SinkCommitter):
    """See `SinkCommitter`; its micro-batches are a `GroupWork` each."""

    def commit(self, work: Work) -> Steps:
        """Publish a micro-batch; returns a PublishResult. GroupRefused when the transactions of its tasks are over."""
        result: PublishResult = yield from super().commit(work)
        if result is PublishResult.SKIPPED:
            yield Sweep()
        return result

    def _attempt(self, work: Work, epoch: int) -> Steps:
        assert isinstance(work, GroupWork)  # noqa: S101  # the writer makes it
        txn_id: str = yield NewTxn()
        marker = self._marker(work, epoch, txn_id)
        self._announced[txn_id] = None
        try:
            yield WriteRecord(marker, txn_id=txn_id)
            if work.acks:
                yield Acknowledge(txn_id, work.acks)
        except (AckConflict, SinkFenced):
            yield EndTxn(txn_id, commit=False)
            raise
        except StoreFailed:
            yield from self._read_up_to_now(epoch)
            return
        if (yield EndGroup(txn_id, work.delivered)) is EndReply.DONE:
            self._note(marker)
            return
        yield from self._read_up_to_now(epoch)
        if not self._is_published(work):
            raise GroupRefused(
                f"micro-batch {work.batch_id}: the transactions of its tasks are over, and nothing was published. "
                "Restart the query: the replay sends the rows again. If this comes again, a micro-batch takes longer than "
                "transactionTimeoutMs: raise that, or make micro-batches smaller"
            )
