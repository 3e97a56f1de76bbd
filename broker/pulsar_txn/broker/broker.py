"""The broker: topics by name, coordinators, and what holds them together. No socket is opened here (see `server`)."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from pulsar_txn.ledger.hosting import Answer
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.protocols import EntryTooLarge, LedgerError, Log, LogStore, NameRefused, StorageFailed
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId
from pulsar_txn.wire.topics import InvalidName, TopicName, why_reserved

from .base import plugins
from .base.limits import LimitReached, Limits
from .base.repeating import Repeating
from .base.runtime import Clock, Runtime
from .base.settings import BrokerConfig
from .base.sorted_names import Pieces, in_order
from .base.storage_watch import LOOK_SECONDS, StorageWatch
from .base.turn import Turn
from .catalog.buffer_choice import BufferChoice
from .catalog.catalog import Catalog, log_name, role_log_name
from .catalog.lists import TopicLists
from .catalog.policies import Namespaces
from .commands import consumer, participant_ends, producer, session, topics, txn
from .commands.session import AnyTopic, Session
from .net.authentication import authentication_of
from .net.clients import Clients
from .net.connection import Connection
from .topics.context import PendingAckLogs
from .topics.nonpersistent import NonPersistentTopic
from .topics.producers import Producer
from .topics.topic import Topic, TopicServices, make_marker
from .txn.coordinators import WAITS_SECONDS, Coordinators, LongWaits, PlainCoordinators, make_coordinator
from .txn.participants import InProcessParticipants, NoRegistrations, Registrations, WithExternal
from .txn.transactional_ids import TakeOvers, TransactionalIds

_logger = logging.getLogger(__name__)

_COMMANDS: Final = {
    **session.HANDLERS,
    **producer.HANDLERS,
    **consumer.HANDLERS,
    **topics.HANDLERS,
    **txn.HANDLERS,
    **participant_ends.HANDLERS,
}
_FRAMES: Final = {**producer.FRAMES, **consumer.FRAMES}


class Broker:
    """Everything of a broker but its sockets. `start()`, then `connection()` for each client, at the end `close()`.

    `store` is started by the caller, and closed by it after `close()`. `storage_failure` is set when the store failed:
    nothing is confirmed any more and the process should end with code 74; `on_storage_failed` is called once.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: LogStore,
        runtime: Runtime,
        on_storage_failed: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self.config = config
        self.store = store
        self.clock = Clock(runtime)
        self.turn = Turn(runtime, self.clock)
        self.limits = Limits(config, runtime.descriptors())
        self._lists = asyncio.Lock()
        watchers = (config.max_topic_list_watchers_per_connection, config.max_topic_list_watchers)
        self.topic_lists = TopicLists(self.turn, self._spawn, watchers)
        self.catalog = Catalog(store, config, self.topic_lists)
        self.namespaces = Namespaces(store, config, self.catalog.index)
        self._clients = Clients(config, self.turn)
        self._repeating = Repeating(runtime)
        self.storage_watch = StorageWatch(store, runtime, config.storage_stall_timeout_in_seconds)
        self.connections = self._clients.connections
        self.topics: dict[str, AnyTopic] = {}
        self.service_url = ""
        self.service_url_tls = ""
        self.authentication = authentication_of(config)
        self.storage_failure: Exception | None = None
        self.on_storage_failed = on_storage_failed
        self.coordinators: Coordinators | None = None
        self.transactional_ids: TransactionalIds | None = None
        self.take_overs: TakeOvers | None = None
        self.ends_groups = False
        self.checks = False
        self._buffers = BufferChoice(config, store.metadata)
        self._scratch = MemoryStore()  # redo logs of subscriptions that are not durable
        pending_ack = plugins.resolve(plugins.PENDING_ACKS, config.transaction_pending_ack_store_provider_class_name)
        self.pending_acks = PendingAckLogs(store, self._scratch, pending_ack, config)
        self.participants = InProcessParticipants(self.turn, self._end_participant)
        if config.transaction_coordinator_enabled:
            factory = plugins.resolve(plugins.COORDINATORS, config.transaction_metadata_store_provider_class_name)
            self.ends_groups = getattr(factory, "ends_groups", False)
            self.checks = getattr(factory, "checks", False)
            self.coordinators = Coordinators(
                store,
                self.turn,
                PlainCoordinators(partial(make_coordinator, factory, config), self.turn, self.participants),
                self._coordinator_changed,
                max_check_groups=(config.max_check_groups_per_connection, config.max_check_group_members),
            )
            if getattr(factory, "fences", False):
                self.transactional_ids = TransactionalIds(store.metadata)
                self.take_overs = TakeOvers(self.coordinators, config.transactional_id_take_over_timeout_in_millis / 1000)
        coordinators = self.coordinators
        self.registrations: Registrations = NoRegistrations() if coordinators is None else coordinators.registrations
        if config.external_transaction_coordinators_enabled:
            self.registrations = WithExternal(self.registrations)
        self._topic_services = TopicServices(config, self.turn, self.catalog, store, self.registrations, self.pending_acks)
        self._opening: dict[str, asyncio.Task[Topic]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._names = 0
        self._sweep_seconds = config.retention_check_interval_in_seconds
        self.idle_topics_unloaded = 0
        self._closing = False

    async def start(self) -> None:
        """Begin to open the coordinators, and to watch the store's pressure."""
        await self.catalog.start(self.turn.budget)
        await self._scratch.start()
        self.store.on_pressure(self._clients.pressure)
        if self.coordinators is not None:
            self.coordinators.grow(self.catalog.coordinators)
        self.turn.meter.start()
        self._clients.start(self._repeating)
        self._repeating.every(self._sweep_seconds, self.sweep)
        self._repeating.every(LOOK_SECONDS, self.storage_watch.look)
        waits = LongWaits(self.turn, lambda: self.coordinators, self.config.transaction_wait_warning_in_seconds * 1000)
        self._repeating.every(WAITS_SECONDS, waits.look)

    def listens(self, service_url: str, service_url_tls: str) -> None:
        """Clients reach this broker at these addresses from now on; empty: there is none."""
        self.service_url, self.service_url_tls = service_url, service_url_tls

    def connection(self) -> Connection:
        """A protocol for a new client."""
        connection = Connection(self)
        connection.serve(Session(self, _COMMANDS, _FRAMES, txn.REQUESTS, connection))
        return connection

    def new_consumer_name(self) -> str:
        """A name for a consumer that brought none."""
        self._names += 1
        return f"consumer-{self._names}"

    async def close(self) -> None:
        """Drain: what was taken is answered, clients are sent away, topics take their snapshots, everything is durable."""
        await self._clients.drain(self._is_busy)
        self._closing = True
        if self.coordinators is not None:
            self.coordinators.bound.stop()
        self.turn.meter.stop()
        self.participants.close()
        self._clients.close()
        await self._repeating.close()
        for task in [*self._opening.values(), *self._background]:
            task.cancel()
        await asyncio.gather(*self._opening.values(), *self._background, return_exceptions=True)
        topics = [topic for topic in self.topics.values() if isinstance(topic, Topic)]
        await self.turn.budget.for_all(topics, Topic.close)
        self.topics.clear()
        if self.coordinators is not None:
            await self.coordinators.close()

    def _is_busy(self) -> bool:
        if self.storage_failure is not None:  # nothing will be answered any more
            return False
        if self._clients.is_busy:
            return True
        if self.coordinators is not None and self.coordinators.is_busy:
            return True
        return any(isinstance(topic, Topic) and topic.is_busy for topic in self.topics.values())

    # ---- topics

    async def topic(self, name: TopicName, *, create: bool = True) -> AnyTopic:
        """The topic, opened and recovered when it is not yet. Refusals: TopicNotFound, NotAllowedError, ServiceNotReady.

        If cancelled: the opening goes on for others.
        """
        key = str(name)
        found = self.topics.get(key)
        if found is not None:
            return found
        if self._closing:
            raise Refusal(ServerError.ServiceNotReady, "this broker is closing; retry")
        leaving = self._leaving.get(key)
        if leaving is not None:  # its logs must be closed before they can be opened again
            await asyncio.wait([leaving])
            return await self.topic(name, create=create)
        await self._check_name(name, create=create)
        if key in self.topics or key in self._leaving:  # somebody else opened it, or closed it again, meanwhile
            return await self.topic(name, create=create)
        if not name.is_persistent:
            rules = await self.namespaces.rules(name.tenant, name.namespace)
            return self.topics.setdefault(key, NonPersistentTopic(self.turn, name, rules, self.config))
        task = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.get_running_loop().create_task(self._open(name))
            task.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(task)

    async def _check_name(self, name: TopicName, *, create: bool) -> None:
        if not name.is_persistent:
            if not self.config.enable_non_persistent_topics:
                raise Refusal(ServerError.NotAllowedError, "non-persistent topics are switched off (enableNonPersistentTopics)")
            _check_reserved(name)
            return
        count = await self.catalog.partitions(name.base)
        if count and name.partition < 0:
            raise Refusal(ServerError.NotAllowedError, f"{name} has {count} partitions; use those")
        if count and name.partition >= count:
            raise Refusal(ServerError.TopicNotFound, f"{name.base} has {count} partitions, the last is {count - 1}")
        may_create = count > 0 or (create and self.config.allow_auto_topic_creation)
        if self.catalog.exists(name):
            return
        if not count:  # partitions of one that is there already, from before this rule, go on
            _check_reserved(name)
        if not may_create:
            raise Refusal(ServerError.TopicNotFound, f"{name} does not exist, and topics are not created on demand here")
        limit = self.config.max_topics_per_namespace
        if limit and self.catalog.index.count(name.tenant, name.namespace) >= limit:
            what = f"{name.tenant}/{name.namespace} has {limit} topics"
            raise LimitReached("maxTopicsPerNamespace", what, ServerError.NotAllowedError)

    async def _open(self, name: TopicName) -> Topic:
        logs: list[Log] = []
        try:
            factory = await self._buffers.factory(name, is_new=not self.catalog.exists(name))
            logs.append(await self.store.open(log_name(name)))
            self.catalog.index.created(name)
            buffer = factory(str(name), partial(make_marker, self.turn))
            roles: dict[str, Log] = {}
            for role in buffer.logs:
                if role != "topic":
                    roles[role] = await self.store.open(role_log_name(name, role))
                    logs.append(roles[role])
            topic = Topic(self._topic_services, name, logs[0], self._topic_failed)
            await topic.open(buffer, roles)
            topic.set_rules(await self.namespaces.rules(name.tenant, name.namespace))
        except BaseException as error:
            await asyncio.gather(*(log.close() for log in logs), return_exceptions=True)
            if isinstance(error, StorageFailed):
                self.storage_failed(error)
            if isinstance(error, (EntryTooLarge, NameRefused)):
                raise Refusal(ServerError.NotAllowedError, f"{name} cannot be made: {error}") from error
            if isinstance(error, (LedgerError, WireError)):
                _logger.exception("%s cannot be opened", name)
                raise Refusal(ServerError.ServiceNotReady, f"{name} cannot be opened: {error}") from error
            raise
        self.topics[str(name)] = topic
        return topic

    def _topic_failed(self, topic: Topic, error: Exception) -> None:
        """Send everybody away; the topic is recovered when somebody asks for it again."""
        if isinstance(error, StorageFailed):
            self.storage_failed(error)
        _logger.error("topic %s failed and is closed, its next use recovers it: %s", topic.name, error)
        key = str(topic.name)
        if self.topics.get(key) is topic:
            topic.disconnect_all()
            self._leave(key, topic.close())

    def _leave(self, key: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Forget an open topic; who asks for it from now on waits until `work` has closed it."""
        self.topics.pop(key, None)
        task = self._leaving[key] = self._spawn(work)
        task.add_done_callback(lambda _: self._leaving.pop(key, None))
        return task

    async def unload_topic(self, name: TopicName) -> None:
        """Close a topic: its clients connect again, and it is recovered when they do. If cancelled: it goes on."""
        key = str(name)
        topic = self.topics.get(key)
        if isinstance(topic, Topic):
            await asyncio.shield(self._leave(key, _unload(topic)))
        elif topic is not None:
            del self.topics[key]
            topic.close()

    def remove_producer(self, producer: Producer) -> None:
        """A producer is gone; the topic may have another one that waits."""
        producers = producer.topic.producers
        if producers.remove(producer):
            self._spawn(producers.promote())

    async def delete_topic(self, name: TopicName) -> None:
        """Delete a topic with everything that belongs to it. Refusal TopicNotFound."""
        topic = await self._existing(name)
        if not isinstance(topic, Topic):
            return
        await asyncio.shield(self._leave(str(name), self._delete(topic)))

    async def _delete(self, topic: Topic) -> None:
        await self.turn.budget.for_all(list(topic.subscriptions.values()), topic.unsubscribe)
        topic.disconnect_all()
        await topic.close()
        await topic.compaction.delete()
        for role in topic.buffer.logs:
            await self.store.delete(log_name(topic.name) if role == "topic" else role_log_name(topic.name, role))
        await self._buffers.forget(topic.name)
        self.catalog.index.deleted(topic.name)

    async def delete_namespace(self, tenant: str, namespace: str) -> None:
        """Delete a namespace with everything in it; durable when this returns."""
        index, for_all = self.catalog.index, self.turn.budget.for_all
        partitioned = _parsed(index.partitioned(tenant, namespace))
        await for_all(partitioned, self.catalog.delete_partitioned)
        await for_all(_parsed(index.topics(tenant, namespace)), self._delete_if_there)
        await for_all(_parsed(await self.non_persistent_topics(tenant, namespace)), self.unload_topic)
        await self.catalog.delete_schemas(tenant, namespace, self.turn.budget)
        await self.namespaces.delete(tenant, namespace)

    async def _delete_if_there(self, name: TopicName) -> None:
        if self.catalog.exists(name):  # another request may also delete it
            await self.delete_topic(name)

    async def change_policies(self, tenant: str, namespace: str, policies: Mapping[str, Any]) -> None:
        """New policies of a namespace: durable when this returns, and followed by the topics that are open."""
        await self.namespaces.put_policies(tenant, namespace, policies)
        rules = await self.namespaces.rules(tenant, namespace)
        async for topic in self.turn.budget.each(list(self.topics.values())):
            if (topic.name.tenant, topic.name.namespace) == (tenant, namespace):
                topic.set_rules(rules)

    async def non_persistent_topics(self, tenant: str, namespace: str) -> Pieces:
        """Full names of those that are in use, sorted."""
        prefix = f"non-persistent://{tenant}/{namespace}/"
        found = [name async for name in self.turn.budget.each(list(self.topics)) if name.startswith(prefix)]
        return await in_order(found, self.turn.budget)

    # ---- transactions

    async def grow_coordinators(self, count: int) -> None:
        """So many coordinators, for ever and at once; they serve when this returns. Refusal NotAllowedError: not more."""
        await self.catalog.grow_coordinators(count)
        if self.coordinators is not None:
            self.coordinators.grow(self.catalog.coordinators)
            await self.coordinators.wait_ready()

    def cluster_and_participant(self, participant: Participant) -> tuple[str, Participant]:
        """See `commands.txn_session.Coordinating`: there is one cluster."""
        return "", participant

    def _coordinator_changed(self, _tc_id: int, error: Exception | None, _message: str) -> None:
        if isinstance(error, StorageFailed):
            self.storage_failed(error)

    def _end_participant(self, effect: TellParticipant, answer: Answer) -> None:
        place, end = effect.participant, (effect.txn_id, effect.action, effect.low_watermark, answer)
        try:
            if place.subscription is None:
                self.end_on_partition(place.topic, *end)
            else:
                self.end_on_subscription(place.topic, place.subscription, *end)
        except Exception as error:  # a fault of one topic keeps only its own transactions waiting
            _logger.exception("%s of %s at %s failed", effect.action.name, effect.txn_id, place)
            answer(None, ServerError.UnknownError, f"{type(error).__name__}: {error}")

    def end_on_partition(self, topic: str, txn_id: TxnId, action: TxnAction, low_watermark: int, answer: Answer) -> None:
        """End a transaction on a topic partition; a topic that is not there has nothing to end."""
        found = self.topics.get(topic)
        if isinstance(found, Topic):
            found.end_txn(txn_id, action, low_watermark, answer)
        else:
            self._spawn(self._open_and_end(topic, None, txn_id, action, low_watermark, answer))

    def end_on_subscription(
        self, topic: str, subscription: str, txn_id: TxnId, action: TxnAction, low_watermark: int, answer: Answer
    ) -> None:
        """End a transaction on a subscription; one that is not there has nothing to end."""
        found = self.topics.get(topic)
        if isinstance(found, Topic):
            known = found.subscriptions.get(subscription)
            if known is not None:
                known.end_txn(txn_id, action, low_watermark, answer)
            else:
                self._end_on(found, subscription, txn_id, action, low_watermark, answer)
        else:
            self._spawn(self._open_and_end(topic, subscription, txn_id, action, low_watermark, answer))

    def _end_on(
        self, topic: Topic, subscription: str | None, txn_id: TxnId, action: TxnAction, low_watermark: int, answer: Answer
    ) -> None:
        if subscription is None:
            topic.end_txn(txn_id, action, low_watermark, answer)
            return
        found = topic.subscriptions.get(subscription)
        if found is None:
            answer(None, ServerError.SubscriptionNotFound, f"{topic.name} has no subscription {subscription!r}")
        else:
            found.end_txn(txn_id, action, low_watermark, answer)

    async def _open_and_end(
        self, topic: str, subscription: str | None, txn_id: TxnId, action: TxnAction, low_watermark: int, answer: Answer
    ) -> None:
        try:
            found = await self._existing(TopicName.parse(topic))
        except (Refusal, InvalidName) as error:
            answer(None, error.code if isinstance(error, Refusal) else ServerError.TopicNotFound, str(error))
            return
        if isinstance(found, Topic):
            self._end_on(found, subscription, txn_id, action, low_watermark, answer)

    async def _existing(self, name: TopicName) -> AnyTopic:
        if not self.catalog.exists(name):
            raise Refusal(ServerError.TopicNotFound, f"{name} does not exist")
        return await self.topic(name, create=False)

    # ---- long answers

    @asynccontextmanager
    async def list_turn(self, connection: Connection) -> AsyncIterator[None]:
        """Inside, an answer may be made that is long, and costs time: one per loop turn, for whoever takes what it is sent.

        Raises LimitReached while too much of such answers waits for clients that do not read.
        """
        while True:
            await connection.drained()
            async with self._lists:
                await asyncio.sleep(0)  # everybody else has a turn between two of them
                if not connection.writable:
                    continue
                self.limits.check_list()
                yield
                return

    # ---- care

    def storage_failed(self, error: Exception) -> None:
        """The store is dead: nothing more is answered."""
        if self.storage_failure is None:
            _logger.critical("storage failed, this broker must end: %s", error)
            self.storage_failure = error
            self.on_storage_failed(error)

    @property
    def under_pressure(self) -> bool:
        """True if the store has too much in flight, so that no client is read."""
        return self._clients.under_pressure

    async def keep_alive(self) -> None:
        """See `Clients.keep_alive`."""
        await self._clients.keep_alive()

    async def sweep(self) -> None:
        """Let topics trim what they may, and close those that nobody used for long."""
        try:
            closed = await self._look_after_topics()
        except Exception:
            _logger.exception("retention, expiry and idle topics were not checked, next time in %d s", self._sweep_seconds)
            return
        if closed and not self.connections:
            gc.collect()  # a topic and its parts point at each other; now nobody waits for the loop

    async def _look_after_topics(self) -> int:
        """Sweep the topics and close idle ones; return how many were closed."""
        budget, limit = self.turn.budget, self.config.idle_topic_unload_seconds
        idle: list[AnyTopic] = []
        async for topic in budget.each(list(self.topics.values()), at_a_time=1):
            if isinstance(topic, Topic) and topic.serving:
                topic.sweep()
            topic.idle_sweeps = topic.idle_sweeps + 1 if limit and topic.is_idle else 0
            if topic.idle_sweeps * self._sweep_seconds >= limit > 0:
                idle.append(topic)
        await budget.for_all(idle, self._unload_idle)
        return len(idle)

    async def _unload_idle(self, topic: AnyTopic) -> None:
        if self.topics.get(str(topic.name)) is topic and topic.is_idle:
            self.idle_topics_unloaded += 1
            await self.unload_topic(topic.name)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _check_reserved(name: TopicName) -> None:
    """Refusal NotAllowedError for a new topic with a name that is not for users."""
    if (reason := why_reserved(name)) is not None:
        raise Refusal(ServerError.NotAllowedError, reason)


def _parsed(pieces: Pieces) -> Iterator[TopicName]:
    return (TopicName.parse(name) for piece in pieces for name in piece)


async def _unload(topic: Topic) -> None:
    try:
        await topic.log.flush()  # what was taken is answered before its producers are sent away
    except LedgerError as error:
        _logger.warning("%s is unloaded with messages that are not stored: %s", topic.name, error)
    topic.disconnect_all()
    await topic.close()
