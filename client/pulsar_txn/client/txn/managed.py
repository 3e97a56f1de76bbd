"""The managed block: `async with client.transaction() as txn`, and what leaving it means.

| the body ended | what happens | what the caller sees |
|---|---|---|
| normally | commit | nothing, or the commit's error |
| normally, and it is cancelled in its commit | the commit goes on and is waited for (once) | CancelledError |
| `txn.rollback()` of this transaction | abort | nothing |
| after `await txn.abort()` | nothing more | nothing |
| any Exception | abort; a failing abort is logged and noted on the exception | the original exception |
| CancelledError, KeyboardInterrupt, SystemExit | abort, bounded to two seconds and to what remains, shielded | the original |

The user's exception always wins.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from types import TracebackType

from pulsar_txn.client._checks import LEAST_SECONDS, no_transaction
from pulsar_txn.client.errors import PulsarError, TransactionStateError
from pulsar_txn.client.txn.enlist import AMBIENT, Enlisting, leave_ambient
from pulsar_txn.client.txn.transaction import ABORT_WAIT_SECONDS, AsyncTransaction, Rollback, TransactionState
from pulsar_txn.wire.ids import TxnAction

logger = logging.getLogger("pulsar_txn.client.txn")


class AsyncManagedTransaction:
    """What `client.transaction()` returns: an async context manager, used once."""

    def __init__(self, txn: AsyncTransaction, *, lazy: bool = False, ambient: bool = False) -> None:
        self._txn = txn
        self._lazy = lazy
        self.ambient = ambient
        self._entered = False
        self._reset: contextvars.Token[Enlisting | None] | None = None

    @property
    def usable(self) -> bool:
        """What is asked of transactions; this is none, its block has to be entered."""
        raise no_transaction(self)

    async def __aenter__(self) -> AsyncTransaction:
        """Begin. Raises TransactionsDisabled, ConnectionLost, OperationTimeout, …; TransactionStateError on a second use."""
        if self._entered:
            raise TransactionStateError("client.transaction() can be entered once", hint="call client.transaction() again")
        self._entered = True
        if not self._lazy:
            try:
                await self._txn.open()
            except asyncio.CancelledError:
                self._txn.abandon()
                raise
        if self.ambient:
            self._reset = AMBIENT.set(self._txn)
        return self._txn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End as the table says."""
        leave_ambient(self._reset)
        if error is None:
            await self._leave_normally()
            return False
        if isinstance(error, Rollback) and error.txn is self._txn:
            await self._abort_behind(error)
            return True
        await self._abort_behind(error)
        return False

    async def _leave_normally(self) -> None:
        if self._txn.state in (TransactionState.ABORTED, TransactionState.ABORTING):
            await self._txn.wait_closed()
            return
        try:
            await self._txn.finish(TxnAction.COMMIT)
        except asyncio.CancelledError as cancelled:
            await self._see_commit_through(cancelled)
            raise

    async def _see_commit_through(self, cancelled: BaseException) -> None:
        """Wait for what becomes of it, at most the commit timeout: behind the block its client may be closed."""
        try:
            await self._txn.wait_closed()
        except PulsarError as failed:
            cancelled.add_note(f"the transaction {self._txn.id} is {self._txn.state.value}: {failed}")

    async def _abort_behind(self, error: BaseException) -> None:
        if self._txn.state in (TransactionState.ABORTED, TransactionState.UNKNOWN, TransactionState.ERROR):
            return
        seconds = None if isinstance(error, Exception) else self._seconds_to_abort()
        try:
            async with asyncio.timeout(seconds):
                await self._txn.abort(timeout=seconds)
        except (PulsarError, TimeoutError) as failed:
            extra = {"txn_id": str(self._txn.id), "state": self._txn.state.value}
            text = "the abort of %r failed; its coordinator aborts it at its timeout: %s"
            logger.warning(text, self._txn, failed, extra=extra)
            error.add_note(f"the transaction {self._txn.id} could not be aborted ({failed}); its timeout does that")

    def _seconds_to_abort(self) -> float:
        left = self._txn.remaining
        return ABORT_WAIT_SECONDS if left is None else min(ABORT_WAIT_SECONDS, max(left, LEAST_SECONDS))
