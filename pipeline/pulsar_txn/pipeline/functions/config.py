"""What a function is told: `FunctionConfig`, from a mapping or a YAML file with the official keys."""

from __future__ import annotations

import enum
import importlib
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import attrs

from pulsar_txn.client import BatchingType, Compression
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.pipeline.functions._keys import (
    IGNORED,
    REFUSED,
    SAYS_NOTHING,
    Read,
    boolean,
    choice,
    mapping,
    milliseconds,
    refuse_unknown,
    section,
    text,
    texts,
    whole,
)
from pulsar_txn.pipeline.functions.windows.config import WindowConfig

_COMPRESSIONS: Final = {each.name: each for each in Compression}
_BATCHERS: Final = {"DEFAULT": BatchingType.DEFAULT, "KEY_BASED": BatchingType.KEY_BASED}


class ProcessingGuarantees(enum.Enum):
    """When an input is acknowledged; official names."""

    ATLEAST_ONCE = "ATLEAST_ONCE"
    """When its output and everything it published is stored; an exception has it delivered again."""
    ATMOST_ONCE = "ATMOST_ONCE"
    """Before it is processed."""
    EFFECTIVELY_ONCE = "EFFECTIVELY_ONCE"
    """As ATLEAST_ONCE, in order, with sequence ids by which the broker drops output that is there already."""
    MANUAL = "MANUAL"
    """When the function says so, with `context.ack`."""


class SubscriptionPosition(enum.Enum):
    """Where a new subscription starts."""

    LATEST = "LATEST"
    EARLIEST = "EARLIEST"


class TransactionMode(enum.Enum):
    """Whether the runtime opens transactions (PIP-439)."""

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
    """Who shares a state."""

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


@attrs.frozen(kw_only=True)
class FunctionConfig:
    """A function's configuration. InvalidConfiguration names the key that cannot work, and what to do instead.

    Made by `from_mapping` or `from_file` with the official camelCase keys, or directly with these names.
    """

    class_name: str | None = None
    """`module.Class`, or `module` for a module with `process(input)`; not needed when the function is given as an object."""
    py: str | None = None
    """Where that module is: a .py file, a folder, a .zip or .whl; relative to the configuration's file."""
    tenant: str = "public"
    namespace: str = "default"
    name: str = "function"
    """By default the last part of `class_name`."""
    inputs: tuple[str, ...] = ()
    topics_pattern: str | None = None
    custom_serde_inputs: Mapping[str, str] = attrs.field(factory=dict)
    input_specs: Mapping[str, InputSpec] = attrs.field(factory=dict)
    output: str | None = None
    output_serde_class_name: str | None = None
    log_topic: str | None = None
    processing_guarantees: ProcessingGuarantees = ProcessingGuarantees.ATLEAST_ONCE
    retain_ordering: bool = False
    retain_key_ordering: bool = False
    sub_name: str | None = None
    """By default `tenant/namespace/name`."""
    subscription_position: SubscriptionPosition = SubscriptionPosition.LATEST
    user_config: Mapping[str, Any] = attrs.field(factory=dict)
    secrets: Mapping[str, Any] = attrs.field(factory=dict)
    forward_source_message_property: bool = True
    max_message_retries: int | None = None
    """Attempts after the first one until a message is poison; None: for ever."""
    dead_letter_topic: str | None = None
    timeout_ms: int | None = None
    """Milliseconds without acknowledgement after which a message comes again."""
    parallelism: int = 1
    """Instances, each with a consumer and a function object of its own."""
    max_pending_async_requests: int = 1000
    """Messages of an instance whose output is on its way."""
    producer: ProducerConfig = ProducerConfig()
    transaction: TransactionConfig = TransactionConfig()
    window: WindowConfig | None = None
    """Collects messages in windows; it always uses transactions."""
    state: StateConfig | None = None
    """None: the state is opened when the function first uses it."""

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any]) -> Self:
        """From official keys. A key that has no effect here is warned of, one that asks for something else is refused."""
        given = {key: value for key, value in config.items() if value is not None and (key, value) not in SAYS_NOTHING}
        for key in IGNORED.keys() & given.keys():
            warnings.warn(f"{key} has no effect: {IGNORED[key]}", UserWarning, stacklevel=2)
            del given[key]
        for key in REFUSED.keys() & given.keys():
            raise InvalidConfiguration(f"{key} is not supported", hint=REFUSED[key])
        if given.pop("runtime", "PYTHON") != "PYTHON":
            raise InvalidConfiguration(f"runtime {config['runtime']!r} is not supported", hint="this runs Python: PYTHON")
        refuse_unknown("", given, _KEYS)
        fields: dict[str, Any] = {_KEYS[key][0]: _KEYS[key][1](key, value) for key, value in given.items() if key != "fqfn"}
        if "fqfn" in given:
            fields |= _fqfn("fqfn", given["fqfn"])
        if "name" not in fields and fields.get("class_name"):
            fields["name"] = fields["class_name"].rpartition(".")[2]
        return cls(**fields)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """From a YAML file; needs PyYAML, which the extra `functions` brings. OSError when it cannot be read."""
        return cls.from_mapping(cls.read(path))

    @staticmethod
    def read(path: str | Path) -> dict[str, Any]:
        """The keys of a YAML file; `py` becomes relative to the file. Raises as `from_file`."""
        try:
            yaml = importlib.import_module("yaml")
        except ImportError as error:
            raise InvalidConfiguration("PyYAML is needed", hint="pip install 'pulsar-txn[functions]'") from error
        file = Path(path)
        try:
            found = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InvalidConfiguration(f"{file} is no YAML: {error}") from error
        if not isinstance(found, dict):
            raise InvalidConfiguration(f"{file} is no mapping of keys to values")
        if isinstance(found.get("py"), str):
            found["py"] = str(file.parent / found["py"])
        return found

    def __attrs_post_init__(self) -> None:
        if not self.topics and not self.patterns:
            raise InvalidConfiguration("inputs: a function needs an input", hint="give inputs, topicsPattern or inputSpecs")
        if self.output is not None and self.output in self.topics:
            raise InvalidConfiguration(f"output: {self.output} is also an input", hint="a function must not feed itself")
        self._check_order()
        self._check_state()
        self._check_window()
        self._check_retries()
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidConfiguration(f"topicsPattern: {pattern!r} is no regular expression: {error}") from error

    def _check_order(self) -> None:
        guarantee = self.processing_guarantees
        if self.retain_ordering and self.retain_key_ordering:
            raise InvalidConfiguration("retainOrdering and retainKeyOrdering exclude each other", hint="give one of them")
        if self.is_managed and guarantee is not ProcessingGuarantees.ATLEAST_ONCE:
            raise InvalidConfiguration(
                f"processingGuarantees: {guarantee.value} has no meaning with transactionMode MANAGED",
                hint="leave processingGuarantees out: the transaction acknowledges",
            )
        if not self.is_effectively_once:
            return
        if self.retain_key_ordering:
            raise InvalidConfiguration(
                "retainKeyOrdering does not go with EFFECTIVELY_ONCE, which is Failover", hint="leave it out, or use MANAGED"
            )
        if self.parallelism > 1:
            raise InvalidConfiguration(
                "parallelism: EFFECTIVELY_ONCE has one instance", hint="start a second process as a standby, or use MANAGED"
            )
        if self.patterns:
            raise InvalidConfiguration(
                "topicsPattern does not go with EFFECTIVELY_ONCE, which takes no partitioned topics", hint="name the inputs"
            )

    def _check_state(self) -> None:
        if self.state is None or self.state.scope is StateScope.FUNCTION:
            return
        if not self.retain_ordering:
            raise InvalidConfiguration(
                "stateScope: PARTITION needs one receiver for each input partition", hint="set retainOrdering: true"
            )
        if len(self.topics) > 1 or self.patterns:
            raise InvalidConfiguration("stateScope: PARTITION takes one input topic", hint="use one function for each input")

    def _check_window(self) -> None:
        if self.window is None:
            return
        if self.parallelism > 1:
            raise InvalidConfiguration("windowConfig needs one instance, which has all messages", hint="set parallelism: 1")
        if self.patterns:
            raise InvalidConfiguration("windowConfig does not go with topicsPattern", hint="name the inputs")
        if self.retain_key_ordering or (self.state is not None and self.state.scope is StateScope.PARTITION):
            raise InvalidConfiguration(
                "windows are of the whole input, in order", hint="leave out retainKeyOrdering and stateScope"
            )
        if self.max_message_retries is not None:
            raise InvalidConfiguration(
                "maxMessageRetries does not go with windowConfig: no single message is to blame for a window",
                hint="handle bad messages in the function",
            )
        if self.window.counts_overlapping and len(self.topics) > 1:
            raise InvalidConfiguration(
                "slidingIntervalCount takes one input: the order between inputs is not the same after a crash",
                hint="use one input, or windowLengthDurationMs",
            )

    @property
    def windows(self) -> WindowConfig:
        """`window`, where there is one."""
        if self.window is None:
            raise InvalidConfiguration("there is no windowConfig")
        return self.window

    def _check_retries(self) -> None:
        if self.dead_letter_topic is not None and self.max_message_retries is None:
            raise InvalidConfiguration(
                "deadLetterTopic without maxMessageRetries", hint="say how often to try: maxMessageRetries"
            )
        plain = self.processing_guarantees is ProcessingGuarantees.ATLEAST_ONCE and not self.is_managed
        if self.timeout_ms is not None and not plain:
            raise InvalidConfiguration(
                "timeoutMs goes with ATLEAST_ONCE only", hint="with MANAGED, transactionTimeoutMs bounds the work"
            )
        if self.max_message_retries is None:
            return
        if self.dead_letter_topic is None and "/" in self.subscription:
            raise InvalidConfiguration(
                f"maxMessageRetries without deadLetterTopic: {self.subscription} cannot be part of a topic's name",
                hint="name the deadLetterTopic, or give a subName without a slash",
            )
        if self.is_managed:
            return
        if not plain or self.retain_ordering:
            raise InvalidConfiguration(
                "maxMessageRetries needs a broker that counts deliveries: ATLEAST_ONCE without retainOrdering",
                hint="use retainKeyOrdering, or transactionMode MANAGED, which counts by itself",
            )

    @property
    def topics(self) -> tuple[str, ...]:
        """All inputs that are names, each once."""
        named = [topic for topic, spec in self.input_specs.items() if not spec.is_regex_pattern]
        return tuple(dict.fromkeys([*self.inputs, *self.custom_serde_inputs, *named]))

    @property
    def patterns(self) -> tuple[str, ...]:
        """All inputs that are regular expressions, each once."""
        specified = [topic for topic, spec in self.input_specs.items() if spec.is_regex_pattern]
        return tuple(dict.fromkeys([*([self.topics_pattern] if self.topics_pattern else []), *specified]))

    @property
    def is_managed(self) -> bool:
        """Whether the runtime opens transactions."""
        return self.transaction.mode is TransactionMode.MANAGED or self.window is not None

    @property
    def is_effectively_once(self) -> bool:
        """Whether output has sequence ids."""
        return self.processing_guarantees is ProcessingGuarantees.EFFECTIVELY_ONCE

    @property
    def fqfn(self) -> str:
        """`tenant/namespace/name`."""
        return f"{self.tenant}/{self.namespace}/{self.name}"

    @property
    def state_topic(self) -> str:
        """The topic of the state, or the beginning of its name when each input partition has a state."""
        named = None if self.state is None else self.state.topic
        return named or f"persistent://{self.fqfn}-state"

    @property
    def subscription(self) -> str:
        """The subscription's name."""
        return self.sub_name or self.fqfn

    def serde_of(self, topic: str) -> str | None:
        """The class name that an input's SerDe was given with."""
        spec = self.input_specs.get(topic)
        return (spec and spec.serde_class_name) or self.custom_serde_inputs.get(topic)


def _fqfn(key: str, value: Any) -> dict[str, str]:
    parts = text(key, value).split("/")
    if len(parts) != 3 or not all(parts):
        raise InvalidConfiguration(f"{key}: {value!r} is not tenant/namespace/name")
    return dict(zip(("tenant", "namespace", "name"), parts, strict=True))


_KEYS: Final[Mapping[str, tuple[str, Read]]] = {
    "className": ("class_name", text),
    "py": ("py", text),
    "tenant": ("tenant", text),
    "namespace": ("namespace", text),
    "name": ("name", text),
    "fqfn": ("", text),
    "inputs": ("inputs", texts),
    "topicsPattern": ("topics_pattern", text),
    "customSerdeInputs": ("custom_serde_inputs", mapping(text)),
    "inputSpecs": ("input_specs", mapping(InputSpec.parse)),
    "output": ("output", text),
    "outputSerdeClassName": ("output_serde_class_name", text),
    "logTopic": ("log_topic", text),
    "processingGuarantees": ("processing_guarantees", choice(ProcessingGuarantees.__members__)),
    "retainOrdering": ("retain_ordering", boolean),
    "retainKeyOrdering": ("retain_key_ordering", boolean),
    "subName": ("sub_name", text),
    "subscriptionPosition": ("subscription_position", choice(SubscriptionPosition.__members__)),
    "userConfig": ("user_config", mapping()),
    "secrets": ("secrets", mapping()),
    "forwardSourceMessageProperty": ("forward_source_message_property", boolean),
    "maxMessageRetries": ("max_message_retries", whole(1)),
    "deadLetterTopic": ("dead_letter_topic", text),
    "timeoutMs": ("timeout_ms", milliseconds),
    "parallelism": ("parallelism", whole(1)),
    "state": ("state", StateConfig.parse),
    "windowConfig": ("window", WindowConfig.parse),
    "maxPendingAsyncRequests": ("max_pending_async_requests", whole(1)),
    "producerConfig": ("producer", ProducerConfig.parse),
    "transaction": ("transaction", TransactionConfig.parse),
}
