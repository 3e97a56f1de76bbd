"""Ways of rows to their topics: `staged` (through the driver) or `grouped` (straight from the tasks, where brokers offer it).

The choice is made on the driver before the tasks of a micro-batch run, and travels with the writer: an epoch of the sink's
transactional id means `grouped`. With it travels the gate of the micro-batch: a transaction without participants, which the
commit ends with all else that the epoch has open. An attempt of a task that begins after the commit sees that its gate is
shut, and sends nothing; else its rows would keep readers waiting until the next commit or the timeout.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any, Final

from pulsar_txn.client import AsyncClient, PulsarError
from pulsar_txn.client.errors import TransactionalIdUnsupported, TransactionFenced, TransactionsDisabled
from pulsar_txn.client.inside import Epoch, act_as, ends_groups, open_for_others, take_over
from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.connecting import connection_of, make_client
from pulsar_txn.pipeline.spark.errors import OptionError, SinkFenced, StoreFailed
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.sink.checkpoint import read_text
from pulsar_txn.pipeline.spark.sink.names import ONLY

logger = logging.getLogger(__name__)

AUTO: Final = "auto"
GROUPED: Final = "grouped"
STAGED: Final = "staged"

_GATE_MS: Final = 3_600_000
"""A gate is open also while the stages before the tasks run. It keeps nobody waiting, so it may be open for this long."""

_epochs: dict[tuple[Any, ...], Epoch | None] = {}
"""What this process took over, by (process, cluster, sink); None: the brokers do not offer it."""


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
    """Return what all runs of a sink share."""
    return f"spark-sink/{sink_id}"


def open_gate(options: Options, epoch: Epoch) -> str:
    """The gate of a micro-batch, opened before its tasks run. SinkFenced when a newer run is there; StoreFailed."""
    return background().run(_open_gate(options, epoch))


async def _open_gate(options: Options, epoch: Epoch) -> str:
    client = await background().client(options, epoch.name)
    try:
        await act_as(client.inside, epoch)
        try:
            return str(await open_for_others(client.inside, max(_GATE_MS, options.transaction_timeout_ms)))
        except TransactionsDisabled as refused:  # the broker allows no timeout as long as that
            logger.info("%s: %s", epoch.name, refused)
            return str(await open_for_others(client.inside, options.transaction_timeout_ms))
    except TransactionFenced as error:
        text = f"a newer run of this sink has taken over {epoch.name}: two queries on one checkpoint, or one sinkId twice"
        raise SinkFenced(f"{text} ({error})") from error
    except PulsarError as error:
        raise StoreFailed(f"planning a micro-batch of {epoch.name}: {error}") from error


async def end_grouped_runs(client: AsyncClient, options: Options, sink_id: str) -> None:
    """Abort what an earlier run of the sink with `grouped` has left open, so that `staged` need not wait for its timeout.

    Where brokers do not offer `grouped` there is nothing to do. Raises what the client's requests raise.
    """
    if not await ends_groups(client.inside):
        return
    async with make_client(options, transactional_id(sink_id)) as successor:
        await take_over(successor.inside)
        txn = await successor.begin_transaction()  # the first of an epoch ends what older epochs have open
        await txn.abort()


async def _take_over(options: Options, transactional_id: str) -> Epoch | None:
    client = await background().client(options, transactional_id)
    why = f"the brokers at {options.service_url} end no groups of transactions, as delivery=grouped needs"
    try:
        epoch = await take_over(client.inside)
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
        logger.warning("%s/metadata cannot be read: %s", checkpoint, error)
        return None
    return str(found)
