"""The transaction coordinators of this broker: one machine host each, and who may reach them when."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.machine import Effect, TellParticipant
from pulsar_txn.ledger.protocols import Log, LogStore, StorageFailed
from pulsar_txn.tc.owners import Identity
from pulsar_txn.tc.requests import (
    AddParticipants,
    Coordinator,
    EndTxn,
    Goodbye,
    IsRegistered,
    NewTxn,
    ParticipantsDone,
    Renew,
    Request,
    TakeOver,
    Vanished,
)
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EARLIEST, LANE_BIT, Participant, Position, TxnAction, TxnId, coordinator_of

from .host import Answer, MachineHost
from .joint_end import JointEnd
from .participants import Participants

_logger = logging.getLogger(__name__)

_TOLD_PER_TURN: Final = 256
"""Participants that are told at once: a few milliseconds' worth."""

_FIRST_REOPEN_SECONDS: Final = 1.0
_LAST_REOPEN_SECONDS: Final = 60.0


def coordinator_log_name(tc_id: int) -> str:
    """The name of a coordinator's log, Pulsar's (managed ledger `pulsar/system/persistent/__transaction_log_<id>`)."""
    return f"pulsar/system/persistent/__transaction_log_{tc_id}"


class CoordinatorHost(MachineHost[Request, Any]):
    """One coordinator. Joins ends, counts the participants that were told, and answers what participants ask of it.

    `registered_at`: where in the log the newest registration of each transaction is. `ended` counts since the start, for
    metrics.
    """

    def __init__(
        self,
        machine: Coordinator,
        log: Log,
        turn: Turn,
        participants: Participants,
        on_failed: Callable[[Exception], None],
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

    @property
    def telling(self) -> int:
        """Participants that were told an outcome and have not answered yet."""
        return sum(self._untold.values())

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
            super().perform(effect)
            return
        untold = self._untold
        untold[effect.txn_id] = untold.get(effect.txn_id, 0) + 1
        self._to_tell.append(effect)

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

    def folded(self) -> None:
        """H6: time does not go back across a restart."""
        self.turn.observe(self.coordinator.newest_time_ms)


def _answer_registered(answer: Callable[[bool | None], None], value: Any, error: ServerError | None, _message: str) -> None:
    answer(None if error is not None else bool(value))


class ServingByLane(dict[int, CoordinatorHost]):
    """Coordinators whose ids name a lane in `most`: each is found by any of its lanes, as well as by its own number."""

    def get(self, most: int, default: Any = None) -> Any:
        """The coordinator that gave out `most`."""
        return super().get(coordinator_of(most), default)


class Coordinators:
    """All coordinators of one server. Each serves once its own log is folded; one that fails is opened again.

    `serving` finds a coordinator by the `most` of its transactions: a plain dict where that is the coordinator's number.
    `before_due` is called with a coordinator's number before what is due in it is carried out. `log_name`: where each decides.

    Requests of a coordinator that is not here, or not ready, are answered TransactionCoordinatorNotFound: clients
    look it up again and repeat them.
    """

    def __init__(
        self,
        factory: Callable[[int], Coordinator],
        store: LogStore,
        turn: Turn,
        participants: Participants,
        on_storage_failed: Callable[[Exception], None],
        serving: dict[int, CoordinatorHost] | None = None,
        before_due: Callable[[int], None] | None = None,
        log_name: Callable[[int], str] = coordinator_log_name,
    ) -> None:
        self._factory = factory
        self._log_name = log_name
        self._store = store
        self._turn = turn
        self._participants = participants
        self._before_due = before_due
        self._on_storage_failed = on_storage_failed
        self._count = 0
        self._serving: dict[int, CoordinatorHost] = {} if serving is None else serving
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._delays: dict[int, float] = {}
        self._failed_hosts: dict[int, CoordinatorHost] = {}
        self._closed = False

    def __len__(self) -> int:
        return self._count

    def grow(self, count: int) -> None:
        """Begin to open those that are not there yet of so many."""
        opened, self._count = self._count, max(self._count, count)
        for tc_id in range(opened, count):
            self._start_opening(tc_id)

    @property
    def is_busy(self) -> bool:
        """Whether a request is not answered yet."""
        return any(host.is_busy for host in self._serving.values())

    async def wait_ready(self) -> None:
        """Return when every coordinator serves, or is waiting to be opened again."""
        await asyncio.gather(*(asyncio.shield(task) for task in list(self._opening.values())), return_exceptions=True)

    def ready(self, tc_id: int) -> CoordinatorHost | None:
        """The coordinator if it serves now."""
        return self._serving.get(tc_id)

    async def connect(self, tc_id: int) -> None:
        """Wait until a coordinator serves (TC_CLIENT_CONNECT). Raises Refusal TransactionCoordinatorNotFound."""
        task = self._opening.get(tc_id)
        if task is not None:
            await asyncio.wait([task])
        if self.ready(tc_id) is None:
            raise Refusal(ServerError.TransactionCoordinatorNotFound, self._absent(tc_id))

    async def close(self) -> None:
        """Close all logs."""
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for tc_id, host in list(self._serving.items()):
            await host.close()
            self._serving.pop(tc_id, None)

    # ---- requests

    def new_txn(
        self,
        tc_id: int,
        timeout_ms: int,
        principal: str | None,
        identity: Identity | None,
        answer: Answer,
        incarnation: str | None = None,
    ) -> None:
        """Open a transaction; the answer's value is its TxnId. `incarnation`: where coordinators give lanes."""
        host = self._serving.get(tc_id)
        if host is None:
            self._refuse(tc_id, answer)
        else:
            host.looks = True
            host.submit(NewTxn(answer, timeout_ms, principal, identity, incarnation))

    def add(
        self,
        txn_id: TxnId,
        participants: tuple[Participant, ...],
        principal: str | None,
        identity: Identity | None,
        answer: Answer,
    ) -> None:
        """Register participants."""
        serving = self._serving.get(txn_id.most)
        if serving is None:
            self._refuse(txn_id.most, answer)
            return
        host = serving.host
        before = host.appended
        host.submit(AddParticipants(answer, txn_id, participants, principal, identity))
        if host.appended != before:  # where it is in the log: see `knows`
            serving.registered_at[txn_id] = host.main.applied

    def end(
        self,
        txn_id: TxnId,
        action: TxnAction,
        principal: str | None,
        identity: Identity | None,
        answer: Answer,
        *,
        superuser: bool = False,
    ) -> None:
        """Commit or abort; answered when every participant holds the outcome."""
        host = self._serving.get(txn_id.most)
        if host is None:
            self._refuse(txn_id.most, answer)
        else:
            host.submit(EndTxn(answer, txn_id, action, principal, identity, superuser), reserve=True)

    def member(self, txn_id: TxnId, least: int) -> TxnId:
        """The transaction `least` of the coordinator of `txn_id`: with lanes, each has a `most` of its own while it lasts."""
        host = self._serving.get(txn_id.most) if txn_id.most & LANE_BIT else None
        if host is None:
            return TxnId(txn_id.most, least)
        machine: Any = host.coordinator  # one that gives lanes shows its transactions
        info = machine.transaction(least)
        return TxnId(txn_id.most, least) if info is None else info.txn_id

    def end_together(
        self,
        txn_id: TxnId,
        group: tuple[TxnId, ...],
        action: TxnAction,
        principal: str | None,
        identity: Identity | None,
        answer: Answer,
        *,
        abort_others: bool = False,
        superuser: bool = False,
    ) -> None:
        """End transactions of one coordinator by one record; answered when every participant of all of them holds it.

        `abort_others`: whatever else the identity has open is aborted, which is not waited for.
        """
        host = self._serving.get(txn_id.most)
        if host is None:
            self._refuse(txn_id.most, answer)
            return

        def join(member: TxnId, over: Answer) -> None:
            self.end(member, action, principal, identity, over, superuser=superuser)

        decided = JointEnd(dict.fromkeys((txn_id, *group)), join, answer).decided
        request = EndTxn(decided, txn_id, action, principal, identity, superuser, group, abort_others)
        host.looks = True
        host.submit(request, reserve=True)

    def take_over(
        self, tc_id: int, principal: str | None, identity: Identity, answer: Answer, incarnation: str | None = None
    ) -> None:
        """Begin an epoch; answered when all that older epochs began has ended at all participants."""

        def ask() -> None:
            host = self._serving.get(tc_id)
            if host is None:
                self._refuse(tc_id, answer)
            else:
                host.looks = True
                host.submit(TakeOver(ended, identity, incarnation, principal), reserve=True)

        def ended(value: Any, error: ServerError | None, message: str) -> None:
            if error is None and value is not True:
                ask()  # one of them has ended; another one may have not
            else:
                answer(None, error, message)

        ask()

    def renew(self, tc_id: int, principal: str | None, incarnation: str, answer: Answer) -> None:
        """A client is alive; the answer's value says whether it holds anything at this coordinator."""
        self._of_client(tc_id, Renew(answer, incarnation, principal), answer)

    def goodbye(self, tc_id: int, principal: str | None, incarnation: str, answer: Answer) -> None:
        """A client ends in order."""
        self._of_client(tc_id, Goodbye(answer, incarnation, principal), answer)

    def vanished(self, tc_id: int, principal: str | None, incarnation: str) -> None:
        """A client is gone; the coordinator finds out by itself, by its lease, where nobody says so."""
        host = self._serving.get(tc_id)
        if host is not None:
            host.looks = True
            host.submit(Vanished(incarnation, principal), reserve=True)

    def _of_client(self, tc_id: int, request: Renew | Goodbye, answer: Answer) -> None:
        host = self._serving.get(tc_id)
        if host is None:
            self._refuse(tc_id, answer)
        else:
            host.looks = True
            host.submit(request, reserve=True)

    def knows(self, txn_id: TxnId, participant: Participant) -> bool:
        """Whether the transaction is open with this participant, and the record of the registration is durable.

        Nothing newer of that transaction is in the log then, or it would not be open.
        """
        host = self._serving.get(txn_id.most)
        if host is None or not host.coordinator.is_registered(txn_id, participant):
            return False
        return host.registered_at.get(txn_id, EARLIEST) <= host.host.main.confirmed

    def ask(self, txn_id: TxnId, participant: Participant, answer: Callable[[bool | None], None]) -> None:
        """See `CoordinatorHost.ask`; False for a coordinator that does not exist."""
        host = self._serving.get(txn_id.most)
        if host is not None:
            host.ask(txn_id, participant, answer)
        else:
            answer(None if 0 <= coordinator_of(txn_id.most) < self._count else False)

    def _refuse(self, most: int, answer: Answer) -> None:
        answer(None, ServerError.TransactionCoordinatorNotFound, self._absent(coordinator_of(most)))

    def _absent(self, tc_id: int) -> str:
        if 0 <= tc_id < self._count:
            return f"coordinator {tc_id} is not ready; connect to it again"
        return f"there is no coordinator {tc_id}; this server has 0 to {self._count - 1}"

    # ---- opening

    async def _open(self, tc_id: int) -> None:
        failed = self._failed_hosts.pop(tc_id, None)
        if failed is not None:
            await failed.release()
        try:
            machine = self._factory(tc_id)
            log = await self._store.open(self._log_name(tc_id))
            due = None if self._before_due is None else partial(self._before_due, tc_id)
            host = CoordinatorHost(machine, log, self._turn, self._participants, partial(self._failed, tc_id), due)
            await host.recover()
            self._serving[tc_id] = host
        except StorageFailed as error:
            self._on_storage_failed(error)
        except Exception as error:
            _logger.exception("coordinator %d cannot be opened; it is tried again", tc_id)
            self._reopen(tc_id, error)
        else:
            self._opening.pop(tc_id, None)
            self._delays.pop(tc_id, None)

    def _failed(self, tc_id: int, error: Exception) -> None:
        host = self._serving.pop(tc_id, None)
        if host is not None:
            self._failed_hosts[tc_id] = host
        if isinstance(error, StorageFailed):
            self._on_storage_failed(error)
        else:
            self._reopen(tc_id, error)

    def _reopen(self, tc_id: int, error: Exception) -> None:
        if not self._closed:
            delay = self._delays.get(tc_id, _FIRST_REOPEN_SECONDS)
            self._delays[tc_id] = min(2 * delay, _LAST_REOPEN_SECONDS)
            _logger.warning("coordinator %d is opened again in %s s: %s", tc_id, delay, error)
            self._turn.runtime.call_later(delay, self._start_opening, tc_id)

    def _start_opening(self, tc_id: int) -> None:
        if not self._closed:
            self._opening[tc_id] = asyncio.get_running_loop().create_task(self._open(tc_id))
