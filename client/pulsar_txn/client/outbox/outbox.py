"""The outbox of asyncio and that of threads: the same blocks over either client and drivers of either kind."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pulsar_txn.client.errors import OutboxOutcomeUnknown
from pulsar_txn.client.net.runtime import Lock
from pulsar_txn.client.outbox.database import (
    DEFAULT_TABLE,
    POSTGRESQL,
    at_once,
    check_table,
    chosen_dialect,
    create_table_sql,
    had,
    identity_table_sql,
)
from pulsar_txn.client.outbox.engine import OLDER_THAN, TRIM_EVERY, BlockLife, OutboxCore
from pulsar_txn.client.outbox.rows import TrimResult
from pulsar_txn.client.sync.blocking import inner
from pulsar_txn.client.txn.transactions import core_of

if TYPE_CHECKING:
    from pulsar_txn.client.client import AsyncClient
    from pulsar_txn.client.sync.classes import Client, Transaction
    from pulsar_txn.client.txn.check_groups import CheckQuestion, LocalOutcome
    from pulsar_txn.client.txn.transaction import AsyncTransaction


def table_sql(table: str = DEFAULT_TABLE, dialect: str | None = "postgresql") -> str:
    """The CREATE TABLE of an outbox, for a migration: `dialect` is postgresql, sqlite or generic. InvalidConfiguration."""
    return create_table_sql(check_table(table), chosen_dialect(dialect) or POSTGRESQL)


def identity_sql(table: str = DEFAULT_TABLE, dialect: str | None = "postgresql") -> str:
    """The CREATE TABLE of the identity, with the arguments of `table_sql`. The outbox writes its row over `connect`."""
    return identity_table_sql(check_table(table), chosen_dialect(dialect) or POSTGRESQL)


class AsyncOutbox:
    """A database in the transaction: what one database transaction writes, and what one Pulsar transaction sends, or neither.

    `async with outbox.transaction(connection) as txn:` sends and acknowledges with `txn`, and executes SQL on `connection`. The
    commit of the database is the decision: it has a row of the outbox's table, and the Pulsar transaction follows it, also
    when this process dies in between. Then the coordinator asks a member of the `group`, which reads the row: any process that
    has an outbox of this group open, also a later one. Without a row it writes a tombstone first.

    `connect` returns a new connection for checks and trims: a function, a pool's `connection` or `acquire`, or an engine
    of SQLAlchemy. It must lead to the same database and schema as the connections of the blocks, and to its primary; blocks
    and checks compare the identity of the database, a random number in a table beside the outbox's. With a blocking driver
    checks run in a thread of their own. Connections are those of psycopg 3, asyncpg, aiosqlite, sqlite3, SQLAlchemy 2
    (connections and sessions), or of DB-API 2.0.

    A group and table belong to one coordinator: that of one cluster, or one beside clusters. `dialect` (postgresql, sqlite,
    generic) and `paramstyle` are found from the connection when they are left out. `check_after`: seconds or a timedelta after
    which the coordinator asks (by default its own setting, 6 s). `trim_every`: after so many transactions of this process
    their rows are removed together; None leaves all rows to `trim()`. Raises InvalidConfiguration.
    """

    def __init__(
        self,
        client: AsyncClient,
        group: str,
        connect: Any,
        *,
        table: str = DEFAULT_TABLE,
        dialect: str | None = None,
        paramstyle: str | None = None,
        check_after: float | timedelta | None = None,
        trim_every: int | None = TRIM_EVERY,
    ) -> None:
        self._client = client
        self._group = group
        self._core = OutboxCore(
            client,
            core_of(client).runtime.wall_ms,
            group,
            connect,
            table=table,
            dialect=dialect,
            paramstyle=paramstyle,
            check_after=check_after,
            trim_every=trim_every,
            blocking=False,
        )
        self._engine = self._core.engine
        self._membership: Any = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Join the group, so that this process can be asked. Blocks do it as well; call it in a process that only answers.

        It also reads the identity of the database, if that can be read now. Raises FeatureUnsupported where the coordinator has
        no checks (stock Pulsar's own), ConnectionLost, OperationTimeout, AlreadyClosed. Safe to cancel and to repeat.
        """
        async with self._starting:
            if self._membership is None:
                self._membership = await had(self._client.join_check_group(self._group, self._engine.checking.answer))
                await self._engine.read_identity_early()

    async def close(self) -> None:
        """Leave the group, and remove the rows of this process's ended transactions. The client stays open."""
        async with self._starting:
            membership, self._membership = self._membership, None
            if membership is not None:
                await membership.close()
        await self._engine.remove_ended(all_of_them=True)
        self._core.connections.close()

    async def __aenter__(self) -> Self:
        """`start()`."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """`close()`."""
        await self.close()

    def transaction(
        self,
        connection: Any,
        *,
        timeout: float | timedelta = 60.0,
        name: str | None = None,
        commit_timeout: float | timedelta | None = None,
        abort_on_disconnect: bool = False,
        ambient: bool = False,
    ) -> AsyncOutboxTransaction:
        """A block over a database connection: `async with outbox.transaction(connection) as txn: …`.

        Entering it begins both transactions; an open one of the connection is joined, except with asyncpg. Leaving it waits for
        the sends and acknowledgements of `txn`, writes the row, prepares, commits the database, and then Pulsar. Leave commit
        and rollback of the connection to it. `timeout`, `name`, `commit_timeout`, `abort_on_disconnect`, `ambient` as those of
        `client.transaction()`: the timeout holds until the database's commit begins.

        Entering raises OutboxWrongDatabase, before anything begins, when the connection and `connect` lead to different
        databases, or there is no identity. Where a driver cannot be asked before its transaction (SQLAlchemy, DB-API 2.0, a
        transaction that is joined), the end of the block raises it. The end always compares, before it prepares.

        An exception in the block rolls both back, and is raised. The end raises what the driver or Pulsar raised, after both
        were rolled back; OutboxAborted when a check was faster, OutboxOutcomeUnknown when COMMIT was not answered and the
        database cannot be asked, OutboxDiverged when somebody has aborted in Pulsar what the database committed. It does not
        raise when only the end in Pulsar failed: the commit is decided, and follows. If cancelled before COMMIT both are rolled
        back; during COMMIT the check decides.
        """
        options = {
            "timeout": timeout,
            "name": name,
            "commit_timeout": commit_timeout,
            "abort_on_disconnect": abort_on_disconnect,
            "ambient": ambient,
        }
        return AsyncOutboxTransaction(self, self._core.block(connection, options))

    async def create_table(self, connection: Any = None) -> None:
        """Create the table and the identity, and commit: with `connection`, or one of the outbox's own. What exists is kept.

        Call it once for a table that an earlier version made: the identity is missing there. Raises what the driver raises.
        `table_sql()` and `identity_sql()` are the texts for a migration.
        """
        await self._core.create_table(connection)

    async def trim(self, older_than: float | timedelta = OLDER_THAN) -> TrimResult:
        """Remove rows of the group that were written more than `older_than` ago (seconds or a timedelta).

        Only rows of transactions that the coordinator has ended: each is ended by its row's outcome first, which is idempotent.
        Rows of a coordinator that does not answer are kept. So it also finishes what a crash has left.
        Raises what the driver raises. Safe to cancel and to repeat, and to run in several processes.
        """
        return await self._core.trim(older_than)


class AsyncOutboxTransaction:
    """Async context manager that `outbox.transaction(connection)` returns, used once."""

    def __init__(self, outbox: AsyncOutbox, life: BlockLife) -> None:
        self._outbox = outbox
        self._life = life

    async def __aenter__(self) -> AsyncTransaction:
        """Begin both; see `AsyncOutbox.transaction`."""
        await self._outbox.start()
        txn: AsyncTransaction = await self._life.enter()
        return txn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End both; see `AsyncOutbox.transaction`."""
        return await self._life.leave(error)


class Outbox:
    """`AsyncOutbox` for threads: `with outbox.transaction(connection) as txn: …`, over a `Client`. Its threads may share it.

    Arguments as those of `AsyncOutbox`. Checks run in the client's thread for questions. Connections are those of psycopg 3,
    sqlite3, SQLAlchemy 2 (connections and sessions), or of DB-API 2.0.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        connect: Any,
        *,
        table: str = DEFAULT_TABLE,
        dialect: str | None = None,
        paramstyle: str | None = None,
        check_after: float | timedelta | None = None,
        trim_every: int | None = TRIM_EVERY,
    ) -> None:
        self._client = client
        self._group = group
        self._core = OutboxCore(
            client,
            core_of(inner(client)).runtime.wall_ms,
            group,
            connect,
            table=table,
            dialect=dialect,
            paramstyle=paramstyle,
            check_after=check_after,
            trim_every=trim_every,
            blocking=True,
        )
        self._engine = self._core.engine
        self._membership: Any = None
        self._starting = Lock()

    def _answer(self, question: CheckQuestion) -> LocalOutcome:
        return at_once(self._engine.checking.answer(question))

    def start(self) -> None:
        """Join the group, so that this process can be asked. Blocks do it as well; call it in a process that only answers.

        It also reads the identity of the database, if that can be read now. Raises FeatureUnsupported where the coordinator has
        no checks (stock Pulsar's own), ConnectionLost, OperationTimeout, AlreadyClosed. Safe to repeat.
        """
        with self._starting:
            if self._membership is None:
                self._membership = self._client.join_check_group(self._group, self._answer)
                at_once(self._engine.read_identity_early())

    def close(self) -> None:
        """Leave the group, and remove the rows of this process's ended transactions. The client stays open."""
        with self._starting:
            membership, self._membership = self._membership, None
            if membership is not None:
                membership.close()
        at_once(self._engine.remove_ended(all_of_them=True))

    def __enter__(self) -> Self:
        """`start()`."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """`close()`."""
        self.close()

    def transaction(
        self,
        connection: Any,
        *,
        timeout: float | timedelta = 60.0,
        name: str | None = None,
        commit_timeout: float | timedelta | None = None,
        abort_on_disconnect: bool = False,
        ambient: bool = False,
    ) -> OutboxTransaction:
        """A block over a database connection; see `AsyncOutbox.transaction`.

        KeyboardInterrupt before COMMIT rolls both back; during COMMIT the check decides.
        """
        options = {
            "timeout": timeout,
            "name": name,
            "commit_timeout": commit_timeout,
            "abort_on_disconnect": abort_on_disconnect,
            "ambient": ambient,
        }
        return OutboxTransaction(self, self._core.block(connection, options))

    def create_table(self, connection: Any = None) -> None:
        """Create the table and the identity, and commit: with `connection`, or one of the outbox's own; see `AsyncOutbox`.

        Raises what the driver raises. `table_sql()` and `identity_sql()` are the texts for a migration.
        """
        at_once(self._core.create_table(connection))

    def trim(self, older_than: float | timedelta = OLDER_THAN) -> TrimResult:
        """Remove rows of the group that were written more than `older_than` ago; see `AsyncOutbox.trim`."""
        return at_once(self._core.trim(older_than))


class OutboxTransaction:
    """Context manager that `outbox.transaction(connection)` returns, used once."""

    def __init__(self, outbox: Outbox, life: BlockLife) -> None:
        self._outbox = outbox
        self._life = life

    def __enter__(self) -> Transaction:
        """Begin both; see `AsyncOutbox.transaction`."""
        self._outbox.start()
        txn: Transaction = at_once(self._life.enter())
        return txn

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        """End both; see `AsyncOutbox.transaction`."""
        try:
            return at_once(self._life.leave(error))
        except OutboxOutcomeUnknown as unknown:
            resolve = unknown.resolver
            unknown.sync_resolver = lambda: at_once(resolve())
            raise
