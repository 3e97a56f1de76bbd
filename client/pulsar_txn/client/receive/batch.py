"""Messages taken together and acknowledged in one transaction: `async with consumer.transactional_batch() as batch`.

| the body ended | what happens |
|---|---|
| normally | every message of the batch is acknowledged in `batch.txn`, then the transaction commits |
| normally, with no message | nothing was opened, so nothing is ended (what the body sent in `batch.txn` is committed) |
| any other way | as a managed block: the transaction aborts, and the messages come again |

The messages join the transaction, as with `receive_many(txn=…)`. It opens with the first operation in it, or on entering
with `eager=True`. The acknowledgement names every message and is never cumulative: a cumulative one would include messages
that another consumer has acknowledged, and messages that were never delivered here. So it conflicts when anybody else has
acknowledged a message.

After an abort the broker delivers again what was acknowledged, and is asked for the rest. If nobody could tell the
coordinator to abort, acknowledged messages come again after it has ended the transaction at its timeout. After a commit
whose outcome is unknown nothing is asked for: when `resolve()` has said ABORTED, call `batch.redeliver()`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from pulsar_txn.client.errors import TransactionStateError
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.reception import Reception
from pulsar_txn.client.state.transaction import TransactionOptions
from pulsar_txn.client.txn.managed import AsyncManagedTransaction
from pulsar_txn.client.txn.transaction import AsyncTransaction
from pulsar_txn.client.txn.transactions import Transactions

if TYPE_CHECKING:
    from pulsar_txn.client.receive.consumer import AsyncConsumer

T = TypeVar("T")


class AsyncTransactionalBatch(Sequence[Message[T]]):
    """The messages, in the order in which they were received, and `txn`, the transaction that acknowledges them.

    The block acknowledges all of them, except those that the program refuses or takes out of the transaction.
    """

    def __init__(self, consumer: AsyncConsumer[T], messages: Sequence[Message[T]], txn: AsyncTransaction) -> None:
        self.consumer = consumer
        """The consumer that has received them."""
        self.messages = tuple(messages)
        """The messages themselves; the batch is a sequence of them as well."""
        self.txn = txn
        """The transaction to send in; it opens with its first operation."""

    def redeliver(self) -> Awaitable[None]:
        """Ask for redelivery of the messages, after a commit whose outcome was unknown and turned out as aborted."""
        return self.consumer.give_back(self.messages)

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


class AsyncTransactionalBatchBlock(Generic[T]):
    """Async context manager that `consumer.transactional_batch()` returns, used once."""

    def __init__(
        self,
        consumer: AsyncConsumer[T],
        reception: Reception[T],
        transactions: Transactions,
        options: TransactionOptions,
        *,
        max_messages: int,
        max_wait: float | timedelta | None,
        eager: bool,
        ambient: bool,
    ) -> None:
        self._consumer = consumer
        self._reception = reception
        self._transactions = transactions
        self._options = options
        self._max_messages = max_messages
        self._max_wait = max_wait
        self._eager = eager
        self.ambient = ambient
        self._block: AsyncManagedTransaction | None = None

    async def __aenter__(self) -> AsyncTransactionalBatch[T]:
        """Receive, then open the transaction when `eager`. Raises as `receive_many` and `client.transaction()`."""
        if self._block is not None:
            raise TransactionStateError(
                "consumer.transactional_batch() can be entered once", hint="call consumer.transactional_batch() again"
            )
        reception = self._reception
        unit = self._transactions.new(self._options)
        self._block = AsyncManagedTransaction(unit, eager=self._eager, ambient=self.ambient)
        reception.check_open()
        unit.looks_for_input(reception.core)
        await reception.ready(self._max_messages, self._max_wait, unit)
        messages = reception.take(self._max_messages, unit, whole=True)
        try:
            txn = await self._block.__aenter__()
        except BaseException:
            reception.inputs.of(unit).bring_back()
            raise
        return AsyncTransactionalBatch(self._consumer, messages, txn)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Acknowledge and commit, or abort; see the module's table."""
        if self._block is None:
            raise TransactionStateError("the block was never entered", hint="enter it first")
        return await self._block.__aexit__(kind, error, traceback)
