"""Checks, for when nobody says how a transaction ends: its check group is asked, then the policy decides (RocketMQ's check).

A question counts when a member has begun to answer it: the member says so (`CheckBegun`), and goes on once the CHECKED record
is durable. So a check that kills its process counts, and a question that waits somewhere does not. A transaction costs its
group at most `max_checks` of them, over restarts too. A question whose answer is UNKNOWN, or that has come back without one,
is followed by the next one after the interval. An answer decides like an END_TXN; the first of them that reaches the log
stays.

Nobody alive: nothing is asked, and nothing counted. Only the policy, after the last question, and the transaction's own timeout
go on without a living member. What is PREPARED is asked for as long as it takes, and no policy ends it.

The policy PARK has it wait for an operator, who commits, aborts or resumes it. A parked transaction is OPEN, and no timeout,
question, policy or successor ends it. Its client may. It has limits of its own: see `admission.Limits`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from pulsar_txn.ledger.machine import NOTHING, WRITE, AskProducer, Effect, Reply, Step, TellGroup
from pulsar_txn.tc import records
from pulsar_txn.tc._state import CoordinatorState
from pulsar_txn.tc._transaction import Transaction
from pulsar_txn.tc.admission import Limits
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.check_times import CheckPolicy, GroupKey
from pulsar_txn.tc.records import Record
from pulsar_txn.tc.requests import CheckAnswered, CheckBegun, CheckOutcome, CheckReturned, GroupJoined, GroupLeft, ResumeTxn
from pulsar_txn.tc.table import HELD, OPEN, PREPARED, TRANSITIONS, Event
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId

LOG: Final = "log"

_BYTES_AT_ONCE: Final = 1024 * 1024
"""Of check data, in the questions of one Step."""

_ANSWER: Final = {CheckOutcome.COMMIT: Event.COMMIT, CheckOutcome.ABORT: Event.ABORT}
_POLICY: Final = {CheckPolicy.COMMIT: Event.COMMIT, CheckPolicy.ABORT: Event.ABANDON}
_THEIR_OWN: Final = (Cause.CLIENT, Cause.CHECKED)
"""Decisions of a client, or of its group: nobody has to be told."""

_Records: TypeAlias = tuple[tuple[str, Record], ...]
Decide: TypeAlias = Callable[[Transaction, Event, int, int, Cause], tuple[_Records, _Records, tuple[Effect, ...]]]
"""The decision about a transaction: see `TransactionCoordinator._leave_open`."""


class Checks:
    """Decisions about check groups. `limit`: transactions that one Step asks for, or decides about by the policy."""

    def __init__(self, state: CoordinatorState, decide: Decide, limit: int, limits: Limits) -> None:
        self._state = state
        self._decide = decide
        self._limit = limit
        self._limits = limits

    def decide(
        self, request: CheckBegun | CheckAnswered | CheckReturned | GroupJoined | GroupLeft, now_ms: int
    ) -> Step[Record]:
        """Note who lives, which `expire` asks; decide as a member says, where it was asked and nothing is decided yet."""
        if isinstance(request, CheckReturned):
            self._returned(request.txn_id)
            return NOTHING
        times, key = self._state.extra.times, (request.principal, request.group)
        if isinstance(request, CheckBegun):
            return self._begun(request, key, now_ms)
        if isinstance(request, CheckAnswered):
            return self._answered(request, key, now_ms)
        if isinstance(request, GroupJoined):
            times.joined(key, request.room)
        else:
            times.left(key, now_ms)
        return NOTHING

    def resume(self, request: ResumeTxn, txn: Transaction | None, now_ms: int) -> Step[Record]:
        """Ask for a parked transaction again, from the first question on."""
        if txn is None or not txn.is_parked:
            text = f"transaction {request.txn_id} is not parked: it is asked for already, or has ended"
            raise Refusal(ServerError.InvalidTxnStatus, text)
        self._limits.check_resumed(self._state, txn)
        record = records.resumed(txn.txn_id.least, now_ms, self._state.next_id - 1)
        return Step(((LOG, record),), (Reply(request.token),))

    def expire(self, now_ms: int) -> Step[Record]:
        """Let the policy decide where questions are used up, otherwise ask for what is due; a bounded number."""
        lapsed = self._state.extra.times.lapsed(now_ms, self._limit)
        return self._lapse(lapsed, now_ms) if lapsed else self._ask(now_ms)

    def _begun(self, request: CheckBegun, key: GroupKey, now_ms: int) -> Step[Record]:
        txn = self._theirs(request.txn_id, key)
        if txn is None or txn.is_parked or TRANSITIONS[txn.status, Event.CHECK].act is not WRITE:
            text = f"transaction {request.txn_id} is not asked for any more: it is decided, or not of this group"
            raise Refusal(ServerError.InvalidTxnStatus, text)
        record = records.checked(txn.txn_id.least, (), now_ms, self._state.next_id - 1)
        return Step(((LOG, record),), (Reply(request.token),))

    def _answered(self, request: CheckAnswered, key: GroupKey, now_ms: int) -> Step[Record]:
        txn, event = self._theirs(request.txn_id, key), _ANSWER.get(request.outcome)
        if txn is None:
            return NOTHING
        extras = txn.extras
        was_asked = extras is not None and (extras.check_count or extras.resumed_ms is not None)
        if event is None or not was_asked or txn.status is HELD or TRANSITIONS[txn.status, event].act is not WRITE:
            self._returned(request.txn_id)
            return NOTHING
        decision, trailing, effects = self._decide(txn, event, now_ms, 0, Cause.CHECKED)
        return Step(decision, effects, trailing)

    def _theirs(self, txn_id: TxnId, key: GroupKey) -> Transaction | None:
        """The transaction, if it takes room and is of this group."""
        txn = self._state.transactions.get(txn_id.least)
        if txn is None or txn.txn_id.most != txn_id.most or txn.extras is None:
            return None
        return txn if (txn.owner[0], txn.extras.group) == key else None

    def _returned(self, txn_id: TxnId) -> None:
        txn = self._state.transactions.get(txn_id.least)
        if self._state.extra.times.returned(txn_id.least) and txn is not None and txn.status in (OPEN, PREPARED):
            self._state.extra.waits(txn)

    def _lapse(self, lapsed: list[int], now_ms: int) -> Step[Record]:
        if self._state.extra.times.rules.policy is CheckPolicy.PARK:
            return self._park(lapsed, now_ms)
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

    def _park(self, lapsed: list[int], now_ms: int) -> Step[Record]:
        """Those for which there is room; the others stay as they are, and are looked at again after the interval."""
        times, size = self._state.extra.times, 0
        parked: list[Transaction] = []
        for least in lapsed:
            txn = self._state.transactions[least]
            if self._limits.can_park(self._state, len(parked), size + txn.bytes):
                parked.append(txn)
                size += txn.bytes
            else:
                times.put_off(least, now_ms + times.rules.interval_ms)
        if not parked:
            return NOTHING
        first, *further = [txn.txn_id.least for txn in parked]
        record = records.parked(first, tuple(further), now_ms, self._state.next_id - 1)
        effects = [effect for txn in parked for effect in told(txn, None, Cause.UNANSWERED)]
        return Step(((LOG, record),), tuple(effects))

    def _ask(self, now_ms: int) -> Step[Record]:
        times = self._state.extra.times
        questions: list[Effect] = []
        size = 0
        for least, key in times.questions(now_ms, self._limit):
            question = self._question(self._state.transactions[least])
            size += len(question.data)
            if questions and size > _BYTES_AT_ONCE:
                break
            times.asked(least, key)
            questions.append(question)
        return Step((), tuple(questions)) if questions else NOTHING

    def _question(self, txn: Transaction) -> AskProducer:
        extras, is_prepared = txn.extras, txn.status is PREPARED
        assert extras is not None and extras.group is not None  # noqa: S101, PT018 - nothing else waits for a question
        most = 0 if is_prepared else self._state.extra.times.rules.max_checks
        count = extras.check_count + 1
        return AskProducer(txn.txn_id, extras.group, txn.owner[0], extras.data, count, most, is_prepared)


def told(txn: Transaction, action: TxnAction | None, cause: Cause) -> tuple[TellGroup, ...]:
    """Return what a group hears of a decision about its transaction that neither the client nor the group has made."""
    extras = txn.extras
    if extras is None or extras.group is None or cause in _THEIR_OWN:
        return ()
    return (TellGroup(txn.txn_id, extras.group, txn.owner[0], extras.data, action, cause, extras.check_count),)
