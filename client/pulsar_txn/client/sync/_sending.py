"""How the sync producer sends: what is the program's own (interceptors, schema, router) runs in the thread that calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import attrs

from pulsar_txn.client.errors import ProducerQueueFull
from pulsar_txn.client.net.runtime import Future
from pulsar_txn.client.schema.base import BytesSchema, EncodedPair, PairSchema, Schema, SchemaInfo
from pulsar_txn.client.send import producer
from pulsar_txn.client.send.batching import EncodedBatch, SendTicket
from pulsar_txn.client.send.interceptors import OutgoingMessage, ProducerChain, ProducerInterceptor
from pulsar_txn.client.send.routing import Router
from pulsar_txn.client.sync._base import GenericTwin, SyncLoop, inner
from pulsar_txn.client.txn.enlist import AMBIENT
from pulsar_txn.wire.ids import MessageId

if TYPE_CHECKING:
    from pulsar_txn.client.sync._twins import Transaction
    from pulsar_txn.client.txn import transaction

T = TypeVar("T")

_NOTHING_MORE: Final = (None,) * 9

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
    """What the program has given to a producer."""

    schema: Schema[Any] = attrs.field(factory=BytesSchema)
    router: Router | None = None
    interceptors: Sequence[ProducerInterceptor] = ()


class ProducerBase(GenericTwin[producer.AsyncProducer[T], T], Generic[T]):
    """The parts of the sync producer that are written by hand."""

    def __init__(self, loop: SyncLoop, inner_object: producer.AsyncProducer[T], own: OwnCode | None = None) -> None:
        super().__init__(loop, inner_object)
        self._own = own or OwnCode()
        core, persistent = inner_object._core, inner_object._persistent  # noqa: SLF001 - its own other half
        self._core_of_units = core if persistent else None  # transactions of this client, if any
        twin: Any = self  # interceptors are given the producer that the program has
        self._chain = ProducerChain(twin, self._own.interceptors) if self._own.interceptors else None
        straight = self._chain is None and self._own.router is None and not isinstance(self._own.schema, PairSchema)
        self._encode = self._own.schema.encode if straight else None

    def send(
        self,
        value: T | None,
        *,
        txn: Transaction | None = None,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
        replicate_to: Sequence[str] | None = None,
        partition: int | None = None,
    ) -> MessageId:
        """Send one value and wait for its receipt; returns its id. `None` is a tombstone (no value for this key).

        Arguments and errors as those of the asyncio producer. Interceptors, schema and router run in this thread.
        """
        more = (key, ordering_key, properties, event_time_ms, sequence_id, deliver_at, deliver_after, replicate_to, partition)
        if self._encode is not None and value is not None and more == _NOTHING_MORE:
            return self._send_payload(self._encode(value), inner(txn) or AMBIENT.get())
        message = OutgoingMessage(
            value=value, key=key, ordering_key=ordering_key, properties=properties, event_time_ms=event_time_ms
        )
        rest: dict[str, Any] = {"sequence_id": sequence_id, "deliver_at": deliver_at, "deliver_after": deliver_after}
        rest |= {"txn": inner(txn), "replicate_to": replicate_to, "partition": partition}
        if self._chain is None:
            arguments = self._arguments(message, rest)
            return self._loop.run(lambda: self._inner.send(**arguments))
        steps = self._chain.before(message)
        try:
            arguments = self._arguments(steps[-1], rest)
            message_id = self._loop.run(lambda: self._inner.send(**arguments))
        except BaseException as error:
            self._loop.callbacks.tell(self._chain.finish, steps, None, error)
            raise
        self._loop.callbacks.tell(self._chain.finish, steps, message_id, None)
        return message_id

    def send_nowait(
        self,
        value: T | None,
        *,
        txn: Transaction | None = None,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
        replicate_to: Sequence[str] | None = None,
        partition: int | None = None,
    ) -> Future[MessageId]:
        """Queue one value; returns a future of its id at once. Arguments as `send`.

        Callbacks of the future run on the client's thread for callbacks, in the order of the receipts. Raises
        ProducerQueueFull when the producer's bounds are reached, or ten thousand callbacks wait; and what `send` raises
        before anything is queued; a failure meanwhile is the future's. A transaction's commit waits for the futures of its
        sends, and a failed one dooms it.
        """
        self._check_room()
        more = (key, ordering_key, properties, event_time_ms, sequence_id, deliver_at, deliver_after, replicate_to, partition)
        if self._encode is not None and value is not None and more == _NOTHING_MORE:
            payload: Any = self._encode(value)
            ticket = self._submit_payload(payload, txn)
            return ticket or self._loop.submit(lambda: self._inner.send_nowait(payload, txn=inner(txn)))
        message = OutgoingMessage(
            value=value, key=key, ordering_key=ordering_key, properties=properties, event_time_ms=event_time_ms
        )
        rest: dict[str, Any] = {"sequence_id": sequence_id, "deliver_at": deliver_at, "deliver_after": deliver_after}
        rest |= {"txn": inner(txn), "replicate_to": replicate_to, "partition": partition}
        if self._chain is None:
            return self._send_arguments(self._arguments(message, rest), txn)
        steps = self._chain.before(message)
        try:
            arguments = self._arguments(steps[-1], rest)
            ticket = self._loop.submit(lambda: self._inner.send_nowait(**arguments))
        except BaseException as error:
            self._loop.callbacks.tell(self._chain.finish, steps, None, error)
            raise
        ticket.add_done_callback(functools.partial(self._finished, steps))
        return ticket

    def send_encoded(
        self,
        batch: EncodedBatch,
        *,
        txn: Transaction | None = None,
        key: str | None = None,
        partition: int | None = None,
    ) -> MessageId:
        """Send a batch built by `encode_batch` as one entry and wait for its receipt; returns the entry's id.

        The partition is `partition`, or that of `key`, or the router's. Raises and behaves as `send`.
        """
        chosen = self._routed(key, b"", partition)
        return self._loop.run(lambda: self._inner.send_encoded(batch, txn=inner(txn), key=key, partition=chosen))

    def send_encoded_nowait(
        self,
        batch: EncodedBatch,
        *,
        txn: Transaction | None = None,
        key: str | None = None,
        partition: int | None = None,
    ) -> Future[MessageId]:
        """Queue a batch built by `encode_batch`; as `send_nowait`."""
        self._check_room()
        chosen = self._routed(key, b"", partition)
        return self._loop.submit(lambda: self._inner.send_encoded_nowait(batch, txn=inner(txn), key=key, partition=chosen))

    def wait_for_room(self) -> None:
        """Wait until `send_nowait` has room; returns at once, without asking the client's thread, while there is some."""
        self._loop.check()
        if not self._inner.takes(0, SOON_BYTES, self._loop.waiting):
            self._loop.run(self._inner.wait_for_room)

    def _arguments(self, message: OutgoingMessage, rest: dict[str, Any]) -> dict[str, Any]:
        schema, value, key = self._own.schema, message.value, message.key
        encoded: bytes | EncodedPair | None = None
        if value is not None:
            encoded = schema.encode_pair(value) if isinstance(schema, PairSchema) else schema.encode(value)
        payload = encoded or b""
        if isinstance(payload, EncodedPair):
            payload, key, _ = payload
        arguments = rest | attrs.asdict(message, recurse=False) | {"value": encoded}
        arguments["partition"] = self._routed(key, payload, rest["partition"])
        return arguments

    def _routed(self, key: str | None, payload: bytes, partition: int | None) -> int | None:
        if partition is not None or self._own.router is None or self._inner.partitions < 2:
            return partition
        return self._own.router(key, payload)

    def _send_payload(self, payload: Any, unit: Any) -> MessageId:
        """Nothing but a payload, waited for."""
        try:
            message_id: MessageId = self._loop.ask(functools.partial(self._inner.send_payload, payload, unit))
        except ProducerQueueFull:
            waiting = self._loop.start(lambda: self._inner.send(payload, txn=unit))  # for room, if it may
        else:
            return message_id
        return self._loop.wait(waiting)

    def _submit_payload(self, payload: bytes, txn: Transaction | None) -> Future[MessageId] | None:
        """Nothing but a payload, left to the loop's thread; None when that has to be asked first."""
        unit: Any = inner(txn) or AMBIENT.get()
        if not self._may_go_soon(len(payload), unit):
            return None
        send = functools.partial(self._inner.send_payload, payload, unit)
        admits = functools.partial(self._inner.takes, len(payload), SOON_BYTES)
        on_error = None if unit is None else functools.partial(_doom, unit)
        return self._loop.submit_soon(send, admits, on_error=on_error)

    def _send_arguments(self, arguments: dict[str, Any], txn: Transaction | None) -> Future[MessageId]:
        value, loop = arguments["value"] or b"", self._loop
        size = len(value.payload) if isinstance(value, EncodedPair) else len(value)
        unit: Any = inner(txn) or AMBIENT.get()
        arguments["txn"] = unit
        send = functools.partial(self._inner.send_nowait, **arguments)
        if self._may_go_soon(size, unit):
            admits = functools.partial(self._inner.takes, size, SOON_BYTES)
            on_error = None if unit is None else functools.partial(_doom, unit)
            ticket: Future[MessageId] | None = loop.submit_soon(
                lambda outer: loop.link(outer, send()), admits, on_error=on_error
            )
            if ticket is not None:
                return ticket
        return loop.submit(send)

    def _send_or_doom(self, payload: bytes | None, options: dict[str, Any]) -> SendTicket:
        """For `compat`, on the loop: `send_nowait` of the asyncio producer; what it refuses dooms the transaction."""
        given: Any = payload
        try:
            return self._inner.send_nowait(given, **options)
        except Exception as error:
            if "txn" in options:
                _doom(options["txn"], error)
            raise

    def _may_go_soon(self, size: int, unit: Any) -> bool:
        """Whether a message can be left to the loop's thread: it is small, and its transaction, if any, takes it."""
        if size > SOON_BYTES:
            return False
        if unit is None:
            return True
        return unit.usable and unit._core is self._core_of_units  # noqa: SLF001 - as above

    def _may_join(self, txn: Transaction) -> bool:
        """For `compat`: whether messages for this topic can be part of this transaction; if not, sending says why."""
        return txn._inner._core is self._core_of_units  # noqa: SLF001 - the asyncio object behind it

    def _check_room(self) -> None:
        if self._loop.callbacks.behind:
            raise ProducerQueueFull("the program's callbacks are too far behind", hint="send less, or do less in callbacks")

    def _finished(self, steps: Sequence[OutgoingMessage], ticket: Future[MessageId]) -> None:
        finish: Callable[..., None] = self._chain.finish  # type: ignore[union-attr]  # called for producers with a chain only
        error = None if ticket.cancelled() else ticket.exception()
        finish(steps, ticket.result() if error is None and not ticket.cancelled() else None, error)


def _doom(unit: transaction.AsyncTransaction, error: Exception) -> None:
    """On the loop: a send was refused only there, and nobody has to look at its future."""
    if error not in unit._failures:  # noqa: SLF001 - some refusals doom it themselves
        unit.doom(error)
