"""What lists and stats show of a transaction."""

from __future__ import annotations

import attrs

from pulsar_txn.tc._state import Transaction
from pulsar_txn.tc.owners import Identity
from pulsar_txn.wire.ids import Participant, TxnId, TxnStatus


@attrs.frozen
class TransactionInfo:
    """An open or ending transaction at a moment."""

    txn_id: TxnId
    status: TxnStatus
    principal: str | None
    identity: Identity | None
    start_time_ms: int
    timeout_ms: int
    participants: tuple[Participant, ...]


def info_of(txn: Transaction) -> TransactionInfo:
    """A transaction as it is now."""
    principal, identity = txn.owner
    participants = tuple(txn.participants())
    return TransactionInfo(txn.txn_id, txn.status, principal, identity, txn.start_time_ms, txn.timeout_ms, participants)
