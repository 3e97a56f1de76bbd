"""The door of SQLAlchemy 2."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pulsar_txn.client.outbox.dialects import dialect_of
from pulsar_txn.client.outbox.door import driver_in_transaction, ended_inside, had


class SqlAlchemyDoor:
    """SQLAlchemy 2: `Connection`, `Session`, and their asynchronous twins. An open transaction is joined.

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
        """See `Door`. SQLAlchemy begins with every statement, and a rollback to end that expires the objects of a session."""
        del statement, limit
        return None

    async def begin(self) -> None:
        """See `Door`."""
        if not self._connection.in_transaction():
            await had(self._connection.begin())
        self._began = self._connection.get_transaction()

    async def settle(self) -> None:
        """See `Door`."""
        if self._is_session:
            await had(self._connection.flush())
        if self._connection.get_transaction() is not self._began or not self._connection.in_transaction():
            raise ended_inside()

    async def execute(self, statement: str, values: Mapping[str, Any]) -> int:
        """See `Door`."""
        done = await had(self._connection.execute(sys.modules["sqlalchemy"].text(statement), dict(values)))
        await self._find_driver()
        return int(done.rowcount)

    async def rows(self, statement: str, values: Mapping[str, Any], limit: int) -> Sequence[Sequence[Any]]:
        """See `Door`."""
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
        """See `Door`."""
        await had(self._connection.commit())

    async def rollback(self) -> None:
        """See `Door`."""
        await had(self._connection.rollback())

    async def close(self) -> None:
        """See `Door`."""
        await had(self._connection.close())

    def in_transaction(self) -> bool | None:
        """See `Door`."""
        if self._driver is None:
            return None
        # Without a transaction of SQLAlchemy the driver's connection is in its pool, and perhaps somebody else's.
        return bool(self._connection.in_transaction()) and driver_in_transaction(self._driver)
