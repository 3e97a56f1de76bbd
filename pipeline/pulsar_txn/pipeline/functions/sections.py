"""The sections of a function's configuration, and the values that they choose from."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, Self

import attrs

from pulsar_txn.client import BatchingType, Compression
from pulsar_txn.pipeline.functions._keys import boolean, choice, mapping, section, text, whole

_COMPRESSIONS: Final = {each.name: each for each in Compression}
_BATCHERS: Final = {"DEFAULT": BatchingType.DEFAULT, "KEY_BASED": BatchingType.KEY_BASED}


class ProcessingGuarantees(enum.Enum):
    """Rules for when an input is acknowledged; official names."""

    ATLEAST_ONCE = "ATLEAST_ONCE"
    """When its output and everything it published is stored; an exception has it delivered again."""
    ATMOST_ONCE = "ATMOST_ONCE"
    """Before it is processed."""
    EFFECTIVELY_ONCE = "EFFECTIVELY_ONCE"
    """As ATLEAST_ONCE, in order, with sequence ids by which the broker drops output that is there already."""
    MANUAL = "MANUAL"
    """When the function says so, with `context.ack`."""


class SubscriptionPosition(enum.Enum):
    """Places where a new subscription starts."""

    LATEST = "LATEST"
    EARLIEST = "EARLIEST"


class TransactionMode(enum.Enum):
    """Rules for whether the runtime opens transactions (PIP-439)."""

    OFF = "OFF"
    MANAGED = "MANAGED"
    """Acknowledgement, output and `context.publish` in one transaction."""


@attrs.frozen(kw_only=True)
class TransactionConfig:
    """The section `transaction`."""

    mode: TransactionMode = TransactionMode.OFF
    timeout_ms: int = 60_000
    """Milliseconds until the coordinator aborts."""
    batching_max_entries: int = 1
    """Messages of a transaction at most; 0 and 1: each has its own."""
    batching_quiet_period_ms: int = 100
    """Milliseconds that a batch waits for more messages."""

    @classmethod
    def parse(cls, key: str, value: Any) -> Self:
        """From the mapping under `key`."""
        return section(
            cls,
            key,
            value,
            {
                "transactionMode": ("mode", choice(TransactionMode.__members__)),
                "transactionTimeoutMs": ("timeout_ms", whole(1)),
                "transactionBatchingMaxEntries": ("batching_max_entries", whole(0)),
                "transactionBatchingQuietPeriodMs": ("batching_quiet_period_ms", whole(0)),
            },
        )


class StateScope(enum.Enum):
    """Scopes of a state: who shares it."""

    FUNCTION = "FUNCTION"
    """The whole function, which has one instance."""
    PARTITION = "PARTITION"
    """The messages of one input partition; needs retainOrdering."""


@attrs.frozen(kw_only=True)
class StateConfig:
    """The section `state`, which is ours: Pulsar keeps state in BookKeeper's table service."""

    topic: str | None = None
    """By default `persistent://tenant/namespace/name-state`."""
    scope: StateScope = StateScope.FUNCTION

    @classmethod
    def parse(cls, key: str, value: Any) -> Self:
        """From the mapping under `key`."""
        keys = {"stateTopic": ("topic", text), "stateScope": ("scope", choice(StateScope.__members__))}
        return section(cls, key, value, keys)


@attrs.frozen(kw_only=True)
class InputSpec:
    """One entry of `inputSpecs`."""

    serde_class_name: str | None = None
    schema_type: str | None = None
    is_regex_pattern: bool = False
    receiver_queue_size: int = 1000
    consumer_properties: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def parse(cls, key: str, value: Any) -> Self:
        """From the mapping under `key`."""
        return section(
            cls,
            key,
            value,
            {
                "serdeClassName": ("serde_class_name", text),
                "schemaType": ("schema_type", text),
                "isRegexPattern": ("is_regex_pattern", boolean),
                "regexPattern": ("is_regex_pattern", boolean),
                "receiverQueueSize": ("receiver_queue_size", whole(1)),
                "consumerProperties": ("consumer_properties", mapping(text)),
            },
        )


@attrs.frozen(kw_only=True)
class ProducerConfig:
    """The section `producerConfig`, of the output and of topics published to."""

    compression: Compression = Compression.LZ4
    batching_type: BatchingType = BatchingType.DEFAULT
    max_pending_messages: int = 1000

    @classmethod
    def parse(cls, key: str, value: Any) -> Self:
        """From the mapping under `key`."""
        return section(
            cls,
            key,
            value,
            {
                "compressionType": ("compression", choice(_COMPRESSIONS)),
                "batchBuilder": ("batching_type", choice(_BATCHERS)),
                "maxPendingMessages": ("max_pending_messages", whole(1)),
            },
        )
