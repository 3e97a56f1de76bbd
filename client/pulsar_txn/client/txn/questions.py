"""The questions of coordinators to one check group: the program's `check` answers them, some at a time.

The reader of a connection only puts a question down here. Tasks of their own ask the program, at most `concurrency` of them,
so that a slow answer stops neither the connection nor other answers. What cannot be answered (an exception, a wrong type) is
UNKNOWN, and the coordinator asks again later. So it does when a question is left out here because too many wait.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from pulsar_txn.client._checks import check_whole
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.txn.checks import CheckQuestion, LocalOutcome
from pulsar_txn.wire.ids import TxnId

logger = logging.getLogger("pulsar_txn.client.checks")

Check: TypeAlias = Callable[[CheckQuestion], "LocalOutcome | Awaitable[LocalOutcome]"]
"""What a program gives: it looks up what has become of the work of a transaction."""


class ClosedWithGroup:
    """A check of the blocking client, which has threads of its own: it is closed with the membership."""

    async def __call__(self, question: CheckQuestion) -> LocalOutcome:
        """What the program answers."""
        raise NotImplementedError

    def close(self) -> None:
        """End its threads."""
        raise NotImplementedError


MAX_WAITING: Final = 10_000
"""Questions of one group that wait for the program."""

DEFAULT_CONCURRENCY: Final = 8


class Questions:
    """Those of one group. `answer(question, outcome)` is called on the loop with each answer."""

    def __init__(
        self,
        core: Core,
        group: str,
        check: Check,
        concurrency: int,
        answer: Callable[[CheckQuestion, LocalOutcome], object],
    ) -> None:
        check_whole("concurrency", concurrency, 1)
        self._core = core
        self._group = group
        self._check = check
        self._concurrency = concurrency
        self._answer = answer
        self._waiting: dict[TxnId, CheckQuestion] = {}
        self._at_work: set[TxnId] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._left_out = 0

    def put(self, question: CheckQuestion) -> None:
        """Have it answered. A repeat of one that waits takes its place; one that is being answered is answered once."""
        txn_id = question.txn_id
        if txn_id in self._at_work:
            return
        if len(self._waiting) >= MAX_WAITING and txn_id not in self._waiting:
            self._leave_out()
            return
        self._waiting[txn_id] = question
        if len(self._tasks) < self._concurrency:
            task = self._core.spawn(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Answer nothing more; calls of the program that are under way are cancelled."""
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        if isinstance(self._check, ClosedWithGroup):
            self._check.close()

    def _leave_out(self) -> None:
        self._left_out += 1
        if self._left_out % MAX_WAITING == 1:
            text = "%d questions of coordinators to group %r were left out, because its check is too slow; they come again"
            logger.warning(text, self._left_out, self._group)

    async def _work(self) -> None:
        while self._waiting:
            txn_id = next(iter(self._waiting))
            question = self._waiting.pop(txn_id)
            self._at_work.add(txn_id)
            try:
                outcome = await self._ask(question)
            finally:
                self._at_work.discard(txn_id)
            self._answer(question, outcome)

    async def _ask(self, question: CheckQuestion) -> LocalOutcome:
        extra = {"txn_id": str(question.txn_id), "state": "check"}
        try:
            result = self._check(question)
            outcome: object = await result if inspect.isawaitable(result) else result
        except Exception:  # the program's own code: what it does not know is asked again
            text = "check of group %r failed for transaction %s, which stays as it is"
            logger.exception(text, self._group, question.txn_id, extra=extra)
            return LocalOutcome.UNKNOWN
        if isinstance(outcome, LocalOutcome):
            return outcome
        text = "check of group %r returned %r for transaction %s, and no LocalOutcome: the transaction stays as it is"
        logger.error(text, self._group, outcome, question.txn_id, extra=extra)
        return LocalOutcome.UNKNOWN
