"""Delivery of a sink's rows: its names, the partitions of its topics, the checkpoint of its query, and the way of the rows.

Names of the sink and of its topics come from the options, or from the query. The numbers of partitions are asked once for
all tasks, so that equal keys of a micro-batch go to one partition.

Spark writes `offsets/<batch id>` into the checkpoint before any task runs: a line with a version, one with metadata, then
the offset of each source. Those of `format("pulsar")` are recognised by their form. The sink learns the folder only from the
option `checkpointLocation` of the writer; without it, or when it cannot be read from Python, the sink knows nothing of its
source.

A topic without a subscription keeps its messages for the time of its retention, which by default is no time at all.
`warn_if_nobody_keeps` warns of such topics. The binary protocol cannot ask for either, so this needs the option `admin.url`.

Rows go to their topics `staged` (through the driver) or `grouped` (straight from the tasks, where brokers offer it). The
choice is made on the driver before the tasks of a micro-batch run, and travels with the writer: an epoch of the sink's
transactional id means `grouped`. With it travels the gate of the micro-batch: a transaction without participants, which the
commit ends with all else that the epoch has open. An attempt of a task that begins after the commit sees that its gate is
shut, and sends nothing; else its rows would keep readers waiting until the next commit or the timeout.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pulsar_txn.client import AsyncClient, PulsarError
from pulsar_txn.client.errors import TransactionalIdUnsupported, TransactionFenced, TransactionsDisabled
from pulsar_txn.client.inside import Epoch, act_as, ends_groups, open_for_others, parse_topic, take_over
from pulsar_txn.pipeline.spark.connecting import Admin, background, connection_of, make_client
from pulsar_txn.pipeline.spark.errors import OptionError, SinkFenced, StoreFailed
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.offsets import from_offset

ONLY: Final = "0"
"""The name of the only sink of a query."""
_NAME_CHARS: Final = 60


def sink_id(options: Options, query_id: str) -> str:
    """The sink's identity over restarts: the option, or the query (its id is in the checkpoint) and the sink's name."""
    return options.sink_id or f"{query_id or uuid.uuid4()}/{options.sink_name or ONLY}"


def frame_id(options: Options, query_id: str) -> str:
    """The identity of what one call of `write_batch` writes: without a name of its own, its topic belongs to it.

    The name of a control topic that the user has chosen tells frames apart as well.
    """
    if options.sink_id or options.sink_name or options.control_topic or not options.topics:
        return sink_id(options, query_id)
    topic = parse_topic(options.topics[0])
    return f"{query_id}/{topic.name[:_NAME_CHARS]}-{hashlib.sha256(str(topic).encode()).hexdigest()[:8]}"


def control_topic_of(options: Options, name: str) -> str:
    """The control topic of the sink `name`: the option `controlTopic`, or one that is named after it."""
    return options.control_topic or f"persistent://public/default/__spark_sink-{name.replace('/', '-')}"


def job_id(version: tuple[str, int] | None) -> str:
    """The identity of a batch job: that of its version, so that a second run of it clears up after a first one that died."""
    return f"job-{uuid.uuid4()}" if version is None else "job-{}-{}".format(*version)


def staging_topic_of(options: Options, name: str) -> str:
    """The staging topic of the sink `name`: the option `stagingTopic`, or one that is named after it."""
    return options.staging_topic or f"persistent://public/default/__spark_sink_stage-{name.replace('/', '-')}"


def count_partitions(options: Options, topic: str) -> int:
    """Number of partitions of a topic now, 0 for one without."""
    return background().run(_count(options, topic))


def counted(options: Options) -> dict[str, int]:
    """Numbers of partitions of the topics that the options name; asked on the driver, before the tasks."""
    return {topic: count_partitions(options, topic) for topic in options.topics}


def known_or_asked(options: Options, known: Mapping[str, int]) -> Callable[[str], int]:
    """Function from topics to partition counts: the driver's counts; topics that only rows name are asked for."""
    return lambda topic: known[topic] if topic in known else count_partitions(options, topic)


async def _count(options: Options, topic: str) -> int:
    client = await background().client(options)
    names = await client.get_topic_partitions(topic)
    return len(names) if names[0].endswith("-partition-0") and not topic.endswith("-partition-0") else 0


logger = logging.getLogger(__name__)

_LOCAL: Final = ("file://", "file:")
_unreadable: Final[set[str]] = set()
"""Folders that this process could not read: not tried again, because it may take long to fail."""


def source_ends(folder: str | None, batch_id: int) -> list[str]:
    """The offsets, as Spark keeps them, that a micro-batch ends with: one for each source of ours. Empty when unknown."""
    return [line for line in _offsets(folder, batch_id).splitlines() if _is_ours(line)]


def offsets_digest(folder: str | None, batch_id: int) -> str:
    """The same of all sources, short; empty when unknown. Spark writes it once, so every replay has the same."""
    text = _offsets(folder, batch_id)
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def _offsets(folder: str | None, batch_id: int) -> str:
    if folder is None or folder in _unreadable:
        return ""
    try:
        return read_text(f"{folder.rstrip('/')}/offsets/{batch_id}")
    except (OSError, ValueError, ImportError) as error:
        _unreadable.add(folder)
        logger.warning(
            "%s cannot be read (%s): the sink does not know the query's sources; check the permissions", folder, error
        )
        return ""


def _is_ours(line: str) -> bool:
    try:
        offset = json.loads(line)
        return isinstance(offset, dict) and bool(from_offset(offset))
    except (ValueError, OptionError):
        return False


def read_text(path: str) -> str:
    """A file of the checkpoint: a local one, or one that pyarrow can open. OSError, ValueError, ImportError."""
    for prefix in _LOCAL:
        if path.startswith(prefix):
            path = "/" + path.removeprefix(prefix).lstrip("/")
            break
    if "://" not in path:
        return Path(path).read_text(encoding="utf-8")
    from pyarrow import fs  # its drivers take half a second to load

    system, inside = fs.FileSystem.from_uri(path)
    with system.open_input_stream(inside) as stream:
        return bytes(stream.read()).decode()


def check_not_read(targets: Iterable[str], ends: Iterable[str]) -> None:
    """OptionError when the query reads one of the topics that it writes to."""
    read = {_whole(topic) for end in ends for topic in from_offset(json.loads(end))}
    for target in targets:
        if _whole(target) in read:
            raise OptionError(
                f"the query reads {target} and writes to it, so each row would come back as its input, for ever. Nothing was "
                "written. Give the sink another topic (.option('topic', …) wins over a column 'topic', which the source "
                "fills with its own); or set allowSelfWrite=true if the query leaves out what it has written"
            )


def _whole(topic: str) -> str:
    """The full name of the topic that a partition belongs to."""
    return str(parse_topic(topic).base)


_ADVICE: Final = (
    "create the subscription of the reader before the query starts (a stream with subscriptionName=… that has started once, or "
    "pulsar-admin topics create-subscription), or set retention on the namespace"
)


async def warn_if_nobody_keeps(topics: Iterable[str], options: Options) -> None:
    """Log a warning for each of these topics that has neither a subscription nor retention, or may have neither."""
    admin = None if options.admin_url is None else Admin(options)
    for topic in topics:
        text = await _warning(topic, admin)
        if text is not None:
            logger.warning("%s", text)


async def _warning(topic: str, admin: Admin | None) -> str | None:
    """Warning about a topic; None when a subscription, or retention for ever, keeps its messages."""
    if admin is None:
        return (
            f"{topic}: unless it has a subscription, Pulsar deletes its messages when its retention is over, which by default "
            f"is at once: {_ADVICE}. With the option admin.url this is looked up instead"
        )
    path = f"/admin/v2/{str(parse_topic(topic)).replace('://', '/', 1)}"
    namespace = path.split("/", 4)[4].rsplit("/", 1)[0]
    try:
        if await admin.get(f"{path}/subscriptions") or await admin.get(f"{path}-partition-0/subscriptions"):
            return None
        retention = await admin.get(f"{path}/retention") or await admin.get(f"/admin/v2/namespaces/{namespace}/retention") or {}
    except (OSError, ValueError) as error:
        return f"{topic}: {admin.url} does not say whether anybody keeps its messages ({error}): {_ADVICE}"
    minutes, megabytes = retention.get("retentionTimeInMinutes", 0), retention.get("retentionSizeInMB", 0)
    if minutes < 0 and megabytes < 0:
        return None
    if minutes and megabytes:
        return f"{topic} has no subscription, and retention keeps {minutes} minutes and {megabytes} MB of it: {_ADVICE}"
    return f"{topic} has no subscription and no retention, so Pulsar deletes what is written at once: {_ADVICE}"


AUTO: Final = "auto"
GROUPED: Final = "grouped"
STAGED: Final = "staged"

_GATE_MS: Final = 3_600_000
"""A gate is open also while the stages before the tasks run. It keeps nobody waiting, so it may be open for this long."""

_epochs: dict[tuple[Any, ...], Epoch | None] = {}
"""Epochs that this process took over, by (process, cluster, sink); None: the brokers do not offer it."""


def epoch_and_gate(options: Options, checkpoint: str | None) -> tuple[Epoch | None, str | None]:
    """The epoch and the gate of a micro-batch; None twice for `staged`. OptionError, SinkFenced, StoreFailed.

    Spark may have planned the micro-batch before this one in another process, which took over. So a kept epoch that is fenced
    is forgotten, and this process takes over, once.
    """
    kept = dict(_epochs)
    epoch = epoch_of(options, checkpoint)
    if epoch is None:
        return None, None
    try:
        return epoch, open_gate(options, epoch)
    except SinkFenced as error:
        key = next((key for key, found in kept.items() if found is epoch), None)
        if key is None:
            raise
        logger.info("this process takes over again: %s", error)
        del _epochs[key]
    epoch = epoch_of(options, checkpoint)
    return epoch, None if epoch is None else open_gate(options, epoch)


def epoch_of(options: Options, checkpoint: str | None) -> Epoch | None:
    """The epoch under which the tasks of this run send; None for `staged`. OptionError when `grouped` cannot be had."""
    if options.delivery == STAGED:
        return None
    name = _name(options, checkpoint)
    if name is None:
        text = (
            "delivery=grouped needs a sinkId, or the option checkpointLocation on the writer in a folder that Python can read"
        )
        _do_without(options, text)
        return None
    key = (os.getpid(), connection_of(options), name)
    if key not in _epochs:
        _epochs[key] = background().run(_take_over(options, transactional_id(name)))
    return _epochs[key]


def job_epoch(options: Options, job: str) -> Epoch | None:
    """The epoch under which the tasks of the batch job `job` send; None for `staged`. OptionError as for `epoch_of`."""
    if options.delivery == STAGED:
        return None
    if options.txn_app_id is not None:
        _do_without(options, "a job with txnAppId and txnVersion goes through the driver")
        return None
    return background().run(_take_over(options, f"spark-job/{job}"))


def transactional_id(sink_id: str) -> str:
    """Transactional id that all runs of a sink share."""
    return f"spark-sink/{sink_id}"


def open_gate(options: Options, epoch: Epoch) -> str:
    """The gate of a micro-batch, opened before its tasks run. SinkFenced when a newer run is there; StoreFailed."""
    return background().run(_open_gate(options, epoch))


async def _open_gate(options: Options, epoch: Epoch) -> str:
    client = await background().client(options, epoch.name)
    try:
        await act_as(client, epoch)
        try:
            return str(await open_for_others(client, max(_GATE_MS, options.transaction_timeout_ms)))
        except TransactionsDisabled as refused:  # the broker allows no timeout as long as that
            logger.info("%s: %s", epoch.name, refused)
            return str(await open_for_others(client, options.transaction_timeout_ms))
    except TransactionFenced as error:
        text = f"a newer run of this sink has taken over {epoch.name}: two queries on one checkpoint, or one sinkId twice"
        raise SinkFenced(f"{text} ({error})") from error
    except PulsarError as error:
        raise StoreFailed(f"planning a micro-batch of {epoch.name}: {error}") from error


async def end_grouped_runs(client: AsyncClient, options: Options, sink_id: str) -> None:
    """Abort what an earlier run of the sink with `grouped` has left open, so that `staged` need not wait for its timeout.

    Where brokers do not offer `grouped` there is nothing to do. Raises what the client's requests raise.
    """
    if not await ends_groups(client):
        return
    async with make_client(options, transactional_id(sink_id)) as successor:
        await take_over(successor)
        txn = await successor.begin_transaction()  # the first of an epoch ends what older epochs have open
        await txn.abort()


async def _take_over(options: Options, transactional_id: str) -> Epoch | None:
    client = await background().client(options, transactional_id)
    why = f"the brokers at {options.service_url} end no groups of transactions, as delivery=grouped needs"
    try:
        epoch = await take_over(client)
        if epoch.ends_groups:
            return epoch
    except (TransactionalIdUnsupported, TransactionsDisabled) as error:
        why = f"the brokers at {options.service_url} do not offer delivery=grouped: {error}"
    await background().close_client(options, transactional_id)
    _do_without(options, why)
    return None


def _do_without(options: Options, why: str) -> None:
    if options.delivery == GROUPED:
        raise OptionError(f"{why}; use delivery=staged, or delivery=auto")
    logger.info("%s: the sink uses delivery=staged", why)


def _name(options: Options, checkpoint: str | None) -> str | None:
    """The sink's id, as far as it can be known before tasks run: the option, or from the query's checkpoint."""
    if options.sink_id is not None:
        return options.sink_id
    query_id = None if checkpoint is None else _query_id(checkpoint)
    return None if query_id is None else f"{query_id}/{options.sink_name or ONLY}"


def _query_id(checkpoint: str) -> str | None:
    """The query's id, which Spark writes into the checkpoint when the query is made."""
    try:
        found = json.loads(read_text(f"{checkpoint.rstrip('/')}/metadata"))["id"]
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        logger.warning("%s/metadata cannot be read (%s): the sink does not know the query's id", checkpoint, error)
        return None
    return str(found)
