"""Producers of a topic and who may be one: access modes, epochs, names (reference §1.4, PIP-68).

At most one exclusive producer holds a topic. The topic epoch grows with each new holder and is durable before the
holder hears of it, so that one that was fenced cannot come back with its old epoch, after a restart neither.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Position


class AccessMode(enum.IntEnum):
    """Protocol enum ProducerAccessMode."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class ProducerOwner(Protocol):
    """The connection of a producer."""

    async def is_alive(self) -> bool:
        """Whether the client answers; if not, this connection and what it holds are gone afterwards."""

    def producer_receipt(self, producer: Producer, sequence_id: int, highest_sequence_id: int, position: Position) -> None:
        """A publish is durable."""

    def producer_refused(self, producer: Producer, sequence_id: int, error: ServerError, message: str) -> None:
        """A publish was refused."""

    def producer_closed(self, producer: Producer) -> None:
        """The broker closed the producer: tell the client to reconnect."""


class Producer:
    """One producer of one connection. `held`: its sends that wait behind a verification, in order; `pending`: not answered."""

    __slots__ = (
        "encrypted",
        "epoch",
        "held",
        "mode",
        "name",
        "owner",
        "pending",
        "producer_id",
        "topic",
        "topic_epoch",
        "waiting_for",
    )

    def __init__(self, owner: ProducerOwner, producer_id: int, name: str, topic: Any, mode: AccessMode, epoch: int = 0) -> None:
        self.owner = owner
        self.producer_id = producer_id
        self.name = name
        self.topic = topic
        self.mode = mode
        self.epoch = epoch
        self.encrypted = False
        self.topic_epoch: int | None = None
        self.pending = 0
        self.held: deque[tuple[Any, ...]] = deque()
        self.waiting_for: object | None = None


class ProducerSet:
    """Who publishes to one topic now."""

    def __init__(
        self, topic: str, limit: int, read_epoch: Callable[[], Awaitable[int]], write_epoch: Callable[[int], Awaitable[None]]
    ) -> None:
        self.by_name: dict[str, Producer] = {}
        self._topic = topic
        self._limit = limit
        self._read_epoch = read_epoch
        self._write_epoch = write_epoch
        self._exclusive: Producer | None = None
        self._waiting: deque[tuple[Producer, Callable[[Producer], None]]] = deque()

    async def add(self, producer: Producer, asked_epoch: int | None, ready_later: Callable[[Producer], None]) -> bool:
        """Admit a producer. True: it may publish. False: it waits, and `ready_later` is called when it may.

        Refusals: ProducerBusy (its name is taken, or somebody holds the topic), ProducerFenced (Exclusive and not alone, or
        its epoch is old), with a text each.
        """
        self._check_name(producer)
        if self._limit and len(self.by_name) >= self._limit:
            raise Refusal(ServerError.ProducerBusy, f"{self._topic} has {self._limit} producers, as many as it may")
        if producer.mode is AccessMode.Shared:
            if self._exclusive is not None or self._waiting:
                raise Refusal(ServerError.ProducerBusy, f"{self._topic} is held by an exclusive producer")
            self.by_name[producer.name] = producer
            return True
        current = await self._read_epoch()
        if asked_epoch is not None and asked_epoch < current:
            raise Refusal(ServerError.ProducerFenced, f"topic epoch {asked_epoch} of {self._topic} is over, it is at {current}")
        self._check_name(producer)
        if producer.mode is AccessMode.ExclusiveWithFencing:
            self.fence_all()
        elif self.by_name or self._exclusive is not None:
            if producer.mode is AccessMode.Exclusive:
                raise Refusal(ServerError.ProducerFenced, f"{self._topic} has other producers; Exclusive wants to be alone")
            self._waiting.append((producer, ready_later))
            return False
        await self._hold(producer, asked_epoch, current)
        return True

    def remove(self, producer: Producer) -> bool:
        """A producer is gone. True: the topic is free, and somebody waits for it (call `promote`)."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not producer)
        if self.by_name.get(producer.name) is producer:
            del self.by_name[producer.name]
        if self._exclusive is producer:
            self._exclusive = None
        return not self.by_name and bool(self._waiting)

    async def promote(self) -> None:
        """Give a free topic to the producer that waits longest."""
        if self.by_name or not self._waiting:
            return
        producer, ready_later = self._waiting.popleft()
        await self._hold(producer, None, await self._read_epoch())
        ready_later(producer)

    def fence_all(self) -> None:
        """Close every producer, those that wait included."""
        producers = [*self.by_name.values(), *(producer for producer, _ in self._waiting)]
        self.by_name.clear()
        self._waiting.clear()
        self._exclusive = None
        for producer in producers:
            producer.owner.producer_closed(producer)

    def fence_unencrypted(self) -> None:
        """Close every producer when one does not encrypt; it hears why when it comes back, and the others go on."""
        if not all(producer.encrypted for producer in [*self.by_name.values(), *(waiter for waiter, _ in self._waiting)]):
            self.fence_all()

    async def _hold(self, producer: Producer, asked_epoch: int | None, current: int) -> None:
        self._exclusive = producer  # before the await: nobody else may come in between
        self.by_name[producer.name] = producer
        producer.topic_epoch = asked_epoch if asked_epoch is not None and asked_epoch > current else current + 1
        if asked_epoch == current:
            producer.topic_epoch = current  # the holder itself, back after a reconnect
            return
        try:
            await self._write_epoch(producer.topic_epoch)
        except BaseException:
            self.remove(producer)
            raise

    def _check_name(self, producer: Producer) -> None:
        """A name is taken, unless by the same producer before its own reconnect."""
        other = self.by_name.get(producer.name)
        if other is None:
            return
        if other.owner is producer.owner and producer.producer_id == other.producer_id and producer.epoch > other.epoch:
            self.remove(other)
            return
        raise Refusal(ServerError.ProducerBusy, f"producer {producer.name!r} is connected to {self._topic} already")
