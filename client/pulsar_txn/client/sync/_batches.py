"""The sync twins of transactional batches, by hand: they hand out messages, which are the same here and there."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, overload

from pulsar_txn.client.loop import transactional_batch
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.sync._base import GenericTwin, SyncLoop

if TYPE_CHECKING:
    from pulsar_txn.client.sync import _twins

T = TypeVar("T")


class TransactionalBatch(Sequence[Message[T]]):
    """The messages, in the order in which they were received, and `txn`, the transaction that acknowledges them."""

    def __init__(self, loop: SyncLoop, batch: transactional_batch.AsyncTransactionalBatch[T]) -> None:
        from pulsar_txn.client.sync import _twins  # it imports this module

        self._loop = loop
        self._inner = batch
        self.messages = batch.messages
        self.txn = _twins.Transaction(loop, batch.txn)
        self.consumer: _twins.Consumer[T] = _twins.Consumer(loop, batch.consumer)

    def redeliver(self) -> None:
        """Have its messages delivered again; after a commit whose outcome was unknown and turned out as aborted."""
        self._loop.call(self._inner.redeliver)

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Message[T]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Message[T]]: ...

    def __getitem__(self, index: int | slice) -> Message[T] | Sequence[Message[T]]:
        return self.messages[index]

    def __repr__(self) -> str:
        return repr(self._inner)


class TransactionalBatchBlock(GenericTwin[transactional_batch.AsyncTransactionalBatchBlock[T], T]):
    """What `consumer.transactional_batch()` returns: a context manager, used once."""

    def __enter__(self) -> TransactionalBatch[T]:
        """Receive, then begin the transaction when `eager`."""
        return TransactionalBatch(self._loop, self._loop.run(self._inner.__aenter__))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        """Acknowledge and commit, or abort."""
        return self._loop.run(lambda: self._inner.__aexit__(kind, error, traceback))
