"""Blocking consumer and reader with the official methods, and the threads that call their listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_txn.client.errors import AlreadyClosed, PulsarError
from pulsar_txn.client.inside import Gate, Slots, WorkerThread, monotonic_seconds
from pulsar_txn.compat import _consuming
from pulsar_txn.compat._arguments import blocking
from pulsar_txn.compat.exceptions import BY_NAME, mapped
from pulsar_txn.compat.messages import Message
from pulsar_txn.compat.policies import ConsumerBatchReceivePolicy
from pulsar_txn.compat.schema import Schema
from pulsar_txn.compat.transactions import native

DEFAULT_BATCH_RECEIVE = ConsumerBatchReceivePolicy(-1, 10 * 1024 * 1024, 100)


class Listening(_consuming.Receiving):
    """A blocking consumer or reader, with the listener that it may have.

    A listener receives in a thread of its own and calls the program's function there, one message at a time. `slots` are
    shared by the listeners of a client: as many run at once as it has `message_listener_threads`.
    """

    def __init__(self, own: Any, schema: Schema, *, seek_inclusive: bool) -> None:
        super().__init__(own, schema, seek_inclusive=seek_inclusive)
        self._listener: tuple[WorkerThread, Slots, Callable[[Any, Message], object]] | None = None
        self._gate = Gate()

    def listen(self, slots: Slots, function: Callable[[Any, Message], object]) -> None:
        """Have a function called for each message, for `Client`."""
        worker = WorkerThread("pulsar-txn-listener")
        self._listener = worker, slots, function
        worker.submit(self._hear)

    def _hear(self) -> None:
        if self._listener is None:
            return
        worker, slots, function = self._listener
        try:
            message = self._next()
        except PulsarError:
            return  # closed, or ended for ever, which the log says
        worker.submit(self._hear)
        self._gate.wait()
        slots.take()
        try:
            function(self, message)
        finally:
            slots.give_back()

    def _next(self) -> Message:
        raise NotImplementedError

    def _stop(self) -> None:
        """Let the listener come to its end: the consumer is closed."""
        if self._listener is not None:
            self._gate.open()
            self._listener[0].stop()

    def _check_none(self, what: str) -> None:
        """InvalidConfiguration when there is a listener, which takes all messages."""
        if self._listener is not None:
            raise BY_NAME["InvalidConfiguration"](f"{what} is not possible on a consumer with a message_listener")

    @mapped
    def close(self) -> None:
        """Close; idempotent."""
        try:
            self._ours.close()
        except AlreadyClosed:
            return
        finally:
            self._stop()


class Consumer(Listening, _consuming.Consuming):
    """A subscription's consumer. Made by `Client.subscribe`."""

    def __init__(self, own: Any, schema: Schema, policy: ConsumerBatchReceivePolicy | None, *, seek_inclusive: bool) -> None:
        super().__init__(own, schema, seek_inclusive=seek_inclusive)
        self._policy = policy or DEFAULT_BATCH_RECEIVE

    def _next(self) -> Message:
        return Message(self._ours.receive(None), self._schema)

    @mapped
    def receive(self, timeout_millis: int | None = None, *, txn: Any = None) -> Message:
        """The next message, waiting for it; Timeout after `timeout_millis`.

        With `txn` the message joins the transaction: its commit acknowledges the message, and its abort brings it back.
        """
        self._check_none("receive")
        return Message(self._ours.receive(_consuming.seconds(timeout_millis), txn=native(txn)), self._schema)

    @mapped
    def batch_receive(self, *, txn: Any = None) -> list[Message]:
        """Messages until the policy's bounds are reached; empty when nothing came in time. `txn` as in `receive`."""
        self._check_none("batch_receive")
        found: list[Message] = []
        policy, size, unit = self._policy, 0, native(txn)
        deadline = monotonic_seconds() + policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None
        while not _full(policy, len(found), size):
            wait = None if deadline is None else max(0.0, deadline - monotonic_seconds())
            more = self._ours.receive_nowait(1, txn=unit) or self._ours.receive_many(1, max_wait=wait, txn=unit)
            if not more:
                break
            found.append(Message(more[0], self._schema))  # a message in hand is never put back
            size += len(more[0].data)
        return found

    acknowledge = blocking(_consuming.acknowledge)
    acknowledge_cumulative = blocking(_consuming.acknowledge_cumulative)
    negative_acknowledge = blocking(_consuming.negative_acknowledge)
    redeliver_unacknowledged_messages = _consuming.redeliver_unacknowledged_messages
    seek = blocking(_consuming.seek)
    get_last_message_id = blocking(_consuming.get_last_message_id)

    def pause_message_listener(self) -> None:
        """Call the listener no more until `resume_message_listener`."""
        self._needed_gate().close()

    def resume_message_listener(self) -> None:
        """Go on."""
        self._needed_gate().open()

    def _needed_gate(self) -> Gate:
        if self._listener is None:
            raise BY_NAME["InvalidConfiguration"]("the consumer has no message_listener")
        return self._gate

    @mapped
    def unsubscribe(self) -> None:
        """Delete the subscription and close."""
        self._ours.unsubscribe()
        self._stop()


class Reader(Listening):
    """Reads a topic from a place of its choice. Made by `Client.create_reader`."""

    def _next(self) -> Message:
        return Message(self._ours.read_next(None), self._schema)

    @mapped
    def read_next(self, timeout_millis: int | None = None) -> Message:
        """The next message, waiting for it; Timeout after `timeout_millis`."""
        return Message(self._ours.read_next(_consuming.seconds(timeout_millis)), self._schema)

    has_message_available = blocking(_consuming.has_message_available)
    seek = blocking(_consuming.seek)


def _full(policy: ConsumerBatchReceivePolicy, messages: int, size: int) -> bool:
    return 0 < policy.max_num_message <= messages or 0 < policy.max_num_bytes <= size
