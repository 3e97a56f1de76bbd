"""The rows of an outbox: what is written in the program's transaction, and what a check and a trim do in their own.

A row is written once and never changed. So its outcome is the outcome of the transaction, whoever reads it, until it is
removed; and it is removed only after the coordinator has ended the transaction.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from pulsar_txn.client.outbox.dialects import Dialect, Statements, statements_of
from pulsar_txn.client.outbox.door import Door, is_access_error, is_conflict, is_integrity_error
from pulsar_txn.client.outbox.identity import Identity, missing
from pulsar_txn.wire.ids import TxnId

PAGE_ROWS: Final = 500
"""How many rows are read, and removed in one database transaction."""


class Outcome(enum.Enum):
    """What a row says."""

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

    def statements(self, door: Door) -> Statements:
        """The statements for a connection: in the dialect that was chosen, or in its own."""
        dialect = self._dialect or door.dialect
        known = self._statements.get(dialect.name)
        if known is None:
            known = self._statements[dialect.name] = statements_of(self._table, dialect)
        return known

    async def create(self, door: Door) -> None:
        """Create the table and that of the identity, with its row, and commit. What exists is kept."""
        statements = self.statements(door)
        await _create(door, statements.create, lambda: door.rows(statements.outcome, {"key": ""}, 1))
        await _create(door, statements.create_identity, lambda: door.rows(statements.identity, {}, 1))
        await self.read_identity(door)

    async def read_identity(self, door: Door) -> str:
        """The identity of the database of a connection of the outbox's own; written now if its table has none yet.

        Raises OutboxWrongDatabase without the table, and what the driver raises.
        """
        found = await _in_transaction(door, lambda: self.identity.find(door, "`connect`"))
        if found is None:
            try:
                await _in_transaction(door, lambda: self.identity.insert(door))
            except Exception as error:
                if not (is_integrity_error(error) or is_conflict(error)):  # which say that another process was faster
                    raise
            found = await _in_transaction(door, lambda: self.identity.find(door, "`connect`"))
        if found is None:
            raise missing("`connect`")
        return str(found)

    async def insert(self, door: Door, key: str, txn_id: TxnId) -> None:
        """Write the row that commits, in the transaction that is open. Raises what the driver raises."""
        await door.execute(self.statements(door).insert, self._values(key, txn_id, Outcome.COMMIT))

    async def decide(self, door: Door, key: str, txn_id: TxnId, identity: str | None = None) -> Outcome | None:
        """The outcome of a transaction: that of its row, or ABORT by a tombstone. None when a row appeared and went meanwhile.

        The insert comes first. It waits for a writer in flight where the database does so, and it is refused only because of a
        row that is committed, at any isolation level. Only after that the row is read, in a transaction that begins then.
        Each of the two transactions compares the identity, if one is given: where it is another one, the row may be elsewhere.
        Raises OutboxWrongDatabase then, with nothing written, and what the driver raises when the database cannot be asked.
        """
        try:
            written = await _in_transaction(door, lambda: self._write_tombstone(door, key, txn_id, identity))
        except Exception as error:
            if is_integrity_error(error):
                written = 0
            elif is_conflict(error):  # the row came after the snapshot of an isolation level above READ COMMITTED
                written = await _in_transaction(door, lambda: self._write_tombstone(door, key, txn_id, identity))
            else:
                raise
        if written:
            return Outcome.ABORT
        found = await _in_transaction(door, lambda: self._read(door, key, identity))
        return Outcome(found[0][0]) if found else None

    async def _read(self, door: Door, key: str, identity: str | None) -> Sequence[Sequence[Any]]:
        await self.identity.check(door, identity, "`connect`")
        return await door.rows(self.statements(door).outcome, {"key": key}, 1)

    async def _write_tombstone(self, door: Door, key: str, txn_id: TxnId, identity: str | None) -> int:
        """Whether there was no row: 1 or 0. The insert is first: SQLite gives the lock to a write only before any query."""
        statements = self.statements(door)
        for statement in statements.before_check:
            await door.execute(statement, {})
        written = await door.execute(statements.tombstone, self._values(key, txn_id, Outcome.ABORT))
        await self.identity.check(door, identity, "`connect`")
        return written

    async def older(self, door: Door, before_ms: int, after: str) -> list[Row]:
        """A page of the group's rows that were written before a time, by key."""
        values = {"group": self._group, "before_ms": before_ms, "after": after}
        found = await _in_transaction(door, lambda: door.rows(self.statements(door).older, values, PAGE_ROWS))
        return [Row(str(key), TxnId.parse(str(txn_id)), Outcome(outcome)) for key, txn_id, outcome in found]

    async def remove(self, door: Door, keys: Sequence[str]) -> None:
        """Remove rows of transactions that the coordinator has ended, in one database transaction."""

        async def each() -> None:
            for key in keys:
                await door.execute(self.statements(door).delete, {"key": key})

        await _in_transaction(door, each)

    def _values(self, key: str, txn_id: TxnId, outcome: Outcome) -> dict[str, Any]:
        return {
            "key": key,
            "group": self._group,
            "txn_id": str(txn_id),
            "outcome": outcome.value,
            "created_at_ms": self._now_ms(),
        }


async def _create(door: Door, statement: str, probe: Callable[[], Any]) -> None:
    """Create a table unless it exists: by IF NOT EXISTS where the dialect has that, otherwise by a query to it."""
    if " IF NOT EXISTS " not in statement:
        try:
            await _in_transaction(door, probe)
        except Exception as error:
            if not is_access_error(error):
                raise
        else:
            return
    await _in_transaction(door, lambda: door.execute(statement, {}))


async def _in_transaction(door: Door, work: Callable[[], Any]) -> Any:
    """Do it in a transaction of its own, and commit; roll back when it fails."""
    await door.begin()
    try:
        result = await work()
        await door.commit()
    except BaseException:
        await roll_back(door)
        raise
    return result


async def roll_back(door: Door) -> Exception | None:
    """Roll back; the error with which that failed, because another one is on its way. A database rolls back what is lost."""
    try:
        await door.rollback()
    except Exception as error:  # noqa: BLE001 - told to the caller, who has an error of more interest
        return error
    return None
