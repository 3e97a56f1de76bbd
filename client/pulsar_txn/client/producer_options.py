"""What a producer was told at its creation."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from pulsar_txn.client.crypto import CryptoKeys, Encryptor
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.interceptors import ProducerInterceptor
from pulsar_txn.client.routing import HashingScheme, Router, RoutingMode
from pulsar_txn.client.runtime import Runtime, secret_bytes


class AccessMode(enum.IntEnum):
    """Who may produce to the topic beside this producer (protocol enum ProducerAccessMode)."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Compression(enum.IntEnum):
    """How payloads are compressed (protocol enum CompressionType)."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


class BatchingType(enum.Enum):
    """What shares a batch: everything, or only messages of one ordering key, else key (needed by Key_Shared consumers)."""

    DEFAULT = "default"
    KEY_BASED = "key_based"


def _at_least(least: float) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    def check(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not value >= least:
            raise InvalidConfiguration(f"{attribute.name} must be at least {least}, not {value!r}")

    return check


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


@attrs.frozen(kw_only=True)
class ProducerOptions:
    """Options of `Client.create_producer`; times in seconds, sizes in bytes.

    With `encryption_keys` (names) and `crypto_keys` payloads are encrypted end to end; a message that cannot be is not sent.
    """

    producer_name: str | None = None
    initial_sequence_id: int | None = None
    send_timeout: float = attrs.field(default=30.0, validator=_at_least(0))
    compression: Compression = attrs.field(default=Compression.NONE, converter=Compression)
    batching: bool = True
    batching_type: BatchingType = attrs.field(default=BatchingType.DEFAULT, converter=BatchingType)
    chunking: bool = False
    chunk_max_bytes: int = attrs.field(default=0, validator=_at_least(0))
    batching_max_messages: int = attrs.field(default=1000, validator=_at_least(1))
    batching_max_bytes: int = attrs.field(default=128 * 1024, validator=_at_least(1))
    batching_max_delay: float = attrs.field(default=0.01, validator=_at_least(0))
    max_pending_messages: int = attrs.field(default=50_000, validator=_at_least(1))
    max_pending_bytes: int = attrs.field(default=64 * 1024 * 1024, validator=_at_least(1))
    block_if_full: bool = True
    routing: RoutingMode | Router = RoutingMode.ROUND_ROBIN
    hashing: HashingScheme = attrs.field(default=HashingScheme.JAVA_STRING, converter=HashingScheme)
    access_mode: AccessMode = attrs.field(default=AccessMode.SHARED, converter=AccessMode)
    properties: Mapping[str, str] | None = None
    initial_subscription: str | None = None
    interceptors: Sequence[ProducerInterceptor] = ()
    auto_update_partitions: float = attrs.field(default=60.0, validator=_at_least(0))
    encryption_keys: Sequence[str] = attrs.field(default=(), converter=_names)
    crypto_keys: CryptoKeys | None = None

    def __attrs_post_init__(self) -> None:
        """Keys and where they come from go together."""
        if bool(self.encryption_keys) != (self.crypto_keys is not None):
            raise InvalidConfiguration("encryption_keys (names) and crypto_keys (where they come from) go together")


def encryptor_for(options: ProducerOptions, runtime: Runtime) -> Encryptor | None:
    """The encryption that the options ask for. CryptoError when a key cannot be used."""
    if options.crypto_keys is None:
        return None
    return Encryptor(options.encryption_keys, options.crypto_keys, random_bytes=secret_bytes, monotonic=runtime.monotonic)
