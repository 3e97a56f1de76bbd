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
    """One consumer; a second one is refused with ConsumerBusy."""
    SHARED = 1
    """Message by message among all; no order."""
    FAILOVER = 2
    """One consumer per partition at a time, the others wait to take over."""
    KEY_SHARED = 3
    """All messages of a key to the same consumer, in order."""

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
    """How messages are divided among the consumers of the subscription."""
    consumer_name: str | None = None
    """What the broker shows; one is made up if None. Failover prefers lower names."""
    initial_position: InitialPosition = attrs.field(default=InitialPosition.LATEST, converter=InitialPosition)
    """Where the subscription starts if it does not exist yet."""
    receiver_queue_size: int = attrs.field(default=1000, validator=_at_least(1))
    """Messages fetched ahead at most, of each partition."""
    ack_group_delay: float = attrs.field(default=0.1, validator=_at_least(0))
    """Seconds that acknowledgements without a transaction wait to travel together; 0 sends each at once."""
    ack_receipt: bool = False
    """Whether `acknowledge` waits for the broker's answer; in a transaction it always does."""
    negative_ack_delay: float = attrs.field(default=60.0, validator=_at_least(0))
    """Seconds until what was acknowledged negatively comes again."""
    negative_ack_backoff: RedeliveryBackoff | None = None
    """Growing delays instead."""
    ack_timeout: float = attrs.field(default=0.0, validator=_at_least(0))
    """Seconds in which a message has to be acknowledged before it comes again; 0 is never."""
    ack_timeout_backoff: RedeliveryBackoff | None = None
    """Growing delays instead."""
    dead_letter_policy: DeadLetterPolicy | None = None
    """What becomes of messages that fail again and again; Shared and Key_Shared only."""
    interceptors: Sequence[ConsumerInterceptor] = ()
    """See each message before it is handed out, and each acknowledgement, in this order."""
    max_uncompressed_bytes: int = attrs.field(default=256 * 1024 * 1024, validator=_at_least(1))
    """Bytes that an entry, or a message in chunks, may have after decompression; a larger one is logged, and stays
    unacknowledged."""
    max_pending_chunked_messages: int = attrs.field(default=10, validator=_at_least(1))
    """Messages in chunks that may be incomplete at the same time, of each partition."""
    auto_ack_oldest_chunked_message: bool = False
    """Whether the oldest one beyond that is acknowledged. Else it stays unacknowledged and comes again: on Shared and
    Key_Shared after `negative_ack_delay`, on Exclusive and Failover when the subscription starts over."""
    expire_incomplete_chunks: float = attrs.field(default=60.0, validator=_at_least(0))
    """Seconds after which an incomplete message is acknowledged and dropped; 0 is never."""
    auto_update_partitions: float = attrs.field(default=60.0, validator=_at_least(0))
    """Seconds between two looks for new partitions; 0 is never."""
    pattern_discovery_period: float = attrs.field(default=60.0, validator=_at_least(0.001))
    """Seconds between two looks for new topics of a pattern."""
    regex_subscription_mode: RegexSubscriptionMode = attrs.field(
        default=RegexSubscriptionMode.PERSISTENT_ONLY, converter=RegexSubscriptionMode
    )
    """Which topics a pattern is compared with."""
    priority_level: int = 0
    """Consumers with a lower number are served first, on Shared and Failover."""
    read_compacted: bool = False
    """Whether only the newest message of each key is read, as far as the topic was compacted."""
    key_shared_policy: KeySharedPolicy | None = None
    """How keys are divided on Key_Shared."""
    properties: Mapping[str, str] | None = None
    """What the broker shows of the consumer in its statistics."""
    subscription_properties: Mapping[str, str] | None = None
    """What the broker keeps with the subscription, when this consumer creates it."""
    replicate_subscription_state: bool = False
    """Whether geo-replicated clusters are told how far the subscription is."""
    durable: bool = True
    """Whether the subscription stays when its consumers are gone."""
    start_message_id: MessageId | None = None
    """Where a subscription that is not durable starts; in place of `initial_position`."""
    start_message_id_inclusive: bool = False
    """Whether that message itself is delivered."""

    def __attrs_post_init__(self) -> None:
        if self.dead_letter_policy is not None and self.consumer_type.is_single:
            raise InvalidConfiguration(
                f"a dead-letter policy has no effect on a {self.consumer_type.name} subscription",
                hint="its broker counts deliveries on Shared and Key_Shared only",
            )

    crypto_keys: CryptoKeys | None = None
    """Where the private keys of end-to-end encryption come from."""
    crypto_failure_action: CryptoFailureAction = attrs.field(default=CryptoFailureAction.FAIL, converter=CryptoFailureAction)
    """What becomes of a message that cannot be decrypted."""
