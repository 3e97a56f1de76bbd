"""The database of the orders: a file of SQLite, or a PostgreSQL."""

from __future__ import annotations

import sqlite3
from typing import Any

from points import Points, watched_postgres, watched_sqlite

CREATE = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL)"


class Store:
    """`url` is `postgresql://…`, or the path of a SQLite file."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.is_postgres = url.startswith("postgresql:")
        self._insert = "INSERT INTO orders VALUES (?, ?, ?)".replace("?", "%s" if self.is_postgres else "?")

    def connect(self, points: Points | None = None) -> Any:
        """A new connection; with `points` it passes by them."""
        if self.is_postgres:
            import psycopg

            return (psycopg.Connection if points is None else watched_postgres(points)).connect(self._url)
        factory = sqlite3.Connection if points is None else watched_sqlite(points)
        connection = sqlite3.connect(self._url, timeout=5, factory=factory)
        connection.execute("PRAGMA journal_mode=WAL")
        return connection

    def create(self, *outbox_tables: str) -> None:
        """The table of orders, and those of the outbox: a service does both in its migrations."""
        connection = self.connect()
        connection.execute(CREATE)
        for each in outbox_tables:
            connection.execute(each)
        connection.commit()
        connection.close()

    def insert(self, connection: Any, number: int, customer: str, cents: int) -> None:
        """One order, in the transaction that is open."""
        connection.execute(self._insert, (number, customer, cents))

    def orders(self) -> dict[int, tuple[str, int]]:
        """What is committed."""
        connection = self.connect()
        found = connection.execute("SELECT id, customer, cents FROM orders").fetchall()
        connection.close()
        return {number: (customer, cents) for number, customer, cents in found}
