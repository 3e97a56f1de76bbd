"""The consumer that programs use: one queue over all partitions and topics, receiving, acknowledging."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

import attrs

from pulsar_txn.client._core import Core
from pulsar_txn.client._enlist import AMBIENT, Enlisting
from pulsar_txn.client._growth import TopicPattern, new_partitions, watch
from pulsar_txn.client._runs import Handed, Runs
from pulsar_txn.client.acks import Place
from pulsar_txn.client.consumer_options import ConsumerOptions, ConsumerType, InitialPosition
from pulsar_txn.client.dead_letters import DeadLetters
from pulsar_txn.client.errors import (
    AlreadyClosed,
    InvalidConfiguration,
    OperationTimeout,
    PulsarError,
    TransactionStateError,
)
from pulsar_txn.client.interceptors import ConsumerChain
from pulsar_txn.client.message import EARLIEST_ID, Message
from pulsar_txn.client.nacks import NackTracker
from pulsar_txn.client.partition_consumer import PartitionConsumer
from pulsar_txn.client.redelivery import AckTimeouts
from pulsar_txn.client.resource_stats import ConsumerStats
from pulsar_txn.client.schema import Schema
from pulsar_txn.client.transaction import TransactionOptions
from pulsar_txn.client.transactional_batch import TransactionalBatchBlock
from pulsar_txn.wire.ids import MessageId, Position
from pulsar_txn.wire.topics import TopicName

logger = logging.getLogger("pulsar_txn.client.consumer")

T = TypeVar("T")
ASK_AGAIN_PAUSE: Final = 0.05
"""Seconds before a server is asked again for what an abort has to bring back; doubled each time."""

Acknowledged: TypeAlias = "Message[Any] | MessageId"


class Consumer(Generic[T]):
    """A subscription's consumer. Made by `Client.subscribe`; an async context manager that closes it, and an async iterator.

    Messages of one partition come in order (on Exclusive and Failover); those of several partitions are mixed. What was
    received and not acknowledged comes again after a reconnect.
    """

    def __init__(
        self,
        core: Core,
        topics: Sequence[tuple[str, int]],
        subscription: str,
        schema: Schema[T],
        options: ConsumerOptions,
        *,
        pattern: TopicPattern | None = None,
        partitioned: Mapping[TopicName, int] | None = None,
    ) -> None:
        self.schema = schema
        self.subscription = subscription
        self.consumer_name = options.consumer_name or f"{int(core.runtime.random() * 16**8):08x}"
        self._core = core
        self._options = options
        self._queue: deque[Message[T]] = deque()
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()
        self._failure: PulsarError | None = None
        self._closed = False
        self._pattern = pattern
        self._partitioned = dict(partitioned or {})
        self._watcher: asyncio.Task[None] | None = None
        self._id = core.next_resource_id()
        self._received = self._acknowledged = self._refused = 0
        self._chain = ConsumerChain(self, options.interceptors) if options.interceptors else None
        self._nacks = NackTracker(core.runtime, options.consumer_type)
        wants_timeouts = options.ack_timeout or options.ack_timeout_backoff is not None
        self.timeouts = AckTimeouts(core.runtime, options.ack_timeout, options.ack_timeout_backoff) if wants_timeouts else None
        self._observed = self.timeouts is not None or self._chain is not None
        policy = options.dead_letter_policy
        first = topics[0][0] if topics else ""
        self.letters = None if policy is None else DeadLetters(core, first, subscription, schema, policy)
        self._parts = [PartitionConsumer(core, self, name, index, subscription, options) for name, index in topics]
        self._only = self._parts[0] if len(self._parts) == 1 and pattern is None else None
        self.runs = Runs()

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> list[str]:
        """The full names of the partitions (or of the topic without partitions) that it receives from."""
        return [part.topic for part in self._parts]

    @property
    def consumer_type(self) -> ConsumerType:
        """How the subscription divides its messages among its consumers."""
        return self._options.consumer_type

    @property
    def topic(self) -> str:
        """The topic's name, of the first one when there are several; the pattern when it stands for none yet."""
        if self._parts or self._pattern is None:
            return self._parts[0].topic
        return f"{self._pattern.namespace}/{self._pattern.names.pattern}"

    @property
    def is_connected(self) -> bool:
        """Whether all partitions are connected at this moment."""
        return not self._closed and all(part.is_connected for part in self._parts)

    @property
    def is_active(self) -> bool:
        """Whether it gets messages; on a Failover subscription only one consumer per partition does."""
        return any(part.is_active for part in self._parts)

    @property
    def reached_end_of_topic(self) -> bool:
        """Whether all its topics are terminated and everything was delivered."""
        return all(part.reached_end for part in self._parts)

    @property
    def queued(self) -> int:
        """Messages that wait to be received."""
        return len(self._queue)

    def stats(self) -> ConsumerStats:
        """What the program has received and settled so far, and the queue of this moment."""
        return ConsumerStats(
            received=self._received,
            acknowledged=self._acknowledged,
            negatively_acknowledged=self._refused,
            queued=len(self._queue),
            connected_partitions=sum(part.is_connected for part in self._parts),
            partitions=len(self._parts),
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self.is_connected else "connecting"
        return f"<Consumer {self.subscription!r} of {self.topic} {state}, {len(self._queue)} queued>"

    # --- receiving ----------------------------------------------------------------------------------------------------

    async def receive(self, timeout: float | None = None) -> Message[T]:
        """The next message, waiting for it; OperationTimeout after `timeout` seconds.

        Raises AlreadyClosed, or what ended the consumer for good. If cancelled, no message is lost.
        """
        if not self._queue:
            if self._failure is not None:
                raise self._failure
            await self._wait(1, timeout)
            if not self._queue:
                raise OperationTimeout(f"no message on {self.topic} within {timeout:g} s")
        message = self._queue.popleft()
        part = message.entry.consumer
        part.last_dequeued = message
        part.give_permits_back(1)
        self._received += 1
        if self._observed:
            self._observe([message])
        return message

    async def receive_many(self, max_messages: int = 500, *, max_wait: float | None = None) -> list[Message[T]]:
        """Up to `max_messages`: those that are there, after waiting for so many or until `max_wait` seconds are over.

        The list is empty when nothing came in time. Without `max_wait`: at least one, as many as there are then.
        Raises as `receive`. If cancelled, no message is lost.
        """
        await self._ready(max_messages, max_wait)
        return self._take(max_messages)

    async def _ready(self, max_messages: int, max_wait: float | None) -> None:
        if max_messages < 1:
            raise InvalidConfiguration(f"max_messages must be at least 1, not {max_messages}")
        enough = 1 if max_wait is None else min(max_messages, self._options.receiver_queue_size)
        if len(self._queue) < enough:
            if self._failure is not None and not self._queue:
                raise self._failure
            await self._wait(enough, max_wait)

    def receive_nowait(self, max_messages: int = 500) -> list[Message[T]]:
        """Up to `max_messages` of those that are queued; does not wait, may be empty. Raises as `receive`."""
        if self._failure is not None and not self._queue:
            raise self._failure
        return self._take(max_messages)

    def transactional_batch(
        self,
        max_messages: int = 500,
        max_wait: float | None = 0.2,
        timeout: float | timedelta = 30.0,
        *,
        name: str | None = None,
        eager: bool = False,
    ) -> TransactionalBatchBlock[T]:
        """A block with a batch of messages that are acknowledged in one transaction, `batch.txn`, when it is left.

        `max_messages` and `max_wait` (seconds) as `receive_many`; the batch may be empty. `timeout` and `name` as
        `client.transaction()`; the transaction begins with the first operation in it, with `eager` on entering.
        Leaving the block normally acknowledges every message and commits; any exception aborts, and the messages come
        again. Raises what receiving and leaving a managed block raise; see `pulsar_txn.client.transactional_batch`.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        if not seconds > 0:
            raise InvalidConfiguration(f"timeout must be more than 0, not {timeout!r}", hint="give seconds or a timedelta")
        options = TransactionOptions(timeout=seconds, name=name, managed=True)
        return TransactionalBatchBlock(
            self,
            lambda: self._core.new_transaction(options),
            max_messages=max_messages,
            max_wait=max_wait,
            eager=eager,
        )

    async def hand_out(self, max_messages: int, max_wait: float | None) -> list[Handed]:
        """For batches: `receive_many`, with each message's number in its run."""
        self._check_open()
        await self._ready(max_messages, max_wait)
        while overdue := self.runs.overdue(self._queue):
            for part, _ in overdue:
                part.redeliver()
            await asyncio.sleep(ASK_AGAIN_PAUSE * 2 ** max(asked for _, asked in overdue))
            await self._ready(max_messages, max_wait)
        before = {part: part.last_dequeued for part in self._parts}
        return self.runs.hand_out(self._take(max_messages), before)

    def _take(self, max_messages: int) -> list[Message[T]]:
        queue = self._queue
        if len(queue) <= max_messages:
            taken = list(queue)
            queue.clear()
        else:
            taken = [queue.popleft() for _ in range(max_messages)]
        if not taken:
            return taken
        self._received += len(taken)
        if self._observed:
            self._observe(taken)
        if self._only is not None:
            self._only.last_dequeued = taken[-1]
            self._only.give_permits_back(len(taken))
        else:
            for message in taken:
                part = message.entry.consumer
                part.last_dequeued = message
                part.give_permits_back(1)
        return taken

    def _observe(self, messages: Sequence[Message[T]]) -> None:
        if self.timeouts is not None:
            self.timeouts.received(messages)
        if self._chain is not None:
            self._chain.received(messages)

    async def _wait(self, messages: int, timeout: float | None) -> None:
        """Until so many are queued, or the time is over."""
        for part in self._parts:
            part.flush_permits()
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else self._core.runtime.monotonic() + timeout
        while len(self._queue) < messages:
            if self._failure is not None:
                if self._queue:
                    return
                raise self._failure
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append((waiter, messages))
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return
            finally:
                if not waiter.done() or waiter.cancelled():
                    self._waiters = deque(entry for entry in self._waiters if entry[0] is not waiter)
                elif self._queue:
                    self._wake()  # this one may leave with fewer than it was woken for

    def enqueue(self, messages: Sequence[Message[T]]) -> None:
        """For partition consumers: messages have come."""
        self._queue.extend(messages)
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        ready = len(self._queue)
        while self._waiters and (ready >= self._waiters[0][1] or self._failure is not None):
            waiter, needed = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                ready -= needed

    def drop_queued(self, part: PartitionConsumer) -> None:
        """For partition consumers: what is queued from there will come again."""
        part.chunks.clear()
        before = len(self._queue)
        if part is self._only:
            self._queue.clear()
        else:
            self._queue = deque(message for message in self._queue if message.entry.consumer is not part)
        held = 0 if part.writers is None else part.writers.drop()
        part.give_permits_back(before - len(self._queue) + held)

    def part_failed(self, part: PartitionConsumer, error: PulsarError) -> None:
        """For partition consumers: this one has ended for good. The others of a pattern go on without it."""
        if self._pattern is not None and part in self._parts:
            logger.warning("%s is not received from any more: %s", part.topic, error)
            self._parts.remove(part)
            self.drop_queued(part)
            return
        self.fail(error)

    def fail(self, error: PulsarError) -> None:
        """For partition consumers: nothing can be received any more."""
        self._failure = self._failure or error
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        try:
            return await self.receive()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    # --- acknowledging ------------------------------------------------------------------------------------------------

    async def acknowledge(
        self, message: Acknowledged | Sequence[Acknowledged], *, txn: Enlisting | None = None, receipt: bool | None = None
    ) -> None:
        """Acknowledge a message, an id, or many of them.

        Outside a transaction acknowledgements are collected for `ack_group_delay` and this returns at once; with `receipt`
        (or the consumer's `ack_receipt`) they leave now, and this returns when the broker has answered. In a transaction
        they are always answered, and take effect when it commits.

        Raises the broker's error, ConnectionLost, OperationTimeout; with `txn` TransactionConflict when a message is
        acknowledged in an open transaction already, TransactionStateError, and other TransactionErrors.
        If cancelled, the acknowledgement may still happen; a transaction is doomed by it.
        """
        self._check_open()
        txn = txn or AMBIENT.get()
        wants_receipt = self._options.ack_receipt if receipt is None else receipt
        if txn is None and not wants_receipt and isinstance(message, Message) and message.entry.consumer in self._parts:
            entry = message.entry
            entry.consumer.ack_soon((entry.position, message.index, entry.batch_size))
            self._settled([message], None)
            return
        those = [message] if isinstance(message, (Message, MessageId)) else message
        try:
            await self._acknowledge(self._places(those), txn, wants_receipt=wants_receipt)
        except BaseException as error:
            self._settled(those, error)
            raise
        self._settled(those, None)

    async def _acknowledge(
        self, places: dict[PartitionConsumer, list[Place]], txn: Enlisting | None, *, wants_receipt: bool
    ) -> None:
        work: list[Coroutine[Any, Any, None]]
        if txn is None and not wants_receipt:
            for part, those in places.items():
                for place in those:
                    part.ack_soon(place)
            return
        if txn is not None:
            self._check_persistent(places)
            work = [part.ack_in_transaction(those, txn, cumulative=False) for part, those in places.items()]
        else:
            work = [part.ack_with_receipt(those, cumulative=False) for part, those in places.items()]
        await _all(work)

    def _settled(self, messages: Sequence[Acknowledged], error: BaseException | None) -> None:
        if error is None:
            self._acknowledged += len(messages)
        if self._chain is not None:
            self._chain.acknowledged(messages, error)

    async def acknowledge_cumulative(
        self, message: Acknowledged, *, txn: Enlisting | None = None, receipt: bool | None = None
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
        txn = txn or AMBIENT.get()
        ((part, places),) = self._places([message]).items()
        if txn is not None:
            self._check_persistent([part])
            await part.ack_in_transaction(places, txn, cumulative=True)
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
        ((part, places),) = self._places([message]).items()
        if part.open_acks.holds(places[0]):
            raise TransactionStateError(
                "the message is acknowledged in a transaction that is still open",
                hint="abort the transaction, its messages come again by themselves",
            )
        if self.timeouts is not None:
            self.timeouts.settled(part, places, cumulative=False)
        self._refused += 1
        if self._chain is not None:
            self._chain.refused(message)
        self._nacks.add(part, places[0][0], self._nack_delay(message, delay))

    def _nack_delay(self, message: Acknowledged, delay: float | timedelta | None) -> float:
        if delay is not None:
            return delay.total_seconds() if isinstance(delay, timedelta) else delay
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
        txn: Enlisting | None = None,
    ) -> None:
        """Put a message off: send it to the retry topic, to come again after `delay`, and acknowledge it here.

        With `properties` more is said of it. What was put off `max_redeliver_count` times goes to the dead-letter topic.
        In a transaction both happen or neither; without one a crash in between leaves it twice. Needs a
        `dead_letter_policy` with `retry`, else InvalidConfiguration. Raises as `Producer.send` and `acknowledge`.
        """
        self._check_open()
        if self.letters is None:
            raise InvalidConfiguration("the consumer has no dead_letter_policy", hint="subscribe with one that has retry=True")
        txn = txn or AMBIENT.get()
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
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
            entry = message.entry
            part = entry.consumer if entry.consumer in self._parts else self._part_for(entry.consumer.topic)
            positions.setdefault(part, {})[entry.position] = None
        for part, those in positions.items():
            part.redeliver(list(those))

    def recall(self, matches: Callable[[Message[T]], bool]) -> None:
        """For pipelines: give back those that wait in the queue and match."""
        taken = [message for message in self._queue if matches(message)]
        if taken:
            self._queue = deque(message for message in self._queue if not matches(message))
            for message in taken:
                message.entry.consumer.give_permits_back(1)
            self.give_back(taken)

    def give_back_later(self, messages: Sequence[Message[T]], delay: float) -> None:
        """For batches: `give_back` in `delay` seconds."""
        self._core.runtime.call_later(delay, self.give_back, messages)

    def redeliver_unacknowledged(self) -> None:
        """Have everything delivered again that was received here and is not acknowledged; the queue starts anew."""
        self._check_open()
        for part in self._parts:
            part.redeliver()

    def _places(self, messages: Sequence[Acknowledged]) -> dict[PartitionConsumer, list[Place]]:
        places: dict[PartitionConsumer, list[Place]] = {}
        for message in messages:
            if isinstance(message, Message):
                entry = message.entry
                part = entry.consumer if entry.consumer in self._parts else self._part_for(entry.consumer.topic)
                place = (entry.position, message.index, entry.batch_size)
            else:
                part = self._part_of(message)
                place = (message.position, message.batch_index, message.batch_size)
            places.setdefault(part, []).append(place)
        return places

    def _part_for(self, topic: str) -> PartitionConsumer:
        """For messages that another consumer received, of this topic: their ids mean the same here."""
        for part in self._parts:
            if part.topic == topic:
                return part
        raise InvalidConfiguration(f"the message is of {topic}, which this consumer does not receive from")

    def _part_of(self, message_id: MessageId) -> PartitionConsumer:
        if self._only is not None:
            return self._only
        found = [part for part in self._parts if part.partition == message_id.partition]
        if len(found) != 1:
            raise InvalidConfiguration(
                f"the id {message_id} does not say which topic it belongs to", hint="give the message instead of its id"
            )
        return found[0]

    # --- the subscription ---------------------------------------------------------------------------------------------

    async def seek(self, target: MessageId | datetime | int, *, inclusive: bool = False) -> None:
        """Move the subscription to a message, or to the first message published at a time (datetime or milliseconds).

        The next message is the one behind `target`, or `target` itself with `inclusive`. Of several partitions only those
        moved by `EARLIEST_ID`, `LATEST_ID` or a time move together; an id moves its own. Raises the broker's error,
        ConnectionLost, OperationTimeout.
        """
        self._check_open()
        if isinstance(target, MessageId):
            everywhere = target.position in ((-1, -1), (2**63 - 1, 2**63 - 1))
            parts = self._parts if everywhere else [self._part_of(target)]
            await _all([part.seek(message_id=target, inclusive=inclusive) for part in parts])
        else:
            time_ms = int(target.timestamp() * 1000) if isinstance(target, datetime) else target
            await _all([part.seek(publish_time_ms=time_ms) for part in self._parts])

    async def get_last_message_id(self) -> MessageId:
        """The id of the last message that can be read now (committed, not aborted); of the newest partition's end.

        `ledger_id` and `entry_id` are -1 for an empty topic. Raises the broker's error, ConnectionLost, OperationTimeout.
        """
        return max((await self.get_last_message_ids()).values(), default=MessageId(-1, -1))

    async def get_last_message_ids(self) -> dict[str, MessageId]:
        """By topic partition, as `get_last_message_id`."""
        self._check_open()
        answers = await asyncio.gather(*(part.last_message_id() for part in self._parts))
        return {part.topic: answer[0] for part, answer in zip(self._parts, answers, strict=True)}

    async def has_message_available(self) -> bool:
        """Whether `receive` would find a message that is stored at this moment."""
        self._check_open()
        return bool(self._queue) or any(await asyncio.gather(*(part.has_more() for part in self._parts)))

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription and close. Raises ConsumerBusy and the like when others use it, unless `force`."""
        self._check_open()
        for part in self._parts:
            await part.unsubscribe(force=force)
        await self.close()

    async def close(self) -> None:
        """Send waiting acknowledgements and close; receivers that wait get AlreadyClosed. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._nacks.close()
        if self.timeouts is not None:
            self.timeouts.close()
        self._queue.clear()
        self._failure = AlreadyClosed(f"the consumer of {self.topic} is closed")
        self._wake()
        if self._watcher is not None:
            self._watcher.cancel()
        self._core.unregister(self._id)
        await asyncio.gather(*(part.close() for part in self._parts))
        if self.letters is not None:
            await self.letters.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Subscribe everywhere; when one fails, all are closed and its error is raised."""
        results = await asyncio.gather(*(part.start() for part in self._parts), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await self.close()
            raise failures[0]
        self._core.register(self._id, self)
        if self._pattern is not None:
            self._watcher = self._core.spawn(watch(self._options.pattern_discovery_period, self._follow_pattern, self.topic))
        elif self._partitioned and self._options.auto_update_partitions:
            self._watcher = self._core.spawn(watch(self._options.auto_update_partitions, self._grow, self.topic))

    async def _grow(self) -> None:
        known = dict(self._partitioned)
        await self._add_parts(await new_partitions(self._core, known))
        self._partitioned = known

    async def _follow_pattern(self) -> None:
        """Receive from what has come into being and matches; leave what has gone."""
        if self._pattern is None:
            return
        found = set(await self._pattern.find(self._core, self._options.regex_subscription_mode))
        gone = [part for part in self._parts if part.topic not in found]
        for part in gone:
            self._parts.remove(part)
            self.drop_queued(part)
        await asyncio.gather(*(part.close() for part in gone))
        new = sorted(found - {part.topic for part in self._parts})
        await self._add_parts([(topic, TopicName.parse(topic).partition) for topic in new])

    async def _add_parts(self, topics: Sequence[tuple[str, int]]) -> None:
        """Receive from these, too, from their beginning: they are younger than the consumer, and nothing is to be missed."""
        options = attrs.evolve(self._options, initial_position=InitialPosition.EARLIEST)
        if not options.durable:
            options = attrs.evolve(options, start_message_id=EARLIEST_ID)
        for name, index in topics:
            part = PartitionConsumer(self._core, self, name, index, self.subscription, options)
            self._only = None
            self._parts.append(part)
            try:
                await part.start()
            except BaseException:
                if part in self._parts:
                    self._parts.remove(part)
                await part.close()
                raise

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed(f"the consumer of {self.topic} is closed")

    def _check_persistent(self, parts: Any) -> None:
        for part in parts:
            if part.topic.startswith("non-persistent:"):
                raise InvalidConfiguration(
                    f"{part.topic} keeps nothing, so a transaction cannot acknowledge its messages",
                    hint="use a persistent topic",
                )


async def _all(work: Sequence[Any]) -> None:
    """Run all, and raise the first error once all are done."""
    if len(work) == 1:
        await work[0]
        return
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
