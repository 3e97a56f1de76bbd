"""The work of an outbox of either kind: one block, the answers to checks, and the connections for them.

A block is a database transaction and a Pulsar transaction that end alike, whatever stops the process:

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

A check must not share the program's connection: it writes a transaction of its own, and may wait there for the program's. So
checks and trims have connections of the outbox's own, one for each use, made by the program's `connect`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

import attrs

from pulsar_txn.client._validation import seconds_of
from pulsar_txn.client.errors import (
    InvalidConfiguration,
    InvalidTransactionStatus,
    OutboxAborted,
    OutboxDiverged,
    OutboxOutcomeUnknown,
    OutboxWrongDatabase,
    PulsarError,
    TransactionAborted,
    TransactionNotFound,
    TransactionStateError,
)
from pulsar_txn.client.net.runtime import Future, WorkerThread, secret_bytes
from pulsar_txn.client.net.thread_futures import answer
from pulsar_txn.client.outbox.database import (
    DatabasePort,
    at_once,
    check_paramstyle,
    check_table,
    chosen_dialect,
    had,
    is_integrity_error,
    is_refusal,
)
from pulsar_txn.client.outbox.drivers import port_of
from pulsar_txn.client.outbox.rows import IDENTITY_BYTES, Ended, Outcome, Row, Rows, TrimResult, roll_back, trim
from pulsar_txn.client.state.prepared import PreparedToken
from pulsar_txn.client.state.transaction import ABORT_WAIT_SECONDS, TransactionState
from pulsar_txn.client.txn.check_groups import CheckQuestion, LocalOutcome, check_group_name
from pulsar_txn.wire.ids import TxnId

T = TypeVar("T")


class Connections:
    """Makes them, and closes them (or gives them back to their pool)."""

    def __init__(self, connect: Any, paramstyle: str | None) -> None:
        given, connect = (
            connect,
            connect if callable(connect) else getattr(connect, "connect", None),
        )  # of an engine of SQLAlchemy
        if not callable(connect):
            needed = "a function that returns a new database connection, or an engine of SQLAlchemy"
            kind = type(given).__name__  # not what was given: the address of a database has its password
            raise InvalidConfiguration(f"connect must be {needed}, not a value of type {kind}")
        self._connect: Callable[[], Any] = connect
        self._paramstyle = paramstyle
        self._thread: WorkerThread | None = None

    async def use(self, work: Callable[[DatabasePort], Awaitable[T]]) -> T:
        """Run `work` with a connection, in the thread that calls."""
        async with self._opened() as port:
            return await work(port)

    async def use_beside_loop(self, work: Callable[[DatabasePort], Awaitable[T]]) -> T:
        """The same for an event loop: with a blocking driver in a thread of its own, because a check may wait for a lock."""
        if self._thread is None:
            async with self._opened() as port:
                if not port.blocking:
                    return await work(port)
            self._thread = WorkerThread("pulsar-txn-outbox")
        reply: Future[T] = Future()
        self._thread.submit(functools.partial(answer, only=True), reply, lambda: at_once(self.use(work)), ())
        return await asyncio.wrap_future(reply)

    def close(self) -> None:
        """End the thread after what it was given."""
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[DatabasePort]:
        made = self._connect()
        if not (hasattr(made, "execute") or hasattr(made, "cursor")):
            if hasattr(made, "__aenter__"):  # of an asynchronous pool
                async with made as connection:
                    yield port_of(connection, self._paramstyle)
                return
            if hasattr(made, "__enter__"):
                with made as connection:
                    yield port_of(connection, self._paramstyle)
                return
        connection = await had(made) if inspect.isawaitable(made) else made
        port = port_of(connection, self._paramstyle)
        try:
            yield port
        finally:
            await port.close()


logger = logging.getLogger("pulsar_txn.client.outbox")

_LATER: Final = "the coordinator asks the group of the outbox, which reads the row"


KEY_BYTES: Final = 16


@attrs.frozen
class Key:
    """Name of a transaction in the database and at the coordinator: random bytes, and the database's identity."""

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
        self,
        key: Key,
        rows: Rows,
        port: DatabasePort,
        pulsar: PulsarTransaction,
        decide: Callable[[], Awaitable[Outcome | None]],
    ) -> None:
        self._key = key
        self._rows = rows
        self._port = port
        self._pulsar = pulsar
        self._decide = decide
        self.is_ended = False
        """True if the coordinator has ended it with the commit, so that the row may go."""

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
            await self._port.rollback()
            await self._pulsar.leave(None)
            return
        try:
            await self._write_and_prepare()
        except BaseException as error:
            await self._give_up(error)
            raise
        try:
            await self._port.commit()
        except BaseException as error:  # noqa: BLE001 - raised there, unless the database has committed
            await self._after_failed_commit(error)
        if not self._pulsar.was_committed:
            await self._finish()

    async def _write_and_prepare(self) -> None:
        await self._port.settle()
        try:
            await self._rows.insert(self._port, self._key.text, self._pulsar.txn_id)
        except Exception as error:
            if is_integrity_error(error):
                raise OutboxAborted("a check had aborted it before its row was written", txn_id=self._pulsar.txn_id) from error
            raise
        if self._port.in_transaction() is False:
            await self._rows.remove(self._port, [self._key.text])
            raise TransactionStateError(
                "the database commits each statement by itself (autocommit)", hint="give a connection with transactions"
            )
        await self._rows.identity.check(self._port, self._key.identity, "the block's connection")
        try:
            await self._pulsar.prepare(self._key.data)
        except (InvalidTransactionStatus, TransactionNotFound) as error:
            text = "the coordinator had ended the transaction before it was prepared"
            raise OutboxAborted(text, txn_id=self._pulsar.txn_id) from error

    async def _give_up(self, error: BaseException) -> bool:
        """Roll both back. The error of the block wins."""
        failed = await roll_back(self._port)
        if failed is not None:
            error.add_note(f"the database connection could not roll back ({failed!r}); without it the database does")
        return await self._pulsar.leave(error)

    async def _after_failed_commit(self, error: BaseException) -> None:
        """Return if the database has committed all the same; otherwise raise, with Pulsar aborted or left to the check."""
        refused = is_refusal(error, self._port)
        if await roll_back(self._port) is None and refused:
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


_WITHOUT_IDENTITY: Final = b"outbox1:"
"""Then 16 bytes of key. Written before there were identities; such transactions may still be prepared."""
_WITH_IDENTITY: Final = b"outbox2:"
"""Then 16 bytes of key and 16 of the database's identity."""
_ANSWERS: Final = {Outcome.COMMIT: LocalOutcome.COMMIT, Outcome.ABORT: LocalOutcome.ROLLBACK, None: LocalOutcome.UNKNOWN}


def check_data_of(key: Key) -> bytes:
    """Make the data that the coordinator keeps of a block for its check."""
    return _WITHOUT_IDENTITY + key.data if key.identity is None else _WITH_IDENTITY + key.data + bytes.fromhex(key.identity)


def key_of(data: bytes) -> Key | None:
    """The key in it; None for data of something else, or of a newer version."""
    version, rest = data[: len(_WITH_IDENTITY)], data[len(_WITH_IDENTITY) :]
    if version == _WITHOUT_IDENTITY and len(rest) == KEY_BYTES:
        return Key(rest)
    if version == _WITH_IDENTITY and len(rest) == KEY_BYTES + IDENTITY_BYTES:
        return Key(rest[:KEY_BYTES], rest[KEY_BYTES:].hex())
    return None


class Checking:
    """Answers for one outbox. `decide(key, txn_id)` asks the database; it may raise whatever a driver raises."""

    def __init__(self, decide: Callable[[Key, TxnId], Awaitable[Outcome | None]]) -> None:
        self._decide = decide
        self.in_hand: set[Key] = set()
        """Of the blocks of this process that have not been left yet: they decide themselves."""

    async def answer(self, question: CheckQuestion) -> LocalOutcome:
        """The outcome of a transaction of the group.

        An open one is not known: its COMMIT waits for PREPARE, so nothing has been decided, and its timeout ends it. Only for a
        prepared one a tombstone may be written: before PREPARE the program has not inserted the row yet.
        """
        key = key_of(question.data)
        if key is None:
            logger.error("a check of %s has data that no outbox of this version wrote", question.txn_id)
            return LocalOutcome.UNKNOWN
        if key in self.in_hand or not question.prepared:
            return LocalOutcome.UNKNOWN
        try:
            outcome = await self._decide(key, question.txn_id)
        except OutboxWrongDatabase as error:
            logger.warning("the check of %s is not answered here, and nothing is written: %s", question.txn_id, error)
            return LocalOutcome.UNKNOWN
        except Exception as error:  # noqa: BLE001 - a driver's: a lock that is held, a database that is down
            logger.warning("the check of %s failed and is repeated by the coordinator: %r", question.txn_id, error)
            return LocalOutcome.UNKNOWN
        logger.info("%s is checked: %s", question.txn_id, "not known yet" if outcome is None else outcome.value)
        return _ANSWERS[outcome]


Use = Callable[[Callable[[DatabasePort], Awaitable[Any]]], Awaitable[Any]]
"""Does something with a connection of the outbox's own."""


class Engine:
    """The parts of an outbox. `use` does something with a connection of its own; `client` is one of either kind."""

    def __init__(self, rows: Rows, use: Use, client: Any, *, paramstyle: str | None, trim_every: int | None) -> None:
        self.rows = rows
        self.use = use
        self.paramstyle = paramstyle
        self.checking = Checking(self.decide)
        self.ended = Ended(trim_every)
        self._client = client
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
        outcome: Outcome | None = await self.use(lambda port: self.rows.decide(port, key.text, txn_id, key.identity))
        return outcome

    async def end(self, row: Row) -> None:
        """End a prepared transaction as its row says. Raises as `commit()` and `abort()` of an attached transaction."""
        txn = await had(self._client.attach_prepared(PreparedToken(row.txn_id, bytes.fromhex(row.key))))
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
        found: list[Row] = await self.use(lambda port: self.rows.older(port, before_ms, after))
        return found

    async def remove(self, keys: Sequence[str]) -> None:
        """See `trimming.RowStore`."""
        await self.use(lambda port: self.rows.remove(port, keys))

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
    """The Pulsar transaction of a block, of a client of either kind; of a blocking client, calls that never wait.

    `managed` is the block that the client's `transaction()` returned.
    """

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
        """Its id: it is open since the block was entered."""
        found: TxnId = self.txn.id
        return found

    @property
    def was_aborted(self) -> bool:
        """True if the program has aborted it inside of the block."""
        return self.txn.state in (TransactionState.ABORTED, TransactionState.ABORTING)

    @property
    def was_committed(self) -> bool:
        """True if the coordinator has committed it, as far as is known here."""
        return self.txn.state is TransactionState.COMMITTED

    async def prepare(self, secret: bytes) -> None:
        """Wait for its operations, and have it prepared."""
        await had(self.txn.prepare(secret=secret))
        self._is_prepared = True

    async def leave(self, error: BaseException | None) -> bool:
        """Commit without an error; with one, abort as a managed block does, and tell whether that swallows the error.

        The client's block ends nothing that is prepared, and after an error leaves it to the check.
        """
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

    async def enter(self) -> Any:
        """Begin in the database, and in Pulsar; the transaction of the client's kind."""
        if self._key is not None:
            raise TransactionStateError("outbox.transaction() can be entered once", hint="call outbox.transaction() again")
        port = port_of(self.connection, self.engine.paramstyle)
        if self.blocking and not port.blocking:
            raise TransactionStateError("this connection is asynchronous", hint="use AsyncOutbox with an AsyncClient")
        identity = await self.engine.identity()
        with self._forgetting():
            await self.engine.rows.identity.check_before(port, identity, "the block's connection")
        key = self._key = Key(secret_bytes(KEY_BYTES), identity)
        pulsar = self._pulsar = PulsarTransaction(self.managed_of(key))
        await port.begin()
        self.engine.checking.in_hand.add(key)
        try:
            await pulsar.begin()
        except BaseException:
            self.engine.checking.in_hand.discard(key)
            await roll_back(port)
            raise
        self._block = Block(key, self.engine.rows, port, pulsar, lambda: self.engine.decide(key, pulsar.txn_id))
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


TRIM_EVERY: Final = 500
OLDER_THAN: Final = timedelta(hours=1)


class OutboxCore:
    """Core of an outbox, blocking or asyncio: its connections, its engine and its blocks.

    `client` is one of the outbox's kind; `wall_ms` is its clock. `blocking`: a check may hold up the thread. Raises
    InvalidConfiguration. The coroutines of a blocking outbox never wait (`at_once`).
    """

    def __init__(
        self,
        client: Any,
        wall_ms: Callable[[], int],
        group: str,
        connect: Any,
        *,
        table: str,
        dialect: str | None,
        paramstyle: str | None,
        check_after: float | timedelta | None,
        trim_every: int | None,
        blocking: bool,
    ) -> None:
        self._client = client
        self._wall_ms = wall_ms
        self._group = _check_group(group)
        self._check_after = None if check_after is None else seconds_of(check_after, "check_after")
        self._paramstyle = None if paramstyle is None else check_paramstyle(paramstyle)
        self._blocking = blocking
        self.connections = Connections(connect, self._paramstyle)
        self.engine = Engine(
            Rows(check_table(table), group, chosen_dialect(dialect), wall_ms),
            self.connections.use if blocking else self.connections.use_beside_loop,
            client,
            paramstyle=self._paramstyle,
            trim_every=_check_trim_every(trim_every),
        )

    def block(self, connection: Any, options: Mapping[str, Any]) -> BlockLife:
        """One block over a database connection; `options` are those of the client's `transaction()`."""

        def managed_of(key: Key) -> Any:
            return self._client.transaction(
                **options,
                eager=True,
                check_group=self._group,
                check_data=check_data_of(key),
                check_after=self._check_after,
            )

        return BlockLife(self.engine, connection, managed_of, blocking=self._blocking)

    async def create_table(self, connection: Any) -> None:
        """Over `connection`, or without one over one of the outbox's own."""
        create = self.engine.rows.create
        await (self.engine.use(create) if connection is None else create(port_of(connection, self._paramstyle)))

    async def trim(self, older_than: float | timedelta) -> TrimResult:
        """Remove the rows of ended transactions that were written more than `older_than` ago."""
        before = self._wall_ms() - int(seconds_of(older_than, "older_than") * 1000)
        return await trim(self.engine, self.engine.end, before)


def _check_group(group: str) -> str:
    check_group_name("group", group)
    if len(group) > 255:
        raise InvalidConfiguration("the name of the group has more than 255 characters", hint="the column holds 255")
    return group


def _check_trim_every(trim_every: int | None) -> int | None:
    if trim_every is not None and (not isinstance(trim_every, int) or trim_every < 1):
        raise InvalidConfiguration(f"trim_every={trim_every!r} is no number from 1", hint="None removes nothing by itself")
    return trim_every
