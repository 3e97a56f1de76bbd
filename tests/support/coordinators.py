"""What tests ask of transaction coordinators, over the wire and over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from admin import TRANSACTIONS, AdminError, get_json

from pulsar_txn.client import AsyncClient, AsyncTransaction, PulsarError
from pulsar_txn.wire.ids import TxnId


async def what_came_of(operation: Awaitable[object], success: str) -> str:
    """`success`, or the name of the error."""
    try:
        await operation
    except PulsarError as error:
        return type(error).__name__
    return success


def id_of(txn: AsyncTransaction) -> TxnId:
    """The id of a transaction that was begun."""
    assert txn.id is not None
    return txn.id


async def begun_at(client: AsyncClient, coordinator: int, timeout: float = 60) -> AsyncTransaction:
    """A transaction of this coordinator; new ones go round robin over all."""
    while True:
        txn = await client.begin_transaction(timeout=timeout)
        if id_of(txn).most == coordinator:
            return txn
        await txn.abort()


async def metadata(server: Any, txn_id: TxnId) -> dict[str, Any]:
    """What the coordinator says of a transaction that is open or ending. Raises AdminError."""
    found: dict[str, Any] = await get_json(server, f"{TRANSACTIONS}/transactionMetadata/{txn_id.most}/{txn_id.least}")
    return found


async def is_known(server: Any, txn_id: TxnId) -> bool:
    """Whether the coordinator has this transaction among those that are open or ending."""
    try:
        await metadata(server, txn_id)
    except AdminError as error:
        if error.status != 404:
            raise
        return False
    return True
