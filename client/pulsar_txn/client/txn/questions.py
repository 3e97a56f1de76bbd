"""The questions of coordinators to one check group: the program's `check` answers them, some at a time.

The reader of a connection only puts a question down here. Tasks of their own ask the program, at most `concurrency` of them,
so that a slow answer stops neither the connection nor other answers. Before the program is asked, the coordinator is told that
its question is begun, and counts it durably (docs/adr/0055). What cannot be answered (an exception, a wrong type, a check that
takes longer than `timeout`) is UNKNOWN, and the coordinator asks again later.

A check that is not done in time loses its place to the next question. A coroutine is cancelled; a thread cannot be. While such
a call goes on, further questions about its transaction are answered UNKNOWN, and what it returns in the end is the answer to
the next one.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias

import attrs

from pulsar_txn.client._callables import check_takes_one
from pulsar_txn.client._checks import check_whole, seconds_of
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.txn.checks import CheckDecision, CheckQuestion, Decision, LocalOutcome
from pulsar_txn.wire.ids import TxnId

logger = logging.getLogger("pulsar_txn.client.checks")

Check: TypeAlias = Callable[[CheckQuestion], "LocalOutcome | Awaitable[LocalOutcome]"]
"""What a program gives: it looks up what has become of the work of a transaction."""

OnDecided: TypeAlias = Callable[[CheckDecision], object]
"""What a program gives to hear of decisions that its group has not made. What it returns is awaited, if it can be."""


Begin: TypeAlias = Callable[[], Awaitable[bool]]
"""Says to the coordinator that a question is begun; False: nobody has to answer it."""


class ClosedWithGroup:
    """A function of the blocking client, which has threads of its own: it is closed with the membership."""

    async def __call__(self, asked: Any) -> Any:
        """Answer a question, as the program does."""
        raise NotImplementedError

    def close(self) -> None:
        """End its threads."""
        raise NotImplementedError


MAX_WAITING: Final = 10_000
"""Questions, or decisions, of one group that wait for the program."""
MAX_HANGING: Final = 64
"""Calls of one check that were given up and go on. With more, places are not given to further questions."""
_MAX_LATE: Final = 1_000
_LINES: Final = 10
"""Decisions that are told to the log before only every ten thousandth is."""

DEFAULT_CONCURRENCY: Final = 8
DEFAULT_CHECK_TIMEOUT: Final = 60.0


@attrs.frozen
class CheckTerms:
    """Terms of questions: `concurrency` at a time, each for `timeout` at most (seconds). InvalidConfiguration."""

    concurrency: int = DEFAULT_CONCURRENCY
    timeout: float | timedelta = DEFAULT_CHECK_TIMEOUT
    on_decided: OnDecided | None = None

    def __attrs_post_init__(self) -> None:
        check_whole("concurrency", self.concurrency, 1)
        seconds_of(self.timeout, "check_timeout")
        if self.on_decided is not None:
            check_takes_one(self.on_decided, "on_decided")

    @property
    def timeout_seconds(self) -> float:
        """`timeout` as a number."""
        return seconds_of(self.timeout, "check_timeout")


class Questions:
    """Those of one group. `answer(question, outcome)` is called on the loop with each answer."""

    def __init__(
        self,
        core: Core,
        group: str,
        check: Check,
        terms: CheckTerms,
        answer: Callable[[CheckQuestion, LocalOutcome], object],
    ) -> None:
        self._core = core
        self._group = group
        self._check = check
        self._concurrency = terms.concurrency
        self._timeout = terms.timeout_seconds
        self._answer = answer
        self._waiting: dict[TxnId, tuple[CheckQuestion, Begin | None]] = {}
        self._again: dict[TxnId, tuple[CheckQuestion, Begin | None]] = {}
        self._at_work: set[TxnId] = set()
        self._hanging: dict[TxnId, asyncio.Future[object]] = {}
        self._late: dict[TxnId, LocalOutcome] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._left_out = 0

    def put(self, question: CheckQuestion, begin: Begin | None = None) -> None:
        """Have it answered, after `begin`, if it is given and says True. A repeat of one that waits takes its place.

        One about what is being answered waits for that, where its coordinator wants to know that it begins.
        """
        txn_id = question.txn_id
        if txn_id in self._at_work:
            if begin is not None:
                self._again[txn_id] = (question, begin)
            return
        if len(self._waiting) >= MAX_WAITING and txn_id not in self._waiting:
            self._leave_out()
            return
        self._waiting[txn_id] = (question, begin)
        self._work_on()

    def close(self) -> None:
        """Answer nothing more; calls of the program that are under way are cancelled."""
        self._waiting.clear()
        self._again.clear()
        for task in self._tasks:
            task.cancel()
        for call in self._hanging.values():
            call.cancel()
        if isinstance(self._check, ClosedWithGroup):
            self._check.close()

    def _leave_out(self) -> None:
        self._left_out += 1
        if self._left_out % MAX_WAITING == 1:
            text = "%d questions of coordinators to group %r were left out, because its check is too slow; they come again"
            logger.warning(text, self._left_out, self._group)

    def _work_on(self) -> None:
        if len(self._tasks) < self._concurrency:
            task = self._core.spawn(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        while self._waiting:
            txn_id = next(iter(self._waiting))
            question, begin = self._waiting.pop(txn_id)
            self._at_work.add(txn_id)
            try:
                if begin is None or await begin():
                    self._answer(question, await self._ask(question))
            finally:
                self._at_work.discard(txn_id)
                again = self._again.pop(txn_id, None)
                if again is not None:
                    self._waiting[txn_id] = again

    async def _ask(self, question: CheckQuestion) -> LocalOutcome:
        txn_id = question.txn_id
        late = self._late.pop(txn_id, None)
        if late is not None:
            return late
        if txn_id in self._hanging:
            return LocalOutcome.UNKNOWN
        try:
            result = self._check(question)
            outcome: object = await self._in_time(question, result) if inspect.isawaitable(result) else result
        except Exception:  # the program's own code: what it does not know is asked again
            text = "check of group %r failed for transaction %s, which stays as it is"
            logger.exception(text, self._group, txn_id, extra=_extra(question))
            return LocalOutcome.UNKNOWN
        if isinstance(outcome, LocalOutcome):
            return outcome
        text = "check of group %r returned %r for transaction %s, and no LocalOutcome: the transaction stays as it is"
        logger.error(text, self._group, outcome, txn_id, extra=_extra(question))
        return LocalOutcome.UNKNOWN

    async def _in_time(self, question: CheckQuestion, result: Awaitable[object]) -> object:
        """Return what the check returns, or UNKNOWN when that takes too long."""
        call = asyncio.ensure_future(result)
        try:
            done, _ = await asyncio.wait({call}, timeout=self._timeout)
            if not done and len(self._hanging) >= MAX_HANGING:
                text = "%d calls of the check of group %r hang: further ones are waited for, and no questions come meanwhile"
                logger.error(text, len(self._hanging), self._group, extra=_extra(question))
                await asyncio.wait({call})
        except asyncio.CancelledError:
            call.cancel()
            raise
        if call.done():
            return call.result()
        self._give_up(question, call)
        return LocalOutcome.UNKNOWN

    def _give_up(self, question: CheckQuestion, call: asyncio.Future[object]) -> None:
        txn_id = question.txn_id
        text = "check of group %r is not done with transaction %s after %g s: it stays as it is, and is asked for again"
        logger.error(text, self._group, txn_id, self._timeout, extra=_extra(question))
        self._hanging[txn_id] = call
        call.add_done_callback(lambda _: self._comes_late(txn_id, call))
        if not isinstance(self._check, ClosedWithGroup):
            call.cancel()

    def _comes_late(self, txn_id: TxnId, call: asyncio.Future[object]) -> None:
        del self._hanging[txn_id]
        if call.cancelled():
            return
        error = call.exception()
        if error is not None:
            text = "check of group %r failed for transaction %s, which stays as it is"
            logger.error(text, self._group, txn_id, exc_info=error)
            return
        outcome = call.result()
        if isinstance(outcome, LocalOutcome) and outcome is not LocalOutcome.UNKNOWN:
            self._late[txn_id] = outcome
            if len(self._late) > _MAX_LATE:
                del self._late[next(iter(self._late))]


class Decisions:
    """Tells the program, one after the other, what was decided about transactions of its group without the group."""

    def __init__(self, core: Core, group: str, on_decided: OnDecided | None) -> None:
        self._core = core
        self._group = group
        self._on_decided = on_decided
        self._waiting: list[CheckDecision] = []
        self._task: asyncio.Task[None] | None = None
        self._count = 0

    def put(self, decided: CheckDecision) -> None:
        """Tell it. Without somebody who listens it is a line in the log."""
        self._count += 1
        is_seldom = self._count <= _LINES or self._count % MAX_WAITING == 0
        if self._on_decided is None and decided.decision is not Decision.COMMITTED and is_seldom:
            text = "transaction %s of group %r is %s (%s), which its group has not said; decision %d that is heard here"
            logger.warning(text, decided.txn_id, self._group, decided.decision.value, decided.reason, self._count)
        if self._on_decided is None or len(self._waiting) >= MAX_WAITING:
            return
        self._waiting.append(decided)
        if self._task is None or self._task.done():
            self._task = self._core.spawn(self._tell(self._on_decided))

    def close(self) -> None:
        """Tell nothing more."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
        if isinstance(self._on_decided, ClosedWithGroup):
            self._on_decided.close()

    async def _tell(self, on_decided: OnDecided) -> None:
        while self._waiting:
            decided = self._waiting.pop(0)
            try:
                result = on_decided(decided)
                if inspect.isawaitable(result):
                    await result
            except Exception:  # the program's own code: nothing depends on it
                logger.exception("on_decided of group %r failed for transaction %s", self._group, decided.txn_id)


def _extra(question: CheckQuestion) -> dict[str, str]:
    return {"txn_id": str(question.txn_id), "state": "check"}
