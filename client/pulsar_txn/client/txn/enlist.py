"""Needs of producers and consumers of a transaction, and of a transaction of them.

`unit.Unit` implements `Enlisting`; producers and consumers call it and know nothing else of it.
The path of one transactional send:

1. `txn.enlist_send(core, topic, messages, size, flushable)` checks that the transaction is open and of this client
   and in time (raises TransactionStateError or TransactionTimedOut *before* anything is queued), counts
   `messages` operations as started, and makes sure that ADD_PARTITION_TO_TXN for `topic` (a partition's full name)
   was asked for once. It returns the TxnId when the partition is registered already (the fast path: no await, no
   future) and else a future of it, one and the same for all callers that wait for this registration.
2. The producer holds the messages of that (partition, transaction) back, in order, until the future is done.
   Further messages of an open batch are added without a call, as long as `usable` says that the transaction takes more
   (else `enlist_send` says why not), and counted at `sends_to(topic)` when the batch is complete, or `count_sends` asks.
3. When the messages' receipt or failure is known the producer calls `txn.send_finished(topic, messages, error)`, once
   per batch.
   A failed registration is reported the same way by the producer: one started operation is always finished exactly once.

Acks go the same way with `enlist_ack` and `ack_finished`. What is received in a transaction joins it as its `Input`: see
`join`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeAlias

from pulsar_txn.client.errors import NotAllowedError, PulsarError
from pulsar_txn.wire.ids import TxnAction, TxnId

WhenEnded: TypeAlias = Callable[[TxnAction | None], None]
"""Told how a transaction ended; None while it can no longer be used here and nobody knows yet how it ends."""


class Flushable(Protocol):
    """A producer, as seen by a transaction that wants to commit."""

    def flush_nowait(self) -> None:
        """Send what waits in open batches now; does not wait for receipts."""
        ...

    def count_sends(self, txn: object) -> None:
        """Count what a transaction's open batches hold; see `Enlisting.sends_to`."""
        ...


class SendCounter(Protocol):
    """Sends of a transaction to one topic partition: how many were started, and their bytes."""

    started: int
    bytes: int


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


class Enlisting(Protocol):
    """A transaction, as seen by producers and consumers. Hashable by identity: batches are keyed by it."""

    @property
    def usable(self) -> bool:
        """True if it takes operations; when it does not, `enlist_send` and `enlist_ack` raise."""
        ...

    def enlist_send(
        self, core: object, topic: str, messages: int, size: int, flushable: Flushable
    ) -> TxnId | asyncio.Future[TxnId]:
        """Start `messages` sends (`size` bytes together) to one topic partition; see the module's text for the order.

        `core` is the client's core object, compared by identity to find objects of another client; `topic` is what its
        `target` says. `flushable` is to be flushed when the transaction waits for its operations.
        Raises TransactionStateError or TransactionTimedOut; then nothing was started.
        """
        ...

    def in_time(self) -> bool:
        """True if its time is not over: what leaves later may arrive after its abort."""
        ...

    def sent_again(self) -> None:
        """An operation of it was written once more on another connection: the first one may still reach its broker, late."""
        ...

    def sends_to(self, topic: str) -> SendCounter:
        """The counter of sends to a topic partition that were begun with `enlist_send`.

        A producer adds to it while sends of its own that were counted before are not finished: the first message of a batch
        is counted by `enlist_send`, the others at once when the batch is complete.
        """
        ...

    def send_finished(self, topic: str, messages: int, error: BaseException | None) -> None:
        """`messages` sends to `topic` have their receipt (`error` None) or failed; a failure dooms the transaction."""
        ...

    @property
    def may_be_fenced(self) -> bool:
        """True if a broker may refuse its sends because somebody took over; `why_refused` finds out."""
        ...

    async def why_refused(self, error: NotAllowedError) -> PulsarError:
        """The error of a send that its broker does not allow: ProducerFenced where its coordinator says so, else `error`."""
        ...

    def enlist_ack(
        self, core: object, topic: str, subscription: str, messages: int, *, cumulative: bool
    ) -> TxnId | asyncio.Future[TxnId]:
        """Start the acknowledgement of `messages` messages of one subscription of a topic partition; as `enlist_send`."""
        ...

    def ack_finished(self, topic: str, subscription: str, messages: int, error: BaseException | None) -> None:
        """The acknowledgement has its ACK_RESPONSE (`error` None) or failed; a failure dooms the transaction."""
        ...

    @property
    def remaining(self) -> float | None:
        """Seconds until operations are refused; None for a transaction that was begun elsewhere or has no id yet."""
        ...

    def looks_for_input(self, core: object) -> None:
        """A consumer is asked for messages in this transaction. Raises as `enlist_send`; nothing is opened by it."""
        ...

    def join(self, core: object, joining: Input) -> None:
        """Messages were received in this transaction: its commit acknowledges them, and its abort brings them back.

        The same object may join again, without effect. Raises as `enlist_send`. Nothing is opened by it: the id is taken
        when the first operation needs it.
        """
        ...

    def doom(self, error: BaseException) -> None:
        """An operation failed before it was started, where nobody could be told: nothing of the unit is to be committed."""
        ...

    def called(self, call: Coroutine[Any, Any, Any]) -> None:
        """An operation was called in this transaction; it starts when it is awaited, and the commit looks whether it was."""
        ...

    def left_out(self, caller: Caller) -> None:
        """An operation without `txn=` inside the block of this transaction, which does not join it."""
        ...

    def belongs_to(self, core: object) -> bool:
        """True if producers and consumers of the client with this core may take part."""
        ...

    def when_ended(self, callback: WhenEnded) -> None:
        """Call `callback(outcome)`, on the loop, when the transaction has ended or can no longer be used here.

        COMMIT or ABORT once that is known. Before it, at most once, None: its time is over, or its outcome is unknown.
        Consumers use it to forget which messages were acknowledged in it, and to have them again after an abort.
        When that is already so, it is called in the next turn of the loop.
        """
        ...
