"""The machine of a transaction: its table walked whole, and every short history against a model of its coordinator.

The model keeps outcomes, or forgets them as stock Pulsar does. Each request is carried out, lost on the way, answered into the
void, or never sent. Somebody else ends the transaction as well: its timeout, its check group, whoever has its token or its id.
Histories are walked breadth first: each is a path of choices, and what was decided is compared with what the program was told.
"""

from __future__ import annotations

import itertools

import pytest

from pulsar_txn.client.errors import (
    AlreadyClosed,
    CommitOutcomeUnknown,
    ConnectionLost,
    InvalidTransactionStatus,
    OperationTimeout,
    PulsarError,
    TransactionAborted,
    TransactionNotFound,
    TransactionStateError,
    UnknownError,
)
from pulsar_txn.client.state import transaction as steps
from pulsar_txn.client.state.prepared import PreparedToken
from pulsar_txn.client.state.transaction import (
    FINAL,
    TRANSITIONS,
    Act,
    Cell,
    Event,
    State,
    TransactionMachine,
    TransactionOptions,
    TransactionState,
)
from pulsar_txn.wire.hot_txn import Checked
from pulsar_txn.wire.ids import TxnAction, TxnId

ID = TxnId(3, 42)
CELLS = [pytest.param(state, event, id=f"{state.name}-{event.name}") for state in State for event in Event]
ENDED = (State.COMMITTED, State.ABORTED, State.ERROR)
ASKED = (Event.COMMIT, Event.ABORT, Event.PREPARE, Event.LEAVE)


# --- the table ----------------------------------------------------------------------------------------------------------


def test_the_table_has_every_cell_and_nothing_else():
    assert set(TRANSITIONS) == {(state, event) for state in State for event in Event}


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_what_does_nothing_or_refuses_changes_no_state(state, event):
    cell = TRANSITIONS[state, event]
    if cell.act in (Act.SKIP, Act.REFUSE, Act.SHARE, Act.DONE, Act.DOOM):
        assert cell.to is state
    assert (cell.act is Act.REFUSE) <= (event in ASKED)
    assert (event in ASKED) <= (cell.act is not Act.SKIP)


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", ENDED)
def test_what_has_ended_stays_as_it_is(state, event):
    assert TRANSITIONS[state, event].to is state


@pytest.mark.parametrize("state", set(State) - set(ENDED))
def test_what_the_coordinator_says_is_believed_in_every_state_that_is_open(state):
    assert TRANSITIONS[state, Event.IS_COMMITTED] == Cell(Act.MOVE, State.COMMITTED)
    assert TRANSITIONS[state, Event.IS_ABORTED] == Cell(Act.MOVE, State.ABORTED)


@pytest.mark.parametrize("state", set(State) - set(ENDED) - {State.COMMITTING, State.COMMIT_UNKNOWN})
def test_an_abort_is_refused_only_where_a_commit_may_have_been_carried_out(state):
    assert TRANSITIONS[state, Event.ABORT].act in (Act.ABORT, Act.SHARE)


def test_every_state_is_reached_and_reaches_an_outcome():
    def reached(start):
        found, todo = {start}, [start]
        while todo:
            state = todo.pop()
            for event in Event:
                if (to := TRANSITIONS[state, event].to) not in found:
                    found.add(to)
                    todo.append(to)
        return found

    assert reached(State.NEW) == set(State)
    for state in set(State) - set(ENDED):
        assert {State.COMMITTED, State.ABORTED} <= reached(state)


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_entering_a_state_tells_whom_it_concerns(state, event):
    """The timer stops, input comes back or is done with, and who waits for the end is told: by what the program sees."""
    machine = made()
    machine.opened(ID, 0.0)
    machine.effects.clear()
    machine.state, machine.usable = state, state in (State.NEW, State.OPEN)
    was = machine.shown
    machine._move(event, 1.0)
    kinds = [type(effect) for effect in machine.effects]
    shown, moved = machine.shown, machine.state is not state
    told = moved and shown in FINAL | {TransactionState.TIMED_OUT, TransactionState.UNKNOWN}
    assert machine.usable == (machine.state in (State.NEW, State.OPEN))
    assert (steps.TellEnd in kinds) == told
    assert (steps.Ended in kinds) == (told and shown is not was)
    assert (steps.ForgetInput in kinds) == (moved and shown is TransactionState.COMMITTED)
    lost = (TransactionState.TIMED_OUT, TransactionState.ABORTING, TransactionState.ABORTED, TransactionState.ERROR)
    assert (steps.BringInputBack in kinds) == (moved and shown in lost)
    assert (steps.StopTimer in kinds) == (moved and state in (State.NEW, State.OPEN) and not machine.usable)
    assert (machine.ended_at == 1.0) == (moved and shown in FINAL)


# --- histories ----------------------------------------------------------------------------------------------------------


def made(*, grouped=False, **options):
    return TransactionMachine(TransactionOptions(timeout=60, checked=Checked("g") if grouped else None, **options), 0.0)


DONE, NEVER_SENT, LOST, UNANSWERED = "done", "never sent", "lost", "unanswered"
FATES = (DONE, NEVER_SENT, LOST, UNANSWERED)
OPEN, PREPARED, COMMITTED, ABORTED = "OPEN", "PREPARED", "COMMITTED", "ABORTED"


class Coordinator:
    """One transaction as its coordinator has it. With `forgets`, ended ones are not found and refusals are not definite."""

    def __init__(self, *, forgets):
        self.status, self.forgets = OPEN, forgets

    def end(self, outcome):
        if self.status in (OPEN, PREPARED):
            self.status = outcome
        elif self.forgets:
            raise TransactionNotFound("no such transaction")
        elif self.status != outcome:
            error = InvalidTransactionStatus(self.status)
            error.definite = True
            raise error

    def prepare(self):
        if self.status == OPEN:
            self.status = PREPARED
        elif self.status != PREPARED:
            self.end(None)


class History:
    """A machine and its coordinator, played step by step."""

    def __init__(self, *, grouped, forgets, shown):
        self.machine = made(grouped=grouped)
        self.machine.opened(ID, 0.0)
        if shown:
            self.machine.show_id()
        self.coordinator = Coordinator(forgets=forgets)
        self.grouped, self.shown, self.now = grouped, shown, 1.0
        self.failed = self.told_aborted = self.told_committed = False

    def play(self, what, fate):  # noqa: C901 - one case for each choice
        self.now += 1.0
        machine = self.machine
        try:
            match what:
                case "commit":
                    self.told(self.drive(machine.commit(self.now, 5.0), fate), commits=True)
                case "abort":
                    self.told(self.drive(machine.abort(self.now, 5.0), fate), commits=False)
                case "prepare":
                    self.drive(machine.prepare(PreparedToken(ID, b"s"), self.now, 5.0), fate)
                case "leave":
                    machine.check_leavable()
                    step = machine.recall(self.now, 5.0)
                    if step is None:
                        machine.leave(self.now, is_opening=False)
                    self.drive(step, fate)
                case "resolve":
                    asked = machine.question(5.0)
                    if asked is not None:
                        left, error = self.request(asked, fate)
                        machine.question_answered(asked, error, self.now, left=left)
                case "close":
                    step = machine.close(AlreadyClosed("closed"), self.now, 5.0, is_opening=False)
                    assert not isinstance(step, steps.EndTxn) or step.action is TxnAction.ABORT
                    self.drive(step, fate)
                case "fail":
                    if machine.usable:
                        machine.operation_starts("t", None, 1)
                        machine.operation_ends("t", None, 1, UnknownError("disk"))
                        self.failed = True
                case "timeout" if self.coordinator.status == OPEN:
                    self.coordinator.status = ABORTED
                case "others commit" | "others abort" if self.others_may:
                    self.coordinator.status = COMMITTED if what == "others commit" else ABORTED
                case "expire":
                    self.now += 100.0
                    machine.expire(self.now)
        except PulsarError:
            pass  # refused, or a question that could not be asked
        machine.effects.clear()
        self.look()

    @property
    def others_may(self):
        status = self.coordinator.status
        return status == PREPARED or (status == OPEN and (self.grouped or self.shown))

    def drive(self, step, fate):
        """The error of the answer."""
        error = None
        while step is not None and not isinstance(step, steps.Answer):
            match step:
                case steps.AwaitOperations():
                    step = self.machine.operations_ended(True, self.now)
                case steps.AwaitId():
                    step = self.machine.id_awaited(self.now)
                case _:
                    left, error = self.request(step, fate)
                    step = self.machine.answered(error, self.now, left=left)
        return None if step is None else step.error

    def request(self, step, fate):
        """Whether it left, and its error."""
        if self.failed and isinstance(step, steps.EndTxn):
            assert step.action is TxnAction.ABORT, "a part of a unit was to be committed"
        if fate == NEVER_SENT:
            return False, OperationTimeout("no connection")
        if fate == LOST:
            return True, ConnectionLost("lost", maybe_processed=True)
        try:
            if isinstance(step, steps.PrepareTxn):
                self.coordinator.prepare()
            else:
                self.coordinator.end(COMMITTED if step.action is TxnAction.COMMIT else ABORTED)
        except PulsarError as error:
            if fate == DONE:
                return True, error
        return True, None if fate == DONE else ConnectionLost("no answer", maybe_processed=True)

    def told(self, error, *, commits):
        if isinstance(error, TransactionAborted):
            self.told_aborted = True
        elif error is None and commits and self.machine.state is State.COMMITTED:
            self.told_committed = True
        if isinstance(error, CommitOutcomeUnknown):
            assert self.machine.shown is TransactionState.UNKNOWN

    def look(self):
        """What the program sees is true, and stays so."""
        shown, status = self.machine.shown, self.coordinator.status
        if shown is TransactionState.COMMITTED or self.told_committed:
            assert status == COMMITTED
        if shown is TransactionState.ABORTED:
            assert status in (ABORTED, OPEN)
        if self.told_aborted and not self.shown:  # who hands the id on hears of its own requests only
            assert status != COMMITTED, "told that it was aborted, and it was committed"
        assert not self.machine.is_on_its_way

    def end(self):
        """Nobody does anything more, and whoever may still decide says commit."""
        if self.others_may and (self.told_aborted or self.machine.shown is TransactionState.ABORTED) and not self.shown:
            self.coordinator.status = COMMITTED
        self.look()


OTHERS = ("timeout", "others commit", "others abort", "expire", "fail", "leave")
REQUESTS = ("commit", "abort", "prepare", "resolve", "close")
CHOICES = [(what, None) for what in OTHERS] + [(what, fate) for what in REQUESTS for fate in FATES]


@pytest.mark.parametrize("shown", [False, True], ids=["unseen", "seen"])
@pytest.mark.parametrize("forgets", [False, True], ids=["remembers", "forgets"])
@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "grouped"])
def test_histories_say_what_was_decided(grouped, forgets, shown):
    """All 17,576 histories of three choices: none says committed of what was aborted, or aborted of what may be committed."""
    reached = set()
    for choices in itertools.product(CHOICES, repeat=3):
        history = History(grouped=grouped, forgets=forgets, shown=shown)
        for what, fate in choices:
            history.play(what, fate)
            reached.add(history.machine.state)
        history.end()
    assert reached >= {State.COMMITTED, State.ABORTED, State.COMMIT_UNKNOWN, State.ABORT_LOST, State.PREPARED}


# --- stories ------------------------------------------------------------------------------------------------------------


def opened(**options):
    machine = made(**options)
    machine.opened(ID, 0.0)
    machine.effects.clear()
    return machine


def test_what_fails_after_it_was_left_is_not_committed():
    machine = opened(grouped=True)
    machine.operation_starts("t", None, 1)
    machine.leave(1.0, is_opening=False)
    assert machine.state is State.LEFT
    machine.operation_ends("t", None, 1, UnknownError("disk"))
    step = machine.commit(2.0, 5.0)
    assert isinstance(step, steps.AwaitOperations)
    step = machine.operations_ended(True, 2.0)
    assert isinstance(step, steps.EndTxn)
    assert step.action is TxnAction.ABORT


def test_what_was_under_way_when_it_was_left_is_waited_for():
    machine = opened(grouped=True)
    machine.operation_starts("t", None, 1)
    machine.leave(1.0, is_opening=False)
    assert isinstance(machine.commit(2.0, 5.0), steps.AwaitOperations)


def test_a_prepare_that_was_given_up_says_nothing_of_the_abort():
    machine = opened()
    prepare = machine.prepare(PreparedToken(ID, b"s"), 1.0, 5.0)
    abort = machine.abort(1.0, 5.0)
    machine.broken(prepare, 1.0)
    assert machine.state is State.ABORTING
    assert machine.step is abort


@pytest.mark.parametrize(
    ("begin", "after"),
    [
        (lambda machine: machine.commit(1.0, 5.0), State.COMMIT_UNKNOWN),
        (lambda machine: machine.abort(1.0, 5.0), State.ABORT_LOST),
        (lambda machine: machine.prepare(PreparedToken(ID, b"s"), 1.0, 5.0), State.PREPARE_LOST),
    ],
    ids=["commit", "abort", "prepare"],
)
def test_an_end_that_breaks_off_leaves_a_state_from_which_it_can_be_asked_for_again(begin, after):
    machine = opened()
    machine.broken(begin(machine), 2.0)
    assert machine.state is after
    assert begin(machine) is not None


def test_an_abort_waits_for_operations_and_leaves_half_of_its_time_to_the_request():
    machine = opened()
    assert machine.abort(10.0, 1.0) == steps.AwaitOperations(10.5, whole=False)


def test_operations_that_are_not_answered_in_time_doom_it():
    machine = opened()
    machine.operation_starts("t", None, 3)
    machine.commit(1.0, 5.0)
    step = machine.operations_ended(False, 6.0)
    assert step.action is TxnAction.ABORT
    answer = machine.answered(None, 6.0, left=True)
    assert "3 operations were not confirmed in time" in str(answer.error)


def test_a_stock_coordinator_that_times_the_transaction_out_is_asked_twice_to_abort_it():
    machine = opened()
    machine.abort(1.0, 5.0)
    machine.operations_ended(True, 1.0)
    refused = InvalidTransactionStatus("ABORTING")
    assert isinstance(machine.answered(refused, 2.0, left=True), steps.EndTxn)
    assert machine.answered(None, 3.0, left=True) == steps.Answer()
    assert machine.state is State.ABORTED


@pytest.mark.parametrize("ask", ["commit", "abort"])
def test_an_end_that_comes_too_late_is_refused_with_a_hint(ask):
    machine = opened()
    machine.commit(1.0, 5.0)
    machine.operations_ended(True, 1.0)
    machine.answered(None, 1.0, left=True)
    with pytest.raises(TransactionStateError, match=f"{ask} of a transaction that is COMMITTED"):
        getattr(machine, ask)(2.0, 5.0)
