"""Sections of a function's configuration, their choices, and the readers of their values.

Each reader takes a key and its value, and names the key in its error.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Self, TypeAlias, TypeVar

import attrs

from pulsar_txn.client import BatchingType, Compression
from pulsar_txn.client.errors import InvalidConfiguration

T = TypeVar("T")
Read: TypeAlias = Callable[[str, Any], Any]

IGNORED: Final = {
    "resources": "a process has what its machine gives it",
    "runtimeFlags": "there is no process to start with them",
    "customRuntimeOptions": "there is no other runtime to hand them to",
    "cleanupSubscription": "the subscription stays; a run is not the function's deletion",
    "exposePulsarAdminClientEnabled": "there is no administration client in a context",
}
"""Official keys that are accepted with a warning, and why they do nothing."""

REFUSED: Final = {
    "jar": "this runs Python: py",
    "go": "this runs Python: py",
    "functionType": "built-in functions are Java's: give className and py",
    "customSchemaOutputs": "give outputSchemaType",
    "autoAck": "leave it out; instead of autoAck: false there is processingGuarantees: MANUAL",
    "batchBuilder": "it belongs into producerConfig",
    "skipToLatest": "subscriptionPosition: LATEST for a new subscription; for an old one, `pulsar-admin topics clear-backlog`",
}
"""Official keys that would change what the function does, and what to do instead."""

SAYS_NOTHING: Final = (("autoAck", True), ("skipToLatest", False))
"""Official keys with the values that official tools send when nobody asked for something else."""


def text(key: str, value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InvalidConfiguration(f"{key} must be a text, not {value!r}")
    return value


def texts(key: str, value: Any) -> tuple[str, ...]:
    """A list of texts; a single text becomes a list."""
    those = [value] if isinstance(value, str) else value
    if not isinstance(those, (list, tuple)):
        raise InvalidConfiguration(f"{key} must be a list of texts, not {value!r}")
    return tuple(text(key, each) for each in those)


def boolean(key: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InvalidConfiguration(f"{key} must be true or false, not {value!r}")
    return value


def whole(least: int) -> Callable[[str, Any], int]:
    """A whole number from `least` on."""

    def read(key: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidConfiguration(f"{key} must be a whole number, at least {least}, not {value!r}")
        return value

    return read


milliseconds: Final = whole(1)


def choice(among: Mapping[str, T]) -> Callable[[str, Any], T]:
    """One of these names, in any case."""

    def read(key: str, value: Any) -> T:
        # YAML 1.1 reads OFF as false: the text of the file says what was meant.
        name = {False: "OFF", True: "ON"}[value] if isinstance(value, bool) else str(value).upper()
        if name not in among:
            raise InvalidConfiguration(f"{key} must be one of {', '.join(among)}, not {value!r}")
        return among[name]

    return read


def mapping(read: Read | None = None) -> Callable[[str, Any], dict[str, Any]]:
    """A mapping; its values by `read`."""

    def read_all(key: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise InvalidConfiguration(f"{key} must be a mapping, not a value of type {type(value).__name__}")
        return {str(name): each if read is None else read(f"{key}.{name}", each) for name, each in value.items()}

    return read_all


def section(cls: Callable[..., T], key: str, value: Any, keys: Mapping[str, tuple[str, Read]]) -> T:
    """A mapping with known keys, as an object of `cls`."""
    given = {name: each for name, each in mapping()(key, value).items() if each is not None}
    refuse_unknown(f"{key}.", given, keys)
    return cls(**{keys[name][0]: keys[name][1](f"{key}.{name}", each) for name, each in given.items()})


def refuse_unknown(where: str, given: Iterable[str], known: Mapping[str, object]) -> None:
    """InvalidConfiguration for a key that is not known, with the one that may be meant."""
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"do you mean {where}{near[0]}?" if near else f"known are {', '.join(sorted(known))}"
            raise InvalidConfiguration(f"{where}{key} is no key of a function's configuration", hint=hint)


_COMPRESSIONS: Final = {each.name: each for each in Compression}
_BATCHERS: Final = {"DEFAULT": BatchingType.DEFAULT, "KEY_BASED": BatchingType.KEY_BASED}


class ProcessingGuarantees(enum.Enum):
    """Rules for when an input is acknowledged; official names."""

    ATLEAST_ONCE = "ATLEAST_ONCE"
    """After its output and everything it published is stored; an exception has it delivered again."""
    ATMOST_ONCE = "ATMOST_ONCE"
    """Before it is processed."""
    EFFECTIVELY_ONCE = "EFFECTIVELY_ONCE"
    """As ATLEAST_ONCE, in order, with sequence ids by which the broker drops output that is there already."""
    MANUAL = "MANUAL"
    """By the function, with `context.ack`."""


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
        """Read the section from the mapping under `key`."""
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
        """Read the section from the mapping under `key`."""
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
        """Read the section from the mapping under `key`."""
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
        """Read the section from the mapping under `key`."""
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
