"""Non-persistent topics: messages go to the consumers that are connected and have permits, or nowhere. No transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from pulsar_txn.broker.base.limits import LimitReached
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.catalog.policies import TopicRules
from pulsar_txn.broker.dispatch.consumers import Consumer, by_priority
from pulsar_txn.ledger.hosting import Answer
from pulsar_txn.wire.entries import is_encrypted, read_header, verify_checksum
from pulsar_txn.wire.errors import ChecksumMismatch, Refusal, ServerError, WireError
from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import EARLIEST, AckKey, Position, TxnId
from pulsar_txn.wire.topics import TopicName

from .producers import Producer, ProducerSet
from .subscription import EXCLUSIVE, FAILOVER


class _Subscription:
    def __init__(self, topic: TopicName, name: str, most: int) -> None:
        self.name = name
        self._topic = topic
        self._most = most
        self.kind = EXCLUSIVE
        self.mark_delete: Position = EARLIEST  # nothing is stored
        self.consumers: list[Consumer] = []
        self._next = 0

    def add(self, consumer: Consumer, kind: int, *, sticky: bool = False) -> None:
        if self.consumers and (kind != self.kind or kind == EXCLUSIVE):
            raise Refusal(ServerError.ConsumerBusy, f"subscription {self.name!r} has other consumers")
        if self._most and len(self.consumers) >= self._most:
            raise Refusal(ServerError.ConsumerBusy, f"subscription {self.name!r} has {self._most} consumers, as many as it may")
        self.kind = kind
        self.consumers = by_priority([*self.consumers, consumer])
        consumer.join(self)
        self._tell_active()

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._tell_active()

    def backlog(self) -> int:
        return 0

    def room_changed(self) -> None:
        """Do nothing: what comes next is offered to it."""

    def redeliver(self, consumer: Consumer, positions: Iterator[Position] | None) -> None:
        """Do nothing: nothing is kept."""

    def _tell_active(self) -> None:
        if self.kind == FAILOVER:
            for place, consumer in enumerate(self.consumers):
                consumer.owner.active_changed(consumer, place == 0)

    def deliver(self, data: bytes, messages: int) -> None:
        candidates = self.consumers[:1] if self.kind in {EXCLUSIVE, FAILOVER} else self.consumers
        for step in range(len(candidates)):
            consumer = candidates[(self._next + step) % len(candidates)]
            if consumer.can_take(0):
                self._next += step + 1
                consumer.take(messages)
                consumer.send((0, 0), data, None, 0, 0)
                return

    def acknowledge(self, consumer: Consumer, ids: Sequence[AckId], answer: Answer | None, *, cumulative: bool) -> None:
        if answer is not None:
            answer(None, None, "")

    def acknowledge_in(
        self,
        consumer: Consumer,
        txn_id: TxnId,
        ids: Sequence[AckId],
        answer: Answer,
        *,
        cumulative: bool,
        key: AckKey | None = None,
    ) -> None:
        text = f"{self._topic} is not persistent: acknowledge outside transaction {txn_id}"
        answer(None, ServerError.NotAllowedError, text)

    def disconnect_all(self) -> None:
        consumers, self.consumers = self.consumers, []
        for consumer in consumers:
            consumer.owner.consumer_closed(consumer)


class _Epochs:
    """The epoch of a topic of which nothing is kept."""

    def __init__(self) -> None:
        self._newest = -1

    async def read(self) -> int:
        return self._newest

    async def write(self, epoch: int) -> None:
        self._newest = epoch


class NonPersistentTopic:
    """One non-persistent topic or partition."""

    def __init__(self, turn: Turn, name: TopicName, rules: TopicRules, config: BrokerConfig) -> None:
        self.name = name
        self.serving = True
        self.idle_sweeps = 0  # since somebody used it
        self.rules = rules
        self.subscriptions: dict[str, _Subscription] = {}
        self._max_subscriptions = config.max_subscriptions_per_topic
        self._max_consumers = config.max_consumers_per_subscription
        self._turn = turn
        self.producers = ProducerSet(
            str(name),
            config.max_producers_per_topic,
            config.max_waiting_producers_per_topic,
            _Epochs(),
        )

    def publish(
        self, producer: Producer, sequence_id: int, highest: int | None, is_chunk: bool, txn_id: TxnId | None, entry: bytes
    ) -> None:
        """Hand the message to whoever can take it. In a transaction: SEND_ERROR NotAllowedError, and the connection stays."""
        refuse = partial(producer.owner.producer_refused, producer, sequence_id)
        if txn_id is not None:
            text = f"{self.name} is not persistent and cannot take part in transaction {txn_id}; send outside of it"
            refuse(ServerError.NotAllowedError, text)
            return
        try:
            verify_checksum(entry)
            header = read_header(entry)
        except ChecksumMismatch as error:
            refuse(ServerError.ChecksumError, str(error))
            return
        except WireError as error:
            refuse(ServerError.NotAllowedError, f"not a message: {error}")
            return
        if self.rules.encryption_required and not is_encrypted(entry):
            refuse(ServerError.MetadataError, "Messages must be encrypted")
            return
        for subscription in self.subscriptions.values():
            subscription.deliver(entry, header.num_messages or 1)
        producer.owner.producer_receipt(producer, sequence_id, highest or 0, (-1, -1))

    def last_sequence_id(self, producer_name: str) -> int:
        """-1: nothing is kept, so nothing is known of any producer."""
        return -1

    def set_rules(self, rules: TopicRules) -> None:
        """The namespace's policies changed."""
        self.rules = rules
        if rules.encryption_required:
            self.producers.fence_unencrypted()

    @property
    def is_idle(self) -> bool:
        """True if nobody uses it."""
        return not self.producers.in_use and not self.subscriptions

    async def subscribe(self, name: str, *, durable: bool, initial: Position) -> _Subscription:
        """The subscription, which lives as long as its consumers."""
        limit = self._max_subscriptions
        if limit and len(self.subscriptions) >= limit and name not in self.subscriptions:
            what = f"{self.name} has {limit} subscriptions"
            raise LimitReached("maxSubscriptionsPerTopic", what, ServerError.NotAllowedError)
        return self.subscriptions.setdefault(name, _Subscription(self.name, name, self._max_consumers))

    async def unsubscribe(self, subscription: Any) -> None:
        """Forget a subscription."""
        self.subscriptions.pop(subscription.name, None)
        subscription.disconnect_all()

    def remove_consumer(self, consumer: Consumer) -> None:
        """A consumer is gone, and with the last one its subscription."""
        held = consumer.subscription
        held.remove(consumer)
        if self.subscriptions.get(held.name) is held:
            self.drop_if_unused(held.name)

    def drop_if_unused(self, name: str) -> None:
        """A subscription goes when it has no consumer."""
        subscription = self.subscriptions.get(name)
        if subscription is not None and not subscription.consumers:
            del self.subscriptions[name]

    async def last_message(self) -> tuple[Position, int]:
        """The start of the log: a topic that keeps nothing has no last message."""
        return EARLIEST, -1

    def close(self) -> None:
        """Nothing is kept. Whoever is just coming hears that it was closed."""
        self.serving = False
        self.disconnect_all()

    def disconnect_all(self) -> None:
        """Close all producers and consumers."""
        self.producers.fence_all()
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect_all()
