"""What readers of a topic see, in the words of an outsider: everything that is visible now, and whether something blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pulsar_txn.client import AsyncClient

SOON_SECONDS = 10
"""Far below the timeouts of transactions."""


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
    return not await comes_last(b"plain", lambda: read_all(url, topic))


async def comes_last(wanted: bytes, read: Callable[[], Awaitable[list[bytes]]]) -> bool:
    """Whether `wanted` is the last that is visible, now or soon: nobody waits for aborts of what was left open at a commit."""
    for _ in range(SOON_SECONDS * 10):
        if (await read())[-1:] == [wanted]:
            return True
        await asyncio.sleep(0.1)
    return False
