"""Transactions that wait for their outcome as long as it takes (KIP-939): how they are prepared, and who may end them.

A client that writes to another system as well prepares its transaction here, commits there, and then commits here. After a
crash in between, whoever can tell the outcome of the other system ends the transaction here: with the token that the client
chose and stored there, or as a successor of the client. An older epoch may not, also with the token: its successor may have
ended the transaction the other way at the other system.
"""

from __future__ import annotations

from typing import Final

from pulsar_txn.ledger.machine import ANSWER, Reply, Step
from pulsar_txn.tc import records
from pulsar_txn.tc._state import CoordinatorState
from pulsar_txn.tc._transaction import Transaction
from pulsar_txn.tc.admission import Limits
from pulsar_txn.tc.extras import MAX_TOKEN, NO_EXTRAS
from pulsar_txn.tc.outcomes import WAS_ABORTED, WAS_COMMITTED
from pulsar_txn.tc.records import Record
from pulsar_txn.tc.requests import PrepareTxn
from pulsar_txn.tc.table import ABORTED, COMMITTED, UNKNOWN, Cell, State
from pulsar_txn.tc.tokens import is_same
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnId

LOG: Final = "log"

ENDED_AS: Final = {WAS_COMMITTED: COMMITTED, WAS_ABORTED: ABORTED}
"""The state that an outcome of the window represents."""


class Prepared:
    """Decisions about PREPARE, and the state of a transaction as its token shows it."""

    def __init__(self, state: CoordinatorState, limits: Limits) -> None:
        self._state = state
        self._limits = limits

    def prepare(self, request: PrepareTxn, txn: Transaction, cell: Cell, now_ms: int) -> Step[Record]:
        """Write, or answer the repeat. `cell`: of `txn`, which refuses nothing."""
        token, extras = request.prepared_token, txn.extras or NO_EXTRAS
        if not 1 <= len(token) <= MAX_TOKEN:
            raise Refusal(
                ServerError.NotAllowedError, f"the token of a PREPARE has 1 to {MAX_TOKEN} bytes; this one has {len(token)}"
            )
        if cell.act is ANSWER:
            if not is_same(extras.prepared_token, token):
                raise Refusal(
                    ServerError.InvalidTxnStatus,
                    f"transaction {txn.txn_id} was prepared with another token: somebody else has prepared it",
                )
            return Step((), (Reply(request.token),))
        added = extras.prepared(token, now_ms).size - (0 if txn.extras is None else extras.size)
        self._limits.check_prepare(self._state, txn, added)
        record = records.prepared(txn.txn_id.least, token, now_ms, self._state.next_id - 1)
        return Step(((LOG, record),), (Reply(request.token),))

    def shown(self, txn_id: TxnId, token: bytes) -> tuple[State, Transaction | None]:
        """The state of a transaction that is, or was, prepared with this token; UNKNOWN without the right one."""
        txn = self._state.transactions.get(txn_id.least)
        if txn is not None:
            extras = txn.extras
            if extras is None or not extras.prepared_token or not is_same(extras.prepared_token, token):
                return UNKNOWN, None
            return (txn.status, txn) if txn.txn_id.most == txn_id.most else (UNKNOWN, None)
        if not self._state.extra.tokens.opens(txn_id.least, token):
            return UNKNOWN, None
        return ENDED_AS.get(self._state.outcomes.lookup(txn_id.least)[0]), None
