"""Methods of consumers and readers of both kinds: official arguments become ours, and our messages official ones."""

from __future__ import annotations

from typing import Any

from pulsar_txn.client.inside import NOT_SAID
from pulsar_txn.compat._arguments import check, done
from pulsar_txn.compat.exceptions import BY_NAME, mapped
from pulsar_txn.compat.messages import Message, MessageId
from pulsar_txn.compat.schema import Schema
from pulsar_txn.compat.transactions import native


class Receiving:
    """A consumer or reader of the client, blocking or asyncio, under the official names."""

    def __init__(self, own: Any, schema: Schema, *, seek_inclusive: bool) -> None:
        self._ours = own
        self._schema = schema
        self._seek_inclusive = seek_inclusive

    @mapped
    def topic(self) -> str:
        """The topic's full name; of the first one when there are several."""
        return self._ours.topic  # type: ignore[no-any-return]  # either kind's

    @mapped
    def is_connected(self) -> bool:
        """True while all partitions are connected."""
        return self._ours.is_connected  # type: ignore[no-any-return]  # either kind's


class Consuming(Receiving):
    """A consumer of the client, blocking or asyncio, under the official names."""

    def subscription_name(self) -> str:
        """The subscription."""
        return self._ours.subscription  # type: ignore[no-any-return]  # either kind's

    def consumer_name(self) -> str:
        """The name given, or one that was made up."""
        return self._ours.consumer_name  # type: ignore[no-any-return]  # either kind's


def seconds(timeout_millis: int | None) -> float | None:
    """None stays None."""
    if timeout_millis is None:
        return None
    check(int, timeout_millis, "timeout_millis")
    return timeout_millis / 1000


def _acknowledged(message: Any) -> Any:
    """Translate to an argument of our client's `acknowledge`. ValueError for anything else."""
    if isinstance(message, Message):
        return message.native()
    if isinstance(message, MessageId):
        return message.acknowledged()
    raise ValueError(f"a Message or a MessageId is needed, not {type(message).__name__}")


def _target_of(messageid: Any) -> Any:
    """Translate to an argument of our client's `seek`."""
    if isinstance(messageid, MessageId):
        return messageid.native()
    if isinstance(messageid, int):
        return messageid
    raise ValueError(f"a MessageId or a time in milliseconds is needed, not {type(messageid).__name__}")


async def acknowledge(
    self: Consuming, message: Message | MessageId | list[Message | MessageId], *, txn: Any = NOT_SAID
) -> None:
    """Acknowledge a message or an id, or a list of them; `txn` is one of `client.transaction()`."""
    those = [_acknowledged(each) for each in message] if isinstance(message, list) else _acknowledged(message)
    await done(self._ours.acknowledge(those, txn=native(txn)))


async def acknowledge_cumulative(self: Consuming, message: Message | MessageId, *, txn: Any = NOT_SAID) -> None:
    """Acknowledge everything of its partition up to and with it."""
    if not self._ours.consumer_type.is_single:
        raise BY_NAME["CumulativeAcknowledgementNotAllowedError"](
            f"there is no order on a {self._ours.consumer_type.name} subscription"
        )
    await done(self._ours.acknowledge_cumulative(_acknowledged(message), txn=native(txn)))


async def negative_acknowledge(self: Consuming, message: Message | MessageId) -> None:
    """Have it delivered again after the consumer's delay."""
    self._ours.negative_acknowledge(_acknowledged(message))


async def seek(self: Receiving, messageid: MessageId | int) -> None:
    """Go to the place after a message (to it with `start_message_id_inclusive`), or to a time in epoch milliseconds."""
    await done(self._ours.seek(_target_of(messageid), inclusive=self._seek_inclusive))


async def get_last_message_id(self: Consuming) -> MessageId:
    """The id of the last message that can be read now."""
    return MessageId.wrap(await done(self._ours.get_last_message_id()), self._ours.topic)


async def has_message_available(self: Receiving) -> bool:
    """True if `read_next` would find a message that is stored at this moment."""
    found: bool = await done(self._ours.has_message_available())
    return found


async def unsubscribe(self: Consuming) -> None:
    """Delete the subscription and close."""
    await done(self._ours.unsubscribe())


async def close(self: Any) -> None:
    """Close; idempotent."""
    await done(self._ours.close())


async def flush(self: Any) -> None:
    """Wait until everything sent before has its receipt, or failed."""
    await done(self._ours.flush())


@mapped
def redeliver_unacknowledged_messages(self: Consuming) -> None:
    """Have everything delivered again that is not acknowledged."""
    self._ours.redeliver_unacknowledged()
