"""The options of a producer."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, TypedDict

import attrs
from attrs.validators import optional

from pulsar_txn.client._validation import (
    A_SOURCE_OF_KEYS,
    as_seconds,
    at_least,
    each_having,
    flag,
    having,
    one_of,
    refused,
    seconds,
    text,
    texts,
    validate_subscription_name,
    whole,
)
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.client.schema.base import SchemaInfo
from pulsar_txn.client.schema.crypto import CryptoKeys, Encryptor
from pulsar_txn.client.send.interceptors import ProducerInterceptor
from pulsar_txn.client.send.routing import HashingScheme, HashingSchemeName, Router, RoutingMode, RoutingModeName
from pulsar_txn.wire.producer_properties import REFUSE_GAPS


class AccessMode(enum.IntEnum):
    """Access of other producers to the topic (protocol enum ProducerAccessMode)."""

    SHARED = 0
    """Anybody may."""
    EXCLUSIVE = 1
    """Exclusive access: ProducerFenced when there is another producer; those that come later get ProducerBusy."""
    WAIT_FOR_EXCLUSIVE = 2
    """Exclusive access; `create_producer` waits until the others are gone."""
    EXCLUSIVE_WITH_FENCING = 3
    """Exclusive access at once: present producers are fenced and can never send again (ProducerFenced)."""


AccessModeName: TypeAlias = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]
"""Names of AccessMode that `create_producer` takes as well."""


class Compression(enum.IntEnum):
    """Compression of payloads (protocol enum CompressionType)."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


CompressionName: TypeAlias = Literal["none", "lz4", "zlib", "zstd", "snappy"]
"""Names of Compression that `create_producer` takes as well."""


class BatchingType(enum.Enum):
    """Messages that share a batch: all, or those of one ordering key, else key (needed by Key_Shared consumers)."""

    DEFAULT = "default"
    KEY_BASED = "key_based"


BatchingTypeName: TypeAlias = Literal["default", "key_based"]
"""Names of BatchingType that `create_producer` takes as well."""


MAX_LONG: Final = (1 << 63) - 1
"""Largest sequence id and time, because brokers and clients in Java read them as signed numbers."""


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    given = tuple(names) if isinstance(names, Iterable) else (names,)
    if not all(isinstance(name, str) for name in given):
        raise refused("encryption_keys", names, "names of keys")
    return given


def _routing(given: RoutingMode | RoutingModeName | Router) -> RoutingMode | Router:
    return (
        given
        if callable(given)
        else one_of(RoutingMode, given, "routing", hint="or give a function (key, payload) -> partition")
    )


def _compression(given: Compression | CompressionName) -> Compression:
    return one_of(Compression, given, "compression")


def _batching_type(given: BatchingType | BatchingTypeName) -> BatchingType:
    return one_of(BatchingType, given, "batching_type")


def _hashing(given: HashingScheme | HashingSchemeName) -> HashingScheme:
    return one_of(HashingScheme, given, "hashing")


def _access_mode(given: AccessMode | AccessModeName) -> AccessMode:
    return one_of(AccessMode, given, "access_mode")


@attrs.frozen(kw_only=True)
class ProducerOptions:
    """Options of `Client.create_producer`; times in seconds or as timedeltas, sizes in bytes.

    With `encryption_keys` (names) and `crypto_keys` payloads are encrypted end to end; a message that cannot be is not sent.
    """

    producer_name: str | None = attrs.field(default=None, validator=optional(text))
    """The producer's name. Only one producer of the topic can have it at a time; the broker chooses one if None."""
    initial_sequence_id: int | None = attrs.field(default=None, validator=optional(whole(0, MAX_LONG)))
    """The first sequence id; None: after the last one that the broker has stored for this name."""
    refuse_sequence_gaps: bool = attrs.field(default=False, validator=flag)
    """True if the broker refuses a message (OutOfOrderSequence) when the one before it was not stored. Needs our broker, with
    deduplication; elsewhere `create_producer` raises NotAllowedError."""
    send_timeout: float = attrs.field(default=30.0, converter=as_seconds, validator=seconds(0))
    """Seconds until a send without a receipt is given up with OperationTimeout; 0 means never."""
    compression: Compression = attrs.field(default=Compression.NONE, converter=_compression)
    """The compression of batches, and of unbatched messages."""
    batching: bool = attrs.field(default=True, validator=flag)
    """True if messages that wait together travel as one entry. A lone message does not wait for others."""
    batching_type: BatchingType = attrs.field(default=BatchingType.DEFAULT, converter=_batching_type)
    """Rule that says which messages share a batch."""
    chunking: bool = attrs.field(default=False, validator=flag)
    """True if a message larger than the broker's maximum is sent in chunks; else it is MessageTooLarge."""
    chunk_max_bytes: int = attrs.field(default=0, validator=at_least(0))
    """Size of a chunk; 0 means the broker's limit."""
    batching_max_messages: int = attrs.field(default=1000, validator=at_least(1))
    """Messages of a batch at most."""
    batching_max_bytes: int = attrs.field(default=128 * 1024, validator=at_least(1))
    """Bytes of a batch at most, before compression; the broker's limit, if that is less."""
    batching_max_delay: float = attrs.field(default=0.01, converter=as_seconds, validator=seconds(0))
    """Seconds that a message waits for others at most."""
    max_pending_messages: int = attrs.field(default=50_000, validator=at_least(1))
    """Messages without a receipt at most, over all partitions."""
    max_pending_bytes: int = attrs.field(default=64 * 1024 * 1024, validator=at_least(1))
    """Bytes without a receipt at most, over all partitions."""
    block_if_full: bool = attrs.field(default=True, validator=flag)
    """True if `send` waits at these limits; otherwise it raises ProducerQueueFull, as `send_nowait` always does."""
    routing: RoutingMode | Router = attrs.field(default=RoutingMode.ROUND_ROBIN, converter=_routing)
    """Partition of messages without a key, or a function `(key, payload) -> partition` for all messages."""
    hashing: HashingScheme = attrs.field(default=HashingScheme.JAVA_STRING, converter=_hashing)
    """The hash by which keys find their partition."""
    access_mode: AccessMode = attrs.field(default=AccessMode.SHARED, converter=_access_mode)
    """Access of other producers to the topic; the page Fencing shows its use."""
    properties: Mapping[str, str] | None = attrs.field(default=None, validator=optional(texts))
    """Properties that the broker shows in its statistics."""
    initial_subscription: str | None = attrs.field(default=None, validator=optional(text))
    """A subscription that is created together with the topic."""
    interceptors: Sequence[ProducerInterceptor] = attrs.field(
        default=(), validator=each_having("before_send", "on_send_finished", needed="a ProducerInterceptor")
    )
    """Observers of each message before it is sent and after its receipt, in this order."""
    auto_update_partitions: float = attrs.field(default=60.0, converter=as_seconds, validator=seconds(0))
    """Seconds between two looks for new partitions; 0 means never."""
    encryption_keys: Sequence[str] = attrs.field(default=(), converter=_names)
    """Names of the public keys; the owner of any one of the private keys can read."""
    crypto_keys: CryptoKeys | None = attrs.field(
        default=None, validator=optional(having("public_key", needed=A_SOURCE_OF_KEYS))
    )
    """Source of the public keys."""

    def __attrs_post_init__(self) -> None:
        """Keys and where they come from go together, and a subscription has a name."""
        if self.initial_subscription:
            validate_subscription_name("initial_subscription", self.initial_subscription)
        if bool(self.encryption_keys) != (self.crypto_keys is not None):
            raise InvalidConfiguration("encryption_keys (names) and crypto_keys (where they come from) go together")


class ProducerOptionsDict(TypedDict, total=False):
    """The options of `create_producer` for type checkers and editors; `ProducerOptions` says what each does."""

    producer_name: str | None
    initial_sequence_id: int | None
    refuse_sequence_gaps: bool
    send_timeout: float | timedelta
    compression: Compression | CompressionName
    batching: bool
    batching_type: BatchingType | BatchingTypeName
    chunking: bool
    chunk_max_bytes: int
    batching_max_messages: int
    batching_max_bytes: int
    batching_max_delay: float | timedelta
    max_pending_messages: int
    max_pending_bytes: int
    block_if_full: bool
    routing: RoutingMode | RoutingModeName | Router
    hashing: HashingScheme | HashingSchemeName
    access_mode: AccessMode | AccessModeName
    properties: Mapping[str, str] | None
    initial_subscription: str | None
    interceptors: Sequence[ProducerInterceptor]
    auto_update_partitions: float | timedelta
    encryption_keys: str | Sequence[str]
    crypto_keys: CryptoKeys | None


def encryptor_for(options: ProducerOptions, runtime: Runtime) -> Encryptor | None:
    """The encryption that the options ask for. CryptoError when a key cannot be used."""
    if options.crypto_keys is None:
        return None
    return Encryptor(options.encryption_keys, options.crypto_keys, runtime)


def fields_of(options: ProducerOptions, schema: SchemaInfo | None, name: str, topic_epoch: int | None) -> dict[str, Any]:
    """Fields of PRODUCER: of the options, of the schema, and of what the broker has said before, if anything."""
    fields: dict[str, Any] = {
        "user_provided_producer_name": options.producer_name is not None,
        "producer_access_mode": int(options.access_mode),
    }
    properties = dict(options.properties or {}) | ({REFUSE_GAPS: "true"} if options.refuse_sequence_gaps else {})
    if properties:
        fields["metadata"] = [{"key": key, "value": value} for key, value in properties.items()]
    if options.crypto_keys is not None:
        fields["encrypted"] = True
    if options.initial_subscription is not None:
        fields["initial_subscription_name"] = options.initial_subscription
    if schema is not None:
        fields["schema"] = schema.field()
    if name:
        fields["producer_name"] = name
    if topic_epoch is not None:
        fields["topic_epoch"] = topic_epoch
    return fields
