"""Committed position of a subscription: a place that no open transaction can still change, and who changed it last."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from pulsar_txn.ledger.machine import Reply
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Position, TxnId

if TYPE_CHECKING:
    from .pending_ack_host import PendingAckHost
    from .subscription import Subscription
    from .topic import Topic


@attrs.frozen
class CommittedPosition:
    """`position`: everything up to here is acknowledged, durably. `last_committed`: the transaction that was committed last of
    those that acknowledged something. `unstable`: an open transaction holds acknowledgements, the first of them by place;
    its commit will move the position. None: there is no such transaction.
    """

    position: Position
    last_committed: TxnId | None
    unstable: TxnId | None


async def committed_position(topic: Topic, subscription: Subscription) -> CommittedPosition:
    """The committed position at a moment during this call.

    A commit that was decided here before the call counts: its acknowledgements are waited for. Raises LedgerError, and Refusal
    ServiceNotReady when the subscription is closed meanwhile. Safe to cancel.
    """
    unstable = last_committed = None
    handle, host = subscription.pending_ack, subscription.host
    if handle is not None and host is not None:
        unstable, last_committed = handle.first_holder(), handle.stats().last_committed_txn
        await _carried_out(host)
    cursor, log = subscription.cursor, topic.log
    position, ticket = cursor.mark_delete, cursor.ticket
    if cursor.confirmed_ticket < ticket:
        await log.flush()
    return CommittedPosition(position, last_committed, unstable)


async def _carried_out(host: PendingAckHost) -> None:
    """Wait until all that is applied now is durable, and the cursor has moved by it."""
    loop = asyncio.get_running_loop()
    released: asyncio.Future[None] = loop.create_future()
    host.release_at_tail((Reply(partial(_release, released)),))
    await released
    while host.moves_entries:  # a large transaction is carried out some entries per turn
        released = loop.create_future()
        host.turn.defer(partial(_release, released, None, None, ""))
        await released
    if host.failure is not None:
        raise Refusal(ServerError.ServiceNotReady, f"{host.failure}; retry")


def _release(released: asyncio.Future[None], _value: Any, error: ServerError | None, message: str) -> None:
    if released.done():
        return
    if error is None:
        released.set_result(None)
    else:
        released.set_exception(Refusal(error, message))
