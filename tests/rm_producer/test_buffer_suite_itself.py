"""The public suite notices buffers that break its promises, and its host what no buffer may do."""

import pytest

from pulsar_txn.ledger.machine import MoveCursor, Reply, Step, WriteSnapshot
from pulsar_txn.rm_producer import TopicTransactionBuffer
from pulsar_txn.rm_producer.requests import Copied, EndTxnOnPartition, Publish, Verified
from pulsar_txn.rm_producer.testing import BufferHost, TransactionBufferSuite
from pulsar_txn.wire.ids import EARLIEST, TxnAction, TxnId

A = TxnId(0, 1)


class ShowsAborted(TopicTransactionBuffer):
    def is_hidden(self, position, header):
        return header.is_marker


class ReadyAtOnce(TopicTransactionBuffer):
    @property
    def max_read_position(self):
        return self._max_read


class ShowsOpen(TopicTransactionBuffer):
    @property
    def max_read_position(self):
        return self._last if self._ready else EARLIEST


class ForgetsAbortsInSnapshots(TopicTransactionBuffer):
    def restore(self, part):
        super().restore(part)
        for txn_id in list(self._aborted):
            del self._aborted[txn_id]


class RefusesRepeats(TopicTransactionBuffer):
    def decide(self, request, now_ms):
        if isinstance(request, EndTxnOnPartition) and request.txn_id not in self._ongoing:
            return Step((("topic", request.marker),), (Reply(request.token),))
        return super().decide(request, now_ms)


class AsksNobody(TopicTransactionBuffer):
    def decide(self, request, now_ms):
        return super().decide(Verified(request, registered=True) if isinstance(request, Publish) else request, now_ms)


class ChangesStateInDecide(TopicTransactionBuffer):
    def decide(self, request, now_ms):
        self._committed_count += 1
        return super().decide(request, now_ms)


BROKEN = [ShowsAborted, ReadyAtOnce, ShowsOpen, ForgetsAbortsInSnapshots, RefusesRepeats, AsksNobody, ChangesStateInDecide]


@pytest.mark.parametrize("broken", BROKEN)
def test_the_suite_notices(broken):
    suite = type("Suite", (TransactionBufferSuite,), {"factory": broken})()
    promises = [getattr(suite, name) for name in dir(suite) if name.startswith("test_")]
    with pytest.raises(AssertionError):
        for promise in promises:
            promise()


class Scripted(TopicTransactionBuffer):
    """Does what a test tells it in `step` when asked for anything."""

    step = Step()
    due = None

    def decide(self, request, now_ms):
        return self.step

    def deadline(self):
        return self.due

    def expire(self, now_ms):
        return self.step


def scripted(step, due=None):
    host = BufferHost(Scripted)
    host.buffer.step, host.buffer.due = step, due
    return host


def test_the_host_notices_a_deadline_that_never_passes():
    with pytest.raises(AssertionError, match="H6"):
        scripted(Step(), due=5).advance(5)


def test_the_host_lets_a_deadline_in_the_future_alone():
    scripted(Step(effects=(MoveCursor(),)), due=5).advance(4)


def test_the_host_notices_effects_of_other_machines():
    with pytest.raises(AssertionError, match="not an effect"):
        scripted(Step(effects=(MoveCursor(),))).take_snapshot()


def test_the_host_notices_a_second_answer():
    host = scripted(Step(effects=(Reply(7), Reply(7))))
    with pytest.raises(AssertionError, match="twice"):
        host.take_snapshot()


def test_trailing_records_hold_no_effect_back():
    host = scripted(Step(effects=(Reply(7),), trailing=(("topic", host_marker()),)))
    host.send_plain(b"p0")
    host.take_snapshot()
    assert 7 in host.replies
    assert len(host.journal) == 2


def test_a_snapshot_waits_for_what_it_covers():
    host = scripted(Step(effects=(WriteSnapshot("topic"),), trailing=(("topic", host_marker()),)))
    host.take_snapshot()
    assert host.crashed().snapshot is None
    host.confirm()
    assert host.crashed().snapshot == host.covered()


def test_a_refusal_that_nobody_waits_for_is_noticed():
    with pytest.raises(AssertionError, match="nobody waits"):
        BufferHost(TopicTransactionBuffer).request(Copied("half", "topic", (1, 0), host_marker()))


def host_marker():
    return BufferHost(TopicTransactionBuffer).make_marker(A, TxnAction.ABORT)


def test_some_of_what_was_not_confirmed_may_survive():
    host = BufferHost(TopicTransactionBuffer)
    for payload in (b"p0", b"p1", b"p2"):
        host.send_plain(payload)
    assert [len(host.crashed(lucky).journal) for lucky in (0, 2, 9)] == [0, 2, 3]
    assert BufferHost(TopicTransactionBuffer, host.crashed(2)).readable() == [b"p0", b"p1"]
