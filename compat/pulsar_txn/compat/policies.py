"""Policies, loggers and service descriptions under the official names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from pulsar_txn import client as ours
from pulsar_txn.compat._arguments import check
from pulsar_txn.compat.authentication import Authentication
from pulsar_txn.compat.enums import KeySharedMode, LoggerLevel
from pulsar_txn.compat.exceptions import not_supported


@attrs.frozen
class ConsumerBatchReceivePolicy:
    """When `batch_receive` returns: so many messages, so many bytes, or so many milliseconds; 0 or less: no such bound."""

    max_num_message: int
    max_num_bytes: int
    timeout_ms: int

    def __attrs_post_init__(self) -> None:
        if self.max_num_message <= 0 and self.max_num_bytes <= 0 and self.timeout_ms <= 0:
            raise ValueError("at least one of max_num_message, max_num_bytes and timeout_ms must be more than 0")

    def policy(self) -> ConsumerBatchReceivePolicy:
        """For the client: itself."""
        return self


class ConsumerKeySharedPolicy:
    """How a Key_Shared subscription divides keys."""

    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: list[tuple[int, int]] | None = None,
    ) -> None:
        if key_shared_mode == KeySharedMode.Sticky and sticky_ranges is None:
            raise ValueError("KeySharedMode.Sticky needs sticky_ranges")
        for start, end in sticky_ranges or ():
            if not 0 <= start <= end <= 65535:
                raise ValueError(f"a sticky range is within 0 to 65535, not {start} to {end}")
        self._mode = key_shared_mode
        self._out_of_order = allow_out_of_order_delivery
        self._ranges = list(sticky_ranges or [])

    @property
    def key_shared_mode(self) -> KeySharedMode:
        """By the broker, or fixed ranges."""
        return self._mode

    @property
    def allow_out_of_order_delivery(self) -> bool:
        """True if order may suffer when consumers come."""
        return self._out_of_order

    @property
    def sticky_ranges(self) -> list[tuple[int, int]]:
        """The fixed ranges of slots, both ends included."""
        return self._ranges

    def policy(self) -> ours.KeySharedPolicy:
        """For the client: ours."""
        return ours.KeySharedPolicy(tuple(self._ranges), allow_out_of_order=self._out_of_order)


class ConsumerDeadLetterPolicy:
    """What becomes of messages that fail again and again."""

    def __init__(
        self,
        max_redeliver_count: int,
        dead_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
    ) -> None:
        if max_redeliver_count is None or max_redeliver_count < 1:
            raise ValueError("max_redeliver_count must be at least 1")
        self.max_redeliver_count = max_redeliver_count
        self.dead_letter_topic = dead_letter_topic or ""
        self.initial_subscription_name = initial_subscription_name or ""

    def policy(self) -> ours.DeadLetterPolicy:
        """For the client: ours."""
        topic, subscription = self.dead_letter_topic or None, self.initial_subscription_name or None
        return ours.DeadLetterPolicy(
            max_redeliver_count=self.max_redeliver_count, dead_letter_topic=topic, initial_subscription=subscription
        )


class CryptoKeyReader:
    """Keys of end-to-end encryption, from two PEM files."""

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        check(str, public_key_path, "public_key_path")
        check(str, private_key_path, "private_key_path")
        self.public_key_path = public_key_path
        self.private_key_path = private_key_path


class ConsoleLogger:
    """Accepted, without effect: this client logs through `logging`."""

    def __init__(self, log_level: LoggerLevel = LoggerLevel.Info) -> None:
        check(LoggerLevel, log_level, "log_level")
        self.log_level = log_level


class FileLogger:
    """Accepted, without effect: this client logs through `logging`."""

    def __init__(self, log_level: LoggerLevel, log_file: str) -> None:
        check(LoggerLevel, log_level, "log_level")
        check(str, log_file, "log_file")
        self.log_level = log_level
        self.log_file = log_file


@attrs.frozen
class ServiceInfo:
    """Where a cluster is."""

    service_url: str
    authentication: Authentication | None = attrs.field(default=None, repr=False)
    tls_trust_certs_file_path: str | None = None

    @property
    def use_tls(self) -> bool:
        """By the URL's scheme."""
        return self.service_url.startswith(("pulsar+ssl://", "https://"))


class ServiceInfoProvider:
    """Not supported by `Client`; here so that classes that derive from it can be imported."""

    def initial_service_info(self) -> ServiceInfo:
        """To be overridden."""
        raise not_supported("ServiceInfoProvider", "give the service URL")

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """To be overridden."""
        raise not_supported("ServiceInfoProvider", "give the service URL")

    def close(self) -> None:
        """Nothing to close."""


class AutoClusterFailover:
    """Given to `Client` in place of the service URL: it moves to another cluster when the one it uses is gone, and back.

    Thresholds are probes in a row, one every `check_interval_ms`. All clusters take the same credentials and authorities.
    """

    def __init__(
        self,
        primary: ServiceInfo,
        secondary: list[ServiceInfo],
        check_interval_ms: int = 5000,
        failover_threshold: int = 1,
        switch_back_threshold: int = 1,
    ) -> None:
        check(ServiceInfo, primary, "primary")
        check(list, secondary, "secondary")
        if not secondary:
            raise ValueError("secondary needs at least one ServiceInfo")
        for each in secondary:
            check(ServiceInfo, each, "secondary")
        numbers = {
            "check_interval_ms": check_interval_ms,
            "failover_threshold": failover_threshold,
            "switch_back_threshold": switch_back_threshold,
        }
        for name, number in numbers.items():
            check(int, number, name)
            if number <= 0:
                raise ValueError(f"{name} must be more than 0")
        self.primary = primary
        self.secondary = list(secondary)
        self.check_interval_ms = check_interval_ms
        self.failover_threshold = failover_threshold
        self.switch_back_threshold = switch_back_threshold

    def policy(self) -> ours.AutoClusterFailover:
        """For the client: ours. OperationNotSupported when the clusters differ in more than their URL."""
        ways = {(id(each.authentication), each.tls_trust_certs_file_path) for each in (self.primary, *self.secondary)}
        if len(ways) > 1:
            raise not_supported("AutoClusterFailover with several credentials", "give every ServiceInfo the same")
        seconds = self.check_interval_ms / 1000
        urls: Any = [each.service_url for each in self.secondary]  # mypy takes the converter `tuple` for generic
        return ours.AutoClusterFailover(
            primary=self.primary.service_url,
            secondaries=urls,
            check_interval=seconds,
            failover_delay=seconds * (self.failover_threshold - 1),
            switch_back_delay=seconds * (self.switch_back_threshold - 1),
        )
