"""Transactions that end with the connection that opened them (`abort_on_disconnect`).

Kafka's design allows a coordinator to abort when it notices that a socket was closed. Here a client asks for it, because most
clients come back after a broken connection and go on. What is prepared stays: it waits for its end whatever becomes of its
client.

A connection that the server ends (its own end, or another instance that leads from now on) is no sign that the client is
gone, so it aborts nothing; the same client comes back. After a restart nobody knows the connection any more: the timeout
decides, or the check group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.tc.owners import Owner
from pulsar_txn.wire.ids import TxnId, coordinator_of

_BESIDE_OTHERS: Final = 16
"""Aborts in one turn, while other long work waits."""

Abort: TypeAlias = Callable[[TxnId, Owner], bool]
"""Abort what is open of it; False while its coordinator does not serve."""


class Bound:
    """Transactions of one connection. `is_over`: it has ended, or is not to end anything any more."""

    __slots__ = ("aborts", "is_over", "transactions")

    def __init__(self) -> None:
        self.transactions: dict[TxnId, Owner] = {}
        self.is_over = False
        self.aborts = False


class BoundTransactions:
    """Those of one server. There are never more than transactions that take room in its coordinators."""

    def __init__(self, turn: Turn, abort: Abort) -> None:
        self._turn = turn
        self._abort = abort
        self._of: dict[TxnId, Bound] = {}
        self._left: deque[tuple[TxnId, Owner]] = deque()
        self._waiting: dict[int, list[tuple[TxnId, Owner]]] = {}
        self._works = False
        self._stopped = False

    def bind(self, txn_id: TxnId, owner: Owner, bound: Bound) -> None:
        """Bind it: it ends with this connection, and with no other one any more. A connection that is gone ends it at once."""
        if bound.is_over:
            if bound.aborts:
                self._end([(txn_id, owner)])
            return
        before = self._of.get(txn_id)
        if before is not None:
            del before.transactions[txn_id]
        self._of[txn_id] = bound
        bound.transactions[txn_id] = owner

    def ended(self, txn_id: TxnId) -> None:
        """The transaction is over."""
        bound = self._of.pop(txn_id, None)
        if bound is not None:
            del bound.transactions[txn_id]

    def gone(self, bound: Bound) -> None:
        """The client's connection has ended: abort what is open, in slices."""
        if not bound.is_over:
            bound.aborts = not self._stopped
            left = self._taken(bound)
            if bound.aborts:
                self._end(left)

    def release(self, bound: Bound) -> None:
        """The server ends the connection: its transactions stay as they are."""
        self._taken(bound)

    def stop(self) -> None:
        """The server ends: from now on nothing is aborted."""
        self._stopped = True
        self._left.clear()
        self._waiting.clear()

    def opened(self, tc_id: int) -> None:
        """A coordinator serves again."""
        self._end(self._waiting.pop(tc_id, []))

    def lost(self, tc_id: int) -> None:
        """Another process leads the coordinator."""
        self._waiting.pop(tc_id, None)

    def _taken(self, bound: Bound) -> list[tuple[TxnId, Owner]]:
        bound.is_over = True
        left, bound.transactions = list(bound.transactions.items()), {}
        for txn_id, _ in left:
            del self._of[txn_id]
        return left

    def _end(self, left: list[tuple[TxnId, Owner]]) -> None:
        self._left += left
        if self._left and not self._works:
            self._works = True
            self._turn.runtime.call_soon(self._work)

    def _work(self) -> None:
        budget, left = self._turn.budget, len(self._left)
        if budget.waiters:  # they have waited for longer, and need the rest of this turn
            left = min(left, _BESIDE_OTHERS)
        while left and self._left and not budget.is_spent():
            left -= 1
            txn_id, owner = self._left.popleft()
            if not self._abort(txn_id, owner):
                self._waiting.setdefault(coordinator_of(txn_id.most), []).append((txn_id, owner))
        self._works = bool(self._left)
        if self._works:
            self._turn.runtime.call_soon(self._work)
