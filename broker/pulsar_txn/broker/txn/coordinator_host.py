"""One coordinator at its host: participants that are told, questions that leave, and records that are followed.

It carries out what the coordinator's machine decides, and decides nothing of a transaction itself. `WatchedCoordinatorHost` is
for a server that follows the records of its coordinators, live and while they are folded.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.machine import AskProducer, Effect, Machine, TellGroup, TellParticipant
from pulsar_txn.ledger.protocols import LeasedLog, Log
from pulsar_txn.tc.causes import Cause, cause_of
from pulsar_txn.tc.requests import Coordinator, IsRegistered, ParticipantsDone, Request
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import Participant, Position, TxnAction, TxnId

from .hosts import MachineHost
from .participants import Participants

_logger = logging.getLogger(__name__)

_DECIDED: Final = {TxnAction.COMMIT: "committed", TxnAction.ABORT: "aborted", None: "parked"}
_TOLD_PER_TURN: Final = 256
"""Participants that are told at once: a few milliseconds' worth."""


Notice: TypeAlias = AskProducer | TellGroup | TxnId
"""Question to a check group, decision that a group did not make, or a transaction that is over."""


_AT_ONCE: Final = 10
_SECONDS: Final = 60.0


class Seldom:
    """Lets a line out ten times a minute for each key, and counts the others. For few keys."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._since: dict[str, tuple[float, int]] = {}
        self._passed: dict[str, int] = {}

    def passed(self, key: str) -> int | None:
        """None: no line now. Otherwise how many were passed over since the last one."""
        now = self._seconds()
        since, count = self._since.get(key, (now, 0))
        if now - since >= _SECONDS:
            since, count = now, 0
        self._since[key] = (since, count + 1)
        if count >= _AT_ONCE:
            self._passed[key] = self._passed.get(key, 0) + 1
            return None
        return self._passed.pop(key, 0)


class CoordinatorHost(MachineHost[Request, Any]):
    """One coordinator. Joins ends, counts the participants that were told, and answers what participants ask of it.

    `registered_at`: where in the log the newest registration of each transaction is. `ended` counts since the start, for
    metrics. `on_notices` is called at the end of a turn in which there are notices, and takes them. `unanswered` counts
    transactions that were ended because nobody of their check group knew; `decided`, what became of those with a check group
    that neither a client nor the group has decided, and by what.
    """

    def __init__(
        self,
        machine: Coordinator,
        log: Log,
        turn: Turn,
        participants: Participants,
        on_failed: Callable[[Exception], None],
        on_notices: Callable[[CoordinatorHost], None],
        before_due: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(machine, {machine.logs[0]: log}, turn, on_failed)
        self.coordinator = machine
        self._before_due = before_due
        self._participants = participants
        self._untold: dict[TxnId, int] = {}
        self.registered_at: dict[TxnId, Position] = {}
        self._to_tell: deque[TellParticipant] = deque()
        self._may_tell = _TOLD_PER_TURN
        self._told_at = 0
        self._tells_later = False
        self.ended = {TxnAction.COMMIT: 0, TxnAction.ABORT: 0}
        self._notices: list[Notice] = []
        self._on_notices = on_notices
        self.unanswered = 0
        self.decided: Counter[tuple[str, str]] = Counter()
        self._warnings = Seldom(turn.runtime.monotonic)

    @property
    def telling(self) -> int:
        """Participants that were told an outcome and have not answered yet."""
        return sum(self._untold.values())

    @property
    def is_fresh(self) -> bool:
        """True if what is in memory is the newest: no other process can have taken the log over."""
        log: object = self.host.main.log
        return not isinstance(log, LeasedLog) or log.fresh

    # ---- time

    def look(self) -> None:
        """As every host, but not at the end of each turn: what most requests do brings no deadline nearer."""
        self.looks = False
        super().look()

    def expire(self) -> None:
        """Look again after this: the timer is gone."""
        self.looks = True
        if self._before_due is not None:
            self._before_due()
        super().expire()

    def lapsed(self, records: Sequence[tuple[str, Any]]) -> int:
        """Transactions that their timeout has ended; a plug-in's records may not say why."""
        causes = [getattr(record, "cause", Cause.TIMEOUT) for _, record in records]
        return causes.count(Cause.TIMEOUT)

    # ---- requests

    def ask(self, txn_id: TxnId, participant: Participant, answer: Callable[[bool | None], None]) -> None:
        """Is the transaction open here, with this participant? None: the coordinator is not ready.

        The answer waits for the tail of the log, as H3 says: it may follow from a record that is not durable yet.
        """
        if self.ready:
            self.submit(IsRegistered(partial(_answer_registered, answer), txn_id, participant))
        else:
            answer(None)

    # ---- effects

    def perform(self, effect: Effect) -> None:
        """Count a participant that is to be told; `performed` tells them, for an answer may come at once."""
        if type(effect) is not TellParticipant:
            if type(effect) is AskProducer:
                self._note(effect)
            elif type(effect) is TellGroup:
                self._decided(effect)
            else:
                super().perform(effect)
            return
        untold = self._untold
        untold[effect.txn_id] = untold.get(effect.txn_id, 0) + 1
        self._to_tell.append(effect)

    def _decided(self, notice: TellGroup) -> None:
        """Neither a client nor its check group has decided: say so to the operator, and to the group."""
        what = _DECIDED[notice.action]
        why = cause_word(notice.cause)
        self.unanswered += notice.cause == Cause.UNANSWERED
        self.decided[what, why] += 1
        passed = self._warnings.passed(what)
        if passed is not None:
            text = "transaction %s of check group %r (role %s) was %s by %s, after %d questions%s"
            more = f"; {passed} others were {what} since the last such line" if passed else ""
            _logger.warning(text, notice.txn_id, notice.group, notice.principal, what, why, notice.count, more)
        self._note(notice)

    def _note(self, notice: Notice) -> None:
        if not self._notices:
            self.turn.defer(partial(self._on_notices, self))
        self._notices.append(notice)

    def take_notices(self) -> list[Notice]:
        """Take the news for the owner: questions to check groups, decisions without these, transactions that are over."""
        notices, self._notices = self._notices, []
        return notices

    def performed(self) -> None:
        """Tell participants: some at once, further ones in later turns of the loop."""
        waiting, now_ms = self._to_tell, self.turn.now_ms
        if now_ms != self._told_at:  # another turn
            self._told_at, self._may_tell = now_ms, _TOLD_PER_TURN
        while waiting and not self._tells_later:
            if self._may_tell:
                self._may_tell -= 1
                self._participants.tell(waiting.popleft(), self._told)
            else:
                self._tells_later = True
                self.turn.runtime.call_soon(self._tell_more)

    def _tell_more(self) -> None:
        waiting, spent = self._to_tell, self.turn.budget.is_spent
        while waiting and self.failure is None and not spent():
            self._participants.tell(waiting.popleft(), self._told)
        if waiting and self.failure is None:
            self.turn.runtime.call_soon(self._tell_more)
        else:
            self._tells_later = False

    def withdraw(self, txn_id: TxnId) -> None:
        """Whoever tells participants has told none of this transaction, and will not."""
        self._untold.pop(txn_id, None)

    def _told(self, txn_id: TxnId) -> None:
        left = self._untold[txn_id] - 1
        if left:
            self._untold[txn_id] = left
            return
        del self._untold[txn_id]
        if self.host.ready:
            self.submit(ParticipantsDone(txn_id), reserve=True)

    def outcome(self, txn_id: TxnId, action: TxnAction) -> None:
        """Count it, and forget what was registered."""
        self.ended[action] += 1
        self.registered_at.pop(txn_id, None)
        self._note(txn_id)

    def folded(self) -> None:
        """H6: time does not go back across a restart."""
        self.turn.observe(self.coordinator.newest_time_ms)


def cause_word(number: int) -> str:
    """Word for the cause of a decision, for logs and metrics."""
    cause = cause_of(number)
    return "unknown" if cause is None else cause.name.lower()


def _answer_registered(answer: Callable[[bool | None], None], value: Any, error: ServerError | None, _message: str) -> None:
    answer(None if error is not None else bool(value))


MakeHost: TypeAlias = Callable[
    [
        int,
        Coordinator,
        Log,
        Turn,
        Participants,
        Callable[[Exception], None],
        Callable[[CoordinatorHost], None],
        Callable[[], None] | None,
    ],
    CoordinatorHost,
]
"""The coordinator's number, and what `CoordinatorHost` is made of."""


def plain_host(_tc_id: int, *parts: Any) -> CoordinatorHost:
    """Make a host whose records nobody follows."""
    return CoordinatorHost(*parts)


class CoordinatorWatch(Protocol):
    """Follows the records of one coordinator, from its recovery on. A coordinator that is opened again has another watch."""

    is_sampling: bool
    """True if `appended` was told of a record and `confirmed` was not yet."""

    def restored(self, machine: Any, data: bytes) -> None:
        """The machine has the state of its snapshot, beside which `data` was stored."""

    def applied(self, record: Any) -> None:
        """A record was applied, in recovery or live."""

    def folded(self) -> None:
        """Everything that the log holds is applied."""

    def stored(self) -> bytes:
        """Bytes to store beside a snapshot that is taken now."""

    def appended(self, position: Position) -> None:
        """A record was appended at this position."""

    def confirmed(self, position: Position) -> None:
        """Everything up to here is durable."""


class WatchedCoordinatorHost(CoordinatorHost):
    """See `CoordinatorHost`. `watch` is set before the recovery."""

    watch: CoordinatorWatch

    def applied(self, log: str, position: Position, record: Any) -> None:
        """Tell the watch."""
        watch = self.watch
        if not watch.is_sampling:
            watch.appended(position)
        watch.applied(record)

    def confirmed(self) -> None:
        """Tell the watch."""
        if self.watch.is_sampling:
            self.watch.confirmed(self.host.main.confirmed)

    def fold(self, machine: Machine[Any, Any], log: str, position: Position, data: bytes) -> None:
        """Apply one entry in recovery."""
        record = machine.decode(log, data)
        machine.apply(log, position, record)
        self.watch.applied(record)

    def snapshot_extra(self) -> bytes:
        """Bytes that the watch stores."""
        return self.watch.stored()

    def restore_extra(self, data: bytes) -> None:
        """The inverse of `snapshot_extra`."""
        self.watch.restored(self.machine, data)

    def folded(self) -> None:
        """See `CoordinatorHost.folded`."""
        super().folded()
        self.watch.folded()


def watched_by(watch: Callable[[int], CoordinatorWatch]) -> MakeHost:
    """For `Coordinators`: each coordinator that is opened has a watch of its own."""

    def make(tc_id: int, *parts: Any) -> CoordinatorHost:
        host = WatchedCoordinatorHost(*parts)
        host.watch = watch(tc_id)
        return host

    return make
