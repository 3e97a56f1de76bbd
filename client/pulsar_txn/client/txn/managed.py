"""The managed block: `async with client.transaction() as txn`, and what leaving it means.

| the body ended | what happens | what the caller sees |
|---|---|---|
| normally | commit | nothing, or the commit's error |
| normally, and it is cancelled in its commit | the commit goes on and is waited for (once) | CancelledError |
| `txn.rollback()` of this transaction | abort | nothing |
| after `await txn.abort()` | nothing more | nothing |
| normally, after the client was closed, which aborts | nothing more | AlreadyClosed |
| in any way after `await txn.prepare()`, except by `txn.rollback()` | it stays prepared | the exception, with a note |
| an exception, and it has a check group and no failed operation | it stays open for the group | the exception, with a note |
| any Exception | abort; a failing abort is logged and noted on the exception | the original exception |
| CancelledError, KeyboardInterrupt, SystemExit | abort, bounded to two seconds and to what remains, shielded | the original |

The user's exception always wins. The transaction is opened by the first operation in it, or on entering with `eager=True`.

Two things are not decided here. Once a token is out, its holder may have decided: as with a database's two-phase commit, the
second phase is a call of its own and no exit of a block. With a check group, the work that goes with the transaction decides;
and an exception does not say whether that work was done, for instance when the answer to a database's COMMIT was lost.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType

from pulsar_txn.client._validation import LEAST_SECONDS
from pulsar_txn.client.errors import PulsarError, TransactionStateError
from pulsar_txn.client.state.transaction import ABORT_WAIT_SECONDS, FINAL, TransactionState
from pulsar_txn.client.txn.transaction import AsyncTransaction, Rollback, Surroundings, unit_of
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire.ids import TxnAction

logger = logging.getLogger("pulsar_txn.client.txn")


class AsyncManagedTransaction:
    """Async context manager that `client.transaction()` returns, used once."""

    def __init__(self, unit: Unit, *, eager: bool = False, ambient: bool = False) -> None:
        self._unit = unit
        self.ambient = ambient
        self._eager = eager
        self._entered = False
        self._around = Surroundings()

    async def __aenter__(self) -> AsyncTransaction:
        """Begin. TransactionStateError on a second use; with `eager` as `begin_transaction`."""
        if self._entered:
            raise TransactionStateError("client.transaction() can be entered once", hint="call client.transaction() again")
        self._unit.begin()
        self._entered = True
        if self._eager:
            await self._unit.open_now()
        self._around.enter(self._unit, joins=self.ambient)
        return AsyncTransaction(self._unit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End as the table says."""
        self._around.leave()
        rolls_back = isinstance(error, Rollback) and unit_of(error.txn) is self._unit
        if self._unit.state is TransactionState.PREPARED and not rolls_back:
            self._stay_prepared(error)
            return False
        if error is None:
            await self._leave_normally()
            return False
        if rolls_back or not await self._left_to_check(error):
            await self._abort_after(error)
        return rolls_back

    def _stay_prepared(self, error: BaseException | None) -> None:
        if error is not None:
            error.add_note(f"the transaction {self._unit.id} is prepared and stays so: end it with its token")

    async def _left_to_check(self, error: BaseException) -> bool:
        """True if the group of the transaction decides on it, because the program did not."""
        unit = self._unit
        if unit.options.check_group is None or unit.id is None or unit.failures or not unit.usable:
            return False
        if not isinstance(error, Exception):
            unit.leave_now()  # no time to wait for operations
        else:
            try:
                await unit.leave_to_check()
            except PulsarError as failed:
                error.add_note(f"the transaction {unit.id} was aborted: {failed}")
                return True
        error.add_note(f"the transaction {unit.id} is left to the check of group {unit.options.check_group!r}")
        return True

    async def _leave_normally(self) -> None:
        unit = self._unit
        if unit.state is TransactionState.COMMITTED:  # by a call, after its prepare
            return
        if unit.state in (TransactionState.ABORTED, TransactionState.ABORTING) or unit.is_unknown_abort:
            await unit.wait_closed()
            if unit.closed_by is not None:
                raise unit.closed_by
            return
        try:
            await unit.finish(TxnAction.COMMIT)
        except asyncio.CancelledError as cancelled:
            await self._see_commit_through(cancelled)
            raise

    async def _see_commit_through(self, cancelled: BaseException) -> None:
        """Wait for what becomes of it, at most the commit timeout: after the block its client may be closed."""
        try:
            await self._unit.wait_closed()
        except PulsarError as failed:
            cancelled.add_note(f"the transaction {self._unit.id} is {self._unit.state.value}: {failed}")

    async def _abort_after(self, error: BaseException) -> None:
        unit = self._unit
        if unit.state in FINAL or unit.state is TransactionState.UNKNOWN:
            return
        seconds = None if isinstance(error, Exception) else self._seconds_to_abort()
        try:
            async with asyncio.timeout(seconds):
                await unit.finish(TxnAction.ABORT, seconds)
        except (PulsarError, TimeoutError) as failed:
            extra = {"txn_id": str(unit.id), "state": unit.state.value}
            said = unit.machine.unaborted(failed)
            logger.warning("%r: %s", unit, said, extra=extra)
            error.add_note(f"the transaction {unit.id} could not be aborted: {said}")

    def _seconds_to_abort(self) -> float:
        left = self._unit.remaining
        return ABORT_WAIT_SECONDS if left is None else min(ABORT_WAIT_SECONDS, max(left, LEAST_SECONDS))
