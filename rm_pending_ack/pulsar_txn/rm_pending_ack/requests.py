"""Requests to a pending-ack handle.

Ack sets: in requests `acked` has bit i set when batch index i is acknowledged by this request (the complement of
what travels on the wire); None means the whole entry. `batch_size` is 0 for unbatched entries.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from pulsar_txn.ledger.machine import Machine, Token
from pulsar_txn.wire.ids import AckKey, Position, TxnAction, TxnId
from pulsar_txn.wire.values import value

AckItem: TypeAlias = tuple[Position, int | None, int]
"""(position, acked bits or None for the whole entry, batch_size)."""


class CursorView(Protocol):
    """View of the subscription's cursor that the handle uses; `ledger.protocols.Cursor` has it."""

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""

    def is_deleted(self, position: Position) -> bool:
        """True if the whole entry is acknowledged."""

    def ack_set(self, position: Position) -> int | None:
        """Bits of the batch indexes not acknowledged yet when a part is, else None."""


@value
class AckIndividual:
    """ACK of single messages in a transaction. Reply value None once durable.

    A transaction that is not known here gives VerifyRegistered first. With the `key` of a request that the transaction took,
    and with the same items, it is that request once more: it has the first answer and writes nothing. Refusals:
    TransactionConflict (one of its messages is acknowledged already, or pending in this or another transaction, or the key
    belongs to other items; nothing of the request counts then), NotAllowedError (the transaction ended here, is at or below
    the low watermark, or would hold more than it may), TooManyRequests (all of them would).

    An item without bits names every message of its entry. A client that acknowledges a whole entry means what its consumer was
    given of it: with less than everything, the host says so in bits.
    """

    token: Token
    txn_id: TxnId
    items: tuple[AckItem, ...]
    key: AckKey | None = None


@value
class AckCumulative:
    """ACK of everything up to a message in a transaction; `item` holds the position, and the bits of its batch up to the index.

    Refusals as AckIndividual: at or before mark-delete, or not ahead of the cumulative ack that this transaction holds, or up
    to a message that it holds individually, or another transaction holds the cumulative slot.
    """

    token: Token
    txn_id: TxnId
    item: AckItem
    key: AckKey | None = None


@value
class Verified:
    """The coordinator's answer to VerifyRegistered: `request` goes on if `registered`, else NotAllowedError.

    It may come in place of `request` (see VerifyRegistered); in a state that does not ask, it is decided as `request` is.
    """

    request: AckIndividual | AckCumulative
    registered: bool


@value
class EndTxnOnSubscription:
    """The coordinator tells the outcome. Reply value None once durable; a repeat is a no-op with the same answer."""

    token: Token
    txn_id: TxnId
    action: TxnAction
    low_watermark: int


@value
class PlainAcked:
    """Positions were acknowledged outside transactions: they leave the sets of the transactions that hold them.

    Logged only when it touches something pending (recovery must not bring it back). `cumulative`: up to this item.
    What was touched comes as a MoveCursor too, which repeats what the host did: until the cursor has stored it, the redo
    log is what keeps such an ack through a crash, for no transaction will bring it any more.
    """

    items: tuple[AckItem, ...] = ()
    cumulative: AckItem | None = None


@value
class CursorStored:
    """The cursor's durable state covers every MoveCursor up to this `sequence`: commits that waited for it may be trimmed.

    A number and not "all so far": moves of records that are not confirmed yet, or not stored yet, are still on their way.
    May be sent as rarely as the host likes, and is logged only when enough commits wait.
    """

    sequence: int


@value
class CursorReset:
    """Seek or skip: the cursor was reset. Pending acks of positions before `mark_delete` continue to be held; those
    at or after it are dropped from their transactions, and commits are not applied to the cursor again.

    Sent after the cursor's own `reset`, whose change must not become durable later than this record. The host answers
    the seek when both are durable (an empty Step: nothing was held).
    """

    mark_delete: Position


Request: TypeAlias = AckIndividual | AckCumulative | Verified | EndTxnOnSubscription | PlainAcked | CursorStored | CursorReset


@value
class PendingAckStats:
    """Counters of a handle, as Pulsar's pendingAckStats names them."""

    state: str
    ongoing_txn_size: int
    low_watermarks: dict[int, int]
    last_committed_txn: TxnId | None = None
    """Committed last of those that acknowledged something here (Kafka's design keeps it as the last commit of a group)."""


class PendingAck(Machine[Request, Any], Protocol):
    """A pending-ack plug-in. Constructed by the host as

    `factory(topic, subscription, cursor_view, max_transaction_bytes=…, max_bytes=…)`.
    """

    def pending(self, position: Position) -> int:
        """Pending part of an entry, as a bit set of batch indexes: 0 for nothing, WHOLE_ENTRY (-1) for all of it.

        The dispatcher skips what is pending. What a commit settled is also named until the cursor has stored it, so that
        nothing of it slips out between the commit's record and its MoveCursor.
        """

    def stats(self) -> PendingAckStats:
        """Counters at this moment."""

    def first_holder(self) -> TxnId | None:
        """Open transaction whose acknowledgements begin first in the topic.

        None: there is no such transaction, so the place of the cursor does not depend on any outcome.
        """

    def position_state(self, position: Position, batch_index: int = -1) -> str:
        """`PendingAck`, `MarkDelete` or `NotInPendingAck`, as Pulsar's positionStatsInPendingAck."""

    def cumulative_position(self, txn_id: TxnId) -> Position | None:
        """The cumulative ack of a transaction, None when it has none."""
