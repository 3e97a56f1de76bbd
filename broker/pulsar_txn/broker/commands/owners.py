"""Owners of transactions in SEND and ACK. Ids are counters that anybody can guess, so a participant cannot tell from them.

A client without a principal is not asked: then nobody is. What belongs to another role is refused as what does not exist.
"""

from __future__ import annotations

from pulsar_txn.broker.txn.participants import is_external
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnId

from .session import Session


def foreign_in(session: Session, txn_id: TxnId, participant: str) -> Refusal | None:
    """Return why a client with a principal may not write in a transaction; None: it is its own.

    `participant`: what the refusal of the participant itself says of a transaction that does not exist.
    """
    coordinators = session.services.coordinators
    if coordinators is None:
        return None  # the participant knows of no transaction
    if session.services.config.external_transaction_coordinators_enabled and is_external(txn_id):
        return None  # whose it is its coordinator knows; no broker asks one beside it
    own = coordinators.belongs_to(txn_id, session.principal)
    if own is None:
        return Refusal(ServerError.ServiceNotReady, f"the coordinator of {txn_id} is not ready; retry")
    text = f"transaction {txn_id} is not open, or {participant}"
    return None if own else Refusal(ServerError.NotAllowedError, text)
