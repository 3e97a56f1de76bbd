"""Single promises of the handle: conflicts at the cursor, whole entries and their indexes, resets, questions, snapshots."""

from __future__ import annotations

import pytest
from insides import state_of
from keeping import kept_by

from pulsar_txn.ledger.machine import NOTHING, MoveCursor, Redeliver, Reply, Step, WriteSnapshot
from pulsar_txn.rm_pending_ack import CursorStored, PendingAckHandle, PlainAcked, State, held
from pulsar_txn.rm_pending_ack.ack_sets import Bits
from pulsar_txn.rm_pending_ack.held import ITEM_BYTES, KEY_BYTES, Held
from pulsar_txn.rm_pending_ack.testing import (
    CONFLICT,
    FIRST,
    LOG_LEDGER,
    SECOND,
    SIZES,
    ListedCursor,
    Subscription,
    abort,
    ack,
    ack_up_to,
    at,
    commit,
    end,
    indexes,
    messages_up_to,
    promise,
    whole,
)
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import WHOLE_ENTRY, Position, TxnAction, TxnId


@pytest.fixture
def host() -> Subscription:
    return Subscription(lambda *names: PendingAckHandle(*names, stored_every=1), list(SIZES))


def handle_of(host: Subscription) -> PendingAckHandle:
    assert isinstance(host.machine, PendingAckHandle)
    return host.machine


def effects(step: Step[object] | Refusal) -> tuple[object, ...]:
    assert isinstance(step, Step), step
    return step.effects


# -- acks


@pytest.mark.parametrize("item", [(at(1), 0b1, 0), (at(1), 0, 4), (at(1), 0b10000, 4), (at(1), 1, -3)])
def test_ack_that_names_no_message_is_not_allowed(host: Subscription, item: tuple[Position, Bits, int]) -> None:
    assert host.answer(ack(FIRST, item)) is ServerError.NotAllowedError
    assert host.answer(ack_up_to(FIRST, item)) is ServerError.NotAllowedError


def test_bits_beyond_the_batch_are_not_held(host: Subscription) -> None:
    assert host.answer(ack(FIRST, (at(1), 0b110001, 4))) is None
    assert host.machine.pending(at(1)) == 1


def test_ack_of_nothing_is_answered_and_writes_nothing(host: Subscription) -> None:
    assert effects(host.send(ack(FIRST))) == (Reply(FIRST),)
    assert not host.entries


def test_one_request_may_name_an_entry_twice(host: Subscription) -> None:
    assert host.answer(ack(FIRST, indexes(1, 0), indexes(1, 0, 2), whole(2), indexes(2, 1))) is None
    assert host.machine.pending(at(1)) == 0b101
    assert host.machine.pending(at(2)) == WHOLE_ENTRY


def test_index_that_the_cursor_has_conflicts_and_so_does_the_whole_entry(host: Subscription) -> None:
    host.plain_ack([indexes(1, 0)])
    assert host.answer(ack(FIRST, indexes(1, 0, 1))) is CONFLICT
    assert host.answer(ack(FIRST, whole(1))) is CONFLICT
    assert host.answer(ack(FIRST, indexes(1, 1, 2, 3))) is None
    assert host.answer(commit(FIRST)) is None
    assert host.cursor.is_deleted(at(1))


@pytest.mark.parametrize("stored", [False, True], ids=["in flight", "stored"])
def test_whole_entry_over_a_committed_index_conflicts_whatever_the_cursor_has(host: Subscription, stored: bool) -> None:
    host.send(ack(FIRST, indexes(1, 0)))
    host.send(commit(FIRST))
    if stored:
        host.confirm()
        host.store()
    assert isinstance(host.send(ack(SECOND, whole(1))), Refusal), "index 0 would be acknowledged by both, and both commit"
    assert isinstance(host.send(ack(SECOND, indexes(1, 1, 2, 3))), Step)
    host.send(commit(SECOND))
    host.confirm()
    assert host.cursor.acked == {(1, 0), (1, 1), (1, 2), (1, 3)}


def test_whole_entry_over_committed_and_held_indexes_conflicts(host: Subscription) -> None:
    host.send(ack(FIRST, indexes(1, 0)))
    host.send(ack(SECOND, indexes(1, 1)))
    host.send(commit(FIRST))
    assert host.answer(ack(TxnId(0, 3), whole(1))) is CONFLICT


@pytest.mark.parametrize("stored", [False, True], ids=["in flight", "stored"])
def test_acks_behind_a_committed_cumulative_ack_conflict(host: Subscription, stored: bool) -> None:
    host.send(ack_up_to(FIRST, indexes(1, 0, 1)))
    host.send(commit(FIRST))
    if stored:
        host.confirm()
        host.store()
    third = TxnId(0, 3)
    for late in (
        ack(third, whole(0)),
        ack(third, indexes(1, 1)),
        ack_up_to(third, whole(0)),
        ack_up_to(third, indexes(1, 0, 1)),
    ):
        refused = host.send(late)
        assert isinstance(refused, Refusal)
        assert refused.code is CONFLICT
    for good in (ack(SECOND, indexes(1, 2)), ack(SECOND, whole(3)), ack_up_to(SECOND, whole(2))):
        assert isinstance(host.send(good), Step)
    host.send(abort(SECOND))
    assert isinstance(host.send(ack(third, whole(1))), Refusal), "a whole entry of which indexes are acknowledged"
    assert isinstance(host.send(ack(third, indexes(1, 2, 3))), Step)


def test_cumulative_ack_up_to_the_last_index_is_one_of_the_whole_entry(host: Subscription) -> None:
    assert host.answer(ack_up_to(FIRST, indexes(1, 0, 1, 2, 3))) is None
    assert host.answer(ack_up_to(FIRST, whole(1))) is CONFLICT, "it is not ahead"
    assert len(host.entries) == 1
    move, _ = effects(host.send(commit(FIRST)))
    assert move == MoveCursor((), (at(1), None, 4), 1)


def test_cumulative_ack_leaves_the_rest_of_its_batch(host: Subscription) -> None:
    host.send(ack_up_to(FIRST, indexes(1, 0, 1)))
    move, _ = effects(host.send(commit(FIRST)))
    assert move == MoveCursor((), (at(1), 0b1100, 4), 1)


def test_cumulative_ack_of_the_entry_behind_the_cursor_needs_something_new(host: Subscription) -> None:
    host.plain_ack([whole(0), indexes(1, 0, 1)])
    assert host.answer(ack_up_to(FIRST, indexes(1, 0, 1))) is CONFLICT
    assert host.answer(ack_up_to(FIRST, indexes(1, 0, 1, 2))) is None
    fresh = Subscription(PendingAckHandle, list(SIZES))
    fresh.plain_ack([whole(0)])
    assert fresh.answer(ack_up_to(FIRST, indexes(1, 0))) is None


def test_a_cumulative_ack_may_cover_what_its_transaction_holds_and_not_end_with_it(host: Subscription) -> None:
    for request in (
        ack(FIRST, whole(0)),
        ack_up_to(FIRST, whole(1)),
        ack(FIRST, indexes(2, 0, 2)),
        ack_up_to(FIRST, indexes(2, 0, 1)),
    ):
        assert host.answer(request) is None
    for refused in (ack(FIRST, whole(0)), ack_up_to(FIRST, indexes(2, 0, 1, 2))):
        assert host.answer(refused) is CONFLICT
    assert host.answer(ack_up_to(FIRST, whole(2))) is None, "its last message is not held"
    assert host.answer(ack(FIRST, whole(3), (at(4), None, 0))) is None
    assert host.answer(ack_up_to(FIRST, (at(4), None, 0))) is CONFLICT
    assert host.answer(commit(FIRST)) is None
    assert host.cursor.acked == messages_up_to(SIZES, whole(2)) | {(3, 0), (4, 0)}


def test_keys_are_counted_and_end_with_their_transaction(host: Subscription) -> None:
    state = state_of(handle_of(host))
    assert host.answer(ack(FIRST, whole(0), key=(7, 1))) is None
    assert host.answer(ack_up_to(FIRST, indexes(1, 0), key=(7, 2))) is None
    assert state.bytes == ITEM_BYTES + 2 * KEY_BYTES
    assert host.answer(commit(FIRST)) is None
    host.store()
    host.machine.check_invariants()
    assert state.bytes == 0
    full = Subscription(lambda *names: PendingAckHandle(*names, max_transaction_bytes=2 * KEY_BYTES), list(SIZES))
    for number in range(2):
        assert full.answer(ack_up_to(FIRST, whole(number), key=(7, number))) is None
    assert full.answer(ack_up_to(FIRST, whole(2), key=(7, 2))) is ServerError.NotAllowedError
    assert full.answer(ack_up_to(FIRST, whole(1), key=(7, 1))) is None, "a repeat takes no room"


def test_consuming_one_transaction_after_the_other_never_conflicts(host: Subscription) -> None:
    for least, request in enumerate([whole(0), indexes(1, 0, 1), whole(1), indexes(2, 0), whole(3)], 1):
        assert host.answer(ack_up_to(TxnId(0, least), request)) is None
        assert host.answer(end(TxnId(0, least), TxnAction.COMMIT, least - 1)) is None
    assert host.answer(ack(TxnId(0, 9), whole(4))) is None
    assert host.answer(commit(TxnId(0, 9))) is None
    assert host.cursor.mark_delete == at(4)


# -- ends


def test_abort_redelivers_individual_acks_and_not_what_a_cumulative_ack_covered(host: Subscription) -> None:
    host.send(ack(FIRST, whole(3), indexes(1, 1)))
    host.send(ack_up_to(FIRST, whole(2)))
    assert effects(host.send(abort(FIRST)))[0] == Redeliver(((at(3), None), (at(1), 0b10)))
    assert effects(host.send(abort(SECOND))) == (Reply(SECOND),)


@pytest.mark.seed_rows("D64")
def test_messages_of_a_commit_stay_hidden_until_the_cursor_moved(host: Subscription) -> None:
    host.send(ack(FIRST, whole(0)))
    host.send(commit(FIRST))
    assert not host.cursor.acked
    assert (0, 0) not in host.visible()
    host.confirm()
    assert host.cursor.acked == {(0, 0)}
    host.store()
    assert host.machine.pending(at(0)) == 0


def test_commit_of_a_transaction_that_lost_everything_to_plain_acks_moves_nothing(host: Subscription) -> None:
    host.send(ack(FIRST, whole(0)))
    host.plain_ack([whole(0)])
    assert effects(host.send(commit(FIRST))) == (Reply(FIRST),)


def test_what_a_large_transaction_acknowledged_is_named_item_by_item(
    host: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "MANY", 1)
    host.send(ack(FIRST, whole(0), indexes(1, 3)))
    move, _ = effects(host.send(commit(FIRST)))
    assert isinstance(move, MoveCursor)
    items = move.individual
    assert (len(items), list(items)) == (2, [whole(0), indexes(1, 3)])
    assert (items[0], items[1:]) == (whole(0), [indexes(1, 3)])
    host.confirm()
    assert host.cursor.acked == {(0, 0), (1, 3)}


# -- acks outside transactions


def test_plain_ack_of_nothing_pending_writes_nothing(host: Subscription) -> None:
    host.send(ack(FIRST, indexes(1, 0)))
    assert host.plain_ack([whole(0), indexes(1, 1)]) == NOTHING
    assert host.plain_ack((), whole(0)) == NOTHING
    assert host.plain_ack() == NOTHING
    host.store()
    assert host.stored == 3
    assert len(host.entries) == 1


def test_plain_acks_of_indexes_take_a_whole_entry_apart(host: Subscription) -> None:
    host.send(ack(FIRST, whole(1)))
    host.plain_ack([indexes(1, 0), indexes(1, 1)])
    host.plain_ack([indexes(1, 2)])
    host.confirm()
    host.store()
    assert host.machine.pending(at(1)) == 0b1000
    host.plain_ack([indexes(1, 3)])
    assert host.machine.pending(at(1)) == 0b1000, "until the cursor has stored it"
    host.confirm()
    host.store()
    assert host.machine.pending(at(1)) == 0


def test_plain_cumulative_ack_takes_what_it_covers_and_the_cumulative_ack_it_reaches(host: Subscription) -> None:
    host.send(ack(FIRST, whole(0), whole(2), whole(3)))
    host.send(ack_up_to(FIRST, indexes(1, 0)))
    step = host.plain_ack((), indexes(2, 0, 1))
    assert effects(step) == (MoveCursor((), (at(2), 0b1100, 4), 1),)
    host.confirm()
    assert host.machine.cumulative_position(FIRST) is None
    assert effects(host.send(abort(FIRST)))[0] == Redeliver(((at(2), 0b1100), (at(3), None)))


def test_plain_cumulative_ack_leaves_a_cumulative_ack_that_reaches_farther(host: Subscription) -> None:
    host.send(ack_up_to(FIRST, whole(3)))
    host.send(ack(FIRST, whole(0)))
    host.plain_ack((), whole(1))
    assert host.machine.cumulative_position(FIRST) == at(3)


def test_plain_acks_of_both_kinds_in_one_request(host: Subscription) -> None:
    host.send(ack(FIRST, whole(0), whole(3)))
    step = host.send(PlainAcked((whole(3),), whole(1)))
    assert isinstance(step, Step)
    assert len(step.records) == 2
    assert [effect.sequence for effect in step.effects if isinstance(effect, MoveCursor)] == [1, 2]
    host.confirm()
    assert host.cursor.acked == messages_up_to(SIZES, whole(1)) | {(3, 0)}


def test_plain_ack_takes_from_each_transaction_what_it_holds_of_it(host: Subscription) -> None:
    host.send(ack(FIRST, indexes(1, 0), whole(0)))
    host.send(ack(SECOND, indexes(1, 1), whole(3)))
    host.plain_ack([indexes(1, 0), whole(3)])
    host.machine.check_invariants()
    assert effects(host.send(abort(FIRST)))[0] == Redeliver(((at(0), None),))
    assert effects(host.send(abort(SECOND)))[0] == Redeliver(((at(1), 0b10),))


def test_what_was_taken_from_a_transaction_leaves_nothing_behind() -> None:
    known = Held(FIRST, (LOG_LEDGER, 0))
    for entry in range(300):
        known.put(at(entry), None, 0)
    for entry in range(1, 300):
        known.leave(at(entry), 0, 0)
    assert known.lowest() == at(0)
    assert kept_by(known) < 100
    known.put(at(1), None, 0)  # its first place in the order may be there still
    assert known.behind((at(9), None, 0)) == [(at(0), None, 0), (at(1), None, 0)]
    known.leave(at(1), 0, 0)
    known.put(at(1), 0b10, 4)
    assert known.behind((at(9), None, 0)) == [(at(0), None, 0), (at(1), 0b10, 4)]
    assert known.behind((at(1), 0b1, 4)) == [(at(0), None, 0)]


# -- resets


def test_reset_that_touches_nothing_writes_nothing(host: Subscription) -> None:
    host.send(ack(FIRST, whole(3)))
    assert host.seek(2) == NOTHING


def test_reset_drops_a_cumulative_ack_that_it_passes(host: Subscription) -> None:
    host.send(ack_up_to(FIRST, whole(1)))
    host.seek(0)
    assert host.machine.cumulative_position(FIRST) == at(1)
    host.seek(1)
    assert host.machine.cumulative_position(FIRST) is None
    assert host.answer(ack_up_to(SECOND, whole(2))) is None


def test_reset_keeps_a_cumulative_ack_in_front_and_drops_what_another_holds_behind(host: Subscription) -> None:
    host.send(ack_up_to(FIRST, whole(3)))
    host.send(ack(FIRST, whole(0)))
    host.seek(1)
    assert host.machine.cumulative_position(FIRST) == at(3)
    assert host.machine.pending(at(0)) == 0


def test_reset_drops_what_a_transaction_holds_exactly_where_the_cursor_goes(host: Subscription) -> None:
    host.send(ack(FIRST, whole(1), whole(2)))
    host.seek(1)
    assert host.machine.pending(at(1)) == 0
    assert host.machine.pending(at(2)) == WHOLE_ENTRY, "all of it"
    assert host.answer(ack(SECOND, whole(1))) is not None, "it is acknowledged by the seek"
    (redelivered,) = [effect for effect in effects(host.send(abort(FIRST))) if isinstance(effect, Redeliver)]
    assert redelivered == Redeliver(((at(2), None),))


# -- questions


def test_position_state_names_what_pulsar_names(host: Subscription) -> None:
    handle = host.machine
    host.plain_ack([whole(0), indexes(1, 0)])
    host.send(ack(FIRST, indexes(1, 1), whole(3)))
    states = [handle.position_state(at(1), index) for index in range(4)]
    assert states == ["MarkDelete", "PendingAck", "NotInPendingAck", "NotInPendingAck"]
    assert [handle.position_state(at(entry)) for entry in range(5)] == [
        "MarkDelete",
        "PendingAck",
        "NotInPendingAck",
        "PendingAck",
        "NotInPendingAck",
    ]
    host.send(commit(FIRST))  # not confirmed: the cursor has not heard of it
    assert [handle.position_state(at(3)), handle.position_state(at(1), 1), handle.position_state(at(1))] == [
        "MarkDelete",
        "MarkDelete",
        "NotInPendingAck",
    ]
    host.send(ack_up_to(SECOND, indexes(2, 0, 1)))
    assert [handle.position_state(at(2), 1), handle.position_state(at(2), 2)] == ["PendingAck", "NotInPendingAck"]
    host.send(commit(SECOND))
    assert [handle.position_state(at(2), 1), handle.position_state(at(2), 2)] == ["MarkDelete", "NotInPendingAck"]


def test_stats_count_open_transactions_and_low_watermarks() -> None:
    handle = PendingAckHandle("topic", "subscription", ListedCursor(list(SIZES)))
    assert handle.stats().state == "Initializing"
    host = Subscription(PendingAckHandle, list(SIZES))
    host.send(ack(FIRST, whole(0)))
    host.send(ack(TxnId(3, 7), whole(3)))
    host.send(end(TxnId(3, 9), TxnAction.ABORT, 5))
    stats = host.machine.stats()
    assert (stats.state, stats.ongoing_txn_size, stats.low_watermarks) == ("Ready", 2, {3: 5})
    assert host.machine.cumulative_position(FIRST) is None
    assert host.machine.cumulative_position(TxnId(9, 9)) is None


def test_nothing_is_timed(host: Subscription) -> None:
    assert host.machine.deadline() is None
    assert host.machine.expire(10**15) == NOTHING


def test_ids_that_wait_behind_an_old_transaction_are_forgotten_some_with_each_end(host: Subscription) -> None:
    host.send(ack(TxnId(0, 1), whole(0)))
    for least in range(2, 1_000):
        host.send(end(TxnId(0, least), TxnAction.COMMIT, 0))
    known = state_of(handle_of(host)).coordinators[0]
    assert len(known.ended) == 998
    host.send(end(TxnId(0, 1), TxnAction.ABORT, 999))
    ends = 1
    while len(known.ended) > 1:
        before = len(known.ended)
        host.send(end(TxnId(0, 1_000 + ends), TxnAction.COMMIT, 999 + ends))
        assert before - len(known.ended) < 32, "not all at once"
        ends += 1
    assert ends < 998 // 8, "and faster than new ones come"
    assert handle_of(host).transaction_state(TxnId(0, 500)) is State.PAST


def test_ids_below_the_low_watermark_are_forgotten(host: Subscription) -> None:
    for least in range(1, 50):
        host.send(end(TxnId(0, least), TxnAction.COMMIT, least - 2))
    assert len(state_of(handle_of(host)).coordinators[0].ended) == 2
    assert handle_of(host).transaction_state(TxnId(0, 3)) is State.PAST
    assert handle_of(host).transaction_state(TxnId(0, 48)) is State.COVERED


# -- the log


@pytest.mark.seed_rows("C02", "D70")
def test_log_is_needed_from_the_oldest_open_ack_or_uncovered_commit(host: Subscription) -> None:
    handle = host.machine
    assert handle.trim_before("log") is None
    host.send(ack(FIRST, whole(0)))
    host.send(ack(SECOND, whole(3)))
    assert handle.trim_before("log") == (LOG_LEDGER, 0)
    host.send(abort(FIRST))
    assert handle.trim_before("log") == (LOG_LEDGER, 1)
    host.send(commit(SECOND))
    host.confirm()
    assert handle.trim_before("log") == (LOG_LEDGER, 1), "the cursor has not stored the commit"
    host.store()
    assert handle.trim_before("log") == (LOG_LEDGER, 5)


@pytest.mark.seed_rows("C02")
def test_covered_commits_are_noted_when_enough_of_them_wait() -> None:
    host = Subscription(lambda *names: PendingAckHandle(*names, stored_every=2), list(SIZES))
    for least, entry in enumerate([0, 3, 4], 1):
        host.answer(ack(TxnId(0, least), whole(entry)))
        host.answer(commit(TxnId(0, least)))
    assert host.send(CursorStored(1)) == NOTHING
    noted = host.send(CursorStored(2))
    assert isinstance(noted, Step)
    assert len(noted.trailing) == 1
    assert not noted.records
    assert host.send(CursorStored(2)) == NOTHING
    assert [host.machine.pending(at(entry)) for entry in (0, 3, 4)] == [0, 0, WHOLE_ENTRY]


def test_a_cumulative_commit_stays_settled_when_the_cursor_has_stored_an_earlier_one(host: Subscription) -> None:
    """It would be forgotten: its messages could be acknowledged again, and a restart would not move the cursor there."""
    for txn_id, entry in ((FIRST, 0), (SECOND, 3)):
        assert host.answer(ack_up_to(txn_id, whole(entry))) is None
        assert host.answer(commit(txn_id)) is None
    noted = host.send(CursorStored(1))
    assert isinstance(noted, Step)
    assert len(noted.trailing) == 1
    third = TxnId(0, 9)
    assert host.answer(ack(third, whole(2))) is CONFLICT
    assert host.answer(ack_up_to(third, whole(3))) is CONFLICT
    assert host.answer(ack_up_to(third, whole(4))) is None
    assert handle_of(host).recovered(0).effects == (MoveCursor((), (at(3), None, 0), 2),)


@pytest.mark.seed_rows("D70")
def test_snapshot_is_asked_for_after_every_so_many_records() -> None:
    host = Subscription(lambda *names: PendingAckHandle(*names, snapshot_every=3, stored_every=1), list(SIZES))
    asked = []
    for least in range(1, 8):
        step = host.send(commit(TxnId(0, least)))
        asked.append(WriteSnapshot("log") in effects(step))
    assert asked == [False, False, True, False, False, True, False]
    host.confirm()
    host.crash(7, 0)
    assert host.snapshot is not None
    assert host.trimmed == 7


def test_refusals_of_the_suite_say_what_was_promised() -> None:
    with pytest.raises(AssertionError, match="the sky is blue"):
        promise(False, "the sky is blue")


# -- invariants


def test_broken_states_are_named(host: Subscription) -> None:
    host.send(ack(FIRST, indexes(1, 0)))
    state = state_of(handle_of(host))
    state.pending[at(1)] = 0b11
    with pytest.raises(AssertionError, match="S12 pending"):
        host.machine.check_invariants()
    state.pending[at(1)] = 0b1
    state.coordinators[0].low_watermark = 1
    with pytest.raises(AssertionError, match="S15"):
        host.machine.check_invariants()
