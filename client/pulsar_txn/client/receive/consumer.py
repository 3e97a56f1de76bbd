"""The consumer that programs use: receiving, acknowledging, batches, and moving the subscription."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, Self, TypeVar

from pulsar_txn.client._callables import DONE, marked, named_as_public
from pulsar_txn.client._validation import as_seconds, seconds_of, validate_whole
from pulsar_txn.client.errors import AlreadyClosed, LocalProtocolError, OperationTimeout
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.growth import TopicPattern
from pulsar_txn.client.net.resource_stats import ConsumerStats
from pulsar_txn.client.net.tasks import run_all
from pulsar_txn.client.receive.acknowledging import Acknowledged
from pulsar_txn.client.receive.batch import AsyncTransactionalBatchBlock
from pulsar_txn.client.receive.committed import CommittedPosition
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.options import ConsumerOptions, ConsumerType
from pulsar_txn.client.receive.reception import Reception
from pulsar_txn.client.receive.subscribe_fields import sought_ms
from pulsar_txn.client.schema.base import Schema
from pulsar_txn.client.state.transaction import TransactionOptions
from pulsar_txn.client.txn.transaction import AMBIENT, NOT_SAID, AsyncTransaction, noted
from pulsar_txn.client.txn.transactions import Transactions
from pulsar_txn.wire.ids import MessageId
from pulsar_txn.wire.topics import TopicName

T = TypeVar("T")


class AsyncConsumer(Generic[T]):
    """A subscription's consumer. Made by `Client.subscribe`; an async context manager that closes it, and an async iterator.

    Messages of one partition come in order (on Exclusive and Failover); those of several partitions are mixed.
    Messages that were received and not acknowledged come again after a reconnect.

    A message that is received in a transaction (`txn=`) joins it: the commit acknowledges it, and it comes again when the
    transaction aborts, times out or is dropped. Until then a copy of it is not handed out.
    """

    def __init__(
        self,
        core: Core,
        topics: Sequence[tuple[str, int]],
        subscription: str,
        schema: Schema[T],
        options: ConsumerOptions,
        *,
        transactions: Transactions | None = None,
        pattern: TopicPattern | None = None,
        partitioned: Mapping[TopicName, int] | None = None,
        extra_topics: Iterable[str] = (),
    ) -> None:
        """`transactions`: those of the client, for `transactional_batch`. The consumer of a reader has none."""
        self.schema = schema
        self.subscription = subscription
        self._transactions = transactions
        self._reception: Reception[T] = Reception(
            core,
            topics,
            subscription,
            schema,
            options,
            outside=self,
            pattern=pattern,
            partitioned=partitioned or {},
            extra_topics=extra_topics,
        )
        self.consumer_name = self._reception.consumer_name

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic's name, of the first one when there are several; of a pattern, the whole pattern."""
        return self._reception.partitions.topic

    @property
    def topics(self) -> list[str]:
        """The full names of the partitions (or of the topic without partitions) that it receives from."""
        return [part.topic for part in self._reception.partitions]

    @property
    def consumer_type(self) -> ConsumerType:
        """The way in which the subscription divides its messages among its consumers."""
        return self._reception.options.consumer_type

    @property
    def is_connected(self) -> bool:
        """True while all partitions are connected."""
        return not self._reception.is_closed and all(part.is_connected for part in self._reception.partitions)

    @property
    def is_active(self) -> bool:
        """True if this consumer gets messages; on a Failover subscription only one consumer per partition gets them."""
        return any(part.is_active for part in self._reception.partitions)

    @property
    def reached_end_of_topic(self) -> bool:
        """True if all its topics are terminated and everything was delivered."""
        return all(part.reached_end for part in self._reception.partitions)

    @property
    def queued(self) -> int:
        """Messages that wait to be received."""
        return len(self._reception.inbox.queue)

    def stats(self) -> ConsumerStats:
        """Counters of received and acknowledged messages, and the size of the queue."""
        return ConsumerStats(
            received=self._reception.inbox.received,
            acknowledged=self._reception.acknowledger.acknowledged,
            negatively_acknowledged=self._reception.acknowledger.refused,
            queued=len(self._reception.inbox.queue),
            connected_partitions=sum(part.is_connected for part in self._reception.partitions),
            partitions=len(self._reception.partitions),
        )

    def __repr__(self) -> str:
        state = "closed" if self._reception.is_closed else "connected" if self.is_connected else "connecting"
        return f"<Consumer {self.subscription!r} of {self.topic} {state}, {len(self._reception.inbox.queue)} queued>"

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | timedelta | None = None, *, txn: AsyncTransaction | None = None) -> Message[T]:
        """Wait for the next message and return it; OperationTimeout after `timeout` (seconds or a timedelta).

        With `txn` it joins the transaction: the commit acknowledges it, after an abort it comes again. Waiting opens no
        transaction and starts no clock. `acknowledge(message, txn=txn)` inside the transaction is not needed, but
        allowed; `negative_acknowledge(message)` takes it out of the transaction and asks for redelivery,
        `leave_out(message)` takes it out and leaves it to the program. Any other acknowledgement of it raises
        TransactionStateError or TransactionConflict.

        Raises AlreadyClosed, or the error that ended the consumer; with `txn` also TransactionStateError and
        TransactionTimedOut, when the transaction has ended. If cancelled, no message is lost.
        """
        reception = self._reception
        inbox, unit = reception.inbox, None
        if txn is not None or AMBIENT.get() is not None:
            unit = reception.unit(txn)
            if unit is not None:
                unit.looks_for_input(reception.core)
        deadline = None
        while True:
            if not inbox.queue:
                inbox.check()
                deadline = deadline or reception.deadline(timeout, "timeout")
                if not await reception.wait(1, deadline) and not inbox.queue:
                    raise OperationTimeout(f"no message on {self.topic} within {as_seconds(timeout or 0):g} s")
            if unit is None and not inbox.shared:
                break
            if taken := reception.take(1, unit):
                return taken[0]
            if unit is not None and inbox.keys is not None:  # what is queued has keys that other units have
                deadline = deadline or reception.deadline(timeout, "timeout")
                if not await reception.wait(1, deadline, unit):
                    raise OperationTimeout(f"no message on {self.topic} within {as_seconds(timeout or 0):g} s")
        message = inbox.take_one()
        message.entry.consumer.handed_out(message, 1)
        if reception.is_observed:
            reception.observe([message])
        return message

    async def receive_many(
        self, max_messages: int = 500, *, max_wait: float | timedelta | None = None, txn: AsyncTransaction | None = None
    ) -> list[Message[T]]:
        """Return up to `max_messages`, after waiting for so many, at most `max_wait` seconds.

        The list is empty when no message came in time. Without `max_wait` it waits for one message, and returns all that
        are there. With `txn` they join the transaction. Raises as `receive`. If cancelled, no message is lost.
        """
        reception = self._reception
        unit = reception.unit(txn)
        if unit is not None:
            unit.looks_for_input(reception.core)
        while True:
            await reception.ready(max_messages, max_wait, unit)
            taken = reception.take(max_messages, unit)
            if taken or max_wait is not None:  # a thread of the blocking client may have been faster
                return taken

    def receive_nowait(self, max_messages: int = 500, *, txn: AsyncTransaction | None = None) -> list[Message[T]]:
        """Return up to `max_messages` queued messages without waiting; may be empty. Arguments and errors as `receive`."""
        reception = self._reception
        unit = reception.unit(txn)
        if unit is not None:
            unit.looks_for_input(reception.core)
        reception.core.check_here()
        reception.inbox.check()
        validate_whole("max_messages", max_messages)
        return reception.take(max_messages, unit)

    async def messages(self, *, txn: AsyncTransaction | None = None) -> AsyncIterator[Message[T]]:
        """Messages one after the other, until the consumer is closed: `async for message in consumer.messages(txn=txn)`.

        With `txn` each joins the transaction, as with `receive`.
        """
        while True:
            try:
                message = await self.receive(txn=txn)
            except AlreadyClosed:
                return
            yield message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        try:
            return await self.receive()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    # --- acknowledging -------------------------------------------------------------------------------------------------

    @marked
    def acknowledge(
        self,
        message: Acknowledged | Sequence[Acknowledged],
        *,
        txn: AsyncTransaction | None = NOT_SAID,
        receipt: bool | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Acknowledge a message, an id, or many of them. It has no effect for topics that no longer match a pattern.

        Outside a transaction acknowledgements are collected for `ack_group_delay` and this returns at once; with `receipt`
        (or the consumer's `ack_receipt`) they leave now, and this returns when the broker has answered. In a transaction
        they are always answered, and take effect when it commits.

        Raises the broker's error, ConnectionLost, OperationTimeout; TransactionStateError for a message that has joined a
        transaction, when `txn` is left out; with `txn` TransactionConflict when a message is acknowledged in an open
        transaction already or has joined another one, TransactionStateError, and other TransactionErrors;
        InvalidConfiguration for an id that does not say the size of its batch, when it is not known here.
        If cancelled, the acknowledgement may still happen; a transaction is doomed by it.
        """
        call = self._acknowledge(message, txn, receipt)
        return call if txn is NOT_SAID and AMBIENT.get() is None else noted(call, txn)

    @named_as_public
    async def _acknowledge(
        self, message: Acknowledged | Sequence[Acknowledged], txn: AsyncTransaction | None, receipt: bool | None
    ) -> None:
        reception = self._reception
        reception.check_open()
        unit = reception.unit(txn)
        if (
            unit is None
            and isinstance(message, Message)
            and not (reception.options.ack_receipt if receipt is None else receipt)
        ):
            entry = message.entry
            part = reception.partitions.own(entry.consumer)
            if part is not None and not part.owners:
                part.acknowledge_soon([(entry.position, message.index, entry.batch_size)])
                reception.acknowledger.count([message])
                return
        await reception.acknowledger.acknowledge(message, unit, receipt=receipt)

    @marked
    def acknowledge_cumulative(
        self, message: Acknowledged, *, txn: AsyncTransaction | None = NOT_SAID, receipt: bool | None = None
    ) -> Coroutine[Any, Any, None]:
        """Acknowledge everything of this message's partition up to and with it. As `acknowledge`.

        Raises InvalidConfiguration on Shared and Key_Shared subscriptions, where there is no order.
        """
        return noted(self._acknowledge_cumulative(message, txn, receipt), txn)

    @named_as_public
    async def _acknowledge_cumulative(self, message: Acknowledged, txn: AsyncTransaction | None, receipt: bool | None) -> None:
        self._reception.check_open()
        await self._reception.acknowledger.acknowledge_cumulative(message, self._reception.unit(txn), receipt=receipt)

    def negative_acknowledge(self, message: Acknowledged, *, delay: float | timedelta | None = None) -> Awaitable[None]:
        """Ask for redelivery of a message after `delay`; for an id without a batch index, of all messages of its entry.

        The default is the consumer's `negative_ack_delay`, or the delay of its `negative_ack_backoff` for this delivery.
        A message that has joined a transaction leaves it.

        On Exclusive and Failover every unacknowledged message comes again, because their order is kept.
        Raises TransactionStateError when the message is acknowledged in an open transaction.
        """
        self._reception.check_open()
        self._reception.acknowledger.negative_acknowledge(message, delay)
        return DONE

    @marked
    def reconsume_later(
        self,
        message: Message[T],
        *,
        delay: float | timedelta = 0.0,
        properties: Mapping[str, str] | None = None,
        txn: AsyncTransaction | None = NOT_SAID,
    ) -> Coroutine[Any, Any, None]:
        """Postpone a message: send it to the retry topic, from which it comes again after `delay`, and acknowledge it here.

        `properties` are added to it. A message that was postponed `max_redeliver_count` times goes to the dead-letter topic.
        In a transaction both happen or neither; without one a crash between the two leaves it twice. Needs a
        `dead_letter_policy` with `retry`, else InvalidConfiguration. Raises as `Producer.send` and `acknowledge`.
        """
        return noted(self._reconsume_later(message, delay, properties, txn), txn)

    @named_as_public
    async def _reconsume_later(
        self,
        message: Message[T],
        delay: float | timedelta,
        properties: Mapping[str, str] | None,
        txn: AsyncTransaction | None,
    ) -> None:
        self._reception.check_open()
        said = None if txn is NOT_SAID else txn
        await self._reception.acknowledger.reconsume_later(message, delay, properties, said, self._reception.unit(txn))

    def give_back(self, messages: Sequence[Message[T]]) -> Awaitable[None]:
        """Ask for immediate redelivery of messages that were received here, to any consumer of the subscription.

        On Exclusive and Failover every unacknowledged message of their partitions comes again, in order. Messages
        that have joined a transaction leave it; those that are acknowledged in an open one stay with it. No effect after
        the consumer was closed, because unacknowledged messages then come again anyway.
        """
        self._reception.acknowledger.give_back(messages)
        return DONE

    def leave_out(self, message: Message[T] | Sequence[Message[T]]) -> Awaitable[None]:
        """Take messages out of the transaction that they joined: its commit does not acknowledge them, its abort leaves them.

        The program acknowledges them itself, as if it had received them without `txn`. No effect for messages that are
        acknowledged in the transaction already, or are in none.
        """
        self._reception.acknowledger.leave_out([message] if isinstance(message, Message) else message)
        return DONE

    def redeliver_unacknowledged(self) -> Awaitable[None]:
        """Ask for redelivery of all unacknowledged messages that were received here; the queue starts over.

        Messages that have joined a transaction stay with it.
        """
        self._reception.check_open()
        for part in self._reception.partitions:
            part.deliver_all_again()
        return DONE

    # --- batches ------------------------------------------------------------------------------------------------------

    def transactional_batch(
        self,
        max_messages: int = 500,
        max_wait: float | timedelta | None = 0.2,
        timeout: float | timedelta = 30.0,
        *,
        name: str | None = None,
        eager: bool = False,
        ambient: bool = False,
    ) -> AsyncTransactionalBatchBlock[T]:
        """A block with a batch of messages that are acknowledged in one transaction, `batch.txn`, when it is left.

        `max_messages` and `max_wait` (seconds) as `receive_many`; the batch may be empty. `timeout` and `name` as
        `client.transaction()`, and so is `ambient`; the transaction opens with the first operation in it, with `eager` on
        entering.
        Leaving the block normally acknowledges every message and commits; any exception aborts, and the messages come
        again. Raises the errors of receiving and of managed blocks; see `pulsar_txn.client.receive.batch`.
        """
        if self._transactions is None:
            raise LocalProtocolError("the consumer of a reader has no transactions")
        options = TransactionOptions(timeout=seconds_of(timeout, "timeout"), name=name, managed=True)
        return AsyncTransactionalBatchBlock(
            self,
            self._reception,
            self._transactions,
            options,
            max_messages=max_messages,
            max_wait=max_wait,
            eager=eager,
            ambient=ambient,
        )

    # --- the subscription ---------------------------------------------------------------------------------------------

    async def seek(self, target: MessageId | datetime | int, *, inclusive: bool = False) -> None:
        """Move the subscription to a message, or to the first message published at a time (datetime or milliseconds).

        The next message is the one after `target`, or `target` itself with `inclusive`. Of several partitions only those
        moved by `EARLIEST_ID`, `LATEST_ID` or a time move together; an id moves its own. Raises the broker's error,
        ConnectionLost, OperationTimeout. If cancelled, it may have moved.
        Messages that have joined a transaction leave it.
        """
        self._reception.check_open()
        if isinstance(target, MessageId):
            everywhere = target.position in ((-1, -1), (2**63 - 1, 2**63 - 1))
            partitions = self._reception.partitions.all if everywhere else [self._reception.partitions.of_id(target)]
            await run_all([part.seek(message_id=target, inclusive=inclusive) for part in partitions])
        else:
            time_ms = sought_ms(target)
            await run_all([part.seek(publish_time_ms=time_ms) for part in self._reception.partitions])

    async def get_last_message_id(self) -> MessageId:
        """The id of the last message that can be read now (committed, not aborted); of the newest partition's end.

        `ledger_id` and `entry_id` are -1 for an empty topic. Raises the broker's error, ConnectionLost, OperationTimeout.
        Safe to cancel.
        """
        return max((await self.get_last_message_ids()).values(), default=MessageId(-1, -1))

    async def get_last_message_ids(self) -> dict[str, MessageId]:
        """By topic partition, as `get_last_message_id`."""
        self._reception.check_open()
        partitions = list(self._reception.partitions)
        answers = await asyncio.gather(*(part.last_message_id() for part in partitions))
        return {part.topic: answer[0] for part, answer in zip(partitions, answers, strict=True)}

    async def committed(self, *, require_stable: bool = True) -> dict[str, CommittedPosition]:
        """The place of the subscription for good, by topic partition, as Kafka's `committed` and its `require_stable`.

        Raises PositionUnstable, with the transaction's id, while an open transaction holds acknowledgements of one of them;
        with `require_stable=False` the position is told that the subscription has if that transaction aborts. A commit that was
        answered always counts. Acknowledgements outside transactions count when they are answered.

        A stock broker does not know `require_stable` (NotAllowedError) and tells no transactions. Raises also the broker's
        error, ConnectionLost, OperationTimeout. Safe to cancel.
        """
        self._reception.check_open()
        partitions = list(self._reception.partitions)
        answers = await asyncio.gather(*(part.committed(require_stable=require_stable) for part in partitions))
        return {part.topic: answer for part, answer in zip(partitions, answers, strict=True)}

    async def has_message_available(self) -> bool:
        """True if `receive` would find a stored message at this moment.

        Raises as `get_last_message_id`. Safe to cancel.
        """
        self._reception.check_open()
        if self._reception.inbox.queue:
            return True
        return any(await asyncio.gather(*(part.has_more() for part in self._reception.partitions)))

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription and close. Raises ConsumerBusy or a similar error when others use it, unless `force`.

        If cancelled, some of several partitions may be unsubscribed already; call it again.
        """
        self._reception.check_open()
        for part in self._reception.partitions:
            await part.unsubscribe(force=force)
        await self.close()

    async def close(self) -> None:
        """Send waiting acknowledgements and close; receivers that wait get AlreadyClosed. Idempotent.

        A transaction that has received messages here cannot commit any more. If cancelled, it is closed.
        """
        await self._reception.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


async def subscribed(consumer: AsyncConsumer[T]) -> AsyncConsumer[T]:
    """A consumer, once it is subscribed at all its topic partitions. Raises as `AsyncClient.subscribe`."""
    await consumer._reception.start()
    return consumer


def reception_of(consumer: AsyncConsumer[T]) -> Reception[T]:
    """The reception of a consumer that a block, a loop or a blocking consumer was given."""
    return consumer._reception


def receives_still(consumer: AsyncConsumer[Any], message: Message[Any]) -> bool:
    """True if the broker still delivers the partition of a received message here; on Failover it may have moved."""
    part = reception_of(consumer).partitions.of_message(message)
    return part is not None and part.is_active


__all__ = ["Acknowledged", "AsyncConsumer", "receives_still", "reception_of", "subscribed"]
