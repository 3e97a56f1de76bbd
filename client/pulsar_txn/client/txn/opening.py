"""How a transaction gets its id: once, with the first operation that needs one, for all who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pulsar_txn.client.errors import TransactionsDisabled
from pulsar_txn.client.txn.life import Life
from pulsar_txn.client.txn.registrar import CoordinatorSessions, Named
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
        self.registered: frozenset[Named] = frozenset()
        """What the coordinator has registered with it."""
        self._task: asyncio.Task[TxnId] | None = None

    @property
    def is_under_way(self) -> bool:
        """True if the coordinator was asked and has not answered."""
        return self._task is not None and not self._task.done()

    async def open(self, first: Sequence[Named] = ()) -> TxnId:
        """The id, which the coordinator is asked for once; concurrent callers share one request, which no caller cancels.

        What the first caller names is registered with it, where the coordinator can do that (`registered`).
        """
        if self._life.id is not None:
            return self._life.id
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._open(first))
        return await asyncio.shield(self._task)

    async def wait(self, end: float) -> None:
        """Wait until `end` on the clock for a request that is under way."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=max(0.0, end - self._monotonic()))

    async def _open(self, first: Sequence[Named]) -> TxnId:
        before = self._monotonic()
        txn_id = await self._with_first(first) if first and self._coordinators.registers_first else await self._alone()
        self.seconds = self._monotonic() - before
        self._life.opened(txn_id, before)
        return txn_id

    async def _alone(self) -> TxnId:
        options = self._life.options
        return await self._coordinators.new_txn(int(options.timeout * 1000), tally=self.tally, checked=options.checked)

    async def _with_first(self, first: Sequence[Named]) -> TxnId:
        """One request instead of two. What is wrong with `first` is answered to its own registration, as it is later on."""
        options = self._life.options
        try:
            txn_id = await self._coordinators.new_txn(
                int(options.timeout * 1000), tally=self.tally, first=first, checked=options.checked
            )
        except TransactionsDisabled:
            return await self._alone()
        self.registered = frozenset(first)
        return txn_id
