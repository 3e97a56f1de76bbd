"""`write_batch`, for the function of `foreachBatch`: a micro-batch of any size, from the executors, in one transaction.

    def publish(df, batch_id):
        write_batch(df, batch_id, serviceUrl="pulsar://localhost:6650", topic="totals")

    query = totals.writeStream.foreachBatch(publish).outputMode("update").option("checkpointLocation", …).start()

It works on every Pulsar that has transactions. The rows are sent by a barrier job: all its tasks run at the same time and
share the transaction, and when one fails, the transaction is aborted and the whole job runs again in another.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext

from pulsar_txn.client import EARLIEST_ID, AsyncClient, TopicNotFound
from pulsar_txn.client.encoded import open_entry_reader
from pulsar_txn.pipeline.spark.connecting import Hand, background, connection_of, run_with_hands
from pulsar_txn.pipeline.spark.errors import OptionError, StoreFailed
from pulsar_txn.pipeline.spark.options import Options, Query, read_options
from pulsar_txn.pipeline.spark.schemas.parts import TopicType
from pulsar_txn.pipeline.spark.sink.columns import check_columns, written_type
from pulsar_txn.pipeline.spark.sink.committer import (
    ANY_TOPIC,
    JobCommitter,
    KeptSinks,
    PublishResult,
    SinkCommitter,
    Work,
    full_name,
    not_same_target,
)
from pulsar_txn.pipeline.spark.sink.control import Marker
from pulsar_txn.pipeline.spark.sink.delivery import (
    check_not_read,
    control_topic_of,
    counted,
    end_grouped_runs,
    frame_id,
    offsets_digest,
    sink_id,
    source_ends,
)
from pulsar_txn.pipeline.spark.sink.store import Job, JobSinkStore, check_checkpoint, places_to_acknowledge
from pulsar_txn.pipeline.spark.sink.tasks import Encoding, send_shared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCHEMA: Final = "topic string, rows bigint"
_ARROW: Final = pa.schema([("topic", pa.string()), ("rows", pa.int64())])

_CONNECT_WORKER: Final = "pyspark.sql.connect.streaming.worker"
_lock: Final = threading.Lock()
_called: Final[dict[tuple[Any, ...], tuple[str, int]]] = {}
"""The last call of this process for each sink: run and micro-batch."""

sinks: Final[KeptSinks[JobCommitter, JobSinkStore]] = KeptSinks()
"""The sinks of `write_batch`, by cluster, control topic and query."""


def write_batch(df: DataFrame, batch_id: int, *, max_runs: int = 4, partitions: int | None = None, **options: Any) -> bool:
    """Publish a micro-batch once: all its rows become visible together, in all their topics.

    `options` are those of the sink (`serviceUrl`, `topic`, `sinkId`, …); names with dots go in as `**{"service.url": …}`.
    With Spark Connect, and outside of `foreachBatch`, `sinkId` is required. `partitions`: how many tasks send; by default
    as many as there are slots, at most as many as the frame has. A barrier job waits until that many slots are free.
    `max_runs`: how often the job is run, each time in a new transaction, before its error is raised.

    Several frames in one micro-batch: one call for each. The topic belongs to the sink's name, so frames for different topics
    need nothing else; frames for one topic, or with a column `topic`, need a `sinkName` each.

    Returns whether it was published now; False: an earlier run had done it. Raises a SinkError, which ends the query; the
    replay after a restart decides. SkipRefused when the number was published with other work. OptionError for what cannot
    work, also for a second call with one name in a micro-batch; then this call has written nothing.
    """
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    chosen = read_options(given, Query.FOREACH_BATCH)
    kinds = {field.name: field.dataType.simpleString() for field in df.schema.fields}
    check_columns(kinds, chosen)
    if kinds.get("event_time") == "timestamp_ntz":
        df = df.withColumn("event_time", df["event_time"].cast("timestamp"))
    typed = written_type(chosen, df.schema)
    context = getattr(df.sparkSession, "sparkContext", None)  # there is none with Spark Connect
    query_id = "" if context is None else context.getLocalProperty("sql.streaming.queryId") or ""
    if chosen.sink_id is None and not query_id:
        raise OptionError(
            "write_batch cannot see the id of the query here (Spark Connect, or no foreachBatch): give sinkId=, the same one "
            "for all runs of the query"
        )
    checkpoint = next((value for name, value in given.items() if name.lower() == "checkpointlocation"), None)
    ends = source_ends(checkpoint, batch_id)
    if not chosen.allow_self_write:
        check_not_read(chosen.topics, ends)
    check_checkpoint(chosen, checkpoint)
    acks = places_to_acknowledge(chosen, checkpoint, batch_id)
    target = full_name(chosen.topics[0]) if chosen.topics else ANY_TOPIC
    work = Work(batch_id, {}, (), ends, acks, target, offsets_digest(checkpoint, batch_id))
    frame = df.repartition(partitions or _tasks(df, context))
    job = partial(_send_all, frame, chosen, batch_id, typed)
    with _once(chosen, query_id, _run(context, query_id), batch_id):
        result = run_with_hands(background(), partial(_commit, chosen, query_id, work, job, max_runs))
    return result is PublishResult.PUBLISHED


def _run(context: Any, query_id: str) -> str | None:
    """The run of a query that this is called in; None outside of one."""
    if context is not None:
        return (context.getLocalProperty("spark.jobGroup.id") or query_id) if query_id else None
    return "connect" if _CONNECT_WORKER in sys.modules else None  # Spark starts such a process for each run


@contextmanager
def _once(options: Options, query_id: str, run: str | None, batch_id: int) -> Iterator[None]:
    """A run calls a sink once for a micro-batch, unless the call fails. OptionError for a second one: it would do nothing."""
    if run is None:
        yield
        return
    name = frame_id(options, query_id)
    key, now = (connection_of(options), control_topic_of(options, name), query_id), (run, batch_id)
    with _lock:
        before, _called[key] = _called.get(key), now
    if before == now:
        raise OptionError(
            f"write_batch was called before for micro-batch {batch_id} with the sink {name}, so this frame would not be "
            "written: give each frame of a micro-batch another sinkName, which stays the same in all runs of the query"
        )
    try:
        yield
    except BaseException:
        with _lock:
            _called.pop(key, None)
        raise


def _tasks(df: DataFrame, context: Any) -> int:
    """Number of tasks that can run at the same time, at most as many as there is work for."""
    if context is None:
        return 1
    return max(1, min(int(df.rdd.getNumPartitions()), int(context.defaultParallelism)))


async def _commit(options: Options, query_id: str, work: Work, job: Job, max_runs: int, hand: Hand) -> PublishResult:
    name = frame_id(options, query_id)
    control_topic = control_topic_of(options, name)

    async def make() -> tuple[JobCommitter, JobSinkStore]:
        client = await background().client(options)
        await end_grouped_runs(client, options, name)
        former = None if name == (first := sink_id(options, query_id)) else await _last_of(client, options, first, query_id)
        if former is not None and not_same_target("", former.rows, work) is not None:
            former = None  # of another frame
        committer = JobCommitter(name, query_id, adopt=options.adopt_checkpoint, attempts=max_runs, inherited=former)
        return committer, JobSinkStore(client, control_topic, options)

    async def commit(committer: JobCommitter, store: JobSinkStore) -> PublishResult:
        store.expect_job(job, hand)
        try:
            result: PublishResult = await store.carry_out(committer.commit(work), work.batch_id, [])
        except StoreFailed as error:
            raise error from store.cause
        return result

    return await sinks.commit(connection_of(options), control_topic, query_id, make=make, work=commit)


async def _last_of(client: AsyncClient, options: Options, name: str, query_id: str) -> Marker | None:
    """The last marker under the name that the sink had before topics belonged to names; None when there is no such sink."""
    control_topic = control_topic_of(options, name)
    try:
        await (await open_entry_reader(client, control_topic, EARLIEST_ID, queue_bytes=1, most=1)).close()  # creates nothing
    except TopicNotFound:
        return None
    store = JobSinkStore(client, control_topic, options)
    try:
        found: Marker | None = await store.carry_out(SinkCommitter(name, query_id).learn(), -1, [])
    finally:
        await store.close()
    return found


def _send_all(frame: DataFrame, options: Options, batch_id: int, typed: TopicType | None, txn_id: str) -> dict[str, int]:
    """Run the job. Its tasks get one number of partitions of each topic that is known."""
    sender = _sender(options, batch_id, txn_id, counted(options), typed)
    rows: dict[str, int] = {}
    for each in frame.mapInArrow(sender, _SCHEMA, barrier=True).collect():
        rows[each.topic] = rows.get(each.topic, 0) + each.rows
    return rows


def _sender(
    options: Options, batch_id: int, txn_id: str, known: Mapping[str, int], typed: TopicType | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Function for each task: it sends its rows, and answers the number sent to each topic."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        rows = send_shared(Encoding(options, task, known, str(batch_id), typed=typed), batches, txn_id)
        yield pa.RecordBatch.from_arrays(
            [pa.array(list(rows), pa.string()), pa.array(list(rows.values()), pa.int64())], schema=_ARROW
        )

    return send
