"""What a consumer was told at its creation."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from pulsar_txn.client.crypto import CryptoFailureAction, CryptoKeys
from pulsar_txn.client.dead_letters import DeadLetterPolicy
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.interceptors import ConsumerInterceptor
from pulsar_txn.client.redelivery import RedeliveryBackoff
from pulsar_txn.wire.ids import MessageId


class ConsumerType(enum.IntEnum):
    """How a subscription's messages are divided among its consumers (protocol enum SubType)."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def is_single(self) -> bool:
        """Whether one consumer at a time gets all messages, in order."""
        return self in (ConsumerType.EXCLUSIVE, ConsumerType.FAILOVER)


class InitialPosition(enum.IntEnum):
    """Where a new subscription starts (protocol enum InitialPosition)."""

    LATEST = 0
    EARLIEST = 1


class RegexSubscriptionMode(enum.IntEnum):
    """Which topics a pattern stands for (protocol enum Mode of GET_TOPICS_OF_NAMESPACE)."""

    PERSISTENT_ONLY = 0
    NON_PERSISTENT_ONLY = 1
    ALL_TOPICS = 2


@attrs.frozen
class KeySharedPolicy:
    """How a Key_Shared subscription divides keys: by the broker, or by fixed ranges of the slots 0 to 65535 (inclusive)."""

    sticky_ranges: Sequence[tuple[int, int]] = ()
    allow_out_of_order: bool = False

    def __attrs_post_init__(self) -> None:
        """InvalidConfiguration for ranges that no broker takes."""
        ranges = sorted(self.sticky_ranges)
        bad = any(not 0 <= start <= end <= 65535 for start, end in ranges)
        if bad or any(before[1] >= after[0] for before, after in itertools.pairwise(ranges)):
            raise InvalidConfiguration(
                f"sticky ranges {list(self.sticky_ranges)} are impossible",
                hint="each (start, end) has 0 <= start <= end <= 65535, and none overlaps another",
            )


def _at_least(least: float) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    def check(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not value >= least:
            raise InvalidConfiguration(f"{attribute.name} must be at least {least}, not {value!r}")

    return check


@attrs.frozen(kw_only=True)
class ConsumerOptions:
    """Options of `Client.subscribe`; times in seconds, 0 for `ack_timeout` and `auto_update_partitions`: never."""

    consumer_type: ConsumerType = attrs.field(default=ConsumerType.EXCLUSIVE, converter=ConsumerType)
    consumer_name: str | None = None
    initial_position: InitialPosition = attrs.field(default=InitialPosition.LATEST, converter=InitialPosition)
    receiver_queue_size: int = attrs.field(default=1000, validator=_at_least(1))
    ack_group_delay: float = attrs.field(default=0.1, validator=_at_least(0))
    ack_receipt: bool = False
    negative_ack_delay: float = attrs.field(default=60.0, validator=_at_least(0))
    negative_ack_backoff: RedeliveryBackoff | None = None
    ack_timeout: float = attrs.field(default=0.0, validator=_at_least(0))
    ack_timeout_backoff: RedeliveryBackoff | None = None
    dead_letter_policy: DeadLetterPolicy | None = None
    interceptors: Sequence[ConsumerInterceptor] = ()
    max_pending_chunked_messages: int = attrs.field(default=10, validator=_at_least(1))
    auto_ack_oldest_chunked_message: bool = False
    expire_incomplete_chunks: float = attrs.field(default=60.0, validator=_at_least(0))
    auto_update_partitions: float = attrs.field(default=60.0, validator=_at_least(0))
    pattern_discovery_period: float = attrs.field(default=60.0, validator=_at_least(0.001))
    regex_subscription_mode: RegexSubscriptionMode = attrs.field(
        default=RegexSubscriptionMode.PERSISTENT_ONLY, converter=RegexSubscriptionMode
    )
    priority_level: int = 0
    read_compacted: bool = False
    key_shared_policy: KeySharedPolicy | None = None
    properties: Mapping[str, str] | None = None
    subscription_properties: Mapping[str, str] | None = None
    replicate_subscription_state: bool = False
    durable: bool = True
    start_message_id: MessageId | None = None
    start_message_id_inclusive: bool = False

    def __attrs_post_init__(self) -> None:
        if self.dead_letter_policy is not None and self.consumer_type.is_single:
            raise InvalidConfiguration(
                f"a dead-letter policy has no effect on a {self.consumer_type.name} subscription",
                hint="its broker counts deliveries on Shared and Key_Shared only",
            )

    crypto_keys: CryptoKeys | None = None
    crypto_failure_action: CryptoFailureAction = attrs.field(default=CryptoFailureAction.FAIL, converter=CryptoFailureAction)
