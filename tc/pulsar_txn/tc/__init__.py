"""The transaction coordinator: it decides, remembers and drives the end of transactions.

It knows ids, participants, deadlines and its own log records. It must never know a clock, a socket, an event
loop, a topic's content, or how participants are reached: a Step says what the host has to do (see
`pulsar_txn.ledger.machine`). The decision record in its log is the only truth about an outcome.
"""

from __future__ import annotations

from pulsar_txn.tc.check_times import CheckPolicy
from pulsar_txn.tc.coordinator import FencingCoordinator, TransactionCoordinator
from pulsar_txn.tc.fencing import Fencing
from pulsar_txn.tc.ids import LaneIds, PulsarIds
from pulsar_txn.tc.info import IdInfo, TransactionInfo
from pulsar_txn.tc.lane_table import LANE_INVARIANTS, LANE_TRANSITIONS
from pulsar_txn.tc.owners import Identity
from pulsar_txn.tc.records import Record
from pulsar_txn.tc.requests import (
    AddParticipants,
    BeginIncarnation,
    Check,
    CheckAnswered,
    CheckBegun,
    CheckOutcome,
    CheckReturned,
    EndTxn,
    Goodbye,
    GroupJoined,
    GroupLeft,
    IsRegistered,
    NewTxn,
    ParticipantsDone,
    PrepareTxn,
    ReleaseHeld,
    Renew,
    Request,
    ResumeTxn,
    TakeOver,
    Vanished,
)
from pulsar_txn.tc.table import INVARIANTS, TRANSITIONS

__all__ = [
    "INVARIANTS",
    "LANE_INVARIANTS",
    "LANE_TRANSITIONS",
    "TRANSITIONS",
    "AddParticipants",
    "BeginIncarnation",
    "Check",
    "CheckAnswered",
    "CheckBegun",
    "CheckOutcome",
    "CheckPolicy",
    "CheckReturned",
    "EndTxn",
    "Fencing",
    "FencingCoordinator",
    "Goodbye",
    "GroupJoined",
    "GroupLeft",
    "IdInfo",
    "Identity",
    "IsRegistered",
    "LaneIds",
    "NewTxn",
    "ParticipantsDone",
    "PrepareTxn",
    "PulsarIds",
    "Record",
    "ReleaseHeld",
    "Renew",
    "Request",
    "ResumeTxn",
    "TakeOver",
    "TransactionCoordinator",
    "TransactionInfo",
    "Vanished",
]
