"""Where the worker is killed in the middle of a unit of work: six points, and database connections that pass by three of them.

Environment: PULSAR_TXN_CRASH_POINT names the point, PULSAR_TXN_CRASH_NTH says at which unit (default 1).
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

POINTS: Final = {
    "received": "the requests are received in an open transaction; nothing is written",
    "sent": "order and event are written, both uncommitted; the Pulsar transaction is open",
    "row_written": "the outbox row is written as well, uncommitted; PREPARE has not been sent",
    "prepared": "the Pulsar transaction is prepared, and the database has not committed",
    "decided": "the database has committed, and Pulsar does not know yet",
    "ended": "both have committed",
}
"""In the order of a unit, with what is there at each."""


class Points:
    """The points of this process."""

    def __init__(self) -> None:
        self._wanted = os.environ.get("PULSAR_TXN_CRASH_POINT", "")
        self._left = int(os.environ.get("PULSAR_TXN_CRASH_NTH", "1"))

    def reached(self, name: str) -> None:
        """Kill this process, when the environment says so; nothing of it runs after that."""
        if name == self._wanted:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def watched_sqlite(points: Points) -> type[sqlite3.Connection]:
    """The class of a SQLite connection that passes by the points."""

    class Watched(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if statement == "COMMIT":
                points.reached("prepared")
            done = super().execute(statement, *values)
            if statement == "COMMIT":
                points.reached("decided")
            elif statement.startswith("INSERT INTO pulsar_txn_outbox"):
                points.reached("row_written")
            return done

    return Watched


def watched_postgres(points: Points) -> Any:
    """The class of a PostgreSQL connection that passes by the points."""
    import psycopg

    class Watched(psycopg.Connection[Any]):
        def execute(self, query: Any, *values: Any, **options: Any) -> psycopg.Cursor[Any]:
            done = super().execute(query, *values, **options)
            if str(query).startswith("INSERT INTO pulsar_txn_outbox"):
                points.reached("row_written")
            return done

        @contextmanager
        def transaction(self, *values: Any, **options: Any) -> Iterator[psycopg.Transaction]:
            went_well = False
            with super().transaction(*values, **options) as block:
                yield block
                went_well = True
                points.reached("prepared")
            if went_well:
                points.reached("decided")

    return Watched
