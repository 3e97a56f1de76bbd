"""A program's database connection, whatever its driver, as the few things that an outbox does with one.

No driver is imported by this room: a connection of one is only given where the program has imported it. The methods of a door
are coroutines. Those of a blocking driver never wait, so that one text serves both kinds (`at_once`).
"""

from __future__ import annotations

import inspect
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from pulsar_txn.client.errors import InvalidConfiguration, TransactionStateError
from pulsar_txn.client.outbox.dialects import SQLITE, Dialect

T = TypeVar("T")

IN_TRANSACTION: Final = 2
"""TRANSACTION_STATUS_INTRANS of libpq, for psycopg and psycopg2."""
_CONFLICT: Final = "40"
"""The class of SQLSTATE of serialization failures and deadlocks."""
_ACCESS: Final = "42"
"""That of syntax errors and access rule violations, which has undefined tables."""
_CONSTRAINT: Final = "23"
"""That of violated constraints; at COMMIT, of those that were deferred."""


class Door(Protocol):
    """One connection. All but `dialect` and `blocking` may raise whatever the driver raises."""

    dialect: Dialect
    blocking: bool
    """Whether its calls hold up the thread."""

    async def rows_before(self, statement: str, limit: int) -> Sequence[Sequence[Any]] | None:
        """What a query finds before `begin`, in no transaction; None when one is open, or the driver always begins one.

        It has no effect on the program's transaction. A query inside of it has: it takes the snapshot before the program's
        first statement does (SQLite, REPEATABLE READ), and PostgreSQL refuses SET TRANSACTION after it.
        """
        ...

    async def begin(self) -> None:
        """Begin a transaction, or join the one that is open. Raises TransactionStateError when neither can be."""
        ...

    async def settle(self) -> None:
        """Send what is not sent yet; TransactionStateError when the transaction that was begun is not open any more."""
        ...

    async def execute(self, statement: str, values: Mapping[str, Any]) -> int:
        """Execute a statement with `:name` placeholders; how many rows it changed."""
        ...

    async def rows(self, statement: str, values: Mapping[str, Any], limit: int) -> Sequence[Sequence[Any]]:
        """The first rows of a query."""
        ...

    async def commit(self) -> None:
        """Commit."""
        ...

    async def rollback(self) -> None:
        """Roll back what is open; without effect when nothing is."""
        ...

    async def close(self) -> None:
        """Close the connection, or give it back to its pool."""
        ...

    def in_transaction(self) -> bool | None:
        """True if the driver says that a transaction is open; None when it does not tell."""
        ...


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that never waits: the code of a block over a blocking driver and a blocking client."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise InvalidConfiguration(
        "this connection is asynchronous, and the outbox is a blocking one", hint="use AsyncOutbox with an AsyncClient"
    )


async def had(value: Any) -> Any:
    """The value, awaited if it is to be awaited: drivers with an asynchronous twin have the same names in both."""
    return await value if inspect.isawaitable(value) else value


def driver_in_transaction(connection: Any) -> bool | None:
    """True if a driver's connection says that a transaction is open; None when it does not tell."""
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    if status is not None:
        return int(status) == IN_TRANSACTION
    told = getattr(connection, "in_transaction", None)
    if isinstance(told, bool):
        return told
    asked = getattr(connection, "is_in_transaction", None)
    if callable(asked):
        return bool(asked())
    return False if getattr(connection, "autocommit", None) is True else None


def is_refusal(error: BaseException, door: Door) -> bool:
    """True if the database says with this error that it has not committed. Not when the answer was not waited for.

    SQLite's COMMIT runs in the process: when it fails, and the transaction is still open, nothing has been committed.
    """
    if not isinstance(error, Exception):
        return False
    if door.dialect is SQLITE:
        return door.in_transaction() is True
    return _class_of(error) in (_CONFLICT, _CONSTRAINT)


def is_conflict(error: BaseException) -> bool:
    """True if a transaction was rolled back because of another one, and may be run again."""
    return _class_of(error) == _CONFLICT


def _class_of(error: BaseException) -> str:
    """The class of the SQLSTATE; nothing for drivers that do not tell it."""
    cause = getattr(error, "orig", None) or error  # SQLAlchemy wraps the driver's
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return state[:2] if isinstance(state, str) else ""


def is_access_error(error: BaseException) -> bool:
    """True if a table is not there, or not for this user; PEP 249 has one class for them and for other mistakes in SQL."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return _class_of(error) == _ACCESS or "ProgrammingError" in names or "no such table" in str(error)  # SQLite has no code


def is_integrity_error(error: BaseException) -> bool:
    """True if a constraint was violated, by the names of PEP 249, SQLAlchemy and asyncpg."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"IntegrityError", "IntegrityConstraintViolationError"})


def check_still_open(door: Door) -> None:
    """TransactionStateError when the driver says that no transaction is open."""
    if door.in_transaction() is False:
        raise ended_inside()


def ended_inside() -> TransactionStateError:
    """The error of a program that commits, or rolls back, by itself."""
    return TransactionStateError(
        "the database transaction was ended inside of the block", hint="leave commit and rollback to outbox.transaction()"
    )
