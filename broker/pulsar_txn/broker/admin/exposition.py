"""Metrics in Prometheus' text format: how they are written, and those that every server with coordinators has."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pulsar_txn.broker.base.limits import Limits
from pulsar_txn.broker.base.loop_meter import Histogram, LoopMeter
from pulsar_txn.broker.base.slices import LoopBudget
from pulsar_txn.broker.txn.coordinators import Coordinators
from pulsar_txn.wire.ids import TxnAction

_SAMPLES_AT_ONCE: Final = 100
_HEAD: Final = re.compile(r"^# .*\n", re.MULTILINE)


class _One(Collector):
    """A registry's view of some metrics."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


async def texts(metrics: AsyncIterator[Metric], budget: LoopBudget) -> AsyncIterator[str]:
    """Metrics in the text format, in parts, and those of the process after them; made in slices."""
    async for metric in metrics:
        samples, is_first = metric.samples, True
        while samples or is_first:
            await budget.pause()
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


def of_loop(meter: LoopMeter, labels: dict[str, str]) -> Iterator[Metric]:
    """Metrics of the event loop: the length of its turns, and the delay of timers."""
    text = "Turns of the loop in which the broker worked, by their length."
    yield histogram("pulsar_txn_broker_loop_block_seconds", text, labels, meter.turns)
    text = "How late a timer of every tenth of a second came, whatever held the loop."
    yield histogram("pulsar_txn_broker_loop_late_seconds", text, labels, meter.late)
    text = "The longest that the loop was seen held since the start."
    yield gauge("pulsar_txn_broker_loop_longest_block_seconds", text, labels, meter.longest_seconds)


def limits_reached(limits: Limits, labels: dict[str, str]) -> Metric:
    """Counted by key of the configuration."""
    text = "How often clients met a limit and were refused, or made to wait."
    reached = CounterMetricFamily("pulsar_txn_broker_limit_reached", text, labels=[*labels, "limit"])
    for key, count in sorted(limits.reached.items()):
        reached.add_metric([*labels.values(), key], count)
    return reached


def of_coordinators(coordinators: Coordinators, common: dict[str, str], now_ms: int) -> Iterator[Metric]:
    """Counts of each coordinator."""
    labels = [*common, "coordinator_id"]
    ready = GaugeMetricFamily("pulsar_txn_coordinator_ready", "1 when the coordinator serves.", labels=labels)
    active = GaugeMetricFamily("pulsar_txn_active_count", "Transactions that are open or ending.", labels=labels)
    created = CounterMetricFamily("pulsar_txn_created", "Transactions opened, in the life of the log.", labels=labels)
    committed = CounterMetricFamily("pulsar_txn_committed", "Transactions committed since the start.", labels=labels)
    aborted = CounterMetricFamily("pulsar_txn_aborted", "Transactions aborted since the start.", labels=labels)
    timed_out = CounterMetricFamily("pulsar_txn_timeout", "Transactions aborted by their timeout.", labels=labels)
    appended = CounterMetricFamily("pulsar_txn_append_log", "Records of the coordinator's log since the start.", labels=labels)
    unanswered = _checks("unanswered", "Transactions ended or parked because nobody of their check group knew.", labels)
    asked = _checks("asked", "Questions to members of check groups that have left since the start.", labels)
    text = "Transactions of a restored log that wait for an administrator."
    held = GaugeMetricFamily("pulsar_txn_coordinator_held", text, labels=labels)
    text = "Transactions that are prepared and wait for their end."
    prepared = GaugeMetricFamily("pulsar_txn_coordinator_prepared", text, labels=labels)
    text = "For how long the first of them waits."
    oldest = GaugeMetricFamily("pulsar_txn_coordinator_prepared_oldest_seconds", text, labels=labels)
    text = "Transactions whose check group did not know, and that wait for an operator."
    parked = GaugeMetricFamily("pulsar_txn_coordinator_parked", text, labels=labels)
    text = "For how long the first of them waits."
    oldest_parked = GaugeMetricFamily("pulsar_txn_coordinator_parked_oldest_seconds", text, labels=labels)
    begun = _checks("begun", "Questions that members of check groups have begun to answer since the start.", labels)
    text = "Transactions that neither a client nor their check group has decided, by what became of them and why."
    decided = _checks("decided", text, [*labels, "outcome", "cause"])
    telling = 0
    for tc_id in range(len(coordinators)):
        host = coordinators.ready(tc_id)
        at = [*common.values(), str(tc_id)]
        ready.add_metric(at, host is not None)
        if host is None:
            continue
        machine: Any = host.machine
        if hasattr(machine, "active_count"):
            active.add_metric(at, machine.active_count)
            created.add_metric(at, machine.next_local_txn_id)
        committed.add_metric(at, host.ended[TxnAction.COMMIT])
        aborted.add_metric(at, host.ended[TxnAction.ABORT])
        timed_out.add_metric(at, host.expired)
        appended.add_metric(at, host.appended)
        telling += host.telling
        asked.add_metric(at, coordinators.check_groups.asked[tc_id])
        unanswered.add_metric(at, host.unanswered)
        since_ms = getattr(machine, "prepared_since_ms", ())
        prepared.add_metric(at, len(since_ms))
        held.add_metric(at, getattr(machine, "held_count", 0))
        oldest.add_metric(at, max(0, now_ms - min(since_ms, default=now_ms)) / 1000)
        since_ms = getattr(machine, "parked_since_ms", ())
        parked.add_metric(at, len(since_ms))
        oldest_parked.add_metric(at, max(0, now_ms - min(since_ms, default=now_ms)) / 1000)
        begun.add_metric(at, coordinators.check_groups.begun[tc_id])
        for (outcome, cause), count in sorted(host.decided.items()):
            decided.add_metric([*at, outcome, cause], count)
    yield from (ready, active, created, committed, aborted, timed_out, appended, asked, begun, unanswered, decided)
    yield from (prepared, oldest, held, parked, oldest_parked)
    answered = _checks("answered", "Answers of members of check groups since the start, by outcome.", [*common, "outcome"])
    for outcome in ("commit", "abort", "unknown", "refused"):
        answered.add_metric([*common.values(), outcome], coordinators.check_groups.answered[outcome])
    yield answered
    text = "Memberships of check groups, counted at each coordinator."
    yield gauge("pulsar_txn_coordinator_check_group_members", text, common, coordinators.check_groups.memberships)
    text = "Participants that were told an outcome and have not answered yet."
    yield gauge("pulsar_txn_tb_client_pending_requests", text, common, telling)


def _checks(what: str, text: str, labels: list[str]) -> CounterMetricFamily:
    return CounterMetricFamily(f"pulsar_txn_coordinator_checks_{what}", text, labels=labels)


def gauge(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    """One value that goes up and down."""
    return _filled(GaugeMetricFamily(name, text, labels=list(labels)), labels, value)


def counter(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    """One value that only grows."""
    return _filled(CounterMetricFamily(name.removesuffix("_total"), text, labels=list(labels)), labels, value)


def histogram(name: str, text: str, labels: dict[str, str], counts: Histogram) -> Metric:
    """Counts by length."""
    family = HistogramMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), counts.buckets(), counts.total)
    metric: Metric = family
    return metric


def _filled(family: Any, labels: dict[str, str], value: float) -> Metric:
    family.add_metric(list(labels.values()), value)
    metric: Metric = family
    return metric
