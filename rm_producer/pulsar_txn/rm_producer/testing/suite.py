"""Promises of every transaction buffer, as test methods; subclass it and set `factory`.

A buffer may hold plain entries back after an open transaction (as Pulsar's does) or not (as half messages do), and
may show transactions in the order of their first entries or of their commits; the suite accepts both. What it does
not accept: an entry of an open or aborted transaction in sight, a committed one lost, doubled or torn, an answer
before what it promises is durable, a late write, an end that does its work twice, and a restart, at any record, with
or without a snapshot, that leads anywhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeAlias

from pulsar_txn.ledger.machine import Reply
from pulsar_txn.rm_producer.requests import PLAIN
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import EARLIEST, TxnAction, TxnId

from .entries import Disk, StoredSnapshot
from .host import TOPIC, BufferHost, Factory

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
A, B, C, D = TxnId(0, 10), TxnId(0, 11), TxnId(1, 10), TxnId(0, 12)

Op: TypeAlias = tuple[str, TxnId | None, Any]

SCRIPT: tuple[Op, ...] = (
    ("plain", None, b"p0"), ("send", A, b"a0"), ("send", B, b"b0"), ("plain", None, b"p1"), ("send", C, b"c0"),
    ("send", A, b"a1"), ("end", B, ABORT), ("send", D, b"d0"), ("plain", None, b"p2"), ("end", A, COMMIT),
    ("end", A, COMMIT), ("send", D, b"d1"), ("end", D, COMMIT), ("plain", None, b"p3"), ("send", C, b"c1"),
    ("end", B, ABORT), ("end", C, ABORT), ("plain", None, b"p4"),
)  # fmt: skip
"""Two coordinators, transactions nested and overlapping, a repeat of each kind of end, plain messages everywhere."""


class TransactionBufferSuite:
    """The suite. `factory(topic, make_marker)` gives a fresh buffer."""

    factory: ClassVar[Any]

    def host(self, disk: Disk | None = None, *open_txns: TxnId, now_ms: int = 0) -> BufferHost:
        """A host with a buffer of `factory`, recovered from `disk`."""
        factory: Factory = type(self).factory  # not self.factory: a function must not become a method
        return BufferHost(factory, disk, open_txns, now_ms=now_ms)

    # ---- visibility

    def test_readers_see_a_transaction_once_it_is_committed_whole_and_in_order(self) -> None:
        host = self.host(None, A)
        for payload in (b"a0", b"a1", b"a2"):
            host.send(A, payload)
            host.settle()
        assert host.readable() == []
        assert host.buffer.first_position(A) is not None
        host.end(A, COMMIT)
        host.settle()
        assert host.readable() == [b"a0", b"a1", b"a2"]
        assert host.buffer.first_position(A) is None

    def test_readers_never_see_an_aborted_transaction(self) -> None:
        host = self.host(None, A, B)
        _run(host, [("send", A, b"a0"), ("send", B, b"b0"), ("send", A, b"a1"), ("end", A, ABORT), ("end", B, COMMIT)])
        assert host.readable() == [b"b0"]

    def test_plain_messages_are_seen_in_order_once_nothing_is_open(self) -> None:
        host = self.host(None, A)
        _run(
            host,
            [("plain", None, b"p0"), ("send", A, b"a0"), ("plain", None, b"p1"), ("end", A, ABORT), ("plain", None, b"p2")],
        )
        assert host.readable() == [b"p0", b"p1", b"p2"]

    def test_transactions_of_different_coordinators_do_not_mix(self) -> None:
        host = self.host(None, A, C)
        _run(host, [("send", A, b"a0"), ("send", C, b"c0"), ("end", C, COMMIT), ("end", A, ABORT)])
        assert host.readable() == [b"c0"]

    # ---- order of records and effects

    def test_a_send_is_answered_with_its_position_and_not_before_it_is_durable(self) -> None:
        host = self.host(None, A)
        token = host.send(A, b"a0")
        host.settle()
        later = host.send(A, b"a1")
        assert later not in host.replies
        host.settle()
        first, second = (_answer(host, asked).value for asked in (token, later))
        assert isinstance(first, tuple)
        assert isinstance(second, tuple)
        assert first < second

    def test_an_end_shows_nothing_and_answers_nothing_before_it_is_durable(self) -> None:
        host = self.host(None, A)
        _run(host, [("send", A, b"a0")])
        token = host.end(A, COMMIT)
        assert host.readable() == []
        assert token not in host.replies
        while token not in host.replies:
            host.confirm()
        assert _answer(host, token).error is None
        assert self.host(host.crashed()).readable() == [b"a0"], "answered, yet not durable"

    def test_what_readers_saw_they_see_again_after_a_crash(self) -> None:
        host = self.host(None, A, B)
        for op in SCRIPT[:10]:
            _do(host, op)
            for log in host.buffer.logs:
                host.confirm(log)
                seen = Counter(host.readable())
                assert not seen - Counter(self.host(host.crashed()).readable())

    def test_a_repeat_of_an_end_in_flight_waits_for_it(self) -> None:
        host = self.host(None, A)
        _run(host, [("send", A, b"a0")])
        first, repeat = host.end(A, COMMIT), host.end(A, COMMIT)
        assert repeat not in host.replies
        while repeat not in host.replies:
            host.confirm()
        assert first in host.replies
        host.settle()
        assert host.readable() == [b"a0"]

    # ---- ends

    def test_a_repeated_end_gets_the_same_answer_and_writes_nothing(self) -> None:
        for action in TxnAction:
            host = self.host(None, A)
            _run(host, [("send", A, b"a0"), ("end", A, action)])
            written = list(host.journal)
            token = host.end(A, action)
            host.settle()
            assert _answer(host, token).error is None
            assert host.journal == written
            assert host.readable() == ([b"a0"] if action is COMMIT else [])

    def test_the_end_of_a_transaction_that_never_wrote_is_answered(self) -> None:
        host = self.host()
        for action in TxnAction:
            token = host.end(A, action)
            host.settle()
            assert _answer(host, token).error is None
        assert host.readable() == []

    def test_the_first_outcome_stays(self) -> None:
        for first, second in ((COMMIT, ABORT), (ABORT, COMMIT)):
            host = self.host(None, A)
            _run(host, [("send", A, b"a0"), ("end", A, first), ("end", A, second)])
            assert host.readable() == ([b"a0"] if first is COMMIT else [])
            assert self.host(host.crashed()).readable() == host.readable()

    def test_a_low_watermark_ends_all_that_is_stale_and_not_the_one_that_ends(self) -> None:
        stale, alive, other = (TxnId(0, 3), TxnId(0, 7)), TxnId(0, 20), TxnId(1, 3)
        host = self.host(None, *stale, alive, other, A)
        for txn_id in (alive, *stale, other, A):
            _run(host, [("send", txn_id, str(txn_id).encode())])
        host.end(A, COMMIT, low_watermark=A.least)
        host.settle()
        assert [host.buffer.first_position(txn_id) for txn_id in stale] == [None, None]
        assert host.buffer.first_position(alive) is not None
        assert host.buffer.first_position(other) is not None
        _run(host, [("end", alive, COMMIT), ("end", other, COMMIT)])
        assert sorted(host.readable()) == sorted(str(txn_id).encode() for txn_id in (alive, other, A))

    # ---- late writes

    def test_a_write_that_the_coordinator_does_not_know_is_refused_and_leaves_no_record(self) -> None:
        host = self.host()
        token = host.send(A, b"a0")
        host.settle()
        assert _answer(host, token).error is ServerError.NotAllowedError
        assert host.journal == []

    def test_a_late_write_is_refused_and_leaves_no_record(self) -> None:
        for action in TxnAction:
            host = self.host(None, A)
            _run(host, [("send", A, b"a0"), ("end", A, action)])
            written = list(host.journal)
            token = host.send(A, b"late")
            host.settle()
            assert _answer(host, token).error is ServerError.NotAllowedError
            assert host.journal == written

    def test_a_write_behind_an_end_in_flight_is_refused(self) -> None:
        host = self.host(None, A)
        _run(host, [("send", A, b"a0")])
        host.end(A, COMMIT)
        token = host.send(A, b"late")
        host.settle()
        assert _answer(host, token).error is ServerError.NotAllowedError
        assert host.readable() == [b"a0"]

    def test_an_end_waits_behind_a_first_write_that_is_being_verified(self) -> None:
        host = self.host(None, A)
        host.send_plain(b"p0")
        token = host.send(A, b"a0")
        host.end(A, COMMIT)
        host.settle()
        refused = _answer(host, token).error is not None
        assert host.readable() == ([b"p0"] if refused else [b"p0", b"a0"])

    # ---- what is sent again

    def test_a_send_that_comes_again_is_answered_and_not_stored_again(self) -> None:
        host = self.host(None, A)
        tokens = [host.send(A, b"a0", sequence_ids=ids) for ids in ((5, 5), (5, 5), (6, 8), (6, 8), (5, 5))]
        host.settle()
        answers = [_answer(host, token) for token in tokens]
        assert [answer.error for answer in answers] == [None] * 5
        assert [answer.value == EARLIEST for answer in answers] == [False, True, False, True, True]
        host.end(A, COMMIT)
        host.settle()
        assert host.readable() == [b"a0", b"a0"]

    def test_another_message_with_an_id_that_is_used_is_refused_and_the_first_one_stays(self) -> None:
        for with_snapshot in (False, True):
            host = self.host(None, A)
            for ids in ((5, 5), (6, 8)):
                host.send(A, b"a%d" % ids[0], sequence_ids=ids)
                host.settle()
            if with_snapshot:
                host.take_snapshot()
                host.settle()
                host = self.host(host.crashed(), A)
            for ids in ((5, 5), (6, 8)):
                token = host.send(A, b"another", sequence_ids=ids)
                host.settle()
                assert _answer(host, token).error is ServerError.NotAllowedError
                token = host.send(A, b"a%d" % ids[0], sequence_ids=ids)
                host.settle()
                assert _answer(host, token).value == EARLIEST, "a repeat is one still"
            for ids in ((7, 7), (5, 6), (6, 9)):
                token = host.send(A, b"another", sequence_ids=ids)
                host.settle()
                assert _answer(host, token).value != EARLIEST, "no client cuts batches anew: nobody has sent this one"
            _run(host, [("end", A, COMMIT)])
            assert host.readable() == [b"a5", b"a6", *[b"another"] * 3]

    def test_ids_between_many_gaps_are_sent_each_once(self) -> None:
        host = self.host(None, A)
        ids = [*range(0, 700, 2), *range(1, 700, 2)]
        for sequence_id in (*ids, *ids):
            token = host.send(A, str(sequence_id).encode(), sequence_ids=(sequence_id, sequence_id))
        host.settle()
        assert _answer(host, token).value == EARLIEST
        _run(host, [("end", A, COMMIT)])
        assert host.readable() == [str(sequence_id).encode() for sequence_id in ids]

    def test_a_repeat_is_answered_when_the_first_one_is_durable(self) -> None:
        host = self.host(None, A)
        _run(host, [("send", A, b"a0")])
        host.send(A, b"a1", sequence_ids=(9, 9))
        repeat = host.send(A, b"a1", sequence_ids=(9, 9))
        assert repeat not in host.replies
        host.settle()
        assert _answer(host, repeat).value == EARLIEST

    def test_what_another_producer_sent_or_another_transaction_has_is_no_repeat(self) -> None:
        host = self.host(None, A, B)
        for txn_id, producer in ((A, "p"), (A, "q"), (B, "p"), (B, "q"), (A, "q")):
            host.send(txn_id, str((txn_id, producer)).encode(), producer=producer, sequence_ids=(3, 3))
            host.settle()
        _run(host, [("end", A, COMMIT), ("end", B, COMMIT)])
        assert len(host.readable()) == len(set(host.readable())) == 4

    def test_ids_that_do_not_go_up_are_sent_each_once(self) -> None:
        host = self.host(None, A)
        ids = (7, 3, 5, 1, 9, 4, 8)
        for sequence_id in (*ids, *ids):
            host.send(A, str(sequence_id).encode(), sequence_ids=(sequence_id, sequence_id))
            host.settle()
        _run(host, [("end", A, COMMIT)])
        assert host.readable() == [str(sequence_id).encode() for sequence_id in ids]

    def test_a_repeat_after_a_crash_is_known_with_and_without_a_snapshot(self) -> None:
        for with_snapshot in (False, True):
            host = self.host(None, A, B)
            for txn_id, producer, first in ((A, "p", 0), (B, "p", 1), (A, "q", 0), (A, "p", 2), (A, "p", 3)):
                host.send(txn_id, b"first", producer=producer, sequence_ids=(first, first))
                host.settle()
            if with_snapshot:
                host.take_snapshot()
                host.settle()
            again = self.host(host.crashed(), A, B)
            assert [again.buffer.last_sequence_id(name) for name in ("p", "q", "r")] == [3, 0, -1]
            for txn_id, producer, first in ((A, "p", 0), (B, "p", 1), (A, "q", 0), (A, "p", 2), (A, "p", 3)):
                token = again.send(txn_id, b"first", producer=producer, sequence_ids=(first, first))
                again.settle()
                assert _answer(again, token).value == EARLIEST
            _run(again, [("end", A, COMMIT), ("end", B, COMMIT)])
            assert again.readable() == [b"first"] * 5
            assert again.buffer.last_sequence_id("p") == -1, "nothing is kept of what has ended"

    # ---- restarts

    def test_nothing_is_read_before_recovery_is_complete(self) -> None:
        buffer = type(self).factory(TOPIC, self.host().make_marker)
        buffer.apply("topic", (1, 0), PLAIN)
        assert buffer.max_read_position == EARLIEST
        buffer.recovered(0)
        assert buffer.max_read_position == (1, 0)

    def test_a_restart_at_every_record_leads_to_the_same_end(self) -> None:
        for ops, disk in self._crashes():
            self._finishes(self.host(disk), ops)

    def test_a_transaction_alone_is_seen_whole_or_not_at_all_wherever_a_crash_cuts_it(self) -> None:
        host = self.host(None, A)
        seen = host.keep_views()
        _run(host, [("send", A, b"a0"), ("send", A, b"a1"), ("send", A, b"a2"), ("end", A, COMMIT)])
        cuts = [self.host(Disk(tuple(host.journal[:records]), None, 1)) for records in range(len(host.journal) + 1)]
        whole = [b"a0", b"a1", b"a2"]
        assert all(each in ([], whole) for each in (*seen, *(cut.readable() for cut in cuts)))
        assert cuts[-1].readable() == whole

    def test_a_restart_with_any_snapshot_equals_one_without(self) -> None:
        for ops, disk, snapshots in self._crashes_with_snapshots():
            expected = _observe(self.host(disk))
            for snapshot in snapshots:
                host = self.host(Disk(disk.journal, snapshot, disk.generation))
                assert _observe(host) == expected
                self._finishes(host, ops)

    def test_a_crash_in_recovery_is_a_restart_like_any_other(self) -> None:
        for ops, disk in self._crashes():
            again = self.host(disk)
            again.confirm()
            self._finishes(self.host(again.crashed()), ops)

    def test_a_snapshot_that_was_asked_for_is_stored_once_it_is_durable(self) -> None:
        host = self.host(None, A, B)
        _run(host, [*SCRIPT[:7]])
        before = host.crashed().snapshot
        host.send_plain(b"p9")
        host.take_snapshot()
        assert host.crashed().snapshot == before
        host.settle()
        disk = host.crashed()
        assert disk.snapshot != before
        assert _observe(self.host(disk)) == _observe(host)

    def _crashes(self) -> Iterator[tuple[tuple[Op, ...], Disk]]:
        for ops, disk, _ in self._crashes_with_snapshots():
            yield ops, disk

    def _crashes_with_snapshots(self) -> Iterator[tuple[tuple[Op, ...], Disk, list[StoredSnapshot]]]:
        """Every prefix of what SCRIPT writes: operations begun until then, the disk, snapshots that it may hold."""
        host = self.host(None, A, B, C, D)
        snapshots = host.keep_snapshots()
        begun: list[int] = []
        for count, op in enumerate(SCRIPT, 1):
            _do(host, op)
            host.settle()
            begun += [count] * (len(host.journal) - len(begun))
        for records in range(len(host.journal) + 1):
            done = SCRIPT[: begun[records - 1] if records else 0]
            yield done, Disk(tuple(host.journal[:records]), None, 1), [taken for at, taken in snapshots if at <= records]

    def _finishes(self, host: BufferHost, ops: Iterable[Op]) -> None:
        """The coordinator drives again the ends it decided, aborts the rest; then readers see what they should."""
        ops = tuple(ops)
        ended = {txn_id: action for kind, txn_id, action in ops if kind == "end"}
        sent = [(txn_id, payload) for kind, txn_id, payload in ops if kind != "end"]
        expected = [payload for txn_id, payload in sent if txn_id is None or ended.get(txn_id) is COMMIT]
        host.settle()
        assert not Counter(host.readable()) - Counter(expected)
        _run(host, [("end", txn_id, ended.get(txn_id, ABORT)) for txn_id in (A, B, C, D)])
        assert sorted(host.readable()) == sorted(expected)
        for txn_id in (None, A, D):
            mine = [payload for owner, payload in sent if owner == txn_id and payload in expected]
            assert [payload for payload in host.readable() if payload in mine] == mine


def _do(host: BufferHost, op: Op) -> None:
    kind, txn_id, value = op
    if txn_id is None:
        host.send_plain(value)
    elif kind == "send":
        host.send(txn_id, value)
    else:
        host.end(txn_id, value)


def _run(host: BufferHost, ops: Iterable[Op]) -> None:
    for op in ops:
        _do(host, op)
        host.settle()


def _answer(host: BufferHost, token: int) -> Reply:
    assert token in host.replies, "never answered"
    return host.replies[token]


def _observe(host: BufferHost) -> tuple[object, ...]:
    """Everything that may be asked of a buffer."""
    buffer, stats = host.buffer, host.buffer.stats()
    firsts = [buffer.first_position(txn_id) for txn_id in (A, B, C, D)]
    aborted = [buffer.is_aborted(txn_id) for txn_id in (A, B, C, D)]
    return buffer.max_read_position, host.readable(), firsts, aborted, stats
