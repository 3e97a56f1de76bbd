"""Messages taken together and acknowledged in one transaction: `async with consumer.transactional_batch() as batch`.

| the body ended | what happens |
|---|---|
| normally | every message of the batch is acknowledged in `batch.txn`, then commit |
| normally, with no message | nothing was opened, so nothing is ended (what the body sent in `batch.txn` is committed) |
| any other way | as a managed block: abort, and the messages come again |

The transaction is begun with the first operation in it, or on entering with `eager=True`. The acknowledgement names every
message (see `_runs`), so that it conflicts when anybody else has settled one of them.

After an abort the broker delivers again what was acknowledged, and is asked for the rest. When the abort could not be
asked for, acknowledged messages come again once the coordinator has ended the transaction by its timeout. When the
commit's outcome is unknown nothing is asked for: once `resolve()` has said ABORTED, call `batch.redeliver()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from pulsar_txn.client.errors import TransactionStateError
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.runs import Handed
from pulsar_txn.client.txn.managed import AsyncManagedTransaction
from pulsar_txn.client.txn.stats import TransactionState
from pulsar_txn.client.txn.transaction import AsyncTransaction
from pulsar_txn.client.txn.unit import Unit

if TYPE_CHECKING:
    from pulsar_txn.client.receive.consumer import AsyncConsumer
    from pulsar_txn.client.receive.partition_consumer import PartitionConsumer

T = TypeVar("T")

COORDINATOR_SLACK: Final = 2.0
"""Seconds behind a transaction's deadline after which its coordinator has surely aborted it."""


class AsyncTransactionalBatch(Sequence[Message[T]]):
    """The messages, in the order in which they were received, and `txn`, the transaction that acknowledges them.

    The block acknowledges all of them; acknowledging one of them besides is a TransactionConflict.
    """

    def __init__(self, consumer: AsyncConsumer[T], messages: Sequence[Message[T]], txn: AsyncTransaction) -> None:
        self.consumer = consumer
        """Whose they are."""
        self.messages = tuple(messages)
        """The messages themselves; the batch is a sequence of them, too."""
        self.txn = txn
        """To send in; begun with its first operation."""

    def redeliver(self) -> None:
        """Have its messages delivered again; after a commit whose outcome was unknown and turned out as aborted."""
        self.consumer.give_back(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Message[T]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Message[T]]: ...

    def __getitem__(self, index: int | slice) -> Message[T] | Sequence[Message[T]]:
        return self.messages[index]

    def __repr__(self) -> str:
        return f"<TransactionalBatch of {len(self.messages)} messages in {self.txn!r}>"


class BatchUnit(Generic[T]):
    """A managed block over messages that were received already; what `transactional_batch` and `pipeline` are made of.

    With `keep`, messages of which nothing was acknowledged stay with the caller after an abort.
    """

    def __init__(
        self,
        consumer: AsyncConsumer[T],
        handed: Sequence[Handed],
        unit: Unit,
        *,
        eager: bool = False,
        keep: bool = False,
    ) -> None:
        self.batch = AsyncTransactionalBatch(consumer, [message for message, _ in handed], AsyncTransaction(unit))
        unit.inputs.looked_for = True
        self.acknowledging = False
        self._consumer = consumer
        self._groups: dict[PartitionConsumer, list[Handed]] = {}
        for message, number in handed:
            self._groups.setdefault(message.entry.consumer, []).append((message, number))
        self._acknowledged: set[PartitionConsumer] = set()
        self._block = AsyncManagedTransaction(unit, eager=eager)
        self._handed = handed
        self._keep = keep
        self._later: asyncio.Handle | None = None

    async def __aenter__(self) -> AsyncTransactionalBatch[T]:
        try:
            await self._block.__aenter__()
        except BaseException:
            self._bring_back()
            raise
        return self.batch

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        txn = self.batch.txn
        try:
            if error is None and txn.state in (TransactionState.NOT_STARTED, TransactionState.OPEN) and not txn.doomed:
                try:
                    await self._acknowledge()
                except BaseException as failed:
                    if txn.doom_cause is None or not isinstance(failed, Exception):
                        await self._block.__aexit__(type(failed), failed, failed.__traceback__)
                        raise
            return await self._block.__aexit__(kind, error, traceback)
        finally:
            self.after()

    async def _acknowledge(self) -> None:
        """Everything, in the transaction; the first failure is raised when all are answered."""
        if not self._groups:
            return
        self.acknowledging = True
        work = [self._acknowledge_group(part, group) for part, group in self._groups.items()]
        for result in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _acknowledge_group(self, part: PartitionConsumer, group: list[Handed]) -> None:
        await self._consumer.acknowledge([message for message, _ in group], txn=self.batch.txn)
        self._acknowledged.add(part)

    def after(self) -> None:
        """What becomes of the messages, now that the transaction has ended as it did; again once an unknown end is known."""
        txn = self.batch.txn
        if txn.state is TransactionState.COMMITTED:
            for part, group in self._groups.items():
                self._consumer.runs.settle(part, group)
        elif txn.state is TransactionState.ABORTED or not self.acknowledging:
            self._bring_back()
        elif txn.state is not TransactionState.UNKNOWN:
            seconds = seconds_until_aborted(txn)
            self._later = self._consumer.give_back_later(self.batch.messages, seconds)
            _note_rewind(self._consumer, self._handed, wait=seconds)

    def bring_back(self) -> None:
        """The abort, which was not answered when the block was left, is over now: have everything delivered again."""
        if self._later is not None:
            self._later.cancel()
        hand_back(self._consumer, self._handed)

    def _bring_back(self) -> None:
        if self._keep and not self.acknowledging:
            return
        single = self._consumer.consumer_type.is_single
        groups = [group for part, group in self._groups.items() if single or part not in self._acknowledged]
        hand_back(self._consumer, [each for group in groups for each in group])


def seconds_until_aborted(txn: AsyncTransaction) -> float:
    """When its coordinator has surely aborted it, if nobody could tell it to."""
    return max(txn.remaining or 0.0, 0.0) + COORDINATOR_SLACK


def hand_back(consumer: AsyncConsumer[Any], handed: Sequence[Handed], queued: Sequence[Message[Any]] = ()) -> None:
    """Have messages that were handed out for batches delivered again, and others of the queue in the same request."""
    _note_rewind(consumer, handed, wait=0.0)
    consumer.give_back([*(message for message, _ in handed), *queued])


def _note_rewind(consumer: AsyncConsumer[Any], handed: Sequence[Handed], *, wait: float) -> None:
    if not consumer.consumer_type.is_single:
        return
    groups: dict[PartitionConsumer, list[Handed]] = {}
    for message, number in handed:
        groups.setdefault(message.entry.consumer, []).append((message, number))
    for part, group in groups.items():
        consumer.runs.rewind(part, group, wait=wait)


class AsyncTransactionalBatchBlock(Generic[T]):
    """What `consumer.transactional_batch()` returns: an async context manager, used once."""

    def __init__(
        self,
        consumer: AsyncConsumer[T],
        new_unit: Callable[[], Unit],
        *,
        max_messages: int,
        max_wait: float | timedelta | None,
        eager: bool,
    ) -> None:
        self._consumer = consumer
        self._new_unit = new_unit
        self._entered = False
        self._max_messages = max_messages
        self._max_wait = max_wait
        self._eager = eager
        self._unit: BatchUnit[T] | None = None

    async def __aenter__(self) -> AsyncTransactionalBatch[T]:
        """Receive, then begin the transaction when `eager`. Raises as `receive_many` and `client.transaction()`."""
        if self._entered:
            raise TransactionStateError(
                "consumer.transactional_batch() can be entered once", hint="call consumer.transactional_batch() again"
            )
        self._entered = True
        handed = await self._consumer.hand_out(self._max_messages, self._max_wait)
        self._unit = BatchUnit(self._consumer, handed, self._new_unit(), eager=self._eager)
        return await self._unit.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Acknowledge and commit, or abort; see the module's table."""
        unit: Any = self._unit
        return await unit.__aexit__(kind, error, traceback)  # type: ignore[no-any-return]  # a BatchUnit, once entered
