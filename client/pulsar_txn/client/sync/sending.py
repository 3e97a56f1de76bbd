"""Sending of a blocking producer: interceptors, schema and router of the program run in the thread that calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import attrs

from pulsar_txn.client.errors import ProducerQueueFull
from pulsar_txn.client.net.runtime import Future
from pulsar_txn.client.schema.base import BytesSchema, EncodedPair, PairSchema, Schema, SchemaInfo
from pulsar_txn.client.send.batching import EncodedBatch
from pulsar_txn.client.send.interceptors import OutgoingMessage, ProducerChain, ProducerInterceptor
from pulsar_txn.client.send.producer import AsyncProducer, encoded_sender_of
from pulsar_txn.client.send.routing import Router
from pulsar_txn.client.sync.blocking import SyncLoop
from pulsar_txn.client.txn.transaction import joined_unit
from pulsar_txn.wire.ids import MessageId
from pulsar_txn.wire.topics import TopicName

T = TypeVar("T")

More: TypeAlias = tuple[str | None, bytes | None, Mapping[str, str] | None, int | None, *tuple[Any, ...]]
"""Arguments of `AsyncProducer.send` after the value and the transaction, in their order."""

_REST: Final = ("sequence_id", "deliver_at", "deliver_after", "replicate_to", "partition")
_NOTHING_MORE: Final = (None,) * (4 + len(_REST))

SOON_BYTES: Final = 16 * 1024
"""Messages up to this size are handed to the loop's thread without waiting for it."""


class EncodedBefore:
    """The schema of a producer whose payloads come encoded."""

    def __init__(self, schema: Schema[Any]) -> None:
        self.info: SchemaInfo | None = schema.info
        if isinstance(schema, PairSchema):
            self.encode_pair = self.encode
            self.decode_pair = schema.decode_pair

    def encode(self, value: T) -> T:
        """The payload itself, or the `EncodedPair`."""
        return value

    def decode(self, payload: bytes) -> bytes:
        """The payload itself."""
        return payload


@attrs.frozen(kw_only=True)
class OwnCode:
    """Code that the program has given to a producer."""

    schema: Schema[Any] = attrs.field(factory=BytesSchema)
    router: Router | None = None
    interceptors: Sequence[ProducerInterceptor] = ()


class Sending(Generic[T]):
    """The way of one producer's messages to the loop's thread.

    `blocking` is the producer that the program has: its interceptors are given it. `unit` is an asyncio transaction.
    """

    def __init__(self, loop: SyncLoop, producer: AsyncProducer[T], own: OwnCode, blocking: Any) -> None:
        self._loop = loop
        self._producer = producer
        self._encoded_sender = encoded_sender_of(producer)
        self._own = own
        self._persistent = TopicName.parse(producer.topic).is_persistent
        self._chain = ProducerChain(blocking, own.interceptors) if own.interceptors else None
        straight = self._chain is None and own.router is None and not isinstance(own.schema, PairSchema)
        self._encode = own.schema.encode if straight else None

    def send(self, value: T | None, unit: Any, more: More) -> MessageId:
        """As `AsyncProducer.send`."""
        unit = joined_unit(unit, self._encoded_sender)
        if self._encode is not None and value is not None and more == _NOTHING_MORE:
            return self._send_payload(self._encode(value), unit)
        message = _message(value, more)
        if self._chain is None:
            arguments = self._arguments(message, unit, more[4:])
            return self._loop.run(lambda: self._producer.send(**arguments))
        steps = self._chain.before(message)
        try:
            arguments = self._arguments(steps[-1], unit, more[4:])
            message_id = self._loop.run(lambda: self._producer.send(**arguments))
        except BaseException as error:
            self._loop.callbacks.tell(self._chain.finish, steps, None, error)
            raise
        self._loop.callbacks.tell(self._chain.finish, steps, message_id, None)
        return message_id

    def send_nowait(self, value: T | None, unit: Any, more: More) -> Future[MessageId]:
        """As `AsyncProducer.send_nowait`."""
        self._check_callbacks()
        unit = joined_unit(unit, self._encoded_sender)
        if self._encode is not None and value is not None and more == _NOTHING_MORE:
            payload: Any = self._encode(value)
            future = self._submit_payload(payload, unit)
            return future or self._loop.submit(lambda: self._producer.send_nowait(payload, txn=unit))
        message = _message(value, more)
        if self._chain is None:
            return self._send_arguments(self._arguments(message, unit, more[4:]))
        steps = self._chain.before(message)
        try:
            arguments = self._arguments(steps[-1], unit, more[4:])
            future = self._loop.submit(lambda: self._producer.send_nowait(**arguments))
        except BaseException as error:
            self._loop.callbacks.tell(self._chain.finish, steps, None, error)
            raise
        future.add_done_callback(functools.partial(self._finished, steps))
        return future

    def send_encoded(self, batch: EncodedBatch, unit: Any, key: str | None, partition: int | None) -> MessageId:
        """As `AsyncProducer.send_encoded`."""
        unit = joined_unit(unit, self._encoded_sender)
        chosen = self._routed(key, b"", partition)
        return self._loop.run(lambda: self._producer.send_encoded(batch, txn=unit, key=key, partition=chosen))

    def send_encoded_nowait(self, batch: EncodedBatch, unit: Any, key: str | None, partition: int | None) -> Future[MessageId]:
        """As `AsyncProducer.send_encoded_nowait`."""
        unit = joined_unit(unit, self._encoded_sender)
        self._check_callbacks()
        chosen = self._routed(key, b"", partition)
        return self._loop.submit(lambda: self._producer.send_encoded_nowait(batch, txn=unit, key=key, partition=chosen))

    def wait_for_room(self) -> None:
        """Wait until `send_nowait` has room. While there is room it returns at once, without asking the loop's thread."""
        self._loop.check()
        if not self._encoded_sender.takes(0, SOON_BYTES, self._loop.waiting):
            self._loop.run(self._producer.wait_for_room)

    def _arguments(self, message: OutgoingMessage, unit: Any, rest: Sequence[Any]) -> dict[str, Any]:
        """Make the arguments of the asyncio producer: the value is encoded, and the program's router has chosen."""
        schema, value, key = self._own.schema, message.value, message.key
        encoded: bytes | EncodedPair | None = None
        if value is not None:
            encoded = schema.encode_pair(value) if isinstance(schema, PairSchema) else schema.encode(value)
        payload = encoded or b""
        if isinstance(payload, EncodedPair):
            payload, key, _ = payload
        arguments = dict(zip(_REST, rest, strict=True)) | attrs.asdict(message, recurse=False)
        arguments |= {"value": encoded, "txn": unit}
        arguments["partition"] = self._routed(key, payload, arguments["partition"])
        return arguments

    def _routed(self, key: str | None, payload: bytes, partition: int | None) -> int | None:
        if partition is not None or self._own.router is None or self._producer.partitions < 2:
            return partition
        return self._own.router(key, payload)

    def _send_payload(self, payload: Any, unit: Any) -> MessageId:
        """Nothing but a payload, waited for."""
        try:
            message_id: MessageId = self._loop.ask(functools.partial(self._encoded_sender.send_payload, payload, unit))
        except ProducerQueueFull:
            waiting = self._loop.start(lambda: self._producer.send(payload, txn=unit))  # for room, if it may
        else:
            return message_id
        return self._loop.wait(waiting)

    def _submit_payload(self, payload: bytes, unit: Any) -> Future[MessageId] | None:
        """Nothing but a payload, left to the loop's thread; None when that has to be asked first."""
        if not self._may_go_soon(len(payload), unit):
            return None
        send = functools.partial(self._encoded_sender.send_payload, payload, unit)
        admits = functools.partial(self._encoded_sender.takes, len(payload), SOON_BYTES)
        return self._loop.submit_soon(send, admits, on_error=None if unit is None else unit.doom)

    def _send_arguments(self, arguments: dict[str, Any]) -> Future[MessageId]:
        value, loop = arguments["value"] or b"", self._loop
        size = len(value.payload) if isinstance(value, EncodedPair) else len(value)
        unit: Any = arguments["txn"]
        send = functools.partial(self._producer.send_nowait, **arguments)
        if self._may_go_soon(size, unit):
            admits = functools.partial(self._encoded_sender.takes, size, SOON_BYTES)
            future: Future[MessageId] | None = loop.submit_soon(
                lambda outer: loop.link(outer, send()), admits, on_error=None if unit is None else unit.doom
            )
            if future is not None:
                return future
        return loop.submit(send)

    def _may_go_soon(self, size: int, unit: Any) -> bool:
        """True if a message can be left to the loop's thread: it is small, and its transaction, if any, takes it."""
        if size > SOON_BYTES:
            return False
        if unit is None:
            return True
        return self._persistent and unit.usable and unit.belongs_to(self._encoded_sender.core)

    def _check_callbacks(self) -> None:
        if self._loop.callbacks.behind:
            raise ProducerQueueFull("too many of the program's callbacks wait", hint="send less, or do less in callbacks")

    def _finished(self, steps: Sequence[OutgoingMessage], future: Future[MessageId]) -> None:
        finish: Callable[..., None] = self._chain.finish  # type: ignore[union-attr]  # called for producers with a chain only
        error = None if future.cancelled() else future.exception()
        finish(steps, future.result() if error is None and not future.cancelled() else None, error)


def _message(value: Any, more: More) -> OutgoingMessage:
    key, ordering_key, properties, event_time_ms, *_ = more
    return OutgoingMessage(value=value, key=key, ordering_key=ordering_key, properties=properties, event_time_ms=event_time_ms)
