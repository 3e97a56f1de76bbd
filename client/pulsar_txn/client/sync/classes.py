"""The blocking classes, written by `client/generate_sync.py` from the asyncio classes. Do not edit."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from re import Pattern
from types import TracebackType
from typing import Any, Never, NoReturn, Self, TypeVar, Unpack, overload

from pulsar_txn.client._options import options_of
from pulsar_txn.client._validation import refused
from pulsar_txn.client.client import AsyncClient
from pulsar_txn.client.client_stats import ClientStats
from pulsar_txn.client.coordinator import AsyncCoordinator
from pulsar_txn.client.errors import AlreadyClosed
from pulsar_txn.client.loop.options import PipelineEvent, PipelineOptions, PipelineOptionsDict, PipelineResult
from pulsar_txn.client.net.authentication import Authentication
from pulsar_txn.client.net.failover import AutoClusterFailover
from pulsar_txn.client.net.resource_stats import ConsumerStats, ProducerStats
from pulsar_txn.client.net.runtime import Future, Runtime
from pulsar_txn.client.receive.acknowledging import Acknowledged
from pulsar_txn.client.receive.batch import AsyncTransactionalBatch, AsyncTransactionalBatchBlock
from pulsar_txn.client.receive.committed import CommittedPosition
from pulsar_txn.client.receive.consistent.position import CutPosition
from pulsar_txn.client.receive.consistent.reader import AsyncConsistentReader, Cut
from pulsar_txn.client.receive.consumer import AsyncConsumer
from pulsar_txn.client.receive.interceptors import ConsumerInterceptor
from pulsar_txn.client.receive.message import EARLIEST_ID, Message
from pulsar_txn.client.receive.options import ConsumerOptionsDict, ConsumerType, ReaderOptionsDict
from pulsar_txn.client.receive.reader import AsyncReader
from pulsar_txn.client.receive.table_view import Action, AsyncTableView
from pulsar_txn.client.schema.base import Schema
from pulsar_txn.client.send.batching import EncodedBatch
from pulsar_txn.client.send.half_messages import (
    HALF_TIMEOUT,
    AsyncTransactionalProducer,
    HalfMessage,
    HalfMessageSender,
    HalfSent,
    HalfTerms,
)
from pulsar_txn.client.send.interceptors import ProducerInterceptor
from pulsar_txn.client.send.options import ProducerOptionsDict
from pulsar_txn.client.send.producer import AsyncProducer
from pulsar_txn.client.state.prepared import PreparedToken
from pulsar_txn.client.state.transaction import TransactionState
from pulsar_txn.client.sync.blocking import Blocking, GenericBlocking, SyncLoop, inner
from pulsar_txn.client.sync.check_groups import HalfSending, threaded, threaded_hearing, transactional_over
from pulsar_txn.client.sync.lifetime import LoopLifetime, ResourceFactory, client_on_loop, coordinator_on_loop
from pulsar_txn.client.sync.receiving import Reading, Receiving
from pulsar_txn.client.sync.sending import OwnCode, Sending
from pulsar_txn.client.sync.units import Stop, run_pipeline, run_transaction
from pulsar_txn.client.txn.check_groups import (
    DEFAULT_CHECK_TIMEOUT,
    DEFAULT_CONCURRENCY,
    AsyncCheckGroup,
    CheckDecision,
    CheckQuestion,
    LocalOutcome,
)
from pulsar_txn.client.txn.forgotten import from_here
from pulsar_txn.client.txn.managed import AsyncManagedTransaction
from pulsar_txn.client.txn.observers import TransactionStats
from pulsar_txn.client.txn.session import TransactionalIdInfo
from pulsar_txn.client.txn.transaction import NOT_SAID, AsyncTransaction, Surroundings, unit_of
from pulsar_txn.client.txn.transactions import DEFAULT_ATTEMPTS, DEFAULT_TIMEOUT, Attempts, Pauses, growing_pauses
from pulsar_txn.wire.ids import MessageId, TxnId

T = TypeVar("T")


class Transaction(Blocking[AsyncTransaction]):
    """A unit of sends and acknowledgements that takes effect as a whole or not at all. Not thread-safe."""

    @property
    def id(self) -> TxnId | None:
        """The transaction's id; None before the first operation that needs one.

        Whoever knows it may send in the transaction, and end it. So a coordinator beside clusters tells each participant of
        a transaction whose id was asked for twice that it has ended (`docs/adr/0035`), and the outcome of a transaction that
        its coordinator has forgotten is unknown (`docs/adr/0045`).
        """
        return self._inner.id

    @property
    def name(self) -> str | None:
        """The transaction's name, for logs and statistics."""
        return self._inner.name

    @property
    def state(self) -> TransactionState:
        """The transaction's state, as far as this client knows."""
        return self._inner.state

    @property
    def doomed(self) -> bool:
        """True if an operation failed, so that the transaction can only be aborted."""
        return self._inner.doomed

    @property
    def doom_cause(self) -> BaseException | None:
        """The first failure of an operation."""
        return self._inner.doom_cause

    @property
    def deadline(self) -> float | None:
        """The time on the clock of `time.monotonic()` from which operations are refused; None as for `remaining`."""
        return self._inner.deadline

    @property
    def remaining(self) -> float | None:
        """Seconds until operations are refused; None for a transaction that was begun elsewhere or has no id yet."""
        return self._inner.remaining

    def stats(self) -> TransactionStats:
        """A frozen picture of the transaction, with its `id`."""
        return self._loop.call(self._inner.stats)

    def send(self, producer: Producer[T], value: T | None, **options: Any) -> MessageId:
        """`producer.send(value, txn=self, **options)`."""
        return producer.send(value, txn=self, **options)

    def acknowledge(self, consumer: Consumer[Any], message: Acknowledged | Sequence[Acknowledged]) -> None:
        """`consumer.acknowledge(message, txn=self)`."""
        consumer.acknowledge(message, txn=self)

    def savepoint(self) -> NoReturn:
        """Refused with TransactionStateError: Pulsar has no savepoints."""
        self._inner.savepoint()
        raise AssertionError

    def rollback(self) -> NoReturn:
        """Leave the managed block immediately and quietly, with an abort. Raises TransactionStateError outside of a block."""
        self._inner.rollback()
        raise AssertionError

    def commit(self, *, timeout: float | timedelta | None = None, visible: bool = True) -> None:
        """Acknowledge the messages that were received in the transaction, wait for its operations, then commit.

        `timeout`: seconds or a timedelta for all of it (default: the commit timeout). Concurrent callers share one commit,
        and it may be called again after CommitOutcomeUnknown.

        With `visible=False` it returns as soon as the decision is durable: the transaction is committed whatever happens
        from then on, and readers may see it a moment later. Otherwise readers see it when this returns.

        A transaction with a check group may have been committed by its group before this is called; that is no error. When
        the commit cannot be sent, the outcome of such a transaction is unknown, because its group may still commit it.

        Raises TransactionOperationFailed (aborted, because an operation had failed), TransactionTimedOut (operations were
        not answered in time, the commit could not be sent, or the coordinator had ended it), TransactionAborted,
        CommitOutcomeUnknown, TransactionStateError; FeatureUnsupported where a coordinator cannot answer early, which
        leaves the transaction as it was. When an abort is asked for instead, and fails, a note says so. The commit of a
        prepared transaction that could not be sent raises why (ConnectionLost, OperationTimeout); call it again.
        """
        from_here(self._loop.run, lambda: self._inner.commit(timeout=timeout))

    def abort(self, *, timeout: float | timedelta | None = None) -> None:
        """Abort the transaction; without effect on an aborted one. Legal in every open state.

        When it returns, the transaction is aborted. Messages that were received in it come again. The call waits for
        operations under way, up to `timeout` (seconds or a timedelta; default: the commit timeout) less what END_TXN needs.
        Raises the error of END_TXN; the coordinator then aborts at the transaction's timeout. A prepared transaction has
        none: call it again. InvalidTransactionStatus, with the state COMMITTED, when a member of its check group, or whoever
        knows its token or its id, had committed it.

        TransactionNotFound, with the state UNKNOWN, when the coordinator does not know the transaction: it never was, it
        belongs to another role, or it has ended and is forgotten, by a commit or by an abort. A transaction that this object
        began, whose commit was never sent and whose id the program never asked for, is ABORTED then: nobody else can have
        ended it. (`id`, `stats()`, `repr()` and observers show the id.)
        """
        self._loop.run(lambda: self._inner.abort(timeout=timeout))

    def prepare(self, *, timeout: float | timedelta | None = None, secret: bytes | None = None) -> PreparedToken:
        """The first phase of a commit in two: after it the transaction waits for its end, without a timeout.

        It waits for the operations as a commit does, then the coordinator prepares the transaction durably. From then on
        it takes no more operations, and only `commit()`, `abort()` or somebody who has the token ends it: through
        `client.attach_prepared(token)`, in any process, also after restarts. Neither the end of this client nor a successor
        with its transactional id does. Readers of its topics wait until it ends, so end it soon.

        A prepared transaction stays as it is when its managed block is left, also by an exception: who has the token may
        have decided already. `commit()` is then allowed inside the block.

        `timeout` as for `commit`. Concurrent callers share one prepare, and a repeat returns the same token. After a lost
        answer (ConnectionLost, OperationTimeout) the transaction is PREPARING: call it again, or abort.
        `secret`: that of the token, 1 to 64 bytes, for a program that stores the token before; random bytes without it.

        Raises FeatureUnsupported, which leaves the transaction open; what `commit` raises for operations that failed;
        TransactionAborted when the coordinator had ended it; TransactionTimedOut, TransactionStateError, and the errors of
        requests. Source: KIP-939.
        """
        return self._loop.run(lambda: self._inner.prepare(timeout=timeout, secret=secret))

    def leave_to_check(self) -> None:
        """Give the transaction up here, open, because only its check group can tell how the work ends that it goes with.

        What was received in it is acknowledged in it, and operations under way are waited for first; one that failed aborts
        it (TransactionOperationFailed). Then its state is UNKNOWN. Its coordinator asks a member of the group, and aborts it
        by its policy or at its timeout when nobody knows. `commit()` and `abort()` still end it from here. Raises
        TransactionStateError without a check group, and after its end.
        """
        self._loop.run(self._inner.leave_to_check)

    def wait_closed(self) -> None:
        """Wait for a commit or abort under way, and raise its error. Returns immediately if there is no such call."""
        self._loop.run(self._inner.wait_closed)

    def resolve(self) -> TransactionState:
        """Ask the coordinator for the outcome by asking for the commit again, which is idempotent on our broker.

        Use it only after the commit was sent. An attached transaction that is still open is committed by it. COMMITTED,
        ABORTED, or UNKNOWN: a stock coordinator forgets a transaction once it has ended, and while it ends may refuse the
        repeat of what it has done. Raises an error when it cannot ask (ConnectionLost, OperationTimeout, …), and
        TransactionStateError before the commit was sent. Safe to repeat.
        """
        return self._loop.run(self._inner.resolve)


class ManagedTransaction(Blocking[AsyncManagedTransaction]):
    """Context manager that `client.transaction()` returns, used once."""

    def __init__(self, loop: SyncLoop, inner_object: AsyncManagedTransaction) -> None:
        super().__init__(loop, inner_object)
        self._around = Surroundings()

    def __enter__(self) -> Transaction:
        """Begin. TransactionStateError on a second use; with `eager` as `begin_transaction`."""
        txn = self._loop.run(self._inner.__aenter__)
        self._around.enter(unit_of(txn), joins=self._inner.ambient)
        return Transaction(self._loop, txn)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        """End as the table says."""
        self._around.leave()
        swallowed: bool = from_here(self._loop.run, lambda: self._inner.__aexit__(kind, error, traceback))
        return swallowed


class CheckGroup(Blocking[AsyncCheckGroup]):
    """A client's membership of a check group, made by `client.join_check_group`; a context manager that leaves it."""

    @property
    def name(self) -> str:
        """The group's name."""
        return self._inner.name

    @property
    def coordinators(self) -> int:
        """At how many coordinators this client is a member at this moment."""
        return self._inner.coordinators

    def close(self) -> None:
        """Leave the group; idempotent. Calls of `check` that are under way are cancelled, and another member is asked.

        Waits at most a second for the coordinators.
        """
        self._loop.run(self._inner.close)

    def __enter__(self) -> Self:
        """Enter the block."""
        self._loop.run(self._inner.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the block."""
        self.close()


class Producer(GenericBlocking[AsyncProducer[T], T]):
    """Sends values of type T to a topic. Made by `Client.create_producer`; a context manager that closes it."""

    def __init__(self, loop: SyncLoop, inner_object: AsyncProducer[T], own: OwnCode | None = None) -> None:
        super().__init__(loop, inner_object)
        self._sending = Sending(loop, inner_object, own or OwnCode(), self)

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._inner.topic

    @property
    def producer_name(self) -> str:
        """The producer's name: the given one, or the one that the broker chose (for the first partition)."""
        return self._inner.producer_name

    @property
    def partitions(self) -> int:
        """The number of partitions of its topic; 0 for a topic without partitions."""
        return self._inner.partitions

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id that has a receipt (over all partitions); -1 before the first."""
        return self._inner.last_sequence_id

    @property
    def topic_epoch(self) -> int | None:
        """The epoch of exclusive access (of the first partition); None with AccessMode.SHARED."""
        return self._inner.topic_epoch

    @property
    def is_connected(self) -> bool:
        """True while all partitions are connected."""
        return self._inner.is_connected

    def send(
        self,
        value: T | None,
        *,
        txn: Transaction | None = NOT_SAID,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
        replicate_to: Sequence[str] | None = None,
        partition: int | None = None,
    ) -> MessageId:
        """Send one value and wait for its receipt; returns its id. `None` is a tombstone (no value for this key).

        First waits while the producer's limits, or the client's `memory_limit`, are reached (ProducerQueueFull or
        MemoryBufferIsFull instead with `block_if_full=False`). `event_time_ms` is milliseconds since the epoch;
        `deliver_at` has a time zone; `deliver_after` is seconds or a timedelta; `partition` overrides the routing;
        `replicate_to` names the clusters that a geo-replicated topic sends it to, an empty list none. A `sequence_id` names one
        message of a transaction; NotAllowedError for a second one. In a transaction the receipt says that the message is
        stored; readers see it after `txn` commits.

        Raises SchemaMismatch, InvalidConfiguration, MessageTooLarge, AlreadyClosed, OperationTimeout, BrokerError,
        ProducerFenced, and with `txn` TransactionStateError and other TransactionErrors.

        Interceptors, schema and router run in this thread.
        """
        more = key, ordering_key, properties, event_time_ms, sequence_id, deliver_at, deliver_after, replicate_to, partition
        return self._sending.send(value, inner(txn), more)

    def send_nowait(
        self,
        value: T | None,
        *,
        txn: Transaction | None = NOT_SAID,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
        replicate_to: Sequence[str] | None = None,
        partition: int | None = None,
    ) -> Future[MessageId]:
        """Queue one value; returns a future of its id immediately. Arguments as `send`.

        Raises ProducerQueueFull (MemoryBufferIsFull) when the producer's bounds or the client's `memory_limit` are reached, and
        what `send` raises before anything is queued.
        A transaction's commit waits for the tickets of its sends, and a failed one dooms it, looked at or not.

        Callbacks of the future run on the client's thread for callbacks, in the order of the receipts. ProducerQueueFull is
        also raised while ten thousand callbacks wait.
        """
        more = key, ordering_key, properties, event_time_ms, sequence_id, deliver_at, deliver_after, replicate_to, partition
        return self._sending.send_nowait(value, inner(txn), more)

    def stats(self) -> ProducerStats:
        """The producer's counters, and what is in flight."""
        return self._loop.call(self._inner.stats)

    def send_encoded(
        self, batch: EncodedBatch, *, txn: Transaction | None = NOT_SAID, key: str | None = None, partition: int | None = None
    ) -> MessageId:
        """Send a batch built by `encode_batch` as one entry and wait for its receipt; returns the entry's id.

        The partition is `partition`, or that of `key`, or the router's. Raises and behaves as `send`.
        """
        return self._sending.send_encoded(batch, inner(txn), key, partition)

    def send_encoded_nowait(
        self, batch: EncodedBatch, *, txn: Transaction | None = NOT_SAID, key: str | None = None, partition: int | None = None
    ) -> Future[MessageId]:
        """Queue a batch built by `encode_batch`; as `send_nowait`."""
        return self._sending.send_encoded_nowait(batch, inner(txn), key, partition)

    def wait_for_room(self) -> None:
        """Wait until `send_nowait` has room."""
        self._sending.wait_for_room()

    def flush(self) -> None:
        """Send waiting messages, and wait until everything sent before this call has its receipt or has failed.

        Raises the first of their errors (each ticket also has its own; a cancelled one is waited for nevertheless).
        """
        self._loop.run(self._inner.flush)

    def close(self) -> None:
        """Send waiting messages, wait for receipts (at most the operation timeout), and close. Idempotent.

        Sends without a receipt by then fail with AlreadyClosed.
        """
        self._loop.run(self._inner.close)

    def __enter__(self) -> Self:
        """Enter the block."""
        self._loop.run(self._inner.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the block."""
        self.close()


class TransactionalProducer(GenericBlocking[AsyncTransactionalProducer[T], T]):
    """Sends messages that become visible together with work of the program's own: `client.transactional_producer`."""

    def __init__(
        self,
        loop: SyncLoop,
        inner_object: AsyncTransactionalProducer[T],
        half_messages: HalfMessageSender,
        producer: Producer[T],
    ) -> None:
        super().__init__(loop, inner_object)
        self._producer = producer
        self._half_messages = HalfSending(loop, half_messages, producer, Producer, functools.partial(Transaction, loop))

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._inner.topic

    @property
    def group(self) -> str:
        """The name of its check group."""
        return self._inner.group

    @property
    def producer(self) -> Producer[T]:
        """The producer of its topic, which can also send messages of its own."""
        return self._producer

    def send_in_transaction(
        self,
        value: T | None,
        *,
        execute: Callable[[HalfSent], LocalOutcome],
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        also: Sequence[HalfMessage] = (),
        data: bytes | None = None,
    ) -> LocalOutcome:
        """Store messages that nobody sees yet, call `execute`, and make them visible or have them disappear.

        `value` and the options after `execute` are one message, as for `producer.send`; `also` are further ones, to this
        topic or by another producer of this client. `execute(half)` is called with a `HalfSent` after all of them are
        stored, and exactly once.
        It returns COMMIT, ROLLBACK or UNKNOWN, and so does this call. After UNKNOWN, or when this process dies, the
        coordinator asks the group's `check`, and hands it `data`: by default a picture of the first message
        (`CheckQuestion.message`), or at most 64 KiB of your own.

        COMMIT means that the messages are visible; or, when the answer to the commit was lost, that they will be, because
        the check says so too. It is raised when they will not:

        * what `producer.send` raises: a message was not stored, and nothing was executed;
        * TransactionAborted: `execute` returned COMMIT, but the transaction had ended before (its timeout, or a check);
        * InvalidTransactionStatus: `execute` returned ROLLBACK, but a check had committed it;
        * InvalidConfiguration: `execute` returned no LocalOutcome; the transaction is left to the check;
        * what `execute` raises, also a cancellation: the transaction is left to the check, since nobody here knows what
          became of the work. Return ROLLBACK when it is known that nothing was done.

        Source: RocketMQ's `sendMessageInTransaction`.

        `execute` runs in the thread that calls. The transaction in `HalfSent` is a blocking one.
        """
        first = HalfMessage(value, key=key, ordering_key=ordering_key, properties=properties, event_time_ms=event_time_ms)
        return self._half_messages.send(first, also, data, execute)

    def close(self) -> None:
        """Close the producer, and leave the group unless it was joined elsewhere. Idempotent."""
        self._loop.run(self._inner.close)

    def __enter__(self) -> Self:
        """Enter the block."""
        self._loop.run(self._inner.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the block."""
        self.close()


class Consumer(GenericBlocking[AsyncConsumer[T], T]):
    """A subscription's consumer. Made by `Client.subscribe`; a context manager that closes it, and an iterator."""

    def __init__(self, loop: SyncLoop, inner_object: AsyncConsumer[T]) -> None:
        super().__init__(loop, inner_object)
        self._receiving = Receiving(loop, inner_object)

    @property
    def subscription(self) -> str:
        """The subscription's name."""
        return self._inner.subscription

    @property
    def consumer_name(self) -> str:
        """The name given, or one that was made up."""
        return self._inner.consumer_name

    @property
    def schema(self) -> Schema[T]:
        """Schema by which values are decoded."""
        return self._inner.schema

    @property
    def topic(self) -> str:
        """The topic's name, of the first one when there are several; of a pattern, the whole pattern."""
        return self._inner.topic

    @property
    def topics(self) -> list[str]:
        """The full names of the partitions (or of the topic without partitions) that it receives from."""
        return self._inner.topics

    @property
    def consumer_type(self) -> ConsumerType:
        """The way in which the subscription divides its messages among its consumers."""
        return self._inner.consumer_type

    @property
    def is_connected(self) -> bool:
        """True while all partitions are connected."""
        return self._inner.is_connected

    @property
    def is_active(self) -> bool:
        """True if this consumer gets messages; on a Failover subscription only one consumer per partition gets them."""
        return self._inner.is_active

    @property
    def reached_end_of_topic(self) -> bool:
        """True if all its topics are terminated and everything was delivered."""
        return self._inner.reached_end_of_topic

    @property
    def queued(self) -> int:
        """Messages that wait to be received."""
        return self._inner.queued

    def stats(self) -> ConsumerStats:
        """Counters of received and acknowledged messages, and the size of the queue."""
        return self._loop.call(self._inner.stats)

    def receive(self, timeout: float | timedelta | None = None, *, txn: Transaction | None = None) -> Message[T]:
        """Wait for the next message and return it; OperationTimeout after `timeout` (seconds or a timedelta).

        With `txn` it joins the transaction: the commit acknowledges it, after an abort it comes again. Waiting opens no
        transaction and starts no clock. `acknowledge(message, txn=txn)` inside the transaction is not needed, but
        allowed; `negative_acknowledge(message)` takes it out of the transaction and asks for redelivery,
        `leave_out(message)` takes it out and leaves it to the program. Any other acknowledgement of it raises
        TransactionStateError or TransactionConflict.

        Raises AlreadyClosed, or the error that ended the consumer; with `txn` also TransactionStateError and
        TransactionTimedOut, when the transaction has ended.
        """
        return self._receiving.receive(timeout, inner(txn))

    def receive_many(
        self, max_messages: int = 500, *, max_wait: float | timedelta | None = None, txn: Transaction | None = None
    ) -> list[Message[T]]:
        """Return up to `max_messages`, after waiting for so many, at most `max_wait` seconds.

        The list is empty when no message came in time. Without `max_wait` it waits for one message, and returns all that
        are there. With `txn` they join the transaction. Raises as `receive`.
        """
        return self._receiving.receive_many(max_messages, max_wait, inner(txn))

    def receive_nowait(self, max_messages: int = 500, *, txn: Transaction | None = None) -> list[Message[T]]:
        """Return up to `max_messages` queued messages without waiting; may be empty. Arguments and errors as `receive`."""
        return self._receiving.receive_nowait(max_messages, inner(txn))

    def messages(self, *, txn: Transaction | None = None) -> Iterator[Message[T]]:
        """Messages one after the other, until the consumer is closed: `for message in consumer.messages(txn=txn)`.

        With `txn` each joins the transaction, as with `receive`.
        """
        while True:
            try:
                message = self.receive(txn=txn)
            except AlreadyClosed:
                return
            yield message

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message[T]:
        """The next message."""
        try:
            return self.receive()
        except AlreadyClosed:
            raise StopIteration from None

    def acknowledge(
        self, message: Acknowledged | Sequence[Acknowledged], *, txn: Transaction | None = NOT_SAID, receipt: bool | None = None
    ) -> None:
        """Acknowledge a message, an id, or many of them. It has no effect for topics that no longer match a pattern.

        Outside a transaction acknowledgements are collected for `ack_group_delay` and this returns at once; with `receipt`
        (or the consumer's `ack_receipt`) they leave now, and this returns when the broker has answered. In a transaction
        they are always answered, and take effect when it commits.

        Raises the broker's error, ConnectionLost, OperationTimeout; TransactionStateError for a message that has joined a
        transaction, when `txn` is left out; with `txn` TransactionConflict when a message is acknowledged in an open
        transaction already or has joined another one, TransactionStateError, and other TransactionErrors;
        InvalidConfiguration for an id that does not say the size of its batch, when it is not known here.

        What nobody has to wait for (no transaction, no receipt) is left to the client's thread, and this returns at once.
        """
        self._receiving.acknowledge(message, inner(txn), receipt)

    def acknowledge_cumulative(
        self, message: Acknowledged, *, txn: Transaction | None = NOT_SAID, receipt: bool | None = None
    ) -> None:
        """Acknowledge everything of this message's partition up to and with it. As `acknowledge`.

        Raises InvalidConfiguration on Shared and Key_Shared subscriptions, where there is no order.
        """
        self._receiving.acknowledge_cumulative(message, inner(txn), receipt)

    def negative_acknowledge(self, message: Acknowledged, *, delay: float | timedelta | None = None) -> None:
        """Ask for redelivery of a message after `delay`; for an id without a batch index, of all messages of its entry.

        The default is the consumer's `negative_ack_delay`, or the delay of its `negative_ack_backoff` for this delivery.
        A message that has joined a transaction leaves it.

        On Exclusive and Failover every unacknowledged message comes again, because their order is kept.
        Raises TransactionStateError when the message is acknowledged in an open transaction.
        """
        self._loop.call(lambda: self._inner.negative_acknowledge(message, delay=delay))

    def reconsume_later(
        self,
        message: Message[T],
        *,
        delay: float | timedelta = 0.0,
        properties: Mapping[str, str] | None = None,
        txn: Transaction | None = NOT_SAID,
    ) -> None:
        """Postpone a message: send it to the retry topic, from which it comes again after `delay`, and acknowledge it here.

        `properties` are added to it. A message that was postponed `max_redeliver_count` times goes to the dead-letter topic.
        In a transaction both happen or neither; without one a crash between the two leaves it twice. Needs a
        `dead_letter_policy` with `retry`, else InvalidConfiguration. Raises as `Producer.send` and `acknowledge`.
        """
        self._loop.run(lambda: self._inner.reconsume_later(message, delay=delay, properties=properties, txn=inner(txn)))

    def give_back(self, messages: Sequence[Message[T]]) -> None:
        """Ask for immediate redelivery of messages that were received here, to any consumer of the subscription.

        On Exclusive and Failover every unacknowledged message of their partitions comes again, in order. Messages
        that have joined a transaction leave it; those that are acknowledged in an open one stay with it. No effect after
        the consumer was closed, because unacknowledged messages then come again anyway.
        """
        self._loop.call(lambda: self._inner.give_back(messages))

    def leave_out(self, message: Message[T] | Sequence[Message[T]]) -> None:
        """Take messages out of the transaction that they joined: its commit does not acknowledge them, its abort leaves them.

        The program acknowledges them itself, as if it had received them without `txn`. No effect for messages that are
        acknowledged in the transaction already, or are in none.
        """
        self._loop.call(lambda: self._inner.leave_out(message))

    def redeliver_unacknowledged(self) -> None:
        """Ask for redelivery of all unacknowledged messages that were received here; the queue starts over.

        Messages that have joined a transaction stay with it.
        """
        self._loop.call(self._inner.redeliver_unacknowledged)

    def transactional_batch(
        self,
        max_messages: int = 500,
        max_wait: float | timedelta | None = 0.2,
        timeout: float | timedelta = 30.0,
        *,
        name: str | None = None,
        eager: bool = False,
        ambient: bool = False,
    ) -> TransactionalBatchBlock[T]:
        """A block with a batch of messages that are acknowledged in one transaction, `batch.txn`, when it is left.

        `max_messages` and `max_wait` (seconds) as `receive_many`; the batch may be empty. `timeout` and `name` as
        `client.transaction()`, and so is `ambient`; the transaction opens with the first operation in it, with `eager` on
        entering.
        Leaving the block normally acknowledges every message and commits; any exception aborts, and the messages come
        again. Raises the errors of receiving and of managed blocks; see `pulsar_txn.client.receive.batch`.
        """
        return TransactionalBatchBlock[T](
            self._loop,
            self._loop.call(
                lambda: self._inner.transactional_batch(
                    max_messages, max_wait, timeout, name=name, eager=eager, ambient=ambient
                )
            ),
        )

    def seek(self, target: MessageId | datetime | int, *, inclusive: bool = False) -> None:
        """Move the subscription to a message, or to the first message published at a time (datetime or milliseconds).

        The next message is the one after `target`, or `target` itself with `inclusive`. Of several partitions only those
        moved by `EARLIEST_ID`, `LATEST_ID` or a time move together; an id moves its own. Raises the broker's error,
        ConnectionLost, OperationTimeout.
        Messages that have joined a transaction leave it.
        """
        self._loop.run(lambda: self._inner.seek(target, inclusive=inclusive))

    def get_last_message_id(self) -> MessageId:
        """The id of the last message that can be read now (committed, not aborted); of the newest partition's end.

        `ledger_id` and `entry_id` are -1 for an empty topic. Raises the broker's error, ConnectionLost, OperationTimeout.
        """
        return self._loop.run(self._inner.get_last_message_id)

    def get_last_message_ids(self) -> dict[str, MessageId]:
        """By topic partition, as `get_last_message_id`."""
        return self._loop.run(self._inner.get_last_message_ids)

    def committed(self, *, require_stable: bool = True) -> dict[str, CommittedPosition]:
        """The place of the subscription for good, by topic partition, as Kafka's `committed` and its `require_stable`.

        Raises PositionUnstable, with the transaction's id, while an open transaction holds acknowledgements of one of them;
        with `require_stable=False` the position is told that the subscription has if that transaction aborts. A commit that was
        answered always counts. Acknowledgements outside transactions count when they are answered.

        A stock broker does not know `require_stable` (NotAllowedError) and tells no transactions. Raises also the broker's
        error, ConnectionLost, OperationTimeout.
        """
        return self._loop.run(lambda: self._inner.committed(require_stable=require_stable))

    def has_message_available(self) -> bool:
        """True if `receive` would find a stored message at this moment.

        Raises as `get_last_message_id`.
        """
        return self._loop.run(self._inner.has_message_available)

    def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription and close. Raises ConsumerBusy or a similar error when others use it, unless `force`."""
        self._loop.run(lambda: self._inner.unsubscribe(force=force))

    def close(self) -> None:
        """Send waiting acknowledgements and close; receivers that wait get AlreadyClosed. Idempotent.

        A transaction that has received messages here cannot commit any more.
        """
        self._loop.run(self._inner.close)

    def __enter__(self) -> Self:
        """Enter the block."""
        self._loop.run(self._inner.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the block."""
        self.close()


class TransactionalBatch(GenericBlocking[AsyncTransactionalBatch[T], T], Sequence[Message[T]]):
    """The messages, in the order in which they were received, and `txn`, the transaction that acknowledges them."""

    def __init__(self, loop: SyncLoop, inner_object: AsyncTransactionalBatch[T]) -> None:
        super().__init__(loop, inner_object)
        self.messages = inner_object.messages
        self.txn = Transaction(loop, inner_object.txn)
        self.consumer: Consumer[T] = Consumer(loop, inner_object.consumer)

    def redeliver(self) -> None:
        """Ask for redelivery of the messages, after a commit whose outcome was unknown and turned out as aborted."""
        self._loop.call(self._inner.redeliver)

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Message[T]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Message[T]]: ...

    def __getitem__(self, index: int | slice) -> Message[T] | Sequence[Message[T]]:
        return self.messages[index]


class TransactionalBatchBlock(GenericBlocking[AsyncTransactionalBatchBlock[T], T]):
    """Context manager that `consumer.transactional_batch()` returns, used once."""

    def __init__(self, loop: SyncLoop, inner_object: AsyncTransactionalBatchBlock[T]) -> None:
        super().__init__(loop, inner_object)
        self._around = Surroundings()

    def __enter__(self) -> TransactionalBatch[T]:
        """Receive, then open the transaction when `eager`. Raises as `receive_many` and `client.transaction()`."""
        batch = self._loop.run(self._inner.__aenter__)
        self._around.enter(unit_of(batch.txn), joins=self._inner.ambient)
        return TransactionalBatch(self._loop, batch)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        """Acknowledge and commit, or abort; see the module's table."""
        self._around.leave()
        return self._loop.run(lambda: self._inner.__aexit__(kind, error, traceback))


class Reader(GenericBlocking[AsyncReader[T], T]):
    """Reads committed messages. Made by `Client.create_reader`; a context manager and an iterator."""

    def __init__(self, loop: SyncLoop, inner_object: AsyncReader[T]) -> None:
        super().__init__(loop, inner_object)
        self._reading = Reading(loop, inner_object)

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._inner.topic

    @property
    def is_connected(self) -> bool:
        """True while all partitions are connected."""
        return self._inner.is_connected

    def read_next(self, timeout: float | timedelta | None = None) -> Message[T]:
        """Wait for the next message and return it; OperationTimeout after `timeout`, seconds or a timedelta."""
        return self._reading.read_next(timeout)

    def read_many(self, max_messages: int = 500, *, max_wait: float | timedelta | None = None) -> list[Message[T]]:
        """Several messages, as `Consumer.receive_many`."""
        return self._reading.read_many(max_messages, max_wait)

    def has_message_available(self) -> bool:
        """True if `read_next` would find a message that is stored and committed at this moment.

        Raises the broker's error, ConnectionLost, OperationTimeout.
        """
        return self._loop.run(self._inner.has_message_available)

    def get_last_message_id(self) -> MessageId:
        """As `Consumer.get_last_message_id`."""
        return self._loop.run(self._inner.get_last_message_id)

    def get_last_message_ids(self) -> dict[str, MessageId]:
        """By topic partition, as `get_last_message_id`."""
        return self._loop.run(self._inner.get_last_message_ids)

    def seek(self, target: MessageId | datetime | int, *, inclusive: bool = False) -> None:
        """Go to a message or a time; as `Consumer.seek`."""
        self._loop.run(lambda: self._inner.seek(target, inclusive=inclusive))

    def close(self) -> None:
        """Close; idempotent."""
        self._loop.run(self._inner.close)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message[T]:
        """The next message."""
        try:
            return self.read_next()
        except AlreadyClosed:
            raise StopIteration from None

    def __enter__(self) -> Self:
        """Enter the block."""
        self._loop.run(self._inner.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the block."""
        self.close()


class ConsistentReader(GenericBlocking[AsyncConsistentReader[T], T]):
    """Reads topics so that no transaction is seen in part. Made by `Client.consistent_reader`; a context manager."""

    @property
    def topics(self) -> list[str]:
        """The full names of the partitions (and of the topics without partitions) that it reads."""
        return self._inner.topics

    @property
    def position(self) -> CutPosition:
        """The place after the last cut that was handed out; where the reader began, before the first one."""
        return self._inner.position

    def next_cut(self, timeout: float | timedelta | None = None, *, max_messages: int = 1000) -> Cut[T]:
        """Wait for the next cut and return it; OperationTimeout after `timeout`, seconds or a timedelta.

        It has about `max_messages` messages at most; more when transactions hang together.
        Raises AlreadyClosed; CutTooLarge, MessagesMissing and whatever else ends the reading, again at each call.
        """
        return self._loop.run(lambda: self._inner.next_cut(timeout, max_messages=max_messages))

    def messages(self) -> Iterator[Message[T]]:
        """All messages, one after another, until the reader is closed; `position` is after the whole cut of the last one."""
        while True:
            try:
                cut = self.next_cut()
            except AlreadyClosed:
                return
            yield from cut.messages

    def close(self) -> None:
        """Close; idempotent."""
        self._loop.run(self._inner.close)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Cut[T]:
        """The next message."""
        try:
            return self.next_cut()
        except AlreadyClosed:
            raise StopIteration from None

    def __enter__(self) -> Self:
        """Enter the block."""
        self._loop.run(self._inner.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the block."""
        self.close()


class TableView(GenericBlocking[AsyncTableView[T], T]):
    """Key and newest value of a topic's committed messages. Made by `Client.create_table_view`; a context manager."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._inner.topic

    @property
    def size(self) -> int:
        """The number of keys that have a value."""
        return self._inner.size

    def __len__(self) -> int:
        return self._loop.call(self._inner.__len__)

    def get(self, key: str) -> T | None:
        """The newest value of a key; None without one."""
        return self._loop.call(lambda: self._inner.get(key))

    def keys(self) -> list[str]:
        """The keys that have a value at this moment."""
        return self._loop.call(self._inner.keys)

    def snapshot(self) -> dict[str, T]:
        """All keys and values at this moment, as a new dict."""
        return self._loop.call(self._inner.snapshot)

    def for_each(self, action: Action[T]) -> None:
        """Call `action(key, value)` for every key by now, one after another; what it raises is raised here."""
        for key, value in self.snapshot().items():
            action(key, value)

    def for_each_and_listen(self, action: Action[T]) -> None:
        """As `for_each`, and then, as long as the view is open, for every change, in order; value None: the key has gone.

        The view waits while `action` is busy. Its exceptions on changes are logged.
        """
        heard = functools.partial(self._loop.callbacks.hear, action)
        self._loop.run(lambda: self._inner.for_each_and_listen(heard))

    def refresh(self, timeout: float | timedelta = 30.0) -> None:
        """Wait until everything that is stored and committed at this moment is here; OperationTimeout after `timeout`.

        Raises the broker's error, ConnectionLost, and what ended the reading.
        """
        self._loop.run(lambda: self._inner.refresh(timeout))

    def close(self) -> None:
        """Stop reading; idempotent."""
        self._loop.run(self._inner.close)

    def __enter__(self) -> Self:
        """Enter the block."""
        self._loop.run(self._inner.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the block."""
        self.close()


class Coordinator(Blocking[AsyncCoordinator]):
    """The coordinator of `pulsar-txn coordinator`, shared by clients of several clusters. Use it with `with`."""

    def __init__(
        self,
        service_url: str,
        *,
        operation_timeout: float | timedelta = 30.0,
        connection_timeout: float | timedelta = 10.0,
        keep_alive_interval: float | timedelta = 30.0,
        initial_backoff: float | timedelta = 0.1,
        max_backoff: float | timedelta = 5.0,
        authentication: Authentication | None = None,
        tls_context: ssl.SSLContext | None = None,
        tls_trust_certs_file: str | Path | None = None,
        tls_certificate_file: str | Path | None = None,
        tls_key_file: str | Path | None = None,
        tls_validate_hostname: bool = True,
        tls_allow_insecure_connection: bool = False,
        description: str = "",
        transactional_id: str | None = None,
        one_transaction_at_a_time: bool = False,
        runtime: Runtime | None = None,
        **unknown: Never,
    ) -> None:
        """Arguments as those of `AsyncCoordinator`; raises InvalidConfiguration.

        Its thread starts with the first use, also by a client that shares it, and works for all of them.
        """
        loop, coordinator = coordinator_on_loop(locals())
        super().__init__(loop, coordinator)
        self._lifetime = LoopLifetime(loop, coordinator)

    @property
    def service_url(self) -> str:
        """The address of the coordinator."""
        return self._inner.service_url

    def close(self) -> None:
        """Abort the open transactions, and leave the coordinator. Idempotent.

        Calls of observers, interceptors and callbacks that are due are waited for as well. KeyboardInterrupt ends the waiting:
        it is closed at once, and KeyboardInterrupt is raised. No effect in a forked child.
        """
        self._lifetime.close()

    def __enter__(self) -> Self:
        """Enter the block."""
        self._lifetime.check_open()
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the block."""
        self.close()

    def transaction(
        self,
        *,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        name: str | None = None,
        commit_timeout: float | timedelta | None = None,
        force_abort: bool = False,
        ambient: bool = False,
        eager: bool = False,
        check_group: str | None = None,
        check_data: bytes | None = None,
        check_after: float | timedelta | None = None,
        abort_on_disconnect: bool = False,
        visible: bool = True,
    ) -> ManagedTransaction:
        """A managed block: `with client.transaction() as txn: …` commits at its end, and aborts on an exception.

        The first operation in it that needs its id opens it, and starts its clock: a send, an acknowledgement. With
        `eager` it is open when the block is entered. `timeout`: seconds (or a timedelta) after which the coordinator
        aborts it. `commit_timeout`: the budget of the commit (default: the operation timeout). `name` is for logs and
        statistics. `force_abort`: a dry run that ends with an abort. `ambient`: operations without `txn=` inside the
        block take part, in this thread; blocks and loops inside it are units of their own.

        `check_group`: when the transaction is still open `check_after` seconds after it began (default: the coordinator's
        setting, 6 s), its coordinator asks a member of this group for the outcome, and hands it `check_data` (at most 64
        KiB); see `join_check_group`. `abort_on_disconnect`: the coordinator aborts it as soon as the connection breaks over
        which it was begun. `visible=False`: leaving the block waits for the decision, and not until readers see it. The
        first operation raises FeatureUnsupported where the coordinator lacks one of these.

        Single use. `pulsar_txn.client.txn.managed` describes the exits of the block. Raises InvalidConfiguration; entering
        it raises TransactionStateError when the client has one transaction at a time and that has not ended.
        """
        return ManagedTransaction(
            self._loop,
            self._loop.call(
                lambda: self._inner.transaction(
                    timeout=timeout,
                    name=name,
                    commit_timeout=commit_timeout,
                    force_abort=force_abort,
                    ambient=ambient,
                    eager=eager,
                    check_group=check_group,
                    check_data=check_data,
                    check_after=check_after,
                    abort_on_disconnect=abort_on_disconnect,
                    visible=visible,
                )
            ),
        )

    def begin_transaction(
        self,
        *,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        name: str | None = None,
        commit_timeout: float | timedelta | None = None,
        force_abort: bool = False,
        eager: bool = True,
        check_group: str | None = None,
        check_data: bytes | None = None,
        check_after: float | timedelta | None = None,
        abort_on_disconnect: bool = False,
    ) -> Transaction:
        """Begin a transaction that the caller ends with `commit()` or `abort()`. Arguments as `transaction`.

        When this returns, the transaction has an id (for `attach_transaction`), and its clock runs. Without `eager` the
        first operation in it opens it, as in a block. A request whose answer is lost is repeated; a coordinator that knows
        back-checks then gives the transaction that it has opened already.
        Raises FeatureUnsupported, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout, BrokerError,
        AlreadyClosed, InvalidConfiguration, and TransactionStateError when the client has one transaction at a time and that
        has not ended.
        """
        return Transaction(
            self._loop,
            self._loop.run(
                lambda: self._inner.begin_transaction(
                    timeout=timeout,
                    name=name,
                    commit_timeout=commit_timeout,
                    force_abort=force_abort,
                    eager=eager,
                    check_group=check_group,
                    check_data=check_data,
                    check_after=check_after,
                    abort_on_disconnect=abort_on_disconnect,
                )
            ),
        )

    def attach_transaction(self, txn_id: TxnId | str) -> Transaction:
        """Make a handle of a transaction that was begun elsewhere, from its id or the id's text `(most,least)`. Sends nothing.

        `commit()` and `abort()` end it, and operations can join it. `resolve()` asks by committing, so use it only after a
        commit was sent, or when the transaction cannot be open any longer: it commits an open one. Raises
        InvalidConfiguration when the text is not an id.
        """
        return Transaction(self._loop, self._loop.call(lambda: self._inner.attach_transaction(txn_id)))

    def attach_prepared(self, token: PreparedToken | str | bytes) -> Transaction:
        """Make a handle of a prepared transaction, from the token of `txn.prepare()` or its text.

        `commit()` and `abort()` end it, from any process, and may be repeated. Whether the transaction has ended already,
        and how, is what they say: the other one of the two raises then. Connects to the coordinators.
        Raises InvalidConfiguration for what is no token, FeatureUnsupported where coordinators know no prepared transactions,
        TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout.
        """
        return Transaction(self._loop, self._loop.run(lambda: self._inner.attach_prepared(token)))

    def join_check_group(
        self,
        group: str,
        check: Callable[[CheckQuestion], LocalOutcome],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        check_timeout: float | timedelta = DEFAULT_CHECK_TIMEOUT,
        on_decided: Callable[[CheckDecision], object] | None = None,
    ) -> CheckGroup:
        """Become a member of a check group: coordinators ask `check(question)` about transactions of the group.

        It is called with a `CheckQuestion` when such a transaction stays open, whoever has begun it, and returns a
        `LocalOutcome`: COMMIT and ROLLBACK end the transaction, UNKNOWN has it asked again later. At most `concurrency`
        questions are asked at the same time; an exception is logged and means UNKNOWN. Give what it waits for a timeout.
        What takes longer than `check_timeout` (seconds or a timedelta) means UNKNOWN too.

        `on_decided(decision)` is called with a `CheckDecision` when the coordinator has aborted, committed or parked a
        transaction of the group, and neither its client nor the group has said so: one member hears of each.
        Exceptions of it are logged.
        A decision while no member lives is told to the next one, unless the coordinator was started again in between.

        Only members with the same role (principal) as who began a transaction are asked about it. Membership is kept up over
        reconnects, and at coordinators that are added, until it is closed or the client is. Returns when one coordinator has
        taken the client in, and the others have, or two seconds have passed; the rest follows in the background.

        Raises InvalidConfiguration (also for a second membership of this client in one group), FeatureUnsupported,
        AuthorizationError, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout, AlreadyClosed.

        `check` runs in threads of its own, `concurrency` at a time, so it may block. One that takes longer than
        `check_timeout` goes on in its thread, beside the others; what it returns then is the answer to the next question about
        its transaction.
        """
        join = functools.partial(self._inner.join_check_group, group, threaded(check))
        heard = threaded_hearing(on_decided)
        return CheckGroup(
            self._loop,
            self._loop.run(lambda: join(concurrency=concurrency, check_timeout=check_timeout, on_decided=heard)),
        )

    def take_over(self) -> int:
        """End what the predecessors with this client's transactional id have left open, and fence them; returns the epoch.

        When this returns, each of their transactions is committed at all its topics and subscriptions, or aborted; prepared
        ones stay as they are. A participant that cannot be reached is waited for up to the operation timeout. Without this
        call, the first transaction does it. Without effect when this client has taken over before.
        Raises InvalidConfiguration without a transactional id, TransactionalIdUnsupported, TransactionFenced when a successor
        has taken over since, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout.
        Source: Kafka's InitProducerId.
        """
        return self._loop.run(self._inner.take_over)

    def describe_transactional_id(self, transactional_id: str, *, owner: str | None = None) -> TransactionalIdInfo | None:
        """Describe a transactional id: its newest epoch, and what its instances have open, prepared or ending.

        Asks the coordinators, and changes nothing; this client needs no transactional id itself. None when nothing is known:
        no instance has come with the id, or it was unused for seven days, or another role has it. A client sees the ids of
        its own role. `owner` is the role that has the id, for operators (`superUserRoles`); an empty text means an id that
        came without authentication. Of more than 1,000 transactions the oldest are shown, with the count of all.

        Raises FeatureUnsupported where the coordinators cannot tell (stock Pulsar), AuthorizationError for another's `owner`,
        InvalidConfiguration, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout, AlreadyClosed.
        Source: Kafka's DescribeTransactions; DESCRIBE_TRANSACTIONAL_ID is ours.
        """
        return self._loop.run(lambda: self._inner.describe_transactional_id(transactional_id, owner=owner))

    def run_transaction(
        self,
        work: Callable[[Transaction], T],
        *,
        attempts: int = DEFAULT_ATTEMPTS,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        name: str | None = None,
        backoff: Pauses | None = None,
        retry_unknown: bool = False,
        ambient: bool = False,
    ) -> T:
        """Run `work(txn)` in a transaction, and again in a new one when the abort was not the fault of `work`.

        Tried again, up to `attempts` times: TransactionAborted and its kinds (conflict, timeout, a failed operation),
        unless an operation failed for a permanent reason (`fatal`, or a UsageError). `backoff(n)` is the pause
        in seconds after the n-th attempt; without it pauses grow within the client's bounds. With `retry_unknown`, also
        CommitOutcomeUnknown, when the coordinator cannot say that it committed: only for work that may happen twice.
        `ambient` as for `transaction`.
        Any other exception aborts and is raised as it is.
        Returns what `work` returned; None after a rollback.

        `work` runs in the thread that calls.
        """
        pauses = backoff or growing_pauses(self._inner)
        left = Attempts(attempts, retry_unknown=retry_unknown, pauses=pauses)
        block = functools.partial(self.transaction, timeout=timeout, name=name, ambient=ambient)
        return run_transaction(self._loop, block, work, left)

    def add_observer(self, observer: object) -> None:
        """Report every transaction to an object that has some of the methods of `TransactionObserver`."""
        self._lifetime.observe(self._inner.add_observer, observer, functools.partial(Transaction, self._loop))

    def remove_observer(self, observer: object) -> None:
        """Stop reporting to an observer."""
        self._lifetime.observe(self._inner.remove_observer, observer, functools.partial(Transaction, self._loop))

    def transactions(self) -> tuple[Transaction, ...]:
        """The transactions of this client that have not ended, oldest first by their ids."""
        return tuple(Transaction(self._loop, each) for each in self._loop.call(self._inner.transactions))


class Client(Blocking[AsyncClient]):
    """A Pulsar client for threads; `with Client("pulsar://localhost:6650") as client: …` closes it."""

    def __init__(
        self,
        service_url: str | AutoClusterFailover,
        *,
        operation_timeout: float | timedelta = 30.0,
        connection_timeout: float | timedelta = 10.0,
        keep_alive_interval: float | timedelta = 30.0,
        initial_backoff: float | timedelta = 0.1,
        max_backoff: float | timedelta = 5.0,
        authentication: Authentication | None = None,
        tls_context: ssl.SSLContext | None = None,
        tls_trust_certs_file: str | Path | None = None,
        tls_certificate_file: str | Path | None = None,
        tls_key_file: str | Path | None = None,
        tls_validate_hostname: bool = True,
        tls_allow_insecure_connection: bool = False,
        listener_name: str | None = None,
        max_lookup_redirects: int = 20,
        memory_limit: int = 0,
        description: str = "",
        sni_proxy_url: str | None = None,
        transactions: bool = True,
        transactional_id: str | None = None,
        fencing: str | None = None,
        coordinator: str | Coordinator | None = None,
        cluster: str = "",
        one_transaction_at_a_time: bool = False,
        runtime: Runtime | None = None,
        **unknown: Never,
    ) -> None:
        """Arguments as those of `AsyncClient`; raises InvalidConfiguration. Its thread starts with the first use.

        So a client that was made before a fork works in the child where it is used first.
        """
        loop, client = client_on_loop(locals())
        super().__init__(loop, client)
        self._lifetime = LoopLifetime(loop, client)
        self._factory = ResourceFactory(loop, client)

    @property
    def service_url(self) -> str:
        """The service URL of the cluster in use."""
        return self._inner.service_url

    @overload
    def create_producer(
        self, topic: str, *, schema: None = None, **options: Unpack[ProducerOptionsDict]
    ) -> Producer[bytes]: ...

    @overload
    def create_producer(self, topic: str, *, schema: Schema[T], **options: Unpack[ProducerOptionsDict]) -> Producer[T]: ...

    def create_producer(
        self, topic: str, *, schema: Schema[Any] | None = None, **options: Unpack[ProducerOptionsDict]
    ) -> Producer[Any]:
        """Create a producer for a topic or for all partitions of a partitioned one.

        `options` are the fields of `ProducerOptions`; editors and type checkers know them.
        Raises InvalidTopicName, InvalidConfiguration, AlreadyClosed, the broker's BrokerError (ProducerBusy, TopicNotFound,
        …), ProducerFenced, ConnectionLost or OperationTimeout.
        """
        return Producer(self._loop, *self._factory.producer(topic, schema, {**options}))

    @overload
    def transactional_producer(
        self,
        topic: str,
        *,
        group: str | None = None,
        check: Callable[[CheckQuestion], LocalOutcome] | CheckGroup,
        check_after: float | timedelta | None = None,
        timeout: float | timedelta = HALF_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
        check_timeout: float | timedelta = DEFAULT_CHECK_TIMEOUT,
        on_decided: Callable[[CheckDecision], object] | None = None,
        prepare: bool = False,
        schema: None = None,
        **options: Unpack[ProducerOptionsDict],
    ) -> TransactionalProducer[bytes]: ...

    @overload
    def transactional_producer(
        self,
        topic: str,
        *,
        group: str | None = None,
        check: Callable[[CheckQuestion], LocalOutcome] | CheckGroup,
        check_after: float | timedelta | None = None,
        timeout: float | timedelta = HALF_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
        check_timeout: float | timedelta = DEFAULT_CHECK_TIMEOUT,
        on_decided: Callable[[CheckDecision], object] | None = None,
        prepare: bool = False,
        schema: Schema[T],
        **options: Unpack[ProducerOptionsDict],
    ) -> TransactionalProducer[T]: ...

    def transactional_producer(
        self,
        topic: str,
        *,
        group: str | None = None,
        check: Callable[[CheckQuestion], LocalOutcome] | CheckGroup,
        check_after: float | timedelta | None = None,
        timeout: float | timedelta = HALF_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
        check_timeout: float | timedelta = DEFAULT_CHECK_TIMEOUT,
        on_decided: Callable[[CheckDecision], object] | None = None,
        prepare: bool = False,
        schema: Schema[Any] | None = None,
        **options: Unpack[ProducerOptionsDict],
    ) -> TransactionalProducer[Any]:
        """Create a producer of half messages, which become visible together with work of the program's own.

        `check` answers for the members of `group`, as in `join_check_group`, with `concurrency` questions at a time. For
        several producers in one group, give each of them what `join_check_group` returned as `check`, without a group. All
        members of a group must be able to answer for each other. `check_after`: seconds or a timedelta before the first
        question about a transaction (default: the coordinator's setting, 6 s). `timeout` ends a transaction with an abort when
        no member of the group lives for so long; while one lives, it is asked. After the last question (15) the transaction is
        parked for an operator, unless the coordinator has another policy. `check_timeout` and `on_decided` are those of
        `join_check_group`. With `prepare`, neither ends it: each transaction is prepared before `execute`, which takes a
        request more, and its group is asked for ever; see `txn.prepare()`. Other arguments as for `create_producer`.

        Raises as `create_producer` and `join_check_group`.
        """
        heard = threaded_hearing(on_decided)
        parts = transactional_over(
            self._loop,
            self._inner,
            lambda asked: HalfTerms(group, asked, check_after, timeout, concurrency, prepare, check_timeout, heard),
            check,
            lambda: self.create_producer(topic, schema=schema, **options),
        )
        return TransactionalProducer(self._loop, *parts)

    @overload
    def subscribe(
        self,
        topic: str | Sequence[str] | Pattern[str],
        subscription: str,
        *,
        schema: None = None,
        **options: Unpack[ConsumerOptionsDict],
    ) -> Consumer[bytes]: ...

    @overload
    def subscribe(
        self,
        topic: str | Sequence[str] | Pattern[str],
        subscription: str,
        *,
        schema: Schema[T],
        **options: Unpack[ConsumerOptionsDict],
    ) -> Consumer[T]: ...

    def subscribe(
        self,
        topic: str | Sequence[str] | Pattern[str],
        subscription: str,
        *,
        schema: Schema[Any] | None = None,
        **options: Unpack[ConsumerOptionsDict],
    ) -> Consumer[Any]:
        """Subscribe to a topic, all partitions of a partitioned one, several topics (each once), or those that match a pattern.

        A compiled regular expression (`re.compile(r"tenant/namespace/orders-.*")`) means the topics of that namespace
        with a matching name. New ones are found every `pattern_discovery_period` seconds, and immediately if the broker reports
        them (stock Pulsar does), new partitions every `auto_update_partitions` seconds; both are received from their beginning.

        `options` are the fields of `ConsumerOptions`. Raises InvalidTopicName, InvalidConfiguration, AlreadyClosed, the
        broker's BrokerError (ConsumerBusy, …), ConnectionLost or OperationTimeout.
        """
        blocking: Callable[[Any], Consumer[Any]] = functools.partial(Consumer, self._loop)
        return self._factory.consumer(topic, subscription, schema, {**options}, blocking)

    @overload
    def create_reader(
        self,
        topic: str,
        start: MessageId | datetime = EARLIEST_ID,
        *,
        start_inclusive: bool = False,
        reader_name: str | None = None,
        schema: None = None,
        **options: Unpack[ReaderOptionsDict],
    ) -> Reader[bytes]: ...

    @overload
    def create_reader(
        self,
        topic: str,
        start: MessageId | datetime = EARLIEST_ID,
        *,
        start_inclusive: bool = False,
        reader_name: str | None = None,
        schema: Schema[T],
        **options: Unpack[ReaderOptionsDict],
    ) -> Reader[T]: ...

    def create_reader(
        self,
        topic: str,
        start: MessageId | datetime = EARLIEST_ID,
        *,
        start_inclusive: bool = False,
        reader_name: str | None = None,
        schema: Schema[Any] | None = None,
        **options: Unpack[ReaderOptionsDict],
    ) -> Reader[Any]:
        """Create a reader that begins after message `start` (at it with `start_inclusive`), or at a time.

        `EARLIEST_ID` and `LATEST_ID` are the ends of the topic. `options` are fields of `ConsumerOptions`, as far as they mean
        something without a subscription: `receiver_queue_size`, `receiver_queue_bytes`, `read_compacted`, `properties`,
        `crypto_keys`, `crypto_failure_action`, `interceptors`, `auto_update_partitions`, those of messages in chunks.
        Raises as `subscribe`.
        """
        given = {**options} | {"schema": schema}
        given |= {"start_inclusive": start_inclusive, "reader_name": reader_name}
        return Reader(self._loop, self._factory.reader(topic, start, given))

    @overload
    def create_table_view(
        self, topic: str, *, schema: None = None, **options: Unpack[ReaderOptionsDict]
    ) -> TableView[bytes]: ...

    @overload
    def create_table_view(self, topic: str, *, schema: Schema[T], **options: Unpack[ReaderOptionsDict]) -> TableView[T]: ...

    def create_table_view(
        self, topic: str, *, schema: Schema[Any] | None = None, **options: Unpack[ReaderOptionsDict]
    ) -> TableView[Any]:
        """Create a view of the newest value of every key; returns after everything in the topic has been read.

        `options` as `create_reader`. Raises as `subscribe`.
        """
        return TableView(self._loop, self._factory.table_view(topic, schema, {**options}))

    @overload
    def consistent_reader(
        self,
        topics: str | Sequence[str],
        start: MessageId | CutPosition = EARLIEST_ID,
        *,
        max_ahead: int = 500000,
        max_cut_messages: int = 100000,
        max_cut_bytes: int = 256 * 1024 * 1024,
        check_interval: float | timedelta = 0.1,
        schema: None = None,
        **options: Unpack[ReaderOptionsDict],
    ) -> ConsistentReader[bytes]: ...

    @overload
    def consistent_reader(
        self,
        topics: str | Sequence[str],
        start: MessageId | CutPosition = EARLIEST_ID,
        *,
        max_ahead: int = 500000,
        max_cut_messages: int = 100000,
        max_cut_bytes: int = 256 * 1024 * 1024,
        check_interval: float | timedelta = 0.1,
        schema: Schema[T],
        **options: Unpack[ReaderOptionsDict],
    ) -> ConsistentReader[T]: ...

    def consistent_reader(
        self,
        topics: str | Sequence[str],
        start: MessageId | CutPosition = EARLIEST_ID,
        *,
        max_ahead: int = 500000,
        max_cut_messages: int = 100000,
        max_cut_bytes: int = 256 * 1024 * 1024,
        check_interval: float | timedelta = 0.1,
        schema: Schema[Any] | None = None,
        **options: Unpack[ReaderOptionsDict],
    ) -> ConsistentReader[Any]:
        """Read several topics with all their partitions so that no transaction is seen in part.

        `start` is the beginning of the topics (`EARLIEST_ID`), their end (`LATEST_ID`: of what is written after that, without
        transactions that had written before), or the position of a cut (`Cut.position`), which goes on after it.

        The reader looks ahead of what it hands out: at most `max_ahead` runs of messages (neighbours of one transaction in one
        partition), each of about 500 bytes of memory. Transactions that hang together may have `max_cut_messages` and
        `max_cut_bytes`, as they are stored. CutTooLarge is raised for more. While transactions are incomplete, each partition
        is asked every `check_interval` seconds; less often where there are more than ten, or when nothing moves.

        `options` are those of `create_reader`, without `read_compacted` and `auto_update_partitions`. Raises as `subscribe`.
        See the page on consistent reading.
        """
        given = {**options} | {"schema": schema, "max_ahead": max_ahead}
        given |= {"max_cut_messages": max_cut_messages, "max_cut_bytes": max_cut_bytes}
        given |= {"check_interval": check_interval}
        return ConsistentReader(self._loop, self._factory.consistent_reader(topics, start, given))

    def pipeline(
        self,
        consumer: Consumer[T],
        handler: Callable[[TransactionalBatch[T]], object],
        *,
        stop: Stop | None = None,
        observer: Callable[[PipelineEvent], object] | None = None,
        **options: Unpack[PipelineOptionsDict],
    ) -> PipelineResult:
        """Consume, process, produce, until `stop` is set: `handler(batch)` in one transaction per batch.

        The handler sends with `txn=batch.txn`, or with `ambient` without it; every message of the batch is acknowledged in
        the same transaction.
        Batches hold up to `max_messages` (500), waited for up to `max_wait` seconds (0.2); `timeout` (30 s) is each
        transaction's.
        `concurrency` lanes (1) work at once, and keep the order of a partition (Exclusive, Failover) or key (Key_Shared).
        A message that has failed alone `max_aborts` times (3) is poison: `on_poison` says what happens to it (a dead letter);
        `dead_letter_topic` is `<topic>-<subscription>-DLQ` by default, and its subscription `initial_subscription`
        (`dead-letters`) keeps the letters. When the first ten messages of the run all fail, the last one's error is raised,
        whatever `on_poison` says. `observer` is called with each event.

        Returns the counts after `stop` is set and the messages taken are finished. Raises errors that no retry can repair
        (`fatal` errors, UsageError, AlreadyClosed), the handler's error of a poison message with `Poison.RAISE`, and
        CommitOutcomeUnknown when no coordinator can say whether a batch was committed. See `pulsar_txn.client.loop.pipeline`.

        `stop` is a `threading.Event`, or anything else that has `is_set()`. The handler is a plain function: it is called in
        this thread, with `concurrency` also in as many threads less one beside it. Messages, receipts and keep-alive go on
        meanwhile. The observer is called on the client's thread for callbacks. KeyboardInterrupt ends the pipeline at once,
        wherever it is.
        """
        if not isinstance(consumer, Consumer):
            raise refused("consumer", consumer, "a consumer of this client")
        chosen = options_of(PipelineOptions, options, "pipeline")
        told = None if observer is None else functools.partial(self._loop.callbacks.tell, observer)
        run = functools.partial(self._inner.pipeline, inner(consumer), observer=told, **options)
        batch = functools.partial(TransactionalBatch, self._loop)
        return run_pipeline(self._loop, run, handler, batch, stop, chosen.concurrency, ambient=chosen.ambient)

    def stats(self) -> ClientStats:
        """A frozen picture of the client: connections, producers, consumers, transactions."""
        return self._loop.call(self._inner.stats)

    def add_interceptors(self, *interceptors: ProducerInterceptor | ConsumerInterceptor) -> None:
        """Add interceptors to all producers and consumers that are created from now on, before those of their options.

        Readers and table views have those of their options only. Raises InvalidConfiguration for an object that is not an
        interceptor.
        """
        self._factory.interceptors.add(interceptors)

    def get_topic_partitions(self, topic: str) -> list[str]:
        """The full names of a topic's partitions; the topic itself when it has none. Raises as `create_producer`."""
        return self._loop.run(lambda: self._inner.get_topic_partitions(topic))

    def close(self) -> None:
        """Abort the open transactions, then close producers, consumers, readers and connections. Idempotent.

        Commits under way and the aborts have two seconds; after that the coordinators end the transactions at their
        timeout. Waiting messages are sent; the client waits for receipts, at most `operation_timeout`.

        Transactions of an `Coordinator` that clients share stay open: those belong to it.

        Calls of observers, interceptors and callbacks that are due are waited for as well. KeyboardInterrupt ends the waiting:
        it is closed at once, and KeyboardInterrupt is raised. No effect in a forked child.
        """
        self._lifetime.close()

    def __enter__(self) -> Self:
        """Enter the block."""
        self._lifetime.check_open()
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the block."""
        self.close()

    def transaction(
        self,
        *,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        name: str | None = None,
        commit_timeout: float | timedelta | None = None,
        force_abort: bool = False,
        ambient: bool = False,
        eager: bool = False,
        check_group: str | None = None,
        check_data: bytes | None = None,
        check_after: float | timedelta | None = None,
        abort_on_disconnect: bool = False,
        visible: bool = True,
    ) -> ManagedTransaction:
        """A managed block: `with client.transaction() as txn: …` commits at its end, and aborts on an exception.

        The first operation in it that needs its id opens it, and starts its clock: a send, an acknowledgement. With
        `eager` it is open when the block is entered. `timeout`: seconds (or a timedelta) after which the coordinator
        aborts it. `commit_timeout`: the budget of the commit (default: the operation timeout). `name` is for logs and
        statistics. `force_abort`: a dry run that ends with an abort. `ambient`: operations without `txn=` inside the
        block take part, in this thread; blocks and loops inside it are units of their own.

        `check_group`: when the transaction is still open `check_after` seconds after it began (default: the coordinator's
        setting, 6 s), its coordinator asks a member of this group for the outcome, and hands it `check_data` (at most 64
        KiB); see `join_check_group`. `abort_on_disconnect`: the coordinator aborts it as soon as the connection breaks over
        which it was begun. `visible=False`: leaving the block waits for the decision, and not until readers see it. The
        first operation raises FeatureUnsupported where the coordinator lacks one of these.

        Single use. `pulsar_txn.client.txn.managed` describes the exits of the block. Raises InvalidConfiguration; entering
        it raises TransactionStateError when the client has one transaction at a time and that has not ended.
        """
        return ManagedTransaction(
            self._loop,
            self._loop.call(
                lambda: self._inner.transaction(
                    timeout=timeout,
                    name=name,
                    commit_timeout=commit_timeout,
                    force_abort=force_abort,
                    ambient=ambient,
                    eager=eager,
                    check_group=check_group,
                    check_data=check_data,
                    check_after=check_after,
                    abort_on_disconnect=abort_on_disconnect,
                    visible=visible,
                )
            ),
        )

    def begin_transaction(
        self,
        *,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        name: str | None = None,
        commit_timeout: float | timedelta | None = None,
        force_abort: bool = False,
        eager: bool = True,
        check_group: str | None = None,
        check_data: bytes | None = None,
        check_after: float | timedelta | None = None,
        abort_on_disconnect: bool = False,
    ) -> Transaction:
        """Begin a transaction that the caller ends with `commit()` or `abort()`. Arguments as `transaction`.

        When this returns, the transaction has an id (for `attach_transaction`), and its clock runs. Without `eager` the
        first operation in it opens it, as in a block. A request whose answer is lost is repeated; a coordinator that knows
        back-checks then gives the transaction that it has opened already.
        Raises FeatureUnsupported, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout, BrokerError,
        AlreadyClosed, InvalidConfiguration, and TransactionStateError when the client has one transaction at a time and that
        has not ended.
        """
        return Transaction(
            self._loop,
            self._loop.run(
                lambda: self._inner.begin_transaction(
                    timeout=timeout,
                    name=name,
                    commit_timeout=commit_timeout,
                    force_abort=force_abort,
                    eager=eager,
                    check_group=check_group,
                    check_data=check_data,
                    check_after=check_after,
                    abort_on_disconnect=abort_on_disconnect,
                )
            ),
        )

    def attach_transaction(self, txn_id: TxnId | str) -> Transaction:
        """Make a handle of a transaction that was begun elsewhere, from its id or the id's text `(most,least)`. Sends nothing.

        `commit()` and `abort()` end it, and operations can join it. `resolve()` asks by committing, so use it only after a
        commit was sent, or when the transaction cannot be open any longer: it commits an open one. Raises
        InvalidConfiguration when the text is not an id.
        """
        return Transaction(self._loop, self._loop.call(lambda: self._inner.attach_transaction(txn_id)))

    def attach_prepared(self, token: PreparedToken | str | bytes) -> Transaction:
        """Make a handle of a prepared transaction, from the token of `txn.prepare()` or its text.

        `commit()` and `abort()` end it, from any process, and may be repeated. Whether the transaction has ended already,
        and how, is what they say: the other one of the two raises then. Connects to the coordinators.
        Raises InvalidConfiguration for what is no token, FeatureUnsupported where coordinators know no prepared transactions,
        TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout.
        """
        return Transaction(self._loop, self._loop.run(lambda: self._inner.attach_prepared(token)))

    def join_check_group(
        self,
        group: str,
        check: Callable[[CheckQuestion], LocalOutcome],
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        check_timeout: float | timedelta = DEFAULT_CHECK_TIMEOUT,
        on_decided: Callable[[CheckDecision], object] | None = None,
    ) -> CheckGroup:
        """Become a member of a check group: coordinators ask `check(question)` about transactions of the group.

        It is called with a `CheckQuestion` when such a transaction stays open, whoever has begun it, and returns a
        `LocalOutcome`: COMMIT and ROLLBACK end the transaction, UNKNOWN has it asked again later. At most `concurrency`
        questions are asked at the same time; an exception is logged and means UNKNOWN. Give what it waits for a timeout.
        What takes longer than `check_timeout` (seconds or a timedelta) means UNKNOWN too.

        `on_decided(decision)` is called with a `CheckDecision` when the coordinator has aborted, committed or parked a
        transaction of the group, and neither its client nor the group has said so: one member hears of each.
        Exceptions of it are logged.
        A decision while no member lives is told to the next one, unless the coordinator was started again in between.

        Only members with the same role (principal) as who began a transaction are asked about it. Membership is kept up over
        reconnects, and at coordinators that are added, until it is closed or the client is. Returns when one coordinator has
        taken the client in, and the others have, or two seconds have passed; the rest follows in the background.

        Raises InvalidConfiguration (also for a second membership of this client in one group), FeatureUnsupported,
        AuthorizationError, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout, AlreadyClosed.

        `check` runs in threads of its own, `concurrency` at a time, so it may block. One that takes longer than
        `check_timeout` goes on in its thread, beside the others; what it returns then is the answer to the next question about
        its transaction.
        """
        join = functools.partial(self._inner.join_check_group, group, threaded(check))
        heard = threaded_hearing(on_decided)
        return CheckGroup(
            self._loop,
            self._loop.run(lambda: join(concurrency=concurrency, check_timeout=check_timeout, on_decided=heard)),
        )

    def take_over(self) -> int:
        """End what the predecessors with this client's transactional id have left open, and fence them; returns the epoch.

        When this returns, each of their transactions is committed at all its topics and subscriptions, or aborted; prepared
        ones stay as they are. A participant that cannot be reached is waited for up to the operation timeout. Without this
        call, the first transaction does it. Without effect when this client has taken over before.
        Raises InvalidConfiguration without a transactional id, TransactionalIdUnsupported, TransactionFenced when a successor
        has taken over since, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout.
        Source: Kafka's InitProducerId.
        """
        return self._loop.run(self._inner.take_over)

    def describe_transactional_id(self, transactional_id: str, *, owner: str | None = None) -> TransactionalIdInfo | None:
        """Describe a transactional id: its newest epoch, and what its instances have open, prepared or ending.

        Asks the coordinators, and changes nothing; this client needs no transactional id itself. None when nothing is known:
        no instance has come with the id, or it was unused for seven days, or another role has it. A client sees the ids of
        its own role. `owner` is the role that has the id, for operators (`superUserRoles`); an empty text means an id that
        came without authentication. Of more than 1,000 transactions the oldest are shown, with the count of all.

        Raises FeatureUnsupported where the coordinators cannot tell (stock Pulsar), AuthorizationError for another's `owner`,
        InvalidConfiguration, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout, AlreadyClosed.
        Source: Kafka's DescribeTransactions; DESCRIBE_TRANSACTIONAL_ID is ours.
        """
        return self._loop.run(lambda: self._inner.describe_transactional_id(transactional_id, owner=owner))

    def run_transaction(
        self,
        work: Callable[[Transaction], T],
        *,
        attempts: int = DEFAULT_ATTEMPTS,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        name: str | None = None,
        backoff: Pauses | None = None,
        retry_unknown: bool = False,
        ambient: bool = False,
    ) -> T:
        """Run `work(txn)` in a transaction, and again in a new one when the abort was not the fault of `work`.

        Tried again, up to `attempts` times: TransactionAborted and its kinds (conflict, timeout, a failed operation),
        unless an operation failed for a permanent reason (`fatal`, or a UsageError). `backoff(n)` is the pause
        in seconds after the n-th attempt; without it pauses grow within the client's bounds. With `retry_unknown`, also
        CommitOutcomeUnknown, when the coordinator cannot say that it committed: only for work that may happen twice.
        `ambient` as for `transaction`.
        Any other exception aborts and is raised as it is.
        Returns what `work` returned; None after a rollback.

        `work` runs in the thread that calls.
        """
        pauses = backoff or growing_pauses(self._inner)
        left = Attempts(attempts, retry_unknown=retry_unknown, pauses=pauses)
        block = functools.partial(self.transaction, timeout=timeout, name=name, ambient=ambient)
        return run_transaction(self._loop, block, work, left)

    def add_observer(self, observer: object) -> None:
        """Report every transaction to an object that has some of the methods of `TransactionObserver`."""
        self._lifetime.observe(self._inner.add_observer, observer, functools.partial(Transaction, self._loop))

    def remove_observer(self, observer: object) -> None:
        """Stop reporting to an observer."""
        self._lifetime.observe(self._inner.remove_observer, observer, functools.partial(Transaction, self._loop))

    def transactions(self) -> tuple[Transaction, ...]:
        """The transactions of this client that have not ended, oldest first by their ids."""
        return tuple(Transaction(self._loop, each) for each in self._loop.call(self._inner.transactions))


__all__ = [
    "CheckGroup",
    "Client",
    "ConsistentReader",
    "Consumer",
    "Coordinator",
    "ManagedTransaction",
    "Producer",
    "Reader",
    "TableView",
    "Transaction",
    "TransactionalBatch",
    "TransactionalBatchBlock",
    "TransactionalProducer",
]
