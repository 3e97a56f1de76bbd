"""`pulsar.asyncio` of the official package: `import pulsar_txn.compat.asyncio as pulsar_asyncio`, and the program runs.

Same names, arguments and defaults. Sends and acknowledgements take `txn=`, with what `client.transaction()` gives.
Exceptions are those of `compat`, so `except pulsar.Timeout` catches them too, and have `error()`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from typing import Any

from pulsar_txn.client import AsyncClient
from pulsar_txn.compat import _consuming, _producing
from pulsar_txn.compat import client as threads
from pulsar_txn.compat._arguments import awaiting, check
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
from pulsar_txn.compat.exceptions import PulsarException, mapped
from pulsar_txn.compat.messages import Message, MessageId
from pulsar_txn.compat.options import client_options, consumer_options, producer_options, reader_options
from pulsar_txn.compat.policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    CryptoKeyReader,
    forward,
)
from pulsar_txn.compat.schema import BytesSchema, Schema
from pulsar_txn.compat.transactions import AsyncManagedTransaction, AsyncTransaction, native

__all__ = ["Client", "Consumer", "Producer", "PulsarException", "Reader"]

_BYTES = BytesSchema()


class Producer(_producing.Producing):
    """Sends values to a topic. Made by `Client.create_producer`."""

    send = awaiting(_producing.send)
    flush = awaiting(_consuming.flush)
    close = awaiting(_consuming.close)


class Consumer(_consuming.Consuming):
    """A subscription's consumer. Made by `Client.subscribe`."""

    @awaiting
    async def receive(self, *, txn: Any = None) -> Message:
        """The next message, waiting for it. If cancelled, no message is lost.

        With `txn` the message joins the transaction: its commit acknowledges the message, and its abort brings it back.
        """
        return Message(await self._ours.receive(txn=native(txn)), self._schema)

    acknowledge = awaiting(_consuming.acknowledge)
    acknowledge_cumulative = awaiting(_consuming.acknowledge_cumulative)
    negative_acknowledge = awaiting(_consuming.negative_acknowledge)
    redeliver_unacknowledged_messages = _consuming.redeliver_unacknowledged_messages
    seek = awaiting(_consuming.seek)
    get_last_message_id = awaiting(_consuming.get_last_message_id)
    unsubscribe = awaiting(_consuming.unsubscribe)
    close = awaiting(_consuming.close)


class Reader(_consuming.Receiving):
    """Reads a topic from a place of its choice. Made by `Client.create_reader`."""

    @awaiting
    async def read_next(self) -> Message:
        """The next message, waiting for it. If cancelled, no message is lost."""
        return Message(await self._ours.read_next(), self._schema)

    has_message_available = awaiting(_consuming.has_message_available)
    seek = awaiting(_consuming.seek)
    close = awaiting(_consuming.close)


class Client:
    """A client for one cluster; arguments as `compat.Client`. Use it in the loop that made it."""

    def __init__(self, service_url: Any, **kwargs: Any) -> None:
        bound = inspect.signature(threads.Client.__init__).bind(None, service_url, **kwargs)
        bound.apply_defaults()
        options = client_options(bound.arguments)
        self._stop_forwarding = forward(bound.arguments["logger"])
        self._ours = AsyncClient(**options)
        self._shutting_down: asyncio.Task[None] | None = None

    @awaiting
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
        chosen = _BYTES if schema is None else schema
        options = producer_options(locals() | {"schema": chosen})
        own = await self._ours.create_producer(topic, schema=chosen.native(), **options)
        return Producer(own, chosen, initial_sequence_id, message_router)

    @awaiting
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
        chosen = _BYTES if schema is None else schema
        wanted = re.compile(topic) if is_pattern_topic and isinstance(topic, str) else topic
        options = consumer_options(locals() | {"schema": chosen, "topic": wanted, "pattern_auto_discovery_period": 60})
        own = await self._ours.subscribe(wanted, subscription_name, schema=chosen.native(), **options)
        return Consumer(own, chosen, seek_inclusive=start_message_id_inclusive)

    @awaiting
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
        """Create a reader after a message (at it with `start_message_id_inclusive`)."""
        chosen = _BYTES if schema is None else schema
        options = reader_options(locals() | {"schema": chosen})
        own = await self._ours.create_reader(topic, start_message_id.native(), schema=chosen.native(), **options)
        return Reader(own, chosen, seek_inclusive=start_message_id_inclusive)

    @awaiting
    async def get_topic_partitions(self, topic: str) -> list[str]:
        """The full names of a topic's partitions; the topic itself when it has none."""
        check(str, topic, "topic")
        return await self._ours.get_topic_partitions(topic)

    @mapped
    def transaction(self, **options: Any) -> AsyncManagedTransaction:
        """A managed block, as `pulsar_txn.client.AsyncClient.transaction`; give what it yields as `txn=`."""
        return AsyncManagedTransaction(self._ours.transaction(**options))

    @awaiting
    async def begin_transaction(self, **options: Any) -> AsyncTransaction:
        """A transaction that the caller ends, as `pulsar_txn.client.AsyncClient.begin_transaction`."""
        return AsyncTransaction(await self._ours.begin_transaction(**options))

    @awaiting
    async def close(self) -> None:
        """Close everything; idempotent."""
        await self._ours.close()
        self._stop_forwarding()

    def shutdown(self) -> None:
        """Begin to close everything; does not wait."""
        self._shutting_down = asyncio.get_running_loop().create_task(self.close())
