"""Which door a connection has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.outbox.alchemy import SqlAlchemyDoor
from pulsar_txn.client.outbox.dbapi import DbApiDoor
from pulsar_txn.client.outbox.door import Door
from pulsar_txn.client.outbox.drivers import AsyncpgDoor, PsycopgDoor, SqliteDoor

_DOORS: Final[Sequence[tuple[str, Sequence[str], Callable[[Any, str | None], Door]]]] = (
    ("psycopg", ("Connection", "AsyncConnection"), PsycopgDoor),
    ("asyncpg", ("Connection",), AsyncpgDoor),
    ("asyncpg.pool", ("PoolConnectionProxy",), AsyncpgDoor),
    ("sqlite3", ("Connection",), SqliteDoor),
    ("aiosqlite", ("Connection",), SqliteDoor),
    ("sqlalchemy.orm", ("Session", "scoped_session"), SqlAlchemyDoor),
    ("sqlalchemy.ext.asyncio", ("AsyncConnection", "AsyncSession", "async_scoped_session"), SqlAlchemyDoor),
    ("sqlalchemy", ("Connection",), SqlAlchemyDoor),
)
"""The classes of connections by the module that has them, and what makes their door."""


def door_of(connection: Any, paramstyle: str | None = None) -> Door:
    """The door of a connection. InvalidConfiguration when it is none that is known, nor one of DB-API 2.0."""
    for module, names, door in _DOORS:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(
            connection, tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))
        ):
            return door(connection, paramstyle)
    if all(callable(getattr(connection, name, None)) for name in ("cursor", "commit", "rollback", "close")):
        return DbApiDoor(connection, paramstyle)
    raise InvalidConfiguration(
        f"{type(connection).__module__}.{type(connection).__qualname__} is no database connection",
        hint="give one of psycopg, asyncpg, sqlite3, aiosqlite, SQLAlchemy (connection or session), or of DB-API 2.0",
    )
