"""Statistics of the instances of a function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

PREFIX: Final = "pulsar_function_"


@attrs.frozen
class UserMetric:
    """Metric that `context.record_metric` was given under one name."""

    count: int
    total: float


@attrs.frozen(kw_only=True)
class FunctionStats:
    """Since the run began. `process_latency_ms` is the mean time of `process` in milliseconds.

    `user_exceptions` are those of `process`; `system_exceptions` those around it: a payload that the SerDe cannot read, an
    output that was not stored, a transaction that was not committed.
    """

    received: int
    processed_successfully: int
    user_exceptions: int
    system_exceptions: int
    process_latency_ms: float
    last_invocation_ms: int
    """Milliseconds since the epoch; 0 before the first call."""
    user_metrics: Mapping[str, UserMetric]

    def metrics(self) -> dict[str, float]:
        """Metrics by their official names; those of the function as `pulsar_function_user_metric_<name>_sum` and `_count`."""
        found: dict[str, float] = {
            f"{PREFIX}received_total": self.received,
            f"{PREFIX}processed_successfully_total": self.processed_successfully,
            f"{PREFIX}user_exceptions_total": self.user_exceptions,
            f"{PREFIX}system_exceptions_total": self.system_exceptions,
            f"{PREFIX}process_latency_ms": self.process_latency_ms,
            f"{PREFIX}last_invocation": self.last_invocation_ms,
        }
        for name, metric in self.user_metrics.items():
            found[f"{PREFIX}user_metric_{name}_sum"] = metric.total
            found[f"{PREFIX}user_metric_{name}_count"] = metric.count
        return found


class Counts:
    """Counts of one instance, while it runs."""

    def __init__(self) -> None:
        self.received = self.successes = self.user_exceptions = self.system_exceptions = 0
        self.calls = 0
        self.seconds = 0.0
        self.last_invocation_ms = 0
        self.user_metrics: dict[str, UserMetric] = {}

    def took(self, messages: int) -> None:
        """Count messages that go to `process`."""
        self.received += messages

    def begins(self, now_ms: int) -> None:
        """Note that a call of `process` begins."""
        self.last_invocation_ms = now_ms

    def raised(self) -> None:
        """Count an exception of `process`."""
        self.user_exceptions += 1

    def ends(self, seconds: float) -> None:
        """Count a call that is over, after so long."""
        self.calls += 1
        self.seconds += seconds

    def processed(self, messages: int) -> None:
        """Count messages that are done."""
        self.successes += messages

    def failed(self) -> None:
        """Count an error around `process`."""
        self.system_exceptions += 1

    def record(self, name: str, value: float) -> None:
        """A metric of the function's own."""
        before = self.user_metrics.get(name, UserMetric(0, 0.0))
        self.user_metrics[name] = UserMetric(before.count + 1, before.total + value)


def total(all_counts: Iterable[Counts]) -> FunctionStats:
    """The sum over instances."""
    counts = list(all_counts)
    calls = sum(each.calls for each in counts)
    user: dict[str, UserMetric] = {}
    for each in counts:
        for name, metric in list(each.user_metrics.items()):
            before = user.get(name, UserMetric(0, 0.0))
            user[name] = UserMetric(before.count + metric.count, before.total + metric.total)
    return FunctionStats(
        received=sum(each.received for each in counts),
        processed_successfully=sum(each.successes for each in counts),
        user_exceptions=sum(each.user_exceptions for each in counts),
        system_exceptions=sum(each.system_exceptions for each in counts),
        process_latency_ms=1000 * sum(each.seconds for each in counts) / calls if calls else 0.0,
        last_invocation_ms=max((each.last_invocation_ms for each in counts), default=0),
        user_metrics=user,
    )
