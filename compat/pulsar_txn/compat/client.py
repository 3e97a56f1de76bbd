"""The client and the table view with the official methods: our blocking client after official arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet

from pulsar_txn import client as ours
from pulsar_txn.client import TableView as OurTableView
from pulsar_txn.client.errors import AlreadyClosed
from pulsar_txn.client.inside import Slots, WorkerThread
from pulsar_txn.compat._arguments import check, check_optional, dead
from pulsar_txn.compat.consumer import Consumer, Reader
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
from pulsar_txn.compat.exceptions import mapped
from pulsar_txn.compat.messages import Message, MessageId
from pulsar_txn.compat.options import client_options, consumer_options, producer_options, reader_options
from pulsar_txn.compat.policies import (
    Authentication,
    AutoClusterFailover,
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    CryptoKeyReader,
    ServiceInfo,
    forward,
)
from pulsar_txn.compat.producer import Producer
from pulsar_txn.compat.schema import BytesSchema, PreEncoded, Schema
from pulsar_txn.compat.transactions import ManagedTransaction, Transaction

Callback = Callable[[str, Any], object]


class TableView:
    """The newest value of every key of a topic. Made by `Client.create_table_view`.

    Values are decoded when they are asked for. An empty payload takes its key away like a tombstone, as in the official
    client. Callbacks run one after another on a thread of their own.
    """

    def __init__(self, own: ours.Client, worker: WorkerThread, topic: str, subscription: str | None, schema: Schema) -> None:
        """Reads all that the topic holds. Raises what subscribing raises."""
        self._worker = worker
        self._topic = topic
        self._subscription = subscription
        self._schema = schema
        self._view: OurTableView[bytes] = own.create_table_view(
            topic, schema=PreEncoded(schema.schema_info()), read_compacted=True
        )
        self._left: dict[str, bytes] | None = None

    def _payloads(self) -> dict[str, bytes]:
        """Values of now, or of the moment at which the view was closed."""
        if self._left is not None:
            return self._left
        return {key: payload for key, payload in self._view.snapshot().items() if payload}

    def get(self, key: str) -> Any:
        """The newest value of a key; None without one."""
        payload = self._view.get(key) if self._left is None else self._left.get(key)
        return self._schema.decode(payload) if payload else None

    def for_each(self, callback: Callback) -> None:
        """Call `callback(key, value)` for what is there now."""
        for key, payload in self._payloads().items():
            callback(key, self._schema.decode(payload))

    @mapped
    def for_each_and_listen(self, callback: Callback) -> None:
        """Call `callback(key, value)` for what is there now, then for every change; returns after the former.

        A key that goes away is told with the value of an empty payload. An exception in a callback is logged.
        """
        told: set[str] | None = set()

        def tell(key: str, payload: bytes | None) -> None:
            if told is not None:
                if not payload and key not in told:
                    return  # an empty payload is no value of what was there before
                told.add(key)
            self._worker.submit(lambda: callback(key, self._schema.decode(payload or b"")))

        self._view.for_each_and_listen(tell)
        told = None
        self._worker.drain()

    @mapped
    def close(self) -> None:
        """Follow the topic no longer; what was read stays. Idempotent."""
        try:
            if self._left is None:
                self._left = self._payloads()
            self._view.close()
        except AlreadyClosed:
            return

    def __len__(self) -> int:
        return len(self._payloads())

    def __str__(self) -> str:
        subscription = "" if self._subscription is None else f", subscription={self._subscription}"
        return f"TableView(topic={self._topic}{subscription})"

    __repr__ = __str__


_BYTES = BytesSchema()

DRAIN_SECONDS: Final = 2.0
"""Time that closing waits for callbacks."""


class Client:
    """A client for one cluster.

    Arguments as the official client's. Different: the broker's name in its certificate is checked unless
    `tls_validate_hostname=False`; without `tls_trust_certs_file_path` the system's roots are trusted.
    """

    def __init__(
        self,
        service_url: str | AutoClusterFailover,
        authentication: Authentication | None = None,
        operation_timeout_seconds: float = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = True,
        logger: Any = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
    ) -> None:
        given = locals()
        del given["self"]
        options = client_options(given)
        told = service_url.primary if isinstance(service_url, AutoClusterFailover) else None
        told = told or ServiceInfo("", authentication, tls_trust_certs_file_path)
        self._entered = told.authentication, told.tls_trust_certs_file_path
        self._stop_forwarding = forward(logger)
        self._slots = Slots(max(1, message_listener_threads))
        self._worker = WorkerThread("pulsar-txn-callbacks")
        self._open_ones: WeakSet[Consumer | Reader] = WeakSet()
        self._views: WeakSet[TableView] = WeakSet()
        self._ours = self._open(options)

    @staticmethod
    @mapped
    def _open(options: dict[str, Any]) -> ours.Client:
        return ours.Client(**options)

    @mapped
    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Schema = _BYTES,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = False,
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
        """Create a producer. Raises the broker's errors under their official names, ValueError for a wrong type."""
        given = locals()
        del given["self"]
        options = producer_options(given)
        own = self._ours.create_producer(topic, schema=schema.native(), **options)
        blocks = max_pending_messages if block_if_queue_full else 0
        return Producer(own, schema, initial_sequence_id, message_router, self._worker, blocks)

    @mapped
    def subscribe(
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Schema = _BYTES,
        message_listener: Callable[[Consumer, Message], object] | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        pattern_auto_discovery_period: int = 60,
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
    ) -> Consumer:
        """Subscribe. Raises the broker's errors under their official names, ValueError for a wrong type."""
        given = locals()
        del given["self"]
        options = consumer_options(given)
        own = self._ours.subscribe(topic, subscription_name, schema=schema.native(), **options)
        consumer = Consumer(own, schema, batch_receive_policy, seek_inclusive=start_message_id_inclusive)
        self._open_ones.add(consumer)
        if message_listener is not None:
            consumer.listen(self._slots, message_listener)
        return consumer

    @mapped
    def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        schema: Schema = _BYTES,
        reader_listener: Callable[[Reader, Message], object] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: CryptoKeyReader | None = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
    ) -> Reader:
        """Create a reader after a message (at it with `start_message_id_inclusive`)."""
        given = locals()
        del given["self"]
        options = reader_options(given)
        own = self._ours.create_reader(topic, start_message_id.native(), schema=schema.native(), **options)
        reader = Reader(own, schema, seek_inclusive=start_message_id_inclusive)
        self._open_ones.add(reader)
        if reader_listener is not None:
            reader.listen(self._slots, reader_listener)
        return reader

    @mapped
    def create_table_view(self, topic: str, subscription_name: str | None = None, schema: Schema = _BYTES) -> TableView:
        """A view of the newest value of every key; returns when all that the topic holds has been read."""
        check(str, topic, "topic")
        check_optional(str, subscription_name, "subscription_name")
        check(Schema, schema, "schema")
        dead("subscription_name", subscription_name, None, "the view's subscription has a name of its own")
        view = TableView(self._ours, self._worker, topic, subscription_name, schema)
        self._views.add(view)
        return view

    @mapped
    def get_topic_partitions(self, topic: str) -> list[str]:
        """The full names of a topic's partitions; the topic itself when it has none."""
        check(str, topic, "topic")
        return self._ours.get_topic_partitions(topic)

    def get_service_info(self) -> ServiceInfo:
        """The address of the cluster in use, and how it is entered, as told."""
        return ServiceInfo(self._ours.service_url, *self._entered)

    # --- what the official client lacks ---------------------------------------------------------------------------

    @mapped
    def transaction(self, **options: Any) -> ManagedTransaction:
        """A managed block, as `pulsar_txn.client.Client.transaction`; give what it yields as `txn=`."""
        return ManagedTransaction(self._ours.transaction(**options))

    @mapped
    def begin_transaction(self, **options: Any) -> Transaction:
        """A transaction that the caller ends, as `pulsar_txn.client.Client.begin_transaction`."""
        return Transaction(self._ours.begin_transaction(**options))

    # --- the end ----------------------------------------------------------------------------------------------------

    @mapped
    def close(self) -> None:
        """Close everything; idempotent."""
        for view in list(self._views):
            view.close()  # what they have read stays
        try:
            self._ours.close()
        finally:
            self._end()

    def shutdown(self) -> None:
        """Close the client; see `close`."""
        self.close()

    def _end(self) -> None:
        for consumer in list(self._open_ones):
            consumer.close()
        self._worker.drain(DRAIN_SECONDS)
        self._worker.stop()
        self._stop_forwarding()
