"""Every state and event of the transition table, carried out on the handle."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pulsar_txn.ledger.machine import Act, Reply, Step, VerifyRegistered
from pulsar_txn.rm_pending_ack import (
    TRANSITIONS,
    CursorStored,
    EndTxnOnSubscription,
    Event,
    Op,
    PendingAckHandle,
    Record,
    State,
    Verified,
)
from pulsar_txn.rm_pending_ack.testing import Subscription, abort, ack, ack_up_to, at, commit, end, indexes, whole
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId

TXN = TxnId(0, 5)
OTHER = TxnId(0, 9)


def handle_in(state: State) -> Subscription:
    host = Subscription(lambda *names: PendingAckHandle(*names, stored_every=1), [0, 4, 0, 0])
    if state in (State.OPEN, State.COMMITTED, State.COVERED, State.ABORTED):
        host.send(ack(TXN, whole(0), indexes(1, 0), key=(1, 1)))
    if state in (State.COMMITTED, State.COVERED):
        host.send(commit(TXN))
        host.confirm()
    if state is State.COVERED:
        host.store()
    if state is State.ABORTED:
        host.send(abort(TXN))
    if state is State.PAST:
        host.send(end(TxnId(0, 8), TxnAction.COMMIT, 7))
    host.confirm()
    assert host.machine.transaction_state(TXN) is state  # type: ignore[attr-defined]  # our handle's own question
    return host


def happen(host: Subscription, event: Event) -> Step[object] | Refusal:
    """Decide, apply and release; VerifyRegistered is left to the test."""
    host.participants = set()
    request = {
        Event.ACK_INDIVIDUAL: ack(TXN, indexes(1, 3)),
        Event.ACK_CUMULATIVE: ack_up_to(TXN, whole(2)),
        Event.ACK_REPEATED: ack(TXN, whole(0), indexes(1, 0), key=(1, 1)),
        Event.VERIFIED: Verified(ack(TXN, indexes(1, 3)), registered=True),
        Event.NOT_VERIFIED: Verified(ack(TXN, indexes(1, 3)), registered=False),
        Event.COMMIT: commit(TXN),
        Event.ABORT: abort(TXN),
        Event.WATERMARK: end(OTHER, TxnAction.ABORT, 8),
        Event.CURSOR_STORED: CursorStored(1),
    }
    if event is Event.PLAIN_ACKED:
        step = host.plain_ack([whole(0), whole(1)])
    elif event is Event.CURSOR_RESET:
        step = host.seek(1)
    else:
        try:
            step = host.machine.decide(request[event], 0)
        except Refusal as refusal:
            return refusal
        host.carry_out(step)
    host.confirm()
    return step


READ = {
    Event.ACK_READ: Record(Op.ACK, TXN, (indexes(1, 3),)),
    Event.COMMIT_READ: Record(Op.COMMIT, TXN),
    Event.ABORT_READ: Record(Op.ABORT, TXN),
}
DECIDED = [event for event in Event if event not in READ]


def act_of(step: Step[object] | Refusal) -> Act:
    if isinstance(step, Refusal):
        return Act.REFUSE
    if step.records or step.trailing:
        return Act.WRITE
    if any(isinstance(effect, VerifyRegistered) for effect in step.effects):
        return Act.ASK
    return Act.ANSWER if any(isinstance(effect, Reply) for effect in step.effects) else Act.SKIP


def test_table_is_complete() -> None:
    assert TRANSITIONS.keys() == set(itertools.product(State, Event))
    assert all((cell.code is not None) == (cell.act is Act.REFUSE) for cell in TRANSITIONS.values())


@pytest.mark.parametrize("event", DECIDED, ids=lambda event: event.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_handle_does_what_the_table_says(state: State, event: Event) -> None:
    host = handle_in(state)
    before = b"".join(host.machine.snapshot())
    step = happen(host, event)
    after, cell = host.machine, TRANSITIONS[state, event]
    assert (act_of(step), after.transaction_state(TXN)) == (cell.act, cell.to)  # type: ignore[attr-defined]  # our handle
    assert cell.code == (step.code if isinstance(step, Refusal) else None)
    after.check_invariants()
    if cell.act is not Act.WRITE:
        assert b"".join(after.snapshot()) == before, "nothing written, nothing changed"


def outcome(host: Subscription, request: Any) -> Any:
    try:
        return host.machine.decide(request, 0)
    except Refusal as refusal:
        return refusal.code, refusal.message


@pytest.mark.parametrize("state", [state for state in State if state is not State.UNKNOWN], ids=lambda state: state.name)
def test_an_ack_that_is_verified_before_the_handle_asks_is_decided_as_one_that_need_not_ask(state: State) -> None:
    host = handle_in(state)
    for request in (ack(TXN, indexes(1, 3)), ack_up_to(TXN, whole(2)), ack(TXN, whole(0), indexes(1, 0)), ack(TXN, whole(3))):
        assert outcome(host, request) == outcome(host, Verified(request, registered=True))


@pytest.mark.parametrize("event", READ, ids=lambda event: event.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_a_record_of_the_log_does_what_the_table_says(state: State, event: Event) -> None:
    host, other = handle_in(state), handle_in(state)
    cell = TRANSITIONS[state, event]
    host.machine.apply("log", (9, 0), READ[event])
    assert host.machine.transaction_state(TXN) is cell.to  # type: ignore[attr-defined]  # our handle
    host.machine.check_invariants()
    other.machine.apply("log", (9, 0), Record(Op.ABORT, TxnId(7, 0)))  # of a transaction that has nothing here
    held = [[host.machine.pending(at(entry)) for entry in range(4)] for host in (host, other)]
    if cell.act is Act.SKIP:
        assert held[0] == held[1]


@pytest.mark.parametrize("event", DECIDED, ids=lambda event: event.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_state_after_is_the_same_from_log_and_from_snapshot(state: State, event: Event) -> None:
    host = handle_in(state)
    happen(host, event)
    snapshot = b"".join(host.machine.snapshot())
    restored = PendingAckHandle("t", "s", host.cursor)
    restored.restore(snapshot)
    replayed = PendingAckHandle("t", "s", host.cursor)
    host.replay(replayed, 0)
    assert b"".join(restored.snapshot()) == b"".join(replayed.snapshot()) == snapshot
    assert restored.transaction_state(TXN) is replayed.transaction_state(TXN) is TRANSITIONS[state, event].to


@pytest.mark.parametrize("action", TxnAction)
def test_opposite_end_is_refused_as_an_invalid_status(action: TxnAction) -> None:
    host = handle_in(State.UNKNOWN)
    assert host.answer(EndTxnOnSubscription("first", TXN, action, -1)) is None
    assert host.answer(EndTxnOnSubscription("again", TXN, action, -1)) is None
    opposite = TxnAction.ABORT if action is TxnAction.COMMIT else TxnAction.COMMIT
    assert host.answer(EndTxnOnSubscription("opposite", TXN, opposite, -1)) is ServerError.InvalidTxnStatus
