"""One coordinator at its host: participants that are told, and questions that leave.

It carries out what the coordinator's machine decides, and decides nothing of a transaction itself.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.machine import AskProducer, Effect, TellGroup, TellParticipant
from pulsar_txn.ledger.protocols import LeasedLog, Log
from pulsar_txn.tc.causes import Cause, cause_of
from pulsar_txn.tc.requests import AddParticipants, Coordinator, IsRegistered, ParticipantsDone, Request
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import EARLIEST, Participant, Position, TxnAction, TxnId, coordinator_of

from .hosts import MachineHost, News

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

    What it has for its owner waits until that takes it: participants that are to be told, notices, and that something `is_due`.
    `ended` counts since the start, for metrics. `unanswered` counts transactions that were ended because nobody of their check
    group knew; `decided`, what became of those with a check group that neither a client nor the group has decided, and by what.
    """

    def __init__(
        self,
        machine: Coordinator,
        log: Log,
        turn: Turn,
        on_news: News,
    ) -> None:
        super().__init__(machine, {machine.logs[0]: log}, turn, on_news)
        self.coordinator = machine
        self.is_due = False
        self._untold: dict[TxnId, int] = {}
        self._registered_at: dict[TxnId, Position] = {}
        self._to_tell: deque[TellParticipant] = deque()
        self._has_news = False
        self.ended = {TxnAction.COMMIT: 0, TxnAction.ABORT: 0}
        self._notices: list[Notice] = []
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
        log: object = self.main.log
        return not isinstance(log, LeasedLog) or log.fresh

    # ---- time

    def look(self) -> None:
        """As every host, but not at the end of each turn: what most requests do brings no deadline nearer."""
        self.looks = False
        super().look()

    def expire_soon(self) -> None:
        """Let the owner call `expire`."""
        self.is_due = True
        self._announce()

    def expire(self) -> bool:
        """Carry out what is due, and look again after this: the timer is gone."""
        self.is_due = False
        self.looks = True
        return super().expire()

    def lapsed(self, records: Sequence[tuple[str, Any]]) -> int:
        """Transactions that their timeout has ended; a plug-in's records may not say why."""
        causes = [getattr(record, "cause", Cause.TIMEOUT) for _, record in records]
        return causes.count(Cause.TIMEOUT)

    # ---- requests

    def submit_timed(self, request: Request, *, reserve: bool = False) -> None:
        """Submit a request that may bring the deadline nearer: look at it when the turn ends."""
        self.looks = True
        self.submit(request, reserve=reserve)

    def add(self, request: AddParticipants) -> None:
        """Register participants, and note where in the log that is: see `knows`."""
        before = self.appended
        self.submit(request)
        if self.appended != before:
            self._registered_at[request.txn_id] = self.main.applied

    def knows(self, txn_id: TxnId, participant: Participant) -> bool:
        """True if the transaction is open with this participant, and the record of the registration is durable.

        Nothing newer of that transaction is in the log then, or it would not be open.
        """
        if not self.coordinator.is_registered(txn_id, participant):
            return False
        return self._registered_at.get(txn_id, EARLIEST) <= self.main.confirmed

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
        """Keep it for the owner, who tells participants and check groups."""
        if type(effect) is TellParticipant:
            untold = self._untold
            untold[effect.txn_id] = untold.get(effect.txn_id, 0) + 1
            self._to_tell.append(effect)
            self._announce()
        elif type(effect) is AskProducer:
            self._note(effect)
        elif type(effect) is TellGroup:
            self._decided(effect)
        else:
            super().perform(effect)

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
        self._notices.append(notice)
        self._announce()

    def _announce(self) -> None:
        if not self._has_news:
            self._has_news = True
            self.turn.answer(self._on_news, self, None, "")

    def take_notices(self) -> list[Notice]:
        """Take the news for the owner: questions to check groups, decisions without these, transactions that are over."""
        self._has_news = False
        notices, self._notices = self._notices, []
        return notices

    def take_to_tell(self) -> list[TellParticipant]:
        """Take participants that are to be told: some at once, further ones in later turns of the loop."""
        waiting = self._to_tell
        if self.failure is not None:
            waiting.clear()
        taken = [waiting.popleft() for _ in range(min(len(waiting), _TOLD_PER_TURN))]
        if waiting:
            self.turn.runtime.call_soon(self._announce)
        return taken

    def withdraw(self, txn_id: TxnId) -> None:
        """Whoever tells participants has told none of this transaction, and will not."""
        self._untold.pop(txn_id, None)

    def told(self, txn_id: TxnId) -> None:
        """A participant holds the outcome durably."""
        left = self._untold[txn_id] - 1
        if left:
            self._untold[txn_id] = left
            return
        del self._untold[txn_id]
        if self.ready:
            self.submit(ParticipantsDone(txn_id), reserve=True)

    def outcome(self, txn_id: TxnId, action: TxnAction) -> None:
        """Count it, and forget what was registered."""
        self.ended[action] += 1
        self._registered_at.pop(txn_id, None)
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


class ServingByLane(dict[int, CoordinatorHost]):
    """Coordinators whose ids name a lane in `most`: each is found by any of its lanes, as well as by its own number."""

    def get(self, most: int, default: Any = None) -> Any:
        """The coordinator that gave out `most`."""
        return super().get(coordinator_of(most), default)


class OwnRegistrations:
    """Registrations at the coordinators of this server, as all participants ask for them."""

    def __init__(self, serving: Mapping[int, CoordinatorHost]) -> None:
        self._serving = serving
        self._count = 0

    def grow(self, count: int) -> None:
        """There are so many coordinators now."""
        self._count = count

    def knows(self, txn_id: TxnId, participant: Participant) -> bool:
        """See `CoordinatorHost.knows`."""
        host = self._serving.get(txn_id.most)
        return host is not None and host.knows(txn_id, participant)

    def ask(self, txn_id: TxnId, participant: Participant, answer: Callable[[bool | None], None]) -> None:
        """See `CoordinatorHost.ask`; False for a coordinator that does not exist."""
        host = self._serving.get(txn_id.most)
        if host is not None:
            host.ask(txn_id, participant, answer)
        else:
            answer(None if 0 <= coordinator_of(txn_id.most) < self._count else False)


class CoordinatorKind(Protocol):
    """The coordinators of one server: where they decide, what hosts them, and how participants hear of their decisions."""

    def log_name(self, tc_id: int) -> str:
        """The name of a coordinator's log."""

    def make(self, tc_id: int, log: Log, on_news: News) -> CoordinatorHost:
        """A host of a new machine, to be recovered from its open log."""

    async def recovered(self, tc_id: int) -> None:
        """Do what is to be done at the end of a recovery, before anybody is served. Raises."""

    def before_due(self) -> None:
        """Do what is to be done before a coordinator carries out what is due."""

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        """See `Participants.tell`."""


def coordinator_log_name(tc_id: int) -> str:
    """The name of a coordinator's log, Pulsar's (managed ledger `pulsar/system/persistent/__transaction_log_<id>`)."""
    return f"pulsar/system/persistent/__transaction_log_{tc_id}"
