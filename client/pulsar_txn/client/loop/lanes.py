"""One lane of a pipeline: takes messages through the handler, group by group, until each is committed or given back.

A group that was aborted before anything of it was acknowledged stays here and is tried again, so that order is kept
without the broker. One that was aborted later is delivered again by the broker, and must not be overtaken meanwhile:

* until the coordinator has ended the transaction nothing comes again. The lane asks for the abort until it has an answer,
  or until the transaction's timeout has surely done it;
* on Exclusive and Failover everything after the group comes again as well, so the lane gives it back;
* on Key_Shared the lane keeps what it holds and waits for the group. A broker promises nothing about the order of what it
  delivers again, nor about what is on its way meanwhile, so the lane sorts;
* Shared has no order to keep.

The pipeline's `Holder` has all messages of its lanes, so second copies of them do not come in.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

import attrs

from pulsar_txn.client.errors import (
    AlreadyClosed,
    CommitOutcomeUnknown,
    ForkedClientError,
    InvalidTransactionStatus,
    PulsarError,
    TransactionAborted,
    TransactionNotFound,
    TransactionOperationFailed,
    TransactionsDisabled,
    TransactionStateError,
    TransactionTimedOut,
)
from pulsar_txn.client.loop.options import PipelineOptions
from pulsar_txn.client.loop.poison import Remedy, Work
from pulsar_txn.client.loop.report import Report
from pulsar_txn.client.loop.suspects import Suspects
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.batch import AsyncTransactionalBatch
from pulsar_txn.client.receive.consumer import AsyncConsumer
from pulsar_txn.client.receive.holder import Holder, Key, key_of
from pulsar_txn.client.receive.inbox import whole_entries
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.options import ConsumerType
from pulsar_txn.client.state.acknowledgements import COORDINATOR_SLACK
from pulsar_txn.client.state.transaction import FINAL, TransactionOptions, TransactionState
from pulsar_txn.client.txn.managed import AsyncManagedTransaction
from pulsar_txn.client.txn.transaction import AsyncTransaction, Rollback
from pulsar_txn.client.txn.transactions import Transactions
from pulsar_txn.client.txn.unit import Unit

logger = logging.getLogger("pulsar_txn.client.pipeline")

T = TypeVar("T")

_ENDED: Final = FINAL | {TransactionState.UNKNOWN}
"""An abort has nothing more to do: its coordinator has ended it, or does not know it."""

_STOPS: Final = (AlreadyClosed, ForkedClientError, TransactionStateError, TransactionsDisabled)


class GroupResult(enum.Enum):
    """Result of an attempt to process a group."""

    COMMITTED = enum.auto()
    KEPT = enum.auto()
    """Aborted, and its messages are still ours."""
    RETURNED = enum.auto()
    """Aborted, and its messages come again from the broker."""


@attrs.frozen(kw_only=True, eq=False)
class Shared(Generic[T]):
    """State that the lanes of a pipeline share."""

    core: Core
    transactions: Transactions
    consumer: AsyncConsumer[T]
    holder: Holder[T]
    """Has what the lanes have."""
    handler: Work[T]
    options: PipelineOptions
    stop: asyncio.Event
    suspects: Suspects
    remedy: Remedy[T]
    report: Report
    room: asyncio.Event
    """Set when a lane holds less, or holds what it has for others to come."""
    queued_for: Callable[[Lane[T]], list[Message[T]]]
    """Takes from the consumer's queue what has to go back together with the messages of a lane."""


class Lane(Generic[T]):
    """Works through its backlog, one transaction at a time."""

    def __init__(self, shared: Shared[T]) -> None:
        self.backlog: deque[Message[T]] = deque()
        self.woken = asyncio.Event()
        """Set when there may be something to do."""
        self._shared = shared
        self._consumer = shared.consumer
        self._holder = shared.holder
        self._kind = shared.consumer.consumer_type
        self._backoff = shared.core.backoff()
        self._missing: set[Key] = set()
        """Messages that have to come again before the lane goes on."""
        self._ending = False

    @property
    def ready(self) -> bool:
        """True if there is something to work on."""
        return bool(self.backlog) and not self._missing

    @property
    def waits(self) -> bool:
        """True if it cannot go on before something comes in, or a transaction ends."""
        return self._ending or bool(self._missing)

    def add(self, message: Message[T]) -> None:
        """One more message."""
        self.backlog.append(message)
        if self._missing:
            self._found([key_of(message)])
        self.woken.set()

    def take(self, max_messages: int) -> list[Message[T]]:
        """The next of the backlog, entries as a whole."""
        most = min(len(self.backlog), max_messages)
        if most < len(self.backlog):
            most = whole_entries(list(itertools.islice(self.backlog, most + 1)), most)
        return [self.backlog.popleft() for _ in range(most)]

    async def work(self, messages: Sequence[Message[T]]) -> None:
        """Until each of these is committed, dead-lettered, skipped, or given back. Raises what ends the pipeline."""
        pending = messages
        try:
            while pending:
                group = self._shared.suspects.next_group(pending)
                result = await self._process_group(group)
                rest = pending[len(group) :]
                if result is GroupResult.COMMITTED:
                    pending = rest
                    self._backoff.reset()
                    continue
                if result is GroupResult.RETURNED:
                    pending = []
                    self._on_returned(group, rest)
                elif self._shared.stop.is_set():
                    pending, left = [], pending
                    self._give_back(left)
                if self._shared.suspects.has_shrunk(group):
                    self._backoff.reset()  # a smaller group is another attempt than the one that failed: nothing to wait for
                else:
                    await rest_until(self._shared.core, self._backoff.next(), self._shared.stop)
        except BaseException:
            self._give_back(pending)
            raise

    def leave(self) -> None:
        """The pipeline stops: what is still here goes back."""
        self._missing.clear()
        if self.backlog:
            self._give_back(())

    def _give_back(self, messages: Sequence[Message[T]]) -> None:
        """These and the backlog come again, so that nothing overtakes what comes again already."""
        mine = [*messages, *self.backlog]
        self.backlog.clear()
        self._shared.room.set()
        self._holder.give_back([*mine, *self._shared.queued_for(self)])

    def _on_returned(self, group: Sequence[Message[T]], rest: Sequence[Message[T]]) -> None:
        """The group comes again; `rest` was to follow it."""
        if self._kind.is_single or self._shared.stop.is_set():
            self._give_back(rest)
            return
        self.backlog.extendleft(reversed(rest))
        if self._kind is ConsumerType.SHARED:
            return
        self._missing = {key_of(message) for message in group} - {key_of(message) for message in self.backlog}
        if self._missing:
            self._holder.expect(group, self._found)
            self._shared.room.set()
        else:
            self._sort()

    def _found(self, keys: Iterable[Key]) -> None:
        """These are here, or will not come."""
        if self._missing:
            self._missing.difference_update(keys)
            if not self._missing:
                self._sort()
                self.woken.set()

    def _sort(self) -> None:
        self.backlog = deque(sorted(self.backlog, key=key_of))
        self._shared.room.set()

    async def _process_group(self, group: Sequence[Message[T]]) -> GroupResult:
        """One attempt with the handler, and what has to be done about a poison message."""
        result, error = await self._attempt(group, self._shared.handler)
        if error is None:
            self._shared.suspects.first.worked()
            self._shared.suspects.forget(group)
            self._shared.report.committed(group)
            return result
        poison = is_blamed(error) and self._shared.suspects.failed(group)
        self._shared.report.aborted(group, error)
        if not poison:
            return result
        work = self._shared.remedy.against(group, error)
        if result is not GroupResult.KEPT:
            return result
        result, failed = await self._attempt(group, work)
        if failed is None:
            self._shared.report.removed(group, error)
            self._shared.suspects.forget(group)
        else:
            self._shared.report.aborted(group, failed)
        return result

    async def _attempt(self, group: Sequence[Message[T]], work: Work[T]) -> tuple[GroupResult, Exception | None]:
        """One transaction. Returns why it was aborted, None after a commit; raises what ends the pipeline."""
        options = TransactionOptions(timeout=self._shared.options.timeout, name="pipeline", managed=True)
        unit = self._shared.transactions.new(options)
        txn = AsyncTransaction(unit)
        error: Exception | None = None
        try:
            async with AsyncManagedTransaction(unit, ambient=self._shared.options.ambient):
                joined = self._holder.join(group, unit)
                await work(AsyncTransactionalBatch(self._consumer, group, txn))
        except Exception as failed:  # noqa: BLE001 - judged below; what no further attempt mends is raised
            error = failed
        if txn.state is TransactionState.UNKNOWN and isinstance(error, CommitOutcomeUnknown):
            await self._resolve(txn, error)
        if txn.state is TransactionState.COMMITTED:
            return GroupResult.COMMITTED, None
        if error is None:
            error = Rollback(txn)
        if isinstance(error, _STOPS) or is_fatal(error):
            raise error
        if joined.are_kept:
            return GroupResult.KEPT, error
        if txn.state is not TransactionState.ABORTED and self._kind is not ConsumerType.SHARED:
            await self._abort(txn, unit)
        return GroupResult.RETURNED, error

    async def _abort(self, txn: AsyncTransaction, unit: Unit) -> None:
        """Until the coordinator has aborted it, as it was asked to or because the time was over, or the pipeline stops."""
        shared = self._shared
        backoff = shared.core.backoff()
        self._ending = True
        shared.room.set()
        try:
            async with asyncio.timeout(seconds_until_aborted(txn)):
                while txn.state not in _ENDED and not shared.stop.is_set():
                    try:
                        await txn.abort()
                    except PulsarError as error:
                        logger.debug("%r is not aborted yet: %s", unit, error)
                        await shared.core.rest(backoff.next())
        except TimeoutError:
            pass  # its coordinator has aborted it
        finally:
            self._ending = False

    async def _resolve(self, txn: AsyncTransaction, unknown: CommitOutcomeUnknown) -> None:
        """Until the outcome is known; when nobody can say it, CommitOutcomeUnknown ends the pipeline.

        Going on would be a guess: working on the messages again may double them, and leaving them out may lose them.
        """
        shared = self._shared
        end = shared.core.runtime.monotonic() + shared.options.timeout + shared.core.settings.operation_timeout
        backoff = shared.core.backoff()
        while True:
            try:
                if await txn.resolve() is not TransactionState.UNKNOWN:
                    return
            except PulsarError as error:
                pause = backoff.next()
                if not error.retriable or shared.core.runtime.monotonic() + pause >= end:
                    raise unknown from error
                await shared.core.rest(pause)
            else:
                unknown.add_note("its coordinator has forgotten the transaction: look whether its output is there, then decide")
                raise unknown


async def rest_until(core: Core, seconds: float, stop: asyncio.Event) -> None:
    """As `Core.rest`, and no longer than until `stop` is set."""
    tasks = [asyncio.ensure_future(wait) for wait in (core.rest(seconds), stop.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def seconds_until_aborted(txn: AsyncTransaction) -> float:
    """Seconds until its coordinator has surely aborted it, if nobody could tell it to."""
    return max(txn.remaining or 0.0, 0.0) + COORDINATOR_SLACK


def is_fatal(error: BaseException) -> bool:
    """True if the error, or one of the failed operations that it represents, is fatal."""
    causes = error.failures if isinstance(error, TransactionOperationFailed) else (error,)
    return any(isinstance(cause, PulsarError) and cause.fatal for cause in causes)


def is_blamed(error: BaseException) -> bool:
    """True if an abort says something about the messages; conflicts and lost connections do not."""
    if isinstance(error, TransactionOperationFailed) and error.failures:
        return is_blamed(error.failures[0])
    if isinstance(error, TransactionTimedOut):
        return True
    if isinstance(error, TransactionAborted | TransactionNotFound | InvalidTransactionStatus | CommitOutcomeUnknown):
        return False
    return not (isinstance(error, PulsarError) and error.retriable)
