"""The producer that programs use: values, keys, routing over partitions, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Self, TypeVar

import attrs

from pulsar_txn.client._callables import marked, named_as_public
from pulsar_txn.client._validation import refused, validate_text, validate_texts
from pulsar_txn.client.errors import AlreadyClosed, InvalidConfiguration, PulsarError
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.resource_stats import ProducerStats
from pulsar_txn.client.net.runtime import thread_id
from pulsar_txn.client.schema.base import PairSchema, Schema
from pulsar_txn.client.send.batching import Alone, EncodedBatch, Row, SendTicket, row
from pulsar_txn.client.send.budget import Budget, LimitedBudget
from pulsar_txn.client.send.interceptors import OutgoingMessage, ProducerChain
from pulsar_txn.client.send.options import MAX_LONG, ProducerOptions
from pulsar_txn.client.send.partitions import Partitions
from pulsar_txn.client.txn.transaction import AMBIENT, NOT_SAID, AsyncTransaction, joined_unit, noted
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire.ids import MessageId
from pulsar_txn.wire.topics import TopicName

T = TypeVar("T")


_NO_OTHER_CLUSTER: Final = "__local__"
"""Pulsar's word in `replicate_to` for a message that is not replicated."""

_MAX_SECONDS: Final = 2**50


def check_arguments(key: Any, ordering_key: Any, properties: Any, event_time_ms: Any, sequence_id: Any) -> None:
    """InvalidConfiguration, naming the argument, when one of them cannot be sent."""
    if key is not None:
        validate_text("key", key)
    if ordering_key is not None and not isinstance(ordering_key, bytes):
        raise refused("ordering_key", ordering_key, "bytes", hint="encode it")
    if properties is not None:
        validate_texts("properties", properties)
    if event_time_ms is not None:
        _check_number("event_time_ms", event_time_ms)
    if sequence_id is not None:
        _check_number("sequence_id", sequence_id)


def alone_for(
    deliver_at: datetime | None, deliver_after: float | timedelta | None, replicate_to: Sequence[str] | None, now_ms: int
) -> Alone:
    """Return the reason for which a message shares no batch. Raises InvalidConfiguration, which names the argument."""
    due = None
    if deliver_at is not None or deliver_after is not None:
        due = _deliver_at_ms(deliver_at, deliver_after, now_ms)
    if replicate_to is None:
        return Alone(due)
    if isinstance(replicate_to, str | bytes) or not isinstance(replicate_to, Collection):
        raise refused("replicate_to", replicate_to, "a sequence of names of clusters", hint="write ['eu'] for one")
    for name in replicate_to:
        validate_text("a cluster of replicate_to", name)
    return Alone(due, tuple(replicate_to) or (_NO_OTHER_CLUSTER,))


def _deliver_at_ms(deliver_at: datetime | None, deliver_after: float | timedelta | None, now_ms: int) -> int:
    if deliver_at is not None:
        if not isinstance(deliver_at, datetime):
            raise refused("deliver_at", deliver_at, "a datetime", hint="deliver_after takes seconds")
        if deliver_at.utcoffset() is None:
            raise refused("deliver_at", deliver_at, "a datetime with a time zone", hint="datetime.now(UTC) has one")
        return int(deliver_at.timestamp() * 1000)
    seconds = deliver_after.total_seconds() if isinstance(deliver_after, timedelta) else deliver_after or 0.0
    if not isinstance(seconds, int | float) or not abs(seconds) < _MAX_SECONDS:
        raise refused("deliver_after", deliver_after, "seconds or a timedelta")
    return now_ms + int(seconds * 1000)


def _check_number(what: str, value: Any) -> None:
    if not isinstance(value, int) or not 0 <= value <= MAX_LONG:
        raise refused(what, value, "a whole number, 0 or more, of at most 63 bits")


@attrs.frozen
class EncodedSender:
    """Producer as the blocking client uses it, which has encoded the value in another thread."""

    core: Core
    topic: TopicName
    send_payload: Callable[[bytes, Unit | None, SendTicket], None]
    takes: Callable[[int, int, int], bool]

    @property
    def operation(self) -> str:
        """See `enlist.Caller`."""
        return f"a send to {self.topic}"


class AsyncProducer(Generic[T]):
    """Sends values of type T to a topic. Made by `Client.create_producer`; an async context manager that closes it.

    All sends of one producer and partition keep their order, within a transaction and outside of transactions (with
    BatchingType.KEY_BASED those of one key). Batches never mix transactions, so sends of different transactions, or inside
    and outside of one, may leave in another order than that of the calls, except sends with a `sequence_id` of their own.
    A transaction's first sends wait until the coordinator knows the partition; all others pass them meanwhile.

    A `send` with `txn` that was called and never awaited makes the commit fail.
    """

    def __init__(self, core: Core, partitions: Partitions, budget: Budget, schema: Schema[T], options: ProducerOptions) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._thread = thread_id()
        self._partitions = partitions
        self._budget = budget
        self._persistent = partitions.topic.is_persistent
        self._encode = schema.encode
        self._pairs = schema if isinstance(schema, PairSchema) else None
        self._block_if_full = options.block_if_full
        self._closed = False
        self._encoded_sender = EncodedSender(core, partitions.topic, self._send_payload, self._takes)
        self._chain = ProducerChain(self, options.interceptors) if options.interceptors else None

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return str(self._partitions.topic)

    @property
    def producer_name(self) -> str:
        """The producer's name: the given one, or the one that the broker chose (for the first partition)."""
        return self._partitions[0].name

    @property
    def partitions(self) -> int:
        """The number of partitions of its topic; 0 for a topic without partitions."""
        return self._partitions.count

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id that has a receipt (over all partitions); -1 before the first."""
        return max(partition.last_sequence_id for partition in self._partitions)

    @property
    def topic_epoch(self) -> int | None:
        """The epoch of exclusive access (of the first partition); None with AccessMode.SHARED."""
        return self._partitions[0].topic_epoch

    @property
    def is_connected(self) -> bool:
        """True while all partitions are connected."""
        return not self._closed and all(partition.is_connected for partition in self._partitions)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self.is_connected else "connecting"
        return f"<Producer {self.producer_name!r} of {self.topic} {state}, {self._budget.messages} in flight>"

    # --- sending ------------------------------------------------------------------------------------------------------

    @marked
    def send(
        self,
        value: T | None,
        *,
        txn: AsyncTransaction | None = NOT_SAID,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
        replicate_to: Sequence[str] | None = None,
        partition: int | None = None,
    ) -> Coroutine[Any, Any, MessageId]:
        """Send one value and wait for its receipt; returns its id. `None` is a tombstone (no value for this key).

        First waits while the producer's limits, or the client's `memory_limit`, are reached (ProducerQueueFull or
        MemoryBufferIsFull instead with `block_if_full=False`). `event_time_ms` is milliseconds since the epoch;
        `deliver_at` has a time zone; `deliver_after` is seconds or a timedelta; `partition` overrides the routing;
        `replicate_to` names the clusters that a geo-replicated topic sends it to, an empty list none. A `sequence_id` names one
        message of a transaction; NotAllowedError for a second one. In a transaction the receipt says that the message is
        stored; readers see it after `txn` commits.

        Raises SchemaMismatch, InvalidConfiguration, MessageTooLarge, AlreadyClosed, OperationTimeout, BrokerError,
        ProducerFenced, and with `txn` TransactionStateError and other TransactionErrors. If cancelled while waiting for
        room, nothing is sent; if cancelled later, the message is sent nevertheless.
        """
        call = self._send(
            value,
            txn,
            key,
            ordering_key,
            properties,
            event_time_ms,
            sequence_id,
            deliver_at,
            deliver_after,
            replicate_to,
            partition,
        )
        return call if txn is NOT_SAID and AMBIENT.get() is None else noted(call, txn)

    @named_as_public
    async def _send(self, value: T | None, txn: AsyncTransaction | None, *more: Any) -> MessageId:
        self._core.check_here()
        while self._budget.full and not self._closed:
            if not self._block_if_full:
                raise self._budget.refusal(self.topic)
            await self._budget.room()
        key, ordering_key, properties, event_time_ms, sequence_id, deliver_at, deliver_after, replicate_to, partition = more
        return await self.send_nowait(
            value,
            txn=txn,
            key=key,
            ordering_key=ordering_key,
            properties=properties,
            event_time_ms=event_time_ms,
            sequence_id=sequence_id,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
            replicate_to=replicate_to,
            partition=partition,
        )

    def send_nowait(
        self,
        value: T | None,
        *,
        txn: AsyncTransaction | None = NOT_SAID,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
        replicate_to: Sequence[str] | None = None,
        partition: int | None = None,
    ) -> SendTicket:
        """Queue one value; returns a future of its id immediately. Arguments as `send`.

        Raises ProducerQueueFull (MemoryBufferIsFull) when the producer's bounds or the client's `memory_limit` are reached, and
        what `send` raises before anything is queued.
        A transaction's commit waits for the tickets of its sends, and a failed one dooms it, awaited or not.
        """
        if thread_id() != self._thread or not self._loop.is_running():  # a third of the cost of `check_here`
            self._core.check_here()
        if self._budget.full or self._closed:
            raise self._refusal()
        unit = joined_unit(txn, self._encoded_sender)
        if unit is not None and not self._persistent:
            raise self._keeps_nothing()
        steps: list[OutgoingMessage] = []
        if self._chain is not None:
            first = OutgoingMessage(
                value=value, key=key, ordering_key=ordering_key, properties=properties, event_time_ms=event_time_ms
            )
            steps = self._chain.before(first)
            value, key, ordering_key, properties, event_time_ms = attrs.astuple(steps[-1], recurse=False)
        try:
            message: Row
            if value is None or self._pairs is not None:
                payload, key, is_tombstone, is_base64 = self._parts(value, key)
                check_arguments(key, ordering_key, properties, event_time_ms, sequence_id)
                rest = (properties, event_time_ms or 0, sequence_id, ordering_key, is_tombstone, is_base64)
                message = (payload, key, *rest)
            else:
                message = payload = self._encode(value)
                if key is not None or properties or sequence_id is not None or event_time_ms or ordering_key:
                    check_arguments(key, ordering_key, properties, event_time_ms, sequence_id)
                    message = row(payload, key, properties, event_time_ms or 0, sequence_id, ordering_key)
            partitions = self._partitions
            target = partitions.only if partition is None else None
            if target is None:
                target = partitions.at(partitions.router(key, payload) if partition is None else partition)
            if deliver_at is None and deliver_after is None and replicate_to is None:
                future = target.add(message, unit)
            else:
                now_ms = self._core.runtime.wall_ms()
                future = target.add(message, unit, alone_for(deliver_at, deliver_after, replicate_to, now_ms))
        except BaseException as error:
            self._not_sent(steps, error)
            raise
        if self._chain is not None:
            self._chain.watch(steps, future)
        return future

    def stats(self) -> ProducerStats:
        """The producer's counters, and what is in flight."""
        budget = self._budget
        return ProducerStats(
            messages=budget.all_messages,
            bytes=budget.all_bytes,
            answered=budget.all_messages - budget.messages - budget.failed,
            failed=budget.failed,
            in_flight_messages=budget.messages,
            in_flight_bytes=budget.bytes,
        )

    @marked
    def send_encoded(
        self,
        batch: EncodedBatch,
        *,
        txn: AsyncTransaction | None = NOT_SAID,
        key: str | None = None,
        partition: int | None = None,
    ) -> Coroutine[Any, Any, MessageId]:
        """Send a batch built by `encode_batch` as one entry and wait for its receipt; returns the entry's id.

        The partition is `partition`, or that of `key`, or the router's. Raises and behaves as `send`.
        """
        return noted(self._send_encoded(batch, txn, key, partition), txn)

    @named_as_public
    async def _send_encoded(
        self, batch: EncodedBatch, txn: AsyncTransaction | None, key: str | None, partition: int | None
    ) -> MessageId:
        self._core.check_here()
        while self._budget.full and not self._closed:
            if not self._block_if_full:
                raise self._budget.refusal(self.topic)
            await self._budget.room()
        return await self.send_encoded_nowait(batch, txn=txn, key=key, partition=partition)

    def send_encoded_nowait(
        self,
        batch: EncodedBatch,
        *,
        txn: AsyncTransaction | None = NOT_SAID,
        key: str | None = None,
        partition: int | None = None,
    ) -> SendTicket:
        """Queue a batch built by `encode_batch`; as `send_nowait`."""
        if thread_id() != self._thread or not self._loop.is_running():  # a third of the cost of `check_here`
            self._core.check_here()
        if self._budget.full or self._closed:
            raise self._refusal()
        unit = joined_unit(txn, self._encoded_sender)
        if unit is not None and not self._persistent:
            raise self._keeps_nothing()
        partitions = self._partitions
        target = partitions.only if partition is None else None
        if target is None:
            target = partitions.at(partitions.router(key, b"") if partition is None else partition)
        return target.add_encoded(batch, unit)

    def _send_payload(self, payload: bytes, unit: Unit | None, future: SendTicket) -> None:
        """`send_nowait` of nothing but an encoded value, whose future is given.

        That may be one for threads as well, if it can no longer be cancelled: it has what is needed of a ticket here.
        """
        if self._budget.full or self._closed:
            raise self._refusal()
        if unit is not None and not self._persistent:
            raise self._keeps_nothing()
        partitions = self._partitions
        target = partitions.only or partitions.at(partitions.router(None, payload))
        target.add(payload, unit, future=future)

    def _takes(self, size: int, largest: int, waiting: int) -> bool:
        """From any thread: whether a message of `size` bytes would be queued.

        `waiting` others of at most `largest` bytes may be on their way here already.
        """
        if self._closed or not self._budget.has_room(waiting, waiting * largest):
            return False
        return self._partitions.take(size)

    async def wait_for_room(self) -> None:
        """Wait until `send_nowait` has room. Safe to cancel."""
        self._core.check_here()
        while self._budget.full and not self._closed:
            await self._budget.room()

    async def flush(self) -> None:
        """Send waiting messages, and wait until everything sent before this call has its receipt or has failed.

        Raises the first of their errors (each ticket also has its own; a cancelled one is waited for nevertheless).
        Safe to cancel: only the waiting ends.
        """
        self._core.check_here()
        outstanding = [batch for partition in self._partitions for batch in partition.outstanding()]
        if not outstanding:
            return
        await asyncio.wait(outstanding)
        for batch in outstanding:
            error = batch.result()
            if error is not None:
                raise error

    async def close(self) -> None:
        """Send waiting messages, wait for receipts (at most the operation timeout), and close. Idempotent.

        Sends without a receipt by then fail with AlreadyClosed. If cancelled, the producer is closed without further waiting.
        """
        self._core.check_here()
        if self._closed:
            return
        self._closed = True
        self._budget.wake_all()
        self._core.unregister(self._partitions[0].id)
        await self._partitions.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _refusal(self) -> PulsarError:
        """Reason for which nothing can be queued now."""
        if self._closed:
            return AlreadyClosed(f"the producer of {self.topic} is closed")
        return self._budget.refusal(self.topic)

    def _not_sent(self, steps: list[OutgoingMessage], error: BaseException) -> None:
        if self._chain is not None:
            self._chain.finish(steps, None, error)

    def _keeps_nothing(self) -> InvalidConfiguration:
        return InvalidConfiguration(
            f"{self.topic} keeps nothing, so a transaction cannot send to it", hint="use a persistent topic"
        )

    def _parts(self, value: T | None, key: str | None) -> tuple[bytes, str | None, bool, bool]:
        """Payload, key, whether it is a tombstone, and whether the key is Base64: of no value, or of a pair."""
        if value is None or self._pairs is None:
            return b"", key, True, False
        if key is not None:
            raise InvalidConfiguration("the message's key is that of the value", hint="leave key= out")
        pair = self._pairs.encode_pair(value)
        return *pair, pair.is_base64


async def open_producer(
    core: Core, topic: TopicName, count: int, schema: Schema[T], options: ProducerOptions
) -> AsyncProducer[T]:
    """A producer that its broker knows, for a topic of `count` partitions (0: it has none).

    Raises the error that prevented it; then, or if cancelled, nothing remains.
    """
    bounds = (options.max_pending_messages, options.max_pending_bytes)
    budget = Budget(*bounds) if core.memory is None else LimitedBudget(*bounds, core.memory)
    partitions = Partitions(core, topic, count, schema.info, options, budget)
    await partitions.start()
    producer = AsyncProducer(core, partitions, budget, schema, options)
    core.register(partitions[0].id, producer)
    return producer


def encoded_sender_of(producer: AsyncProducer[Any]) -> EncodedSender:
    """The producer as the blocking producer over it uses it."""
    return producer._encoded_sender


__all__ = ["AsyncProducer", "EncodedSender", "encoded_sender_of", "open_producer"]
