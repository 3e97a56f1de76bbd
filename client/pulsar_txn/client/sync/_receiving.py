"""How the sync consumer and reader receive and acknowledge: in the thread that calls, wherever the loop need not be asked.

Messages are queued by the loop's thread; a hand-over to it and back for each of them, and for each acknowledgement, would
cost twenty times as much as taking it.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeGuard, TypeVar

from pulsar_txn.client.errors import AlreadyClosed
from pulsar_txn.client.receive import consumer, reader
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.sync._base import GenericTwin, SyncLoop, inner
from pulsar_txn.client.txn.enlist import AMBIENT
from pulsar_txn.wire.ids import MessageId

if TYPE_CHECKING:
    from pulsar_txn.client.sync._twins import Transaction

I = TypeVar("I")  # noqa: E741 - the inner class
T = TypeVar("T")
Acknowledged: TypeAlias = "Message[Any] | MessageId"


class _Taking(GenericTwin[I, T], Generic[I, T]):
    """Takes messages from a consumer's queue."""

    def __init__(self, loop: SyncLoop, inner_object: I, queue_of: consumer.AsyncConsumer[T]) -> None:
        super().__init__(loop, inner_object)
        self._from = queue_of
        queue_of.shared = True

    def _taken(self, max_messages: int, enough: int) -> list[Message[T]] | None:
        """So many at most, if at least `enough` are there; None where the loop has to be asked."""
        if max_messages < 1:
            return None
        self._loop.check()
        return self._from.take_beside(max_messages, enough, self._loop.post)

    def _soon(self, work: Callable[[], None]) -> None:
        """Leave it to the loop; wait for it only when that is behind."""
        if not self._loop.do_soon(work):
            self._loop.call(work)


class ConsumerBase(_Taking[consumer.AsyncConsumer[T], T], Generic[T]):
    """The parts of the sync consumer that are written by hand."""

    def __init__(self, loop: SyncLoop, inner_object: consumer.AsyncConsumer[T]) -> None:
        super().__init__(loop, inner_object, inner_object)
        self._acks: deque[Message[T]] = deque()
        self._acks_told = False

    def receive(self, timeout: float | None = None) -> Message[T]:
        """The next message, waiting for it; OperationTimeout after `timeout` seconds.

        Raises AlreadyClosed, or what ended the consumer for good.
        """
        self._loop.check()
        message = self._inner.take_one_beside(self._loop.post)
        return self._loop.run(functools.partial(self._inner.receive, timeout)) if message is None else message

    def receive_many(self, max_messages: int = 500, *, max_wait: float | None = None) -> list[Message[T]]:
        """Up to `max_messages`: those that are there, after waiting for so many or until `max_wait` seconds are over.

        The list is empty when nothing came in time. Without `max_wait`: at least one, as many as there are then.
        Raises as `receive`.
        """
        taken = self._taken(max_messages, self._inner.enough(max_messages, max_wait))
        return self._loop.run(lambda: self._inner.receive_many(max_messages, max_wait=max_wait)) if taken is None else taken

    def receive_nowait(self, max_messages: int = 500) -> list[Message[T]]:
        """Up to `max_messages` of those that are queued; does not wait, may be empty. Raises as `receive`."""
        taken = self._taken(max_messages, 1)
        return self._loop.call(lambda: self._inner.receive_nowait(max_messages)) if taken is None else taken

    def __next__(self) -> Message[T]:
        """The next message."""
        try:
            return self.receive()
        except AlreadyClosed:
            raise StopIteration from None

    def acknowledge(
        self,
        message: Acknowledged | Sequence[Acknowledged],
        *,
        txn: Transaction | None = None,
        receipt: bool | None = None,
    ) -> None:
        """Acknowledge a message, an id, or many of them: arguments and errors as those of the asyncio consumer.

        What nobody has to wait for (no transaction, no receipt) is left to the client's thread, and this returns at once.
        """
        if txn is not None or receipt or not self._nobody_waits(message):
            self._loop.run(functools.partial(self._inner.acknowledge, message, txn=inner(txn), receipt=receipt))
            return
        self._loop.check()
        if isinstance(message, Message):
            self._acks.append(message)
        else:
            self._acks.extend(message)
        if not self._acks_told:
            try:  # an interruption may come behind each of these
                self._acks_told = True
                self._soon(self._send_acks)
            except BaseException:
                self._acks_told = False
                raise

    def acknowledge_cumulative(
        self, message: Acknowledged, *, txn: Transaction | None = None, receipt: bool | None = None
    ) -> None:
        """Acknowledge everything of this message's partition up to and with it. As `acknowledge`.

        Raises InvalidConfiguration on Shared and Key_Shared subscriptions, where there is no order.
        """
        waits = txn is not None or receipt or not self._inner.consumer_type.is_single
        if not waits and self._nobody_waits(message) and isinstance(message, Message):
            self._soon(functools.partial(self._inner.acknowledge_soon, [message], cumulative=True))
        else:
            self._loop.run(lambda: self._inner.acknowledge_cumulative(message, txn=inner(txn), receipt=receipt))

    def _nobody_waits(self, message: Acknowledged | Sequence[Acknowledged]) -> TypeGuard[Message[T] | Sequence[Message[T]]]:
        """Whether its acknowledgement can be left to the loop: none may be refused, and none is answered."""
        if not self._inner.may_acknowledge_soon or AMBIENT.get() is not None or isinstance(message, MessageId):
            return False
        if isinstance(message, Message):
            return message.entry.consumer.belongs_to(self._inner)
        return all(isinstance(each, Message) and each.entry.consumer.belongs_to(self._inner) for each in message)

    def _send_acks(self) -> None:
        """On the loop: all that has gathered."""
        self._acks_told = False  # before it is emptied: what comes later is told anew
        acks = self._acks
        self._inner.acknowledge_soon([acks.popleft() for _ in range(len(acks))], cumulative=False)


class ReaderBase(_Taking[reader.AsyncReader[T], T], Generic[T]):
    """The parts of the sync reader that are written by hand."""

    def __init__(self, loop: SyncLoop, inner_object: reader.AsyncReader[T]) -> None:
        super().__init__(loop, inner_object, inner_object._consumer)  # noqa: SLF001 - its own other half

    def read_next(self, timeout: float | None = None) -> Message[T]:
        """The next message, waiting for it; OperationTimeout after `timeout` seconds."""
        taken = self._taken(1, 1)
        if taken is None:
            return self._loop.run(lambda: self._inner.read_next(timeout))
        self._keep_place(taken)
        return taken[0]

    def read_many(self, max_messages: int = 500, *, max_wait: float | None = None) -> list[Message[T]]:
        """Several messages, as `Consumer.receive_many`."""
        taken = self._taken(max_messages, self._from.enough(max_messages, max_wait))
        if taken is None:
            return self._loop.run(lambda: self._inner.read_many(max_messages, max_wait=max_wait))
        self._keep_place(taken)
        return taken

    def __next__(self) -> Message[T]:
        """The next message."""
        try:
            return self.read_next()
        except AlreadyClosed:
            raise StopIteration from None

    def _keep_place(self, messages: Sequence[Message[T]]) -> None:
        self._soon(functools.partial(self._from.acknowledge_soon, reader.newest_of(messages), cumulative=True))
