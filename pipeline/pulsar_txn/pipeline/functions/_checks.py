"""Checks of what in a function's configuration cannot work together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.pipeline.functions.sections import ProcessingGuarantees, StateScope

if TYPE_CHECKING:
    from pulsar_txn.pipeline.functions.config import FunctionConfig

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
