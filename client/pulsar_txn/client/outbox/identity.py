"""The identity of a database: a random number in a row of its own. By it a block and a check know that they mean the same one.

`connect` may lead to another database, or another schema, than the connections of the blocks. A check finds no row there. It
would write a tombstone, and Pulsar would abort what the real database has committed. So

* a block compares what its connection sees with what `connect` led to: before it begins, where the driver can be asked without
  an effect on the program's transaction, and always in the transaction that has its row, before PREPARE;
* the identity goes into the check data, and a check compares it in the transaction that has the tombstone.

The row is written over connections of the outbox's own, and by `create_table`: never in a program's transaction, which may roll
back. A copy, a replica or a restored dump has the identity of its original.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from pulsar_txn.client.errors import OutboxWrongDatabase
from pulsar_txn.client.net.runtime import secret_bytes
from pulsar_txn.client.outbox.dialects import Statements
from pulsar_txn.client.outbox.door import Door, is_access_error

T = TypeVar("T")

IDENTITY_BYTES: Final = 16

_CREATE: Final = (
    "call outbox.create_table() once, which adds it also to a table that exists; "
    "when that is done, look whether `connect` and the connections of the blocks lead to the same database and schema"
)


class Identity:
    """The row in one table; `statements` are those for a connection. `who` names the connection in errors."""

    def __init__(self, statements: Callable[[Door], Statements]) -> None:
        self._statements = statements

    async def insert(self, door: Door) -> None:
        """Write one, unless there is one already. Raises what the driver raises."""
        values = {"identity": secret_bytes(IDENTITY_BYTES).hex()}
        await door.execute(self._statements(door).insert_identity, values)

    async def find(self, door: Door, who: str) -> str | None:
        """That of the database, by a query in the transaction that is open; None without a row.

        OutboxWrongDatabase without the table.
        """
        return _text(await _had(door.rows(self._statements(door).identity, {}, 1), who))

    async def check(self, door: Door, expected: str | None, who: str) -> None:
        """Compare, in the transaction that is open, unless nothing is expected. OutboxWrongDatabase for another one."""
        if expected is not None:
            _compare(await self.find(door, who), expected, who)

    async def check_before(self, door: Door, expected: str, who: str) -> None:
        """Compare before a transaction begins, where that can be done; see `Door.rows_before`. Raises as `check`."""
        found = await _had(door.rows_before(self._statements(door).identity, 1), who)
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
