"""What readers of a topic see, in the words of an outsider: everything that is visible now, and whether something blocks."""

from __future__ import annotations

from pulsar_txn.client import AsyncClient


async def read_all(url: str, topic: str) -> list[bytes]:
    """Everything that is visible in a topic now."""
    async with AsyncClient(url) as client, await client.create_reader(topic) as reader:
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next(10)).data)
        return found


async def is_blocked(url: str, topic: str) -> bool:
    """Whether readers wait for a transaction that nobody ends."""
    async with AsyncClient(url) as client, await client.create_producer(topic) as producer:
        await producer.send(b"plain")
    return (await read_all(url, topic))[-1:] != [b"plain"]
