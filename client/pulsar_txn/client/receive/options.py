"""Options that a consumer was given at its creation."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal, TypeAlias, TypedDict

import attrs
from attrs.validators import optional

from pulsar_txn.client._validation import (
    A_CONSUMER_INTERCEPTOR,
    A_SOURCE_OF_KEYS,
    as_seconds,
    at_least,
    each_having,
    flag,
    having,
    instance,
    number,
    one_of,
    refused,
    seconds,
    text,
    texts,
    whole,
)
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.receive.dead_letters import DeadLetterPolicy
from pulsar_txn.client.receive.interceptors import ConsumerInterceptor
from pulsar_txn.client.schema.crypto import CryptoFailureAction, CryptoFailureActionName, CryptoKeys
from pulsar_txn.wire.ids import MessageId


class ConsumerType(enum.IntEnum):
    """Ways in which a subscription's messages are divided among its consumers (protocol enum SubType)."""

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
        """True if one consumer at a time gets all messages, in order."""
        return self in (ConsumerType.EXCLUSIVE, ConsumerType.FAILOVER)


ConsumerTypeName: TypeAlias = Literal["exclusive", "shared", "failover", "key_shared"]
"""Names of ConsumerType that `subscribe` takes as well."""


class InitialPosition(enum.IntEnum):
    """Places where a new subscription starts (protocol enum InitialPosition)."""

    LATEST = 0
    EARLIEST = 1


InitialPositionName: TypeAlias = Literal["latest", "earliest"]
"""Names of InitialPosition that `subscribe` takes as well."""


class RegexSubscriptionMode(enum.IntEnum):
    """Sets of topics that a pattern represents (protocol enum Mode of GET_TOPICS_OF_NAMESPACE)."""

    PERSISTENT_ONLY = 0
    NON_PERSISTENT_ONLY = 1
    ALL_TOPICS = 2


RegexSubscriptionModeName: TypeAlias = Literal["persistent_only", "non_persistent_only", "all_topics"]
"""Names of RegexSubscriptionMode that `subscribe` takes as well."""


def _is_range(given: object) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(slot, int) for slot in given)


@attrs.frozen
class KeySharedPolicy:
    """Division of keys by a Key_Shared subscription: by the broker, or by fixed ranges of the slots 0 to 65535 (inclusive)."""

    sticky_ranges: Sequence[tuple[int, int]] = ()
    allow_out_of_order: bool = False

    def __attrs_post_init__(self) -> None:
        """InvalidConfiguration for ranges that no broker takes."""
        if not (isinstance(self.sticky_ranges, Sequence) and all(_is_range(each) for each in self.sticky_ranges)):
            raise refused("sticky_ranges", self.sticky_ranges, "pairs of whole numbers, (start, end)")
        ranges = sorted(self.sticky_ranges)
        bad = any(not 0 <= start <= end <= 65535 for start, end in ranges)
        if bad or any(before[1] >= after[0] for before, after in itertools.pairwise(ranges)):
            raise InvalidConfiguration(
                f"sticky ranges {list(self.sticky_ranges)} are impossible",
                hint="each (start, end) has 0 <= start <= end <= 65535, and none overlaps another",
            )


def _consumer_type(given: ConsumerType | ConsumerTypeName) -> ConsumerType:
    return one_of(ConsumerType, given, "consumer_type")


def _initial_position(given: InitialPosition | InitialPositionName) -> InitialPosition:
    return one_of(InitialPosition, given, "initial_position")


def _regex_subscription_mode(given: RegexSubscriptionMode | RegexSubscriptionModeName) -> RegexSubscriptionMode:
    return one_of(RegexSubscriptionMode, given, "regex_subscription_mode")


def _crypto_failure_action(given: CryptoFailureAction | CryptoFailureActionName) -> CryptoFailureAction:
    return one_of(CryptoFailureAction, given, "crypto_failure_action")


@attrs.frozen
class RedeliveryBackoff:
    """Delays that grow with each delivery: `min_delay` at first, times `multiplier`, at most `max_delay`.

    Raises InvalidConfiguration for delays that cannot grow. Brokers count deliveries on Shared and Key_Shared only.
    """

    min_delay: float = attrs.field(default=1.0, converter=as_seconds, validator=number)
    max_delay: float = attrs.field(default=600.0, converter=as_seconds, validator=number)
    multiplier: float = attrs.field(default=2.0, validator=number)

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.min_delay <= self.max_delay or self.multiplier < 1:
            raise InvalidConfiguration(
                f"delays from {self.min_delay} to {self.max_delay} s by {self.multiplier} are impossible",
                hint="0 <= min_delay <= max_delay, and multiplier at least 1",
            )

    def delay(self, redelivery_count: int) -> float:
        """Seconds until the next delivery of what was redelivered so often before."""
        try:
            return float(min(self.min_delay * self.multiplier**redelivery_count, self.max_delay))
        except OverflowError:
            return self.max_delay


_BACKOFF = having("delay", needed="a RedeliveryBackoff")


@attrs.frozen(kw_only=True)
class ConsumerOptions:
    """Options of `Client.subscribe`; times in seconds or as timedeltas.

    0 for `ack_timeout` and `auto_update_partitions` is never.
    """

    consumer_type: ConsumerType = attrs.field(default=ConsumerType.EXCLUSIVE, converter=_consumer_type)
    """Division of the messages among the consumers of the subscription."""
    consumer_name: str | None = attrs.field(default=None, validator=optional(text))
    """Name that the broker shows; a random one if None. Failover prefers lower names."""
    initial_position: InitialPosition = attrs.field(default=InitialPosition.LATEST, converter=_initial_position)
    """Start of the subscription if it does not exist yet."""
    receiver_queue_size: int = attrs.field(default=1000, validator=whole(1))
    """Messages fetched ahead at most, of each partition."""
    receiver_queue_bytes: int = attrs.field(default=0, validator=at_least(0))
    """About how many bytes are fetched ahead at most, of each partition, at least one message; 0 is no bound. The broker
    counts messages, so fewer are asked for the larger they are; a sudden jump in size can pass the bound once."""
    ack_group_delay: float = attrs.field(default=0.1, converter=as_seconds, validator=seconds(0))
    """Seconds that acknowledgements without a transaction wait to travel together; 0 sends each at once."""
    ack_receipt: bool = attrs.field(default=False, validator=flag)
    """True if `acknowledge` waits for the broker's answer; in a transaction it always does."""
    negative_ack_delay: float = attrs.field(default=60.0, converter=as_seconds, validator=seconds(0))
    """Seconds until what was acknowledged negatively comes again."""
    negative_ack_backoff: RedeliveryBackoff | None = attrs.field(default=None, validator=optional(_BACKOFF))
    """Growing delays instead."""
    ack_timeout: float = attrs.field(default=0.0, converter=as_seconds, validator=seconds(0))
    """Seconds in which a message has to be acknowledged before it comes again; 0 is never."""
    ack_timeout_backoff: RedeliveryBackoff | None = attrs.field(default=None, validator=optional(_BACKOFF))
    """Growing delays instead."""
    dead_letter_policy: DeadLetterPolicy | None = attrs.field(
        default=None, validator=optional(instance(DeadLetterPolicy, "a DeadLetterPolicy"))
    )
    """Treatment of messages that fail again and again; Shared and Key_Shared only."""
    interceptors: Sequence[ConsumerInterceptor] = attrs.field(
        default=(), validator=each_having("on_receive", "on_acknowledge", needed=A_CONSUMER_INTERCEPTOR)
    )
    """See each message before it is handed out, and each acknowledgement, in this order."""
    max_uncompressed_bytes: int = attrs.field(default=256 * 1024 * 1024, validator=at_least(1))
    """Bytes that an entry, or a message in chunks, may have after decompression; a larger one is logged, and stays
    unacknowledged."""
    max_pending_chunked_messages: int = attrs.field(default=10, validator=at_least(1))
    """Messages in chunks that may be incomplete at the same time, of each partition."""
    auto_ack_oldest_chunked_message: bool = attrs.field(default=False, validator=flag)
    """True if the oldest one beyond that is acknowledged. Else it stays unacknowledged and comes again: on Shared and
    Key_Shared after `negative_ack_delay`, on Exclusive and Failover when the subscription starts over."""
    expire_incomplete_chunks: float = attrs.field(default=60.0, converter=as_seconds, validator=seconds(0))
    """Seconds after which an incomplete message is acknowledged and dropped; 0 is never."""
    auto_update_partitions: float = attrs.field(default=60.0, converter=as_seconds, validator=seconds(0))
    """Seconds between two looks for new partitions; 0 is never."""
    pattern_discovery_period: float = attrs.field(default=60.0, converter=as_seconds, validator=seconds(0.001))
    """Seconds between two looks for new topics of a pattern."""
    regex_subscription_mode: RegexSubscriptionMode = attrs.field(
        default=RegexSubscriptionMode.PERSISTENT_ONLY, converter=_regex_subscription_mode
    )
    """Kinds of topics that a pattern is compared with."""
    priority_level: int = attrs.field(default=0, validator=whole(-(1 << 31), (1 << 31) - 1))
    """Consumers with a lower number are served first, on Shared and Failover."""
    read_compacted: bool = attrs.field(default=False, validator=flag)
    """True if only the newest message of each key is read, as far as the topic was compacted."""
    key_shared_policy: KeySharedPolicy | None = attrs.field(
        default=None, validator=optional(instance(KeySharedPolicy, "a KeySharedPolicy"))
    )
    """Division of the keys on Key_Shared."""
    properties: Mapping[str, str] | None = attrs.field(default=None, validator=optional(texts))
    """Properties that the broker shows in the consumer's statistics."""
    subscription_properties: Mapping[str, str] | None = attrs.field(default=None, validator=optional(texts))
    """Properties that the broker keeps with the subscription, when this consumer creates it."""
    replicate_subscription_state: bool = attrs.field(default=False, validator=flag)
    """True if geo-replicated clusters are told the subscription's position."""
    durable: bool = attrs.field(default=True, validator=flag)
    """True if the subscription stays when its consumers are gone."""
    start_message_id: MessageId | None = attrs.field(default=None, validator=optional(instance(MessageId, "a MessageId")))
    """Start of a subscription that is not durable, in place of `initial_position`."""
    start_message_id_inclusive: bool = attrs.field(default=False, validator=flag)
    """True if that message itself is delivered."""

    def __attrs_post_init__(self) -> None:
        if self.dead_letter_policy is not None and self.consumer_type.is_single:
            raise InvalidConfiguration(
                f"a dead-letter policy has no effect on a {self.consumer_type.name} subscription",
                hint="its broker counts deliveries on Shared and Key_Shared only",
            )

    crypto_keys: CryptoKeys | None = attrs.field(
        default=None, validator=optional(having("private_key", needed=A_SOURCE_OF_KEYS))
    )
    """Source of the private keys of end-to-end encryption."""
    crypto_failure_action: CryptoFailureAction = attrs.field(default=CryptoFailureAction.FAIL, converter=_crypto_failure_action)
    """Treatment of a message that cannot be decrypted."""


class ReaderOptionsDict(TypedDict, total=False):
    """The options of `create_reader` and `create_table_view` for type checkers and editors: those without a subscription."""

    receiver_queue_size: int
    receiver_queue_bytes: int
    interceptors: Sequence[ConsumerInterceptor]
    max_uncompressed_bytes: int
    max_pending_chunked_messages: int
    auto_ack_oldest_chunked_message: bool
    expire_incomplete_chunks: float | timedelta
    auto_update_partitions: float | timedelta
    read_compacted: bool
    properties: Mapping[str, str] | None
    crypto_keys: CryptoKeys | None
    crypto_failure_action: CryptoFailureAction | CryptoFailureActionName


class ConsumerOptionsDict(ReaderOptionsDict, total=False):
    """The options of `subscribe` for type checkers and editors; `ConsumerOptions` says what each does."""

    consumer_type: ConsumerType | ConsumerTypeName
    consumer_name: str | None
    initial_position: InitialPosition | InitialPositionName
    ack_group_delay: float | timedelta
    ack_receipt: bool
    negative_ack_delay: float | timedelta
    negative_ack_backoff: RedeliveryBackoff | None
    ack_timeout: float | timedelta
    ack_timeout_backoff: RedeliveryBackoff | None
    dead_letter_policy: DeadLetterPolicy | None
    pattern_discovery_period: float | timedelta
    regex_subscription_mode: RegexSubscriptionMode | RegexSubscriptionModeName
    priority_level: int
    key_shared_policy: KeySharedPolicy | None
    subscription_properties: Mapping[str, str] | None
    replicate_subscription_state: bool
    durable: bool
    start_message_id: MessageId | None
    start_message_id_inclusive: bool
