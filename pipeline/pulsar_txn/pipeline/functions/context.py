"""Context of a function, its message and its surroundings: `Context`, with the official methods."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from pulsar_txn.client import AsyncTransaction, Compression, Message
from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch, UsageError
from pulsar_txn.pipeline.functions._outlets import Handed

if TYPE_CHECKING:
    from pulsar_txn.client import AsyncClient
    from pulsar_txn.pipeline.functions._instance import Instance

_CONF: Final = frozenset(
    {
        "properties",
        "partition_key",
        "ordering_key",
        "sequence_id",
        "replication_clusters",
        "disable_replication",
        "event_timestamp",
    }
)


@attrs.frozen
class WindowView:
    """A window, for its function: the messages, and with windowLengthDurationMs its time in milliseconds since the epoch."""

    messages: tuple[Message[bytes], ...]
    start_ms: int | None
    end_ms: int | None


class Context:
    """Context of one message, made by the runtime. Its methods can be called from any thread, and return at once.

    With transactionMode MANAGED it ends with `process`: what is called later raises UsageError.
    """

    def __init__(
        self,
        instance: Instance,
        message: Message[bytes],
        txn: AsyncTransaction | None,
        window: WindowView | None = None,
    ) -> None:
        self._window = window
        self._instance = instance
        self._message = message
        self._txn = txn
        self._ended = False
        self.handed: list[Handed] = []
        """For the runtime: what was sent."""

    # --- the message --------------------------------------------------------------------------------------------------

    def get_message_id(self) -> Any:
        """The message's id, with the official methods; what `ack` takes."""
        from pulsar_txn.compat.messages import MessageId

        return MessageId.wrap(self._message.message_id, self._message.topic, self._message)

    def get_message_key(self) -> str | None:
        """The partition key."""
        return self._message.key

    def get_partition_key(self) -> str | None:
        """The partition key."""
        return self._message.key

    def get_ordering_key(self) -> str | None:
        """The ordering key, as text."""
        key = self._message.ordering_key
        return None if key is None else key.decode(errors="replace")

    def get_message_eventtime(self) -> int:
        """Milliseconds since the epoch, as the sender said; 0 when it did not."""
        return self._message.event_time_ms or 0

    def get_message_properties(self) -> dict[str, str]:
        """The properties."""
        return dict(self._message.properties)

    def get_message_sequence_id(self) -> int:
        """The sender's sequence id."""
        return self._message.sequence_id

    def get_message_partition_index(self) -> int:
        """The partition it came from; -1 for a topic without partitions."""
        return self._message.message_id.partition

    def get_current_message_topic_name(self) -> str:
        """The full name of the topic partition it came from."""
        return self._message.topic

    def get_window(self) -> WindowView | None:
        """The window that `process` is called with; None without windowConfig. The other methods are about its last message."""
        return self._window

    # --- the function -------------------------------------------------------------------------------------------------

    def get_function_tenant(self) -> str:
        """The function's tenant."""
        return self._instance.config.tenant

    def get_function_namespace(self) -> str:
        """The function's namespace."""
        return self._instance.config.namespace

    def get_function_name(self) -> str:
        """The function's name."""
        return self._instance.config.name

    def get_function_id(self) -> str:
        """`tenant/namespace/name`: there is no registry that gives out numbers."""
        return self._instance.config.fqfn

    def get_function_version(self) -> str:
        """ "0": there is no registry that counts versions."""
        return "0"

    def get_instance_id(self) -> int:
        """Number of this instance among the `parallelism` ones, from 0."""
        return self._instance.number

    def get_logger(self) -> logging.Logger:
        """A logger of the function's own; with `logTopic` what it logs goes there as well."""
        return self._instance.logger

    def get_user_config_value(self, key: str) -> Any:
        """One value of `userConfig`; None when it is not there."""
        return self._instance.config.user_config.get(key)

    def get_user_config_map(self) -> dict[str, Any]:
        """`userConfig`."""
        return dict(self._instance.config.user_config)

    def get_secret(self, secret_name: str) -> str | None:
        """A secret that `secrets` names, from the provider (the environment by default); None if absent."""
        secrets = self._instance.config.secrets
        return self._instance.secrets_provider(secret_name, secrets[secret_name]) if secret_name in secrets else None

    def get_input_topics(self) -> list[str]:
        """The inputs, as configured."""
        return [*self._instance.config.topics, *self._instance.config.patterns]

    def get_output_topic(self) -> str | None:
        """The output, as configured."""
        return self._instance.config.output

    def get_output_serde_class_name(self) -> str | None:
        """The class name of the output's SerDe, as configured."""
        return self._instance.config.output_serde_class_name

    def get_pulsar_client(self) -> AsyncClient:
        """The client of the run: asyncio, for functions whose `process` is a coroutine function."""
        return self._instance.client

    def record_metric(self, metric_name: str, metric_value: Any) -> None:
        """Count a number under a name; see `FunctionStats.user_metrics`. SchemaMismatch for what is no number."""
        if not isinstance(metric_value, (int, float)):
            raise SchemaMismatch(f"the metric {metric_name} must be a number, not {metric_value!r}")
        self._instance.counts.record(metric_name, float(metric_value))

    # --- effects ------------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic_name: str,
        message: Any,
        serde_class_name: str = "serde.IdentitySerDe",
        properties: Mapping[str, str] | None = None,
        compression_type: int | None = None,
        callback: Callable[[Any, Any], object] | None = None,
        message_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Send to a topic; in the transaction with transactionMode MANAGED.

        `callback(result, message_id)` is called on a thread of its own once it is stored, or failed. The input is not
        acknowledged before, except with ATMOST_ONCE and MANUAL. A send that fails fails the call of `process`.
        Raises InvalidConfiguration for an unknown key of `message_conf` or SerDe, and what the SerDe raises.
        """
        self._check("publish")
        payload = self._instance.serde_of(serde_class_name).serialize(message)
        options = _options(message_conf or {}, properties)
        compression = None if compression_type is None else Compression(int(compression_type))
        self._instance.on_loop(self._send, topic_name, payload, options, compression, callback)

    def ack(self, msgid: Any, topic: str) -> None:
        """Acknowledge a message of this function, with processingGuarantees MANUAL.

        UsageError with any other guarantee, where the runtime acknowledges, and for a message that this instance does not
        hold (any more).
        """
        self._instance.ack(getattr(msgid, "_id", msgid), topic)

    # --- state --------------------------------------------------------------------------------------------------------

    def incr_counter(self, key: str, amount: int) -> None:
        """Add to a counter, which begins with 0. SchemaMismatch when the key holds a value or the amount is no whole number.

        The first use of state waits until the state is read. With MANAGED the change is part of the transaction; otherwise
        it is sent after `process` returns, and a crash may double it. UsageError (fatal) where state cannot be: several
        instances without `stateScope: PARTITION`, or a coroutine function without the section `state`.
        """
        self._check("incr_counter")
        if not isinstance(amount, int):
            raise SchemaMismatch(f"the counter {key} grows by a whole number, not by {amount!r}")
        self._instance.states.add(self._message, key, amount)

    def get_counter(self, key: str) -> int | None:
        """A counter with what this call has added; None when there is no such counter. Waits as `incr_counter`."""
        self._check("get_counter")
        found = self._instance.states.get(self._message, key)
        return found if isinstance(found, int) else None

    def del_counter(self, key: str) -> None:
        """Delete a counter, as `delete_state`."""
        self.delete_state(key)

    def put_state(self, key: str, value: str | bytes) -> None:
        """Set a value: bytes, or a text as UTF-8. SchemaMismatch for anything else. Otherwise as `incr_counter`."""
        self._check("put_state")
        if not isinstance(value, str | bytes | bytearray):
            raise SchemaMismatch(
                f"the state {key} must be bytes or a text, not {value!r}", hint="encode it, with json for instance"
            )
        self._instance.states.set(self._message, key, value.encode() if isinstance(value, str) else bytes(value))

    def get_state(self, key: str) -> bytes | None:
        """A value; None when there is none. A counter as 8 bytes, big-endian, as Pulsar gives it. Waits as `incr_counter`."""
        self._check("get_state")
        found = self._instance.states.get(self._message, key)
        return found.to_bytes(8, "big", signed=True) if isinstance(found, int) else found

    def delete_state(self, key: str) -> None:
        """Delete a value or a counter. Waits as `incr_counter`."""
        self._check("delete_state")
        self._instance.states.set(self._message, key, None)

    # --- for the runtime ----------------------------------------------------------------------------------------------

    def end(self) -> None:
        """The transaction is about to be ended: nothing joins it any more."""
        self._ended = self._txn is not None

    def sent(self, handed: Iterable[Handed]) -> None:
        """The runtime has sent something with the call."""
        self.handed += handed

    def send_output(self, payload: Any, producer_name: str | None, sequence_id: int | None) -> None:
        """Send what `process` returned, with the properties of the input. On the loop only."""
        config, message = self._instance.config, self._message
        options: dict[str, Any]
        if self._window is not None:  # it is not of one message
            options = {"properties": {"__pfn_window_messages__": str(len(self._window.messages))}, "txn": self._txn}
            schema = self._instance.output_schema
            self.handed.append(self._instance.outlets.send(str(config.output), payload, options, schema=schema))
            return
        properties = dict(message.properties) if config.forward_source_message_property else {}
        properties["__pfn_input_topic__"] = message.topic
        properties["__pfn_input_msg_id__"] = base64.b64encode(self.get_message_id().serialize()).decode()
        options = {"properties": properties, "txn": self._txn, "sequence_id": sequence_id}
        if message.key is not None:
            options["key"] = message.key
        topic = str(config.output)
        schema = self._instance.output_schema
        self.handed.append(self._instance.outlets.send(topic, payload, options, producer_name=producer_name, schema=schema))

    def _send(
        self,
        topic: str,
        payload: bytes,
        options: dict[str, Any],
        compression: Compression | None,
        callback: Callable[[Any, Any], object] | None,
    ) -> None:
        handed = self._instance.outlets.send(topic, payload, options | {"txn": self._txn}, compression=compression)
        self.handed.append(handed)
        if callback is not None:
            self._instance.report(handed, callback)

    def _check(self, what: str) -> None:
        if self._ended:
            raise UsageError(
                f"context.{what} after the end of process",
                hint="with MANAGED the transaction is over: wait for what you started before process returns",
            )


def _options(conf: Mapping[str, Any], properties: Mapping[str, str] | None) -> dict[str, Any]:
    """The keywords of `Producer.send_nowait`."""
    if unknown := conf.keys() - _CONF:
        raise InvalidConfiguration(f"message_conf has no {sorted(unknown)}", hint=f"known are {', '.join(sorted(_CONF))}")
    options: dict[str, Any] = {"properties": {**(properties or {}), **(conf.get("properties") or {})} or None}
    if conf.get("partition_key"):
        options["key"] = conf["partition_key"]
    if conf.get("ordering_key"):
        key = conf["ordering_key"]
        options["ordering_key"] = key.encode() if isinstance(key, str) else key
    if conf.get("sequence_id") is not None:
        options["sequence_id"] = conf["sequence_id"]
    if conf.get("event_timestamp"):
        options["event_time_ms"] = conf["event_timestamp"]
    if conf.get("disable_replication") or conf.get("replication_clusters"):
        options["replicate_to"] = [] if conf.get("disable_replication") else conf["replication_clusters"]
    return options
