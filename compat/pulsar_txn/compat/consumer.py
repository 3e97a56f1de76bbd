"""Consumer and reader with the official methods, and the threads that call their listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pulsar_txn.client.errors import AlreadyClosed, PulsarError
from pulsar_txn.client.net.runtime import Gate, Slots, WorkerThread
from pulsar_txn.compat._arguments import check
from pulsar_txn.compat.exceptions import BY_NAME, mapped
from pulsar_txn.compat.ids import MessageId
from pulsar_txn.compat.messages import Message
from pulsar_txn.compat.policies import ConsumerBatchReceivePolicy
from pulsar_txn.compat.schema import Schema

if TYPE_CHECKING:
    from pulsar_txn.client import sync
    from pulsar_txn.client.receive.consumer import AsyncConsumer as AsyncioConsumer
    from pulsar_txn.client.receive.message import Message as OurMessage
    from pulsar_txn.compat.client import Client
    from pulsar_txn.wire import ids

DEFAULT_BATCH_RECEIVE = ConsumerBatchReceivePolicy(-1, 10 * 1024 * 1024, 100)


def seconds(timeout_millis: int | None) -> float | None:
    """None stays None."""
    if timeout_millis is None:
        return None
    check(int, timeout_millis, "timeout_millis")
    return timeout_millis / 1000


def target_of(messageid: Any) -> ids.MessageId | int:
    """What our `seek` takes."""
    if isinstance(messageid, MessageId):
        return messageid._id  # noqa: SLF001 - its other half
    if isinstance(messageid, int):
        return messageid
    raise ValueError(f"a MessageId or a time in milliseconds is needed, not {type(messageid).__name__}")


class Listener:
    """Receives in a thread of its own and calls the program's function there, one message at a time.

    `slots` are shared by the listeners of a client: as many run at once as it has `message_listener_threads`.
    """

    def __init__(self, slots: Slots, receive: Callable[[], Message], handle: Callable[[Message], object]) -> None:
        self.gate = Gate()
        self._slots = slots
        self._receive = receive
        self._handle = handle
        self._worker = WorkerThread("pulsar-txn-listener")
        self._worker.submit(self._run)

    def stop(self) -> None:
        """Let it come to its end: the consumer is closed."""
        self.gate.open()
        self._worker.stop()

    def _run(self) -> None:
        try:
            message = self._receive()
        except PulsarError:
            return  # closed, or ended for good, which the log says
        self._worker.submit(self._run)
        self.gate.wait()
        self._slots.take()
        try:
            self._handle(message)
        finally:
            self._slots.give_back()


class Consumer:
    """A subscription's consumer. Made by `Client.subscribe`."""

    def __init__(
        self,
        client: Client,
        twin: sync.Consumer[Any],
        schema: Schema,
        policy: ConsumerBatchReceivePolicy | None,
        *,
        seek_inclusive: bool = False,
    ) -> None:
        self._client = client
        self._twin = twin
        self._schema = schema
        self._policy = policy or DEFAULT_BATCH_RECEIVE
        self._seek_inclusive = seek_inclusive
        self._listener: Listener | None = None

    def listen(self, slots: Slots, function: Callable[[Consumer, Message], object]) -> None:
        """For `Client.subscribe`: have a function called for each message."""
        self._listener = Listener(slots, self._next, lambda message: function(self, message))

    def _next(self) -> Message:
        return Message(self._twin.receive(None), self._schema)

    @mapped
    def topic(self) -> str:
        """The topic's full name; of the first one when there are several."""
        return self._twin.topic

    def subscription_name(self) -> str:
        """The subscription."""
        return self._twin._inner.subscription  # noqa: SLF001 - the asyncio object behind a sync one

    def consumer_name(self) -> str:
        """The name given, or one that was made up."""
        return self._twin._inner.consumer_name  # noqa: SLF001 - as above

    @mapped
    def is_connected(self) -> bool:
        """Whether all partitions are connected at this moment."""
        return self._twin.is_connected

    @mapped
    def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message, waiting for it; Timeout after `timeout_millis`."""
        self._check_no_listener("receive")
        return Message(self._twin.receive(seconds(timeout_millis)), self._schema)

    @mapped
    def batch_receive(self) -> list[Message]:
        """Messages until the policy's bounds are reached; empty when nothing came in time."""
        self._check_no_listener("batch_receive")
        inner = self._twin._inner  # noqa: SLF001 - the asyncio object behind a sync one
        found = self._twin._loop.run(lambda: _batch(inner, self._policy))  # noqa: SLF001 - as above
        return [Message(each, self._schema) for each in found]

    @mapped
    def acknowledge(self, message: Message | MessageId | list[Message | MessageId], *, txn: Any = None) -> None:
        """Acknowledge a message or an id, or a list of them; `txn` is one of `client.transaction()`."""
        those = [acknowledged(each) for each in message] if isinstance(message, list) else acknowledged(message)
        self._twin.acknowledge(those, txn=txn)

    @mapped
    def acknowledge_cumulative(self, message: Message | MessageId, *, txn: Any = None) -> None:
        """Acknowledge everything of its partition up to and with it."""
        if not self._twin.consumer_type.is_single:
            raise BY_NAME["CumulativeAcknowledgementNotAllowedError"](
                f"there is no order on a {self._twin.consumer_type.name} subscription"
            )
        self._twin.acknowledge_cumulative(acknowledged(message), txn=txn)

    @mapped
    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have it delivered again after the consumer's delay."""
        self._twin.negative_acknowledge(acknowledged(message))

    @mapped
    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything delivered again that is not acknowledged."""
        self._twin.redeliver_unacknowledged()

    @mapped
    def seek(self, messageid: MessageId | int) -> None:
        """Go behind a message (to it with `start_message_id_inclusive`), or to a time in milliseconds since the epoch."""
        self._twin.seek(target_of(messageid), inclusive=self._seek_inclusive)

    @mapped
    def get_last_message_id(self) -> MessageId:
        """The id of the last message that can be read now."""
        return MessageId.wrap(self._twin.get_last_message_id(), self._twin.topic)

    def pause_message_listener(self) -> None:
        """Call the listener no more until `resume_message_listener`."""
        self._needed_listener().gate.close()

    def resume_message_listener(self) -> None:
        """Go on."""
        self._needed_listener().gate.open()

    @mapped
    def unsubscribe(self) -> None:
        """Delete the subscription and close."""
        self._twin.unsubscribe()
        self._stop_listener()

    @mapped
    def close(self) -> None:
        """Close; idempotent."""
        try:
            self._twin.close()
        except AlreadyClosed:
            return
        finally:
            self._stop_listener()
            self._client._consumers.discard(self)  # noqa: SLF001 - its other half

    def _stop_listener(self) -> None:
        if self._listener is not None:
            self._listener.stop()

    def _check_no_listener(self, what: str) -> None:
        if self._listener is not None:
            raise BY_NAME["InvalidConfiguration"](f"{what} is not possible on a consumer with a message_listener")

    def _needed_listener(self) -> Listener:
        if self._listener is None:
            raise BY_NAME["InvalidConfiguration"]("the consumer has no message_listener")
        return self._listener


class Reader:
    """Reads a topic from a place of its choice. Made by `Client.create_reader`."""

    def __init__(self, client: Client, twin: sync.Reader[Any], schema: Schema, *, seek_inclusive: bool = False) -> None:
        self._client = client
        self._twin = twin
        self._schema = schema
        self._seek_inclusive = seek_inclusive
        self._listener: Listener | None = None

    def listen(self, slots: Slots, function: Callable[[Reader, Message], object]) -> None:
        """For `Client.create_reader`: have a function called for each message."""
        self._listener = Listener(slots, self._next, lambda message: function(self, message))

    def _next(self) -> Message:
        return Message(self._twin.read_next(None), self._schema)

    @mapped
    def topic(self) -> str:
        """The topic's full name."""
        return self._twin.topic

    @mapped
    def is_connected(self) -> bool:
        """Whether all partitions are connected at this moment."""
        return self._twin.is_connected

    @mapped
    def read_next(self, timeout_millis: int | None = None) -> Message:
        """The next message, waiting for it; Timeout after `timeout_millis`."""
        return Message(self._twin.read_next(seconds(timeout_millis)), self._schema)

    @mapped
    def has_message_available(self) -> bool:
        """Whether `read_next` would find a message that is stored at this moment."""
        return self._twin.has_message_available()

    @mapped
    def seek(self, messageid: MessageId | int) -> None:
        """As `Consumer.seek`."""
        self._twin.seek(target_of(messageid), inclusive=self._seek_inclusive)

    @mapped
    def close(self) -> None:
        """Close; idempotent."""
        try:
            self._twin.close()
        except AlreadyClosed:
            return
        finally:
            if self._listener is not None:
                self._listener.stop()
            self._client._consumers.discard(self)  # noqa: SLF001 - its other half


def acknowledged(message: Any) -> OurMessage[Any] | ids.MessageId:
    """What our client's `acknowledge` takes. ValueError for anything else."""
    if isinstance(message, Message):
        return message._message  # noqa: SLF001 - its other half
    if isinstance(message, MessageId):
        return message._id if message._message is None else message._message  # noqa: SLF001 - as above
    raise ValueError(f"a Message or a MessageId is needed, not {type(message).__name__}")


async def _batch(consumer: AsyncioConsumer[Any], policy: ConsumerBatchReceivePolicy) -> list[OurMessage[Any]]:
    """Messages one by one until a bound is reached; a message in hand is never put back."""
    clock = consumer._core.runtime.monotonic  # noqa: SLF001 - the client's own clock
    deadline = clock() + policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None
    found: list[OurMessage[Any]] = []
    size = 0
    while not _full(policy, len(found), size):
        more = consumer.receive_nowait(1)
        if not more:
            wait = None if deadline is None else max(0.0, deadline - clock())
            more = await consumer.receive_many(1, max_wait=wait)
            if not more:
                break
        found += more
        size += len(more[0].data)
    return found


def _full(policy: ConsumerBatchReceivePolicy, messages: int, size: int) -> bool:
    return 0 < policy.max_num_message <= messages or 0 < policy.max_num_bytes <= size
