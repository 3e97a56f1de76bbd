"""Every state and event of the transition table, carried out on the handle."""

from __future__ import annotations

import itertools

import pytest

from pulsar_txn.ledger.machine import Reply, Step, VerifyRegistered
from pulsar_txn.rm_pending_ack import (
    TRANSITIONS,
    CursorStored,
    EndTxnOnSubscription,
    Event,
    Outcome,
    PendingAckHandle,
    State,
    Verified,
)
from pulsar_txn.rm_pending_ack.testing import Subscription, abort, ack, ack_up_to, commit, end, indexes, whole
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId

TXN = TxnId(0, 5)
OTHER = TxnId(0, 9)


def handle_in(state: State) -> Subscription:
    host = Subscription(lambda *names: PendingAckHandle(*names, stored_every=1), [0, 4, 0, 0])
    if state in (State.OPEN, State.COMMITTED, State.COVERED, State.ABORTED):
        host.send(ack(TXN, whole(0), indexes(1, 0)))
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
        Event.ACK_REPEATED: ack(TXN, whole(0), indexes(1, 0)),
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


def outcome_of(step: Step[object] | Refusal) -> Outcome:
    if isinstance(step, Refusal):
        return Outcome.REFUSE
    if step.records or step.trailing:
        return Outcome.WRITE
    if any(isinstance(effect, VerifyRegistered) for effect in step.effects):
        return Outcome.VERIFY
    return Outcome.ANSWER if any(isinstance(effect, Reply) for effect in step.effects) else Outcome.IGNORE


def test_table_is_complete() -> None:
    assert TRANSITIONS.keys() == set(itertools.product(State, Event))


@pytest.mark.parametrize(("state", "event"), TRANSITIONS, ids=lambda part: part.value.replace(" ", "_"))
def test_handle_does_what_the_table_says(state: State, event: Event) -> None:
    host = handle_in(state)
    before = b"".join(host.machine.snapshot())
    step = happen(host, event)
    after = host.machine
    assert (outcome_of(step), after.transaction_state(TXN)) == TRANSITIONS[state, event]  # type: ignore[attr-defined]  # our handle
    after.check_invariants()
    if TRANSITIONS[state, event].outcome is not Outcome.WRITE:
        assert b"".join(after.snapshot()) == before, "nothing written, nothing changed"


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_state_after_is_the_same_from_log_and_from_snapshot(state: State, event: Event) -> None:
    host = handle_in(state)
    happen(host, event)
    snapshot = b"".join(host.machine.snapshot())
    restored = PendingAckHandle("t", "s", host.cursor)
    restored.restore(snapshot)
    replayed = PendingAckHandle("t", "s", host.cursor)
    host.replay(replayed, 0)
    assert b"".join(restored.snapshot()) == b"".join(replayed.snapshot()) == snapshot
    assert restored.transaction_state(TXN) is replayed.transaction_state(TXN) is TRANSITIONS[state, event].state


@pytest.mark.parametrize("action", TxnAction)
def test_opposite_end_is_refused_as_an_invalid_status(action: TxnAction) -> None:
    host = handle_in(State.UNKNOWN)
    assert host.answer(EndTxnOnSubscription("first", TXN, action, -1)) is None
    assert host.answer(EndTxnOnSubscription("again", TXN, action, -1)) is None
    opposite = TxnAction.ABORT if action is TxnAction.COMMIT else TxnAction.COMMIT
    assert host.answer(EndTxnOnSubscription("opposite", TXN, opposite, -1)) is ServerError.InvalidTxnStatus
