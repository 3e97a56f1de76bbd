"""A buffer from a distribution outside the tree is found by its entry point and passes the public suite."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

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


def hosted(half_buffer, disk=None):
    host = BufferHost(half_buffer, disk)
    host.open_txns.update([A, B])
    return host


@pytest.mark.seed_rows("D36")
def test_an_open_transaction_holds_nobody_back(half_buffer):
    host = hosted(half_buffer)
    host.send(A, b"a0")
    host.send_plain(b"p0")
    host.settle()
    assert host.readable() == [b"p0"]
    host.end(A, TxnAction.COMMIT)
    host.settle()
    assert host.readable() == [b"p0", b"a0"]


def test_a_stored_snapshot_trims_what_was_copied_and_keeps_what_is_open(half_buffer):
    host = hosted(half_buffer)
    for payload, txn_id in ((b"a0", A), (b"b0", B), (b"a1", A)):
        host.send(txn_id, payload)
        host.settle()
    host.end(A, TxnAction.COMMIT)
    host.settle()
    host.take_snapshot()
    host.settle()
    assert [log for log, _, _ in host.journal] == ["half", "half", "topic", "topic"]
    again = hosted(half_buffer, host.crashed())
    again.end(B, TxnAction.COMMIT)
    again.settle()
    assert again.readable() == [b"a0", b"a1", b"b0"]


def test_copying_waits_until_the_halves_are_durable_in_their_own_log(half_buffer):
    host = hosted(half_buffer)
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
