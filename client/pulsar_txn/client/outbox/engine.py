"""What the outbox of asyncio and the blocking one have in common: their parts, and the life of one block."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import attrs

from pulsar_txn.client._checks import no_transaction
from pulsar_txn.client.errors import (
    InvalidTransactionStatus,
    OutboxOutcomeUnknown,
    OutboxWrongDatabase,
    PulsarError,
    TransactionStateError,
)
from pulsar_txn.client.net.runtime import secret_bytes
from pulsar_txn.client.outbox.block import KEY_BYTES, Block, Key
from pulsar_txn.client.outbox.checking import Checking
from pulsar_txn.client.outbox.door import Door, had
from pulsar_txn.client.outbox.doors import door_of
from pulsar_txn.client.outbox.rows import Outcome, Row, Rows, roll_back
from pulsar_txn.client.outbox.trimming import Ended
from pulsar_txn.client.state.prepared import PreparedToken
from pulsar_txn.client.state.transaction import ABORT_WAIT_SECONDS, TransactionState
from pulsar_txn.wire.ids import TxnId

T = TypeVar("T")
logger = logging.getLogger("pulsar_txn.client.outbox")

Use = Callable[[Callable[[Door], Awaitable[Any]]], Awaitable[Any]]
"""Does something with a connection of the outbox's own."""


class Engine:
    """The parts of an outbox. `use` does something with a connection of its own; `attach` is the client's `attach_prepared`."""

    def __init__(
        self, rows: Rows, use: Use, attach: Callable[[PreparedToken], Any], *, paramstyle: str | None, trim_every: int | None
    ) -> None:
        self.rows = rows
        self.use = use
        self.paramstyle = paramstyle
        self.checking = Checking(self.decide)
        self.ended = Ended(trim_every)
        self._attach = attach
        self._identity: str | None = None

    async def identity(self) -> str:
        """That of the database to which `connect` leads. It is read once. Raises as `Rows.read_identity`."""
        if self._identity is None:
            self._identity = await self.use(self.rows.read_identity)
        return self._identity

    def forget_identity(self) -> None:
        """Read it again next time: it did not fit, and `connect` may lead elsewhere now."""
        self._identity = None

    async def read_identity_early(self) -> None:
        """Read it at the start: later the connections of a pool may all be in blocks. The first block tells what fails."""
        try:
            await self.identity()
        except Exception as error:  # noqa: BLE001 - a driver's; a process that only answers needs no identity
            logger.info("the identity of the database is not read yet: %s", error)

    async def decide(self, key: Key, txn_id: TxnId) -> Outcome | None:
        """The outcome of a transaction, by its row or by a tombstone."""
        outcome: Outcome | None = await self.use(lambda door: self.rows.decide(door, key.text, txn_id, key.identity))
        return outcome

    async def end(self, row: Row) -> None:
        """End a prepared transaction as its row says. Raises as `commit()` and `abort()` of an attached transaction."""
        txn = await had(self._attach(PreparedToken(row.txn_id, bytes.fromhex(row.key))))
        await had(txn.commit() if row.outcome is Outcome.COMMIT else txn.abort())

    async def resolve(self, key: Key, txn_id: TxnId) -> TransactionState:
        """For OutboxOutcomeUnknown: decide, and end the transaction so."""
        outcome = await self.decide(key, txn_id)
        if outcome is None:
            return TransactionState.UNKNOWN
        try:
            await self.end(Row(key.text, txn_id, outcome))
        except InvalidTransactionStatus:
            if outcome is Outcome.COMMIT:
                raise
            outcome = Outcome.COMMIT  # a check was faster, and a trim has removed the row meanwhile
        return TransactionState.COMMITTED if outcome is Outcome.COMMIT else TransactionState.ABORTED

    async def older(self, before_ms: int, after: str) -> list[Row]:
        """See `trimming.RowStore`."""
        found: list[Row] = await self.use(lambda door: self.rows.older(door, before_ms, after))
        return found

    async def remove(self, keys: Sequence[str]) -> None:
        """See `trimming.RowStore`."""
        await self.use(lambda door: self.rows.remove(door, keys))

    async def remove_ended(self, *, all_of_them: bool = False) -> None:
        """Remove the rows of transactions that this process has ended, when a batch has come together."""
        due = self.ended.due(all_of_them=all_of_them)
        if not due:
            return
        try:
            await self.remove(due)
        except Exception as error:  # noqa: BLE001 - the program's work is done; the rows are removed another time
            logger.warning("%d rows of ended transactions could not be removed yet: %r", len(due), error)
            for key in due:
                self.ended.add(key)


class PulsarTransaction:
    """The Pulsar side of a block, of a client of either kind: `managed` is the block that its `transaction()` returned."""

    def __init__(self, managed: Any) -> None:
        self._managed = managed
        self._leave = getattr(managed, "__aexit__", None) or managed.__exit__
        self._is_prepared = False
        self.txn: Any = None

    async def begin(self) -> None:
        """Begin it."""
        self.txn = await had((getattr(self._managed, "__aenter__", None) or self._managed.__enter__)())

    @property
    def txn_id(self) -> TxnId:
        """See `PulsarSide`."""
        found: TxnId = self.txn.id
        return found

    @property
    def was_aborted(self) -> bool:
        """See `PulsarSide`."""
        return self.txn.state in (TransactionState.ABORTED, TransactionState.ABORTING)

    @property
    def was_committed(self) -> bool:
        """See `PulsarSide`."""
        return self.txn.state is TransactionState.COMMITTED

    async def prepare(self, secret: bytes) -> None:
        """See `PulsarSide`."""
        await had(self.txn.prepare(secret=secret))
        self._is_prepared = True

    async def leave(self, error: BaseException | None) -> bool:
        """See `PulsarSide`. The client's block ends nothing that is prepared, and after an error leaves it to the check."""
        if error is not None:
            await self._abort(None if isinstance(error, Exception) else ABORT_WAIT_SECONDS)
        elif self._is_prepared:
            await had(self.txn.commit())
        kind = None if error is None else type(error)
        swallowed = await had(self._leave(kind, error, None if error is None else error.__traceback__))
        return bool(swallowed)

    async def _abort(self, seconds: float | None) -> None:
        try:
            await had(self.txn.abort(timeout=seconds))
        except PulsarError as failed:
            logger.warning(
                "the abort of %r failed; the group of the outbox is asked, or its timeout ends it: %s", self.txn, failed
            )


@attrs.define
class BlockLife:
    """One `with outbox.transaction(connection)`, entered once. `managed_of` makes the client's block for a key."""

    engine: Engine
    connection: Any
    managed_of: Callable[[Key], Any]
    blocking: bool
    _block: Block | None = None
    _key: Key | None = None
    _pulsar: PulsarTransaction | None = None

    @property
    def inside(self) -> Any:
        """A block is no transaction: its `as` target is."""
        raise no_transaction(self)

    async def enter(self) -> Any:
        """Begin in the database, and in Pulsar; the transaction of the client's kind."""
        if self._key is not None:
            raise TransactionStateError("outbox.transaction() can be entered once", hint="call outbox.transaction() again")
        door = door_of(self.connection, self.engine.paramstyle)
        if self.blocking and not door.blocking:
            raise TransactionStateError("this connection is asynchronous", hint="use AsyncOutbox with an AsyncClient")
        identity = await self.engine.identity()
        with self._forgetting():
            await self.engine.rows.identity.check_before(door, identity, "the block's connection")
        key = self._key = Key(secret_bytes(KEY_BYTES), identity)
        pulsar = self._pulsar = PulsarTransaction(self.managed_of(key))
        await door.begin()
        self.engine.checking.in_hand.add(key)
        try:
            await pulsar.begin()
        except BaseException:
            self.engine.checking.in_hand.discard(key)
            await roll_back(door)
            raise
        self._block = Block(key, self.engine.rows, door, pulsar, lambda: self.engine.decide(key, pulsar.txn_id))
        return pulsar.txn

    async def leave(self, error: BaseException | None) -> bool:
        """End both; see `block`."""
        block, key, pulsar = self._block, self._key, self._pulsar
        if block is None or key is None or pulsar is None:
            raise TransactionStateError("the block was not entered")
        try:
            with self._forgetting():
                swallowed = await block.leave(error)
        except OutboxOutcomeUnknown as unknown:
            txn_id = pulsar.txn_id
            unknown.resolver = lambda: self.engine.resolve(key, txn_id)
            raise
        finally:
            self.engine.checking.in_hand.discard(key)
        if block.is_ended:
            self.engine.ended.add(key.text)
            await self.engine.remove_ended()
        return swallowed

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        try:
            yield
        except OutboxWrongDatabase:
            self.engine.forget_identity()
            raise
