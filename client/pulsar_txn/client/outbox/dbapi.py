"""The door of any other driver with DB-API 2.0."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.outbox.dialects import GENERIC, POSTGRESQL, rendered
from pulsar_txn.client.outbox.door import driver_in_transaction


class DbApiDoor:
    """Any connection of DB-API 2.0 (PEP 249): `cursor()`, `commit()`, `rollback()`, and the paramstyle of its module."""

    def __init__(self, connection: Any, paramstyle: str | None) -> None:
        self._connection = connection
        self.blocking = True
        self.dialect = POSTGRESQL if type(connection).__module__.startswith(("psycopg2", "pg8000")) else GENERIC
        self._paramstyle = paramstyle or _paramstyle_of(connection)

    async def rows_before(self, statement: str, limit: int) -> Sequence[Sequence[Any]] | None:
        """See `Door`. DB-API 2.0 begins a transaction with every statement."""
        del statement, limit
        return None

    async def begin(self) -> None:
        """See `Door`."""
        if getattr(self._connection, "autocommit", None) is True:
            raise InvalidConfiguration(
                "the connection commits each statement by itself (autocommit)", hint="set connection.autocommit = False"
            )

    async def settle(self) -> None:
        """Nothing is known here of a transaction's end."""

    async def execute(self, statement: str, values: Mapping[str, Any]) -> int:
        """See `Door`."""
        cursor = self._connection.cursor()
        try:
            _execute(cursor, statement, values, self._paramstyle)
            return int(cursor.rowcount)
        finally:
            cursor.close()

    async def rows(self, statement: str, values: Mapping[str, Any], limit: int) -> Sequence[Sequence[Any]]:
        """See `Door`."""
        cursor = self._connection.cursor()
        try:
            _execute(cursor, statement, values, self._paramstyle)
            return [tuple(row.values() if isinstance(row, Mapping) else row) for row in cursor.fetchmany(limit)]
        finally:
            cursor.close()

    async def commit(self) -> None:
        """See `Door`."""
        self._connection.commit()

    async def rollback(self) -> None:
        """See `Door`."""
        self._connection.rollback()

    async def close(self) -> None:
        """See `Door`."""
        self._connection.close()

    def in_transaction(self) -> bool | None:
        """See `Door`."""
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
