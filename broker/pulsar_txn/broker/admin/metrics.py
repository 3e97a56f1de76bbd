"""`/metrics`: what the broker counts anyway, read when somebody asks; nothing on the path of a message knows of it.

Pulsar's names where Pulsar has the metric (reference §7.3 for transactions); ours begin with `pulsar_txn_ledger_` and
`pulsar_txn_broker_`. Series per topic are bounded: the thousand topics that took in most, and their first
twenty thousand subscriptions; the others are in the totals.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterable, Iterator
from importlib.metadata import version
from itertools import islice
from typing import Any, Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pulsar_txn.broker.base.slices import LoopBudget
from pulsar_txn.broker.broker import Broker
from pulsar_txn.broker.topics.topic import Topic
from pulsar_txn.wire.ids import TxnAction

from .answers import Routes
from .common import BROKER
from .exposition import counter, gauge, limits_reached, of_coordinators, of_loop, texts
from .lists import chunked_response

MAX_TOPICS: Final = 1000
MAX_SUBSCRIPTIONS: Final = 20_000
"""With series of their own, of those topics together."""

_VERSION: Final = version("pulsar-txn")


async def exposition(broker: Broker) -> AsyncIterator[str]:
    """All metrics in the text format, in parts; made in slices."""
    async for text in texts(_of_broker(broker), broker.turn.budget):
        yield text


class _Totals:
    """Totals of all open topics, and those that took in most."""

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
    yield gauge("pulsar_version_info", "The broker's version.", {"cluster": cluster, "version": _VERSION}, 1)
    for name, text, value in _totals(broker, totals):
        kind = counter if name.endswith("_total") else gauge
        yield kind(name, text, {"cluster": cluster}, value)
    for metric in of_loop(broker.turn.meter, {"cluster": cluster}):
        yield metric
    yield limits_reached(broker.limits, {"cluster": cluster})
    if broker.coordinators is not None:
        for metric in of_coordinators(broker.coordinators, {"cluster": cluster}, broker.clock.now_ms()):
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
    text = "Seconds for which writes wait, and nothing was confirmed."
    yield "pulsar_txn_ledger_stalled_seconds", text, broker.storage_watch.stalled_seconds
    if hasattr(store, "sync_count"):
        yield "pulsar_txn_ledger_syncs_total", "Syncs of commit groups since the start.", store.sync_count


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


async def show_metrics(request: web.Request) -> web.StreamResponse:
    """GET: the text format of Prometheus."""
    return await chunked_response(request, exposition(request.app[BROKER]), CONTENT_TYPE_LATEST)


ROUTES: Routes = [("GET", "/metrics", show_metrics), ("GET", "/metrics/", show_metrics)]
