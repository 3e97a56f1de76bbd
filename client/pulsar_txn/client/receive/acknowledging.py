"""Fate of received messages: acknowledged, refused, put off, given back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from pulsar_txn.client._validation import number_of_seconds, refused
from pulsar_txn.client.errors import ConnectionLost, InvalidConfiguration, TransactionStateError
from pulsar_txn.client.net.tasks import run_all
from pulsar_txn.client.receive.dead_letters import DeadLetters
from pulsar_txn.client.receive.inbox import Inbox
from pulsar_txn.client.receive.interceptors import ConsumerChain
from pulsar_txn.client.receive.message import Entry, Message, bits_of, runs
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.receive.partition_consumer import PartitionConsumer
from pulsar_txn.client.receive.partitions import Partitions
from pulsar_txn.client.receive.subscribe_fields import check_numbers
from pulsar_txn.client.state.owners import UNKNOWN, MessagePosition
from pulsar_txn.client.state.redelivery import Bits
from pulsar_txn.client.txn.transaction import AsyncTransaction
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire.ids import MessageId, Position

Acknowledged: TypeAlias = "Message[Any] | MessageId"
MessagePositions: TypeAlias = dict[PartitionConsumer, list[MessagePosition]]


class Acknowledger:
    """Acknowledges and gives back the messages of one consumer. The arguments are those of its public methods."""

    def __init__(
        self,
        partitions: Partitions,
        inbox: Inbox[Any],
        options: ConsumerOptions,
        letters: DeadLetters | None,
        chain: ConsumerChain | None,
    ) -> None:
        self.acknowledged = self.refused = 0
        self._partitions = partitions
        self._inbox = inbox
        self._options = options
        self._letters = letters
        self._chain = chain

    # --- acknowledging ------------------------------------------------------------------------------------------------

    async def acknowledge(
        self, message: Acknowledged | Sequence[Acknowledged], unit: Unit | None, *, receipt: bool | None
    ) -> None:
        """See `AsyncConsumer.acknowledge`."""
        those = [message] if isinstance(message, (Message, MessageId)) else message
        _check_many(those)
        try:
            positions = self.positions(those, unit)
            if unit is not None:
                _check_persistent(positions)
                await run_all([part.acknowledge_in(unit, each, cumulative=False) for part, each in positions.items()])
            else:
                self._check_free(positions)
                if self._wants(receipt):
                    await run_all([part.acknowledge_answered(each, cumulative=False) for part, each in positions.items()])
                else:
                    _soon(positions)
        except BaseException as error:
            self.count(those, error)
            raise
        self.count(those)

    async def acknowledge_cumulative(self, message: Acknowledged, unit: Unit | None, *, receipt: bool | None) -> None:
        """See `AsyncConsumer.acknowledge_cumulative`."""
        if not self._options.consumer_type.is_single:
            raise InvalidConfiguration(
                f"cumulative acknowledgement is not possible on a {self._options.consumer_type.name} subscription",
                hint="acknowledge the messages one by one or as a list",
            )
        positions = self.positions([message], unit)
        if unit is not None:
            _check_persistent(positions)
        else:
            self._check_free(positions, cumulative=True)
        for part, those in positions.items():
            if unit is not None:
                await part.acknowledge_in(unit, those, cumulative=True)
            elif self._wants(receipt):
                await part.acknowledge_answered(those, cumulative=True)
            else:
                part.acknowledge_up_to_soon(those[0])
        self.count([message])

    def acknowledge_soon(self, messages: Sequence[Message[Any]], *, cumulative: bool) -> None:
        """For the blocking client: outside of transactions, and nobody waits or is told."""
        positions = self.positions(messages, None)
        if cumulative:
            for part, those in positions.items():
                part.acknowledge_up_to_soon(those[-1])
        else:
            _soon(positions)
        self.acknowledged += len(messages)

    def _wants(self, receipt: bool | None) -> bool:
        return self._options.ack_receipt if receipt is None else receipt

    def count(self, messages: Sequence[Acknowledged], error: BaseException | None = None) -> None:
        """Count messages that are acknowledged, or were refused with `error`, and tell the interceptors."""
        if error is None:
            self.acknowledged += len(messages)
        if self._chain is not None:
            self._chain.acknowledged(messages, error)

    def _check_free(self, positions: MessagePositions, *, cumulative: bool = False) -> None:
        """Whoever has joined a unit is acknowledged by its commit, or with `txn=`, and by nobody else."""
        for part, those in positions.items():
            if not part.owners:
                continue
            held = part.owners.held_among(those)
            if held is None and cumulative and part.owners.held_up_to(those[-1][:2]):
                held = those[-1]
            if held is not None:
                raise TransactionStateError(
                    f"message {MessageId(*held[0], part.partition, held[1])} of {part.topic} belongs to a transaction that is"
                    " still open",
                    hint="the commit acknowledges it; acknowledge it with txn=, or take it out of the transaction first with"
                    " leave_out(message)",
                )

    # --- having messages again ----------------------------------------------------------------------------------------

    def negative_acknowledge(self, message: Acknowledged, delay: float | timedelta | None) -> None:
        """See `AsyncConsumer.negative_acknowledge`."""
        part = self._part_of_any(message)
        if part is None:
            return
        seconds = self._nack_delay(message, delay)
        known = message if isinstance(message, Message) else None
        part.negatively_acknowledge(_position_of(message), UNKNOWN if known is None else known.entry.delivery, known, seconds)
        if known is not None:
            self._leave_keys([known])
        self.refused += 1
        if self._chain is not None:
            self._chain.refused(message)

    def _nack_delay(self, message: Acknowledged, delay: float | timedelta | None) -> float:
        if delay is not None:
            return number_of_seconds(delay, "delay")
        backoff = self._options.negative_ack_backoff
        if backoff is None or not isinstance(message, Message):
            return self._options.negative_ack_delay
        return backoff.delay(message.redelivery_count)

    async def reconsume_later(
        self,
        message: Message[Any],
        delay: float | timedelta,
        properties: Mapping[str, str] | None,
        txn: AsyncTransaction | None,
        unit: Unit | None,
    ) -> None:
        """See `AsyncConsumer.reconsume_later`."""
        if self._letters is None:
            raise InvalidConfiguration("the consumer has no dead_letter_policy", hint="subscribe with one that has retry=True")
        if not isinstance(message, Message):
            raise refused("message", message, "a message")
        seconds = number_of_seconds(delay, "delay")
        if unit is None:
            self._check_free(self.positions([message], None))  # before anything is sent
        await self._letters.put_off(message, seconds, properties, txn)
        await self.acknowledge(message, unit, receipt=None)

    def give_back(self, messages: Sequence[Message[Any]]) -> None:
        """See `AsyncConsumer.give_back`."""
        self._leave_keys(messages)
        for part, entries in self.entries(messages).items():
            part.machine.leave_units({position: bits for position, (bits, _, _) in entries.items()})
            part.deliver_again(entries, [message for message in messages if self._partitions.of_message(message) is part])

    def entries(self, messages: Iterable[Message[Any]]) -> dict[PartitionConsumer, dict[Position, Bits]]:
        """Messages by partition and entry, without those of topics that were left."""
        found: dict[PartitionConsumer, dict[Position, Bits]] = {}
        for run in runs(messages):
            part, entry = self._partitions.of_message(run[0]), run[0].entry
            if part is not None:
                those = found.setdefault(part, {})
                before = those.get(entry.position, (0, 0, UNKNOWN))[0]
                those[entry.position] = (before | bits_of(run), entry.batch_size, entry.delivery)
        return found

    def leave_out(self, messages: Sequence[Message[Any]]) -> None:
        """See `AsyncConsumer.leave_out`."""
        self._leave_keys(messages)
        for part, entries in self.entries(messages).items():
            part.machine.leave_units({position: bits for position, (bits, _, _) in entries.items()})

    def _leave_keys(self, messages: Iterable[Message[Any]]) -> None:
        if self._inbox.keys is not None:
            self._inbox.keys.left(messages)

    # --- where messages are -------------------------------------------------------------------------------------------

    def positions(self, messages: Sequence[Acknowledged], unit: Unit | None) -> MessagePositions:
        """Messages and ids by partition. Without those of topics that were left, which no unit can acknowledge."""
        positions: MessagePositions = {}
        last: Entry | None = None
        for message in messages:
            if isinstance(message, Message):
                entry = message.entry
                if entry is not last:
                    part = self._partitions.of_message(message)
                    if part is None:
                        _check_outside(unit, message)
                        continue
                    those, position, size, last = (
                        positions.setdefault(part, []),
                        entry.position,
                        entry.batch_size,
                        entry,
                    )
                those.append((position, message.index, size))
            else:
                if not isinstance(message, MessageId):
                    raise _no_message(message)
                part = self._partitions.of_id(message)
                positions.setdefault(part, []).append(self._sized(part, message))
        return positions

    def _part_of_any(self, message: Acknowledged) -> PartitionConsumer | None:
        if isinstance(message, Message):
            return self._partitions.of_message(message)
        if not isinstance(message, MessageId):
            raise _no_message(message)
        return self._partitions.of_id(message)

    def _sized(self, part: PartitionConsumer, message_id: MessageId) -> MessagePosition:
        """An id's place; without the size of its batch an index of it would represent the whole batch."""
        at = _position_of(message_id)
        if at[1] >= at[2] and at[1] >= 0:
            known = (each for each in (part.last, *self._inbox.queue) if each is not None)
            entries = (each.entry for each in known if each.entry.position == at[0] and each.entry.consumer is part)
            entry = next(entries, None)
            if entry is None or entry.batch_size <= at[1]:
                raise InvalidConfiguration(
                    f"the id {message_id} is of a batch and does not say of how many messages",
                    hint="acknowledge the message, or an id with its batch_size",
                )
            at = (at[0], at[1], entry.batch_size)
        return at


def _no_message(given: object, more: str = "") -> InvalidConfiguration:
    return refused("message", given, f"a message or its id{more}")


def _check_many(given: object) -> None:
    if type(given) is not list and (isinstance(given, str | bytes) or not isinstance(given, Collection)):
        raise _no_message(given, ", or many of them")


def _position_of(message: Acknowledged) -> MessagePosition:
    if isinstance(message, Message):
        return message.entry.position, message.index, message.entry.batch_size
    try:
        check_numbers(message)
    except (TypeError, ValueError) as error:
        raise InvalidConfiguration(f"{message} is no message's place: {error}") from error
    return message.position, message.batch_index, message.batch_size


def _check_outside(unit: Unit | None, message: Message[Any]) -> None:
    if unit is not None:
        raise ConnectionLost(
            f"{message.topic} is not received from any more, so no transaction can acknowledge {message.message_id}",
            hint="run the unit again, without its messages",
        )


def _check_persistent(partitions: Iterable[PartitionConsumer]) -> None:
    for part in partitions:
        if part.topic.startswith("non-persistent:"):
            raise InvalidConfiguration(
                f"{part.topic} keeps nothing, so a transaction cannot acknowledge its messages",
                hint="use a persistent topic",
            )


def _soon(positions: MessagePositions) -> None:
    for part, those in positions.items():
        part.acknowledge_soon(those)
