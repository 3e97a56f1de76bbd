"""What only some transactions have, through snapshots that are being written, old formats, and states that contradict."""

from __future__ import annotations

from typing import Any

import pytest
from check_host import GROUP, LONG, CheckHost
from insides import state_of
from tc_host import LEDGER, TcHost

from pulsar_txn.tc import Check, FencingCoordinator, TransactionCoordinator, records
from pulsar_txn.tc.outcomes import WAS_COMMITTED, OutcomeWindow
from pulsar_txn.tc.records_pb2 import CoordinatorSnapshot, TransactionMetadataEntry
from pulsar_txn.tc.tokens import EndedTokens
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnStatus


def crowd(host: CheckHost) -> None:
    """Transactions with extras in every state."""
    for status in TxnStatus:
        for number, check in enumerate((None, GROUP, Check("other", after_ms=7))):
            host.in_state(status, check=check, nonce=b"%d %d" % (status, number), timeout_ms=LONG)
    host.join()
    host.passes(6_000)
    ended = host.in_state(TxnStatus.PREPARED)
    host.end(ended, TxnAction.COMMIT)
    host.done(ended)


def test_a_snapshot_that_is_being_written_shows_nothing_of_questions_prepares_and_ends_after_its_moment() -> None:
    host = CheckHost()
    crowd(host)
    before = host.state()
    slices = host.tc.snapshot()
    first = next(iter(slices))
    host.join("other")
    host.passes(30_000)
    for info in host.tc.transactions():
        if info.status is TxnStatus.OPEN:
            host.prepare(info.txn_id, b"later")
        elif info.status is TxnStatus.PREPARED:
            host.end(info.txn_id, TxnAction.COMMIT)
            host.done(info.txn_id)
    assert first + b"".join(slices) == before
    assert host.state() != before


def test_a_restored_state_is_the_state_with_all_that_is_extra() -> None:
    host = CheckHost()
    crowd(host)
    again = TransactionCoordinator(3)
    for part in host.tc.snapshot():
        again.restore(part)
    again.check_invariants()
    assert b"".join(again.snapshot()) == host.state()
    assert again.transactions() == host.tc.transactions()
    mine, theirs = state_of(again).extra, state_of(host.tc).extra
    assert (mine.nonces, mine.marked, mine.weight) == (theirs.nonces, theirs.marked, theirs.weight)
    assert dict(mine.tokens.kept) == dict(theirs.tokens.kept) != {}


@pytest.mark.parametrize("version", [1, 2])
def test_a_snapshot_of_an_older_format_is_read(version: int) -> None:
    old = CoordinatorSnapshot(format_version=version, tc_id=3, next_local_txn_id=1, newest_time=9)
    old.transactions.add(least_bits=0, timeout_ms=5, start_time=4)
    tc = TransactionCoordinator(3)
    tc.restore(old.SerializeToString())
    (info,) = tc.transactions()
    assert (info.modified_ms, info.check_group, info.prepared) == (4, None, False)


def test_a_group_s_name_that_is_no_text_is_a_wire_error() -> None:
    data = records.Writer(3).encode("log", records.new_transaction(0, 5, 1))
    with pytest.raises(WireError, match="not UTF-8"):
        TransactionCoordinator(3).decode("log", data + b"\xda\x06\x01\xff")


def test_what_older_readers_would_misread_has_a_version_that_they_refuse_and_nothing_else_has() -> None:
    host = CheckHost(max_checks=1)
    host.new(nonce=b"once")
    txn_id = host.opened()
    host.join()
    host.passes(6_000)
    host.prepare(txn_id)
    host.end(txn_id, TxnAction.COMMIT)
    host.done(txn_id)
    host.confirm()
    decoded = [TransactionMetadataEntry.FromString(data) for data in host.log]
    entry = TransactionMetadataEntry
    assert [(each.metadata_op, each.record_version) for each in decoded] == [
        (entry.NEW, 1),
        (entry.NEW, 4),
        (entry.ADD_PARTITION, 1),
        (entry.CHECKED, 4),
        (entry.PREPARED, 4),
        (entry.UPDATE, 4),
        (entry.UPDATE, 1),
    ]


def test_fields_of_a_newer_version_survive_in_records_of_ours() -> None:
    host = CheckHost()
    txn_id = host.opened()
    host.join()
    host.passes(6_000)
    host.prepare(txn_id)
    host.end(txn_id, TxnAction.COMMIT)
    tc = TransactionCoordinator(3)
    for index, data in enumerate(host.log):
        newer = data + b"\xc2\x3e\x03new"
        record = tc.decode("log", newer)
        assert tc.encode("log", record) == newer
        tc.apply("log", (LEDGER, index), record)
    assert tc.transactions() == host.tc.transactions()


def test_the_restored_tokens_are_forgotten_a_few_at_a_time() -> None:
    outcomes = OutcomeWindow(4096)
    kept = EndedTokens(outcomes)
    restored = CoordinatorSnapshot()
    for least in range(10):
        restored.ended_tokens.add(least_bits=least, token=b"%d" % least)
    kept.restore(restored)
    outcomes.opened(10, (None, None))
    outcomes.ended(10, WAS_COMMITTED, (None, None), 11)
    kept.ended(10, b"10")
    assert list(kept.kept) == [4, 5, 6, 7, 8, 9, 10]
    for _ in range(2):
        kept.ended(10, b"10")
    assert list(kept.kept) == [10]


@pytest.mark.parametrize(
    ("invariant", "damage"),
    [
        ("S2", lambda state: setattr(state.transactions[1], "extras", None)),
        ("L1", lambda state: state.extra.times.forget(0, None, "orders")),
        ("L1", lambda state: state.extra.times.watch(9, None, state.transactions[0].extras, 5, is_prepared=False)),
        ("S16", lambda state: state.extra.nonces.clear()),
        ("L7", lambda state: setattr(state.extra, "marked", 7)),
        ("S14", lambda state: state.fencing.unfinished.clear()),
    ],
)
def test_a_contradiction_is_named_by_its_invariant(invariant: str, damage: Any) -> None:
    class Host(CheckHost):
        def fresh(self) -> TransactionCoordinator:
            return FencingCoordinator(self.tc_id, **self.options)

    host = Host()
    host.new(check=GROUP, nonce=b"once", identity=("app", 1))
    host.in_state(TxnStatus.PREPARED)
    host.tc.check_invariants()
    damage(state_of(host.tc))
    with pytest.raises(AssertionError, match=f"^{invariant}: "):
        host.tc.check_invariants()


def test_weight_counts_check_data_so_that_snapshots_are_not_asked_for_too_often() -> None:
    host = TcHost()
    host.new(check=Check("g", b"x" * 65_536))
    assert state_of(host.tc).weight >= 256
    host.end(host.tc.transactions()[0].txn_id, TxnAction.ABORT)
    assert state_of(host.tc).weight == 0


def test_a_participant_that_a_question_interrupts_is_kept_in_its_order() -> None:
    host = CheckHost()
    txn_id = host.opened()
    host.join()
    host.passes(6_000)
    host.add(txn_id, Participant("u"))
    host.take_snapshot()
    host.crash()
    (info,) = host.tc.transactions()
    assert [each.topic for each in info.participants] == ["t", "u"]
    assert info.check_count == 1
