"""The transaction coordinators of one server: how they are opened, who may reach them when, and what ends with a connection.

Opening: in a store of one process a log is there at once. In a store that several processes share, `open` lasts until this
process leads the log, which may be for ever: nobody waits for that, and it is no failure. A coordinator that fails is opened
again.

Transactions that end with the connection that opened them (`abort_on_disconnect`): Kafka's design allows a coordinator to abort
when it notices that a socket was closed. Here a client asks for it, because most clients come back after a broken connection
and go on. What is prepared stays: it waits for its end whatever becomes of its client. A connection that the server ends (its
own end, or another instance that leads from now on) is no sign that the client is gone, so it aborts nothing; the same client
comes back. After a restart nobody knows the connection any more: the timeout decides, or the check group.

What a transaction may do and how it ends is the machine's decision (`pulsar_txn.tc`), never one of this file.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import attrs

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.hosting import Answer
from pulsar_txn.ledger.machine import AskProducer, TellParticipant
from pulsar_txn.ledger.protocols import LeaseLost, Log, LogClosed, LogStore, SharedLogStore, StorageFailed
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.owners import Identity, Owner
from pulsar_txn.tc.requests import (
    AddParticipants,
    Check,
    CheckAnswered,
    CheckBegun,
    CheckOutcome,
    Coordinator,
    EndTxn,
    Goodbye,
    NewTxn,
    PrepareTxn,
    Renew,
    ResumeTxn,
    TakeOver,
    Vanished,
)
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import LANE_BIT, Participant, TxnAction, TxnId, coordinator_of

from .check_groups import CheckGroups, check_options
from .coordinator_host import CoordinatorHost, CoordinatorKind, OwnRegistrations, coordinator_log_name
from .hosts import News
from .participants import Participants

_logger = logging.getLogger(__name__)

_FIRST_REOPEN_SECONDS: Final = 1.0
_LAST_REOPEN_SECONDS: Final = 60.0
_LAST_SHARED_REOPEN_SECONDS: Final = 2.0
"""Others may be waiting for a coordinator that nobody leads."""
_LEASE_SECONDS: Final = 0.1
"""Between a lease that was lost and the next wait for it."""
_BESIDE_OTHERS: Final = 16
"""Transactions of lost connections that are aborted in one turn, while other long work waits."""

WAITS_SECONDS: Final = 60.0
_LONG_WAITS: Final = (
    ("prepared", "prepared_since_ms", "whoever has its token, its check group or an operator has to commit or abort it"),
    ("parked", "parked_since_ms", "nobody knew its outcome; an operator has to commit, abort or resume it"),
)


class Bound:
    """Transactions of one connection. `is_over`: it has ended, or is not to end anything any more."""

    __slots__ = ("aborts", "is_over", "transactions")

    def __init__(self) -> None:
        self.transactions: dict[TxnId, Owner] = {}
        self.is_over = False
        self.aborts = False


class BoundTransactions:
    """Those of one server. There are never more than transactions that take room in its coordinators."""

    def __init__(self, turn: Turn, serving: Mapping[int, CoordinatorHost]) -> None:
        self._turn = turn
        self._serving = serving
        self._of: dict[TxnId, Bound] = {}
        self._left: deque[tuple[TxnId, Owner]] = deque()
        self._waiting: dict[int, list[tuple[TxnId, Owner]]] = {}
        self._works = False
        self._stopped = False

    def bind(self, txn_id: TxnId, owner: Owner, bound: Bound) -> None:
        """Bind it: it ends with this connection, and with no other one any more. A connection that is gone ends it at once."""
        if bound.is_over:
            if bound.aborts:
                self._end([(txn_id, owner)])
            return
        before = self._of.get(txn_id)
        if before is not None:
            del before.transactions[txn_id]
        self._of[txn_id] = bound
        bound.transactions[txn_id] = owner

    def ended(self, txn_id: TxnId) -> None:
        """The transaction is over."""
        bound = self._of.pop(txn_id, None)
        if bound is not None:
            del bound.transactions[txn_id]

    def gone(self, bound: Bound) -> None:
        """The client's connection has ended: abort what is open, in slices."""
        if not bound.is_over:
            bound.aborts = not self._stopped
            left = self._taken(bound)
            if bound.aborts:
                self._end(left)

    def release(self, bound: Bound) -> None:
        """The server ends the connection: its transactions stay as they are."""
        self._taken(bound)

    def stop(self) -> None:
        """The server ends: from now on nothing is aborted."""
        self._stopped = True
        self._left.clear()
        self._waiting.clear()

    def opened(self, tc_id: int) -> None:
        """A coordinator serves again."""
        self._end(self._waiting.pop(tc_id, []))

    def lost(self, tc_id: int) -> None:
        """Another process leads the coordinator."""
        self._waiting.pop(tc_id, None)

    def _taken(self, bound: Bound) -> list[tuple[TxnId, Owner]]:
        bound.is_over = True
        left, bound.transactions = list(bound.transactions.items()), {}
        for txn_id, _ in left:
            del self._of[txn_id]
        return left

    def _end(self, left: list[tuple[TxnId, Owner]]) -> None:
        self._left += left
        if self._left and not self._works:
            self._works = True
            self._turn.runtime.call_soon(self._work)

    def _work(self) -> None:
        budget, left = self._turn.budget, len(self._left)
        if budget.waiters:  # they have waited for longer, and need the rest of this turn
            left = min(left, _BESIDE_OTHERS)
        while left and self._left and not budget.is_spent():
            left -= 1
            txn_id, owner = self._left.popleft()
            host = self._serving.get(txn_id.most)
            if host is None:
                self._waiting.setdefault(coordinator_of(txn_id.most), []).append((txn_id, owner))
            else:
                ended = EndTxn(_not_needed, txn_id, TxnAction.ABORT, *owner, cause=Cause.DISCONNECTED)
                host.submit(ended, reserve=True)
        self._works = bool(self._left)
        if self._works:
            self._turn.runtime.call_soon(self._work)


class JointEnd:
    """Answers for a group. `decided` is the token of the request that decides it; then the end of each member is joined.

    When the coordinator fails meanwhile, the answer is retriable, and the repeat finds the decision.
    """

    def __init__(self, host: CoordinatorHost, members: Collection[TxnId], end: EndTxn, answer: Answer) -> None:
        self._host = host
        self._members = members
        self._end = end
        self._answer = answer
        self._left = len(members)
        self._failed = False

    def decided(self, value: Any, error: ServerError | None, message: str) -> None:
        """The decision is durable, and one of the members is over; or the group was refused."""
        if error is not None:
            self._answer(value, error, message)
            return
        for txn_id in self._members:
            end = attrs.evolve(self._end, token=self._over, txn_id=txn_id, group=(), abort_others=False)
            self._host.submit(end, reserve=True)

    def _over(self, value: Any, error: ServerError | None, message: str) -> None:
        self._left -= 1
        if self._failed:
            return
        if error not in (None, ServerError.TransactionNotFound):  # not found: over, and forgotten since
            self._failed = True
            self._answer(value, error, message)
        elif not self._left:
            self._answer(None, None, "")


Changed: TypeAlias = Callable[[int, Exception | None, str], None]
"""Called with the number of a coordinator that begins to serve, or stops for a failure, which is the second argument then.

An `Answer` in form, because the turn gives it with the answers, in their order.
"""


class CoordinatorStarter:
    """Opens the logs of coordinators until it is closed, lets them serve, and hears of what they have for others.

    `serving`: those that serve; only this object puts coordinators in, and takes them out.
    """

    def __init__(
        self,
        store: LogStore,
        turn: Turn,
        kind: CoordinatorKind,
        serving: dict[int, CoordinatorHost],
        check_groups: CheckGroups,
        bound: BoundTransactions,
        on_change: Changed,
    ) -> None:
        self._store = store
        self._shared = store if isinstance(store, SharedLogStore) else None
        self._turn = turn
        self._kind = kind
        self._serving = serving
        self._check_groups = check_groups
        self._bound = bound
        self._on_change = on_change
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting: set[int] = set()
        self._delays: dict[int, float] = {}
        self._failed: dict[int, CoordinatorHost] = {}
        self._closed = False

    @property
    def is_shared(self) -> bool:
        """True if other processes may lead what this one does not."""
        return self._shared is not None

    def waits(self, tc_id: int) -> bool:
        """True if another process may lead the coordinator: this one does not."""
        return tc_id in self._waiting

    def leader(self, tc_id: int) -> str | None:
        """Address of the process that leads a coordinator for which this one waits; None when nobody is known."""
        leader = None if self._shared is None else self._shared.leader_of(self._kind.log_name(tc_id))
        return None if self._shared is None or leader == self._shared.advertised else leader

    def start(self, tc_id: int) -> None:
        """Open the log of a coordinator."""
        if not self._closed:
            if self._shared is not None:
                self._waiting.add(tc_id)
            self._tasks[tc_id] = asyncio.get_running_loop().create_task(self._open(tc_id))

    async def opened(self, tc_id: int) -> None:
        """Wait until the coordinator is there, or has to be opened again; not for its lease."""
        task = self._tasks.get(tc_id)
        if task is not None and tc_id not in self._waiting:
            await asyncio.wait([task])

    async def all_opened(self) -> None:
        """Wait until each coordinator is there, or has to be opened again."""
        await asyncio.gather(*(asyncio.shield(task) for task in list(self._tasks.values())), return_exceptions=True)

    async def close(self) -> None:
        """Close all logs, and with them their leases. Raises LedgerError when one of them failed."""
        self._closed = True
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        results = await asyncio.gather(*(host.close() for host in self._serving.values()), return_exceptions=True)
        self._serving.clear()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, LeaseLost):
                raise result

    async def _open(self, tc_id: int) -> None:
        failed = self._failed.pop(tc_id, None)
        if failed is not None:
            await failed.close_failed()
        try:
            host = await self._recovered(tc_id)
        except StorageFailed as error:
            self._turn.answer(self._on_change, tc_id, error, "")
        except LeaseLost as error:
            self._again(tc_id, error)
        except Exception as error:
            _logger.exception("coordinator %d failed to open and is opened again", tc_id)
            self._again(tc_id, error)
        else:
            self._serving[tc_id] = host
            self._check_groups.opened(tc_id)
            self._bound.opened(tc_id)
            self._tasks.pop(tc_id, None)
            self._delays.pop(tc_id, None)
            self._turn.answer(self._on_change, tc_id, None, "")

    async def _recovered(self, tc_id: int) -> CoordinatorHost:
        log = await self._store.open(self._kind.log_name(tc_id))
        self._waiting.discard(tc_id)
        try:
            host = self._kind.make(tc_id, log, partial(self._hear, tc_id))
        except BaseException:
            await log.close()
            raise
        await host.recover()
        try:
            await self._kind.recovered(tc_id)
        except BaseException as error:
            host.fail(error if isinstance(error, Exception) else LogClosed("the opening was cancelled"))
            await host.close_failed()
            raise
        if host.failure is not None:
            await host.close_failed()
            raise host.failure
        return host

    def _again(self, tc_id: int, error: Exception) -> None:
        if self._closed:
            return
        if self._shared is not None:
            self._waiting.add(tc_id)  # whoever asks is not to wait for what may take long
        if isinstance(error, LeaseLost):
            _logger.warning("coordinator %d waits for its lease: %s", tc_id, error)
            self._turn.runtime.call_later(_LEASE_SECONDS, self.start, tc_id)
            return
        delay = self._delays.get(tc_id, _FIRST_REOPEN_SECONDS)
        longest = _LAST_REOPEN_SECONDS if self._shared is None else _LAST_SHARED_REOPEN_SECONDS
        self._delays[tc_id] = min(2 * delay, longest)
        _logger.warning("coordinator %d is opened again in %s s: %s", tc_id, delay, error)
        self._turn.runtime.call_later(delay, self.start, tc_id)

    def _hear(self, tc_id: int, host: CoordinatorHost, _error: None, _message: str) -> None:
        """The turn says that a host has news: for participants, for clients, or that it has failed."""
        for notice in host.take_notices():
            if isinstance(notice, TxnId):
                self._bound.ended(notice)
                self._check_groups.over(notice)
            elif isinstance(notice, AskProducer):
                self._check_groups.ask(tc_id, notice)
            else:
                self._check_groups.decided(tc_id, notice)
        for effect in host.take_to_tell():
            self._kind.tell(effect, host.told)
        if host.is_due and host.failure is None:
            self._kind.before_due()
            host.expire()
        if host.failure is not None:
            self._stopped(tc_id, host, host.failure)

    def _stopped(self, tc_id: int, host: CoordinatorHost, error: Exception) -> None:
        if self._serving.get(tc_id) is not host:
            return  # that is known already
        del self._serving[tc_id]
        self._failed[tc_id] = host
        if self._shared is not None:
            self._bound.lost(tc_id)
        if not isinstance(error, StorageFailed):
            self._again(tc_id, error)
        self._turn.answer(self._on_change, tc_id, error, "")


class PlainCoordinators:
    """Coordinators whose records nobody follows. `factory` makes a machine of a number."""

    def __init__(self, factory: Callable[[int], Coordinator], turn: Turn, participants: Participants) -> None:
        self._factory = factory
        self._turn = turn
        self._participants = participants

    def log_name(self, tc_id: int) -> str:
        """See `coordinator_log_name`."""
        return coordinator_log_name(tc_id)

    def make(self, tc_id: int, log: Log, on_news: News) -> CoordinatorHost:
        """See `CoordinatorKind.make`."""
        return CoordinatorHost(self._factory(tc_id), log, self._turn, on_news)

    async def recovered(self, tc_id: int) -> None:
        """Do nothing: it serves at once."""

    def before_due(self) -> None:
        """Do nothing: nobody has a lease."""

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        """See `Participants.tell`."""
        self._participants.tell(effect, told)


class Coordinators:
    """All coordinators of one server. Each serves once its own log is folded; one that fails is opened again.

    `serving` finds a coordinator by the `most` of its transactions: a plain dict where that is the coordinator's number.
    `on_change`: see `Changed`. `max_check_groups`: see `CheckGroups`.

    Requests of a coordinator that is not here, or not ready, are answered TransactionCoordinatorNotFound: clients
    look it up again and repeat them. In a store that several processes share, each coordinator is here or in another one.
    """

    def __init__(
        self,
        store: LogStore,
        turn: Turn,
        kind: CoordinatorKind,
        on_change: Changed,
        *,
        serving: dict[int, CoordinatorHost] | None = None,
        max_check_groups: tuple[int, int] = (0, 0),
    ) -> None:
        self._count = 0
        self._serving: dict[int, CoordinatorHost] = {} if serving is None else serving
        self.check_groups = CheckGroups(turn, self._serving, *max_check_groups)
        self.bound = BoundTransactions(turn, self._serving)
        self.registrations = OwnRegistrations(self._serving)
        self._starter = CoordinatorStarter(store, turn, kind, self._serving, self.check_groups, self.bound, on_change)

    def __len__(self) -> int:
        return self._count

    def grow(self, count: int) -> None:
        """Begin to open those that are not there yet of so many."""
        opened, self._count = self._count, max(self._count, count)
        self.registrations.grow(self._count)
        for tc_id in range(opened, count):
            self._starter.start(tc_id)

    @property
    def here(self) -> list[int]:
        """Those that serve in this process, in order."""
        return sorted(self._serving)

    @property
    def is_busy(self) -> bool:
        """True if a request is not answered yet."""
        return any(host.is_busy for host in self._serving.values())

    async def wait_ready(self) -> None:
        """Wait until every coordinator serves, or is waiting to be opened again."""
        await self._starter.all_opened()

    def ready(self, tc_id: int) -> CoordinatorHost | None:
        """The coordinator if it serves now."""
        return self._serving.get(tc_id)

    @property
    def is_shared(self) -> bool:
        """True if other processes may lead what this one does not."""
        return self._starter.is_shared

    def is_elsewhere(self, tc_id: int) -> bool:
        """True if another process may lead the coordinator: this one waits for it, or was cut off for longer than its lease."""
        host = self.ready(tc_id)
        return self._starter.waits(tc_id) if host is None else not host.is_fresh

    def leader(self, tc_id: int) -> str | None:
        """Advertised address of the process that leads a coordinator elsewhere; None when nobody is known."""
        return self._starter.leader(tc_id)

    def check_here(self, tc_id: int) -> None:
        """Refusal TransactionCoordinatorNotFound unless the coordinator serves here."""
        if self.ready(tc_id) is None or self.is_elsewhere(tc_id):
            raise Refusal(ServerError.TransactionCoordinatorNotFound, self._absent(tc_id))

    async def connect(self, tc_id: int) -> None:
        """Wait until a coordinator serves (TC_CLIENT_CONNECT); not for one that may be elsewhere.

        Raises Refusal TransactionCoordinatorNotFound.
        """
        await self._starter.opened(tc_id)
        self.check_here(tc_id)

    async def close(self) -> None:
        """Close all logs, and with them their leases. Raises LedgerError when one of them failed."""
        await self._starter.close()

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
            host.submit_timed(NewTxn(answer, timeout_ms, principal, identity, incarnation, participants, check, nonce))

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
        host = self._serving.get(txn_id.most)
        if host is None:
            self._refuse(txn_id.most, answer)
        else:
            host.add(AddParticipants(answer, txn_id, participants, principal, identity, superuser))

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
            host.submit_timed(request, reserve=True)

    def prepare(self, request: PrepareTxn) -> None:
        """Let a transaction wait for its end; answered once that is durable. Of coordinators that check."""
        host = self._serving.get(request.txn_id.most)
        if host is None:
            self._refuse(request.txn_id.most, request.token)
        else:
            host.submit_timed(request)

    def check_answered(self, txn_id: TxnId, group: str, outcome: CheckOutcome, principal: str | None) -> None:
        """A member of a check group has answered what it was asked."""
        host = self._serving.get(txn_id.most)
        if host is not None:
            host.submit_timed(CheckAnswered(txn_id, group, outcome, principal), reserve=True)

    def check_begun(self, txn_id: TxnId, group: str, principal: str | None, answer: Answer) -> None:
        """A member of a check group begins to answer what it was asked; answered once that is counted durably."""
        host = self._serving.get(txn_id.most)
        if host is None:
            self._refuse(txn_id.most, answer)
        else:
            host.submit(CheckBegun(answer, txn_id, group, principal), reserve=True)

    def resume(self, txn_id: TxnId, answer: Answer) -> None:
        """Ask for a parked transaction again; for operators. Of coordinators that check."""
        host = self._serving.get(txn_id.most)
        if host is None:
            self._refuse(txn_id.most, answer)
        else:
            host.submit_timed(ResumeTxn(answer, txn_id, superuser=True), reserve=True)

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

        end = EndTxn(answer, txn_id, action, principal, identity, superuser, group, abort_others)
        host.submit_timed(
            attrs.evolve(end, token=JointEnd(host, dict.fromkeys((txn_id, *group)), end, answer).decided), reserve=True
        )

    def take_over(
        self, tc_id: int, principal: str | None, identity: Identity, answer: Answer, incarnation: str | None = None
    ) -> None:
        """Begin an epoch; answered when all that older epochs began has ended at all participants."""

        def ask() -> None:
            host = self._serving.get(tc_id)
            if host is None:
                self._refuse(tc_id, answer)
            else:
                host.submit_timed(TakeOver(ended, identity, incarnation, principal), reserve=True)

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
            host.submit_timed(Vanished(incarnation, principal), reserve=True)

    def _of_client(self, tc_id: int, request: Renew | Goodbye, answer: Answer) -> None:
        host = self._serving.get(tc_id)
        if host is None:
            self._refuse(tc_id, answer)
        else:
            host.submit_timed(request, reserve=True)

    def belongs_to(self, txn_id: TxnId, principal: str | None) -> bool | None:
        """True if a client with this principal began the transaction. None: its coordinator is not ready."""
        host = self._serving.get(txn_id.most)
        if host is not None:
            return host.coordinator.belongs_to(txn_id, principal)
        return None if 0 <= coordinator_of(txn_id.most) < self._count else False

    def _refuse(self, most: int, answer: Answer) -> None:
        answer(None, ServerError.TransactionCoordinatorNotFound, self._absent(coordinator_of(most)))

    def _absent(self, tc_id: int) -> str:
        if not 0 <= tc_id < self._count:
            return f"there is no coordinator {tc_id}; this server has 0 to {self._count - 1}"
        leader = self._starter.leader(tc_id) if self.is_elsewhere(tc_id) else None
        if leader is not None:
            return f"coordinator {tc_id} is led by {leader}; look it up, and connect to it there"
        return f"coordinator {tc_id} is not ready; connect to it again"


def _not_needed(_value: Any, _error: ServerError | None, _message: str) -> None:
    """Do nothing: nobody waits for it."""


class LongWaits:
    """`look()` now and then: one line for each coordinator and kind, again when as much time has passed. `after_ms` 0: none."""

    def __init__(self, turn: Turn, coordinators: Callable[[], Coordinators | None], after_ms: int) -> None:
        self._turn = turn
        self._coordinators = coordinators
        self._after_ms = after_ms
        self._warned_ms: dict[tuple[int, str], int] = {}

    async def look(self) -> None:
        """Warn of what waits for too long."""
        coordinators, now_ms = self._coordinators(), self._turn.clock.now_ms()
        if coordinators is None or not self._after_ms:
            return
        for tc_id in coordinators.here:
            host = coordinators.ready(tc_id)
            machine: Any = None if host is None else host.machine
            for kind, since, advice in _LONG_WAITS:
                self._look_at(tc_id, kind, getattr(machine, since, ()), advice, now_ms)

    def _look_at(self, tc_id: int, kind: str, since_ms: Any, advice: str, now_ms: int) -> None:
        oldest_ms, key = min(since_ms, default=now_ms), (tc_id, kind)
        if now_ms - oldest_ms < self._after_ms:
            self._warned_ms.pop(key, None)
            return
        if now_ms - self._warned_ms.get(key, 0) >= self._after_ms:
            self._warned_ms[key] = now_ms
            text = "coordinator %d: %d transactions are %s, the first for %d s; readers of its topics wait: %s (%s)"
            listed = f"pulsar-txn transactions list --{kind}"
            _logger.warning(text, tc_id, len(since_ms), kind, (now_ms - oldest_ms) // 1000, advice, listed)


def make_coordinator(factory: Callable[..., Coordinator], config: BrokerConfig, tc_id: int) -> Coordinator:
    """Make a coordinator of a plug-in with the limits of the configuration, as far as the plug-in knows them."""
    longest = config.max_transaction_timeout_in_seconds
    options: dict[str, Any] = {}
    if getattr(factory, "fences", False):
        options["max_active_of_id"] = config.max_active_transactions_per_transactional_id
    if getattr(factory, "checks", False):
        options |= check_options(config)
    return factory(
        tc_id,
        max_active=config.max_active_transactions_per_coordinator,
        max_participants=config.max_participants_per_transaction,
        max_state_bytes=config.max_transaction_state_size_in_mb << 20,
        max_timeout_ms=longest * 1000 if longest else 2**63 - 1,
        outcome_retention_count=config.transaction_outcome_retention_count,
        **options,
    )
