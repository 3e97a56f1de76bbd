"""The window of outcomes: what is remembered, for how long, and who is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from insides import state_of
from tc_host import TcHost

from pulsar_txn.tc import EndTxn, NewTxn, TransactionCoordinator
from pulsar_txn.tc._state import CoordinatorState
from pulsar_txn.tc.outcomes import (
    ANYBODY,
    NO_OUTCOME,
    NOBODY_INDEX,
    PAGE,
    STILL_OPEN,
    WAS_ABORTED,
    WAS_COMMITTED,
    OutcomeWindow,
    Owner,
)
from pulsar_txn.tc.snapshots import read, write
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

ANNA: Owner = ("anna", None)
BERT: Owner = ("bert", ("app", 7))


def restored(window: OutcomeWindow) -> OutcomeWindow:
    """The window after a snapshot and a restore."""
    state = CoordinatorState(3, window)
    copy = CoordinatorState(3, OutcomeWindow(window.retention, max_owners=window.owners.limit))
    for part in write(state):
        read(copy, part)
    return copy.outcomes


def fill(window: OutcomeWindow, first: int, last: int, owner: Owner = ANYBODY) -> None:
    """Open and commit the ids from `first` up to, not including, `last`."""
    for least in range(first, last):
        window.opened(least, owner)
        window.ended(least, WAS_COMMITTED, owner, least + 1)


@given(
    st.lists(
        st.tuples(st.integers(0, 9_000), st.sampled_from([ANYBODY, ANNA, BERT, ("cleo", None)]), st.sampled_from([0, 2, 3])),
        max_size=40,
        unique_by=lambda entry: entry[0],
    )
)
def test_each_id_keeps_its_own_outcome_and_owner_also_through_a_snapshot(entries: list[tuple[int, Owner, int]]) -> None:
    window = OutcomeWindow(10 * PAGE)
    for least, owner, _ in sorted(entries):
        window.opened(least, owner)
    for least, owner, outcome in entries:
        if outcome:
            window.ended(least, outcome, owner, 9_001)
    expected = {least: (outcome or STILL_OPEN, owner) for least, owner, outcome in entries}
    for copy in (window, restored(window)):
        for least in {*expected, *(least + 1 for least in expected), 0, 9_002, 10**9, -1}:
            assert copy.lookup(least) == expected.get(least, (NO_OUTCOME, ANYBODY))
        assert copy.count_open() == sum(outcome == 0 for *_, outcome in entries)


def test_the_window_answers_for_its_retention_and_forgets_whole_pages_behind_it() -> None:
    window = OutcomeWindow(2 * PAGE)
    fill(window, 0, 5 * PAGE)
    assert list(window.pages) == [2, 3, 4]
    assert window.lookup(2 * PAGE - 1) == (NO_OUTCOME, ANYBODY)
    assert window.lookup(2 * PAGE) == (WAS_COMMITTED, ANYBODY)
    assert window.lookup(5 * PAGE - 1) == (WAS_COMMITTED, ANYBODY)


def test_a_full_window_takes_two_and_a_third_mebibytes() -> None:
    window = OutcomeWindow(1_048_576)
    for page in range(400):
        window.opened(page * PAGE, ANNA)
    assert len(window.pages) == 257
    size = sum(len(page.outcomes) + len(page.owners or b"") for page in window.pages.values())
    assert size == 257 * (1024 + 8192)


def test_a_transaction_that_the_window_passed_is_remembered_for_a_window_from_its_end() -> None:
    window = OutcomeWindow(2 * PAGE)
    window.opened(5, ANNA)
    fill(window, 6, 9 * PAGE)
    assert window.lookup(5) == (NO_OUTCOME, ANYBODY)
    window.ended(5, WAS_ABORTED, ANNA, 9 * PAGE)
    fill(window, 9 * PAGE, 11 * PAGE)
    assert window.lookup(5) == restored(window).lookup(5) == (WAS_ABORTED, ANNA)
    fill(window, 11 * PAGE, 11 * PAGE + 1)
    assert window.lookup(5) == (NO_OUTCOME, ANYBODY)
    window.opened(11 * PAGE + 1, ANYBODY)
    assert len(window.late) == 0, "forgotten with the ids that follow"


def test_an_end_in_the_older_half_of_the_window_outlives_its_page() -> None:
    window = OutcomeWindow(4 * PAGE)
    window.opened(0, BERT)
    window.opened(1, ANNA)
    fill(window, 2, 2 * PAGE)
    window.ended(1, WAS_COMMITTED, ANNA, 2 * PAGE)
    assert 1 not in window.late
    fill(window, 2 * PAGE, 4 * PAGE)
    window.ended(0, WAS_ABORTED, BERT, 4 * PAGE)
    fill(window, 4 * PAGE, 6 * PAGE)
    assert 0 not in window.pages
    assert window.lookup(0) == (WAS_ABORTED, BERT)


def test_indexes_of_forgotten_owners_are_used_again_lowest_first_also_after_a_restore() -> None:
    window = OutcomeWindow(PAGE)
    for least, name in enumerate("abc"):
        window.opened(least, (name, None))
    window.opened(PAGE, ("b", None))
    window.opened(2 * PAGE, ("d", None))
    assert 0 not in window.pages
    assert dict(window.owners.owners.items()) == {1: ("d", None), 2: ("b", None)}
    copy = restored(window)
    for one in (window, copy):
        one.opened(2 * PAGE + 1, ("e", None))
        one.opened(2 * PAGE + 2, ("f", None))
        one.opened(2 * PAGE + 3, ("b", None))
    assert sorted(window.owners.owners.items()) == sorted(copy.owners.owners.items())
    assert sorted(window.owners.owners) == [1, 2, 3, 4]
    assert [copy.lookup(2 * PAGE + n)[1] for n in range(4)] == [("d", None), ("e", None), ("f", None), ("b", None)]


def test_owners_beyond_the_limit_are_nobody_and_their_page_goes_like_any_other() -> None:
    window = OutcomeWindow(0, max_owners=1)
    window.opened(0, ANNA)
    window.opened(1, BERT)
    assert dict(window.owners.owners.items()) == {1: ANNA}
    for copy in (window, restored(window)):
        assert copy.lookup(0) == (STILL_OPEN, ANNA)
        assert copy.lookup(1) == (STILL_OPEN, None)
        copy.opened(PAGE, BERT)
        assert copy.lookup(PAGE) == (STILL_OPEN, BERT)
        assert dict(copy.owners.owners.items()) == {1: BERT}
    assert NOBODY_INDEX == 0xFFFF


def end(tc: TransactionCoordinator, txn_id: TxnId, principal: str | None = None, **more: object) -> object:
    """What END_TXN(COMMIT) is answered: the Step's first effect, or the code of the refusal."""
    try:
        return tc.decide(EndTxn("t", txn_id, TxnAction.COMMIT, principal=principal, **more), 0).effects[0]  # type: ignore[arg-type]  # superuser, identity
    except Refusal as refusal:
        return refusal.code


def test_nobody_but_the_owner_ever_gets_an_outcome() -> None:
    host = TcHost()
    txn_id = host.new(principal="anna", identity=("app", 1))
    host.end(txn_id, TxnAction.COMMIT, principal="anna", identity=("app", 1))
    for tc in (host.tc, host.recover()):
        right = end(tc, txn_id, "anna", identity=("app", 1))
        assert not isinstance(right, ServerError)
        for who in ({"principal": "bert"}, {}, {"principal": "anna"}, {"principal": "anna", "identity": ("app", 2)}):
            assert end(tc, txn_id, **who) is ServerError.TransactionNotFound  # type: ignore[arg-type]  # principal, identity
        assert end(tc, txn_id, superuser=True) == right


def test_an_outcome_of_nobody_is_a_superusers_business_only() -> None:
    tc = TransactionCoordinator(3)
    state_of(tc).outcomes.owners.limit = 0
    host = TcHost()
    host.serve(tc)
    txn_id = TxnId(3, 0)
    host.carry_out(tc.decide(NewTxn("n", 1, principal="anna"), 0))
    host.carry_out(tc.decide(EndTxn("e", txn_id, TxnAction.COMMIT, principal="anna"), 0))
    assert end(tc, txn_id, "anna") is ServerError.TransactionNotFound
    assert not isinstance(end(tc, txn_id, superuser=True), ServerError)
    tc.check_invariants()


def test_below_the_window_every_request_finds_nothing() -> None:
    host = TcHost(outcome_retention_count=0)
    old = host.in_state(TxnStatus.COMMITTED)
    for _ in range(PAGE):
        host.carry_out(host.tc.decide(NewTxn(None, 0), 0))
    assert host.tc.status(old) is None
    assert end(host.tc, old) is ServerError.TransactionNotFound
    assert end(host.tc, old, superuser=True) is ServerError.TransactionNotFound


def test_a_transaction_open_across_the_window_is_found_and_its_end_may_be_repeated() -> None:
    host = TcHost(outcome_retention_count=PAGE)
    old = host.new(10**9, principal="anna")
    for _ in range(3 * PAGE):
        host.carry_out(host.tc.decide(NewTxn(None, 0), 0))
    assert state_of(host.tc).outcomes.lookup(old.least) == (NO_OUTCOME, ANYBODY)
    host.tc.check_invariants()
    host.end(old, TxnAction.COMMIT, principal="anna")
    assert host.tc.status(old) is TxnStatus.COMMITTED
    assert not isinstance(end(host.tc, old, "anna"), ServerError)
    assert end(host.tc, old, "bert") is ServerError.TransactionNotFound


@pytest.mark.parametrize("txn_id", [TxnId(4, 0), TxnId(3, 1), TxnId(3, -1), TxnId(3, 2**63)])
def test_ids_of_nobody_are_not_found(txn_id: TxnId) -> None:
    host = TcHost()
    host.add(host.new(), Participant("t"))
    assert end(host.tc, txn_id) is ServerError.TransactionNotFound
