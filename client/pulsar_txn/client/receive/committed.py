"""The committed position of a subscription: what Kafka's `committed` asks of a group."""

from __future__ import annotations

from typing import Any

import attrs

from pulsar_txn.client.errors import NotAllowedError, PositionUnstable
from pulsar_txn.client.receive.channel import Channel
from pulsar_txn.client.receive.subscribe_fields import message_id_of
from pulsar_txn.wire.ids import MessageId, TxnId, signed64


@attrs.frozen
class CommittedPosition:
    """Place up to which one subscription has acknowledged on one topic partition.

    `message_id`: every message up to it is acknowledged; `entry_id` is -1 before the first one. `last_transaction`: of those
    that acknowledged something, the one that was committed last; None: there was none, or the broker does not keep it (stock
    Pulsar). `open_transaction`: an open one holds acknowledgements, so its commit will move the position.
    """

    message_id: MessageId
    last_transaction: TxnId | None = None
    open_transaction: TxnId | None = None


async def ask_committed(channel: Channel, *, require_stable: bool) -> CommittedPosition:
    """Ask the broker of one partition; see `Consumer.committed`."""
    connection = await channel.connected("committed")
    if not connection.features.supports_committed_position:
        if require_stable:
            text = f"the broker of {channel.topic} does not say whether an open transaction holds acknowledgements"
            hint = "use require_stable=False, or look at `pulsar-admin transactions pending-ack-stats`"
            raise NotAllowedError(text, endpoint=connection.endpoint, hint=hint)
        return _of_stock(await channel.ask_until_answered("committed", "getLastMessageId"), channel)
    answer = await channel.ask_until_answered("committed", "getCommittedPosition")
    holder = _txn_id(answer, "unstable")
    if require_stable and holder is not None:
        text = f"an open transaction holds acknowledgements of {channel.topic}"
        raise PositionUnstable(text, txn_id=holder, endpoint=connection.endpoint)
    return CommittedPosition(message_id_of(answer.position, channel.partition), _txn_id(answer, "last_committed"), holder)


def _of_stock(answer: Any, channel: Channel) -> CommittedPosition:
    if not answer.HasField("consumer_mark_delete_position"):
        raise NotAllowedError(f"the broker of {channel.topic} does not tell the position of a subscription")
    return CommittedPosition(message_id_of(answer.consumer_mark_delete_position, channel.partition))


def _txn_id(answer: Any, name: str) -> TxnId | None:
    if not answer.HasField(f"{name}_least_bits"):
        return None
    return TxnId(signed64(getattr(answer, f"{name}_most_bits")), signed64(getattr(answer, f"{name}_least_bits")))
