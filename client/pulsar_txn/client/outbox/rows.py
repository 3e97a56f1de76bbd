"""The rows of an outbox: its outcome rows, the row that is the identity of its database, and the rows that may go.

A row is written once and never changed. So its outcome is the outcome of the transaction, whoever reads it, until it is
removed; and it is removed only after the coordinator has ended the transaction.

**Identity.** A random number in a row of its own, by which a block and a check know that they mean the same database.
`connect` may lead to another database, or another schema, than the connections of the blocks. A check finds no row there. It
would write a tombstone, and Pulsar would abort what the real database has committed. So

* a block compares what its connection sees with what `connect` led to: before it begins, where the driver can be asked without
  an effect on the program's transaction, and always in the transaction that has its row, before PREPARE;
* the identity goes into the check data, and a check compares it in the transaction that has the tombstone.

The row is written over connections of the outbox's own, and by `create_table`: never in a program's transaction, which may roll
back. A copy, a replica or a restored dump has the identity of its original.

**Trimming.** A row is needed as long as its coordinator may ask for it. That is until the transaction has ended there, however
long it takes: a row that goes by its age alone makes the check write a tombstone for what the database has committed. So a trim
ends each transaction by its row's outcome, with the secret of its preparation, and removes the row after the answer. That is
idempotent. The secret is what keeps a trim from ending another transaction: an open one, or one of another cluster with the
same id.

Rows of transactions that this process has ended need no question: it had the answer.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import attrs

from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    InvalidTransactionStatus,
    OutboxWrongDatabase,
    PulsarError,
    TransactionAborted,
    TransactionNotFound,
)
from pulsar_txn.client.net.runtime import secret_bytes
from pulsar_txn.client.outbox.database import (
    DatabasePort,
    Dialect,
    Statements,
    is_access_error,
    is_conflict,
    is_integrity_error,
    statements_of,
)
from pulsar_txn.wire.ids import TxnId

T = TypeVar("T")

IDENTITY_BYTES: Final = 16

_CREATE: Final = (
    "call outbox.create_table() once, which adds it also to a table that exists; "
    "when that is done, look whether `connect` and the connections of the blocks lead to the same database and schema"
)


class Identity:
    """The row in one table; `statements` are those for a connection. `who` names the connection in errors."""

    def __init__(self, statements: Callable[[DatabasePort], Statements]) -> None:
        self._statements = statements

    async def insert(self, port: DatabasePort) -> None:
        """Write one, unless there is one already. Raises what the driver raises."""
        values = {"identity": secret_bytes(IDENTITY_BYTES).hex()}
        await port.execute(self._statements(port).insert_identity, values)

    async def find(self, port: DatabasePort, who: str) -> str | None:
        """That of the database, by a query in the transaction that is open; None without a row.

        OutboxWrongDatabase without the table.
        """
        return _text(await _had(port.rows(self._statements(port).identity, {}, 1), who))

    async def check(self, port: DatabasePort, expected: str | None, who: str) -> None:
        """Compare, in the transaction that is open, unless nothing is expected. OutboxWrongDatabase for another one."""
        if expected is not None:
            _compare(await self.find(port, who), expected, who)

    async def check_before(self, port: DatabasePort, expected: str, who: str) -> None:
        """Compare before a transaction begins, where that can be done; see `DatabasePort.rows_before`. Raises as `check`."""
        found = await _had(port.rows_before(self._statements(port).identity, 1), who)
        if found is not None:
            _compare(_text(found), expected, who)


def missing(who: str) -> OutboxWrongDatabase:
    """The error of a database that has no identity."""
    return OutboxWrongDatabase(f"the database of {who} has no identity of an outbox", hint=_CREATE)


async def _had(query: Awaitable[T], who: str) -> T:
    try:
        return await query
    except Exception as error:
        if is_access_error(error):
            raise missing(who) from error
        raise


def _compare(found: str | None, expected: str, who: str) -> None:
    if found is None:
        raise missing(who)
    if found != expected:
        raise OutboxWrongDatabase(f"the database of {who} has the identity {found}, and {expected} is expected")


def _text(rows: Sequence[Sequence[Any]]) -> str | None:
    if not rows:
        return None
    found = rows[0][0]
    return found.decode() if isinstance(found, bytes) else str(found)  # bytes: by the text_factory of a sqlite3 connection


PAGE_ROWS: Final = 500
"""Number of rows that are read, and removed in one database transaction."""


class Outcome(enum.Enum):
    """Outcome that a row says."""

    COMMIT = "commit"
    ABORT = "abort"


@attrs.frozen
class Row:
    """A row, as far as a trim needs it."""

    key: str
    txn_id: TxnId
    outcome: Outcome


class Rows:
    """The rows of one group in one table."""

    def __init__(self, table: str, group: str, dialect: Dialect | None, now_ms: Callable[[], int]) -> None:
        self._table = table
        self._group = group
        self._dialect = dialect
        self._now_ms = now_ms
        self._statements: dict[str, Statements] = {}
        self.identity = Identity(self.statements)

    def statements(self, port: DatabasePort) -> Statements:
        """The statements for a connection: in the dialect that was chosen, or in its own."""
        dialect = self._dialect or port.dialect
        known = self._statements.get(dialect.name)
        if known is None:
            known = self._statements[dialect.name] = statements_of(self._table, dialect)
        return known

    async def create(self, port: DatabasePort) -> None:
        """Create the table and that of the identity, with its row, and commit. What exists is kept."""
        statements = self.statements(port)
        await _create(port, statements.create, lambda: port.rows(statements.outcome, {"key": ""}, 1))
        await _create(port, statements.create_identity, lambda: port.rows(statements.identity, {}, 1))
        await self.read_identity(port)

    async def read_identity(self, port: DatabasePort) -> str:
        """The identity of the database of a connection of the outbox's own; written now if its table has none yet.

        Raises OutboxWrongDatabase without the table, and what the driver raises.
        """
        found = await _in_transaction(port, lambda: self.identity.find(port, "`connect`"))
        if found is None:
            try:
                await _in_transaction(port, lambda: self.identity.insert(port))
            except Exception as error:
                if not (is_integrity_error(error) or is_conflict(error)):  # which say that another process was faster
                    raise
            found = await _in_transaction(port, lambda: self.identity.find(port, "`connect`"))
        if found is None:
            raise missing("`connect`")
        return str(found)

    async def insert(self, port: DatabasePort, key: str, txn_id: TxnId) -> None:
        """Write the row that commits, in the transaction that is open. Raises what the driver raises."""
        await port.execute(self.statements(port).insert, self._values(key, txn_id, Outcome.COMMIT))

    async def decide(self, port: DatabasePort, key: str, txn_id: TxnId, identity: str | None = None) -> Outcome | None:
        """The outcome of a transaction: that of its row, or ABORT by a tombstone. None when a row appeared and went meanwhile.

        The insert comes first. It waits for a writer in flight where the database does so, and it is refused only because of a
        row that is committed, at any isolation level. Only after that the row is read, in a transaction that begins then.
        Each of the two transactions compares the identity, if one is given: where it is another one, the row may be elsewhere.
        Raises OutboxWrongDatabase then, with nothing written, and what the driver raises when the database cannot be asked.
        """
        try:
            written = await _in_transaction(port, lambda: self._write_tombstone(port, key, txn_id, identity))
        except Exception as error:
            if is_integrity_error(error):
                written = 0
            elif is_conflict(error):  # the row came after the snapshot of an isolation level above READ COMMITTED
                written = await _in_transaction(port, lambda: self._write_tombstone(port, key, txn_id, identity))
            else:
                raise
        if written:
            return Outcome.ABORT
        found = await _in_transaction(port, lambda: self._read(port, key, identity))
        return Outcome(found[0][0]) if found else None

    async def _read(self, port: DatabasePort, key: str, identity: str | None) -> Sequence[Sequence[Any]]:
        await self.identity.check(port, identity, "`connect`")
        return await port.rows(self.statements(port).outcome, {"key": key}, 1)

    async def _write_tombstone(self, port: DatabasePort, key: str, txn_id: TxnId, identity: str | None) -> int:
        """Insert a tombstone: 1 if there was no row, else 0. First, for SQLite gives a write the lock only before any query."""
        statements = self.statements(port)
        for statement in statements.before_check:
            await port.execute(statement, {})
        written = await port.execute(statements.tombstone, self._values(key, txn_id, Outcome.ABORT))
        await self.identity.check(port, identity, "`connect`")
        return written

    async def older(self, port: DatabasePort, before_ms: int, after: str) -> list[Row]:
        """A page of the group's rows that were written before a time, by key."""
        values = {"group": self._group, "before_ms": before_ms, "after": after}
        found = await _in_transaction(port, lambda: port.rows(self.statements(port).older, values, PAGE_ROWS))
        return [Row(str(key), TxnId.parse(str(txn_id)), Outcome(outcome)) for key, txn_id, outcome in found]

    async def remove(self, port: DatabasePort, keys: Sequence[str]) -> None:
        """Remove rows of transactions that the coordinator has ended, in one database transaction."""

        async def each() -> None:
            for key in keys:
                await port.execute(self.statements(port).delete, {"key": key})

        await _in_transaction(port, each)

    def _values(self, key: str, txn_id: TxnId, outcome: Outcome) -> dict[str, Any]:
        return {
            "key": key,
            "group": self._group,
            "txn_id": str(txn_id),
            "outcome": outcome.value,
            "created_at_ms": self._now_ms(),
        }


async def _create(port: DatabasePort, statement: str, probe: Callable[[], Any]) -> None:
    """Create a table unless it exists: by IF NOT EXISTS where the dialect has that, otherwise by a query to it."""
    if " IF NOT EXISTS " not in statement:
        try:
            await _in_transaction(port, probe)
        except Exception as error:
            if not is_access_error(error):
                raise
        else:
            return
    await _in_transaction(port, lambda: port.execute(statement, {}))


async def _in_transaction(port: DatabasePort, work: Callable[[], Any]) -> Any:
    """Do it in a transaction of its own, and commit; roll back when it fails."""
    await port.begin()
    try:
        result = await work()
        await port.commit()
    except BaseException:
        await roll_back(port)
        raise
    return result


async def roll_back(port: DatabasePort) -> Exception | None:
    """Roll back; the error with which that failed, because another one is on its way. A database rolls back what is lost."""
    try:
        await port.rollback()
    except Exception as error:  # noqa: BLE001 - told to the caller, who has an error of more interest
        return error
    return None


logger = logging.getLogger("pulsar_txn.client.outbox")


@attrs.frozen
class TrimResult:
    """Result of a trim: rows removed, and rows kept because their transactions could not be ended now."""

    removed: int = 0
    kept: int = 0


class RowStore(Protocol):
    """The rows, over a connection of the trim's own."""

    async def older(self, before_ms: int, after: str) -> list[Row]:
        """A page of them."""
        ...

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove them."""
        ...


async def trim(rows: RowStore, end: Callable[[Row], Awaitable[None]], before_ms: int) -> TrimResult:
    """Remove the rows written before a time whose transactions have ended. `end` ends a row's transaction by its outcome."""
    removed = kept = 0
    after = ""
    while page := await rows.older(before_ms, after):
        gone = [row.key for row in page if await _has_ended(row, end)]
        if gone:
            await rows.remove(gone)
        removed, kept = removed + len(gone), kept + len(page) - len(gone)
        after = page[-1].key
        if len(page) < PAGE_ROWS:
            break
    return TrimResult(removed, kept)


async def _has_ended(row: Row, end: Callable[[Row], Awaitable[None]]) -> bool:
    try:
        await end(row)
    except (TransactionNotFound, CommitOutcomeUnknown) as error:
        # The coordinator has forgotten it, and it forgets only what has ended. A commit says so by its cause.
        return isinstance(error, TransactionNotFound) or isinstance(error.__cause__, TransactionNotFound)
    except (TransactionAborted, InvalidTransactionStatus) as error:
        return _ended_otherwise(row, error)
    except PulsarError as error:
        logger.warning("the row of %s is kept: its coordinator did not answer: %s", row.txn_id, error)
        return False
    return True


def _ended_otherwise(row: Row, error: PulsarError) -> bool:
    """An answer that contradicts the row.

    A tombstone may have been written by a check that came late, after the transaction was committed and its row removed.
    """
    if row.outcome is Outcome.ABORT:
        return True
    logger.error("the database has committed %s, and Pulsar has not (%s); its row is kept", row.txn_id, error)
    return False


class Ended:
    """The keys of transactions that this process has ended, until their rows are removed together."""

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._keys: list[str] = []

    def add(self, key: str) -> None:
        """Its row may go."""
        if self._every is not None:
            self._keys.append(key)

    def due(self, *, all_of_them: bool = False) -> list[str]:
        """Those to remove now: as many as a batch, or all. `add` those again that could not be removed."""
        if self._every is None or (len(self._keys) < self._every and not all_of_them):
            return []
        due, self._keys = self._keys, []
        return due
