"""A buffer from a distribution outside the tree is found by its entry point and passes the public suite."""

import subprocess
import sys
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from pulsar_txn.ledger.machine import AskProducer
from pulsar_txn.rm_producer.testing import BufferHost, TransactionBufferSuite
from pulsar_txn.wire.ids import TxnAction, TxnId

EXAMPLE = Path(__file__).parents[1] / "plugin_example"
A, B = TxnId(0, 1), TxnId(0, 2)


@pytest.fixture(scope="module")
def half_buffer(tmp_path_factory):
    """The class that the entry point names, from an installation in a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    quiet = ["-q", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([sys.executable, "-m", "pip", "install", *quiet, "--target", str(target), str(EXAMPLE)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(target))
        patch.delitem(sys.modules, "pulsar_txn_half_buffer", raising=False)  # other tests import it from the tree
        (found,) = entry_points(group="pulsar_txn.transaction_buffers", name="half")
        loaded = found.load()
        assert Path(sys.modules[loaded.__module__].__file__).is_relative_to(target)
        yield loaded


class TestHalfTopicTransactionBuffer(TransactionBufferSuite):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _loaded(cls, half_buffer):
        cls.factory = half_buffer


def checked(half_buffer, disk=None, now_ms=0):
    host = BufferHost(partial(half_buffer, check_after_ms=100, max_checks=2), disk, now_ms=now_ms)
    host.open_txns.update([A, B])
    return host


@pytest.mark.seed_rows("D36")
def test_an_open_transaction_holds_nobody_back(half_buffer):
    host = checked(half_buffer)
    host.send(A, b"a0")
    host.send_plain(b"p0")
    host.settle()
    assert host.readable() == [b"p0"]
    host.end(A, TxnAction.COMMIT)
    host.settle()
    assert host.readable() == [b"p0", b"a0"]


def test_a_silent_producer_is_asked_and_then_its_transaction_aborted(half_buffer):
    host = checked(half_buffer)
    host.send(A, b"a0")
    host.settle()
    position = host.buffer.first_position(A)
    host.advance(99)
    assert host.asked == []
    host.advance(1)
    assert host.asked == [], "asked before it is noted durably"
    host.settle()
    assert host.asked == [AskProducer("producer", A, position, 1)]
    host.answer(host.asked[0], None)

    again = checked(half_buffer, host.crashed(), now_ms=host.now_ms)
    again.advance(100)
    again.settle()
    assert again.asked == [AskProducer("producer", A, position, 2)]
    again.advance(100)
    again.settle()
    assert again.buffer.first_position(A) is None
    assert again.buffer.deadline() is None
    assert again.readable() == []


@pytest.mark.parametrize("action", list(TxnAction))
def test_what_the_producer_answers_is_carried_out_once(half_buffer, action):
    host = checked(half_buffer)
    host.send(A, b"a0")
    host.settle()
    host.advance(100)
    host.settle()
    for _ in range(2):
        host.answer(host.asked[0], action)
        host.settle()
    assert host.readable() == ([b"a0"] if action is TxnAction.COMMIT else [])


def test_a_stored_snapshot_trims_what_was_copied_and_keeps_what_is_open(half_buffer):
    host = checked(half_buffer)
    for payload, txn_id in ((b"a0", A), (b"b0", B), (b"a1", A)):
        host.send(txn_id, payload)
        host.settle()
    host.end(A, TxnAction.COMMIT)
    host.settle()
    host.take_snapshot()
    host.settle()
    assert [log for log, _, _ in host.journal] == ["half", "half", "topic", "topic"]
    again = checked(half_buffer, host.crashed())
    again.end(B, TxnAction.COMMIT)
    again.settle()
    assert again.readable() == [b"a0", b"a1", b"b0"]


def test_copying_waits_until_the_halves_are_durable_in_their_own_log(half_buffer):
    host = checked(half_buffer)
    host.send(A, b"a0")
    host.send(B, b"b0")
    host.settle()
    host.send(A, b"a1")
    host.end(A, TxnAction.COMMIT)
    host.confirm("op")
    host.confirm("topic")
    assert [log for log, _, _ in host.journal] == ["half", "half", "half", "op"]
    host.settle()
    assert host.readable() == [b"a0", b"a1"]
