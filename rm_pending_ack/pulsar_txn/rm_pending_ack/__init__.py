"""The pending-ack handle of a subscription: acknowledgements that wait for their transaction.

It knows positions, batch indexes and transaction ids, and asks a read-only view of the cursor. It must never
know messages, sockets or clocks, or move the cursor itself: that is an effect. Conflicts are decided before
anything is logged, so its redo log holds only acks that count.
"""

from pulsar_txn.rm_pending_ack.handle import PendingAckHandle
from pulsar_txn.rm_pending_ack.records import Op, Record
from pulsar_txn.rm_pending_ack.requests import (
    AckCumulative,
    AckIndividual,
    AckItem,
    CursorReset,
    CursorStored,
    CursorView,
    EndTxnOnSubscription,
    PendingAck,
    PendingAckStats,
    PlainAcked,
    Request,
    Verified,
)
from pulsar_txn.rm_pending_ack.transitions import TRANSITIONS, Event, State

__all__ = [
    "TRANSITIONS",
    "AckCumulative",
    "AckIndividual",
    "AckItem",
    "CursorReset",
    "CursorStored",
    "CursorView",
    "EndTxnOnSubscription",
    "Event",
    "Op",
    "PendingAck",
    "PendingAckHandle",
    "PendingAckStats",
    "PlainAcked",
    "Record",
    "Request",
    "State",
    "Verified",
]
