"""What the tests of transactions do to every kind of server: make topics, read what is visible."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterable
from typing import Final

from targets import Target

from pulsar_txn.client import EARLIEST_ID, AsyncClient, AsyncConsumer, Message, OperationTimeout
from pulsar_txn.client.receive.consumer import reception_of

PATIENCE: Final = 20.0
"""Seconds to wait for what has to come: servers share two cores with everything else."""
QUIET: Final = 0.3
"""Seconds of silence that are taken for "nothing comes"; where it matters, something sent later comes first."""


async def create_partitioned_topic(pulsar: Target, topic: str, partitions: int) -> None:
    """Create it over the admin interface."""
    path = topic.replace("://", "/")
    request = urllib.request.Request(
        f"{pulsar.admin_url}/admin/v2/{path}/partitions",
        data=str(partitions).encode(),
        method="PUT",
        headers={"Content-Type": "application/json"},
    )
    answer = await asyncio.to_thread(urllib.request.urlopen, request, timeout=PATIENCE)
    answer.close()


async def received(consumer: AsyncConsumer[bytes], count: int) -> list[Message[bytes]]:
    """The next `count` messages."""
    return [await consumer.receive(timeout=PATIENCE) for _ in range(count)]


def forget_acknowledgements(consumer: AsyncConsumer[bytes], messages: Iterable[Message[bytes]]) -> None:
    """Make the client forget what it acknowledged in transactions, so that it does not refuse what a test wants to send."""
    owners = reception_of(consumer).partitions.all[0].owners
    for message in messages:
        hold = owners.acknowledged_in(message.entry.position, message.index)
        if hold is not None:
            owners.release(hold)


async def data_of(consumer: AsyncConsumer[bytes], count: int) -> list[bytes]:
    """The payloads of the next `count` messages."""
    return [message.data for message in await received(consumer, count)]


async def stays_silent(consumer: AsyncConsumer[bytes]) -> bool:
    """Whether nothing comes for a while."""
    try:
        await consumer.receive(timeout=QUIET)
    except OperationTimeout:
        return True
    return False


async def visible(client: AsyncClient, topic: str) -> list[bytes]:
    """Every payload that a reader from the start finds now."""
    found = []
    async with await client.create_reader(topic, EARLIEST_ID) as reader:
        while await reader.has_message_available():
            found.append((await reader.read_next(timeout=PATIENCE)).data)
    return found


async def eventually_visible(client: AsyncClient, topic: str, expected: list[bytes]) -> bool:
    """Whether `expected` is what a reader finds, within a while; for what the server does by itself, like timeouts."""
    for _ in range(int(PATIENCE / 0.1)):
        if await visible(client, topic) == expected:
            return True
        await asyncio.sleep(0.1)
    return False
