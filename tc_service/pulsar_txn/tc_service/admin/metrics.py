"""`/metrics` of the service: what it counts anyway, read when somebody asks.

Names of the coordinators and the loop are the broker's; those of the service begin with `pulsar_txn_service_`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from typing import Any, Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from pulsar_txn.broker.serving import (
    Routes,
    chunked_response,
    counter,
    gauge,
    limits_reached,
    of_coordinators,
    of_loop,
    texts,
)
from pulsar_txn.tc_service.server.service import CoordinatorService
from pulsar_txn.tc_service.server.timelines import cause_word, outcome_word

from .transactions import SERVICE

_VERSION: Final = version("pulsar-txn")


async def _of_service(service: CoordinatorService) -> AsyncIterator[Metric]:
    none: dict[str, str] = {}
    yield gauge("pulsar_txn_service_info", "The version of the service.", {"version": _VERSION}, 1)
    yield gauge("pulsar_active_connections", "Connections of clients.", none, len(service.connections))
    failed = service.storage_failure is not None
    yield gauge("pulsar_txn_ledger_failed", "1 when the storage failed.", none, failed)
    text = "Seconds for which writes wait, and nothing was confirmed."
    yield gauge("pulsar_txn_ledger_stalled_seconds", text, none, service.storage_watch.stalled_seconds)
    for part in (
        of_coordinators(service.coordinators, none, service.turn.clock.now_ms()),
        _of_decisions(service),
        _of_appends(service),
        _of_lanes(service),
        _of_claims(service),
        _of_ends(service),
        of_loop(service.turn.meter, none),
        [limits_reached(service.limits, none)],
    ):
        for metric in part:
            yield metric


def _of_decisions(service: CoordinatorService) -> Iterator[Metric]:
    text = "Decisions since the start of this process, by outcome and by who decided."
    found = CounterMetricFamily("pulsar_txn_service_decisions", text, labels=["coordinator_id", "outcome", "by"])
    for name, timeline in service.timelines.by_coordinator():
        for (status, cause), count in sorted(timeline.decisions.items()):
            found.add_metric([name, outcome_word(status), cause_word(cause)], count)
    yield found


def _of_appends(service: CoordinatorService) -> Iterator[Metric]:
    text = "How long records took until they were durable; a sample of them."
    found = HistogramMetricFamily("pulsar_txn_service_append_seconds", text, labels=["coordinator_id"])
    for name, timeline in service.timelines.by_coordinator():
        found.add_metric([name], timeline.append_seconds.buckets(), timeline.append_seconds.total)
    yield found


def _of_lanes(service: CoordinatorService) -> Iterator[Metric]:
    lanes = GaugeMetricFamily("pulsar_txn_service_lanes", "Lanes that are kept, by state.", labels=["coordinator_id", "state"])
    given = CounterMetricFamily("pulsar_txn_service_lanes_given", "Lanes in the log's incarnation.", labels=["coordinator_id"])
    alive = GaugeMetricFamily("pulsar_txn_service_clients", "Clients with a lease.", labels=["coordinator_id"])
    for tc_id in service.coordinators.here:
        host = service.coordinators.ready(tc_id)
        if host is None:
            continue
        machine: Any = host.machine
        counts = machine.lane_counts()
        for state, count in counts.by_state.items():
            lanes.add_metric([str(tc_id), state], count)
        given.add_metric([str(tc_id)], counts.given)
        alive.add_metric([str(tc_id)], counts.clients)
    yield from (lanes, given, alive)


def _of_claims(service: CoordinatorService) -> Iterator[Metric]:
    at = ["cluster"]
    text = "1 while the claims in the cluster are held, so that it takes participants."
    held = GaugeMetricFamily("pulsar_txn_service_claims_held", text, labels=at)
    lost = CounterMetricFamily("pulsar_txn_service_claims_lost", "Times that the claims in the cluster were lost.", labels=at)
    for name, claims in service.clusters.claims.items():
        held.add_metric([name], claims.is_held)
        lost.add_metric([name], claims.losses)
    text = "Logs that another process goes on with, by clusters: a copy is in use."
    yield from (held, lost, gauge("pulsar_txn_service_registers_lost", text, {}, service.incarnations.lost_registers))
    text = "First commits of incarnations that a broker shows as hidden, or as not ended: pulsar-txn doctor says which."
    yield counter("pulsar_txn_service_wrong_ends", text, {}, service.first_commits.wrong)


def _of_ends(service: CoordinatorService) -> Iterator[Metric]:
    at = ["cluster"]
    told = CounterMetricFamily("pulsar_txn_service_ends_told", "Participants that hold their outcome.", labels=at)
    repeated = CounterMetricFamily("pulsar_txn_service_ends_repeated", "Ends that were told once more.", labels=at)
    spared = CounterMetricFamily("pulsar_txn_service_ends_spared", "Ends that needed not be told once more.", labels=at)
    alarms = CounterMetricFamily("pulsar_txn_service_end_alarms", "Ends that need somebody's hand.", labels=at)
    waiting = GaugeMetricFamily("pulsar_txn_service_ends_waiting", "Ends that are not told yet.", labels=at)
    to_repeat = GaugeMetricFamily("pulsar_txn_service_ends_to_repeat", "Ends that will be told once more.", labels=at)
    text = "For how long the first of the ends waits that are not told yet."
    oldest = GaugeMetricFamily("pulsar_txn_service_oldest_end_seconds", text, labels=at)
    failing_topics = GaugeMetricFamily("pulsar_txn_service_topics_held_back", "Topics whose last attempt failed.", labels=at)
    text = "Attempts to tell participants, by what they gave."
    attempts = CounterMetricFamily("pulsar_txn_service_end_attempts", text, labels=["cluster", "answer"])
    for name in service.clusters.names:
        driver = service.clusters.driver(name)
        if driver is None:
            continue
        for family, value in (
            (told, driver.ended),
            (repeated, driver.repeated),
            (spared, driver.spared),
            (alarms, driver.alarms),
            (waiting, driver.waiting),
            (to_repeat, driver.to_repeat),
            (oldest, driver.oldest_ms / 1000),
            (failing_topics, len(driver.failing_topics())),
        ):
            family.add_metric([name], value)
        for answer, count in driver.answers.items():
            attempts.add_metric([name, answer.name.lower()], count)
    yield from (told, repeated, spared, alarms, waiting, to_repeat, oldest, failing_topics, attempts)


async def show_metrics(request: web.Request) -> web.StreamResponse:
    """GET: the text format of Prometheus."""
    service = request.app[SERVICE]
    return await chunked_response(request, texts(_of_service(service), service.turn.budget), CONTENT_TYPE_LATEST)


ROUTES: Routes = [("GET", "/metrics", show_metrics), ("GET", "/metrics/", show_metrics)]
