"""Producing, consuming, looking up and connecting meet every fault: nothing is lost, nothing is stored twice, nothing hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from frame_proxy import Fault, FrameProxy, brisk_client
from targets import Target
from transactions import PATIENCE, stays_silent, visible

from pulsar_txn.client import AsyncClient, ConnectionLost, InitialPosition, OperationTimeout

T = TypeVar("T")

REQUESTS = ("connect", "partitionMetadata", "lookupTopic", "producer", "subscribe", "flow", "send", "ack")
OF_ANSWERS = {Fault.RESET_MEANWHILE, Fault.RESET_AFTER, Fault.END_AFTER, Fault.LOST_ANSWER}
"""A message has no answer."""
NUMBERS = [b"0", b"1", b"2"]


async def again(operation: Callable[[], Awaitable[T]]) -> T:
    """What a program does whose operation failed for such reasons; either time it has to end."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await operation()
    except (OperationTimeout, ConnectionLost):
        async with asyncio.timeout(PATIENCE):
            return await operation()


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
async def test_producing_and_consuming(deduplicating: Target, topic: str, fault: Fault) -> None:
    async with asyncio.TaskGroup() as stories:
        for command in REQUESTS if fault in OF_ANSWERS else (*REQUESTS, "message"):
            stories.create_task(story(deduplicating, f"{topic}-{command}", command, fault))


async def story(pulsar: Target, topic: str, command: str, fault: Fault) -> None:
    """Three numbers from a producer to a consumer."""
    # Stock takes 5 s to give the place of a half-open connection away.
    operation_timeout = 2.0 if fault is Fault.LOST_ANSWER else 15.0
    async with AsyncClient(pulsar.service_url) as calm, FrameProxy(pulsar.service_url) as proxy:
        await calm.create_producer(topic)
        async with brisk_client(proxy.service_url, operation_timeout) as client:
            trap = proxy.arm(command, fault)
            producer = await again(lambda: client.create_producer(topic, send_timeout=operation_timeout))
            consumer = await again(lambda: client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST))
            for number in NUMBERS:
                try:
                    async with asyncio.timeout(PATIENCE):
                        await producer.send(number)
                except OperationTimeout:  # it says that the message may be there, and it is
                    assert (command, fault) == ("send", Fault.LOST_ANSWER)
            seen: set[bytes] = set()
            while seen != set(NUMBERS):
                message = await consumer.receive(timeout=PATIENCE)
                seen.add(message.data)
                await again(lambda message=message: consumer.acknowledge(message, receipt=True))  # type: ignore[misc]  # a lambda with a default
            assert trap.sprung
            assert await visible(calm, topic) == NUMBERS
            await consumer.close()
            successor = await calm.subscribe(topic, "s")
            assert await stays_silent(successor)
