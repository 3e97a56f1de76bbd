"""Drivers of databases as ports: psycopg 3, asyncpg, sqlite3, aiosqlite, SQLAlchemy 2, and any other with DB-API 2.0."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pulsar_txn.client.errors import InvalidConfiguration, TransactionStateError
from pulsar_txn.client.outbox.database import (
    GENERIC,
    IN_TRANSACTION,
    POSTGRESQL,
    SQLITE,
    DatabasePort,
    check_still_open,
    dialect_of,
    driver_in_transaction,
    ended_inside,
    had,
    rendered,
)

_IDLE: Final = 0
_ROLL_BACK_FIRST: Final = "commit or roll back what is open before outbox.transaction(connection)"


class PsycopgPort:
    """psycopg 3, `Connection` and `AsyncConnection`; also in autocommit mode, because `transaction()` begins one there.

    Inside `transaction()` psycopg refuses `connection.commit()`, so a program cannot commit a half by mistake.
    """

    dialect = POSTGRESQL

    def __init__(self, connection: Any, paramstyle: str | None) -> None:
        self._connection = connection
        self._paramstyle = paramstyle or "pyformat"
        self._block: Any = None
        self.blocking = not inspect.iscoroutinefunction(connection.commit)

    async def rows_before(self, statement: str, limit: int) -> Sequence[Sequence[Any]] | None:
        """See `DatabasePort`. In autocommit mode psycopg sends no BEGIN, and switching the mode needs no request."""
        if int(self._connection.info.transaction_status) != _IDLE:
            return None
        if self._connection.autocommit:
            return await self.rows(statement, {}, limit)
        await self._set_autocommit(True)
        try:
            return await self.rows(statement, {}, limit)
        finally:
            if int(self._connection.info.transaction_status) == _IDLE:  # psycopg refuses it for a connection that is lost
                await self._set_autocommit(False)

    async def _set_autocommit(self, value: bool) -> None:
        if self.blocking:
            self._connection.autocommit = value
        else:
            await self._connection.set_autocommit(value)

    async def begin(self) -> None:
        """See `DatabasePort`."""
        status = int(self._connection.info.transaction_status)
        if status == _IDLE:
            block = self._connection.transaction()
            await had(block.__enter__() if self.blocking else block.__aenter__())
            self._block = block
        elif status != IN_TRANSACTION:
            raise TransactionStateError(
                f"the connection is {self._connection.info.transaction_status.name}", hint=_ROLL_BACK_FIRST
            )
        elif getattr(self._connection, "_num_transactions", 0):
            raise TransactionStateError(
                "the connection is inside of `with connection.transaction()`, which alone may commit",
                hint="put outbox.transaction(connection) outside of it",
            )

    async def settle(self) -> None:
        """See `DatabasePort`."""
        check_still_open(self)

    async def execute(self, statement: str, values: Mapping[str, Any]) -> int:
        """See `DatabasePort`."""
        cursor = await had(self._connection.execute(*rendered(statement, values, self._paramstyle)))
        return int(cursor.rowcount)

    async def rows(self, statement: str, values: Mapping[str, Any], limit: int) -> Sequence[Sequence[Any]]:
        """See `DatabasePort`."""
        tuples = sys.modules["psycopg"].rows.tuple_row  # whatever the rows of the program's own cursors are
        cursor = self._connection.cursor(row_factory=tuples)
        await had(cursor.execute(*rendered(statement, values, self._paramstyle)))
        found: Sequence[Sequence[Any]] = await had(cursor.fetchmany(limit))
        return found

    async def commit(self) -> None:
        """See `DatabasePort`."""
        if self._block is None:
            await had(self._connection.commit())
            return
        await self._leave_block(None)

    async def rollback(self) -> None:
        """See `DatabasePort`."""
        if self._block is None:
            await had(self._connection.rollback())
        elif self._connection.info.transaction_status != _IDLE:
            await self._leave_block(sys.modules["psycopg"].Rollback())

    async def _leave_block(self, error: BaseException | None) -> None:
        block, kind = self._block, None if error is None else type(error)
        await had(block.__exit__(kind, error, None) if self.blocking else block.__aexit__(kind, error, None))

    async def close(self) -> None:
        """See `DatabasePort`."""
        await had(self._connection.close())

    def in_transaction(self) -> bool | None:
        """See `DatabasePort`."""
        return driver_in_transaction(self._connection)


class AsyncpgPort:
    """asyncpg. Its nested transactions are savepoints, so the block must be the outermost one."""

    dialect = POSTGRESQL
    blocking = False

    def __init__(self, connection: Any, paramstyle: str | None) -> None:
        del paramstyle  # it has one
        self._connection = connection
        self._block: Any = None

    async def rows_before(self, statement: str, limit: int) -> Sequence[Sequence[Any]] | None:
        """See `DatabasePort`."""
        return None if self._connection.is_in_transaction() else await self.rows(statement, {}, limit)

    async def begin(self) -> None:
        """See `DatabasePort`."""
        if self._connection.is_in_transaction():
            raise TransactionStateError(
                "the connection is in a transaction, which alone may commit",
                hint="end it before outbox.transaction(connection)",
            )
        block = self._connection.transaction()
        await block.start()
        self._block = block

    async def settle(self) -> None:
        """See `DatabasePort`."""
        check_still_open(self)

    async def execute(self, statement: str, values: Mapping[str, Any]) -> int:
        """See `DatabasePort`."""
        text, given = rendered(statement, values, "dollar")
        tag = str(await self._connection.execute(text, *given)).rsplit(" ", 1)[-1]  # "INSERT 0 1"
        return int(tag) if tag.isdecimal() else 0

    async def rows(self, statement: str, values: Mapping[str, Any], limit: int) -> Sequence[Sequence[Any]]:
        """See `DatabasePort`."""
        text, given = rendered(statement, values, "dollar")
        found: Sequence[Sequence[Any]] = await self._connection.fetch(f"{text} LIMIT {int(limit)}", *given)
        return found

    async def commit(self) -> None:
        """See `DatabasePort`."""
        await self._block.commit()

    async def rollback(self) -> None:
        """See `DatabasePort`."""
        if self._block is not None and self._connection.is_in_transaction():
            await self._block.rollback()

    async def close(self) -> None:
        """See `DatabasePort`."""
        await self._connection.close()

    def in_transaction(self) -> bool | None:
        """See `DatabasePort`."""
        return driver_in_transaction(self._connection)


class SqlitePort:
    """sqlite3 and aiosqlite, in every transaction mode of theirs.

    A transaction is begun with BEGIN and the connection's isolation level, and ended with COMMIT: `commit()` does nothing in
    the modes in which the driver leaves transactions to the program. With `autocommit=False` (Python 3.12) one is always open,
    and `commit()` opens the next.
    """

    dialect = SQLITE

    def __init__(self, connection: Any, paramstyle: str | None) -> None:
        del paramstyle  # it takes qmark
        self._connection = connection
        self.blocking = not inspect.iscoroutinefunction(connection.commit)
        self._always_open = False

    async def rows_before(self, statement: str, limit: int) -> Sequence[Sequence[Any]] | None:
        """See `DatabasePort`. Not where a transaction is always open.

        In the transaction the query would take the snapshot of a deferred transaction. When another connection commits before
        the program's first write, that write fails at once in WAL mode (SQLITE_BUSY_SNAPSHOT), and no timeout helps.
        """
        if self._connection.in_transaction or await self._autocommit() is False:
            return None
        return await self.rows(statement, {}, limit)

    async def begin(self) -> None:
        """See `DatabasePort`."""
        self._always_open = await self._autocommit() is False
        if not self._connection.in_transaction:
            await had(self._connection.execute(f"BEGIN {self._connection.isolation_level or ''}"))

    async def _autocommit(self) -> object:
        """None before Python 3.12. Only the thread of the connection may ask, which aiosqlite has and does not show."""
        if self.blocking:
            return getattr(self._connection, "autocommit", None)
        return await self._connection._execute(getattr, self._connection._conn, "autocommit", None)  # noqa: SLF001 - as said

    async def settle(self) -> None:
        """See `DatabasePort`."""
        check_still_open(self)

    async def execute(self, statement: str, values: Mapping[str, Any]) -> int:
        """See `DatabasePort`."""
        cursor = await had(self._connection.execute(*rendered(statement, values, "qmark")))
        changed = int(cursor.rowcount)
        await had(cursor.close())
        return changed

    async def rows(self, statement: str, values: Mapping[str, Any], limit: int) -> Sequence[Sequence[Any]]:
        """See `DatabasePort`."""
        cursor = await had(self._connection.cursor())
        cursor.row_factory = None  # whatever the rows of the program's own cursors are
        await had(cursor.execute(*rendered(statement, values, "qmark")))
        found: Sequence[Sequence[Any]] = await had(cursor.fetchmany(limit))
        await had(cursor.close())  # an open query holds the database's lock
        return found

    async def commit(self) -> None:
        """See `DatabasePort`."""
        if self._always_open:
            await had(self._connection.commit())
        elif self._connection.in_transaction:
            await had(self._connection.execute("COMMIT"))

    async def rollback(self) -> None:
        """See `DatabasePort`."""
        if self._always_open:
            await had(self._connection.rollback())
        elif self._connection.in_transaction:
            await had(self._connection.execute("ROLLBACK"))

    async def close(self) -> None:
        """See `DatabasePort`."""
        await had(self._connection.close())

    def in_transaction(self) -> bool | None:
        """See `DatabasePort`. Where one is always open, that says nothing of what became of the last one."""
        return None if self._always_open else bool(self._connection.in_transaction)


class SqlAlchemyPort:
    """SQLAlchemy 2: `Connection`, `Session`, and their asyncio counterparts. An open transaction is joined.

    A session's pending objects are flushed before the row is written. `session.commit()` in the block is seen at its end.
    """

    def __init__(self, connection: Any, paramstyle: str | None) -> None:
        del paramstyle  # SQLAlchemy knows that of its driver
        self._connection = connection
        self.blocking = not inspect.iscoroutinefunction(connection.commit)
        self._is_session = hasattr(connection, "get_bind")
        bind = connection.get_bind() if self._is_session else connection
        self.dialect = dialect_of(bind.dialect.name)
        self._driver: Any = None
        self._began: Any = None

    async def rows_before(self, statement: str, limit: int) -> Sequence[Sequence[Any]] | None:
        """See `DatabasePort`. SQLAlchemy begins with every statement; a rollback would expire the objects of a session."""
        del statement, limit
        return None

    async def begin(self) -> None:
        """See `DatabasePort`."""
        if not self._connection.in_transaction():
            await had(self._connection.begin())
        self._began = self._connection.get_transaction()

    async def settle(self) -> None:
        """See `DatabasePort`."""
        if self._is_session:
            await had(self._connection.flush())
        if self._connection.get_transaction() is not self._began or not self._connection.in_transaction():
            raise ended_inside()

    async def execute(self, statement: str, values: Mapping[str, Any]) -> int:
        """See `DatabasePort`."""
        done = await had(self._connection.execute(sys.modules["sqlalchemy"].text(statement), dict(values)))
        await self._find_driver()
        return int(done.rowcount)

    async def rows(self, statement: str, values: Mapping[str, Any], limit: int) -> Sequence[Sequence[Any]]:
        """See `DatabasePort`."""
        done = await had(self._connection.execute(sys.modules["sqlalchemy"].text(statement), dict(values)))
        found = [tuple(row) for row in done.fetchmany(limit)]
        done.close()
        return found

    async def _find_driver(self) -> None:
        """The driver's own connection, which knows whether the row has been committed by itself."""
        used = await had(self._connection.connection()) if self._is_session else self._connection
        used = getattr(used, "sync_connection", None) or used
        self._driver = used.connection.driver_connection

    async def commit(self) -> None:
        """See `DatabasePort`."""
        await had(self._connection.commit())

    async def rollback(self) -> None:
        """See `DatabasePort`."""
        await had(self._connection.rollback())

    async def close(self) -> None:
        """See `DatabasePort`."""
        await had(self._connection.close())

    def in_transaction(self) -> bool | None:
        """See `DatabasePort`."""
        if self._driver is None:
            return None
        # Without a transaction of SQLAlchemy the driver's connection is in its pool, and perhaps somebody else's.
        return bool(self._connection.in_transaction()) and driver_in_transaction(self._driver)


class DbApiPort:
    """Any connection of DB-API 2.0 (PEP 249): `cursor()`, `commit()`, `rollback()`, and the paramstyle of its module."""

    def __init__(self, connection: Any, paramstyle: str | None) -> None:
        self._connection = connection
        self.blocking = True
        self.dialect = POSTGRESQL if type(connection).__module__.startswith(("psycopg2", "pg8000")) else GENERIC
        self._paramstyle = paramstyle or _paramstyle_of(connection)

    async def rows_before(self, statement: str, limit: int) -> Sequence[Sequence[Any]] | None:
        """See `DatabasePort`. DB-API 2.0 begins a transaction with every statement."""
        del statement, limit
        return None

    async def begin(self) -> None:
        """See `DatabasePort`."""
        if getattr(self._connection, "autocommit", None) is True:
            raise InvalidConfiguration(
                "the connection commits each statement by itself (autocommit)", hint="set connection.autocommit = False"
            )

    async def settle(self) -> None:
        """Nothing is known here of a transaction's end."""

    async def execute(self, statement: str, values: Mapping[str, Any]) -> int:
        """See `DatabasePort`."""
        cursor = self._connection.cursor()
        try:
            _execute(cursor, statement, values, self._paramstyle)
            return int(cursor.rowcount)
        finally:
            cursor.close()

    async def rows(self, statement: str, values: Mapping[str, Any], limit: int) -> Sequence[Sequence[Any]]:
        """See `DatabasePort`."""
        cursor = self._connection.cursor()
        try:
            _execute(cursor, statement, values, self._paramstyle)
            return [tuple(row.values() if isinstance(row, Mapping) else row) for row in cursor.fetchmany(limit)]
        finally:
            cursor.close()

    async def commit(self) -> None:
        """See `DatabasePort`."""
        self._connection.commit()

    async def rollback(self) -> None:
        """See `DatabasePort`."""
        self._connection.rollback()

    async def close(self) -> None:
        """See `DatabasePort`."""
        self._connection.close()

    def in_transaction(self) -> bool | None:
        """See `DatabasePort`."""
        return driver_in_transaction(self._connection)


def _execute(cursor: Any, statement: str, values: Mapping[str, Any], paramstyle: str) -> None:
    if values:
        cursor.execute(*rendered(statement, values, paramstyle))
    else:
        cursor.execute(statement)


def _paramstyle_of(connection: Any) -> str:
    """That of the connection's module, or of the package that it is in."""
    name = type(connection).__module__
    while name:
        found = getattr(sys.modules.get(name), "paramstyle", None)
        if isinstance(found, str):
            return found
        name = name.rpartition(".")[0]
    raise InvalidConfiguration(
        f"the paramstyle of {type(connection).__module__} is not known", hint="give paramstyle=, as PEP 249 names it"
    )


_PORTS: Final[Sequence[tuple[str, Sequence[str], Callable[[Any, str | None], DatabasePort]]]] = (
    ("psycopg", ("Connection", "AsyncConnection"), PsycopgPort),
    ("asyncpg", ("Connection",), AsyncpgPort),
    ("asyncpg.pool", ("PoolConnectionProxy",), AsyncpgPort),
    ("sqlite3", ("Connection",), SqlitePort),
    ("aiosqlite", ("Connection",), SqlitePort),
    ("sqlalchemy.orm", ("Session", "scoped_session"), SqlAlchemyPort),
    ("sqlalchemy.ext.asyncio", ("AsyncConnection", "AsyncSession", "async_scoped_session"), SqlAlchemyPort),
    ("sqlalchemy", ("Connection",), SqlAlchemyPort),
)
"""The classes of connections by the module that has them, and the port for them."""


def port_of(connection: Any, paramstyle: str | None = None) -> DatabasePort:
    """The port of a connection. InvalidConfiguration when it is none that is known, nor one of DB-API 2.0."""
    for module, names, port in _PORTS:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(
            connection, tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))
        ):
            return port(connection, paramstyle)
    if all(callable(getattr(connection, name, None)) for name in ("cursor", "commit", "rollback", "close")):
        return DbApiPort(connection, paramstyle)
    raise InvalidConfiguration(
        f"{type(connection).__module__}.{type(connection).__qualname__} is no database connection",
        hint="give one of psycopg, asyncpg, sqlite3, aiosqlite, SQLAlchemy (connection or session), or of DB-API 2.0",
    )
