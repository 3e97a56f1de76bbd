"""What happens when nobody says how a transaction ends: its check group is asked, then the policy decides (RocketMQ's check).

A question is counted by a CHECKED record before it leaves, so a transaction costs its group at most `max_checks` of them, over
restarts too. One record counts the questions of a whole round. A question whose answer does not come, or is UNKNOWN, is
followed by the next one after the interval. An answer decides like an END_TXN; the first of them that reaches the log stays.

Nobody alive: nothing is asked, and nothing counted. Only the policy, after the last question, and the transaction's own timeout
go on without a living member. What is PREPARED is asked for as long as it takes, and no policy ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from pulsar_txn.ledger.machine import NOTHING, AskProducer, Effect, Step
from pulsar_txn.ledger.table import WRITE
from pulsar_txn.tc import records
from pulsar_txn.tc._state import CoordinatorState
from pulsar_txn.tc._transaction import Transaction
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.check_times import CheckPolicy, GroupKey
from pulsar_txn.tc.records import Record
from pulsar_txn.tc.requests import CheckAnswered, CheckOutcome, GroupJoined, GroupLeft
from pulsar_txn.tc.table import HELD, PREPARED, TRANSITIONS, Event

LOG: Final = "log"

_BYTES_AT_ONCE: Final = 1024 * 1024
"""Of check data, in the questions of one Step."""

_ANSWER: Final = {CheckOutcome.COMMIT: Event.COMMIT, CheckOutcome.ABORT: Event.ABORT}
_POLICY: Final = {CheckPolicy.COMMIT: Event.COMMIT, CheckPolicy.ABORT: Event.ABANDON}

_Records: TypeAlias = tuple[tuple[str, Record], ...]
Decide: TypeAlias = Callable[[Transaction, Event, int, int, Cause], tuple[_Records, _Records, tuple[Effect, ...]]]
"""The decision about a transaction: see `TransactionCoordinator._leave_open`."""


class Checks:
    """Decisions about check groups. `limit`: transactions that one Step asks for, or decides about by the policy."""

    def __init__(self, state: CoordinatorState, decide: Decide, limit: int) -> None:
        self._state = state
        self._decide = decide
        self._limit = limit

    def decide(self, request: CheckAnswered | GroupJoined | GroupLeft, now_ms: int) -> Step[Record]:
        """Note who lives, which `expire` asks; decide as a member says, where it was asked and nothing is decided yet."""
        times, key = self._state.extra.times, (request.principal, request.group)
        if isinstance(request, CheckAnswered):
            return self._answered(request, key, now_ms)
        (times.joined if isinstance(request, GroupJoined) else times.left)(key)
        return NOTHING

    def expire(self, now_ms: int) -> Step[Record]:
        """Let the policy decide where questions are used up, otherwise ask for what is due; a bounded number."""
        lapsed = self._state.extra.times.lapsed(now_ms, self._limit)
        return self._lapse(lapsed, now_ms) if lapsed else self._ask(now_ms)

    def _answered(self, request: CheckAnswered, key: GroupKey, now_ms: int) -> Step[Record]:
        txn_id, event = request.txn_id, _ANSWER.get(request.outcome)
        txn = self._state.transactions.get(txn_id.least)
        if event is None or txn is None or txn.txn_id.most != txn_id.most or txn.extras is None:
            return NOTHING
        is_theirs = (txn.owner[0], txn.extras.group) == key
        if not is_theirs or not txn.extras.check_count or txn.status is HELD or TRANSITIONS[txn.status, event].act is not WRITE:
            return NOTHING
        decision, trailing, effects = self._decide(txn, event, now_ms, 0, Cause.CHECKED)
        return Step(decision, effects, trailing)

    def _lapse(self, lapsed: list[int], now_ms: int) -> Step[Record]:
        event = _POLICY[self._state.extra.times.rules.policy]
        decisions: list[tuple[str, Record]] = []
        trailing: list[tuple[str, Record]] = []
        effects: list[Effect] = []
        for least in lapsed:
            txn = self._state.transactions[least]
            decision, more, heard = self._decide(txn, event, now_ms, len(effects), Cause.UNANSWERED)
            decisions += decision
            trailing += more
            effects += heard
        return Step(tuple(decisions), tuple(effects), tuple(trailing))

    def _ask(self, now_ms: int) -> Step[Record]:
        asked: list[int] = []
        questions: list[AskProducer] = []
        size = 0
        for least in self._state.extra.times.questions(now_ms, self._limit):
            question = self._question(self._state.transactions[least])
            size += len(question.data)
            if questions and size > _BYTES_AT_ONCE:
                break
            asked.append(least)
            questions.append(question)
        if not asked:
            return NOTHING
        first, *further = asked
        record = records.checked(first, tuple(further), now_ms, self._state.next_id - 1)
        return Step(((LOG, record),), tuple(questions))

    def _question(self, txn: Transaction) -> AskProducer:
        extras, is_prepared = txn.extras, txn.status is PREPARED
        assert extras is not None and extras.group is not None  # noqa: S101, PT018 - nothing else waits for a question
        most = 0 if is_prepared else self._state.extra.times.rules.max_checks
        count = extras.check_count + 1
        return AskProducer(txn.txn_id, extras.group, txn.owner[0], extras.data, count, most, is_prepared)
