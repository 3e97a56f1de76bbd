"""The consumer that programs use: one queue over all partitions and topics, receiving, acknowledging."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypeVar

import attrs

from pulsar_txn.client._checks import seconds_of
from pulsar_txn.client.errors import AlreadyClosed, PulsarError
from pulsar_txn.client.loop.transactional_batch import AsyncTransactionalBatchBlock
from pulsar_txn.client.net.core import Core, run_all
from pulsar_txn.client.net.growth import TopicPattern, listen_to_topics, new_partitions, watch
from pulsar_txn.client.net.resource_stats import ConsumerStats
from pulsar_txn.client.net.runtime import Guard
from pulsar_txn.client.receive.dead_letters import DeadLetters, check_letters
from pulsar_txn.client.receive.interceptors import ConsumerChain
from pulsar_txn.client.receive.message import EARLIEST_ID, Message
from pulsar_txn.client.receive.nacks import NackTracker
from pulsar_txn.client.receive.options import ConsumerOptions, ConsumerType, InitialPosition
from pulsar_txn.client.receive.partition_consumer import PartitionConsumer
from pulsar_txn.client.receive.redelivery import AckTimeouts
from pulsar_txn.client.receive.runs import Handed, Runs, whole_entries
from pulsar_txn.client.receive.settling import Acknowledged, Settling
from pulsar_txn.client.receive.subscribe_fields import sought_ms
from pulsar_txn.client.schema.base import Schema
from pulsar_txn.client.txn.life import TransactionOptions
from pulsar_txn.wire.ids import MessageId
from pulsar_txn.wire.topics import TopicName

T = TypeVar("T")


class AsyncConsumer(Settling[T]):
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
        beside: Iterable[str] = (),
    ) -> None:
        self.schema = schema
        self.subscription = subscription
        self.consumer_name = options.consumer_name or f"{int(core.runtime.random() * 16**8):08x}"
        self._core = core
        self._options = options
        self._queue: deque[Message[T]] = deque()
        self.guard = Guard()
        self.shared = False
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()
        self._failure: PulsarError | None = None
        self._closed = False
        self._pattern = pattern
        self._partitioned = dict(partitioned or {})
        self._beside = frozenset(beside)
        self._watcher: asyncio.Task[None] | None = None
        self._ears: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._id = core.next_resource_id()
        self._received = self._acknowledged = self._refused = 0
        self._chain = ConsumerChain(self, options.interceptors) if options.interceptors else None
        self._nacks = NackTracker(core.runtime, options.consumer_type)
        wants_timeouts = options.ack_timeout or options.ack_timeout_backoff is not None
        self.timeouts = AckTimeouts(core.runtime, options.ack_timeout, options.ack_timeout_backoff) if wants_timeouts else None
        self._observed = self.timeouts is not None or self._chain is not None
        policy = options.dead_letter_policy
        first = topics[0][0] if topics and pattern is None else ""
        if policy is not None and policy.dead_letter_topic is None:
            check_letters(subscription, topics=[name for name, _ in topics])
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

    # --- batches ------------------------------------------------------------------------------------------------------

    def transactional_batch(
        self,
        max_messages: int = 500,
        max_wait: float | timedelta | None = 0.2,
        timeout: float | timedelta = 30.0,
        *,
        name: str | None = None,
        eager: bool = False,
    ) -> AsyncTransactionalBatchBlock[T]:
        """A block with a batch of messages that are acknowledged in one transaction, `batch.txn`, when it is left.

        `max_messages` and `max_wait` (seconds) as `receive_many`; the batch may be empty. `timeout` and `name` as
        `client.transaction()`; the transaction begins with the first operation in it, with `eager` on entering.
        Leaving the block normally acknowledges every message and commits; any exception aborts, and the messages come
        again. Raises what receiving and leaving a managed block raise; see `pulsar_txn.client.loop.transactional_batch`.
        """
        options = TransactionOptions(timeout=seconds_of(timeout, "timeout"), name=name, managed=True)
        return AsyncTransactionalBatchBlock(
            self,
            lambda: self._core.new_transaction(options),
            max_messages=max_messages,
            max_wait=max_wait,
            eager=eager,
        )

    async def hand_out(self, max_messages: int, max_wait: float | timedelta | None) -> list[Handed]:
        """For batches: `receive_many` of whole entries, where `max_messages` allows it, with their numbers in their runs."""
        self._check_open()
        await self._ready(max_messages, max_wait)
        with self.guard:  # what another thread takes is in front of all of it, or behind
            before = {part: part.last_dequeued for part in self._parts}
            return self.runs.hand_out(self._take(whole_entries(self._queue, max_messages)), before)

    # --- the subscription ---------------------------------------------------------------------------------------------

    async def seek(self, target: MessageId | datetime | int, *, inclusive: bool = False) -> None:
        """Move the subscription to a message, or to the first message published at a time (datetime or milliseconds).

        The next message is the one behind `target`, or `target` itself with `inclusive`. Of several partitions only those
        moved by `EARLIEST_ID`, `LATEST_ID` or a time move together; an id moves its own. Raises the broker's error,
        ConnectionLost, OperationTimeout. If cancelled, it may have moved.
        """
        self._check_open()
        if isinstance(target, MessageId):
            everywhere = target.position in ((-1, -1), (2**63 - 1, 2**63 - 1))
            parts = self._parts if everywhere else [self._part_of(target)]
            await run_all([part.seek(message_id=target, inclusive=inclusive) for part in parts])
        else:
            time_ms = sought_ms(target)
            await run_all([part.seek(publish_time_ms=time_ms) for part in self._parts])

    async def get_last_message_id(self) -> MessageId:
        """The id of the last message that can be read now (committed, not aborted); of the newest partition's end.

        `ledger_id` and `entry_id` are -1 for an empty topic. Raises the broker's error, ConnectionLost, OperationTimeout.
        Safe to cancel.
        """
        return max((await self.get_last_message_ids()).values(), default=MessageId(-1, -1))

    async def get_last_message_ids(self) -> dict[str, MessageId]:
        """By topic partition, as `get_last_message_id`."""
        self._check_open()
        answers = await asyncio.gather(*(part.last_message_id() for part in self._parts))
        return {part.topic: answer[0] for part, answer in zip(self._parts, answers, strict=True)}

    async def has_message_available(self) -> bool:
        """Whether `receive` would find a message that is stored at this moment.

        Raises as `get_last_message_id`. Safe to cancel.
        """
        self._check_open()
        return bool(self._queue) or any(await asyncio.gather(*(part.has_more() for part in self._parts)))

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription and close. Raises ConsumerBusy and the like when others use it, unless `force`.

        If cancelled, some of several partitions may be unsubscribed already; call it again.
        """
        self._check_open()
        for part in self._parts:
            await part.unsubscribe(force=force)
        await self.close()

    async def close(self) -> None:
        """Send waiting acknowledgements and close; receivers that wait get AlreadyClosed. Idempotent.

        If cancelled, it is closed.
        """
        if self._closed:
            return
        self._closed = True
        self._nacks.close()
        if self.timeouts is not None:
            self.timeouts.close()
        self._queue.clear()
        self._failure = AlreadyClosed(f"the consumer of {self.topic} is closed")
        self._wake()
        for task in (self._watcher, self._ears):
            if task is not None:
                task.cancel()
        self._core.unregister(self._id)
        self._closing = asyncio.get_running_loop().create_task(self._close_parts())
        await asyncio.shield(self._closing)  # which goes on when this is cancelled

    async def _close_parts(self) -> None:
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
        """Subscribe everywhere; when one fails, or this is cancelled, all are closed and the error is raised."""
        try:
            await run_all([part.start() for part in self._parts])
        except BaseException:
            await self.close()
            raise
        self._core.register(self._id, self)
        if self._pattern is not None:
            changed, period = asyncio.Event(), self._options.pattern_discovery_period
            watching = watch(self._core, period, self._follow_pattern, self.topic, changed)
            self._watcher = self._core.spawn(watching)
            self._ears = self._core.spawn(listen_to_topics(self._core, self._pattern.namespace, changed))
        elif self._partitioned and self._options.auto_update_partitions:
            watching = watch(self._core, self._options.auto_update_partitions, self._grow, self.topic)
            self._watcher = self._core.spawn(watching)

    async def _grow(self) -> None:
        known = dict(self._partitioned)
        await self._add_parts(await new_partitions(self._core, known))
        self._partitioned = known

    async def _follow_pattern(self) -> None:
        """Receive from what has come into being and matches; leave what has gone."""
        if self._pattern is None:
            return
        found = set(await self._pattern.find(self._core, self._options.regex_subscription_mode))
        gone = [part for part in self._parts if part.topic not in found and part.topic not in self._beside]
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


__all__ = ["Acknowledged", "AsyncConsumer"]
