"""The official client as the judge of stories: it fills topics and reads them."""

from __future__ import annotations

from collections.abc import Iterable

import pulsar as official


def read_officially(service_url: str, topic: str, count: int, *, no_more: bool = False, patience: float = 10.0) -> list[bytes]:
    """What a new reader of the official client gets of a topic, in its order: `count` messages, and more if there are.

    `no_more`: it returns with `count` messages, while others may still be written. `patience`: seconds until the next of these.
    """
    client = official.Client(service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, official.MessageId.earliest)
        read: list[bytes] = []
        while not (no_more and len(read) == count):
            try:
                read.append(reader.read_next(int(patience * 1000) if len(read) < count else 300).data())
            except official.Timeout:
                break
        return read
    finally:
        client.close()


def produce_officially(service_url: str, topic: str, values: Iterable[bytes]) -> None:
    """Send `values` to the topic with the official client, in batches, and return when all are stored."""
    client = official.Client(service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
    try:
        producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
        for value in values:
            producer.send_async(value, lambda *_: None)
        producer.flush()
    finally:
        client.close()
