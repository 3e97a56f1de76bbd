"""Store of a sink: carries out what the committers ask for, with a Pulsar client.

`ackSubscription`: the cursor of a subscription moves in the transaction of the rows that were made of its messages. So
"acknowledged" means "the results are visible". The sink finds how far the source has read in the query's checkpoint.
Exactly-once delivery does not rest on this: it is for retention, and for people who look at the subscription's backlog.

`txnAppId` and `txnVersion` are Delta Lake's names: a batch job that is run again writes nothing again.

    df.write.format("pulsar").option("txnAppId", "nightly").option("txnVersion", "20260101")…

The marker says which version of the application was written last. Versions are numbers that grow, with gaps or without. It
also says where the versions before it went, so that one that is run again late is known.

`GroupedSinkStore` carries out the requests of `grouped` in addition, with a client of the sink's transactional id.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs

from pulsar_txn.client import (
    EARLIEST_ID,
    AccessMode,
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncReader,
    AsyncTransaction,
    CommitOutcomeUnknown,
    InitialPosition,
    MessageId,
    PulsarError,
    TransactionAborted,
    TransactionConflict,
    TransactionState,
)
from pulsar_txn.client.encoded import SchemaInfo
from pulsar_txn.client.errors import ConsumerBusy, InvalidTransactionStatus, TransactionFenced, TransactionNotFound
from pulsar_txn.client.inside import abort_all, commit_together
from pulsar_txn.pipeline.spark.errors import AckConflict, OptionError, SinkError, SinkFenced, SkipRefused, StoreFailed
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.sink.committer import PublishResult, SinkCommitter, Steps, Work, full_name, not_same_target
from pulsar_txn.pipeline.spark.sink.control import (
    Acknowledge,
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
    Publish,
    ReadRecords,
    ReadStaging,
    Receipts,
    Record,
    ReleaseStaging,
    Request,
    Sweep,
    WriteRecord,
    decode_record,
    encode_record,
)
from pulsar_txn.pipeline.spark.sink.delivery import read_text, source_ends
from pulsar_txn.pipeline.spark.sink.staged import Parked, Payload, RowRequest, Rows, Staged, handed_over, schema_of
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Place, Places, from_offset
from pulsar_txn.pipeline.spark.steps import OnStep, reached

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 50
_BUSY_SECONDS: Final = 3.0
_VERSION_PAUSE_SECONDS: Final = 0.1
_HOW: Final = "ackSubscription needs the option checkpointLocation on the writer, in a folder that Python can read"


def check_checkpoint(options: Options, checkpoint: str | None) -> None:
    """OptionError before any task runs when the sink could not learn what to acknowledge."""
    if options.ack_subscription is None:
        return
    if checkpoint is None:
        raise OptionError(_HOW)
    try:
        read_text(f"{checkpoint.rstrip('/')}/metadata")
    except (OSError, ValueError, ImportError) as error:
        raise OptionError(f"{_HOW}: {error}") from error


def places_to_acknowledge(options: Options, checkpoint: str | None, batch_id: int) -> Places:
    """Up to where each topic partition is read by this micro-batch, where that is more than by the one before it."""
    if options.ack_subscription is None:
        return {}
    ends = _ends(checkpoint, batch_id)
    if not ends:
        raise OptionError(
            f"ackSubscription={options.ack_subscription}: the checkpoint names no topics that the query reads with "
            "format('pulsar'), so there is nothing to acknowledge: leave it out"
        )
    before = _ends(checkpoint, batch_id - 1) if batch_id else {}
    return {topic: place for topic, place in ends.items() if place > before.get(topic, NOTHING)}


def _ends(checkpoint: str | None, batch_id: int) -> Places:
    return {
        topic: place for text in source_ends(checkpoint, batch_id) for topic, place in from_offset(json.loads(text)).items()
    }


class SourceAcks:
    """Acknowledges in the sink's transactions. It keeps no consumer: the next micro-batch may be committed elsewhere."""

    def __init__(self, client: AsyncClient, subscription: str | None) -> None:
        self._client = client
        self._subscription = subscription or ""
        self._moved: set[str] = set()
        """Topic partitions that this process has acknowledged: there the subscription stands where we are."""

    async def acknowledge(self, places: Places, txn: AsyncTransaction) -> None:
        """Acknowledge everything up to these places. AckConflict when somebody else moves the cursor; StoreFailed."""
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def one(topic: str, place: Place) -> None:
            async with at_once:
                await self._acknowledge(topic, place, txn)

        done = await asyncio.gather(*(one(topic, place) for topic, place in places.items()), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    async def _acknowledge(self, topic: str, place: Place, txn: AsyncTransaction) -> None:
        try:
            async with await subscribe_soon(self._client, topic, self._subscription) as consumer:
                if topic not in self._moved and await _is_beyond(consumer, place):
                    text = "%s: subscription %s stands after %s (was it made at Latest?), so there is nothing to acknowledge"
                    logger.info(text, topic, self._subscription, list(place))
                    return
                await consumer.acknowledge_cumulative(MessageId(*place), txn=txn, receipt=True)
            self._moved.add(topic)
        except (TransactionConflict, ConsumerBusy) as error:
            raise AckConflict(
                f"{topic}: subscription {self._subscription} belongs to somebody else as well, who acknowledges "
                f"or consumes there: give the sink an ackSubscription of its own ({error})"
            ) from error
        except PulsarError as error:
            raise StoreFailed(f"acknowledging on {topic}: {error}") from error


async def _is_beyond(consumer: AsyncConsumer[bytes], place: Place) -> bool:
    """True if a subscription has acknowledged everything up to a place."""
    (position,) = (await consumer.committed(require_stable=False)).values()
    return bool(position.message_id.position >= place)


async def subscribe_soon(client: AsyncClient, topic: str, subscription: str) -> AsyncConsumer[bytes]:
    """A consumer for a moment. ConsumerBusy when somebody else is there also after a few seconds."""
    deadline = asyncio.get_running_loop().time() + _BUSY_SECONDS
    while True:
        try:
            return await client.subscribe(topic, subscription, initial_position=InitialPosition.EARLIEST, receiver_queue_size=1)
        except ConsumerBusy:  # an attempt of ours that had no answer, or somebody who looks in
            if asyncio.get_running_loop().time() >= deadline:
                raise
        await asyncio.sleep(_VERSION_PAUSE_SECONDS)


_KEPT: Final = 200
"""Versions whose targets a marker has."""


class VersionCommitter(SinkCommitter):
    """See `SinkCommitter`: what it counts is a version of an application, and there may be gaps."""

    def _is_published(self, work: Work) -> bool:
        last, version = self._last, work.batch_id
        if last is None or version > last.batch_id:
            return False
        if version == last.batch_id:
            why = not_same_target(last.target, last.rows, work)
        elif (target := last.earlier.get(str(version))) is not None:
            why = not_same_target(target, {}, work)
        else:
            why = f"the last one is {last.batch_id}: versions grow, and that {version} was written is not known"
            raise SkipRefused(f"{self.sink_id}, version {version}: {why}. Nothing was written; give this job a higher version")
        if why is not None:
            raise SkipRefused(f"{self.sink_id} has published version {version}, and {why}. Nothing was written")
        return True

    def _marker(self, work: Work, epoch: int, txn_id: str) -> Marker:
        marker, last = super()._marker(work, epoch, txn_id), self._last
        if last is None:
            return marker
        written = [full_name(topic) for topic in last.rows]
        target = last.target or (written[0] if len(written) == 1 else "")  # older versions kept no target
        known = {**last.earlier, str(last.batch_id): target}
        return attrs.evolve(marker, earlier=dict(list(known.items())[-_KEPT:]))


def version_of(options: Options) -> tuple[str, int] | None:
    """The sink's id and the version of a job; None when the job has none. OptionError for one without the other."""
    name, version = options.txn_app_id, options.txn_version
    if name is None and version is None:
        return None
    if name is None or version is None:
        raise OptionError("txnAppId and txnVersion go together: the version says which run of the application this is")
    return f"app/{name}", version


SUBSCRIPTION: Final = "__spark_sink"
_PAUSE_SECONDS: Final = 0.05
_READ_SECONDS: Final = 1.0
_COMMITS_PER_TRIM: Final = 50


class PulsarSinkStore:
    """One sink's place in a cluster. All methods run on the loop of its client; one commit at a time."""

    def __init__(
        self, client: AsyncClient, control_topic: str, staging_topic: str, options: Options, on_step: OnStep = None
    ) -> None:
        self._client = client
        self._control_topic = control_topic
        self._options = options
        self._on_step = on_step
        self._control: AsyncProducer[bytes] | None = None
        self._reader: AsyncReader[bytes] | None = None
        self._rows = Rows(client, staging_topic, options)
        self._acks = SourceAcks(client, options.ack_subscription)
        self._transactions: dict[str, AsyncTransaction] = {}
        self._batch_id = -1
        self._deadline = 0.0
        self._intent_id: MessageId | None = None
        self._commits = 0

    async def carry_out(
        self,
        steps: Steps,
        batch_id: int,
        payloads: Sequence[Payload],
        parked: Sequence[Parked] = (),
        schema: SchemaInfo | None = None,
    ) -> Any:
        """Drive a commit to its end; returns what it returns. SinkError, or the client's error when nothing can be done."""
        self._batch_id = batch_id
        self._rows.expect(payloads, parked, schema)
        self._deadline = asyncio.get_running_loop().time() + self._options.commit_timeout_ms / 1000
        reached(self._on_step, "sink.commit.begin", batch_id=batch_id)
        reply: Any = None
        error: SinkError | None = None
        while True:
            try:
                request = steps.send(reply) if error is None else steps.throw(error)
            except StopIteration as done:
                reached(self._on_step, "sink.commit.end", batch_id=batch_id)
                await self._let_go()
                return done.value
            try:
                reply, error = await self._perform(request), None
            except SinkError as refused:
                error = refused

    async def publish(self, committer: SinkCommitter, work: Work, staged: Sequence[Staged]) -> PublishResult:
        """Publish what tasks have handed over. Raises as `carry_out`."""
        payloads, parked = handed_over(staged)
        result: PublishResult = await self.carry_out(committer.commit(work), work.batch_id, payloads, parked, schema_of(staged))
        return result

    async def _perform(self, request: Request) -> Any:
        match request:
            case Fence():
                return await self._fence()
            case WriteRecord(record, txn_id):
                return await self._write(record, txn_id)
            case ReadRecords():
                return await self._read()
            case NewTxn():
                return await self._new_txn()
            case Publish() | OpenStaging() | ReadStaging() | Forward() | Receipts():
                return await self._send(request)
            case ReleaseStaging(last):
                return await self._rows.release(last)
            case Acknowledge(txn_id, places):
                return await self._acks.acknowledge(dict(places), self._transactions[txn_id])
            case EndTxn(txn_id, commit):
                return await (self._commit(txn_id) if commit else self._abort(txn_id))
            case Pause():
                await asyncio.sleep(_PAUSE_SECONDS)
                return asyncio.get_running_loop().time() < self._deadline

    async def close(self) -> None:
        """Give up the control topic, the staging topic and the targets."""
        for resource in (self._reader, self._control, self._rows):
            if resource is not None:
                await resource.close()
        self._reader = self._control = None

    # --- the control topic ----------------------------------------------------------------------------------------------

    async def _fence(self) -> int:
        await self.close()
        if (await self._client.get_topic_partitions(self._control_topic))[0] != self._control_topic:
            raise OptionError(
                f"{self._control_topic} is partitioned or no full name; nobody can own it as a whole: set controlTopic to the "
                "full name of a topic without partitions"
            )
        async with self._subscription() as consumer:
            del consumer  # from now on it exists, and Pulsar keeps the records that it has not acknowledged
        self._control = await self._client.create_producer(
            self._control_topic, access_mode=AccessMode.EXCLUSIVE_WITH_FENCING, batching=False
        )
        self._reader = await self._client.create_reader(self._control_topic, EARLIEST_ID, receiver_queue_size=1000)
        self._commits = 0
        epoch = self._control.topic_epoch or 0
        reached(self._on_step, "sink.commit.after_fence", batch_id=self._batch_id, epoch=epoch)
        return epoch

    @asynccontextmanager
    async def _subscription(self) -> AsyncIterator[AsyncConsumer[bytes] | None]:
        """The durable subscription that keeps the records; None while another run has it at this moment."""
        try:
            consumer = await self._client.subscribe(
                self._control_topic, SUBSCRIPTION, initial_position=InitialPosition.EARLIEST, receiver_queue_size=1
            )
        except ConsumerBusy:
            yield None
            return
        async with consumer:
            yield consumer

    async def _let_go(self) -> None:
        """Now and then allow Pulsar to delete what comes before the last marker. The micro-batch is published by now."""
        intent_id, self._intent_id = self._intent_id, None
        if intent_id is None:
            return
        self._commits += 1
        if self._commits % _COMMITS_PER_TRIM != 1:
            return
        try:
            async with self._subscription() as consumer:
                if consumer is not None:
                    await consumer.acknowledge_cumulative(intent_id, receipt=True)
        except PulsarError as error:
            logger.warning("%s: old records were not acknowledged (%s); a later commit tries again", self._control_topic, error)

    async def _write(self, record: Record, txn_id: str | None) -> None:
        assert self._control is not None  # noqa: S101  # Fence comes first
        txn = None if txn_id is None else self._transactions[txn_id]
        try:
            message_id = await self._control.send(encode_record(record), txn=txn)
        except PulsarError as error:
            raise self._failed(f"writing to {self._control_topic}", error) from error
        if isinstance(record, Intent):
            self._intent_id = message_id
        if txn_id is not None:
            reached(self._on_step, "sink.commit.after_marker", batch_id=self._batch_id, txn_id=txn_id)

    def _failed(self, what: str, error: Exception) -> SinkError:
        causes = [error, *getattr(error, "failures", ()), error.__cause__]
        if any(isinstance(cause, TransactionFenced) for cause in causes):
            return SinkFenced(
                f"a newer run of this sink owns {self._control_topic}: two queries on one checkpoint, or one sinkId twice "
                f"({error})"
            )
        return StoreFailed(f"{what}: {error}")

    async def _read(self) -> list[Record]:
        assert self._reader is not None  # noqa: S101  # Fence comes first
        records: list[Record] = []
        while await self._reader.has_message_available():
            try:
                async with asyncio.timeout(_READ_SECONDS):
                    messages = await self._reader.read_many(1000)
            except TimeoutError:
                break  # what is there cannot be read yet
            records += [decode_record(message.data) for message in messages]
        return records

    # --- transactions ---------------------------------------------------------------------------------------------------

    async def _new_txn(self) -> str:
        self._transactions.clear()
        timeout = self._options.transaction_timeout_ms / 1000
        txn = await self._client.begin_transaction(
            timeout=timeout, commit_timeout=self._options.operation_timeout_ms / 1000, name=f"micro-batch {self._batch_id}"
        )
        txn_id = str(txn.id)
        self._transactions[txn_id] = txn
        reached(self._on_step, "sink.commit.after_new_txn", batch_id=self._batch_id, txn_id=txn_id)
        return txn_id

    async def _send(self, request: RowRequest) -> Any:
        (txn_id,) = self._transactions  # one per attempt
        try:
            reply = await self._rows.perform(request, self._transactions[txn_id])
        except (PulsarError, TimeoutError) as error:
            raise self._failed("sending the rows", error) from error
        if isinstance(request, Publish | Receipts):
            step = "after_publish" if isinstance(request, Publish) else "after_forward"
            reached(self._on_step, f"sink.commit.{step}", batch_id=self._batch_id, txn_id=txn_id)
        return reply

    async def _abort(self, txn_id: str) -> EndReply:
        try:
            await self._client.attach_transaction(txn_id).abort()
        except InvalidTransactionStatus:
            return EndReply.BUSY
        except (TransactionNotFound, TransactionFenced):
            return EndReply.OVER
        except PulsarError:
            return EndReply.UNKNOWN
        return EndReply.DONE

    async def _commit(self, txn_id: str) -> EndReply:
        txn = self._transactions[txn_id]
        work = asyncio.ensure_future(txn.commit())
        if self._on_step is not None:
            await _written(txn)
            self._on_step("sink.commit.after_end_txn_sent", batch_id=self._batch_id, txn_id=txn_id, answered=work.done())
        try:
            await work
        except TransactionAborted:
            return EndReply.OVER
        except (CommitOutcomeUnknown, PulsarError):
            return EndReply.UNKNOWN
        reached(self._on_step, "sink.commit.after_end_txn", batch_id=self._batch_id, txn_id=txn_id)
        return EndReply.DONE


async def _written(txn: AsyncTransaction) -> None:
    """Wait until END_TXN is in the socket and its answer cannot have been looked at, however slow the loop's turns are.

    All sends have their receipts, so the turn in which the state becomes COMMITTING asks for END_TXN, and the next one
    writes it before it looks at what that turn's poll has found, which was before the write.
    """
    while txn.state is TransactionState.OPEN:  # noqa: ASYNC110 - it is the loop's turns that count
        await asyncio.sleep(0)  # our place is after the commit's task, which was made first
    await asyncio.sleep(0)


class GroupedSinkStore(PulsarSinkStore):
    """A `PulsarSinkStore` whose client acts as the sink's newest epoch."""

    async def _perform(self, request: Any) -> Any:
        match request:
            case EndGroup(txn_id, delivered):
                return await self._end_group(txn_id, delivered)
            case Sweep():
                return await self._sweep()
            case Fence():
                await self._check_epoch()
                return await super()._perform(request)
            case NewTxn():
                return await self._begin()
            case _:
                return await super()._perform(request)

    async def _check_epoch(self) -> None:
        """Stop here when a newer run is there, before its control topic is touched; else end what older runs have open."""
        try:
            txn = await self._client.begin_transaction()
            await txn.abort()
        except PulsarError as error:
            raise self._failed("taking over from older runs", error) from error

    async def _begin(self) -> Any:
        try:
            return await super()._perform(NewTxn())
        except PulsarError as error:
            raise self._failed("beginning the marker's transaction", error) from error

    async def _end_group(self, txn_id: str, delivered: Sequence[str]) -> EndReply:
        txn = self._transactions[txn_id]
        reached(self._on_step, "sink.commit.before_end_group", batch_id=self._batch_id, txn_id=txn_id, group=list(delivered))
        try:
            await commit_together(self._client, txn, delivered, abort_rest=True)
        except TransactionAborted:
            return EndReply.OVER
        except (CommitOutcomeUnknown, PulsarError) as error:
            logger.warning(
                "micro-batch %d: the outcome of its transactions is unknown, and is asked for: %s", self._batch_id, error
            )
            return EndReply.UNKNOWN
        reached(self._on_step, "sink.commit.after_end_txn", batch_id=self._batch_id, txn_id=txn_id)
        return EndReply.DONE

    async def _sweep(self) -> None:
        try:
            await abort_all(self._client)
        except PulsarError as error:
            logger.warning(
                "micro-batch %d: repeated transactions were not aborted (%s); their timeout ends them", self._batch_id, error
            )
