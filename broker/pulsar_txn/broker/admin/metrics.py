"""`/metrics`: what the broker counts anyway, read when somebody asks; nothing on the path of a message knows of it.

Pulsar's names where Pulsar has the metric (reference §7.3 for transactions); ours begin with `pulsar_txn_ledger_` and
`pulsar_txn_broker_`. Series per topic are bounded: the thousand topics that took in most, and their first
twenty thousand subscriptions; the others are in the totals.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from importlib.metadata import version
from itertools import islice
from typing import Any, Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pulsar_txn.broker.base.loop_meter import Histogram
from pulsar_txn.broker.base.slices import LoopBudget
from pulsar_txn.broker.broker import Broker
from pulsar_txn.broker.topics.topic import Topic
from pulsar_txn.wire.ids import TxnAction

from .common import BROKER, Routes
from .lists import parts_response

MAX_TOPICS: Final = 1000
MAX_SUBSCRIPTIONS: Final = 20_000
"""With series of their own, of those topics together."""

_VERSION: Final = version("pulsar-txn")
_SAMPLES_AT_ONCE: Final = 100
_HEAD: Final = re.compile(r"^# .*\n", re.MULTILINE)


class _One(Collector):
    """A registry's view of some metrics."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


async def exposition(broker: Broker) -> AsyncIterator[str]:
    """All metrics in the text format, in parts; made in slices."""
    async for metric in _of_broker(broker):
        samples, is_first = metric.samples, True
        while samples or is_first:
            await broker.turn.budget.pause()
            metric.samples = samples[:_SAMPLES_AT_ONCE]
            del samples[:_SAMPLES_AT_ONCE]  # freed in slices as well: there may be a hundred thousand
            text = _text(_One([metric]))
            yield text if is_first else _HEAD.sub("", text)
            is_first = False
    yield _text(_process())


def _text(collector: Collector) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry).decode()


def _process() -> Collector:
    return ProcessCollector(registry=None)


class _Totals:
    """What all open topics have together, and those that took in most."""

    def __init__(self) -> None:
        self.subscriptions = self.producers = self.consumers = self.messages_in = self.bytes_in = 0
        self._busiest: list[tuple[int, int, Topic]] = []

    async def count(self, broker: Broker) -> None:
        """Look at every topic and every subscription, in slices."""
        each = broker.turn.budget.each
        async for topic in each(list(broker.topics.values())):
            if not isinstance(topic, Topic) or not topic.serving:
                continue
            self.producers += len(topic.producers.by_name)
            self.messages_in += topic.messages_in
            self.bytes_in += topic.bytes_in
            async for subscription in each(list(topic.subscriptions.values())):
                self.subscriptions += 1
                self.consumers += len(subscription.consumers)
            push = heapq.heappush if len(self._busiest) < MAX_TOPICS else heapq.heappushpop
            push(self._busiest, (topic.messages_in, id(topic), topic))

    @property
    def busiest(self) -> list[Topic]:
        """At most MAX_TOPICS, the busiest first."""
        return [topic for _, _, topic in sorted(self._busiest, reverse=True)]


async def _of_broker(broker: Broker) -> AsyncIterator[Metric]:
    cluster, totals = broker.config.cluster_name, _Totals()
    await totals.count(broker)
    yield _gauge("pulsar_version_info", "The broker's version.", {"cluster": cluster, "version": _VERSION}, 1)
    for name, text, value in _totals(broker, totals):
        kind = _counter if name.endswith("_total") else _gauge
        yield kind(name, text, {"cluster": cluster}, value)
    for metric in _of_loop(broker, cluster):
        yield metric
    yield _limits_reached(broker, cluster)
    for metric in _of_coordinators(broker, cluster):
        yield metric
    for metric in await _of_topics(totals.busiest, cluster, broker.turn.budget):
        yield metric
    for metric in await _of_subscriptions(totals.busiest, cluster, broker.turn.budget):
        yield metric


def _totals(broker: Broker, totals: _Totals) -> Iterator[tuple[str, str, float]]:
    store: Any = broker.store
    yield "pulsar_active_connections", "Connections of clients.", len(broker.connections)
    limits = broker.limits
    yield "pulsar_txn_broker_requests_in_flight", "Requests of clients that are under way.", limits.requests
    yield "pulsar_txn_broker_request_bytes_in_flight", "Their bytes.", limits.request_bytes
    text = "Bytes of large frames that are not complete, as announced."
    yield "pulsar_txn_broker_incomplete_frame_bytes", text, limits.incoming_bytes
    text = "Bytes of lists and schemas that clients have not read."
    yield "pulsar_txn_broker_unread_list_bytes", text, limits.list_bytes
    yield "pulsar_txn_broker_topic_list_watchers", "Lists of topics that are watched.", broker.topic_lists.count
    yield "pulsar_topics_count", "Topics that are open.", len(broker.topics)
    text = "Topics that were closed because nobody used them."
    yield "pulsar_txn_broker_idle_topics_unloaded_total", text, broker.idle_topics_unloaded
    yield "pulsar_subscriptions_count", "Subscriptions of open topics.", totals.subscriptions
    yield "pulsar_producers_count", "Producers.", totals.producers
    yield "pulsar_consumers_count", "Consumers.", totals.consumers
    yield "pulsar_txn_broker_in_messages_total", "Messages taken in by open topics.", totals.messages_in
    yield "pulsar_txn_broker_in_bytes_total", "Bytes of messages taken in by open topics.", totals.bytes_in
    yield "pulsar_txn_ledger_bytes_in_flight", "Bytes appended and not durable yet.", store.bytes_in_flight
    yield "pulsar_txn_ledger_pressure", "1 while clients are not read because too much is in flight.", broker.under_pressure
    yield "pulsar_txn_ledger_logs", "Logs in the store.", store.log_count
    yield "pulsar_txn_ledger_failed", "1 when the storage failed.", broker.storage_failure is not None
    if hasattr(store, "sync_count"):
        yield "pulsar_txn_ledger_syncs_total", "Syncs of commit groups since the start.", store.sync_count


def _of_loop(broker: Broker, cluster: str) -> Iterator[Metric]:
    """How long one turn of the event loop keeps everybody else waiting."""
    meter, labels = broker.turn.meter, {"cluster": cluster}
    text = "Turns of the loop in which the broker worked, by their length."
    yield _histogram("pulsar_txn_broker_loop_block_seconds", text, labels, meter.turns)
    text = "How late a timer of every tenth of a second came, whatever held the loop."
    yield _histogram("pulsar_txn_broker_loop_late_seconds", text, labels, meter.late)
    text = "The longest that the loop was seen held since the start."
    yield _gauge("pulsar_txn_broker_loop_longest_block_seconds", text, labels, meter.longest_seconds)


def _limits_reached(broker: Broker, cluster: str) -> Metric:
    text = "How often clients met a limit and were refused, or made to wait."
    reached = CounterMetricFamily("pulsar_txn_broker_limit_reached", text, labels=["cluster", "limit"])
    for key, count in sorted(broker.limits.reached.items()):
        reached.add_metric([cluster, key], count)
    return reached


def _of_coordinators(broker: Broker, cluster: str) -> Iterator[Metric]:
    coordinators = broker.coordinators
    if coordinators is None:
        return
    labels = ["cluster", "coordinator_id"]
    ready = GaugeMetricFamily("pulsar_txn_coordinator_ready", "1 when the coordinator serves.", labels=labels)
    active = GaugeMetricFamily("pulsar_txn_active_count", "Transactions that are open or ending.", labels=labels)
    created = CounterMetricFamily("pulsar_txn_created", "Transactions opened, in the life of the log.", labels=labels)
    committed = CounterMetricFamily("pulsar_txn_committed", "Transactions committed since the start.", labels=labels)
    aborted = CounterMetricFamily("pulsar_txn_aborted", "Transactions aborted since the start.", labels=labels)
    timed_out = CounterMetricFamily("pulsar_txn_timeout", "Transactions aborted by their timeout.", labels=labels)
    appended = CounterMetricFamily("pulsar_txn_append_log", "Records of the coordinator's log since the start.", labels=labels)
    telling = 0
    for tc_id in range(len(coordinators)):
        host = coordinators.ready(tc_id)
        at = [cluster, str(tc_id)]
        ready.add_metric(at, host is not None)
        if host is None:
            continue
        machine: Any = host.machine
        if hasattr(machine, "active_count"):
            active.add_metric(at, machine.active_count)
            created.add_metric(at, machine.next_local_txn_id)
        committed.add_metric(at, host.ended[TxnAction.COMMIT])
        aborted.add_metric(at, host.ended[TxnAction.ABORT])
        timed_out.add_metric(at, host.host.expired)
        appended.add_metric(at, host.host.appended)
        telling += host.telling
    yield from (ready, active, created, committed, aborted, timed_out, appended)
    text = "Participants that were told an outcome and have not answered yet."
    yield _gauge("pulsar_txn_tb_client_pending_requests", text, {"cluster": cluster}, telling)


async def _of_topics(topics: list[Topic], cluster: str, budget: LoopBudget) -> Iterable[Metric]:
    labels = ["cluster", "namespace", "topic"]
    messages = CounterMetricFamily("pulsar_in_messages", "Messages taken in.", labels=labels)
    size_in = CounterMetricFamily("pulsar_in_bytes", "Bytes of messages taken in.", labels=labels)
    storage = GaugeMetricFamily("pulsar_storage_size", "Bytes of entries that can be read.", labels=labels)
    ongoing = GaugeMetricFamily("pulsar_txn_tb_active_total", "Open transactions of a buffer.", labels=labels)
    committed = GaugeMetricFamily("pulsar_txn_tb_committed_total", "Commits that a buffer saw.", labels=labels)
    aborted = GaugeMetricFamily("pulsar_txn_tb_aborted_total", "Aborts that a buffer saw.", labels=labels)
    async for topic in budget.each(topics):
        at = _at(topic, cluster)
        stats = topic.buffer.stats()
        messages.add_metric(at, topic.messages_in)
        size_in.add_metric(at, topic.bytes_in)
        storage.add_metric(at, topic.log.stats().bytes)
        ongoing.add_metric(at, stats.ongoing_txn_size)
        committed.add_metric(at, stats.committed_txn_count)
        aborted.add_metric(at, stats.aborted_txn_count)
    return messages, size_in, storage, ongoing, committed, aborted


async def _of_subscriptions(topics: list[Topic], cluster: str, budget: LoopBudget) -> Iterable[Metric]:
    labels = ["cluster", "namespace", "topic", "subscription"]
    backlog = GaugeMetricFamily("pulsar_subscription_back_log", "Entries not acknowledged.", labels=labels)
    unacked = GaugeMetricFamily("pulsar_subscription_unacked_messages", "Delivered, not acknowledged.", labels=labels)
    consumers = GaugeMetricFamily("pulsar_subscription_consumers_count", "Consumers.", labels=labels)
    pending = GaugeMetricFamily("pulsar_txn_pending_ack_ongoing", "Open transactions with acknowledgements.", labels=labels)
    outcomes = [*labels, "status"]
    committed = CounterMetricFamily("pulsar_txn_tp_committed_count", "Commits that a subscription did.", labels=outcomes)
    aborted = CounterMetricFamily("pulsar_txn_tp_aborted_count", "Aborts that a subscription did.", labels=outcomes)
    left = MAX_SUBSCRIPTIONS
    for topic in topics:
        some = list(islice(topic.subscriptions.items(), left))
        left -= len(some)
        async for name, subscription in budget.each(some):
            at = [*_at(topic, cluster), name]
            backlog.add_metric(at, max(0, subscription.cursor.backlog()))
            unacked.add_metric(at, sum(each.unacked_count for each in subscription.consumers))
            consumers.add_metric(at, len(subscription.consumers))
            if subscription.pending_ack is not None:
                pending.add_metric(at, subscription.pending_ack.stats().ongoing_txn_size)
                committed.add_metric([*at, "succeed"], subscription.ended[TxnAction.COMMIT])
                aborted.add_metric([*at, "succeed"], subscription.ended[TxnAction.ABORT])
    return backlog, unacked, consumers, pending, committed, aborted


def _at(topic: Topic, cluster: str) -> list[str]:
    return [cluster, f"{topic.name.tenant}/{topic.name.namespace}", str(topic.name)]


def _gauge(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=list(labels)), labels, value)


def _counter(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    return _filled(CounterMetricFamily(name.removesuffix("_total"), text, labels=list(labels)), labels, value)


def _histogram(name: str, text: str, labels: dict[str, str], histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), histogram.buckets(), histogram.total)
    metric: Metric = family
    return metric


def _filled(family: Any, labels: dict[str, str], value: float) -> Metric:
    family.add_metric(list(labels.values()), value)
    metric: Metric = family
    return metric


async def show_metrics(request: web.Request) -> web.StreamResponse:
    """GET: the text format of Prometheus."""
    return await parts_response(request, exposition(request.app[BROKER]), CONTENT_TYPE_LATEST)


ROUTES: Routes = [("GET", "/metrics", show_metrics), ("GET", "/metrics/", show_metrics)]
