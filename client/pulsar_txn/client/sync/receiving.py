"""Receiving and acknowledging of a blocking consumer or reader: in the calling thread, wherever the loop need not be asked.

The loop's thread queues messages. A hand-over to it and back for each message, and for each acknowledgement, would cost
twenty times as much as taking it.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeGuard, TypeVar

from pulsar_txn.client.receive.consumer import AsyncConsumer, reception_of
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.reader import AsyncReader, consumer_of, newest_of
from pulsar_txn.client.receive.reception import Reception
from pulsar_txn.client.sync.blocking import SyncLoop
from pulsar_txn.client.txn.transaction import joined_unit
from pulsar_txn.wire.ids import MessageId

T = TypeVar("T")
Acknowledged: TypeAlias = "Message[Any] | MessageId"


class Taking(Generic[T]):
    """Takes messages from the queue of an asyncio consumer, in any thread."""

    def __init__(self, loop: SyncLoop, reception: Reception[T]) -> None:
        self._loop = loop
        self._reception = reception
        reception.share_queue()

    def one(self) -> Message[T] | None:
        """One message; None when the loop has to be asked."""
        self._loop.check()
        return self._reception.take_one_in_thread(self._loop.post)

    def many(self, max_messages: int, enough: int) -> list[Message[T]] | None:
        """At most `max_messages`, if at least `enough` are queued; None when the loop has to be asked."""
        if max_messages < 1:
            return None
        self._loop.check()
        return self._reception.take_in_thread(max_messages, enough, self._loop.post)

    def waited_for(self, max_messages: int, max_wait: float | timedelta | None) -> list[Message[T]] | None:
        """As `many`, for a call that may wait for `max_wait` seconds."""
        return self.many(max_messages, self._reception.enough(max_messages, max_wait))

    def soon(self, work: Callable[[], None]) -> None:
        """Leave work to the loop; wait for it only while too much waits for the loop."""
        if not self._loop.do_soon(work):
            self._loop.call(work)


class Receiving(Generic[T]):
    """Receives for one blocking consumer, and gathers its acknowledgements that nobody waits for.

    `unit` is an asyncio transaction.
    """

    def __init__(self, loop: SyncLoop, consumer: AsyncConsumer[T]) -> None:
        self._loop = loop
        self._consumer = consumer
        self._reception = reception_of(consumer)
        self._taking = Taking(loop, self._reception)
        self._acks: deque[Message[T]] = deque()
        self._acks_told = False

    def receive(self, timeout: float | timedelta | None, unit: Any) -> Message[T]:
        """As `AsyncConsumer.receive`."""
        message = None if _joins(unit) else self._taking.one()
        if message is not None:
            return message
        return self._loop.run(functools.partial(self._consumer.receive, timeout, txn=unit))

    def receive_many(self, max_messages: int, max_wait: float | timedelta | None, unit: Any) -> list[Message[T]]:
        """As `AsyncConsumer.receive_many`."""
        taken = None if _joins(unit) else self._taking.waited_for(max_messages, max_wait)
        if taken is not None:
            return taken
        return self._loop.run(lambda: self._consumer.receive_many(max_messages, max_wait=max_wait, txn=unit))

    def receive_nowait(self, max_messages: int, unit: Any) -> list[Message[T]]:
        """As `AsyncConsumer.receive_nowait`."""
        taken = None if _joins(unit) else self._taking.many(max_messages, 1)
        return self._loop.call(lambda: self._consumer.receive_nowait(max_messages, txn=unit)) if taken is None else taken

    def acknowledge(self, message: Acknowledged | Sequence[Acknowledged], unit: Any, receipt: bool | None) -> None:
        """As `AsyncConsumer.acknowledge`; without a transaction and a receipt it is left to the loop."""
        unit = self._reception.unit(unit)
        if unit is not None or receipt or not self._nobody_waits(message):
            self._loop.run(functools.partial(self._consumer.acknowledge, message, txn=unit, receipt=receipt))
            return
        self._loop.check()
        if isinstance(message, Message):
            self._acks.append(message)
        else:
            self._acks.extend(message)
        if not self._acks_told:
            try:  # an interruption may come after each of these
                self._acks_told = True
                self._taking.soon(self._send_acks)
            except BaseException:
                self._acks_told = False
                raise

    def acknowledge_cumulative(self, message: Acknowledged, unit: Any, receipt: bool | None) -> None:
        """As `AsyncConsumer.acknowledge_cumulative`; without a transaction and a receipt it is left to the loop."""
        unit = self._reception.unit(unit)
        waits = unit is not None or receipt or not self._consumer.consumer_type.is_single
        if not waits and self._nobody_waits(message) and isinstance(message, Message):
            self._taking.soon(functools.partial(self._reception.acknowledge_soon, [message], cumulative=True))
        else:
            self._loop.run(lambda: self._consumer.acknowledge_cumulative(message, txn=unit, receipt=receipt))

    def _nobody_waits(self, message: Acknowledged | Sequence[Acknowledged]) -> TypeGuard[Message[T] | Sequence[Message[T]]]:
        """True if its acknowledgement can be left to the loop: none may be refused, and none is answered."""
        if isinstance(message, MessageId):
            return False
        may = self._reception.may_acknowledge_soon
        if isinstance(message, Message):
            return may(message)
        return all(isinstance(each, Message) and may(each) for each in message)

    def _send_acks(self) -> None:
        """On the loop: all that has gathered."""
        self._acks_told = False  # before it is emptied: what comes later tells the loop again
        acks = self._acks
        self._reception.acknowledge_soon([acks.popleft() for _ in range(len(acks))], cumulative=False)


def _joins(unit: Any) -> bool:
    """True if what is received joins a transaction, which only the loop may touch."""
    return unit is not None or joined_unit() is not None


class Reading(Generic[T]):
    """Reads for one blocking reader, and keeps its place."""

    def __init__(self, loop: SyncLoop, reader: AsyncReader[T]) -> None:
        self._loop = loop
        self._reader = reader
        self._reception = reception_of(consumer_of(reader))
        self._taking = Taking(loop, self._reception)

    def read_next(self, timeout: float | timedelta | None) -> Message[T]:
        """As `AsyncReader.read_next`."""
        message = self._taking.one()
        if message is None:
            return self._loop.run(lambda: self._reader.read_next(timeout))
        self._keep_place([message])
        return message

    def read_many(self, max_messages: int, max_wait: float | timedelta | None) -> list[Message[T]]:
        """As `AsyncReader.read_many`."""
        taken = self._taking.waited_for(max_messages, max_wait)
        if taken is None:
            return self._loop.run(lambda: self._reader.read_many(max_messages, max_wait=max_wait))
        self._keep_place(taken)
        return taken

    def _keep_place(self, messages: Sequence[Message[T]]) -> None:
        self._taking.soon(functools.partial(self._reception.acknowledge_soon, newest_of(messages), cumulative=True))
