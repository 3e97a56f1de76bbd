"""Kinds of database connections, as a program would make them, with a table of orders beside that of the outbox."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from pulsar_txn.client.outbox import identity_sql, table_sql


@attrs.define
class Database:
    """`connect` makes a connection of the kind; `plain` one that commits at once, for looking at what is there."""

    table: str
    connect: Callable[[], Any]
    plain: Callable[[], Any]
    dialect: str
    holes: str = "?"
    """The placeholder of its driver."""
    add: Callable[[Any, int], Any] | None = None
    """How a program of the kind inserts an order."""
    is_plain_dbapi: bool = False
    _opened: list[Any] = attrs.Factory(list)

    @property
    def orders(self) -> str:
        return f"{self.table}_orders"

    def create(self) -> None:
        with self._looking() as connection:
            connection.execute(table_sql(self.table, self.dialect))
            connection.execute(identity_sql(self.table, self.dialect))
            connection.execute(f"CREATE TABLE {self.orders} (id INTEGER PRIMARY KEY)")

    def open(self) -> Any:
        connection = self.connect()
        self._opened.append(connection)
        return connection

    def insert(self, connection: Any, number: int) -> None:
        """An order, in the program's transaction."""
        if self.add is not None:
            self.add(connection, number)
        else:
            cursor = connection.cursor()
            cursor.execute(f"INSERT INTO {self.orders} VALUES ({self.holes})", (number,))
            cursor.close()

    def numbers(self) -> list[int]:
        """The orders that are committed."""
        return [row[0] for row in self.query(f"SELECT id FROM {self.orders} ORDER BY id")]

    def outcomes(self) -> list[str]:
        """What the rows of the outbox say."""
        return [row[0] for row in self.query(f"SELECT outcome FROM {self.table} ORDER BY created_at_ms, txn_key")]

    def query(self, text: str) -> list[Any]:
        with self._looking() as connection:
            return list(connection.execute(text).fetchall())

    @contextmanager
    def _looking(self) -> Iterator[Any]:
        connection = self.plain()
        try:
            yield connection
        finally:
            connection.close()

    def close(self) -> None:
        for connection in self._opened:
            connection.close()


class PlainConnection:
    """A connection with what PEP 249 promises, and nothing else; its module's paramstyle has to be said."""

    def __init__(self, connection: Any) -> None:
        self.cursor = connection.cursor
        self.commit = connection.commit
        self.rollback = connection.rollback
        self.close = connection.close


def _psycopg(dsn: str, table: str, **options: Any) -> Database:
    import psycopg

    isolation = options.pop("isolation", None)

    def connect() -> Any:
        connection = psycopg.connect(dsn, **options)
        if isolation:
            connection.isolation_level = psycopg.IsolationLevel[isolation]
        return connection

    return Database(table, connect, lambda: psycopg.connect(dsn, autocommit=True), "postgresql", "%s")


def _psycopg_serializable(dsn: str, table: str) -> Database:
    return _psycopg(dsn, table, isolation="SERIALIZABLE")


def _psycopg_repeatable(dsn: str, table: str) -> Database:
    return _psycopg(dsn, table, isolation="REPEATABLE_READ")


def _psycopg_autocommit(dsn: str, table: str) -> Database:
    return _psycopg(dsn, table, autocommit=True)


def _plain_psycopg(dsn: str, table: str) -> Database:
    made = _psycopg(dsn, table)
    return attrs.evolve(made, connect=lambda: PlainConnection(made.connect()), is_plain_dbapi=True)


def _sqlite(path: str, table: str, journal: str = "WAL", **options: Any) -> Database:
    def connect(**given: Any) -> Any:
        connection = sqlite3.connect(path, timeout=0.2, check_same_thread=False, **given)
        connection.execute(f"PRAGMA journal_mode={journal}").close()
        return connection

    return Database(table, lambda: connect(**options), lambda: connect(isolation_level=None), "sqlite")


def _sqlite_rollback_journal(path: str, table: str) -> Database:
    return _sqlite(path, table, "DELETE")


def _sqlite_by_hand(path: str, table: str) -> Database:
    return _sqlite(path, table, isolation_level=None)


def _sqlite_immediate(path: str, table: str) -> Database:
    return _sqlite(path, table, isolation_level="IMMEDIATE")


def _sqlite_always_open(path: str, table: str) -> Database:
    return _sqlite(path, table, autocommit=False)


def _sqlite_autocommit(path: str, table: str) -> Database:
    return _sqlite(path, table, autocommit=True)


def plain_sqlite(path: str, table: str) -> Database:
    made = _sqlite(path, table)
    return attrs.evolve(made, connect=lambda: PlainConnection(made.connect()), is_plain_dbapi=True)


def _alchemy(database: Database, engine: Any, session: bool) -> Database:
    import sqlalchemy
    from sqlalchemy.orm import Session

    statement = sqlalchemy.text(f"INSERT INTO {database.orders} VALUES (:id)")
    return attrs.evolve(
        database,
        connect=(lambda: Session(engine)) if session else engine.connect,
        add=lambda connection, number: connection.execute(statement, {"id": number}),
    )


def _alchemy_psycopg(dsn: str, table: str, session: bool = False) -> Database:
    import sqlalchemy

    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"), poolclass=sqlalchemy.NullPool)
    return _alchemy(_psycopg(dsn, table), engine, session)


def _alchemy_sqlite(path: str, table: str, session: bool = False) -> Database:
    import sqlalchemy

    engine = sqlalchemy.create_engine(
        f"sqlite:///{path}", connect_args={"timeout": 0.2, "check_same_thread": False}, poolclass=sqlalchemy.NullPool
    )
    return _alchemy(_sqlite(path, table), engine, session)


def _session_psycopg(dsn: str, table: str) -> Database:
    return _alchemy_psycopg(dsn, table, session=True)


def _session_sqlite(path: str, table: str) -> Database:
    return _alchemy_sqlite(path, table, session=True)


BLOCKING: dict[str, Callable[[str, str], Database]] = {
    "psycopg": _psycopg,
    "psycopg-autocommit": _psycopg_autocommit,
    "psycopg-repeatable-read": _psycopg_repeatable,
    "psycopg-serializable": _psycopg_serializable,
    "psycopg-plain-dbapi": _plain_psycopg,
    "psycopg-sqlalchemy": _alchemy_psycopg,
    "psycopg-session": _session_psycopg,
    "sqlite": _sqlite,
    "sqlite-rollback-journal": _sqlite_rollback_journal,
    "sqlite-no-isolation-level": _sqlite_by_hand,
    "sqlite-immediate": _sqlite_immediate,
    "sqlite-plain-dbapi": plain_sqlite,
    "sqlite-sqlalchemy": _alchemy_sqlite,
    "sqlite-session": _session_sqlite,
}
if hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL"):  # Python 3.12
    BLOCKING |= {"sqlite-autocommit-false": _sqlite_always_open, "sqlite-autocommit-true": _sqlite_autocommit}
