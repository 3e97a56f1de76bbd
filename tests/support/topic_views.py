"""A topic of a broker in the test's own loop: compacted, read from its beginning, or looked at at another time."""

from __future__ import annotations

from typing import Any

from raw_client import FULL, RawClient, Received

from pulsar_txn.wire import pulsar_pb2 as pb

HOUR_MS = 3_600_000


async def compact(bench: Any, client: RawClient, topic: str = "a") -> None:
    """Compact a topic, and wait for the end."""
    opened = await bench.broker.topic(bench.broker.topics[FULL + topic].name)
    opened.compaction.start()
    await client.until(lambda: opened.compaction.status != "RUNNING", "the end of a compaction")
    assert (opened.compaction.status, opened.compaction.error) == ("SUCCESS", "")


def visible(message: Received) -> list[tuple[str, bytes]]:
    """Key and payload of what a client would hand out."""
    return [(message.metadata.partition_key, message.payloads[0])]


async def read(bench: Any, topic: str = "a", *, compacted: bool = True) -> list[tuple[str, bytes]]:
    """What a reader from the beginning gets."""
    client = bench.client()
    start = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    await client.subscribe(topic, "r", durable=False, read_compacted=compacted, start_message_id=start)
    await client.settle(200)
    found = [each for message in client.messages[0] for each in visible(message)]
    client.drop()
    return found


def now_ms(bench: Any) -> int:
    """The broker's clock."""
    now: int = bench.broker.clock.now_ms()
    return now


def later(bench: Any, milliseconds: int, topic: str = "a") -> None:
    """The clock goes ahead, as if the timer had come."""
    bench.broker.clock.observe(now_ms(bench) + milliseconds)
    for subscription in bench.broker.topics[FULL + topic].subscriptions.values():
        subscription.dispatcher.wake()
