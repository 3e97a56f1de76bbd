"""One block: a database transaction and a Pulsar transaction that end alike, whatever stops the process.

    begin in the database ─ the program: sends, acknowledgements, rows ─ INSERT the outcome row ─ PREPARE ─ COMMIT ─ END_TXN
                                                                           (not committed)    durable   decides

* **The row is written before PREPARE.** A check writes its tombstone under the same key, and only for a prepared transaction.
  The database transaction has then inserted the key, so the tombstone waits until that one has ended, and what it finds is
  final: no commit can come after a tombstone, however slow the process is, and even when tombstones have been removed.
* **PREPARE comes before COMMIT.** What the database commits can therefore always be committed in Pulsar: a prepared transaction
  outlives timeouts, lost connections and restarts.
* **The row decides.** After COMMIT nothing is rolled back any more. When END_TXN fails, the coordinator asks the group.
* **The identity is compared after the row is written**, in the same transaction and before PREPARE: so the row is where a check
  will look for it. A query before the program's first statement could change what the program's transaction sees or gets.
* A COMMIT whose answer is lost is asked for in the same way: by the tombstone, over another connection.

Source: KIP-939 for the order of the two prepares; RocketMQ's back-check for who asks.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import attrs

from pulsar_txn.client.errors import (
    InvalidTransactionStatus,
    OutboxAborted,
    OutboxDiverged,
    OutboxOutcomeUnknown,
    PulsarError,
    TransactionAborted,
    TransactionNotFound,
    TransactionStateError,
)
from pulsar_txn.client.outbox.door import Door, is_integrity_error, is_refusal
from pulsar_txn.client.outbox.rows import Outcome, Rows, roll_back
from pulsar_txn.wire.ids import TxnId

logger = logging.getLogger("pulsar_txn.client.outbox")

_LATER: Final = "the coordinator asks the group of the outbox, which reads the row"


class PulsarSide(Protocol):
    """The Pulsar transaction of a block; of a blocking client, calls that never wait."""

    @property
    def txn_id(self) -> TxnId:
        """Its id: it is open since the block was entered."""
        ...

    @property
    def was_aborted(self) -> bool:
        """True if the program has aborted it inside of the block."""
        ...

    @property
    def was_committed(self) -> bool:
        """True if the coordinator has committed it, as far as is known here."""
        ...

    async def prepare(self, secret: bytes) -> None:
        """Wait for its operations, and have it prepared."""
        ...

    async def leave(self, error: BaseException | None) -> bool:
        """Commit without an error; with one, abort as a managed block does, and tell whether that swallows the error."""
        ...


KEY_BYTES: Final = 16


@attrs.frozen
class Key:
    """What a transaction is called in the database and at the coordinator: random bytes, and the database's identity."""

    data: bytes
    identity: str | None = None
    """See `identity`. None of a transaction that was begun before there were identities."""

    @property
    def text(self) -> str:
        """As in the column `txn_key`."""
        return self.data.hex()


class Block:
    """The two transactions of one block. `decide` is the check of this transaction over a connection of its own."""

    def __init__(
        self, key: Key, rows: Rows, door: Door, pulsar: PulsarSide, decide: Callable[[], Awaitable[Outcome | None]]
    ) -> None:
        self._key = key
        self._rows = rows
        self._door = door
        self._pulsar = pulsar
        self._decide = decide
        self.is_ended = False
        """Whether the coordinator has ended it with the commit, so that the row may go."""

    async def leave(self, error: BaseException | None) -> bool:
        """End both. Returns whether an error of the block is swallowed.

        What fails before COMMIT is raised as it is, with both sides rolled back. Also raises OutboxAborted,
        OutboxOutcomeUnknown and OutboxDiverged.
        """
        if error is not None:
            return await self._give_up(error)
        await self._leave_normally()
        return False

    async def _leave_normally(self) -> None:
        if self._pulsar.was_aborted:
            await self._door.rollback()
            await self._pulsar.leave(None)
            return
        try:
            await self._write_and_prepare()
        except BaseException as error:
            await self._give_up(error)
            raise
        try:
            await self._door.commit()
        except BaseException as error:  # noqa: BLE001 - raised there, unless the database has committed
            await self._after_failed_commit(error)
        if not self._pulsar.was_committed:
            await self._finish()

    async def _write_and_prepare(self) -> None:
        await self._door.settle()
        try:
            await self._rows.insert(self._door, self._key.text, self._pulsar.txn_id)
        except Exception as error:
            if is_integrity_error(error):
                raise OutboxAborted("a check had aborted it before its row was written", txn_id=self._pulsar.txn_id) from error
            raise
        if self._door.in_transaction() is False:
            await self._rows.remove(self._door, [self._key.text])
            raise TransactionStateError(
                "the database commits each statement by itself (autocommit)", hint="give a connection with transactions"
            )
        await self._rows.identity.check(self._door, self._key.identity, "the block's connection")
        try:
            await self._pulsar.prepare(self._key.data)
        except (InvalidTransactionStatus, TransactionNotFound) as error:
            text = "the coordinator had ended the transaction before it was prepared"
            raise OutboxAborted(text, txn_id=self._pulsar.txn_id) from error

    async def _give_up(self, error: BaseException) -> bool:
        """Roll both back. The error of the block wins."""
        failed = await roll_back(self._door)
        if failed is not None:
            error.add_note(f"the database connection could not roll back ({failed!r}); without it the database does")
        return await self._pulsar.leave(error)

    async def _after_failed_commit(self, error: BaseException) -> None:
        """Return when the database has committed all the same; otherwise raise, with Pulsar aborted or left to the check."""
        refused = is_refusal(error, self._door)
        if await roll_back(self._door) is None and refused:
            await self._pulsar.leave(error)
            raise error
        if not isinstance(error, Exception):
            error.add_note(f"whether the database has committed {self._pulsar.txn_id} is not known; {_LATER}")
            raise error
        if await self._asked(error) is Outcome.COMMIT:
            logger.warning("COMMIT of %s failed (%r), but the database has committed it", self._pulsar.txn_id, error)
            return
        await self._pulsar.leave(error)
        if self._pulsar.was_committed:
            return  # a check was faster, and a trim has removed the row meanwhile: the tombstone says nothing
        error.add_note(f"the database has not committed; the transaction {self._pulsar.txn_id} is aborted")
        raise error

    async def _asked(self, error: Exception) -> Outcome:
        text = f"COMMIT of the database failed ({type(error).__name__}: {error}), and its outcome is not known"
        try:
            outcome = await self._decide()
        except Exception as failed:
            raise OutboxOutcomeUnknown(text, txn_id=self._pulsar.txn_id) from failed
        if outcome is None:
            raise OutboxOutcomeUnknown(text, txn_id=self._pulsar.txn_id) from error
        return outcome

    async def _finish(self) -> None:
        """Commit in Pulsar what the database has committed."""
        txn_id = self._pulsar.txn_id
        try:
            await self._pulsar.leave(None)
        except TransactionAborted as error:
            raise OutboxDiverged("the database has committed, and somebody has aborted in Pulsar", txn_id=txn_id) from error
        except PulsarError as error:
            logger.warning("%s is committed in the database, and END_TXN failed (%s): %s", txn_id, error, _LATER)
        else:
            self.is_ended = True
