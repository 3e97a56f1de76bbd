"""`write_batch`, for the function of `foreachBatch`: a micro-batch of any size, from the executors, in one transaction.

    def publish(df, batch_id):
        write_batch(df, batch_id, serviceUrl="pulsar://localhost:6650", topic="totals")

    query = totals.writeStream.foreachBatch(publish).outputMode("update").option("checkpointLocation", …).start()

It works on every Pulsar that has transactions. A Spark job of its own stages the rows, as the tasks of a stream do (`staged`),
and the driver publishes them with the marker of the micro-batch.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext

from pulsar_txn.client import EARLIEST_ID, AsyncClient, TopicNotFound
from pulsar_txn.client.encoded import open_entry_reader
from pulsar_txn.pipeline.spark.connecting import background, connection_of
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options, Query, read_options
from pulsar_txn.pipeline.spark.schemas.parts import TopicType
from pulsar_txn.pipeline.spark.sink.columns import check_columns, written_type
from pulsar_txn.pipeline.spark.sink.committer import (
    ANY_TOPIC,
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
    staging_topic_of,
)
from pulsar_txn.pipeline.spark.sink.staged import Staged, check_partitions, handed_over, rows_by_topic
from pulsar_txn.pipeline.spark.sink.store import PulsarSinkStore, check_checkpoint, places_to_acknowledge
from pulsar_txn.pipeline.spark.sink.tasks import Encoding, stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCHEMA: Final = "result binary"

_CONNECT_WORKER: Final = "pyspark.sql.connect.streaming.worker"
_lock: Final = threading.Lock()
_called: Final[dict[tuple[Any, ...], tuple[str, int]]] = {}
"""The last call of this process for each sink: run and micro-batch."""

sinks: Final[KeptSinks[SinkCommitter, PulsarSinkStore]] = KeptSinks()
"""The sinks of `write_batch`, by cluster, control topic and query."""


def write_batch(df: DataFrame, batch_id: int, *, partitions: int | None = None, **options: Any) -> bool:
    """Publish a micro-batch once: all its rows become visible together, in all their topics.

    `options` are those of the sink (`serviceUrl`, `topic`, `sinkId`, …); names with dots go in as `**{"service.url": …}`.
    With Spark Connect, and outside of `foreachBatch`, `sinkId` is required. `partitions`: how many tasks encode the rows; by
    default as many as the frame has. Spark tries a task that fails again; the job's error is raised as Spark has it.

    Several frames in one micro-batch: one call for each. The topic belongs to the sink's name, so frames for different topics
    need nothing else; frames for one topic, or with a column `topic`, need a `sinkName` each.

    True if it was published now; False: an earlier run had done it. Raises a SinkError, which ends the query; the
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
    digest = offsets_digest(checkpoint, batch_id)
    with _once(chosen, query_id, _run(context, query_id), batch_id):
        staged = _stage_all(df if partitions is None else df.repartition(partitions), chosen, query_id, batch_id, typed)
        payloads, parked = handed_over(staged)
        rows = rows_by_topic(payloads, parked)
        work = Work(batch_id, rows, [each.place for each in parked], ends, acks, target, digest)
        result = background().run(_commit(chosen, query_id, work, staged))
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


async def _commit(options: Options, query_id: str, work: Work, staged: list[Staged]) -> PublishResult:
    name = frame_id(options, query_id)
    control_topic = control_topic_of(options, name)

    async def make() -> tuple[SinkCommitter, PulsarSinkStore]:
        client = await background().client(options)
        await end_grouped_runs(client, options, name)
        former = None if name == (first := sink_id(options, query_id)) else await _last_of(client, options, first, query_id)
        if former is not None and not_same_target("", former.rows, work) is not None:
            former = None  # of another frame
        committer = SinkCommitter(name, query_id, adopt=options.adopt_checkpoint, inherited=former)
        return committer, PulsarSinkStore(client, control_topic, staging_topic_of(options, name), options)

    async def commit(committer: SinkCommitter, store: PulsarSinkStore) -> PublishResult:
        return await store.publish(committer, work, staged)

    return await sinks.commit(connection_of(options), control_topic, query_id, make=make, work=commit)


async def _last_of(client: AsyncClient, options: Options, name: str, query_id: str) -> Marker | None:
    """The last marker under the name that the sink had before topics belonged to names; None when there is no such sink."""
    control_topic = control_topic_of(options, name)
    try:
        await (await open_entry_reader(client, control_topic, EARLIEST_ID, queue_bytes=1, most=1)).close()  # creates nothing
    except TopicNotFound:
        return None
    store = PulsarSinkStore(client, control_topic, staging_topic_of(options, name), options)
    try:
        found: Marker | None = await store.carry_out(SinkCommitter(name, query_id).learn(), -1, [])
    finally:
        await store.close()
    return found


def _stage_all(frame: DataFrame, options: Options, query_id: str, batch_id: int, typed: TopicType | None) -> list[Staged]:
    """Run the job; the results of its tasks. They get one number of partitions of each topic that is known."""
    known, topic = counted(options), staging_topic_of(options, frame_id(options, query_id))

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        result = stage(Encoding(options, number, known, str(batch_id), typed=typed), batches, topic, query_id)
        yield pa.RecordBatch.from_pydict({"result": pa.array([pickle.dumps(result)], pa.binary())})

    staged = [pickle.loads(each.result) for each in frame.mapInArrow(task, _SCHEMA).collect()]  # noqa: S301 - of our own tasks
    check_partitions(staged)
    return staged
