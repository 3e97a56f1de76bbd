"""What tests of consistent readers send and take."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_txn.client import AsyncClient, AsyncProducer, OperationTimeout
from pulsar_txn.client.cuts import AsyncConsistentReader

SOON = 20.0
SILENT = 1.0


async def send_in_one(client: AsyncClient, *sends: tuple[AsyncProducer[bytes], bytes], commit: bool = True) -> None:
    txn = await client.begin_transaction()
    for producer, value in sends:
        await producer.send(value, txn=txn)
    await (txn.commit() if commit else txn.abort())


async def take(reader: AsyncConsistentReader[bytes], count: int) -> list[bytes]:
    """The next messages, sorted."""
    found: list[bytes] = []
    while len(found) < count:
        found += [message.data for message in await reader.next_cut(SOON)]
    return sorted(found)


async def is_silent(reader: AsyncConsistentReader[bytes]) -> bool:
    try:
        await reader.next_cut(SILENT)
    except OperationTimeout:
        return True
    return False


async def producers_of(client: AsyncClient, topics: Sequence[str]) -> list[AsyncProducer[bytes]]:
    return [await client.create_producer(topic, batching=False) for topic in topics]
