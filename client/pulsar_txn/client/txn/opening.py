"""How a transaction gets its id: once, with the first operation that needs one, for all who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pulsar_txn.client.txn.life import Life
from pulsar_txn.client.txn.registrar import CoordinatorSessions
from pulsar_txn.client.txn.stats import RequestTally
from pulsar_txn.wire.ids import TxnId


class Opening:
    """NEW_TXN of one transaction."""

    def __init__(self, life: Life, coordinators: CoordinatorSessions, monotonic: Callable[[], float]) -> None:
        self.tally = RequestTally()
        """What the requests of the transaction met on their way to its coordinator."""
        self.seconds = 0.0
        self._life = life
        self._coordinators = coordinators
        self._monotonic = monotonic
        self._task: asyncio.Task[TxnId] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether the coordinator was asked and has not answered."""
        return self._task is not None and not self._task.done()

    async def open(self) -> TxnId:
        """The id, which the coordinator is asked for once; concurrent callers share one request, which no caller cancels."""
        if self._life.id is not None:
            return self._life.id
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._open())
        return await asyncio.shield(self._task)

    async def wait(self, end: float) -> None:
        """Wait until `end` on the clock for a request that is under way."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=max(0.0, end - self._monotonic()))

    async def _open(self) -> TxnId:
        before = self._monotonic()
        txn_id = await self._coordinators.new_txn(int(self._life.options.timeout * 1000), tally=self.tally)
        self.seconds = self._monotonic() - before
        self._life.opened(txn_id, before)
        return txn_id
