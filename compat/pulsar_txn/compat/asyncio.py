"""`pulsar.asyncio` of the official package: `import pulsar_txn.compat.asyncio as pulsar_asyncio`, and the program runs.

Same names, arguments and defaults. Sends and acknowledgements take `txn=`, with what `client.transaction()` gives.
Exceptions are those of `compat`, so `except pulsar.Timeout` catches them too, and have `error()`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pulsar_txn.client import client as ours
from pulsar_txn.client.receive import consumer as asyncio_consumer
from pulsar_txn.client.receive import reader as asyncio_reader
from pulsar_txn.client.send import producer as asyncio_producer
from pulsar_txn.compat import client as threads
from pulsar_txn.compat._arguments import check, dead
from pulsar_txn.compat._logging import forward
from pulsar_txn.compat._outgoing import outgoing
from pulsar_txn.compat.asyncio_transactions import ManagedTransaction, Transaction, with_official_errors
from pulsar_txn.compat.consumer import acknowledged, target_of
from pulsar_txn.compat.enums import (
    BatchingType,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    RegexSubscriptionMode,
)
from pulsar_txn.compat.exceptions import BY_NAME, PulsarException, mapped, mapped_async
from pulsar_txn.compat.ids import MessageId
from pulsar_txn.compat.messages import Message, Outgoing
from pulsar_txn.compat.options import client_options, consumer_options, producer_options
from pulsar_txn.compat.policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    CryptoKeyReader,
)
from pulsar_txn.compat.schema import BytesSchema, Schema

__all__ = ["Client", "Consumer", "Producer", "PulsarException", "Reader"]

_BYTES = BytesSchema()


class Producer:
    """Sends values to a topic. Made by `Client.create_producer`."""

    def __init__(
        self,
        inner: asyncio_producer.AsyncProducer[Any],
        schema: Schema,
        initial: int | None,
        router: Callable[[Any, int], int] | None,
    ) -> None:
        self._inner = inner
        self._schema = schema
        self._initial_sequence_id = -1 if initial is None else initial
        self._router = router

    @mapped_async
    async def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Transaction | None = None,
    ) -> MessageId:
        """Send one value and wait for its receipt; None is a tombstone. If cancelled, it may be sent all the same."""
        payload, options = outgoing(
            self._schema,
            content,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            bool(disable_replication),
            event_timestamp,
            deliver_at,
            deliver_after,
        )
        if self._router is not None and self._inner.partitions:
            options["partition"] = int(self._router(Outgoing(payload or b"", options), self._inner.partitions))
        return MessageId.wrap(await self._inner.send(payload, txn=txn, **options), self._inner.topic)

    @mapped_async
    async def flush(self) -> None:
        """Wait until everything sent before has its receipt, or failed."""
        await self._inner.flush()

    @mapped_async
    async def close(self) -> None:
        """Wait for what is in flight, and close; idempotent."""
        await self._inner.close()

    def topic(self) -> str:
        """The topic's full name."""
        return self._inner.topic

    def producer_name(self) -> str:
        """The name given, or the broker's choice."""
        return self._inner.producer_name

    def last_sequence_id(self) -> int:
        """The highest sequence id that has a receipt; before the first the initial one, else -1."""
        return max(self._inner.last_sequence_id, self._initial_sequence_id)

    def is_connected(self) -> bool:
        """Whether all partitions are connected at this moment."""
        return self._inner.is_connected


class Consumer:
    """A subscription's consumer. Made by `Client.subscribe`."""

    def __init__(self, inner: asyncio_consumer.AsyncConsumer[Any], schema: Schema, *, seek_inclusive: bool) -> None:
        self._inner = inner
        self._schema = schema
        self._seek_inclusive = seek_inclusive

    @mapped_async
    async def receive(self) -> Message:
        """The next message, waiting for it. If cancelled, no message is lost."""
        return Message(await self._inner.receive(), self._schema)

    @mapped_async
    async def acknowledge(
        self, message: Message | MessageId | list[Message | MessageId], *, txn: Transaction | None = None
    ) -> None:
        """Acknowledge a message or an id, or a list of them."""
        those = [acknowledged(each) for each in message] if isinstance(message, list) else acknowledged(message)
        await self._inner.acknowledge(those, txn=txn)

    @mapped_async
    async def acknowledge_cumulative(self, message: Message | MessageId, *, txn: Transaction | None = None) -> None:
        """Acknowledge everything of its partition up to and with it."""
        if not self._inner.consumer_type.is_single:
            raise BY_NAME["CumulativeAcknowledgementNotAllowedError"](
                f"there is no order on a {self._inner.consumer_type.name} subscription"
            )
        await self._inner.acknowledge_cumulative(acknowledged(message), txn=txn)

    @mapped_async
    async def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have it delivered again after the consumer's delay."""
        self._inner.negative_acknowledge(acknowledged(message))

    @mapped
    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything delivered again that is not acknowledged."""
        self._inner.redeliver_unacknowledged()

    @mapped_async
    async def seek(self, messageid: MessageId | int) -> None:
        """Go behind a message (to it with `start_message_id_inclusive`), or to a time in milliseconds since the epoch."""
        await self._inner.seek(target_of(messageid), inclusive=self._seek_inclusive)

    @mapped_async
    async def get_last_message_id(self) -> MessageId:
        """The id of the last message that can be read now."""
        return MessageId.wrap(await self._inner.get_last_message_id(), self._inner.topic)

    @mapped_async
    async def unsubscribe(self) -> None:
        """Delete the subscription and close."""
        await self._inner.unsubscribe()

    @mapped_async
    async def close(self) -> None:
        """Close; idempotent."""
        await self._inner.close()

    def topic(self) -> str:
        """The topic's full name; of the first one when there are several."""
        return self._inner.topic

    def subscription_name(self) -> str:
        """The subscription."""
        return self._inner.subscription

    def consumer_name(self) -> str:
        """The name given, or one that was made up."""
        return self._inner.consumer_name


class Reader:
    """Reads a topic from a place of its choice. Made by `Client.create_reader`."""

    def __init__(self, inner: asyncio_reader.AsyncReader[Any], schema: Schema, *, seek_inclusive: bool) -> None:
        self._inner = inner
        self._schema = schema
        self._seek_inclusive = seek_inclusive

    @mapped_async
    async def read_next(self) -> Message:
        """The next message, waiting for it. If cancelled, no message is lost."""
        return Message(await self._inner.read_next(), self._schema)

    @mapped_async
    async def has_message_available(self) -> bool:
        """Whether `read_next` would find a message that is stored at this moment."""
        return await self._inner.has_message_available()

    @mapped_async
    async def seek(self, messageid: MessageId | int) -> None:
        """As `Consumer.seek`."""
        await self._inner.seek(target_of(messageid), inclusive=self._seek_inclusive)

    @mapped_async
    async def close(self) -> None:
        """Close; idempotent."""
        await self._inner.close()

    def topic(self) -> str:
        """The topic's full name."""
        return self._inner.topic

    def is_connected(self) -> bool:
        """Whether all partitions are connected at this moment."""
        return self._inner.is_connected


class Client:
    """A client for one cluster; arguments as `compat.Client`. Use it in the loop that made it."""

    def __init__(self, service_url: Any, **kwargs: Any) -> None:
        bound = inspect.signature(threads.Client.__init__).bind(None, service_url, **kwargs)
        bound.apply_defaults()
        options = client_options(bound.arguments)
        self._stop_forwarding = forward(bound.arguments["logger"])
        self._inner = ours.AsyncClient(**options)
        self._shutting_down: asyncio.Task[None] | None = None

    @mapped_async
    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema | None = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = True,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: dict[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: CryptoKeyReader | None = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Callable[[Any, int], int] | None = None,
    ) -> Producer:
        """Create a producer; arguments as `compat.Client.create_producer`, with batches on."""
        given = locals()
        chosen = _schema_of(topic, schema)
        inner = await self._inner.create_producer(topic, schema=chosen.native(), **producer_options(given))
        return Producer(inner, chosen, initial_sequence_id, message_router)

    @mapped_async
    async def subscribe(
        self,
        topic: str | list[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: CryptoKeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        is_pattern_topic: bool = False,
    ) -> Consumer:
        """Subscribe; arguments as `compat.Client.subscribe`. With `is_pattern_topic` the topic is a regular expression."""
        check(str, subscription_name, "subscription_name")
        chosen = _schema_of("" if isinstance(topic, list) else topic, schema)
        wanted = re.compile(topic) if is_pattern_topic and isinstance(topic, str) else topic
        given = locals() | {"topic": wanted, "pattern_auto_discovery_period": 60}
        inner = await self._inner.subscribe(wanted, subscription_name, schema=chosen.native(), **consumer_options(given))
        return Consumer(inner, chosen, seek_inclusive=start_message_id_inclusive)

    @mapped_async
    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Schema | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: CryptoKeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    ) -> Reader:
        """Create a reader behind a message (at it with `start_message_id_inclusive`)."""
        check(MessageId, start_message_id, "start_message_id")
        check(int, receiver_queue_size, "receiver_queue_size")
        dead("subscription_role_prefix", subscription_role_prefix, None, "the reader's subscription has a name of its own")
        chosen = _schema_of(topic, schema)
        given = {"crypto_key_reader": crypto_key_reader, "crypto_failure_action": crypto_failure_action}
        inner = await self._inner.create_reader(
            topic,
            start_message_id._id,  # noqa: SLF001 - its other half
            schema=chosen.native(),
            start_inclusive=start_message_id_inclusive,
            reader_name=reader_name,
            receiver_queue_size=max(1, receiver_queue_size),
            read_compacted=is_read_compacted,
            **consumer_options(given),
        )
        return Reader(inner, chosen, seek_inclusive=start_message_id_inclusive)

    @mapped_async
    async def get_topic_partitions(self, topic: str) -> list[str]:
        """The full names of a topic's partitions; the topic itself when it has none."""
        check(str, topic, "topic")
        return await self._inner.get_topic_partitions(topic)

    @mapped
    def transaction(self, **options: Any) -> ManagedTransaction:
        """A managed block, as `pulsar_txn.client.Client.transaction`; give what it yields as `txn=`."""
        return ManagedTransaction(self._inner.transaction(**options))

    @mapped_async
    async def begin_transaction(self, **options: Any) -> Transaction:
        """A transaction that the caller ends, as `pulsar_txn.client.Client.begin_transaction`."""
        return with_official_errors(await self._inner.begin_transaction(**options))

    @mapped_async
    async def close(self) -> None:
        """Close everything; idempotent."""
        await self._inner.close()
        self._stop_forwarding()

    def shutdown(self) -> None:
        """Begin to close everything; does not wait."""
        self._shutting_down = asyncio.get_running_loop().create_task(self.close())


def _schema_of(topic: Any, schema: Schema | None) -> Schema:
    check(str, topic, "topic")
    chosen = _BYTES if schema is None else schema
    check(Schema, chosen, "schema")
    return chosen
