"""Clients that come, live, go, or are gone: leases of incarnations, and a transactional id's next epoch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final, TypeAlias

from pulsar_txn.ledger.machine import NOTHING, AwaitOutcome, Effect, Reply, Step
from pulsar_txn.tc import records
from pulsar_txn.tc._state import CoordinatorState
from pulsar_txn.tc._transaction import Transaction
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.fencing import Fencing
from pulsar_txn.tc.leases import Incarnation
from pulsar_txn.tc.owners import Owner, is_older
from pulsar_txn.tc.records import Record
from pulsar_txn.tc.requests import Goodbye, Renew, TakeOver, Vanished
from pulsar_txn.tc.table import Event
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnId

LOG: Final = "log"

_Records: TypeAlias = tuple[tuple[str, Record], ...]
LeaveOpen: TypeAlias = Callable[[Transaction, Event, int, int, Cause], tuple[_Records, _Records, tuple[Effect, ...]]]
"""The decision about an OPEN transaction: see `TransactionCoordinator._leave_open`."""


class Clients:
    """Decisions about clients. `limit`: how many transactions one Step aborts; `expire` goes on where there are more."""

    def __init__(self, state: CoordinatorState, leave_open: LeaveOpen, limit: int) -> None:
        self._state = state
        self._leave_open = leave_open
        self._limit = limit

    def decide(self, request: Goodbye | Vanished | TakeOver, now_ms: int) -> Step[Record]:
        """A client has gone, or an epoch begins."""
        match request:
            case Goodbye():
                return self.said_goodbye(request, now_ms)
            case Vanished():
                return self.vanished(request, now_ms)
        return self.took_over(request, now_ms)

    # ------------------------------------------------------------------ incarnations

    def renewed(self, request: Renew, now_ms: int) -> Step[Record]:
        """A sign of life. It is no state, so it needs no record."""
        lanes, incarnation = self._state.lanes, (request.principal, request.incarnation)
        is_known = lanes is not None and incarnation in lanes.leases and not lanes.leases.is_ended(incarnation)
        if lanes is not None and is_known:
            lanes.leases.heard(incarnation, now_ms)
        return Step((), (Reply(request.token, is_known),))

    def said_goodbye(self, request: Goodbye, now_ms: int) -> Step[Record]:
        """Give the lanes of an incarnation to the pool. One that has, or leaves open, very many counts as vanished."""
        lanes, incarnation = self._state.lanes, (request.principal, request.incarnation)
        if lanes is None or incarnation not in lanes.leases:
            return Step((), (Reply(request.token),))
        left_open = self._to_abort(incarnation)
        if len(left_open) > self._limit or lanes.are_many(incarnation):
            lanes.leases.end(incarnation)
            return Step((), (Reply(request.token),))
        aborts = self._aborts(left_open, now_ms, Cause.GOODBYE, Reply(request.token))
        return aborts.then(self._departed(records.GOODBYE, incarnation, now_ms))

    def vanished(self, request: Vanished, now_ms: int) -> Step[Record]:
        """End a lease before its time."""
        lanes, incarnation = self._state.lanes, (request.principal, request.incarnation)
        if lanes is None or incarnation not in lanes.leases:
            return NOTHING
        lanes.leases.end(incarnation, said_so=False)
        return self.is_gone(incarnation, now_ms)

    def is_gone(self, incarnation: Incarnation, now_ms: int) -> Step[Record]:
        """The lease of an incarnation is over: abort what it has open, and then retire its lanes.

        Its lease is over until it has no lane any more, so `expire` goes on. A crash in between leaves it with a whole lease,
        which will be over as well.
        """
        lanes = self._state.lanes
        assert lanes is not None  # noqa: S101 - only `Lanes` knows incarnations
        cause = Cause.GOODBYE if lanes.leases.has_left(incarnation) else Cause.LEASE
        left_open = self._to_abort(incarnation)
        aborts = self._aborts(left_open[: self._limit], now_ms, cause)
        if len(left_open) > self._limit:
            return aborts.step()
        return aborts.then(self._departed(records.VANISHED, incarnation, now_ms))

    def _to_abort(self, incarnation: Incarnation) -> list[int]:
        """Find what nobody but its client could have ended, one more than one Step aborts.

        A check group outlives the client.
        """
        lanes, transactions = self._state.lanes, self._state.transactions
        assert lanes is not None  # noqa: S101 - only `Lanes` knows incarnations
        extras = ((least, transactions[least].extras) for least in lanes.open_of(incarnation))
        return list(islice((least for least, extra in extras if extra is None or not extra.group), self._limit + 1))

    # ------------------------------------------------------------------ transactional ids

    def took_over(self, request: TakeOver, now_ms: int) -> Step[Record]:
        """Fence older epochs. A repeat writes nothing, and awaits what has not ended yet."""
        state, owner = self._state, (request.principal, request.identity)
        if state.fencing is None:
            raise Refusal(ServerError.NotAllowedError, "this coordinator knows no transactional ids: choose one that fences")
        state.fencing.check_asker(owner)
        if state.lanes is not None and request.incarnation is not None:
            incarnation = request.principal, request.incarnation
            if incarnation in state.lanes.leases:
                state.lanes.leases.heard(incarnation, now_ms)
        older = [least for least in state.fencing.open_of(owner) if is_older(state.transactions[least].owner, owner)]
        pending = state.transactions[older[0]].txn_id if older else self._unfinished_before(owner)
        first: Effect = Reply(request.token, True) if pending is None else AwaitOutcome(request.token, pending)
        aborts = self._aborts(older, now_ms, Cause.FENCED, first)
        if _is_known(state.fencing, owner):
            return aborts.step()
        return aborts.then((LOG, records.taken_over(owner, now_ms, state.next_id - 1)))

    def _unfinished_before(self, owner: Owner) -> TxnId | None:
        state = self._state
        if state.lanes is not None:
            return state.lanes.unfinished_before(owner)
        ending = (state.transactions[least] for least in state.ending)
        return next((txn.txn_id for txn in ending if is_older(txn.owner, owner)), None)

    # ------------------------------------------------------------------ their parts

    def _aborts(self, leasts: list[int], now_ms: int, cause: Cause, *effects: Effect) -> _Aborts:
        gathered = _Aborts(list(effects))
        for least in leasts:
            txn = self._state.transactions[least]
            decision, trailing, heard = self._leave_open(txn, Event.ABANDON, now_ms, len(gathered.effects), cause)
            gathered.add(decision, trailing, heard)
        return gathered

    def _departed(self, operation: int, incarnation: Incarnation, now_ms: int) -> tuple[str, Record]:
        principal, name = incarnation
        return LOG, records.departed(operation, principal, name, now_ms, self._state.next_id - 1)


class _Aborts:
    """Decisions about several transactions on their way into one Step."""

    def __init__(self, effects: list[Effect]) -> None:
        self.decisions: list[tuple[str, Record]] = []
        self.effects = effects
        self.trailing: list[tuple[str, Record]] = []

    def add(self, decisions: _Records, trailing: _Records, effects: tuple[Effect, ...]) -> None:
        """One more decision."""
        self.decisions += decisions
        self.trailing += trailing
        self.effects += effects

    def then(self, last: tuple[str, Record]) -> Step[Record]:
        """The Step, with one more record after the decisions."""
        self.decisions.append(last)
        return self.step()

    def step(self) -> Step[Record]:
        """The Step."""
        return Step(tuple(self.decisions), tuple(self.effects), tuple(self.trailing))


def _is_known(fencing: Fencing, owner: Owner) -> bool:
    """True if this epoch was seen before."""
    principal, identity = owner
    assert identity is not None  # noqa: S101 - a TakeOver names it
    known = fencing.epochs.get((principal, identity[0]))
    return known is not None and known[0] >= identity[1]
