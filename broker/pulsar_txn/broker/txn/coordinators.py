"""The transaction coordinators of this broker: one machine host each, and who may reach them when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.protocols import LeaseLost, Log, LogStore
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.owners import Identity, Owner
from pulsar_txn.tc.requests import (
    AddParticipants,
    Check,
    CheckAnswered,
    CheckBegun,
    CheckOutcome,
    CheckReturned,
    Coordinator,
    EndTxn,
    Goodbye,
    GroupJoined,
    GroupLeft,
    NewTxn,
    PrepareTxn,
    Renew,
    ResumeTxn,
    TakeOver,
    Vanished,
)
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EARLIEST, LANE_BIT, Participant, TxnAction, TxnId, coordinator_of

from .bound import BoundTransactions
from .check_groups import CheckGroups, GroupKey
from .coordinator_host import CoordinatorHost, MakeHost, plain_host
from .host import Answer
from .joint_end import JointEnd
from .opening import Opening, coordinator_log_name
from .participants import Participants


class ServingByLane(dict[int, CoordinatorHost]):
    """Coordinators whose ids name a lane in `most`: each is found by any of its lanes, as well as by its own number."""

    def get(self, most: int, default: Any = None) -> Any:
        """The coordinator that gave out `most`."""
        return super().get(coordinator_of(most), default)


class Coordinators:
    """All coordinators of one server. Each serves once its own log is folded; one that fails is opened again.

    `serving` finds a coordinator by the `most` of its transactions: a plain dict where that is the coordinator's number.
    `before_due` is called with a coordinator's number before what is due in it is carried out. `log_name`: where each decides.
    `make_host`: makes the host of one, where it is to be another kind of host.
    `on_change` is called when a coordinator begins to serve (True), or stops for a failure (False). `max_check_groups`: see
    `CheckGroups`.

    Requests of a coordinator that is not here, or not ready, are answered TransactionCoordinatorNotFound: clients
    look it up again and repeat them. In a store that several processes share, each coordinator is here or in another one.
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
        on_change: Callable[[int, bool], None] = lambda _tc_id, _serves: None,
        make_host: MakeHost | None = None,
        max_check_groups: tuple[int, int] = (0, 0),
    ) -> None:
        self._factory = factory
        self._turn = turn
        self._participants = participants
        self._before_due = before_due
        self._on_change = on_change
        self._make_host = make_host or plain_host
        self._count = 0
        self.check_groups = CheckGroups(turn, self, *max_check_groups)
        self.bound = BoundTransactions(turn, self._disconnect)
        self._serving: dict[int, CoordinatorHost] = {} if serving is None else serving
        self._opening = Opening(store, turn, self._prepare, self._serve, on_storage_failed, log_name)

    def __len__(self) -> int:
        return self._count

    def grow(self, count: int) -> None:
        """Begin to open those that are not there yet of so many."""
        opened, self._count = self._count, max(self._count, count)
        for tc_id in range(opened, count):
            self._opening.start(tc_id)

    @property
    def here(self) -> list[int]:
        """Those that serve in this process, in order."""
        return sorted(self._serving)

    @property
    def is_busy(self) -> bool:
        """True if a request is not answered yet."""
        return any(host.is_busy for host in self._serving.values())

    async def wait_ready(self) -> None:
        """Return when every coordinator serves, or is waiting to be opened again."""
        await self._opening.all_opened()

    def ready(self, tc_id: int) -> CoordinatorHost | None:
        """The coordinator if it serves now."""
        return self._serving.get(tc_id)

    @property
    def is_shared(self) -> bool:
        """True if other processes may lead what this one does not."""
        return self._opening.is_shared

    def is_elsewhere(self, tc_id: int) -> bool:
        """True if another process may lead the coordinator: this one waits for it, or was cut off for longer than its lease."""
        host = self.ready(tc_id)
        return self._opening.waits(tc_id) if host is None else not host.is_fresh

    def leader(self, tc_id: int) -> str | None:
        """Return what the process advertises that leads a coordinator elsewhere; None when nobody is known."""
        return self._opening.leader(tc_id)

    def check_here(self, tc_id: int) -> None:
        """Refusal TransactionCoordinatorNotFound unless the coordinator serves here."""
        if self.ready(tc_id) is None or self.is_elsewhere(tc_id):
            raise Refusal(ServerError.TransactionCoordinatorNotFound, self._absent(tc_id))

    async def connect(self, tc_id: int) -> None:
        """Wait until a coordinator serves (TC_CLIENT_CONNECT); not for one that may be elsewhere.

        Raises Refusal TransactionCoordinatorNotFound.
        """
        await self._opening.opened(tc_id)
        self.check_here(tc_id)

    async def close(self) -> None:
        """Close all logs, and with them their leases. Raises LedgerError when one of them failed."""
        await self._opening.close()
        results = await asyncio.gather(*(host.close() for host in self._serving.values()), return_exceptions=True)
        self._serving.clear()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, LeaseLost):
                raise result

    # ---- requests

    def new_txn(
        self,
        tc_id: int,
        timeout_ms: int,
        principal: str | None,
        identity: Identity | None,
        answer: Answer,
        incarnation: str | None = None,
        participants: tuple[Participant, ...] = (),
        check: Check | None = None,
        nonce: bytes = b"",
    ) -> None:
        """Open a transaction; the answer's value is its TxnId. `incarnation`: where coordinators give lanes.

        `participants` are registered with it: of coordinators that are not asked whether somebody is (`knows`). `check` and
        `nonce`: for coordinators that check.
        """
        host = self._serving.get(tc_id)
        if host is None:
            self._refuse(tc_id, answer)
        else:
            host.looks = True
            host.submit(NewTxn(answer, timeout_ms, principal, identity, incarnation, participants, check, nonce))

    def add(
        self,
        txn_id: TxnId,
        participants: tuple[Participant, ...],
        principal: str | None,
        identity: Identity | None,
        answer: Answer,
        *,
        superuser: bool = False,
    ) -> None:
        """Register participants."""
        serving = self._serving.get(txn_id.most)
        if serving is None:
            self._refuse(txn_id.most, answer)
            return
        host = serving.host
        before = host.appended
        host.submit(AddParticipants(answer, txn_id, participants, principal, identity, superuser))
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

    def end_as(self, request: EndTxn) -> None:
        """End one transaction as the request says: with a token, at the decision, for a cause, several by one record."""
        host = self._serving.get(request.txn_id.most)
        if host is None:
            self._refuse(request.txn_id.most, request.token)
        else:
            host.looks = True
            host.submit(request, reserve=True)

    def prepare(self, request: PrepareTxn) -> None:
        """Let a transaction wait for its end; answered once that is durable. Of coordinators that check."""
        host = self._serving.get(request.txn_id.most)
        if host is None:
            self._refuse(request.txn_id.most, request.token)
        else:
            host.looks = True
            host.submit(request)

    def check_answered(self, txn_id: TxnId, group: str, outcome: CheckOutcome, principal: str | None) -> None:
        """A member of a check group has answered what it was asked."""
        host = self._serving.get(txn_id.most)
        if host is not None:
            host.looks = True
            host.submit(CheckAnswered(txn_id, group, outcome, principal), reserve=True)

    def check_begun(self, txn_id: TxnId, group: str, principal: str | None, answer: Answer) -> None:
        """A member of a check group begins to answer what it was asked; answered once that is counted durably."""
        host = self._serving.get(txn_id.most)
        if host is None:
            self._refuse(txn_id.most, answer)
        else:
            host.submit(CheckBegun(answer, txn_id, group, principal), reserve=True)

    def check_counts(self, txn_id: TxnId, group: str, principal: str | None) -> None:
        """As `check_begun`, of a member that does not say so."""
        self.check_begun(txn_id, group, principal, _not_needed)

    def check_returned(self, txn_id: TxnId) -> None:
        """Return a question: nobody is at it any more."""
        host = self._serving.get(txn_id.most)
        if host is not None:
            host.looks = True
            host.submit(CheckReturned(txn_id), reserve=True)

    def group_lives(self, key: GroupKey, room: int | None) -> None:
        """The members of a check group take so many questions at once; None: there is none any more."""
        host = self._serving.get(key.tc_id)
        if host is not None:
            host.looks = True
            host.submit(GroupLeft(key.group, key.principal) if room is None else GroupJoined(key.group, key.principal, room))

    def resume(self, txn_id: TxnId, answer: Answer) -> None:
        """Ask for a parked transaction again; for operators. Of coordinators that check."""
        host = self._serving.get(txn_id.most)
        if host is None:
            self._refuse(txn_id.most, answer)
        else:
            host.looks = True
            host.submit(ResumeTxn(answer, txn_id, superuser=True), reserve=True)

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
        self.end_as(EndTxn(decided, txn_id, action, principal, identity, superuser, group, abort_others))

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
        """True if the transaction is open with this participant, and the record of the registration is durable.

        Nothing newer of that transaction is in the log then, or it would not be open.
        """
        host = self._serving.get(txn_id.most)
        if host is None or not host.coordinator.is_registered(txn_id, participant):
            return False
        return host.registered_at.get(txn_id, EARLIEST) <= host.host.main.confirmed

    def belongs_to(self, txn_id: TxnId, principal: str | None) -> bool | None:
        """True if a client with this principal began the transaction. None: its coordinator is not ready."""
        host = self._serving.get(txn_id.most)
        if host is not None:
            return host.coordinator.belongs_to(txn_id, principal)
        return None if 0 <= coordinator_of(txn_id.most) < self._count else False

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
        if not 0 <= tc_id < self._count:
            return f"there is no coordinator {tc_id}; this server has 0 to {self._count - 1}"
        leader = self._opening.leader(tc_id) if self.is_elsewhere(tc_id) else None
        if leader is not None:
            return f"coordinator {tc_id} is led by {leader}; look it up, and connect to it there"
        return f"coordinator {tc_id} is not ready; connect to it again"

    # ---- opening

    def _prepare(self, tc_id: int) -> Callable[[Log], CoordinatorHost]:
        machine = self._factory(tc_id)
        due = None if self._before_due is None else partial(self._before_due, tc_id)

        def make(log: Log) -> CoordinatorHost:
            host = self._make_host(tc_id, machine, log, self._turn, self._participants, partial(self._failed, tc_id), due)
            host.ask_producer = partial(self.check_groups.ask, tc_id)
            host.tell_group = partial(self.check_groups.decided, tc_id)
            host.on_outcome = self._over
            return host

        return make

    def _serve(self, tc_id: int, host: CoordinatorHost) -> None:
        self._serving[tc_id] = host
        self.check_groups.opened(tc_id)
        self.bound.opened(tc_id)
        self._on_change(tc_id, True)

    def _failed(self, tc_id: int, error: Exception) -> None:
        host = self._serving.pop(tc_id, None)
        self._opening.failed(tc_id, host, error)
        if self.is_shared:
            self.bound.lost(tc_id)
        self._on_change(tc_id, False)

    # ---- clients that are asked, and clients that go

    def _over(self, txn_id: TxnId) -> None:
        self.bound.ended(txn_id)
        self.check_groups.over(txn_id)

    def _disconnect(self, txn_id: TxnId, owner: Owner) -> bool:
        host = self._serving.get(txn_id.most)
        if host is None:
            return False
        host.submit(EndTxn(_not_needed, txn_id, TxnAction.ABORT, *owner, cause=Cause.DISCONNECTED), reserve=True)
        return True


def _not_needed(_value: Any, _error: ServerError | None, _message: str) -> None:
    """Do nothing: nobody waits for it."""
