"""The transactions of one client: how they are made, and what becomes of the open ones when the client closes or moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final
from weakref import WeakSet

from pulsar_txn.client.errors import AlreadyClosed, ConnectionLost, PulsarError, TransactionStateError
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.state.prepared import PreparedToken
from pulsar_txn.client.state.transaction import FINAL, TransactionOptions, TransactionState
from pulsar_txn.client.txn.check_groups import CheckGroups
from pulsar_txn.client.txn.coordinators import TransactionCoordinators
from pulsar_txn.client.txn.forgotten import Forgotten
from pulsar_txn.client.txn.guest import Guest
from pulsar_txn.client.txn.observers import Observers
from pulsar_txn.client.txn.transaction import AsyncTransaction
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire.ids import TxnId

logger = logging.getLogger("pulsar_txn.client.txn")

CLOSE_SECONDS: Final = 2.0
"""How long closing a client waits for the ends of its open transactions; the coordinators' timeouts do the rest."""

CLOSED_TOGETHER: Final = 256
"""Transactions that a client that closes aborts at the same time."""

LEFT_PER_TURN: Final = 1000
"""Transactions that are left to their timeouts in one turn of the loop."""


class Transactions:
    """Makes the transactions of a client. Coordinators are looked up at the first one, and not before."""

    def __init__(self, core: Core, guest: Guest | None = None) -> None:
        self.observers = Observers(AsyncTransaction)
        self.groups = CheckGroups(core, lambda: self.coordinators)
        self.coordinators = TransactionCoordinators(core, guest=guest, groups=self.groups)
        self.members: set[Core] = set()
        """Cores of further clients, whose producers and consumers take part."""
        self.core = core
        self._guest = guest
        self._units: WeakSet[Unit] = WeakSet()
        self._forgotten = Forgotten()
        self._left_open = False
        """Whether a transaction of this client was left open for the check of its group."""
        if guest is not None:
            guest.has_left = self._has_left
        core.before_move = self._leave_cluster
        core.before_close = self.close
        core.coordinators = lambda: self.coordinators

    def _has_left(self) -> bool:
        """True if nothing more of this client's transactions can arrive anywhere, and none was left to its group."""
        return not self._left_open and not any(core.resources() for core in self.members)

    def new(self, options: TransactionOptions, txn_id: TxnId | None = None, prepared: PreparedToken | None = None) -> Unit:
        """A transaction that is not open yet; with an id or a token, one that was begun elsewhere. AlreadyClosed."""
        self.core.check_open()
        unit = Unit(
            self.core,
            self.coordinators,
            options,
            operation_timeout=self.core.settings.operation_timeout,
            monotonic=self.core.runtime.monotonic,
            secret=self.core.runtime.secret,
            txn_id=txn_id,
            prepared=prepared,
            observers=self.observers,
            forgotten=self._forgotten,
            check_here=self.core.check_here,
            others=self.members,
            admit=self._check_alone,
        )
        self._units.add(unit)
        unit.when_ended(lambda _outcome: self._forget(unit))
        return unit

    def _forget(self, unit: Unit) -> None:
        self._units.discard(unit)
        unit.forget_calls()
        self._left_open = self._left_open or unit.left_to_group

    def _check_alone(self) -> None:
        if not self.core.settings.one_transaction_at_a_time:
            return
        for unit in self._units:
            if unit.is_begun_here:
                raise TransactionStateError(
                    f"the client has one transaction at a time, and {unit!r} has not ended",
                    txn_id=unit.id,
                    hint="end it first, or make the client without one_transaction_at_a_time=True",
                )

    def open(self) -> list[Unit]:
        """Those that have not ended, oldest first by their ids."""
        return sorted(self._units, key=lambda unit: unit.id or TxnId(-1, -1))

    def _leave_cluster(self, url: str) -> None:
        """Another cluster knows nothing of the transactions of this one, or takes their ids for others."""
        error = ConnectionLost(f"the client has moved to {url}, and its transactions cannot", hint="run the unit again")
        for unit in self.open():
            unit.drop(error)
        left, self.coordinators = self.coordinators, TransactionCoordinators(self.core, groups=self.groups)
        left.leave(error)
        self.groups.moved()

    async def close(self) -> None:
        """Abort what is open, and wait for ends that are under way: for `CLOSE_SECONDS` in all.

        So many at a time, because a hundred thousand that begin together would hold the loop for longer than that.
        """
        units = self.open()
        if not units:
            return
        known = [unit for unit in units if unit.has_work]
        error = AlreadyClosed("the client was closed, so the transaction was aborted", hint="end transactions before close()")
        end = self.core.runtime.monotonic() + CLOSE_SECONDS
        idle = iter([unit for unit in units if not unit.is_on_its_way])
        ending = [unit.close(error, CLOSE_SECONDS) for unit in units if unit.is_on_its_way]
        await asyncio.gather(*ending, *(self._abort_some(idle, error, end) for _ in range(min(CLOSED_TOGETHER, len(units)))))
        for number, unit in enumerate(idle):  # those for which there was no time
            unit.run_out(error)
            if not number % LEFT_PER_TURN:
                await asyncio.sleep(0)
        self._note_left(units)
        aborted = [unit for unit in known if unit.closed_by is not None]
        if aborted:
            late = sum(unit.state not in FINAL for unit in aborted)
            how = "their timeout does that" if self._guest is None else "the coordinator does that when it hears the goodbye"
            rest = f"; {late} of them could not be aborted in {CLOSE_SECONDS:g} s: {how}" if late else ""
            logger.warning("the client was closed with %d open transactions, which were aborted%s", len(aborted), rest)

    def _note_left(self, units: Sequence[Unit]) -> None:
        """Say what others decide on: nobody sees it otherwise."""
        prepared = [unit for unit in units if unit.state is TransactionState.PREPARED]
        checked = [unit for unit in units if unit.left_to_group]
        if prepared:
            text = (
                "the client was closed and leaves %d prepared transactions alone: end them with their tokens; the first is %s"
            )
            logger.warning(text, len(prepared), prepared[0].id)
        if checked:
            text = "the client was closed and leaves %d transactions to the check of their groups, the first is %s"
            logger.info(text, len(checked), checked[0].id)

    async def _abort_some(self, units: Iterator[Unit], error: PulsarError, end: float) -> None:
        """One after the other, while there are any and there is time."""
        while (seconds := end - self.core.runtime.monotonic()) > 0 and (unit := next(units, None)) is not None:
            await unit.close(error, seconds)
