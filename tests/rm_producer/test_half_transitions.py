"""With half messages, too, every state of a transaction meets every event, and does what TRANSITIONS says."""

import pytest
from machine_states import restored, state_of

from pulsar_txn.ledger.machine import Act, AwaitOutcome, CopyEntries, Outcome, PublishMaxRead, Reply, Step, VerifyRegistered
from pulsar_txn.rm_producer import TopicRecord
from pulsar_txn.rm_producer.half import HalfTopicTransactionBuffer, records
from pulsar_txn.rm_producer.half.transitions import TRANSITIONS, Event, TxnState
from pulsar_txn.rm_producer.requests import Copied, EndTxnOnPartition, Publish, TakeSnapshot, Verified, Waiting
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EntryHeader, MarkerType, TxnAction, TxnId

TXN, OTHER = TxnId(3, 50), TxnId(3, 70)
COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
BEGUN = (TxnState.OPEN, TxnState.STALE, TxnState.COMMITTING, TxnState.FINISHING)
DECIDED = (TxnState.COMMITTING, TxnState.FINISHING)
PASSED = (TxnState.STALE, TxnState.FINISHING, TxnState.OVER)


def marker(txn_id, action, low_watermark=-1):
    kind = MarkerType.TXN_COMMIT if action is COMMIT else MarkerType.TXN_ABORT
    return TopicRecord(EntryHeader("pulsar.txn.marker", -1, low_watermark + 1, 0, txn_id, int(kind)), b"marker")


def data(txn_id, sequence_id=1):
    return TopicRecord(EntryHeader("p", sequence_id, sequence_id, 0, txn_id), b"data")


class Driven:
    """A buffer that is brought into a state by records only, and then driven by one event. TXN has two halves."""

    def __init__(self, state):
        self.buffer = HalfTopicTransactionBuffer("t", marker)
        self.buffer.recovered(0)
        self.entry = 0
        if state in BEGUN:
            self.fold(("half", data(TXN)), ("half", data(TXN)))
        if state in DECIDED:
            self.fold(("op", marker(TXN, COMMIT)))
        if state in PASSED:
            self.watermark()

    def watermark(self):
        self.fold(("half", data(OTHER)), ("op", marker(OTHER, ABORT, low_watermark=TXN.least)))

    def fold(self, *read):
        for log, record in read:
            self.buffer.apply(log, (1, self.entry), record)
            self.buffer.check_invariants()
            self.entry += 1

    def state(self):
        """What the views of the buffer say of the transaction."""
        passed = self.buffer.stats().low_watermarks.get(TXN.most, -1) >= TXN.least
        if self.buffer.first_position(TXN) is None:
            return TxnState.OVER if passed else TxnState.UNKNOWN
        again = HalfTopicTransactionBuffer("t", marker)
        copies = [
            effect for effect in restored(again, state_of(self.buffer)).recovered(0).effects if type(effect) is CopyEntries
        ]
        if copies:
            return TxnState.FINISHING if passed else TxnState.COMMITTING
        return TxnState.STALE if passed else TxnState.OPEN

    def drive(self, event):
        """Carry the event out; gives the act that was seen, and the code of a refusal."""
        publish = Publish("token", TXN, data(TXN, 2))
        match event:
            case _ if event.name.endswith("_READ"):
                return self.folded(event), None
            case Event.DUE:
                return self.decided(event, self.buffer.expire(0)), None
            case Event.COPIED:
                first = self.buffer.first_position(TXN) or (1, 0)
                request = Copied("half", "topic", first, data(TXN), TXN)
            case Event.WATERMARK:
                self.fold(("half", data(OTHER)))
                request = EndTxnOnPartition("token", OTHER, ABORT, TXN.least, marker(OTHER, ABORT, TXN.least))
            case Event.END_COMMIT | Event.END_ABORT:
                action = COMMIT if event is Event.END_COMMIT else ABORT
                request = EndTxnOnPartition("token", TXN, action, -1, marker(TXN, action))
            case Event.PUBLISH:
                request = publish
            case _:
                request = Verified(publish, event is Event.VERIFIED)
        try:
            step = self.buffer.decide(request, 0)
        except Refusal as refusal:
            return Act.REFUSE, refusal.code
        return self.decided(event, step), None

    def folded(self, event):
        """FOLD or SKIP: a skipped record changes nothing but the position."""
        if event is Event.LAST_COPY_READ:
            self.fold(("topic", data(TXN)))
        before = state_of(self.buffer)
        if event is Event.WATERMARK_READ:
            self.watermark()
            return Act.FOLD
        log, record = {
            Event.HALF_READ: ("half", data(TXN)),
            Event.COMMIT_READ: ("op", marker(TXN, COMMIT)),
            Event.ABORT_READ: ("op", marker(TXN, ABORT)),
        }.get(event, ("topic", data(TXN)))
        plain = restored(HalfTopicTransactionBuffer("t", marker), before)
        plain.recovered(0)
        plain.apply(log, (1, self.entry), TopicRecord(EntryHeader("", 0, 0, 0)))
        self.fold((log, record))
        return Act.SKIP if state_of(plain) == state_of(self.buffer) else Act.FOLD

    def decided(self, event, step):
        halves = self.buffer.first_position(TXN)
        span = None if halves is None else (halves, (1, halves[1] + 1), 2)
        self.fold(*step.records)
        written = [(log, record.header) for log, record in step.records]
        if event is Event.WATERMARK:
            assert step.effects == (Reply("token"),)
            assert written[-1] == ("op", marker(OTHER, ABORT, TXN.least).header)
            written = written[:-1]
        if event in (Event.WATERMARK, Event.DUE):
            assert written in ([], [("op", marker(TXN, ABORT).header)])
            return Act.WRITE if written else Act.SKIP
        if not written:
            asked = (VerifyRegistered(TXN, Publish("token", TXN, data(TXN, 2))),)
            return {asked: Act.ASK, (Reply("token"),): Act.ANSWER, (AwaitOutcome("token", TXN),): Act.JOIN, (): Act.SKIP}[
                step.effects
            ]
        ((log, record),) = step.records
        if log == "half":
            assert (record, step.effects) == (data(TXN, 2), (Reply("token", position_of=0),))
        elif log == "topic":
            assert (record, step.effects) == (data(TXN), ())
        else:
            assert records.span(record) == span
            assert record.header == marker(TXN, COMMIT if event is Event.END_COMMIT else ABORT).header
            copies = CopyEntries("half", "topic", ((1, 0), (1, 1)), TXN)
            assert step.effects == ((AwaitOutcome("token", TXN), copies) if event is Event.END_COMMIT else (Reply("token"),))
        return Act.WRITE


def test_the_table_names_every_pair():
    assert set(TRANSITIONS) == {(state, event) for state in TxnState for event in Event}


@pytest.mark.parametrize("state", TxnState, ids=str)
def test_a_send_that_is_verified_before_it_asks_is_decided_as_one_that_need_not_ask(state):
    cell = TRANSITIONS[state, Event.PUBLISH]
    assert cell.act is Act.ASK or cell == TRANSITIONS[state, Event.VERIFIED]


@pytest.mark.seed_rows("A18", "A19", "A24")
@pytest.mark.parametrize(("state", "event"), sorted(TRANSITIONS, key=str), ids=str)
def test_the_buffer_does_what_the_table_says(state, event):
    driven = Driven(state)
    assert driven.state() is state
    assert driven.buffer.state_of(TXN) is state
    act, code = driven.drive(event)
    assert (act, driven.state(), code) == TRANSITIONS[state, event]
    assert driven.buffer.state_of(TXN) is driven.state()


@pytest.mark.parametrize("event", [Event.PUBLISH, Event.VERIFIED, Event.NOT_VERIFIED, Event.END_COMMIT, Event.COPIED])
def test_before_recovery_every_request_is_to_be_retried(event):
    driven = Driven(TxnState.UNKNOWN)
    driven.buffer = HalfTopicTransactionBuffer("t", marker)
    assert driven.drive(event) == (Act.REFUSE, ServerError.ServiceNotReady)


def test_a_stale_transaction_is_due_at_once_and_after_a_restart():
    driven = Driven(TxnState.STALE)
    assert driven.buffer.deadline() == 0
    again = restored(HalfTopicTransactionBuffer("t", marker), state_of(driven.buffer))
    assert again.recovered(0) == Step(effects=(PublishMaxRead(again.max_read_position),))
    assert again.deadline() == 0
    assert [log for log, _ in again.expire(0).records] == ["op"]
    assert Driven(TxnState.OPEN).buffer.deadline() is None


@pytest.mark.seed_rows("A21", "A25")
def test_transactions_are_copied_one_after_the_other_in_the_order_of_their_commits():
    driven = Driven(TxnState.COMMITTING)
    driven.fold(("half", data(OTHER)))
    end = driven.buffer.decide(EndTxnOnPartition("later", OTHER, COMMIT, -1, marker(OTHER, COMMIT)), 0)
    assert end.effects == (AwaitOutcome("later", OTHER), CopyEntries("half", "topic", ((1, 3),), OTHER))
    driven.fold(*end.records)
    for place, effects in (((1, 0), ()), ((1, 1), (Outcome(TXN, COMMIT),))):
        early = driven.buffer.decide(Copied("half", "topic", driven.buffer.first_position(OTHER), data(OTHER), OTHER), 0)
        assert early == Step(), "its turn has not come"
        assert driven.buffer.decide(Copied("half", "topic", (9, 9), data(TXN), TXN), 0) == Step(), "not the next one"
        step = driven.buffer.decide(Copied("half", "topic", place, data(TXN), TXN), 0)
        assert step.effects == effects
        driven.fold(*step.records)
    assert driven.buffer.first_position(TXN) is None
    step = driven.buffer.decide(Copied("half", "topic", (1, 3), data(OTHER), OTHER), 0)
    assert step.effects == (Outcome(OTHER, COMMIT),), "although nothing of the first one is durable"


def test_after_a_restart_the_order_of_commits_goes_on_and_not_that_of_first_halves():
    driven = Driven(TxnState.OPEN)
    driven.fold(("half", data(OTHER)), ("op", marker(OTHER, COMMIT)), ("op", marker(TXN, COMMIT)))
    again = restored(HalfTopicTransactionBuffer("t", marker), state_of(driven.buffer))
    copies = [effect.txn_id for effect in again.recovered(0).effects if type(effect) is CopyEntries]
    assert copies == [OTHER, TXN]


@pytest.mark.parametrize("action", list(TxnAction))
def test_a_watermark_that_covers_the_transaction_that_ends_does_not_abort_it(action):
    driven = Driven(TxnState.OPEN)
    step = driven.buffer.decide(EndTxnOnPartition("token", TXN, action, TXN.least, marker(TXN, action, TXN.least)), 0)
    assert [record.header for _, record in step.records] == [marker(TXN, action, TXN.least).header]


@pytest.mark.parametrize("state", DECIDED, ids=str)
def test_an_abort_of_what_is_being_committed_contradicts_the_decision(state):
    assert Driven(state).drive(Event.END_ABORT) == (Act.REFUSE, ServerError.InvalidTxnStatus)


@pytest.mark.seed_rows("A24")
@pytest.mark.parametrize("state", [*DECIDED, TxnState.STALE, TxnState.OVER], ids=str)
@pytest.mark.parametrize("event", [Event.PUBLISH, Event.VERIFIED])
def test_nothing_is_written_in_a_transaction_that_was_decided(state, event):
    assert Driven(state).drive(event) == (Act.REFUSE, ServerError.NotAllowedError)


def test_positions_of_halves_are_made_while_they_are_walked():
    buffer = HalfTopicTransactionBuffer("t", marker)
    buffer.recovered(0)
    for entry in range(1000):
        buffer.apply("half", (1, entry), data(TXN))
    step = buffer.decide(EndTxnOnPartition("token", TXN, COMMIT, -1, marker(TXN, COMMIT)), 0)
    (copy,) = (effect for effect in step.effects if type(effect) is CopyEntries)
    assert type(copy.positions) is not tuple
    assert copy.positions == tuple((1, entry) for entry in range(1000))
    assert copy.positions != tuple((1, entry) for entry in range(999))
    assert (copy.positions[-1], copy.positions[2:4]) == ((1, 999), [(1, 2), (1, 3)])
    buffer.apply("op", (1, 0), step.records[0][1])
    for entry, position in enumerate(copy.positions):
        step = buffer.decide(Copied("half", "topic", position, data(TXN), TXN), 0)
        for log, record in step.records:
            buffer.apply(log, (1, entry), record)
    assert buffer.stats().committed_txn_count == 1


@pytest.mark.parametrize(
    "header", [EntryHeader("p", 1, 1, 0, OTHER), EntryHeader("p", 1, 1, 0, TXN, 21), EntryHeader("p", 1, 1, 0)]
)
def test_an_entry_that_names_something_else_is_refused(header):
    driven = Driven(TxnState.OPEN)
    with pytest.raises(Refusal) as refused:
        driven.buffer.decide(Publish("token", TXN, TopicRecord(header, b"")), 0)
    assert refused.value.code is ServerError.NotAllowedError


def test_snapshots_come_with_every_interval_of_ends():
    with pytest.raises(ValueError, match="at least 1"):
        HalfTopicTransactionBuffer("t", marker, snapshot_interval_transactions=0)
    buffer = HalfTopicTransactionBuffer("t", marker, snapshot_interval_transactions=2)
    buffer.recovered(0)
    due = []
    for least in range(6):
        txn_id = TxnId(0, least)
        buffer.apply("half", (1, least), data(txn_id))
        step = buffer.decide(EndTxnOnPartition("token", txn_id, ABORT, -1, marker(txn_id, ABORT)), 0)
        due.append(len(step.effects) == 2)
        buffer.apply("op", (1, least), step.records[0][1])
    assert due == [False, True, False, True, False, True]
    assert [type(effect).__name__ for effect in buffer.decide(TakeSnapshot(), 0).effects] == ["WriteSnapshot"]


def test_what_waits_begins_with_the_oldest_transaction_that_is_not_whole_in_the_topic():
    buffer = HalfTopicTransactionBuffer("t", marker)
    buffer.recovered(0)
    seen = []
    for log, entry_id, record in (
        ("half", 0, data(TXN)),
        ("half", 1, data(OTHER)),
        ("op", 0, marker(TXN, ABORT)),
        ("op", 1, marker(OTHER, ABORT)),
    ):
        buffer.apply(log, (1, entry_id), record)
        seen.append(buffer.waiting())
    assert seen == [Waiting((1, 0), (1, 0)), Waiting((1, 1), (1, 0)), Waiting((1, 1), (1, 1)), Waiting((1, 1), None)]
