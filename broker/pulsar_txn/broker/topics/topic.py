"""A topic: its log, its transaction buffer, its producers and its subscriptions.

Publishing: check the entry, refuse what must not be in a log, deduplicate, then either straight into the log or through the
buffer's machine. What a producer sent stays in its order: while one of its transactional sends waits for a verification,
its later sends wait as well, and refusals travel in the order of receipts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from pulsar_txn.broker.base.limits import MAX_BATCH_SIZE, LimitReached
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.catalog.catalog import Catalog
from pulsar_txn.broker.catalog.policies import TopicRules
from pulsar_txn.broker.dispatch.consumers import Consumer
from pulsar_txn.broker.txn.participants import RegistrationOf, Registrations
from pulsar_txn.ledger.hosting import Answer, Receipt
from pulsar_txn.ledger.machine import Reply
from pulsar_txn.ledger.protocols import Cursor, DiskFull, EntryTooLarge, LedgerError, Log, LogClosed, LogStore
from pulsar_txn.rm_producer.publishing import REPEATED
from pulsar_txn.rm_producer.requests import EndTxnOnPartition, Publish, TakeSnapshot, TopicRecord, TransactionBuffer
from pulsar_txn.wire.entries import MARKER_PRODUCER, encode_marker, is_encrypted, read_header, with_txn_id
from pulsar_txn.wire.errors import ChecksumMismatch, ServerError, WireError
from pulsar_txn.wire.ids import EARLIEST, EntryHeader, MarkerType, Participant, Position, TxnAction, TxnId
from pulsar_txn.wire.topics import MAX_SUBSCRIPTION_BYTES, TopicName

from .buffer_host import SNAPSHOT_AFTER, TOPIC, BufferHost, LogWatchers, Sequences
from .compaction import RUNNING, Compaction
from .context import PendingAckLogs, TopicContext
from .cursors import MemoryCursor
from .producers import Producer, ProducerSet
from .retention import Retention
from .subscription import Subscription

_logger = logging.getLogger(__name__)


@attrs.frozen
class TopicServices:
    """Parts of a broker that its topics use."""

    config: BrokerConfig
    turn: Turn
    catalog: Catalog
    store: LogStore
    registrations: Registrations
    pending_acks: PendingAckLogs


class StoredEpochs:
    """The epoch of a persistent topic, in the metadata."""

    def __init__(self, catalog: Catalog, name: TopicName) -> None:
        self._catalog = catalog
        self._name = name

    async def read(self) -> int:
        """See `TopicEpochs`."""
        return await self._catalog.topic_epoch(self._name)

    async def write(self, epoch: int) -> None:
        """See `TopicEpochs`."""
        await self._catalog.set_topic_epoch(self._name, epoch)


class Topic:
    """One persistent topic or partition. `open()` first.

    `on_failed` is called when its state is not to be believed: forget it; it is opened again when somebody asks.
    """

    def __init__(
        self, services: TopicServices, name: TopicName, log: Log, on_failed: Callable[[Topic, Exception], None]
    ) -> None:
        config = services.config
        self.name = name
        self.log = log
        self.config = config
        self.turn = services.turn
        self.rules = TopicRules.of(config, {})
        self.serving = False
        self.subscriptions: dict[str, Subscription] = {}
        self._arriving: dict[str, asyncio.Task[Subscription]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self.sequences = Sequences(config.broker_deduplication_max_number_of_producers)
        self.retention = Retention(log, config, self.turn.clock)
        self.idle_sweeps = 0  # since somebody used it
        self.messages_in = 0
        self.bytes_in = 0
        self._services = services
        self._on_failed = on_failed
        self._watchers = LogWatchers()
        self._watchers.add(self.retention)
        self._deduplicates = config.broker_deduplication_enabled
        self.producers = ProducerSet(
            str(name),
            config.max_producers_per_topic,
            config.max_waiting_producers_per_topic,
            StoredEpochs(services.catalog, name),
        )
        self.compaction: Compaction
        self.context: TopicContext
        self.host: BufferHost
        self.buffer: TransactionBuffer

    async def open(self, buffer: TransactionBuffer, role_logs: dict[str, Log]) -> None:
        """Recover the buffer and the subscriptions. Raises LedgerError, WireError."""
        services, deduplicates = self._services, self._deduplicates
        interval = self.config.broker_deduplication_entries_interval
        self.buffer = buffer
        self.host = BufferHost(
            buffer,
            {TOPIC: self.log, **role_logs},
            self.turn,
            self._host_failed,
            watchers=self._watchers,
            registration=RegistrationOf(services.registrations, Participant(str(self.name)), self.turn),
            sequences=self.sequences if deduplicates else None,
            snapshot_after=min(SNAPSHOT_AFTER, interval) if deduplicates else SNAPSHOT_AFTER,
        )
        self.compaction = Compaction(self.name, self.log, self.host, self.turn, services.store)
        self.context = TopicContext(
            self.name,
            self.log,
            self.host,
            self.turn,
            self.config,
            self.compaction,
            services.registrations,
            services.pending_acks,
        )
        await self.host.recover()
        try:
            await self.compaction.open()
            await self._recover_subscriptions()
        except BaseException as error:  # their logs must not stay open: the topic is opened again
            self.host.fail(error if isinstance(error, Exception) else LogClosed("the opening was cancelled"))
            for subscription in self.subscriptions.values():
                await subscription.close()
            await self.compaction.close()
            raise
        self.retention.opened(self.turn.clock.now_ms())
        self.serving = True
        self._forget(self.log.first or self.log.next_position(self.log.last_confirmed))

    async def _recover_subscriptions(self) -> None:
        async for name in self.turn.budget.each(self.log.cursor_names()):
            subscription = self._subscription(name, await self.log.open_cursor(name), durable=True)
            self.subscriptions[name] = subscription
            await subscription.recover_pending_ack()

    def _subscription(self, name: str, cursor: Cursor, *, durable: bool) -> Subscription:
        return Subscription(self.context, self._watchers, name, cursor, self.rules, self.host.fail, durable=durable)

    @property
    def deduplicates(self) -> bool:
        """True if messages that are sent again are recognised outside of transactions, too."""
        return self._deduplicates

    @property
    def is_busy(self) -> bool:
        """True if a publish, a transaction's end or an acknowledgement is not answered yet."""
        return self.host.is_busy or any(each.is_busy for each in self.subscriptions.values())

    @property
    def published(self) -> Position:
        """Return what dispatchers may read up to."""
        return self.host.published

    # ---- publishing

    def publish(
        self, producer: Producer, sequence_id: int, highest: int | None, is_chunk: bool, txn_id: TxnId | None, entry: bytes
    ) -> None:
        """A SEND. It is answered through the producer's owner, in order."""
        if producer.is_waiting:
            producer.hold((sequence_id, highest, is_chunk, txn_id, entry))
            return
        try:
            header = read_header(entry, verify=True)
        except ChecksumMismatch as error:
            self._refuse(producer, sequence_id, ServerError.ChecksumError, str(error))
            return
        except WireError as error:
            self._refuse(producer, sequence_id, ServerError.NotAllowedError, f"not a message: {error}")
            return
        if header.marker_type is not None or (header.txn_id != txn_id and header.txn_id is not None):
            text = f"the metadata names transaction {header.txn_id} and marker {header.marker_type}, the command {txn_id}"
            self._refuse(producer, sequence_id, ServerError.NotAllowedError, text)
            return
        if header.num_messages is not None and not 1 <= header.num_messages <= MAX_BATCH_SIZE:
            text = f"a batch of {header.num_messages} messages; send 1 to {MAX_BATCH_SIZE} in one"
            self._refuse(producer, sequence_id, ServerError.NotAllowedError, text)
            return
        if header.hints is not None and self.rules.is_too_late(header):
            text = f"Exceeds max allowed delivery delay of {self.rules.max_delay_ms} milliseconds"
            self._refuse(producer, sequence_id, ServerError.NotAllowedError, text)
            return
        if self.rules.encryption_required and not is_encrypted(entry):
            self._refuse(producer, sequence_id, ServerError.MetadataError, "Messages must be encrypted")
            return
        if len(header.producer_name) > MAX_SUBSCRIPTION_BYTES and (self._deduplicates or txn_id is not None):
            text = f"the producer's name has more than {MAX_SUBSCRIPTION_BYTES} characters; choose a shorter one"
            self._refuse(producer, sequence_id, ServerError.NotAllowedError, text)
            return
        if self._deduplicates and not self._is_next(producer, sequence_id, highest or 0, header, is_chunk):
            return
        self.messages_in += header.num_messages or 1
        self.bytes_in += len(entry)
        if txn_id is None:
            self._append_plain(producer, sequence_id, highest or 0, header, entry)
        else:
            self._append_in_txn(producer, sequence_id, highest or 0, header, entry, txn_id)

    def _is_next(self, producer: Producer, sequence_id: int, highest: int, header: EntryHeader, is_chunk: bool) -> bool:
        """True if deduplication lets a message pass; one that it does not is answered."""
        if self.sequences.is_duplicate(header, is_chunk=is_chunk):
            self.host.release_at_tail((Reply(partial(_answer_send, producer, sequence_id, highest), REPEATED),))
            return False
        missing = self.sequences.missing(header) if producer.refuses_gaps else None
        if missing is None:
            return True
        text = f"sequence id {header.sequence_id} of producer {header.producer_name!r} comes before {missing} was stored"
        answer = partial(_answer_send, producer, sequence_id, 0)
        self.host.release_at_tail((Reply(answer, missing, ServerError.NotAllowedError, f"{text}; send {missing} first"),))
        return False

    def _append_plain(self, producer: Producer, sequence_id: int, highest: int, header: EntryHeader, entry: bytes) -> None:
        try:
            self.host.publish_plain(entry, header, (_give_receipt, producer, sequence_id, highest))
        except (DiskFull, EntryTooLarge) as error:
            self._refuse(producer, sequence_id, ServerError.PersistenceError, str(error))
        except LedgerError as error:
            self.host.fail(error)
            producer.owner.producer_refused(producer, sequence_id, ServerError.ServiceNotReady, f"{error}; retry")

    def _append_in_txn(
        self, producer: Producer, sequence_id: int, highest: int, header: EntryHeader, entry: bytes, txn_id: TxnId
    ) -> None:
        if header.txn_id is None:  # a client that names the transaction in the command only
            try:
                entry = with_txn_id(entry, txn_id)
            except WireError as error:  # in a part of the metadata that `read_header` passes over
                self._refuse(producer, sequence_id, ServerError.NotAllowedError, f"not a message: {error}")
                return
            header = read_header(entry)
        host = self.host
        host.submit(Publish(partial(_answer_send, producer, sequence_id, highest), txn_id, TopicRecord(header, entry)))
        if txn_id in host.verifying:
            producer.wait()
            host.when_verified(txn_id, partial(self._go_on, producer))

    def _go_on(self, producer: Producer, _value: object, _error: object, _message: str) -> None:
        """The verification has ended: sends that waited for it go on in their order, until one of them waits again."""
        producer.go_on()
        while (held := producer.next_held()) is not None:
            self.publish(producer, *held)

    def _refuse(self, producer: Producer, sequence_id: int, error: ServerError, message: str) -> None:
        answer = partial(_answer_send, producer, sequence_id, 0)
        self.host.release_at_tail((Reply(answer, None, error, message),))

    def last_sequence_id(self, producer_name: str) -> int:
        """Return where a producer of this name goes on: the highest sequence id that is known of it; -1: it begins.

        Without deduplication only what it has in open transactions is known.
        """
        return max(self.sequences.last(producer_name), self.buffer.last_sequence_id(producer_name))

    # ---- policies

    def set_rules(self, rules: TopicRules) -> None:
        """The namespace's policies changed: producers that may not stay are closed, what waits for its time may go out."""
        self.rules = rules
        if rules.encryption_required:
            self.producers.fence_unencrypted()
        for subscription in self.subscriptions.values():
            subscription.set_rules(rules)

    # ---- transactions

    def end_txn(self, txn_id: TxnId, action: TxnAction, low_watermark: int, answer: Answer) -> None:
        """The coordinator tells the outcome."""
        marker = make_marker(self.turn, txn_id, action, low_watermark)
        self.host.submit(EndTxnOnPartition(answer, txn_id, action, low_watermark, marker), reserve=True)

    def make_marker(self, txn_id: TxnId, action: TxnAction, low_watermark: int = -1) -> TopicRecord:
        """The entry that ends a transaction here."""
        return make_marker(self.turn, txn_id, action, low_watermark)

    # ---- subscriptions

    async def subscribe(self, name: str, *, durable: bool, initial: Position) -> Subscription:
        """The subscription; a missing one is made with mark-delete at `initial`. A durable one is durable when this returns.

        If cancelled: a durable one is made all the same, so that its cursor never is in the log unknown to the topic.
        """
        leaving = self._leaving.get(name)
        if leaving is not None:  # its logs must be gone before there can be others of the same name
            await asyncio.wait([leaving])
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            return subscription
        limit = self.config.max_subscriptions_per_topic
        if limit and len(self.subscriptions) + len(self._arriving) >= limit and name not in self._arriving:
            what = f"{self.name} has {limit} subscriptions"
            raise LimitReached("maxSubscriptionsPerTopic", what, ServerError.NotAllowedError)
        if not durable:
            cursor = MemoryCursor(self.log, name, initial)
            return self.subscriptions.setdefault(name, self._subscription(name, cursor, durable=False))
        arriving = self._arriving.get(name)
        if arriving is None:
            arriving = self._arriving[name] = asyncio.get_running_loop().create_task(self._make_durable(name, initial))
            arriving.add_done_callback(partial(self._arrived, name))
        return await asyncio.shield(arriving)

    async def _make_durable(self, name: str, initial: Position) -> Subscription:
        cursor: Cursor = await self.log.open_cursor(name, initial=initial)
        return self.subscriptions.setdefault(name, self._subscription(name, cursor, durable=True))

    def _arrived(self, name: str, task: asyncio.Task[Subscription]) -> None:
        del self._arriving[name]
        if not task.cancelled() and task.exception() is not None:
            _logger.warning("subscription %r of %s was not created: %s", name, self.name, task.exception())

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Delete a subscription with its cursor and pending acks; durable when this returns. If cancelled: it goes on."""
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            subscription.disconnect_all()
            self._leave(subscription)
        leaving = self._leaving.get(subscription.name)
        if leaving is not None:
            await asyncio.shield(leaving)

    def _leave(self, subscription: Subscription) -> None:
        name = subscription.name
        task = self._leaving[name] = asyncio.get_running_loop().create_task(self._delete(subscription))
        task.add_done_callback(lambda _: self._leaving.pop(name, None))

    async def _delete(self, subscription: Subscription) -> None:
        await subscription.close()
        if subscription.durable:
            await self.log.delete_cursor(subscription.name)
        await self._services.pending_acks.delete(self.name, subscription.name, durable=subscription.durable)

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer is gone, and with the last one a subscription that is not durable."""
        held = consumer.subscription
        held.remove(consumer)
        if self.subscriptions.get(held.name) is held:
            self.drop_if_unused(held.name)

    def drop_if_unused(self, name: str) -> None:
        """A subscription that is not durable goes when it has no consumer."""
        subscription = self.subscriptions.get(name)
        if subscription is not None and subscription.is_unused:
            del self.subscriptions[name]
            subscription.dispatcher.close()
            if subscription.pending_ack is not None:
                self._leave(subscription)

    async def last_message(self) -> tuple[Position, int]:
        """The last entry that readers may see, and its batch size (-1: one message); EARLIEST in an empty topic."""
        return await _last_visible(self)

    # ---- care and end

    @property
    def is_idle(self) -> bool:
        """True if nobody uses the topic and nothing in it waits: it may be closed until somebody asks for it again."""
        if not self.serving or self.producers.in_use or self.is_busy or self._arriving or self._leaving:
            return False
        if self.buffer.stats().ongoing_txn_size or self.compaction.status == RUNNING:
            return False
        if not all(each.is_idle for each in self.subscriptions.values()):
            return False
        return self.retention.is_settled(self.turn.clock.now_ms(), self._acknowledged())

    def sweep(self) -> None:
        """Trim what is acknowledged and out of retention; forget readers that never came back."""
        for name in list(self.subscriptions):
            self.drop_if_unused(name)
        if self.serving and self.retention.is_due(self.turn.clock.now_ms(), self._acknowledged()):
            # What the buffer and deduplication know from the entries that go must be in a snapshot first.
            self.host.take_snapshot(TOPIC, self._trim)

    def _acknowledged(self) -> Position:
        marks = [each.cursor.mark_delete for each in self.subscriptions.values() if each.durable]
        needed_from = self.compaction.needed_from
        return min([self.published, *marks, *([] if needed_from is None else [needed_from])])

    def _trim(self, _value: object, _error: object, _message: str) -> None:
        before = self.retention.trim(self.turn.clock.now_ms(), self._acknowledged())
        if before is not None:
            self._forget(before)

    def _forget(self, before: Position) -> None:
        """The buffer forgets what was trimmed, a part in each turn of the loop."""
        if self.serving and self.buffer.topic_trimmed(before):
            self.turn.runtime.call_soon(self._forget, before)

    def _stop(self) -> None:
        """Nothing more goes out."""
        self.serving = False
        for subscription in self.subscriptions.values():
            subscription.dispatcher.close()

    def _host_failed(self, host: BufferHost, _error: None, _message: str) -> None:
        self._stop()
        if host.failure is not None:
            self._on_failed(self, host.failure)

    def disconnect_all(self) -> None:
        """Close all producers and consumers; their clients connect again."""
        self.producers.fence_all()
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect_all()

    async def close(self) -> None:
        """Take a last snapshot, make everything durable, release the logs."""
        self._stop()
        await asyncio.gather(*self._arriving.values(), *self._leaving.values(), return_exceptions=True)
        async for subscription in self.turn.budget.each(list(self.subscriptions.values())):
            await subscription.close()
        await self.compaction.close()
        if self.host.failure is None:
            try:
                self.host.submit(TakeSnapshot())
                await self.log.flush()
                await self.host.close()
            except LedgerError as error:
                _logger.warning("topic %s was not closed cleanly, its next load recovers it: %s", self.name, error)
        await asyncio.gather(*(log.close() for log in self.host.logs.values()), return_exceptions=True)


def _give_receipt(receipt: Receipt, position: Position, _message: str) -> None:
    """A plain publish is durable."""
    _, producer, sequence_id, highest = receipt
    producer.owner.producer_receipt(producer, sequence_id, highest, position)


def _answer_send(
    producer: Producer, sequence_id: int, highest: int, value: Any, error: ServerError | None, message: str
) -> None:
    if error is None:
        producer.owner.producer_receipt(producer, sequence_id, highest, value)
    else:
        producer.owner.producer_refused(producer, sequence_id, error, message, value)


def make_marker(turn: Turn, txn_id: TxnId, action: TxnAction, low_watermark: int = -1) -> TopicRecord:
    """The marker entry of a transaction's end, and its header."""
    now_ms = turn.clock.now_ms()
    kind = MarkerType.TXN_COMMIT if action is TxnAction.COMMIT else MarkerType.TXN_ABORT
    header = EntryHeader(MARKER_PRODUCER, -1, low_watermark + 1 if low_watermark >= 0 else -1, now_ms, txn_id, int(kind))
    return TopicRecord(header, encode_marker(txn_id, action, now_ms, low_watermark=low_watermark))


async def _last_visible(topic: Topic) -> tuple[Position, int]:
    """Look back from `published` in steps that double; mostly the first one finds it."""
    published, first = topic.published, topic.log.first
    step = 16
    while first is not None and published >= first:
        ledger_id, entry_id = published
        start = max(first, (ledger_id, max(entry_id - step, 0)))
        found = await _last_visible_from(topic, start, published)
        if found is not None:
            return found
        if start == first:
            break
        if entry_id <= step:
            start = first
            step = 1 << 62
        step *= 8
    return EARLIEST, -1


async def _last_visible_from(topic: Topic, start: Position, published: Position) -> tuple[Position, int] | None:
    last: tuple[Position, int] | None = None
    while start <= published:
        await topic.turn.budget.pause()
        entries = await topic.log.read(start, max_entries=256)
        if not entries:
            break
        for position, data in entries:
            header = read_header(data)
            if position <= published and not topic.buffer.is_hidden(position, header):
                last = position, header.num_messages if header.num_messages is not None else -1
        start = topic.log.next_position(entries[-1][0])
    return last
