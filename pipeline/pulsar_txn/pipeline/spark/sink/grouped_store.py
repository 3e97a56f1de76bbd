"""Carries out what the committer of `grouped` asks for in addition, with a client of the sink's transactional id."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pulsar_txn.client import CommitOutcomeUnknown, PulsarError, TransactionAborted
from pulsar_txn.client.inside import abort_all, commit_together
from pulsar_txn.pipeline.spark.sink.control import EndGroup, EndReply, Fence, NewTxn, Sweep
from pulsar_txn.pipeline.spark.sink.store import PulsarSinkStore
from pulsar_txn.pipeline.spark.steps import reached

logger = logging.getLogger(__name__)


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
            await commit_together(self._client.inside, txn, delivered, abort_rest=True)
        except TransactionAborted:
            return EndReply.OVER
        except (CommitOutcomeUnknown, PulsarError) as error:
            logger.warning("micro-batch %d: the end of its transactions is in doubt: %s", self._batch_id, error)
            return EndReply.UNKNOWN
        reached(self._on_step, "sink.commit.after_end_txn", batch_id=self._batch_id, txn_id=txn_id)
        return EndReply.DONE

    async def _sweep(self) -> None:
        try:
            await abort_all(self._client.inside)
        except PulsarError as error:
            logger.warning("what micro-batch %d has sent again is left to its timeout: %s", self._batch_id, error)
