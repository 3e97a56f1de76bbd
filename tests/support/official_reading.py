"""What the official client reads of a topic: the judge of stories on stock Pulsar."""

from __future__ import annotations

import pulsar as official


def read_officially(service_url: str, topic: str, count: int) -> list[bytes]:
    """What a new reader of the official client gets of a topic, in its order: `count` messages, and more if there are."""
    client = official.Client(service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, official.MessageId.earliest)
        read: list[bytes] = []
        while True:
            try:
                read.append(reader.read_next(10_000 if len(read) < count else 300).data())
            except official.Timeout:
                return read
    finally:
        client.close()
