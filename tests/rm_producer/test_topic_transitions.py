"""Every state of a transaction meets every event, and does what TRANSITIONS says."""

import pytest
from machine_states import restored, state_of

from pulsar_txn.ledger.machine import Reply, VerifyRegistered
from pulsar_txn.rm_producer import TopicRecord, TopicTransactionBuffer
from pulsar_txn.rm_producer.requests import EndTxnOnPartition, Publish, Verified
from pulsar_txn.rm_producer.transitions import TRANSITIONS, Action, Event, TxnState
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EntryHeader, MarkerType, TxnAction, TxnId

TXN, OTHER = TxnId(3, 50), TxnId(3, 70)
COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT


def marker(txn_id, action, low_watermark=-1):
    kind = MarkerType.TXN_COMMIT if action is COMMIT else MarkerType.TXN_ABORT
    return TopicRecord(EntryHeader("pulsar.txn.marker", -1, low_watermark + 1, 0, txn_id, int(kind)), b"marker")


def data(txn_id):
    return TopicRecord(EntryHeader("p", 1, 1, 0, txn_id), b"data")


class Driven:
    """A buffer that is brought into a state by records only, and then driven by one event."""

    def __init__(self, state):
        self.buffer = TopicTransactionBuffer("t", marker)
        self.buffer.recovered(0)
        self.entry = 0
        if state is TxnState.OVER:
            self.fold(data(OTHER), marker(OTHER, COMMIT, low_watermark=TXN.least))
        if state in (TxnState.ONGOING, TxnState.ABORTED):
            self.fold(data(TXN))
        if state is TxnState.ABORTED:
            self.fold(marker(TXN, ABORT))

    def fold(self, *records):
        for record in records:
            self.buffer.apply("topic", (1, self.entry), record)
            self.buffer.check_invariants()
            self.entry += 1

    def state(self):
        if self.buffer.first_position(TXN) is not None:
            return TxnState.ONGOING
        if self.buffer.is_aborted(TXN):
            return TxnState.ABORTED
        return TxnState.OVER if self.buffer.stats().low_watermarks.get(TXN.most, -1) >= TXN.least else TxnState.UNKNOWN

    def drive(self, event):
        """Carry the event out; gives the action that was seen."""
        publish = Publish("token", TXN, data(TXN))
        match event:
            case Event.DATA_READ | Event.COMMIT_READ | Event.ABORT_READ:
                before = state_of(self.buffer), self.buffer.max_read_position
                self.fold({Event.DATA_READ: data(TXN), Event.COMMIT_READ: marker(TXN, COMMIT)}.get(event, marker(TXN, ABORT)))
                return self.folded(event, before)
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
            return {ServerError.NotAllowedError: Action.REFUSE, ServerError.InvalidTxnStatus: Action.CONTRADICT}[refusal.code]
        self.fold(*(record for _, record in step.records))
        return self.decided(event, step)

    def folded(self, event, before):
        """FOLD or SKIP: what a skipped entry does to the state a plain one does as well."""
        plain = TopicTransactionBuffer("t", marker)
        restored(plain, before[0])
        plain.apply("topic", (1, self.entry - 1), TopicRecord(EntryHeader("", 0, 0, 0)))
        same = state_of(plain) == state_of(self.buffer)
        return Action.SKIP if same and event is not Event.DATA_READ else Action.FOLD

    def decided(self, event, step):
        records = [record for _, record in step.records]
        if event is Event.WATERMARK:
            assert step.effects == (Reply("token"),)
            assert records[-1] == marker(OTHER, COMMIT, TXN.least)
            assert records[:-1] in ([], [marker(TXN, ABORT)])
            return Action.ABORT_HERE if records[:-1] else Action.SKIP
        if not records:
            asked = VerifyRegistered(TXN, Publish("token", TXN, data(TXN)))
            assert step.effects in ((asked,), (Reply("token"),))
            return Action.ASK if step.effects == (asked,) else Action.ANSWER
        assert len(records) == 1
        if records == [data(TXN)]:
            assert step.effects == (Reply("token", position_of=0),)
            return Action.APPEND
        assert step.effects == (Reply("token"),)
        assert records == [marker(TXN, COMMIT if event is Event.END_COMMIT else ABORT)]
        return Action.MARK


def test_the_table_names_every_pair():
    assert set(TRANSITIONS) == {(state, event) for state in TxnState for event in Event}


@pytest.mark.parametrize(("state", "event"), sorted(TRANSITIONS, key=str), ids=str)
def test_the_buffer_does_what_the_table_says(state, event):
    driven = Driven(state)
    assert driven.state() is state
    assert (driven.drive(event), driven.state()) == TRANSITIONS[state, event]


@pytest.mark.parametrize("event", [Event.PUBLISH, Event.VERIFIED, Event.NOT_VERIFIED, Event.END_COMMIT, Event.END_ABORT])
def test_before_recovery_every_request_is_to_be_retried(event):
    driven = Driven(TxnState.UNKNOWN)
    driven.buffer = TopicTransactionBuffer("t", marker)
    with pytest.raises(KeyError) as seen:
        driven.drive(event)
    assert seen.value.args == (ServerError.ServiceNotReady,)
