"""What a reader of the topics sees: live, for progress and plots, and once more from the start, for the checks."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import attrs

from pulsar_txn.client import AsyncClient, Message, PulsarError

_SAMPLE_SECONDS = 0.05


@attrs.frozen
class Seen:
    """One message of a topic: its JSON value, the transaction that it was sent in, the micro-batch that it says."""

    value: dict[str, Any]
    txn_id: str | None
    batch_id: int | None
    position: tuple[int, int]

    @classmethod
    def of(cls, message: Message[bytes]) -> Seen:
        """From a message."""
        batch = message.properties.get("__batch_id")
        txn_id = None if message.txn_id is None else str(message.txn_id)
        return cls(json.loads(message.data), txn_id, None if batch is None else int(batch), message.message_id[:2])


async def read_topic(client: AsyncClient, topic: str) -> list[Seen]:
    """Everything that is committed in a topic at this moment, in its order."""
    async with client.create_reader(topic) as reader:
        seen: list[Seen] = []
        while await reader.has_message_available():
            seen += [Seen.of(message) for message in await reader.read_many(1000, max_wait=0.05)]
        return seen


class Watch:
    """Follows a run: which flights a reader has seen when, and up to where readers could see at which moment."""

    def __init__(self, client: AsyncClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self.ids: set[int] = set()
        """Flights with a settlement or a refusal."""
        self.arrived: list[tuple[int, int]] = []
        """(ms, flights seen up to then)."""
        self.max_read: list[tuple[int, tuple[int, int]]] = []
        """(ms, newest position of `topic` that readers may see)."""

    async def follow(self, topic: str) -> None:
        """Read until cancelled; goes on over restarts of the broker."""
        async with self._client.create_reader(topic) as reader:
            while True:
                messages = await reader.read_many(1000, max_wait=_SAMPLE_SECONDS)
                if messages:
                    self.ids.update(json.loads(message.data)["id"] for message in messages)
                    self.arrived.append((_now_ms(), len(self.ids)))

    async def sample(self) -> None:
        """Ask for maxReadPosition until cancelled; while the broker is away there is nothing to note."""
        async with self._client.create_reader(self._topic) as reader:
            while True:
                try:
                    last = await reader.get_last_message_id()
                    self.max_read.append((_now_ms(), (last.ledger_id, last.entry_id)))
                except PulsarError:
                    await asyncio.sleep(_SAMPLE_SECONDS)
                await asyncio.sleep(_SAMPLE_SECONDS)


@attrs.define
class Arrival:
    """One micro-batch in one topic, as a reader saw it come."""

    first_ms: int
    rows: int = 0
    waited_ms: list[int] = attrs.field(factory=list)
    """For each row with an event time: from there to the moment at which the reader had it."""


async def follow_batches(client: AsyncClient, topic: str, arrivals: dict[int, Arrival]) -> None:
    """Note each micro-batch of a topic as it becomes visible, until cancelled; goes on over restarts of the broker."""
    async with client.create_reader(topic) as reader:
        while True:
            for message in await reader.read_many(1000, max_wait=_SAMPLE_SECONDS):
                now_ms = _now_ms()
                arrival = arrivals.setdefault(int(message.properties["__batch_id"]), Arrival(now_ms))
                arrival.rows += 1
                if (event_time_ms := message.event_time_ms) is not None:
                    arrival.waited_ms.append(now_ms - event_time_ms)


async def publish_times(client: AsyncClient, topic: str) -> list[int]:
    """When each message of a topic was published, in milliseconds since the epoch, in the topic's order."""
    async with client.create_reader(topic) as reader:
        times: list[int] = []
        while await reader.has_message_available():
            times += [message.publish_time_ms for message in await reader.read_many(1000, max_wait=0.05)]
        return times


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
