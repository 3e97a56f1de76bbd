"""The transactions that one connection has opened, by the request that opened each.

When the Java client connects to its coordinator anew, it sends a NEW_TXN without an answer again, with the same request id,
also over the same connection. Both requests then mean one transaction: a second one would stay open until its timeout and hold
readers back. A client can name a transaction only after it had the answer, so from then on the same bytes are a new request.
The memory belongs to the connection, because request ids do, and it survives a coordinator that fails and is opened again.
After a reconnect, a client opens a new transaction, and the old one ends by its timeout.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from pulsar_txn.wire.ids import TxnId

REMEMBERED: Final = 1024
"""How many transactions one connection remembers; the oldest is forgotten first."""

Asked: TypeAlias = tuple[int, bytes, bytes]
"""Coordinator and request id of a NEW_TXN, the id as it travels; and the whole frame."""


class OpenedTransactions:
    """Remembers what NEW_TXN was answered, and how many requests wait for the answer that is under way."""

    __slots__ = ("_requests", "_waiting", "answered")

    def __init__(self) -> None:
        self.answered: dict[Asked, TxnId] = {}
        """The transactions that requests have opened and nobody has named, by request; to be read only."""
        self._requests: dict[TxnId, Asked] = {}
        self._waiting: dict[Asked, int] = {}

    def waits(self, asked: Asked) -> bool:
        """Count a request that waits for its answer; True when an equal one waits already, and only that one is carried out."""
        before = self._waiting.get(asked, 0)
        self._waiting[asked] = before + 1
        return before > 0

    def settle(self, asked: Asked, txn_id: TxnId | None) -> int:
        """Note the answer; returns how many requests waited for it. After an error (None) a repeat is a new attempt."""
        answered = self.answered
        if txn_id is not None:
            answered[asked], self._requests[txn_id] = txn_id, asked
            if len(answered) > REMEMBERED:
                del self._requests[answered.pop(next(iter(answered)))]
        return self._waiting.pop(asked)

    def named(self, txn_id: TxnId) -> None:
        """A request names the transaction: its client has the answer, and asks for it no more."""
        asked = self._requests.pop(txn_id, None)
        if asked is not None:
            del self.answered[asked]
