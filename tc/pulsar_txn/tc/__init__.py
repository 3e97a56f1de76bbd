"""The transaction coordinator: it decides, remembers and drives the end of transactions.

It knows ids, participants, deadlines and its own log records. It must never know a clock, a socket, an event
loop, a topic's content, or how participants are reached: what it wants done it says in a Step (see
`pulsar_txn.ledger.machine`). The decision record in its log is the only truth about an outcome.
"""

from __future__ import annotations

from pulsar_txn.tc.coordinator import TransactionCoordinator, TransactionInfo
from pulsar_txn.tc.fencing import FencingCoordinator
from pulsar_txn.tc.records import Record
from pulsar_txn.tc.requests import AddParticipants, EndTxn, Identity, IsRegistered, NewTxn, ParticipantsDone, Request
from pulsar_txn.tc.table import INVARIANTS, TRANSITIONS

__all__ = [
    "INVARIANTS",
    "TRANSITIONS",
    "AddParticipants",
    "EndTxn",
    "FencingCoordinator",
    "Identity",
    "IsRegistered",
    "NewTxn",
    "ParticipantsDone",
    "Record",
    "Request",
    "TransactionCoordinator",
    "TransactionInfo",
]
