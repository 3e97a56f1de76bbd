"""A topic with messages in it, a consumer on it, and what is left for its successor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transactions import data_of, stays_silent

from pulsar_txn.client import AsyncClient, AsyncConsumer, ConsumerType, InitialPosition, Message


async def filled(client: AsyncClient, topic: str, count: int, *, batched: bool, one_key: bool = True) -> list[bytes]:
    """`count` messages in the topic, all of one batch, or each an entry of its own; returns their payloads.

    `one_key`: their key is the same.
    """
    payloads = [b"%d" % number for number in range(count)]
    producer = await client.create_producer(topic, batching=batched, batching_max_messages=count, batching_max_delay=5)
    tickets = [producer.send_nowait(each, key="k" if one_key else f"k{number}") for number, each in enumerate(payloads)]
    await producer.flush()
    assert len({(await ticket).entry_id for ticket in tickets}) == (1 if batched else count)
    await producer.close()
    return payloads


async def subscribed(client: AsyncClient, topic: str, kind: ConsumerType, **options: Any) -> AsyncConsumer[bytes]:
    """A consumer of the subscription `s`, from the first message on."""
    options = {"initial_position": InitialPosition.EARLIEST} | options
    return await client.subscribe(topic, options.pop("name", "s"), consumer_type=kind, **options)


async def left_over(client: AsyncClient, topic: str, consumer: AsyncConsumer[Any], count: int) -> list[bytes]:
    """What a new consumer of the subscription gets: `count` messages, sorted, and nothing else. Closes `consumer`."""
    await consumer.close()
    successor = await subscribed(client, topic, consumer.consumer_type)
    data = await data_of(successor, count)
    assert await stays_silent(successor)
    await successor.close()
    return sorted(data)


def chosen(messages: Sequence[Message[bytes]], *indexes: int) -> list[Message[bytes]]:
    """The messages at these places."""
    return [messages[index] for index in indexes]
