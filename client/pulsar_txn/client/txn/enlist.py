"""Needs of a transaction of the producers and consumers that take part in it, which are of rooms above this one.

They call `unit.Unit`, and it calls them by the protocols of this file. The path of one transactional send:

1. `txn.enlist_send(core, topic, messages, size, flushable)` checks that the transaction is open and of this client
   and in time (raises TransactionStateError or TransactionTimedOut *before* anything is queued), counts
   `messages` operations as started, and makes sure that ADD_PARTITION_TO_TXN for `topic` (a partition's full name)
   was asked for once. It returns the TxnId when the partition is registered already (the fast path: no await, no
   future) and else a future of it, one and the same for all callers that wait for this registration.
2. The producer holds the messages of that (partition, transaction) back, in order, until the future is done.
   Further messages of an open batch are added without a call, as long as `usable` says that the transaction takes more
   (else `enlist_send` says why not), and counted by `enlist_more` when the batch is complete, or `count_sends` asks.
3. When the messages' receipt or failure is known the producer calls `txn.send_finished(topic, messages, error)`, once
   per batch.
   A failed registration is reported the same way by the producer: one started operation is always finished exactly once.

Acks go the same way with `enlist_ack` and `ack_finished`. What is received in a transaction joins it as its `Input`: see
`join`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from pulsar_txn.wire.ids import TxnAction

WhenEnded: TypeAlias = Callable[[TxnAction | None], None]
"""Told how a transaction ended; None while it can no longer be used here and nobody knows yet how it ends."""


class Flushable(Protocol):
    """A producer, as seen by a transaction that wants to commit."""

    def flush_nowait(self) -> None:
        """Send what waits in open batches now; does not wait for receipts."""
        ...

    def count_sends(self, txn: object) -> None:
        """Count what a transaction's open batches hold; see `Unit.enlist_more`."""
        ...


class Input(Protocol):
    """Messages that were received in a transaction, as the transaction sees them. It must not keep the transaction alive."""

    def acknowledge(self) -> None:
        """The commit begins: start to acknowledge, in the transaction, what has joined it and is not acknowledged yet.

        Called once, while operations are still taken. It does not wait: failures are reported to `ack_finished`.
        """
        ...

    def bring_back(self) -> None:
        """The transaction cannot be committed any more: have what was not acknowledged in it delivered again.

        Called on the loop. What was acknowledged in it comes again after the abort (`when_ended`).
        """
        ...


class Caller(Protocol):
    """A producer or consumer whose operations may join transactions."""

    @property
    def core(self) -> object:
        """The core of its client."""
        ...

    @property
    def operation(self) -> str:
        """The call in words, for a sentence: "a send to …"."""
        ...
