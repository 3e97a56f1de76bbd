"""Producers of a topic and who may be one: access modes, epochs, names (reference §1.4, PIP-68).

At most one exclusive producer holds a topic. The topic epoch grows with each new holder and is durable before the
holder hears of it, so a fenced producer cannot come back with its old epoch, not even after a restart.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from pulsar_txn.broker.base.limits import LimitReached
from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Position, TxnId
from pulsar_txn.wire.topics import TopicName


class AccessMode(enum.IntEnum):
    """Protocol enum ProducerAccessMode."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class ProducerOwner(Protocol):
    """The connection of a producer."""

    async def is_alive(self) -> bool:
        """True if the client answers; if not, this connection and what it holds are gone afterwards."""

    def producer_receipt(self, producer: Producer, sequence_id: int, highest_sequence_id: int, position: Position) -> None:
        """A publish is durable."""

    def producer_refused(
        self, producer: Producer, sequence_id: int, error: ServerError, message: str, expected: int | None = None
    ) -> None:
        """A publish was refused; `expected`: because it is not the next one, which has this sequence id."""

    def producer_closed(self, producer: Producer) -> None:
        """The broker closed the producer: tell the client to reconnect."""


class PublishedTopic(Protocol):
    """The topic of a producer."""

    @property
    def name(self) -> TopicName:
        """Its full name."""

    @property
    def producers(self) -> ProducerSet:
        """Return who publishes there."""

    def last_sequence_id(self, producer_name: str) -> int:
        """Return where a producer of this name goes on; -1: it begins."""

    def publish(
        self, producer: Producer, sequence_id: int, highest: int | None, is_chunk: bool, txn_id: TxnId | None, entry: bytes
    ) -> None:
        """A SEND of the producer; its owner gets the answer."""


Send: TypeAlias = tuple[int, int | None, bool, TxnId | None, bytes]
"""Sequence id, highest one, whether it is a chunk, transaction, entry: the arguments of `PublishedTopic.publish`."""


class TopicEpochs(Protocol):
    """Store of the epoch of one topic."""

    async def read(self) -> int:
        """The newest one; -1 before the first holder."""

    async def write(self, epoch: int) -> None:
        """Keep a new one; as durable as the topic is when this returns."""


class Producer:
    """One producer of one connection.

    `refuses_gaps`: it wants its sequence ids to have no gaps. `is_waiting`: one of its sends waits for a verification, and its
    later sends wait behind it.
    """

    __slots__ = (
        "_held",
        "_unanswered",
        "encrypted",
        "epoch",
        "is_waiting",
        "mode",
        "name",
        "owner",
        "producer_id",
        "refuses_gaps",
        "topic",
        "topic_epoch",
    )

    def __init__(
        self,
        owner: ProducerOwner,
        producer_id: int,
        name: str,
        topic: PublishedTopic,
        mode: AccessMode,
        epoch: int = 0,
        *,
        encrypted: bool = False,
        refuses_gaps: bool = False,
    ) -> None:
        self.owner = owner
        self.producer_id = producer_id
        self.name = name
        self.topic = topic
        self.mode = mode
        self.epoch = epoch
        self.encrypted = encrypted
        self.refuses_gaps = refuses_gaps
        self.topic_epoch: int | None = None
        self.is_waiting = False
        self._unanswered = 0
        self._held: deque[Send] = deque()

    def begin_send(self) -> None:
        """A SEND came, which is to be answered."""
        self._unanswered += 1

    def end_send(self) -> bool:
        """A SEND is answered. False: the producer was closed meanwhile, and with it all that it had sent."""
        if not self._unanswered:
            return False
        self._unanswered -= 1
        return True

    def close(self) -> int:
        """Drop the sends that wait; returns how many of its sends are not answered."""
        unanswered, self._unanswered = self._unanswered, 0
        self._held.clear()
        return unanswered

    def wait(self) -> None:
        """The SEND that came last waits for a verification."""
        self.is_waiting = True

    def hold(self, send: Send) -> None:
        """Keep a SEND that came behind one that waits."""
        self._held.append(send)

    def go_on(self) -> None:
        """Nothing waits any more but what is held: see `next_held`."""
        self.is_waiting = False

    def next_held(self) -> Send | None:
        """Take the next SEND that was held; None when there is none, or the last one that was taken waits itself."""
        return None if self.is_waiting or not self._held else self._held.popleft()


Ready: TypeAlias = "Callable[[Refusal | None], None]"
"""Tells a producer that waited how its wait ended: None, it may publish."""


class ProducerSet:
    """Producers that publish to one topic now.

    `limit`: producers of the topic, those that wait included; `max_waiting`: those that wait for it. 0: no limit.
    """

    def __init__(
        self,
        topic: str,
        limit: int,
        max_waiting: int,
        epochs: TopicEpochs,
    ) -> None:
        self.by_name: dict[str, Producer] = {}
        self.waiting: dict[Producer, Ready] = {}  # in the order in which they came
        self._topic = topic
        self._limit = limit
        self._max_waiting = max_waiting
        self._epochs = epochs
        self._epoch = -1  # the newest that this set gave; what is stored may be older until it is durable
        self._exclusive: Producer | None = None

    @property
    def in_use(self) -> bool:
        """True if anybody publishes here, or waits for it."""
        return bool(self.by_name or self.waiting)

    async def add(self, producer: Producer, asked_epoch: int | None, ready: Ready) -> bool:
        """Admit a producer. True: it may publish. False: it waits, and `ready` tells how that ended.

        Refusals: ProducerBusy (its name is taken, or somebody holds the topic, or there are too many), ProducerFenced
        (Exclusive and not alone, its epoch is old, or another took the topic meanwhile), with a text each. After a
        refusal, or when this is cancelled, the caller calls `remove`.
        """
        self._check_room(producer)
        if producer.mode is AccessMode.Shared:
            if self._exclusive is not None or self.waiting:
                raise Refusal(ServerError.ProducerBusy, f"{self._topic} is held by an exclusive producer")
            self.by_name[producer.name] = producer
            return True
        await self._learn_epoch()
        if asked_epoch is not None and asked_epoch < self._epoch:
            text = f"topic epoch {asked_epoch} of {self._topic} is over, it is at {self._epoch}"
            raise Refusal(ServerError.ProducerFenced, text)
        self._check_room(producer)
        if producer.mode is AccessMode.ExclusiveWithFencing:
            self.fence_all(Refusal(ServerError.ProducerFenced, f"another producer took {self._topic} by fencing the others"))
        elif self.by_name:
            if producer.mode is AccessMode.Exclusive:
                raise Refusal(ServerError.ProducerFenced, f"{self._topic} has other producers; Exclusive wants to be alone")
            self._wait(producer, ready)
            return False
        await self._hold(producer, asked_epoch)
        return True

    def remove(self, producer: Producer) -> bool:
        """A producer is gone, also one that waits. True: the topic is free now, and somebody waits for it (call `promote`)."""
        self.waiting.pop(producer, None)
        if self.by_name.get(producer.name) is not producer:
            return False
        del self.by_name[producer.name]
        if self._exclusive is producer:
            self._exclusive = None
        return not self.by_name and bool(self.waiting)

    async def promote(self) -> None:
        """Give a free topic to the producer that waits longest. One that goes away meanwhile is passed over."""
        while self.waiting and not self.by_name:
            producer = next(iter(self.waiting))
            ready = self.waiting.pop(producer)
            try:
                await self._hold(producer, None)
            except Refusal as refusal:
                self.remove(producer)
                ready(refusal)
            except LedgerError as error:
                self.remove(producer)
                ready(Refusal(ServerError.ServiceNotReady, f"{error}; retry"))
            else:
                ready(None)

    def fence_all(self, refusal: Refusal | None = None) -> None:
        """Close every producer; those that wait hear `refusal`, or else that they may try again."""
        producers, waiting = list(self.by_name.values()), list(self.waiting.values())
        self.by_name.clear()
        self.waiting.clear()
        self._exclusive = None
        for producer in producers:
            producer.owner.producer_closed(producer)
        for ready in waiting:
            ready(refusal or Refusal(ServerError.ServiceNotReady, f"{self._topic} was closed; retry"))

    def fence_unencrypted(self) -> None:
        """Close every producer when one does not encrypt; it hears why when it comes back, and the others go on."""
        if not all(producer.encrypted for producer in [*self.by_name.values(), *self.waiting]):
            self.fence_all()

    async def _learn_epoch(self) -> None:
        self._epoch = max(self._epoch, await self._epochs.read())

    async def _hold(self, producer: Producer, asked_epoch: int | None) -> None:
        """Make it the holder. It has its place before the first await: nobody else may come in between.

        Refusal ProducerFenced when it was removed, or fenced, before its epoch was durable.
        """
        self._exclusive = producer
        self.by_name[producer.name] = producer
        await self._learn_epoch()
        if self._exclusive is producer:
            producer.topic_epoch = asked_epoch if asked_epoch is not None and asked_epoch > self._epoch else self._epoch + 1
            if asked_epoch == self._epoch:
                producer.topic_epoch = asked_epoch  # the holder itself, back after a reconnect
            else:
                self._epoch = producer.topic_epoch
                await self._epochs.write(producer.topic_epoch)
        if self._exclusive is not producer:
            raise Refusal(ServerError.ProducerFenced, f"another producer took {self._topic}, or this one was closed")

    def _wait(self, producer: Producer, ready: Ready) -> None:
        if self._max_waiting and len(self.waiting) >= self._max_waiting:
            what = f"{self._max_waiting} producers wait for {self._topic}"
            raise LimitReached("maxWaitingProducersPerTopic", what, ServerError.ProducerBusy)
        self.waiting[producer] = ready

    def _check_room(self, producer: Producer) -> None:
        if producer.name in self.by_name:
            text = f"producer {producer.name!r} is connected to {self._topic} already"
            raise Refusal(ServerError.ProducerBusy, text)
        if self._limit and len(self.by_name) + len(self.waiting) >= self._limit:
            what = f"{self._topic} has {self._limit} producers"
            raise LimitReached("maxProducersPerTopic", what, ServerError.ProducerBusy)
