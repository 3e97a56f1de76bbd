"""The transition table, walked over every state and event."""

from __future__ import annotations

from typing import Any

import pytest
from tc_host import LEDGER, TcHost

from pulsar_txn.ledger.machine import NOTHING, Act, AwaitOutcome, Outcome, Reply, TellParticipant
from pulsar_txn.tc import (
    TRANSITIONS,
    AddParticipants,
    Check,
    CheckBegun,
    EndTxn,
    GroupJoined,
    IsRegistered,
    ParticipantsDone,
    PrepareTxn,
    records,
)
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.table import EVENT_OF, Event
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

STATES = [None, *TxnStatus]
CELLS = [
    pytest.param(state, event, id=f"{state.name if state is not None else 'UNKNOWN'}-{event.name}")
    for state in STATES
    for event in Event
]

EDGES = {(state, cell.to) for (state, _), cell in TRANSITIONS.items() if state is not None and cell.to is not state}
UPDATES = {edge for edge in EDGES if edge[1] is not TxnStatus.PREPARED}
"""The edges that an UPDATE record follows; a PREPARE has a record of its own."""

CHECKED = Check("group")


def request_of(event: Event, txn_id: TxnId) -> Any:
    return {
        Event.ADD: AddParticipants("token", txn_id, (Participant("new"),)),
        Event.COMMIT: EndTxn("token", txn_id, TxnAction.COMMIT, superuser=True),
        Event.ABORT: EndTxn("token", txn_id, TxnAction.ABORT, superuser=True),
        Event.DONE: ParticipantsDone(txn_id),
        Event.PREPARE: PrepareTxn("token", txn_id, b"token"),
        Event.ABANDON: EndTxn("token", txn_id, TxnAction.ABORT, cause=Cause.DISCONNECTED),
        Event.QUERY: IsRegistered("token", txn_id, Participant("t")),
    }[event]


def happen(host: TcHost, event: Event, txn_id: TxnId) -> Any:
    """Let `event` happen to `txn_id`; the Step, None for what is no request."""
    if event is Event.NEW:
        record = records.new_transaction(txn_id.least, 5, host.now_ms)
        host.tc.apply("log", (LEDGER, len(host.log)), record)
        return None
    if event in (Event.HOLD, Event.RELEASE):
        held, before = TxnStatus.HELD, host.tc.status(txn_id) or TxnStatus.OPEN
        edge = (before, held) if event is Event.HOLD else (held, TxnStatus.OPEN)
        host.append(records.update_status(txn_id.least, *edge, host.now_ms, host.tc.next_local_txn_id - 1))
        return None
    if event in (Event.TIMEOUT, Event.CHECK):
        if event is Event.CHECK:
            host.ask(GroupJoined(CHECKED.group))
        host.now_ms += 10_000 if event is Event.CHECK else 10**9
        step = host.tc.expire(host.now_ms)
        host.carry_out(step)
        if event is Event.CHECK and step.effects:
            return host.ask(CheckBegun("token", txn_id, CHECKED.group))
        return step
    return host.ask(request_of(event, txn_id))


def bare(host: TcHost) -> Any:
    """The state without the position and the newest time."""
    return host.tc.transactions(), host.tc.next_local_txn_id, [host.tc.status(TxnId(3, least)) for least in range(9)]


def test_every_state_has_a_cell_for_every_event() -> None:
    assert set(TRANSITIONS) == {(state, event) for state in STATES for event in Event}


def test_a_status_moves_only_along_the_two_ways_to_an_end() -> None:
    opened, committing, committed, aborting, aborted, prepared, held = TxnStatus
    ways = {(opened, committing), (committing, committed), (opened, aborting), (aborting, aborted)}
    ways |= {(opened, prepared), (prepared, committing), (prepared, aborting)}
    ways |= {(each, held) for each in (opened, prepared, committing, aborting)}
    assert ways | {(held, committing), (held, aborting), (held, opened)} == EDGES


def test_nothing_but_an_end_that_somebody_asked_for_leads_out_of_prepared() -> None:
    leaving = {event for event in Event if TRANSITIONS[TxnStatus.PREPARED, event].to is not TxnStatus.PREPARED}
    assert leaving == {Event.COMMIT, Event.ABORT, Event.HOLD}


def test_nothing_but_an_end_by_an_administrator_or_the_end_of_a_doubt_leads_out_of_held() -> None:
    leaving = {event for event in Event if TRANSITIONS[TxnStatus.HELD, event].to is not TxnStatus.HELD}
    assert leaving == {Event.COMMIT, Event.ABORT, Event.RELEASE}


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_a_cell_does_what_the_table_says(state: TxnStatus | None, event: Event) -> None:
    host = TcHost()
    txn_id = host.in_state(state, check=CHECKED if event is Event.CHECK else None)
    cell = TRANSITIONS[state, event]
    before = bare(host)
    if cell.act is Act.REFUSE:
        assert cell.to is state
        with pytest.raises(Refusal) as caught:
            happen(host, event, txn_id)
        assert caught.value.code is cell.code
        assert str(txn_id) in caught.value.message
        assert bare(host) == before
        return
    step = happen(host, event, txn_id)
    assert host.tc.status(txn_id) is cell.to
    if cell.act is Act.WRITE:
        assert step is None or step.records or step.trailing
    else:
        assert bare(host) == before
        assert step is None or step.records == step.trailing == ()
        if step is not None:
            kinds = {Act.ANSWER: [Reply], Act.JOIN: [AwaitOutcome], Act.SKIP: [Reply] * (event is Event.ABANDON)}[cell.act]
            assert [type(effect) for effect in step.effects] == kinds
    host.tc.check_invariants()


def test_an_update_record_is_the_event_that_leads_to_its_status() -> None:
    for (state, event), cell in TRANSITIONS.items():
        if (state, cell.to) in UPDATES and event not in (Event.TIMEOUT, Event.ABANDON):
            assert EVENT_OF[cell.to] is event  # type: ignore[index]  # an edge leads to a status


@pytest.mark.seed_rows("C30")
@pytest.mark.parametrize("expected", TxnStatus)
@pytest.mark.parametrize("new", TxnStatus)
@pytest.mark.parametrize("state", STATES)
def test_an_update_record_counts_only_along_an_edge_from_the_present_state(
    state: TxnStatus | None, expected: TxnStatus, new: TxnStatus
) -> None:
    host = TcHost()
    txn_id = host.in_state(state)
    before = bare(host)
    record = records.update_status(txn_id.least, expected, new, host.now_ms, host.tc.next_local_txn_id - 1)
    host.tc.apply("log", (LEDGER, len(host.log)), record)
    if state is expected and (expected, new) in UPDATES:
        assert host.tc.status(txn_id) is new
    else:
        assert bare(host) == before
    host.tc.check_invariants()


@pytest.mark.seed_rows("C27", "C30", "C35", "D27")
@pytest.mark.parametrize(("state", "action"), [(TxnStatus.COMMITTING, TxnAction.COMMIT), (TxnStatus.ABORTING, TxnAction.ABORT)])
def test_participants_are_told_by_the_step_that_holds_the_decision_and_the_outcome_waits_for_no_record(
    state: TxnStatus, action: TxnAction
) -> None:
    host = TcHost()
    txn_id = host.new()
    host.add(txn_id, Participant("b"), Participant("a"), Participant("a", "sub"))
    step = host.end(txn_id, action, "token")
    assert [record.new_status for _, record in step.records] == [state]
    assert step.trailing == ()
    assert step.effects == (
        AwaitOutcome("token", txn_id),
        TellParticipant(txn_id, Participant("b"), action, -1),
        TellParticipant(txn_id, Participant("a"), action, -1),
        TellParticipant(txn_id, Participant("a", "sub"), action, -1),
    )
    step = host.done(txn_id)
    assert step.records == ()
    assert [(record.expected_status, record.new_status) for _, record in step.trailing] == [(state, state + 1)]
    assert step.effects == (Outcome(txn_id, action),)
    assert host.answers["token"] is action
    assert host.done(txn_id) is NOTHING


@pytest.mark.parametrize("action", TxnAction)
def test_a_transaction_without_participants_ends_with_its_decision(action: TxnAction) -> None:
    host = TcHost()
    txn_id = host.new()
    step = host.ask(EndTxn("token", txn_id, action))
    assert len(step.records) == len(step.trailing) == 1
    assert step.effects == (AwaitOutcome("token", txn_id), Outcome(txn_id, action))
    assert "token" not in host.answers
    host.confirm(len(host.log) - 1)
    assert host.answers["token"] is action
    assert host.tc.active_count == 0


@pytest.mark.seed_rows("B31")
@pytest.mark.parametrize("action", TxnAction)
def test_a_repeated_end_joins_and_after_the_end_is_answered_at_once(action: TxnAction) -> None:
    host = TcHost()
    txn_id = host.new()
    host.add(txn_id, Participant("t"))
    host.end(txn_id, action, "first")
    host.end(txn_id, action, "second")
    assert not {"first", "second"} & host.answers.keys()
    host.done(txn_id)
    assert host.answers["first"] is host.answers["second"] is action
    assert host.end(txn_id, action, "third").effects == (Reply("third"),)
    with pytest.raises(Refusal) as caught:
        host.end(txn_id, TxnAction(1 - action), "other")
    assert caught.value.code is ServerError.InvalidTxnStatus
