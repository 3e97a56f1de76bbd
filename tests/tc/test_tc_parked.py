"""Parked transactions: nobody knew their outcome, so they wait for an operator, and hold up nobody meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from check_host import LONG, CheckHost
from tc_host import TcHost

from pulsar_txn.tc import (
    CheckAnswered,
    CheckOutcome,
    FencingCoordinator,
    NewTxn,
    ResumeTxn,
    TakeOver,
    TransactionCoordinator,
    records,
)
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.check_times import CHECK_AFTER_MS, CHECK_INTERVAL_MS
from pulsar_txn.tc.records_pb2 import CoordinatorSnapshot
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
TOPIC = Participant("t")


class FencingHost(CheckHost):
    def fresh(self) -> TransactionCoordinator:
        return FencingCoordinator(self.tc_id, **self.options)


def parked(host: CheckHost, count: int = 1, **who: Any) -> list[TxnId]:
    """So many that were asked for once, and then parked."""
    txns = [host.opened(**who) for _ in range(count)]
    host.join(principal=who.get("principal"))
    host.passes(CHECK_AFTER_MS)
    host.passes(CHECK_INTERVAL_MS)
    host.leave(principal=who.get("principal"))
    return txns


def host_of(**options: Any) -> CheckHost:
    return CheckHost(max_checks=1, **options)


def parked_ids(host: TcHost) -> list[TxnId]:
    return [info.txn_id for info in host.tc.transactions() if info.parked_ms is not None]


@pytest.mark.parametrize("snapshot", [False, True])
def test_what_is_parked_waits_through_restarts_and_nothing_but_somebody_who_decides_ends_it(snapshot: bool) -> None:
    host = host_of()
    (txn_id,) = parked(host)
    since_ms = host.now_ms
    for _ in range(2):
        if snapshot:
            host.take_snapshot()
        host.crash()
        host.join()
        assert host.tc.deadline() is None
        assert host.passes(10 * LONG) == [], "it is asked for no more"
        host.leave()
        assert host.passes(10 * LONG) == []
        (info,) = host.tc.transactions()
        assert (info.txn_id, info.status, info.parked_ms) == (txn_id, TxnStatus.OPEN, since_ms)
        assert list(host.tc.parked_since_ms) == [since_ms]
        host.tc.check_invariants()
    assert host.tc.is_registered(txn_id, TOPIC), "its client may go on"


@pytest.mark.parametrize("action", TxnAction)
@pytest.mark.parametrize("who", ["client", "operator", "group"])
def test_its_client_an_operator_and_a_late_answer_end_what_is_parked(action: TxnAction, who: str) -> None:
    host = host_of()
    (txn_id,) = parked(host, principal="anna")
    if who == "group":
        host.answers_with(CheckOutcome(action), txn_id, principal="anna")
    else:
        host.end(txn_id, action, **({"principal": "anna"} if who == "client" else {"superuser": True}))
    host.done(txn_id)
    host.confirm()
    assert host.ended == {txn_id: action}
    assert list(host.tc.parked_since_ms) == []
    host.tc.check_invariants()
    host.take_snapshot()
    host.crash()
    assert CoordinatorSnapshot.FromString(next(iter(host.tc.snapshot()))).format_version == 2


@pytest.mark.parametrize("snapshot", [False, True])
def test_what_is_resumed_is_asked_for_from_the_first_question_on_and_has_its_whole_timeout(snapshot: bool) -> None:
    host = host_of()
    (txn_id,) = parked(host)
    host.passes(10 * LONG)
    host.ask(ResumeTxn("token", txn_id, superuser=True))
    host.confirm()
    assert host.answers["token"] is None
    resumed_ms = host.now_ms
    if snapshot:
        host.take_snapshot()
    host.crash()
    assert host.tc.deadline() == resumed_ms + LONG
    assert host.passes(LONG - 1) == []
    assert host.tc.status(txn_id) is TxnStatus.OPEN
    host.join()
    (question,) = host.questions(0)
    assert (question.txn_id, question.count) == (txn_id, 1)
    host.begins(question)
    host.answers_with(CheckOutcome.COMMIT, txn_id)
    assert host.cause() == Cause.CHECKED
    host.tc.check_invariants()


def test_what_nobody_knows_after_it_was_resumed_is_parked_again() -> None:
    host = host_of()
    (txn_id,) = parked(host)
    host.ask(ResumeTxn(None, txn_id, superuser=True))
    host.join()
    host.passes(0)
    host.passes(CHECK_INTERVAL_MS)
    assert parked_ids(host) == [txn_id]
    assert [told[0] for told in host.told()] == [txn_id, txn_id]
    host.take_snapshot()
    host.crash()
    assert parked_ids(host) == [txn_id]
    host.end(txn_id, ABORT)
    host.tc.check_invariants()


def test_only_what_is_parked_is_resumed_and_only_by_who_may_see_it() -> None:
    host = host_of()
    (txn_id,) = parked(host, principal="anna")
    still_open = host.new(LONG, principal="anna")
    for request, code in (
        (ResumeTxn(None, txn_id), ServerError.TransactionNotFound),
        (ResumeTxn(None, txn_id, "bert"), ServerError.TransactionNotFound),
        (ResumeTxn(None, TxnId(3, 99), superuser=True), ServerError.TransactionNotFound),
        (ResumeTxn(None, still_open, "anna"), ServerError.InvalidTxnStatus),
    ):
        with pytest.raises(Refusal) as caught:
            host.ask(request)
        assert caught.value.code is code
    host.ask(ResumeTxn(None, txn_id, "anna"))
    with pytest.raises(Refusal, match="not parked"):
        host.ask(ResumeTxn(None, txn_id, "anna"))


def test_what_is_parked_takes_no_part_in_limits_that_others_meet() -> None:
    host = host_of(max_active=4, max_active_of_role=3, max_state_bytes=20_000)
    of_anna = [parked(host, 3, principal="anna") for _ in range(2)]
    assert len(parked_ids(host)) == 6
    for principal in ("anna", "anna", "anna", "bert"):
        host.new(LONG, principal=principal)
    with pytest.raises(Refusal, match="maxActiveTransactionsPerCoordinator"):
        host.new(LONG, principal="bert")
    with pytest.raises(Refusal, match="maxActiveTransactionsPerCoordinator"):
        host.ask(ResumeTxn(None, of_anna[0][0], superuser=True))
    host.crash()
    host.tc.check_invariants()
    with pytest.raises(Refusal, match="maxActiveTransactionsPerCoordinator"):
        host.new(LONG, principal="bert")


@pytest.mark.parametrize("limits", [{"max_parked": 2}, {"max_state_bytes": 2_300}])
def test_what_finds_no_room_among_the_parked_stays_open_and_is_parked_when_there_is_room(limits: dict[str, int]) -> None:
    host = host_of(**limits)
    txns = []
    for _ in range(3):
        txns.append(host.opened())
        host.join()
        host.passes(CHECK_AFTER_MS)
        host.passes(CHECK_INTERVAL_MS)
    assert parked_ids(host) == txns[:2]
    for _ in range(3):
        deadline = host.tc.deadline()
        assert deadline is not None
        assert deadline > host.now_ms, "it does not look again and again"
        host.passes(LONG)
    assert host.tc.status(txns[2]) is TxnStatus.OPEN, "while nobody has decided, nothing ends it"
    host.tc.check_invariants()
    host.end(txns[0], ABORT)
    host.done(txns[0])
    host.passes(CHECK_INTERVAL_MS)
    assert parked_ids(host) == txns[1:]
    host.tc.check_invariants()


def test_many_are_parked_by_one_record_and_a_bounded_number_at_a_time() -> None:
    host = host_of(expire_limit=4)
    parked(host, 10)
    assert len(parked_ids(host)) == 10
    sizes = [
        len(record.group) + 1 for record in map(_decoded(host), host.log) if getattr(record, "operation", 0) == records.PARKED
    ]
    assert sizes == [4, 4, 2]


def _decoded(host: TcHost) -> Any:
    return lambda data: host.tc.decode("log", data)


def test_a_parked_transaction_may_be_prepared_and_then_waits_as_every_prepared_one() -> None:
    host = host_of()
    (txn_id,) = parked(host)
    host.prepare(txn_id, b"token")
    assert parked_ids(host) == []
    host.tc.check_invariants()
    host.take_snapshot()
    host.crash()
    host.tc.check_invariants()
    host.join()
    assert [each.prepared for each in host.passes(CHECK_AFTER_MS)] == [True]
    host.end(txn_id, COMMIT)
    host.done(txn_id)
    host.take_snapshot()
    assert CoordinatorSnapshot.FromString(next(iter(host.tc.snapshot()))).format_version == 4, "its token is kept"


def test_participants_that_join_a_parked_transaction_count_for_the_parked() -> None:
    host = host_of(max_state_bytes=4_000)
    (txn_id,) = parked(host)
    host.add(txn_id, Participant("u" * 500))
    host.tc.check_invariants()
    with pytest.raises(Refusal) as caught:
        host.add(txn_id, Participant("v" * 3_000))
    assert caught.value.code is ServerError.TooManyRequests
    host.add(host.new(LONG), Participant("v" * 3_000))
    host.tc.check_invariants()


def test_a_successor_does_not_end_what_is_parked_and_a_fenced_epoch_may_not() -> None:
    host = FencingHost(max_checks=1)
    old, new = {"principal": "anna", "identity": ("app", 1)}, {"principal": "anna", "identity": ("app", 2)}
    (txn_id,) = parked(host, **old)
    host.ask(TakeOver("token", ("app", 2), principal="anna"))
    host.confirm()
    assert host.answers["token"] is True
    assert parked_ids(host) == [txn_id]
    host.tc.check_invariants()
    with pytest.raises(Refusal) as caught:
        host.end(txn_id, COMMIT, **old)
    assert caught.value.code is ServerError.ProducerFenced
    host.end(txn_id, COMMIT, **new)
    assert host.tc.status(txn_id) is TxnStatus.COMMITTING


def test_what_a_fenced_epoch_has_parked_is_not_resumed_because_its_successor_would_have_ended_it() -> None:
    host = FencingHost(max_checks=1)
    (txn_id,) = parked(host, principal="anna", identity=("app", 1))
    host.ask(NewTxn(None, LONG, "anna", ("app", 2)))
    with pytest.raises(Refusal, match="taken over"):
        host.ask(ResumeTxn(None, txn_id, superuser=True))


def test_an_answer_for_what_was_resumed_and_not_begun_again_still_counts() -> None:
    host = host_of()
    (txn_id,) = parked(host)
    host.ask(ResumeTxn(None, txn_id, superuser=True))
    host.ask(CheckAnswered(txn_id, "orders", CheckOutcome.COMMIT))
    assert host.tc.status(txn_id) is TxnStatus.COMMITTING


def test_a_log_and_a_snapshot_without_parked_transactions_are_what_older_versions_read() -> None:
    host = CheckHost(max_checks=2)
    host.opened()
    host.join()
    host.passes(CHECK_AFTER_MS)
    assert CoordinatorSnapshot.FromString(next(iter(host.tc.snapshot()))).format_version == 4
    host.passes(CHECK_INTERVAL_MS)
    host.passes(CHECK_INTERVAL_MS)
    assert parked_ids(host)
    assert CoordinatorSnapshot.FromString(next(iter(host.tc.snapshot()))).format_version == 6


# ---------------------------------------------------------------------------------------------------- limits of a role


def test_one_role_that_has_prepared_all_it_may_holds_up_nobody_else() -> None:
    """Twenty prepared transactions of one role blocked everybody for good."""
    host = TcHost(max_active=20)
    prepared = 0
    for _ in range(20):
        txn_id = host.new(LONG, principal="anna")
        if prepared < 5:
            host.prepare(txn_id, principal="anna")
            prepared += 1
        else:
            with pytest.raises(Refusal, match="a quarter of maxActiveTransactionsPerCoordinator"):
                host.prepare(txn_id, principal="anna")
            host.end(txn_id, ABORT, principal="anna")
    host.take_snapshot()
    host.crash()
    host.tc.check_invariants()
    for _ in range(5):
        host.prepare(host.new(LONG, principal="bert"), principal="bert")
    late = host.new(LONG, principal="carl")
    with pytest.raises(Refusal, match="all roles have 10 transactions prepared"):
        host.prepare(late, principal="carl")
    for _ in range(9):
        host.new(LONG, principal="dora")
    host.tc.check_invariants()


def test_a_role_has_a_limit_of_its_own_for_what_is_open_and_for_what_is_prepared() -> None:
    host = TcHost(max_active_of_role=3, max_prepared_of_role=2)
    of_anna = [host.new(LONG, principal="anna") for _ in range(3)]
    with pytest.raises(Refusal, match=r"role 'anna' has 3.*maxActiveTransactionsPerRole"):
        host.new(LONG, principal="anna")
    for _ in range(4):
        host.new(LONG)  # no role, no limit of one
    for txn_id in of_anna[:2]:
        host.prepare(txn_id, principal="anna")
    with pytest.raises(Refusal, match=r"role 'anna' has 2.*maxPreparedTransactionsPerRole"):
        host.prepare(of_anna[2], principal="anna")
    host.prepare(host.new(LONG, principal="bert"), principal="bert")
    host.crash()
    with pytest.raises(Refusal, match="maxActiveTransactionsPerRole"):
        host.new(LONG, principal="anna")
    host.end(of_anna[0], COMMIT, principal="anna")
    host.prepare(of_anna[2], principal="anna")
    host.new(LONG, principal="anna")
    host.tc.check_invariants()


def test_what_one_role_has_prepared_takes_at_most_a_quarter_of_the_bytes() -> None:
    host = TcHost(max_state_bytes=16_000)
    first, second = host.new(LONG, principal="anna"), host.new(LONG, principal="anna")
    for txn_id in (first, second):
        host.add(txn_id, Participant("t" * 2_000), principal="anna")
    host.prepare(first, principal="anna")
    host.take_snapshot()
    host.crash()
    host.tc.check_invariants()
    with pytest.raises(Refusal, match="a quarter of maxTransactionStateSizeInMB"):
        host.prepare(second, principal="anna")
    host.end(first, ABORT, principal="anna")
    host.prepare(second, principal="anna")
