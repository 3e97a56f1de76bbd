"""One lane of a pipeline: takes messages through the handler, group by group, until each is committed or given back.

A group that was aborted before anything of it was acknowledged stays here and is tried again, so that order is kept
without the broker. One that was aborted later is delivered again by the broker, and must not be overtaken meanwhile:

* until the coordinator has ended the transaction nothing comes again. The lane asks for the abort until it has an answer,
  or until the transaction's timeout has surely done it;
* on Exclusive and Failover everything behind the group comes again as well, so the lane gives it back;
* on Key_Shared the lane keeps what it holds and waits for the group (`_Expected`). A broker promises nothing about the order
  of what it delivers again, nor about what is on its way meanwhile, so the lane sorts;
* Shared has no order to keep.

Whoever connects anew gets everything again that is not settled, so that what a lane holds may be there twice. The second
copy is dropped when the first is committed: it came in before the acknowledgement was answered.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

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
from pulsar_txn.client.loop.transactional_batch import AsyncTransactionalBatch, BatchUnit, hand_back, seconds_until_aborted
from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.options import ConsumerType
from pulsar_txn.client.receive.recall import NOBODY, AskAgain
from pulsar_txn.client.receive.runs import Handed, whole_entries
from pulsar_txn.client.receive.suspects import Key, key_of
from pulsar_txn.client.txn.life import FINAL, TransactionOptions
from pulsar_txn.client.txn.stats import TransactionState
from pulsar_txn.client.txn.transaction import AsyncTransaction, Rollback

if TYPE_CHECKING:
    from pulsar_txn.client.loop.pipeline import Pipeline
    from pulsar_txn.client.net.core import Core
    from pulsar_txn.client.receive.consumer import AsyncConsumer

logger = logging.getLogger("pulsar_txn.client.pipeline")

T = TypeVar("T")
Work: TypeAlias = "Callable[[AsyncTransactionalBatch[T]], Awaitable[object]]"

_STOPS: Final = (AlreadyClosed, ForkedClientError, TransactionStateError, TransactionsDisabled)


class Outcome(enum.Enum):
    """What became of a group."""

    COMMITTED = enum.auto()
    KEPT = enum.auto()
    """Aborted, and its messages are still ours."""
    RETURNED = enum.auto()
    """Aborted, and its messages come again from the broker."""


class _Expected:
    """What has to come again before a lane may go on."""

    def __init__(
        self, consumer: AsyncConsumer[Any], messages: dict[Key, Message[Any]], runtime: Runtime, go_on: Callable[[], None]
    ):
        self._consumer = consumer
        self._missing = messages
        self._runtime = runtime
        self._go_on = go_on
        self._asking = AskAgain(runtime, self._ask, go_on)
        self._over: asyncio.Handle | None = None

    def came(self, message: Message[Any]) -> bool:
        """A message came; whether all that was missing is here now."""
        self._missing.pop(key_of(message), None)
        return not self._missing

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._asking.cancel()
        if self._over is not None:
            self._over.cancel()

    def _ask(self) -> int:
        for key in [key for key, message in self._missing.items() if message.entry.consumer.is_left]:
            del self._missing[key]
        if not self._missing:
            self._over = self._runtime.call_later(0, self._go_on)
            return NOBODY
        parts = {message.entry.consumer for message in self._missing.values()}
        if not all(part.is_connected for part in parts):
            return NOBODY
        self._consumer.give_back(list(self._missing.values()))
        return sum(part.tenure for part in parts)


class Lane(Generic[T]):
    """Works through its backlog, one transaction at a time."""

    def __init__(self, pipeline: Pipeline[T]) -> None:
        self.backlog: deque[Handed] = deque()
        self.woken = asyncio.Event()
        """Set when there may be something to do."""
        self._pipeline = pipeline
        self._consumer = pipeline.consumer
        self._kind = pipeline.consumer.consumer_type
        self._backoff = pipeline.core.backoff()
        self._expected: _Expected | None = None
        self._ending = False
        self._has_copies = False

    @property
    def ready(self) -> bool:
        """Whether there is something to work on."""
        return bool(self.backlog) and self._expected is None

    @property
    def waits(self) -> bool:
        """Whether it cannot go on before something comes in, or a transaction ends."""
        return self._ending or self._expected is not None

    def add(self, handed: Handed) -> None:
        """One more message."""
        self.backlog.append(handed)
        if self._expected is not None and self._expected.came(handed[0]):
            self._go_on()
        self.woken.set()

    def take(self, max_messages: int) -> list[Handed]:
        """The next of the backlog, entries as a whole; of messages that came twice, around a reconnect, the first copy."""
        taken: dict[Key, Handed] = {}
        most = min(len(self.backlog), max_messages)
        if most < len(self.backlog):
            most = whole_entries([message for message, _ in itertools.islice(self.backlog, most + 1)], most)
        for _ in range(most):
            message, number = self.backlog.popleft()
            taken.setdefault(key_of(message), (message, number))
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
                    pending = self._without_copies(group, rest)
                    self._backoff.reset()
                    continue
                if outcome is Outcome.RETURNED:
                    pending = []
                    self._on_returned(group, rest)
                elif self._pipeline.stop.is_set():
                    pending, left = [], pending
                    self._give_back(left)
                if self._pipeline.suspects.has_shrunk(group):
                    self._backoff.reset()  # a smaller group is another attempt than the one that failed: nothing to wait for
                else:
                    await rest_until(self._pipeline.core, self._backoff.next(), self._pipeline.stop)
        except BaseException:
            self._give_back(pending)
            raise

    def leave(self) -> None:
        """The pipeline stops: what is still here goes back."""
        self._expect_nothing()
        if self.backlog:
            self._give_back(())

    def _give_back(self, handed: Sequence[Handed]) -> None:
        """These and the backlog come again, so that nothing overtakes what comes again already."""
        mine = [*handed, *self.backlog]
        self.backlog.clear()
        hand_back(self._consumer, mine, self._pipeline.recalled(self))

    def _on_returned(self, group: Sequence[Handed], rest: Sequence[Handed]) -> None:
        """The group comes again; `rest` was to follow it."""
        if self._kind.is_single or self._pipeline.stop.is_set():
            self._give_back(rest)
            return
        self._has_copies = True
        self.backlog.extendleft(reversed(rest))
        if self._kind is ConsumerType.SHARED:
            return
        missing = {key_of(message): message for message, _ in group}
        for message, _ in self.backlog:
            missing.pop(key_of(message), None)
        if missing:
            self._expected = _Expected(self._consumer, missing, self._pipeline.core.runtime, self._go_on)
            self._pipeline.look_for_room()
        else:
            self._sort()

    def _go_on(self) -> None:
        self._expect_nothing()
        self._sort()
        self.woken.set()

    def _expect_nothing(self) -> None:
        if self._expected is not None:
            self._expected.cancel()
            self._expected = None

    def _sort(self) -> None:
        first: dict[Key, Handed] = {}
        for handed in self.backlog:
            first.setdefault(key_of(handed[0]), handed)
        self.backlog = deque(handed for _, handed in sorted(first.items()))
        self._pipeline.look_for_room()

    def _without_copies(self, group: Sequence[Handed], rest: Sequence[Handed]) -> Sequence[Handed]:
        """`rest`, and the backlog and the queue, without second copies of what was committed."""
        if self._kind.is_single:
            return rest
        self._has_copies = self._has_copies or any(
            message.entry.tenure != message.entry.consumer.tenure for message, _ in group
        )
        if not self._has_copies:
            return rest
        done = {key_of(message) for message, _ in group}
        self._consumer.take_queued(lambda message: key_of(message) in done)
        self.backlog = deque(handed for handed in self.backlog if key_of(handed[0]) not in done)
        self._pipeline.look_for_room()
        self._has_copies = bool(rest or self.backlog)
        return [handed for handed in rest if key_of(handed[0]) not in done]

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
        unit = BatchUnit(self._consumer, group, self._pipeline.core.new_transaction(options), keep=True)
        txn = unit.batch.txn
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
        if not unit.acknowledging:
            return Outcome.KEPT, error
        open_still = txn.state is not TransactionState.ABORTED and self._kind is not ConsumerType.SHARED
        if open_still and await self._abort(txn):
            unit.bring_back()
        return Outcome.RETURNED, error

    async def _abort(self, txn: AsyncTransaction) -> bool:
        """Until the coordinator has aborted it, as it was asked to or because the time was over; False when stopped first."""
        pipeline = self._pipeline
        backoff = pipeline.core.backoff()
        self._ending = True
        pipeline.look_for_room()
        try:
            async with asyncio.timeout(seconds_until_aborted(txn)):
                while txn.state not in FINAL and not pipeline.stop.is_set():
                    try:
                        await txn.abort()
                    except PulsarError as error:
                        logger.debug("%s is not aborted yet: %s", txn.id, error)
                        await pipeline.core.rest(backoff.next())
        except TimeoutError:
            return True  # its coordinator has aborted it
        finally:
            self._ending = False
        return txn.state in FINAL

    async def _resolve(self, txn: AsyncTransaction, unknown: CommitOutcomeUnknown) -> None:
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
                await pipeline.core.rest(pause)
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
