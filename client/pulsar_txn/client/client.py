"""The asyncio client: one object per cluster and program, which makes producers, consumers and readers."""

from __future__ import annotations

import asyncio
import inspect
import re
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from re import Pattern
from typing import Any, Final, Never, Self, TypeVar, Unpack, cast, overload

from pulsar_txn.client._callables import Opened, opens
from pulsar_txn.client._options import options_of, unknown_option
from pulsar_txn.client._shared_interceptors import SharedInterceptors
from pulsar_txn.client._validation import (
    refused,
    validate_call,
    validate_methods,
    validate_schema,
    validate_subscription_name,
    validate_text,
)
from pulsar_txn.client.client_stats import ClientStats, client_stats
from pulsar_txn.client.coordinator import AsyncCoordinator, transactions_beside
from pulsar_txn.client.errors import InvalidConfiguration, InvalidTopicName
from pulsar_txn.client.loop.options import PipelineEvent, PipelineOptions, PipelineOptionsDict, PipelineResult
from pulsar_txn.client.loop.pipeline import Pipeline
from pulsar_txn.client.loop.poison import Work
from pulsar_txn.client.net.authentication import Authentication
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.failover import AutoClusterFailover
from pulsar_txn.client.net.growth import TopicPattern
from pulsar_txn.client.net.retries import count_partitions, find_schema
from pulsar_txn.client.net.runtime import AsyncioRuntime, Runtime
from pulsar_txn.client.net.settings import Settings
from pulsar_txn.client.net.tls import TlsFiles
from pulsar_txn.client.receive.consistent.position import CutPosition
from pulsar_txn.client.receive.consistent.reader import AsyncConsistentReader, Bounds, open_consistent_reader
from pulsar_txn.client.receive.consumer import AsyncConsumer, subscribed
from pulsar_txn.client.receive.interceptors import ConsumerInterceptor
from pulsar_txn.client.receive.message import EARLIEST_ID
from pulsar_txn.client.receive.options import ConsumerOptions, ConsumerOptionsDict, ReaderOptionsDict
from pulsar_txn.client.receive.reader import AsyncReader
from pulsar_txn.client.receive.table_view import AsyncTableView, ReadValues, open_table_view
from pulsar_txn.client.schema.base import BytesSchema, Schema, SchemaInfo, TopicSchema
from pulsar_txn.client.send.half_messages import HALF_TIMEOUT, AsyncTransactionalProducer, HalfMessageSender, HalfTerms
from pulsar_txn.client.send.interceptors import ProducerInterceptor
from pulsar_txn.client.send.options import AccessMode, ProducerOptions, ProducerOptionsDict
from pulsar_txn.client.send.producer import AsyncProducer, open_producer
from pulsar_txn.client.txn.check_groups import DEFAULT_CHECK_TIMEOUT, DEFAULT_CONCURRENCY, AsyncCheckGroup, Check, OnDecided
from pulsar_txn.client.txn.transactions import BeginsTransactions, Transactions, core_of, transactions_of
from pulsar_txn.wire.ids import MessageId
from pulsar_txn.wire.topics import InvalidName, TopicName

T = TypeVar("T")

CLUSTER_NAME: Final = re.compile(r"[-.\w]{1,128}", re.ASCII)

_OF_A_READER: Final = {
    "durable": "its subscription goes with it; subscribe() makes one that stays",
    "consumer_name": "give reader_name=",
    "start_message_id": "give it as start",
    "start_message_id_inclusive": "give start_inclusive=",
}
"""Options of consumers that a reader sets, and what to do instead."""


class AsyncClient(BeginsTransactions):
    """A Pulsar client for asyncio; `async with AsyncClient("pulsar://localhost:6650") as client: …` closes it.

    `service_url` names one or several hosts (`pulsar://a:6650,b:6650`), with TLS as `pulsar+ssl://`; or it is an
    `AutoClusterFailover` between clusters. Times are seconds or timedeltas.
    Nothing is connected before the first operation. An operation that meets a retriable error (a broker that is starting,
    a topic that moves) is tried again until `operation_timeout`, with pauses that grow from `initial_backoff` to
    `max_backoff`. Producers, consumers and readers that lose their broker attach again by themselves, at most `max_backoff`
    after it serves again. A single connection may take `connection_timeout`. A peer that does not answer a ping within
    `keep_alive_interval` is treated as gone. `listener_name` chooses among the addresses that brokers advertise, and
    `max_lookup_redirects` bounds how far a lookup is sent on. `transactions` has no effect: coordinators are looked up at
    first use. `runtime` is for tests: the clock, randomness and sockets.

    `memory_limit` bounds the bytes that all producers together have without a receipt (0: only each producer's own bounds
    count); at the bound `send` waits, and `send_nowait` raises MemoryBufferIsFull. `description` (at most 64 characters) is
    shown after the client's version in the broker's statistics. `sni_proxy_url`, `pulsar+ssl://proxy:4443`, is a
    proxy that all connections go to, and that finds the broker by the host name of the TLS handshake (PIP-60).

    With a `transactional_id` only the newest client that has it can continue: its first transaction aborts the open
    transactions of older ones, and those get ProducerFenced. On a broker that does not support this (stock Pulsar), the first
    transaction raises TransactionalIdUnsupported. `fencing="topic"` makes EXCLUSIVE_WITH_FENCING, which every broker
    knows, the access mode of producers. See the page on fencing.

    `coordinator`: transactions are opened and ended at a coordinator beside the cluster (`pulsar-txn coordinator`) and not by
    the brokers. Either its URL, with one or several hosts, which is connected to with this client's own authentication and
    TLS; or an `AsyncCoordinator`, which clients of several clusters share. `cluster` is the name of this client's cluster in
    the coordinator's configuration; a coordinator of one cluster does not need it.

    With `one_transaction_at_a_time` a second transaction that begins before the first has ended raises TransactionStateError,
    as Kafka's producer does; otherwise a client may have many. Prepared transactions, and those begun elsewhere, do not count.

    Use a client in the loop and process that made it. Raises InvalidConfiguration for arguments that cannot work.

    TLS checks the broker's certificate and its name. `tls_trust_certs_file` is a PEM file of authorities (the system's
    without it), `tls_certificate_file` with `tls_key_file` the certificate of this client; or give your own `tls_context`.
    `tls_validate_hostname=False` accepts any name of a trusted authority, `tls_allow_insecure_connection` any certificate.
    """

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
        coordinator: str | AsyncCoordinator | None = None,
        cluster: str = "",
        one_transaction_at_a_time: bool = False,
        runtime: Runtime | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unknown_option("Client", next(iter(unknown)), inspect.signature(AsyncClient).parameters)
        # `transactions` is accepted for readers of other clients' documentation: coordinators are looked up at first use.
        del transactions
        settings = Settings(
            operation_timeout=operation_timeout,
            connection_timeout=connection_timeout,
            keep_alive_interval=keep_alive_interval,
            initial_backoff=initial_backoff,
            max_backoff=max_backoff,
            authentication=authentication,
            tls_context=tls_context,
            tls=TlsFiles(
                trust_certs_file=tls_trust_certs_file,
                certificate_file=tls_certificate_file,
                key_file=tls_key_file,
                validate_hostname=tls_validate_hostname,
                allow_insecure_connection=tls_allow_insecure_connection,
            ),
            listener_name=listener_name,
            max_lookup_redirects=max_lookup_redirects,
            memory_limit=memory_limit,
            description=description,
            sni_proxy=sni_proxy_url,
            transactional_id=transactional_id,
            fencing=fencing,
            one_transaction_at_a_time=one_transaction_at_a_time,
        )
        if not isinstance(service_url, str | AutoClusterFailover):
            raise refused("service_url", service_url, "a URL or an AutoClusterFailover", hint="write pulsar://host:6650")
        urls = service_url.urls if isinstance(service_url, AutoClusterFailover) else (service_url,)
        if any("+ssl:" in url for url in urls):
            settings.ssl_context()  # what is wrong with its files is said here
        runtime = runtime or AsyncioRuntime()
        self._core = Core(service_url, settings, runtime, cluster=cluster, before_move=self._leave_cluster)
        self._interceptors = SharedInterceptors()
        self._transactions = self._transactions_of(coordinator, cluster, transactional_id)

    def _transactions_of(
        self, coordinator: str | AsyncCoordinator | None, cluster: str, transactional_id: str | None
    ) -> Transactions:
        """Those of the cluster's own coordinators, or of one beside it."""
        core = self._core
        if coordinator is None:
            if cluster:
                raise InvalidConfiguration("cluster= names the cluster at a coordinator", hint="also give coordinator=")
            return Transactions(core)
        check_cluster(cluster)
        if core.may_move:
            raise InvalidConfiguration(
                "with coordinator= a client cannot move between clusters: a transaction names its cluster",
                hint="give one service URL; a client of each cluster may share the coordinator",
            )
        if isinstance(coordinator, AsyncCoordinator):
            if transactional_id is not None:
                raise InvalidConfiguration("the transactional id belongs to the coordinator", hint="give it there")
            if core.settings.one_transaction_at_a_time:
                raise InvalidConfiguration("one_transaction_at_a_time belongs to the coordinator", hint="give it there")
            transactions = transactions_of(coordinator)
            self._owns_transactions = False
        else:
            transactions = transactions_beside(coordinator, core.settings, core.runtime)
        if transactions.incarnation is not None:
            transactions.incarnation.add_member(core)
        return transactions

    def _leave_cluster(self, url: str) -> None:
        self._transactions.leave_cluster(url)

    @property
    def service_url(self) -> str:
        """The service URL of the cluster in use."""
        return self._core.service_url

    def __repr__(self) -> str:
        return f"<Client {self.service_url} {'closed' if self._core.closed else 'open'}>"

    @overload
    def create_producer(
        self, topic: str, *, schema: None = None, **options: Unpack[ProducerOptionsDict]
    ) -> Opened[AsyncProducer[bytes]]: ...

    @overload
    def create_producer(
        self, topic: str, *, schema: Schema[T], **options: Unpack[ProducerOptionsDict]
    ) -> Opened[AsyncProducer[T]]: ...

    @opens
    async def create_producer(
        self, topic: str, *, schema: Schema[Any] | None = None, **options: Unpack[ProducerOptionsDict]
    ) -> AsyncProducer[Any]:
        """Create a producer for a topic or for all partitions of a partitioned one.

        `options` are the fields of `ProducerOptions`; editors and type checkers know them.
        Raises InvalidTopicName, InvalidConfiguration, AlreadyClosed, the broker's BrokerError (ProducerBusy, TopicNotFound,
        …), ProducerFenced, ConnectionLost or OperationTimeout. If cancelled, nothing remains.
        """
        self._core.check_open()
        name = parse_topic(topic)
        validate_schema(schema)
        if self._core.settings.fencing == "topic":
            options.setdefault("access_mode", AccessMode.EXCLUSIVE_WITH_FENCING)
        chosen = self._interceptors.before(options_of(ProducerOptions, options, "create_producer"))
        partitions = await count_partitions(self._core, name)
        known = await schema_of_producer(self._core, topic, schema)
        return await open_producer(self._core, name, partitions, known, chosen)

    @overload
    def transactional_producer(
        self,
        topic: str,
        *,
        group: str | None = None,
        check: Check | AsyncCheckGroup,
        check_after: float | timedelta | None = None,
        timeout: float | timedelta = HALF_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
        check_timeout: float | timedelta = DEFAULT_CHECK_TIMEOUT,
        on_decided: OnDecided | None = None,
        prepare: bool = False,
        schema: None = None,
        **options: Unpack[ProducerOptionsDict],
    ) -> Opened[AsyncTransactionalProducer[bytes]]: ...

    @overload
    def transactional_producer(
        self,
        topic: str,
        *,
        group: str | None = None,
        check: Check | AsyncCheckGroup,
        check_after: float | timedelta | None = None,
        timeout: float | timedelta = HALF_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
        check_timeout: float | timedelta = DEFAULT_CHECK_TIMEOUT,
        on_decided: OnDecided | None = None,
        prepare: bool = False,
        schema: Schema[T],
        **options: Unpack[ProducerOptionsDict],
    ) -> Opened[AsyncTransactionalProducer[T]]: ...

    @opens
    async def transactional_producer(
        self,
        topic: str,
        *,
        group: str | None = None,
        check: Check | AsyncCheckGroup,
        check_after: float | timedelta | None = None,
        timeout: float | timedelta = HALF_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
        check_timeout: float | timedelta = DEFAULT_CHECK_TIMEOUT,
        on_decided: OnDecided | None = None,
        prepare: bool = False,
        schema: Schema[Any] | None = None,
        **options: Unpack[ProducerOptionsDict],
    ) -> AsyncTransactionalProducer[Any]:
        """Create a producer of half messages, which become visible together with work of the program's own.

        `check` answers for the members of `group`, as in `join_check_group`, with `concurrency` questions at a time. For
        several producers in one group, give each of them what `join_check_group` returned as `check`, without a group. All
        members of a group must be able to answer for each other. `check_after`: seconds or a timedelta before the first
        question about a transaction (default: the coordinator's setting, 6 s). `timeout` ends a transaction with an abort when
        no member of the group lives for so long; while one lives, it is asked. After the last question (15) the transaction is
        parked for an operator, unless the coordinator has another policy. `check_timeout` and `on_decided` are those of
        `join_check_group`. With `prepare`, neither ends it: each transaction is prepared before `execute`, which takes a
        request more, and its group is asked for ever; see `txn.prepare()`. Other arguments as for `create_producer`.

        Raises as `create_producer` and `join_check_group`. If cancelled, nothing remains.
        """
        terms = HalfTerms(group, check, check_after, timeout, concurrency, prepare, check_timeout, on_decided)
        producer = await self.create_producer(topic, schema=schema, **options)
        return AsyncTransactionalProducer(producer, await half_messages_of(self, producer, terms))

    @overload
    def subscribe(
        self,
        topic: str | Sequence[str] | Pattern[str],
        subscription: str,
        *,
        schema: None = None,
        **options: Unpack[ConsumerOptionsDict],
    ) -> Opened[AsyncConsumer[bytes]]: ...

    @overload
    def subscribe(
        self,
        topic: str | Sequence[str] | Pattern[str],
        subscription: str,
        *,
        schema: Schema[T],
        **options: Unpack[ConsumerOptionsDict],
    ) -> Opened[AsyncConsumer[T]]: ...

    @opens
    async def subscribe(
        self,
        topic: str | Sequence[str] | Pattern[str],
        subscription: str,
        *,
        schema: Schema[Any] | None = None,
        **options: Unpack[ConsumerOptionsDict],
    ) -> AsyncConsumer[Any]:
        """Subscribe to a topic, all partitions of a partitioned one, several topics (each once), or those that match a pattern.

        A compiled regular expression (`re.compile(r"tenant/namespace/orders-.*")`) means the topics of that namespace
        with a matching name. New ones are found every `pattern_discovery_period` seconds, and immediately if the broker reports
        them (stock Pulsar does), new partitions every `auto_update_partitions` seconds; both are received from their beginning.

        `options` are the fields of `ConsumerOptions`. Raises InvalidTopicName, InvalidConfiguration, AlreadyClosed, the
        broker's BrokerError (ConsumerBusy, …), ConnectionLost or OperationTimeout. If cancelled, a new subscription may
        have been created, without a consumer.
        """
        validate_subscription_name("subscription", subscription)
        validate_schema(schema)
        chosen = self._interceptors.before(options_of(ConsumerOptions, options, "subscribe"))
        _check_topics(topic)
        if isinstance(topic, Pattern):
            return await self._follow(topic, subscription, schema, chosen)
        return await self._consume([topic] if isinstance(topic, str) else topic, subscription, schema, chosen)

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
    ) -> Opened[AsyncReader[bytes]]: ...

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
    ) -> Opened[AsyncReader[T]]: ...

    @opens
    async def create_reader(
        self,
        topic: str,
        start: MessageId | datetime = EARLIEST_ID,
        *,
        start_inclusive: bool = False,
        reader_name: str | None = None,
        schema: Schema[Any] | None = None,
        **options: Unpack[ReaderOptionsDict],
    ) -> AsyncReader[Any]:
        """Create a reader that begins after message `start` (at it with `start_inclusive`), or at a time.

        `EARLIEST_ID` and `LATEST_ID` are the ends of the topic. `options` are fields of `ConsumerOptions`, as far as they mean
        something without a subscription: `receiver_queue_size`, `receiver_queue_bytes`, `read_compacted`, `properties`,
        `crypto_keys`, `crypto_failure_action`, `interceptors`, `auto_update_partitions`, those of messages in chunks.
        Raises as `subscribe`.
        """
        if not isinstance(start, MessageId | datetime):
            raise refused(
                "start", start, "a MessageId or a datetime", hint="EARLIEST_ID and LATEST_ID are the ends of the topic"
            )
        place = {
            "start_message_id": EARLIEST_ID if isinstance(start, datetime) else start,
            "start_message_id_inclusive": start_inclusive,
            "consumer_name": reader_name,
        }
        reader = await self._read("create_reader", topic, schema, options, place)
        if isinstance(start, datetime):
            try:
                await reader.seek(start)
            except BaseException:
                await reader.close()
                raise
        return reader

    async def _read(
        self, call: str, topic: str, schema: Schema[Any] | None, options: ReaderOptionsDict, place: Mapping[str, Any]
    ) -> AsyncReader[Any]:
        validate_schema(schema)
        _check_for_reader(options)
        number = int(self._core.runtime.random() * 2**48)
        chosen = options_of(ConsumerOptions, {**options, **place, "durable": False}, call)
        if not chosen.consumer_type.is_single:
            raise InvalidConfiguration(
                f"a reader cannot have consumer_type={chosen.consumer_type.name}: it keeps its place in order",
                hint="leave it out",
            )
        return AsyncReader(await self._consume([topic], f"reader-{number:012x}", schema, chosen))

    @overload
    def create_table_view(
        self, topic: str, *, schema: None = None, **options: Unpack[ReaderOptionsDict]
    ) -> Opened[AsyncTableView[bytes]]: ...

    @overload
    def create_table_view(
        self, topic: str, *, schema: Schema[T], **options: Unpack[ReaderOptionsDict]
    ) -> Opened[AsyncTableView[T]]: ...

    @opens
    async def create_table_view(
        self, topic: str, *, schema: Schema[Any] | None = None, **options: Unpack[ReaderOptionsDict]
    ) -> AsyncTableView[Any]:
        """Create a view of the newest value of every key; returns after everything in the topic has been read.

        `options` as `create_reader`. Raises as `subscribe`.
        """
        return await view_of(self, topic, schema, options)

    @overload
    def consistent_reader(
        self,
        topics: str | Sequence[str],
        start: MessageId | CutPosition = EARLIEST_ID,
        *,
        max_ahead: int = 500_000,
        max_cut_messages: int = 100_000,
        max_cut_bytes: int = 256 * 1024 * 1024,
        check_interval: float | timedelta = 0.1,
        schema: None = None,
        **options: Unpack[ReaderOptionsDict],
    ) -> Opened[AsyncConsistentReader[bytes]]: ...

    @overload
    def consistent_reader(
        self,
        topics: str | Sequence[str],
        start: MessageId | CutPosition = EARLIEST_ID,
        *,
        max_ahead: int = 500_000,
        max_cut_messages: int = 100_000,
        max_cut_bytes: int = 256 * 1024 * 1024,
        check_interval: float | timedelta = 0.1,
        schema: Schema[T],
        **options: Unpack[ReaderOptionsDict],
    ) -> Opened[AsyncConsistentReader[T]]: ...

    @opens
    async def consistent_reader(
        self,
        topics: str | Sequence[str],
        start: MessageId | CutPosition = EARLIEST_ID,
        *,
        max_ahead: int = 500_000,
        max_cut_messages: int = 100_000,
        max_cut_bytes: int = 256 * 1024 * 1024,
        check_interval: float | timedelta = 0.1,
        schema: Schema[Any] | None = None,
        **options: Unpack[ReaderOptionsDict],
    ) -> AsyncConsistentReader[Any]:
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
        validate_schema(schema)
        _check_topics(topics)
        names = [parse_topic(topic) for topic in ([topics] if isinstance(topics, str) else topics)]
        bounds = Bounds(
            max_ahead=max_ahead,
            max_cut_messages=max_cut_messages,
            max_cut_bytes=max_cut_bytes,
            check_interval=check_interval,
        )
        return await open_consistent_reader(self._core, names, start, schema or BytesSchema(), options, bounds)

    async def _consume(
        self, topics: Iterable[str], subscription: str, schema: Schema[Any] | None, options: ConsumerOptions
    ) -> AsyncConsumer[Any]:
        self._core.check_open()
        names = list(dict.fromkeys(parse_topic(topic) for topic in topics))
        if not names:
            raise InvalidConfiguration("no topic to subscribe to")
        policy = options.dead_letter_policy
        if policy is not None and policy.has_retry_topic:
            names.append(parse_topic(policy.retry_topic(str(names[0]), subscription)))
        parts: dict[str, int] = {}
        partitioned: dict[TopicName, int] = {}
        for name in names:
            found, count = await self._parts_of(name)
            if count:
                partitioned[name] = count
            parts |= dict(found)
        consumer: AsyncConsumer[Any] = AsyncConsumer(
            self._core,
            list(parts.items()),
            subscription,
            schema or BytesSchema(),
            options,
            transactions=self._transactions,
            partitioned=partitioned,
        )
        return await subscribed(consumer)

    async def _parts_of(self, name: TopicName) -> tuple[list[tuple[str, int]], int]:
        """The partitions of a topic, or the topic itself, and how many there are (0)."""
        count = await count_partitions(self._core, name)
        return [(str(name.with_partition(index)), index) for index in range(count)] or [(str(name), name.partition)], count

    async def _follow(
        self, topics: Pattern[str], subscription: str, schema: Schema[Any] | None, options: ConsumerOptions
    ) -> AsyncConsumer[Any]:
        self._core.check_open()
        pattern = TopicPattern.parse(topics)
        extra_topics: dict[str, int] = {}
        policy = options.dead_letter_policy
        if policy is not None and policy.has_retry_topic:
            if policy.retry_letter_topic is None:
                raise InvalidConfiguration(
                    "the retry topic of a consumer of a pattern needs a name", hint="give retry_letter_topic="
                )
            extra_topics = dict((await self._parts_of(parse_topic(policy.retry_letter_topic)))[0])
        found = await pattern.find(self._core, options.regex_subscription_mode)
        parts = extra_topics | {topic: TopicName.parse(topic).partition for topic in found}
        consumer: AsyncConsumer[Any] = AsyncConsumer(
            self._core,
            list(parts.items()),
            subscription,
            schema or BytesSchema(),
            options,
            transactions=self._transactions,
            pattern=pattern,
            extra_topics=extra_topics,
        )
        return await subscribed(consumer)

    # --- transactions -------------------------------------------------------------------------------------------------

    async def pipeline(
        self,
        consumer: AsyncConsumer[T],
        handler: Work[T],
        *,
        stop: asyncio.Event | None = None,
        observer: Callable[[PipelineEvent], object] | None = None,
        **options: Unpack[PipelineOptionsDict],
    ) -> PipelineResult:
        """Consume, process, produce, until `stop` is set: `await handler(batch)` in one transaction per batch.

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
        If cancelled: open transactions are aborted, their messages come again.
        """
        chosen = options_of(PipelineOptions, options, "pipeline")
        if not isinstance(consumer, AsyncConsumer):
            raise refused("consumer", consumer, "a consumer of this client")
        if stop is not None:
            validate_methods("stop", stop, ("is_set", "wait"), "an asyncio.Event")
        if observer is not None:
            validate_call("observer", observer, "a function of an event")
        pipeline = Pipeline(
            self._core, self._transactions, self.create_producer, consumer, handler, chosen, stop or asyncio.Event(), observer
        )
        return await pipeline.run()

    def stats(self) -> ClientStats:
        """A frozen picture of the client: connections, producers, consumers, transactions."""
        transactions = self._transactions
        counts = transactions.observers.counts(transactions.open())
        return client_stats(self._core, transactions.coordinators.count, counts)

    # --- the client itself --------------------------------------------------------------------------------------------

    def add_interceptors(self, *interceptors: ProducerInterceptor | ConsumerInterceptor) -> None:
        """Add interceptors to all producers and consumers that are created from now on, before those of their options.

        Readers and table views have those of their options only. Raises InvalidConfiguration for an object that is not an
        interceptor.
        """
        self._interceptors.add(interceptors)

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """The full names of a topic's partitions; the topic itself when it has none. Raises as `create_producer`."""
        self._core.check_open()
        name = parse_topic(topic)
        partitions = await count_partitions(self._core, name)
        return [str(name.with_partition(index)) for index in range(partitions)] or [str(name)]

    async def close(self) -> None:
        """Abort the open transactions, then close producers, consumers, readers and connections. Idempotent.

        Commits under way and the aborts have two seconds; after that the coordinators end the transactions at their
        timeout. Waiting messages are sent; the client waits for receipts, at most `operation_timeout`. If cancelled, the
        closing goes on.

        Transactions of an `AsyncCoordinator` that clients share stay open: those belong to it.
        """
        await self._close_once()

    async def __aenter__(self) -> Self:
        self._core.check_open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


async def view_of(
    client: AsyncClient,
    topic: str,
    schema: Schema[Any] | None,
    options: ReaderOptionsDict,
    read_values: ReadValues | None = None,
) -> AsyncTableView[Any]:
    """Open a table view; `read_values` as for `open_table_view`. Raises as `AsyncClient.create_table_view`."""
    first = {"start_message_id": EARLIEST_ID}
    reader = await client._read("create_table_view", topic, schema or BytesSchema(), options, first)
    return await open_table_view(core_of(client), reader, read_values)


async def half_messages_of(client: AsyncClient, producer: AsyncProducer[Any], terms: HalfTerms) -> HalfMessageSender:
    """The sender of half messages over a producer of the client, which is closed when this fails."""
    group = terms.check
    try:
        if not isinstance(group, AsyncCheckGroup):
            group = await client.join_check_group(
                terms.group or "",
                group,
                concurrency=terms.concurrency,
                check_timeout=terms.check_timeout,
                on_decided=terms.on_decided,
            )
    except BaseException:
        await producer.close()
        raise
    return HalfMessageSender(transactions_of(client), producer.topic, group, terms)


async def schema_of_producer(core: Core, topic: str, schema: Schema[Any] | None) -> Schema[Any]:
    """The schema of a producer; in place of a `TopicSchema` the one for this topic."""
    validate_schema(schema)
    if schema is None or not isinstance(chosen := cast("Any", schema), TopicSchema):
        return schema or BytesSchema()
    name = str(parse_topic(topic).base)
    found = await find_schema(core, name)
    return chosen.of_topic(None if found is None else SchemaInfo.of(found))


def check_cluster(name: object) -> None:
    """InvalidConfiguration for what cannot be the name of a cluster at a coordinator; empty is none."""
    if not isinstance(name, str):
        raise refused("cluster", name, "the name of a cluster in the coordinator's configuration")
    if name and not CLUSTER_NAME.fullmatch(name):
        raise InvalidConfiguration(f"cluster={name!r} is no name of a cluster", hint="letters, digits and any of -_.")


def parse_topic(topic: str) -> TopicName:
    """A topic's name; InvalidTopicName says what is wrong with a bad one."""
    validate_text("topic", topic)
    try:
        return TopicName.parse(topic)
    except InvalidName as error:
        raise InvalidTopicName(str(error), hint="") from None


def _check_topics(given: object) -> None:
    if isinstance(given, Pattern):
        validate_text("the pattern of topic", given.pattern)
    elif isinstance(given, bytes) or not isinstance(given, Iterable):
        raise refused("topic", given, "the name of a topic, several of them, or a compiled pattern")


def _check_for_reader(options: Mapping[str, Any]) -> None:
    """Refuse what a reader decides by itself: it would be without effect."""
    for name, instead in _OF_A_READER.items():
        if options.get(name):
            raise InvalidConfiguration(f"a reader takes no {name}", hint=instead)
