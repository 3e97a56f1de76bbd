"""One lane of a pipeline: takes messages through the handler, group by group, until each is committed or given back.

A group that was aborted before anything of it was acknowledged stays here and is tried again, so that order is kept
without the broker. One that was aborted later is delivered again by the broker, and what the lane holds behind it is given
back, too.

Which message is at fault is found by halving: once a message was in `max_aborts` aborted groups, its groups are cut in
half at every further abort, until it fails alone; when it has failed alone `max_aborts` times, too, it is poison. So a
message that shared its batches with a poison one is not taken for one because of one failure of its own.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from pulsar_txn.client._runs import Handed
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
from pulsar_txn.client.message import Message
from pulsar_txn.client.transaction import Rollback, Transaction, TransactionOptions, TransactionState
from pulsar_txn.client.transactional_batch import TransactionalBatch, Unit, hand_back

if TYPE_CHECKING:
    from pulsar_txn.client.pipeline import Pipeline

T = TypeVar("T")
Work: TypeAlias = "Callable[[TransactionalBatch[T]], Awaitable[object]]"
Key: TypeAlias = tuple[str, tuple[int, int], int]

SUSPECTS_LIMIT: Final = 100_000
"""Messages whose aborts are remembered; beyond it the oldest are forgotten (another consumer may have got them)."""

_STOPS: Final = (AlreadyClosed, ForkedClientError, TransactionStateError, TransactionsDisabled)


class Outcome(enum.Enum):
    """What became of a group."""

    COMMITTED = enum.auto()
    KEPT = enum.auto()
    """Aborted, and its messages are still ours."""
    RETURNED = enum.auto()
    """Aborted, and its messages come again from the broker."""


class Suspects:
    """How often messages were in an aborted group, and how large their groups may be."""

    def __init__(self, max_aborts: int) -> None:
        self._max_aborts = max_aborts
        self._aborts: dict[Key, int] = {}
        self._alone: dict[Key, int] = {}
        self._sizes: dict[Key, int] = {}

    def failed(self, group: Sequence[Handed]) -> bool:
        """The group was aborted by what its messages did; whether it is one message that is poison."""
        keys = [_key(message) for message, _ in group]
        for key in keys:
            self._aborts[key] = self._aborts.pop(key, 0) + 1
        if max(self._aborts[key] for key in keys) >= self._max_aborts:
            self._sizes.update(dict.fromkeys(keys, max(1, len(keys) // 2)))
        if len(keys) == 1:
            self._alone[keys[0]] = self._alone.get(keys[0], 0) + 1
        while len(self._aborts) > SUSPECTS_LIMIT:
            oldest = next(iter(self._aborts))
            self._forget(oldest)
        return len(keys) == 1 and self._alone.get(keys[0], 0) >= self._max_aborts

    def settled(self, group: Sequence[Handed]) -> None:
        """Forget them."""
        if self._aborts:
            for message, _ in group:
                self._forget(_key(message))

    def _forget(self, key: Key) -> None:
        for each in (self._aborts, self._alone, self._sizes):
            each.pop(key, None)

    def aborts(self, message: Message[Any]) -> int:
        """How often its groups were aborted."""
        return self._aborts.get(_key(message), 0)

    def next_group(self, pending: Sequence[Handed]) -> Sequence[Handed]:
        """The first messages, as many as may go together."""
        if not self._sizes:
            return pending
        size = self._sizes.get(_key(pending[0][0]))
        end = 1
        while end < min(size or len(pending), len(pending)) and self._sizes.get(_key(pending[end][0])) == size:
            end += 1
        return pending[:end]


class Lane(Generic[T]):
    """Works through its backlog, one transaction at a time."""

    def __init__(self, pipeline: Pipeline[T]) -> None:
        self.backlog: deque[Handed] = deque()
        self._pipeline = pipeline
        self._consumer = pipeline.consumer
        self._backoff = pipeline.core.backoff()

    def take(self, max_messages: int) -> list[Handed]:
        """The next of the backlog; of messages that came twice, around a reconnect, the first copy."""
        taken: dict[Key, Handed] = {}
        for _ in range(min(len(self.backlog), max_messages)):
            message, number = self.backlog.popleft()
            taken.setdefault(_key(message), (message, number))
        return list(taken.values())

    async def work(self, handed: Sequence[Handed]) -> None:
        """Until each of these is committed, dead-lettered, skipped, or given back. Raises what ends the pipeline."""
        pending = handed
        try:
            while pending:
                group = self._pipeline.suspects.next_group(pending)
                outcome = await self._settle(group)
                rest = pending[len(group) :]
                if outcome is Outcome.COMMITTED:
                    pending = rest
                    self._backoff.reset()
                    continue
                if outcome is Outcome.RETURNED:
                    pending = []
                    self._give_back(rest)
                elif self._pipeline.stop.is_set():
                    pending, left = [], pending
                    self._give_back(left)
                await self._pause()
        except BaseException:
            self._give_back(pending)
            raise

    def _give_back(self, handed: Sequence[Handed]) -> None:
        """These and the backlog come again, so that nothing overtakes what comes again already."""
        hand_back(self._consumer, [*handed, *self.backlog])
        self.backlog.clear()
        self._pipeline.recall(self)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._backoff.next()):
                await self._pipeline.stop.wait()
        except TimeoutError:
            return

    async def _settle(self, group: Sequence[Handed]) -> Outcome:
        """One attempt with the handler, and what has to be done about a poison message."""
        outcome, error = await self._attempt(group, self._pipeline.handler)
        if error is None:
            self._pipeline.suspects.settled(group)
            self._pipeline.committed(group)
            return outcome
        poison = is_blamed(error) and self._pipeline.suspects.failed(group)
        self._pipeline.aborted(group, error)
        if not poison or outcome is not Outcome.KEPT:
            return outcome
        work = self._pipeline.against_poison(group, error)
        outcome, failed = await self._attempt(group, work)
        if failed is None:
            self._pipeline.removed(group, error)
            self._pipeline.suspects.settled(group)
        else:
            self._pipeline.aborted(group, failed)
        return outcome

    async def _attempt(self, group: Sequence[Handed], work: Work[T]) -> tuple[Outcome, Exception | None]:
        """One transaction. Returns why it was aborted, None after a commit; raises what ends the pipeline."""
        options = TransactionOptions(timeout=self._pipeline.options.timeout, name="pipeline", managed=True)
        txn = self._pipeline.core.new_transaction(options)
        unit = Unit(self._consumer, group, txn, keep=True)
        error: Exception | None = None
        try:
            async with unit as batch:
                await work(batch)
        except Exception as failed:  # noqa: BLE001 - judged below; what no further attempt mends is raised
            error = failed
        if txn.state is TransactionState.UNKNOWN and isinstance(error, CommitOutcomeUnknown):
            await self._resolve(txn, error)
            unit.after()
        if txn.state is TransactionState.COMMITTED:
            return Outcome.COMMITTED, None
        if error is None:
            error = Rollback(txn)
        if isinstance(error, _STOPS) or is_fatal(error):
            raise error
        return (Outcome.RETURNED if unit.acknowledging else Outcome.KEPT), error

    async def _resolve(self, txn: Transaction, unknown: CommitOutcomeUnknown) -> None:
        """Until the outcome is known; when nobody can say it, CommitOutcomeUnknown ends the pipeline.

        Going on would be a guess: working on the messages again may double them, and leaving them out may lose them.
        """
        pipeline = self._pipeline
        end = pipeline.core.runtime.monotonic() + pipeline.options.timeout + pipeline.core.settings.operation_timeout
        backoff = pipeline.core.backoff()
        while True:
            try:
                if await txn.resolve() is not TransactionState.UNKNOWN:
                    return
            except PulsarError as error:
                pause = backoff.next()
                if not error.retriable or pipeline.core.runtime.monotonic() + pause >= end:
                    raise unknown from error
                await asyncio.sleep(pause)
            else:
                unknown.add_note("its coordinator has forgotten the transaction: look whether its output is there, then decide")
                raise unknown


def is_fatal(error: BaseException) -> bool:
    """Whether the error, or one of the failed operations that it stands for, is fatal."""
    causes = error.failures if isinstance(error, TransactionOperationFailed) else (error,)
    return any(isinstance(cause, PulsarError) and cause.fatal for cause in causes)


def is_blamed(error: BaseException) -> bool:
    """Whether an abort says something about the messages; conflicts and lost connections do not."""
    if isinstance(error, TransactionOperationFailed) and error.failures:
        return is_blamed(error.failures[0])
    if isinstance(error, TransactionTimedOut):
        return True
    if isinstance(error, TransactionAborted | TransactionNotFound | InvalidTransactionStatus | CommitOutcomeUnknown):
        return False
    return not (isinstance(error, PulsarError) and error.retriable)


def _key(message: Message[Any]) -> Key:
    return message.topic, message.entry.position, message.index
