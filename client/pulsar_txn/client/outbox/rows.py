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
from pulsar_txn.client.outbox.door import Door, is_conflict, is_integrity_error
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

    def statements(self, door: Door) -> Statements:
        """The statements for a connection: in the dialect that was chosen, or in its own."""
        dialect = self._dialect or door.dialect
        known = self._statements.get(dialect.name)
        if known is None:
            known = self._statements[dialect.name] = statements_of(self._table, dialect)
        return known

    async def create(self, door: Door) -> None:
        """Create the table, and commit."""
        await _in_transaction(door, lambda: door.execute(self.statements(door).create, {}))

    async def insert(self, door: Door, key: str, txn_id: TxnId) -> None:
        """Write the row that commits, in the transaction that is open. Raises what the driver raises."""
        await door.execute(self.statements(door).insert, self._values(key, txn_id, Outcome.COMMIT))

    async def decide(self, door: Door, key: str, txn_id: TxnId) -> Outcome | None:
        """The outcome of a transaction: that of its row, or ABORT by a tombstone. None when a row appeared and went meanwhile.

        The insert comes first. It waits for a writer in flight where the database does so, and it is refused only because of a
        row that is committed, at any isolation level. Only after that the row is read, in a transaction that begins then.
        Raises what the driver raises when the database cannot be asked.
        """
        try:
            written = await _in_transaction(door, lambda: self._write_tombstone(door, key, txn_id))
        except Exception as error:
            if is_integrity_error(error):
                written = 0
            elif is_conflict(error):  # the row came after the snapshot of an isolation level above READ COMMITTED
                written = await _in_transaction(door, lambda: self._write_tombstone(door, key, txn_id))
            else:
                raise
        if written:
            return Outcome.ABORT
        found = await _in_transaction(door, lambda: door.rows(self.statements(door).outcome, {"key": key}, 1))
        return Outcome(found[0][0]) if found else None

    async def _write_tombstone(self, door: Door, key: str, txn_id: TxnId) -> int:
        statements = self.statements(door)
        for statement in statements.before_check:
            await door.execute(statement, {})
        return await door.execute(statements.tombstone, self._values(key, txn_id, Outcome.ABORT))

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
