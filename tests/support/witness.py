"""What an application sees that reads with the official client: an independent count of rows that were written by ours."""

from __future__ import annotations

from collections import Counter

import pulsar as official


class Witness:
    """An application that reads with the official client, from the first row on."""

    def __init__(self, url: str, topic: str) -> None:
        self._topic = topic
        self._client = official.Client(url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
        self._consumer = self._client.subscribe(topic, "witness", initial_position=official.InitialPosition.Earliest)

    def read(self) -> Counter[int]:
        """Every number that readers see, and how often. Fails when a transaction that nobody ends keeps readers waiting."""
        producer = self._client.create_producer(self._topic)
        producer.send(b"the end")
        producer.close()
        found: Counter[int] = Counter()
        while True:
            try:
                message = self._consumer.receive(30_000)
            except official.Timeout:
                raise AssertionError(f"readers wait for a transaction that nobody ends, after {found.total()} rows") from None
            self._consumer.acknowledge(message)
            if message.data() == b"the end":
                return found
            found[int(message.data())] += 1

    def close(self) -> None:
        """End the client."""
        self._client.close()
