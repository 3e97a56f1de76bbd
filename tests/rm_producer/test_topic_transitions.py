"""Every state of a transaction meets every event, and does what TRANSITIONS says."""

import pytest
from machine_states import restored, state_of

from pulsar_txn.ledger.machine import Act, PublishMaxRead, Reply, Step, VerifyRegistered
from pulsar_txn.rm_producer import TopicRecord, TopicTransactionBuffer
from pulsar_txn.rm_producer.requests import EndTxnOnPartition, Publish, Verified
from pulsar_txn.rm_producer.transitions import TRANSITIONS, Event, TxnState
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EntryHeader, MarkerType, TxnAction, TxnId

TXN, OTHER = TxnId(3, 50), TxnId(3, 70)
COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT


def marker(txn_id, action, low_watermark=-1):
    kind = MarkerType.TXN_COMMIT if action is COMMIT else MarkerType.TXN_ABORT
    return TopicRecord(EntryHeader("pulsar.txn.marker", -1, low_watermark + 1, 0, txn_id, int(kind)), b"marker")


def data(txn_id, sequence_id=1):
    return TopicRecord(EntryHeader("p", sequence_id, sequence_id, 0, txn_id), b"data")


class Driven:
    """A buffer that is brought into a state by records only, and then driven by one event."""

    def __init__(self, state):
        self.buffer = TopicTransactionBuffer("t", marker)
        self.buffer.recovered(0)
        self.entry = 0
        if state is TxnState.OVER:
            self.fold(data(OTHER), marker(OTHER, COMMIT, low_watermark=TXN.least))
        if state in (TxnState.ONGOING, TxnState.STALE, TxnState.ABORTED):
            self.fold(data(TXN))
        if state is TxnState.STALE:
            self.fold(data(OTHER), marker(OTHER, COMMIT, low_watermark=TXN.least))
        if state is TxnState.ABORTED:
            self.fold(marker(TXN, ABORT))

    def fold(self, *records):
        for record in records:
            self.buffer.apply("topic", (1, self.entry), record)
            self.buffer.check_invariants()
            self.entry += 1

    def state(self):
        """What the views of the buffer say of the transaction."""
        covered = self.buffer.stats().low_watermarks.get(TXN.most, -1) >= TXN.least
        if self.buffer.first_position(TXN) is not None:
            return TxnState.STALE if covered else TxnState.ONGOING
        if self.buffer.is_aborted(TXN):
            return TxnState.ABORTED
        return TxnState.OVER if covered else TxnState.UNKNOWN

    def drive(self, event):
        """Carry the event out; gives the act that was seen, and the code of a refusal."""
        publish = Publish("token", TXN, data(TXN, 2))
        match event:
            case Event.DATA_READ | Event.COMMIT_READ | Event.ABORT_READ | Event.WATERMARK_READ:
                return self.folded(event), None
            case Event.DUE:
                return self.decided(event, self.buffer.expire(0)), None
            case Event.WATERMARK:
                self.fold(data(OTHER))
                request = EndTxnOnPartition("token", OTHER, COMMIT, TXN.least, marker(OTHER, COMMIT, TXN.least))
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
        """FOLD or SKIP: what a skipped entry does to the state a plain one does as well."""
        before, first = state_of(self.buffer), self.entry
        if event is Event.WATERMARK_READ:
            self.fold(data(OTHER), marker(OTHER, COMMIT, low_watermark=TXN.least))
            return Act.FOLD
        self.fold({Event.DATA_READ: data(TXN), Event.COMMIT_READ: marker(TXN, COMMIT)}.get(event, marker(TXN, ABORT)))
        plain = TopicTransactionBuffer("t", marker)
        restored(plain, before)
        plain.apply("topic", (1, first), TopicRecord(EntryHeader("", 0, 0, 0)))
        same = state_of(plain) == state_of(self.buffer)
        return Act.SKIP if same and event is not Event.DATA_READ else Act.FOLD

    def decided(self, event, step):
        self.fold(*(record for _, record in step.records))
        records = [record for _, record in step.records]
        if event is Event.WATERMARK:
            assert step.effects == (Reply("token"),)
            assert records[-1] == marker(OTHER, COMMIT, TXN.least)
            assert records[:-1] in ([], [marker(TXN, ABORT)])
            return Act.WRITE if records[:-1] else Act.SKIP
        if event is Event.DUE:
            assert records in ([], [marker(TXN, ABORT)])
            assert step.effects == ()
            return Act.WRITE if records else Act.SKIP
        if not records:
            asked = VerifyRegistered(TXN, Publish("token", TXN, data(TXN, 2)))
            assert step.effects in ((asked,), (Reply("token"),))
            return Act.ASK if step.effects == (asked,) else Act.ANSWER
        if records == [data(TXN, 2)]:
            assert step.effects == (Reply("token", position_of=0),)
        else:
            assert step.effects == (Reply("token"),)
            assert records == [marker(TXN, COMMIT if event is Event.END_COMMIT else ABORT)]
        return Act.WRITE


def test_the_table_names_every_pair():
    assert set(TRANSITIONS) == {(state, event) for state in TxnState for event in Event}


@pytest.mark.parametrize("state", TxnState, ids=str)
def test_a_send_that_is_verified_before_it_asks_is_decided_as_one_that_need_not_ask(state):
    cell = TRANSITIONS[state, Event.PUBLISH]
    assert cell.act is Act.ASK or cell == TRANSITIONS[state, Event.VERIFIED]


@pytest.mark.parametrize(("state", "event"), sorted(TRANSITIONS, key=str), ids=str)
def test_the_buffer_does_what_the_table_says(state, event):
    driven = Driven(state)
    assert driven.state() is state
    assert driven.buffer.state_of(TXN) is state
    act, code = driven.drive(event)
    assert (act, driven.state(), code) == TRANSITIONS[state, event]


@pytest.mark.parametrize("event", [Event.PUBLISH, Event.VERIFIED, Event.NOT_VERIFIED, Event.END_COMMIT, Event.END_ABORT])
def test_before_recovery_every_request_is_to_be_retried(event):
    driven = Driven(TxnState.UNKNOWN)
    driven.buffer = TopicTransactionBuffer("t", marker)
    assert driven.drive(event) == (Act.REFUSE, ServerError.ServiceNotReady)


def test_a_commit_of_what_was_aborted_here_contradicts_what_readers_were_told():
    driven = Driven(TxnState.ABORTED)
    assert driven.drive(Event.END_COMMIT) == (Act.REFUSE, ServerError.InvalidTxnStatus)


@pytest.mark.parametrize("state", [TxnState.ABORTED, TxnState.STALE, TxnState.OVER])
@pytest.mark.parametrize("event", [Event.PUBLISH, Event.VERIFIED])
def test_nothing_is_written_in_a_transaction_that_ended_here(state, event):
    assert Driven(state).drive(event) == (Act.REFUSE, ServerError.NotAllowedError)


def test_a_stale_transaction_is_due_at_once_and_after_a_restart():
    driven = Driven(TxnState.STALE)
    assert driven.buffer.deadline() == 0
    again = TopicTransactionBuffer("t", marker)
    restored(again, state_of(driven.buffer))
    assert again.recovered(0) == Step((("topic", marker(TXN, ABORT)),), (PublishMaxRead(again.max_read_position),))
