"""Configuration of a function: `FunctionConfig`, read from a mapping or a YAML file with the official keys.

`check` refuses combinations of keys that cannot work together.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import attrs

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.pipeline.functions.sections import (
    IGNORED,
    REFUSED,
    SAYS_NOTHING,
    InputSpec,
    ProcessingGuarantees,
    ProducerConfig,
    Read,
    StateConfig,
    StateScope,
    SubscriptionPosition,
    TransactionConfig,
    TransactionMode,
    boolean,
    choice,
    mapping,
    milliseconds,
    refuse_unknown,
    text,
    texts,
    whole,
)
from pulsar_txn.pipeline.functions.windows.config import WindowConfig

ONE_STATE: Final = "{} instances cannot own one state"
ONE_STATE_HINT: Final = (
    "set parallelism: 1, or state: {stateScope: PARTITION} with retainOrdering: true, "
    "which gives each input partition a state of its own"
)


def check(config: FunctionConfig) -> None:
    """InvalidConfiguration names the keys that cannot work together, and what to do."""
    if not config.topics and not config.patterns:
        raise InvalidConfiguration("inputs: a function needs an input", hint="give inputs, topicsPattern or inputSpecs")
    if config.output is not None and config.output in config.topics:
        raise InvalidConfiguration(f"output: {config.output} is also an input", hint="a function must not feed itself")
    _check_order(config)
    _check_schemas(config)
    _check_state(config)
    _check_window(config)
    _check_retries(config)
    for pattern in config.patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidConfiguration(f"topicsPattern: {pattern!r} is no regular expression: {error}") from error


def _check_order(config: FunctionConfig) -> None:
    guarantee = config.processing_guarantees
    if config.retain_ordering and config.retain_key_ordering:
        raise InvalidConfiguration("retainOrdering and retainKeyOrdering exclude each other", hint="give one of them")
    if config.is_managed and guarantee is not ProcessingGuarantees.ATLEAST_ONCE:
        raise InvalidConfiguration(
            f"processingGuarantees: {guarantee.value} has no meaning with transactionMode MANAGED",
            hint="leave processingGuarantees out: the transaction acknowledges",
        )
    if not config.is_effectively_once:
        return
    if config.retain_key_ordering:
        raise InvalidConfiguration(
            "retainKeyOrdering does not go with EFFECTIVELY_ONCE, which is Failover", hint="leave it out, or use MANAGED"
        )
    if config.parallelism > 1:
        raise InvalidConfiguration(
            "parallelism: EFFECTIVELY_ONCE has one instance", hint="start a second process as a standby, or use MANAGED"
        )
    if config.patterns:
        raise InvalidConfiguration(
            "topicsPattern does not go with EFFECTIVELY_ONCE, which takes no partitioned topics", hint="name the inputs"
        )


def _check_state(config: FunctionConfig) -> None:
    if config.state is None:
        return
    if config.state.scope is StateScope.FUNCTION:
        if config.parallelism > 1:
            raise InvalidConfiguration(ONE_STATE.format(config.parallelism), hint=ONE_STATE_HINT)
        return
    if not config.retain_ordering:
        raise InvalidConfiguration(
            "stateScope: PARTITION needs one receiver for each input partition", hint="set retainOrdering: true"
        )
    if len(config.topics) > 1 or config.patterns:
        raise InvalidConfiguration("stateScope: PARTITION takes one input topic", hint="use one function for each input")


def _check_schemas(config: FunctionConfig) -> None:
    for topic in (*config.topics, *config.patterns):
        if config.schema_of(topic) is not None and config.serde_of(topic) is not None:
            raise InvalidConfiguration(f"{topic} has a schema and a SerDe", hint="give one of them")
    if config.output_schema_type is not None and config.output_serde_class_name is not None:
        raise InvalidConfiguration("outputSchemaType does not go with outputSerdeClassName", hint="give one of them")


def _check_window(config: FunctionConfig) -> None:
    if config.window is None:
        return
    if config.parallelism > 1:
        raise InvalidConfiguration("windowConfig needs one instance, which has all messages", hint="set parallelism: 1")
    if config.patterns:
        raise InvalidConfiguration("windowConfig does not go with topicsPattern", hint="name the inputs")
    if config.retain_key_ordering or (config.state is not None and config.state.scope is StateScope.PARTITION):
        raise InvalidConfiguration(
            "windows are of the whole input, in order", hint="leave out retainKeyOrdering and stateScope"
        )
    if config.max_message_retries is not None:
        raise InvalidConfiguration(
            "maxMessageRetries does not go with windowConfig: no single message is to blame for a window",
            hint="handle bad messages in the function",
        )
    if config.window.counts_overlapping and len(config.topics) > 1:
        raise InvalidConfiguration(
            "slidingIntervalCount takes one input: the order between inputs is not the same after a crash",
            hint="use one input, or windowLengthDurationMs",
        )


def _check_retries(config: FunctionConfig) -> None:
    if config.dead_letter_topic is not None and config.max_message_retries is None and config.window is None:
        raise InvalidConfiguration("deadLetterTopic without maxMessageRetries", hint="say how often to try: maxMessageRetries")
    plain = config.processing_guarantees is ProcessingGuarantees.ATLEAST_ONCE and not config.is_managed
    if config.timeout_ms is not None and not plain:
        raise InvalidConfiguration(
            "timeoutMs goes with ATLEAST_ONCE only", hint="with MANAGED, transactionTimeoutMs bounds the work"
        )
    if config.max_message_retries is None:
        return
    if config.dead_letter_topic is None and "/" in config.subscription:
        raise InvalidConfiguration(
            f"maxMessageRetries without deadLetterTopic: {config.subscription} cannot be part of a topic's name",
            hint="name the deadLetterTopic, or give a subName without a slash",
        )
    if config.is_managed:
        return
    if not plain or config.retain_ordering:
        raise InvalidConfiguration(
            "maxMessageRetries needs a broker that counts deliveries: ATLEAST_ONCE without retainOrdering",
            hint="use retainKeyOrdering, or transactionMode MANAGED, which counts by itself",
        )


_MOST_NODES: Final = 100_000
"""Values in a file. A few anchors that contain each other can stand for any number."""


@attrs.frozen(kw_only=True)
class FunctionConfig:
    """A function's configuration. InvalidConfiguration names the key that cannot work, and what to do instead.

    Made by `from_mapping` or `from_file` with the official camelCase keys, or directly with these names.
    """

    class_name: str | None = None
    """`module.Class`, or `module` for a module with `process(input)`; not needed when the function is given as an object."""
    py: str | None = None
    """Place of that module: a .py file, a folder, a .zip or .whl; relative to the configuration's file."""
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
    custom_schema_inputs: Mapping[str, str] = attrs.field(factory=dict)
    """Schema types of inputs, by topic."""
    input_type_class_name: str | None = None
    """The class of the values of inputs with a schema of type json or avro."""
    output_schema_type: str | None = None
    output_type_class_name: str | None = None
    log_topic: str | None = None
    processing_guarantees: ProcessingGuarantees = ProcessingGuarantees.ATLEAST_ONCE
    retain_ordering: bool = False
    retain_key_ordering: bool = False
    sub_name: str | None = None
    """By default `tenant/namespace/name`."""
    subscription_position: SubscriptionPosition = SubscriptionPosition.LATEST
    user_config: Mapping[str, Any] = attrs.field(factory=dict)
    secrets: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
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
    producer: ProducerConfig = attrs.field(factory=ProducerConfig)
    transaction: TransactionConfig = attrs.field(factory=TransactionConfig)
    window: WindowConfig | None = None
    """Collects messages in windows; it always uses transactions."""
    state: StateConfig | None = None
    """None: the state is opened when the function first uses it."""

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any]) -> Self:
        """Make a configuration of official keys. Warns of a key without effect here, and refuses one that asks for more."""
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
        """Read a configuration from a YAML file; needs PyYAML (extra `functions`). OSError when it cannot be read."""
        return cls.from_mapping(cls.read(path))

    @staticmethod
    def read(path: str | Path) -> dict[str, Any]:
        """The keys of a YAML file; `py` becomes relative to the file. Raises as `from_file`."""
        try:
            yaml = importlib.import_module("yaml")
        except ImportError as error:
            raise InvalidConfiguration("PyYAML is needed", hint="pip install '.[functions]' in a checkout") from error
        file = Path(path)
        try:
            found = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InvalidConfiguration(f"{file} is no YAML{_where(error)}") from None  # the error has the text of the line
        if not isinstance(found, dict):
            raise InvalidConfiguration(f"{file} is no mapping of keys to values")
        if _has_more_nodes(found, _MOST_NODES):
            raise InvalidConfiguration(f"{file} has more than {_MOST_NODES} values when its anchors are written out")
        if isinstance(found.get("py"), str):
            found["py"] = str(file.parent / found["py"])
        return found

    def __attrs_post_init__(self) -> None:
        check(self)

    @property
    def windows(self) -> WindowConfig:
        """`window`, where there is one."""
        if self.window is None:
            raise InvalidConfiguration("there is no windowConfig")
        return self.window

    @property
    def topics(self) -> tuple[str, ...]:
        """All inputs that are names, each once."""
        named = [topic for topic, spec in self.input_specs.items() if not spec.is_regex_pattern]
        return tuple(dict.fromkeys([*self.inputs, *self.custom_serde_inputs, *self.custom_schema_inputs, *named]))

    @property
    def patterns(self) -> tuple[str, ...]:
        """All inputs that are regular expressions, each once."""
        specified = [topic for topic, spec in self.input_specs.items() if spec.is_regex_pattern]
        return tuple(dict.fromkeys([*([self.topics_pattern] if self.topics_pattern else []), *specified]))

    @property
    def is_managed(self) -> bool:
        """True if the runtime opens transactions."""
        return self.transaction.mode is TransactionMode.MANAGED or self.window is not None

    @property
    def is_effectively_once(self) -> bool:
        """True if output has sequence ids."""
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
    def refused_topic(self) -> str:
        """Topic for messages of a window function that can be in no window."""
        late = None if self.window is None else self.window.late_data_topic
        return self.dead_letter_topic or late or f"persistent://{self.fqfn}-DLQ"

    @property
    def subscription(self) -> str:
        """The subscription's name."""
        return self.sub_name or self.fqfn

    def serde_of(self, topic: str) -> str | None:
        """The class name that an input's SerDe was given with."""
        spec = self.input_specs.get(topic)
        return (spec and spec.serde_class_name) or self.custom_serde_inputs.get(topic)

    def schema_of(self, topic: str) -> str | None:
        """The schema type that an input was given with."""
        spec = self.input_specs.get(topic)
        return (spec and spec.schema_type) or self.custom_schema_inputs.get(topic)


def _where(error: Exception) -> str:
    """Problem and line number of an error of PyYAML, without the text of that line."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    return "" if mark is None else f": {problem or 'it cannot be read'} in line {mark.line + 1}"


def _has_more_nodes(found: Any, most: int) -> bool:
    """True if a document of YAML written out would have more than so many values. An anchor may contain itself."""
    left, count = [found], 0
    while left:
        count += 1
        if count > most:
            return True
        node = left.pop()
        if isinstance(node, dict | list):
            left += node.values() if isinstance(node, dict) else node
        if len(left) > most:
            return True
    return False


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
    "customSchemaInputs": ("custom_schema_inputs", mapping(text)),
    "inputTypeClassName": ("input_type_class_name", text),
    "outputSchemaType": ("output_schema_type", text),
    "outputTypeClassName": ("output_type_class_name", text),
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
