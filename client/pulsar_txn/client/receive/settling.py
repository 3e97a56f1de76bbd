"""What becomes of received messages: the half of `Consumer` that acknowledges, refuses, puts off and gives back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from pulsar_txn.client._checks import number_of_seconds, refused
from pulsar_txn.client.errors import ConnectionLost, InvalidConfiguration, TransactionStateError
from pulsar_txn.client.net.core import run_all
from pulsar_txn.client.receive.acks import Place
from pulsar_txn.client.receive.dead_letters import DeadLetters
from pulsar_txn.client.receive.message import Entry, Message
from pulsar_txn.client.receive.nacks import NackTracker
from pulsar_txn.client.receive.partition_consumer import PartitionConsumer
from pulsar_txn.client.receive.receiving import Receiving
from pulsar_txn.client.txn.ambient import unit_of
from pulsar_txn.client.txn.enlist import Enlisting
from pulsar_txn.client.txn.transaction import AsyncTransaction
from pulsar_txn.wire.ids import MessageId, Position

T = TypeVar("T")

Acknowledged: TypeAlias = "Message[Any] | MessageId"


class Settling(Receiving[T]):
    """Acknowledging and the like. The attributes are set by `Consumer`."""

    letters: DeadLetters | None
    _nacks: NackTracker
    _acknowledged: int
    _refused: int

    async def acknowledge(
        self,
        message: Acknowledged | Sequence[Acknowledged],
        *,
        txn: AsyncTransaction | None = None,
        receipt: bool | None = None,
    ) -> None:
        """Acknowledge a message, an id, or many of them. Without effect for topics that a pattern has lost.

        Outside a transaction acknowledgements are collected for `ack_group_delay` and this returns at once; with `receipt`
        (or the consumer's `ack_receipt`) they leave now, and this returns when the broker has answered. In a transaction
        they are always answered, and take effect when it commits.

        Raises the broker's error, ConnectionLost, OperationTimeout; with `txn` TransactionConflict when a message is
        acknowledged in an open transaction already, TransactionStateError, and other TransactionErrors; InvalidConfiguration
        for an id that does not say the size of its batch, when it is not known here.
        If cancelled, the acknowledgement may still happen; a transaction is doomed by it.
        """
        self._check_open()
        unit = self._unit(txn)
        wants_receipt = self._options.ack_receipt if receipt is None else receipt
        if unit is None and not wants_receipt and isinstance(message, Message) and message.entry.consumer in self._parts:
            entry = message.entry
            entry.consumer.ack_soon((entry.position, message.index, entry.batch_size))
            self._acknowledged += 1
            if self._chain is not None:
                self._chain.acknowledged([message], None)
            return
        those = [message] if isinstance(message, (Message, MessageId)) else message
        _check_many(those)
        try:
            await self._acknowledge(self._places(those, unit), unit, wants_receipt=wants_receipt)
        except BaseException as error:
            self._settled(those, error)
            raise
        self._settled(those, None)

    async def _acknowledge(
        self,
        places: dict[PartitionConsumer, list[Place]],
        unit: Enlisting | None,
        *,
        wants_receipt: bool,
        cumulative: bool = False,
    ) -> None:
        work: list[Coroutine[Any, Any, None]]
        if unit is None and not wants_receipt:
            _ack_soon(places)
            return
        if unit is not None:
            _check_persistent(places)
            work = [part.ack_in_transaction(those, unit, cumulative=cumulative) for part, those in places.items()]
        else:
            work = [part.ack_with_receipt(those, cumulative=False) for part, those in places.items()]
        await run_all(work)

    @property
    def may_acknowledge_soon(self) -> bool:
        """For the sync client, from any thread: whether its program need not wait for acknowledgements outside transactions."""
        return not (self._options.ack_receipt or self._observed or self._closed)

    def acknowledge_soon(self, messages: Sequence[Message[Any]], *, cumulative: bool) -> None:
        """For the sync client: outside of transactions, and nobody waits. Without effect once the consumer is closed."""
        if self._closed:
            return
        places = self._places(messages, None)
        if cumulative:
            for part, those in places.items():
                part.ack_cumulative_soon(those[-1])
        else:
            _ack_soon(places)
        self._acknowledged += len(messages)

    def _settled(self, messages: Sequence[Acknowledged], error: BaseException | None) -> None:
        if error is None:
            self._acknowledged += len(messages)
        if self._chain is not None:
            self._chain.acknowledged(messages, error)

    async def acknowledge_cumulative(
        self, message: Acknowledged, *, txn: AsyncTransaction | None = None, receipt: bool | None = None
    ) -> None:
        """Acknowledge everything of this message's partition up to and with it. As `acknowledge`.

        Raises InvalidConfiguration on Shared and Key_Shared subscriptions, where there is no order.
        """
        self._check_open()
        if not self._options.consumer_type.is_single:
            raise InvalidConfiguration(
                f"cumulative acknowledgement is not possible on a {self._options.consumer_type.name} subscription",
                hint="acknowledge the messages one by one or as a list",
            )
        unit = self._unit(txn)
        for part, places in self._places([message], unit).items():
            if unit is not None:
                await self._acknowledge({part: places}, unit, wants_receipt=True, cumulative=True)
            elif self._options.ack_receipt if receipt is None else receipt:
                await part.ack_with_receipt(places, cumulative=True)
            else:
                part.ack_cumulative_soon(places[0])
        self._settled([message], None)

    def negative_acknowledge(self, message: Acknowledged, *, delay: float | timedelta | None = None) -> None:
        """Have the message's entry delivered again after `delay`.

        By default that is the consumer's `negative_ack_delay`, or what its `negative_ack_backoff` says of this delivery.

        On Exclusive and Failover everything that is not acknowledged comes again, because their order is kept.
        Raises TransactionStateError when the message is acknowledged in an open transaction.
        """
        self._check_open()
        part = self._part_of_any(message)
        if part is None:
            return
        seconds = self._nack_delay(message, delay)
        place = _place(message)
        if part.open_acks.holds(place):
            raise TransactionStateError(
                "the message is acknowledged in a transaction that is still open",
                hint="abort the transaction, its messages come again by themselves",
            )
        if self.timeouts is not None:
            self.timeouts.settled(part.id, [place], cumulative=False)
        self._refused += 1
        if self._chain is not None:
            self._chain.refused(message)
        self._nacks.add(part, place[0], seconds)

    def _nack_delay(self, message: Acknowledged, delay: float | timedelta | None) -> float:
        if delay is not None:
            return number_of_seconds(delay, "delay")
        backoff = self._options.negative_ack_backoff
        if backoff is None or not isinstance(message, Message):
            return self._options.negative_ack_delay
        return backoff.delay(message.redelivery_count)

    async def reconsume_later(
        self,
        message: Message[T],
        *,
        delay: float | timedelta = 0.0,
        properties: Mapping[str, str] | None = None,
        txn: AsyncTransaction | None = None,
    ) -> None:
        """Put a message off: send it to the retry topic, to come again after `delay`, and acknowledge it here.

        With `properties` more is said of it. What was put off `max_redeliver_count` times goes to the dead-letter topic.
        In a transaction both happen or neither; without one a crash in between leaves it twice. Needs a
        `dead_letter_policy` with `retry`, else InvalidConfiguration. Raises as `Producer.send` and `acknowledge`.
        """
        self._check_open()
        if self.letters is None:
            raise InvalidConfiguration("the consumer has no dead_letter_policy", hint="subscribe with one that has retry=True")
        if not isinstance(message, Message):
            raise refused("message", message, "a message")
        seconds = number_of_seconds(delay, "delay")
        await self.letters.put_off(message, seconds, properties, txn)
        await self.acknowledge(message, txn=txn)

    def give_back(self, messages: Sequence[Message[T]]) -> None:
        """Have messages that were received here delivered again, now, to whoever gets them.

        On Exclusive and Failover everything of their partitions that is not acknowledged comes again, in order. Messages
        that are acknowledged in an open transaction stay with it. No effect once the consumer is closed, for what is not
        acknowledged comes again then anyway.
        """
        positions: dict[PartitionConsumer, dict[Position, None]] = {}
        for message in messages:
            part = self._part_of_message(message)
            if part is not None:
                positions.setdefault(part, {})[message.entry.position] = None
        for part, those in positions.items():
            part.redeliver(list(those))

    def take_queued(self, matches: Callable[[Message[T]], bool]) -> list[Message[T]]:
        """For pipelines: those that wait in the queue and match, which are not in it any more."""
        with self.guard:
            taken = [message for message in self._queue if matches(message)]
            if taken:
                self._queue = deque(message for message in self._queue if not matches(message))
        for message in taken:
            message.entry.consumer.give_permits_back(1)
        return taken

    def give_back_later(self, messages: Sequence[Message[T]], delay: float) -> asyncio.Handle:
        """For batches: `give_back` in `delay` seconds."""
        return self._core.runtime.call_later(delay, self.give_back, messages)

    def redeliver_unacknowledged(self) -> None:
        """Have everything delivered again that was received here and is not acknowledged; the queue starts anew."""
        self._check_open()
        for part in self._parts:
            part.redeliver()

    def _unit(self, txn: AsyncTransaction | None) -> Enlisting | None:
        """The transaction that was given; where `txn=` was left out, the one around the running code.

        Readers and table views only keep their place with what they acknowledge, which is nobody's unit of work.
        """
        return unit_of(txn) if txn is not None or self._options.durable else None

    def _places(self, messages: Sequence[Acknowledged], txn: Enlisting | None) -> dict[PartitionConsumer, list[Place]]:
        places: dict[PartitionConsumer, list[Place]] = {}
        last: Entry | None = None
        for message in messages:
            if isinstance(message, Message):
                entry = message.entry
                if entry is not last:
                    part = self._part_of_message(message)
                    if part is None:
                        _check_outside(txn, message)
                        continue
                    those, position, size, last = places.setdefault(part, []), entry.position, entry.batch_size, entry
                those.append((position, message.index, size))
            else:
                if not isinstance(message, MessageId):
                    raise _no_message(message)
                part = self._part_of(message)
                places.setdefault(part, []).append(self._sized(part, message))
        return places

    def _part_of_any(self, message: Acknowledged) -> PartitionConsumer | None:
        if isinstance(message, Message):
            return self._part_of_message(message)
        if not isinstance(message, MessageId):
            raise _no_message(message)
        return self._part_of(message)

    def _part_of_message(self, message: Message[Any]) -> PartitionConsumer | None:
        """None when this consumer has left its topic. The ids of what another consumer received mean the same here."""
        own, topic = message.entry.consumer, message.entry.consumer.topic
        if own in self._parts:
            return own
        for part in self._parts:
            if part.topic == topic:
                return part
        if self._pattern is not None and own.belongs_to(self):
            return None
        raise InvalidConfiguration(f"the message is of {topic}, which this consumer does not receive from")

    def _sized(self, part: PartitionConsumer, message_id: MessageId) -> Place:
        """An id's place; without the size of its batch an index of it would stand for the whole batch."""
        place = _place(message_id)
        if place[1] >= place[2] and place[1] >= 0:
            known = (each for each in (part.last_dequeued, *self._queue) if each is not None)
            entries = (each.entry for each in known if each.entry.position == place[0] and each.entry.consumer is part)
            entry = next(entries, None)
            if entry is None or entry.batch_size <= place[1]:
                raise InvalidConfiguration(
                    f"the id {message_id} is of a batch and does not say of how many messages",
                    hint="acknowledge the message, or an id with its batch_size",
                )
            place = (place[0], place[1], entry.batch_size)
        return place

    def _part_of(self, message_id: MessageId) -> PartitionConsumer:
        if self._only is not None:
            return self._only
        found = [part for part in self._parts if part.partition == message_id.partition]
        if len(found) != 1:
            raise InvalidConfiguration(
                f"the id {message_id} does not say which topic it belongs to", hint="give the message instead of its id"
            )
        return found[0]


def _no_message(given: object, more: str = "") -> InvalidConfiguration:
    return refused("message", given, f"a message or its id{more}")


def _check_many(given: object) -> None:
    if type(given) is not list and (isinstance(given, str | bytes) or not isinstance(given, Collection)):
        raise _no_message(given, ", or many of them")


def _place(message: Acknowledged) -> Place:
    if isinstance(message, Message):
        return message.entry.position, message.index, message.entry.batch_size
    return message.position, message.batch_index, message.batch_size


def _check_outside(txn: Enlisting | None, message: Message[Any]) -> None:
    if txn is not None:
        raise ConnectionLost(
            f"{message.topic} is not received from any more, so no transaction can acknowledge {message.message_id}",
            hint="run the unit again, without its messages",
        )


def _check_persistent(parts: Iterable[PartitionConsumer]) -> None:
    for part in parts:
        if part.topic.startswith("non-persistent:"):
            raise InvalidConfiguration(
                f"{part.topic} keeps nothing, so a transaction cannot acknowledge its messages",
                hint="use a persistent topic",
            )


def _ack_soon(places: Mapping[PartitionConsumer, list[Place]]) -> None:
    for part, those in places.items():
        part.ack_all_soon(those)
