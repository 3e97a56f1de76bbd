"""The transactions that one connection has opened, by the request that opened each.

A client whose answer to NEW_TXN was late sends the request again, with the same request id. Both requests then mean one
transaction: a second one would stay open until its timeout and hold readers back. The memory belongs to the connection,
because request ids do, and it survives a coordinator that fails and is opened again. After a reconnect, a client opens a
new transaction, and the old one ends by its timeout.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from pulsar_txn.wire.ids import TxnId

REMEMBERED: Final = 1024
"""How many transactions one connection remembers; the oldest is forgotten first."""

Asked: TypeAlias = tuple[int, bytes]
"""Coordinator and request id of a NEW_TXN, the id as it travels."""


class OpenedTransactions:
    """Remembers what NEW_TXN was answered, and how many requests wait for the answer that is under way."""

    __slots__ = ("_waiting", "answered")

    def __init__(self) -> None:
        self.answered: dict[Asked, TxnId] = {}
        """The transactions that requests have opened, by request; to be read only."""
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
            answered[asked] = txn_id
            if len(answered) > REMEMBERED:
                del answered[next(iter(answered))]
        return self._waiting.pop(asked)
