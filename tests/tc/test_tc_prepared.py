"""PREPARED: it waits for its outcome as long as it takes, and only who is entitled to may end it (KIP-939)."""

from __future__ import annotations

from typing import Any

import pytest
from check_host import CheckHost
from insides import state_of
from lane_host import LaneHost
from tc_host import LEDGER, TcHost

from pulsar_txn.ledger.machine import AskProducer, AwaitOutcome, Reply, TellParticipant
from pulsar_txn.tc import (
    AddParticipants,
    Check,
    CheckOutcome,
    EndTxn,
    FencingCoordinator,
    PrepareTxn,
    TakeOver,
    TransactionCoordinator,
    records,
    tokens,
)
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.check_times import CHECK_AFTER_MS, CHECK_INTERVAL_MS
from pulsar_txn.tc.lane_table import Lane
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
TOPIC = Participant("t")
FIRST: dict[str, Any] = {"identity": ("app", 1)}
SECOND: dict[str, Any] = {"identity": ("app", 2)}


class FencingHost(CheckHost):
    """With transactional ids."""

    def fresh(self) -> TransactionCoordinator:
        return FencingCoordinator(self.tc_id, **self.options)


def prepared(host: TcHost, token: bytes = b"token", **new: Any) -> TxnId:
    who = {name: each for name, each in new.items() if name in ("principal", "identity")}
    txn_id = host.new(**new)
    host.add(txn_id, TOPIC, **who)
    host.prepare(txn_id, token, **who)
    return txn_id


def refused(host: TcHost, request: Any) -> ServerError:
    with pytest.raises(Refusal) as caught:
        host.ask(request)
    return caught.value.code


# ---------------------------------------------------------------------------------------------------- preparing


def test_a_prepare_is_answered_once_it_is_durable_and_a_repeat_changes_nothing() -> None:
    host = TcHost()
    txn_id = host.new()
    host.ask(PrepareTxn("token", txn_id, b"secret"))
    assert "token" not in host.answers
    host.confirm()
    assert host.answers["token"] is None
    written = len(host.log)
    assert host.ask(PrepareTxn("again", txn_id, b"secret")).effects == (Reply("again"),)
    assert len(host.log) == written
    assert refused(host, PrepareTxn("other", txn_id, b"another")) is ServerError.InvalidTxnStatus


@pytest.mark.parametrize("token", [b"", b"x" * 65])
def test_a_token_has_one_to_64_bytes(token: bytes) -> None:
    host = TcHost()
    txn_id = host.new()
    assert refused(host, PrepareTxn(None, txn_id, token)) is ServerError.NotAllowedError
    host.prepare(txn_id, b"x" * 64)
    assert host.tc.status(txn_id) is TxnStatus.PREPARED


def test_a_token_counts_for_the_limit_of_bytes() -> None:
    host = TcHost(max_state_bytes=900)
    txn_id = host.new()
    host.add(txn_id, Participant("t" * 200))
    assert refused(host, PrepareTxn(None, txn_id, b"x")) is ServerError.TooManyRequests
    assert host.tc.status(txn_id) is TxnStatus.OPEN


def test_nothing_is_added_to_what_is_prepared_and_it_is_not_open_for_participants() -> None:
    host = TcHost()
    txn_id = prepared(host)
    assert refused(host, AddParticipants(None, txn_id, (Participant("u"),))) is ServerError.InvalidTxnStatus
    assert not host.tc.is_registered(txn_id, TOPIC)


@pytest.mark.parametrize("status", [None, TxnStatus.COMMITTING, TxnStatus.COMMITTED, TxnStatus.ABORTING, TxnStatus.ABORTED])
def test_what_is_decided_or_unknown_is_not_prepared(status: TxnStatus | None) -> None:
    host = TcHost()
    txn_id = host.in_state(status)
    code = ServerError.TransactionNotFound if status is None else ServerError.InvalidTxnStatus
    assert refused(host, PrepareTxn(None, txn_id, b"token")) is code


def test_only_the_owner_prepares() -> None:
    host = TcHost()
    txn_id = host.new(principal="anna")
    assert refused(host, PrepareTxn(None, txn_id, b"token", "bert")) is ServerError.TransactionNotFound
    host.prepare(txn_id, principal="root", superuser=True)
    assert host.tc.status(txn_id) is TxnStatus.PREPARED


# ---------------------------------------------------------------------------------------------------- what does not end it


def test_no_timeout_ends_it_and_it_survives_restarts_with_and_without_a_snapshot() -> None:
    host = TcHost()
    txn_id = prepared(host, timeout_ms=5)
    for step in (host.take_snapshot, host.crash, host.crash):
        host.now_ms += 10**9
        host.expire()
        host.confirm()
        assert host.tc.status(txn_id) is TxnStatus.PREPARED
        assert host.tc.deadline() is None
        step()
        host.tc.check_invariants()
    host.end(txn_id, COMMIT)
    host.done(txn_id)
    assert host.ended == {txn_id: COMMIT}


def test_it_keeps_the_low_watermark_below_it() -> None:
    host = TcHost()
    txn_id = prepared(host)
    for _ in range(3):
        host.in_state(TxnStatus.COMMITTED)
    assert host.tc.low_watermark == txn_id.least - 1


@pytest.mark.parametrize("status", [TxnStatus.OPEN, TxnStatus.PREPARED, TxnStatus.COMMITTING, TxnStatus.COMMITTED])
def test_a_connection_that_ends_aborts_what_is_open_and_is_never_refused(status: TxnStatus) -> None:
    host = TcHost()
    txn_id = host.in_state(status)
    step = host.end(txn_id, ABORT, "token", cause=Cause.DISCONNECTED, superuser=True)
    if status is TxnStatus.OPEN:
        assert [record.cause for _, record in step.records] == [Cause.DISCONNECTED]
        assert host.tc.status(txn_id) is TxnStatus.ABORTING
    else:
        assert host.tc.status(txn_id) is status
        assert host.answers["token"] is None


@pytest.mark.parametrize("new", [False, True])
def test_a_successor_spares_it_may_list_it_and_end_it(new: bool) -> None:
    host = FencingHost()
    txn_id, still_open = prepared(host, **FIRST), host.new(**FIRST)
    if new:
        host.new(**SECOND)
    else:
        host.ask(TakeOver("token", ("app", 2)))
        host.confirm()
        assert host.answers["token"] is ABORT, "it had to wait for what was open, and that has ended"
        host.ask(TakeOver("again", ("app", 2)))
        assert host.answers["again"] is True, "what is prepared keeps no successor waiting"
    assert host.tc.status(still_open) is TxnStatus.ABORTED
    assert host.tc.status(txn_id) is TxnStatus.PREPARED
    info = host.tc.describe(None, "app")
    assert info is not None
    assert (info.epoch, info.unfinished[0]) == (2, txn_id.least)
    host.end(txn_id, COMMIT, **SECOND)
    assert host.tc.status(txn_id) is TxnStatus.COMMITTING


@pytest.mark.parametrize("token", [b"", b"token"])
def test_an_older_epoch_may_not_end_it_any_more_also_with_the_token(token: bytes) -> None:
    host = FencingHost()
    txn_id = prepared(host, **FIRST)
    host.ask(TakeOver("token", ("app", 2)))
    end = EndTxn("zombie", txn_id, COMMIT, None, ("app", 1), prepared_token=token)
    assert refused(host, end) is ServerError.ProducerFenced
    assert refused(host, PrepareTxn(None, txn_id, b"token", None, ("app", 1))) is ServerError.ProducerFenced
    assert host.tc.status(txn_id) is TxnStatus.PREPARED


def test_a_commit_that_aborts_all_else_spares_it() -> None:
    host = FencingHost()
    txn_id, one, other = prepared(host, **FIRST), host.new(**FIRST), host.new(**FIRST)
    host.end(one, COMMIT, abort_others=True, **FIRST)
    assert [host.tc.status(each) for each in (txn_id, one, other)] == [
        TxnStatus.PREPARED,
        TxnStatus.COMMITTED,
        TxnStatus.ABORTED,
    ]


@pytest.mark.parametrize("gone", [LaneHost.vanish, LaneHost.goodbye])
def test_a_lane_with_a_prepared_transaction_is_out_of_use_until_its_end_and_outlives_its_client(gone: Any) -> None:
    host = LaneHost()
    txn_id = prepared(host, incarnation="i")
    assert host.lane(txn_id) is Lane.PREPARED
    gone(host)
    assert host.lane(txn_id) is Lane.PARKED
    assert host.tc.deadline() is None
    assert host.opened("i").most != txn_id.most
    host.take_snapshot()
    host.crash()
    host.tc.check_invariants()
    assert host.lane(txn_id) is Lane.PARKED
    host.end(txn_id, COMMIT, prepared_token=b"token")
    assert host.lane(txn_id) is Lane.RETIRING
    host.done(txn_id)
    assert host.lane(txn_id) is Lane.RETIRED


def test_a_lane_of_a_client_that_lives_is_used_again_after_the_end() -> None:
    host = LaneHost()
    txn_id = prepared(host, incarnation="i")
    host.end(txn_id, COMMIT)
    host.done(txn_id)
    assert host.lane(txn_id) is Lane.IDLE
    assert host.opened("i").most == txn_id.most


def test_a_successor_with_lanes_does_not_wait_for_it_and_never_gets_its_lane() -> None:
    host = LaneHost()
    txn_id = prepared(host, incarnation="i", **FIRST)
    host.ask(TakeOver("token", ("app", 2), "j"))
    host.confirm()
    assert host.answers["token"] is True
    assert host.lane(txn_id) is Lane.PARKED
    assert host.opened("j", **SECOND).most != txn_id.most
    host.end(txn_id, ABORT, **SECOND)
    host.done(txn_id)
    assert host.opened("j", **SECOND).most != txn_id.most
    host.tc.check_invariants()


# ---------------------------------------------------------------------------------------------------- what ends it


@pytest.mark.parametrize("action", TxnAction)
@pytest.mark.parametrize(
    "who",
    [
        {"principal": "anna"},
        {"principal": "root", "superuser": True},
        {"principal": "bert", "prepared_token": b"token"},
        {"prepared_token": b"token"},
    ],
)
def test_its_owner_a_superuser_and_whoever_shows_the_token_end_it_and_repeat_the_end(
    who: dict[str, Any], action: TxnAction
) -> None:
    host = TcHost()
    txn_id = prepared(host, principal="anna")
    host.end(txn_id, action, "first", **who)
    host.end(txn_id, action, "joined", **who)
    assert {tell.action for tell in host.released if isinstance(tell, TellParticipant)} == {action}
    host.done(txn_id)
    host.confirm()
    host.take_snapshot()
    host.crash()
    assert host.end(txn_id, action, "late", **who).effects == (Reply("late"),)
    other = EndTxn(None, txn_id, TxnAction(1 - action), **who)
    assert refused(host, other) is ServerError.InvalidTxnStatus


@pytest.mark.parametrize("status", [TxnStatus.OPEN, TxnStatus.PREPARED, TxnStatus.COMMITTING, TxnStatus.COMMITTED])
def test_a_stranger_without_the_right_token_is_told_nothing(status: TxnStatus) -> None:
    host = TcHost()
    txn_id = prepared(host, principal="anna") if status is not TxnStatus.OPEN else host.new(principal="anna")
    if status in (TxnStatus.COMMITTING, TxnStatus.COMMITTED):
        host.end(txn_id, COMMIT, principal="anna")
    if status is TxnStatus.COMMITTED:
        host.done(txn_id)
        host.confirm()
    for token in (b"", b"tokeN", b"toke", b"token "):
        end = EndTxn(None, txn_id, COMMIT, "bert", prepared_token=token)
        assert refused(host, end) is ServerError.TransactionNotFound
    elsewhere = EndTxn(None, TxnId(4, txn_id.least), COMMIT, "bert", prepared_token=b"token")
    assert refused(host, elsewhere) is ServerError.TransactionNotFound


def test_the_token_of_one_lane_does_not_open_the_number_in_another() -> None:
    host = LaneHost()
    txn_id = prepared(host, incarnation="i", principal="anna")
    end = EndTxn(None, TxnId(txn_id.most + 1, txn_id.least), COMMIT, prepared_token=b"token")
    assert refused(host, end) is ServerError.TransactionNotFound


def test_tokens_of_what_has_ended_are_kept_as_long_as_the_outcome_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_KEPT", 3)
    host = TcHost()
    ended = []
    for number in range(5):
        txn_id = prepared(host, b"token %d" % number, principal="anna")
        host.end(txn_id, COMMIT, principal="anna")
        host.done(txn_id)
        host.confirm()
        ended.append(txn_id)
    known = []
    for number, txn_id in enumerate(ended):
        try:
            host.end(txn_id, COMMIT, prepared_token=b"token %d" % number)
        except Refusal:
            continue
        known.append(number)
    assert known == [2, 3, 4]


def test_tokens_go_with_the_window_of_outcomes() -> None:
    host = TcHost(outcome_retention_count=4096)
    first = prepared(host, principal="anna")
    host.end(first, COMMIT, principal="anna")
    host.done(first)
    host.confirm()
    host.append(records.update_status(first.least, TxnStatus.OPEN, TxnStatus.ABORTING, host.now_ms, 5 * 4096))
    last = prepared(host, b"last", principal="anna")
    host.end(last, COMMIT, principal="anna")
    host.done(last)
    host.confirm()
    assert refused(host, EndTxn(None, first, COMMIT, prepared_token=b"token")) is ServerError.TransactionNotFound
    assert len(state_of(host.tc).extra.tokens) == 1


def test_it_is_in_no_group_of_ends() -> None:
    host = TcHost()
    txn_id, other = prepared(host), host.new()
    for members in ((txn_id, other), (other, txn_id)):
        code = refused(host, EndTxn(None, members[0], COMMIT, group=members[1:]))
        assert code is ServerError.InvalidTxnStatus
    assert [host.tc.status(each) for each in (txn_id, other)] == [TxnStatus.PREPARED, TxnStatus.OPEN]


def test_a_second_prepare_in_the_log_changes_nothing() -> None:
    host = TcHost()
    txn_id = prepared(host)
    ended = host.in_state(TxnStatus.COMMITTED)
    for least in (txn_id.least, ended.least, 99):
        host.append(records.prepared(least, b"another", host.now_ms, ended.least))
    host.end(txn_id, COMMIT, prepared_token=b"token", principal="bert")
    host.tc.check_invariants()


# ---------------------------------------------------------------------------------------------------- its check group


def test_its_group_is_asked_for_as_long_as_it_takes_from_the_time_it_was_prepared() -> None:
    host = CheckHost(max_checks=1, check_policy="commit")
    txn_id = host.opened()
    host.join()
    assert [each.count for each in host.passes(CHECK_AFTER_MS)] == [1]
    host.prepare(txn_id)
    assert host.passes(CHECK_AFTER_MS - 1) == []
    assert host.passes(1) == [AskProducer(txn_id, "orders", None, b"order 7", 2, 0, prepared=True)]
    for count in range(3, 40):
        assert [each.count for each in host.passes(CHECK_INTERVAL_MS)] == [count]
    host.take_snapshot()
    host.crash()
    host.join()
    assert [each.count for each in host.passes(CHECK_INTERVAL_MS)] == [40]
    host.answers_with(CheckOutcome.ABORT, txn_id)
    assert host.tc.status(txn_id) is TxnStatus.ABORTING


@pytest.mark.parametrize("policy", ["abort", "commit", "keep"])
def test_a_prepare_after_the_last_question_takes_it_from_the_policy(policy: str) -> None:
    host = CheckHost(max_checks=1, check_policy=policy)
    txn_id = host.opened()
    host.join()
    host.passes(CHECK_AFTER_MS)
    host.prepare(txn_id)
    host.leave()
    host.passes(10**7)
    assert host.tc.status(txn_id) is TxnStatus.PREPARED
    host.join()
    assert len(host.passes(0)) == 1


def test_a_prepare_without_time_to_the_first_question_is_asked_in_the_same_millisecond() -> None:
    host = CheckHost(check_after_ms=0, check_interval_ms=1)
    txn_id = host.opened(Check("orders", after_ms=0))
    host.join()
    assert len(host.passes(0)) == 1
    host.prepare(txn_id)
    assert len(host.passes(0)) == 1
    assert host.passes(0) == []
    assert [each.count for each in host.passes(1)] == [3]
    host.tc.check_invariants()


# ---------------------------------------------------------------------------------------------------- early answers


@pytest.mark.parametrize("action", TxnAction)
def test_an_end_may_be_answered_with_its_decision_and_not_before(action: TxnAction) -> None:
    host = TcHost()
    txn_id = host.new()
    host.add(txn_id, TOPIC)
    host.ask(EndTxn("token", txn_id, action, at_decision=True))
    host.ask(EndTxn("joined", txn_id, action, at_decision=True))
    assert not {"token", "joined"} & host.answers.keys()
    host.confirm()
    assert host.answers["token"] is host.answers["joined"] is None
    assert host.ended == {}
    assert host.end(txn_id, action, "waits").effects == (AwaitOutcome("waits", txn_id),)


def test_a_group_may_be_answered_with_its_decision() -> None:
    host = TcHost()
    pair = [host.new(), host.new()]
    for txn_id in pair:
        host.add(txn_id, TOPIC)
    for token in ("first", "again"):
        host.ask(EndTxn(token, pair[0], COMMIT, group=(pair[1],), at_decision=True))
        assert token not in host.answers or token == "again"
        host.confirm()
        assert host.answers[token] is None
    assert host.ended == {}


def test_the_cause_that_a_host_names_is_noted() -> None:
    host = TcHost()
    txn_id = host.new(principal="anna")
    step = host.end(txn_id, ABORT, superuser=True, cause=Cause.LEASE)
    assert [record.cause for _, record in step.records] == [Cause.LEASE]


def test_a_lost_prepare_leaves_the_transaction_open() -> None:
    host = TcHost()
    txn_id = host.new()
    host.ask(PrepareTxn("token", txn_id, b"token"))
    host.crash()
    assert host.tc.status(txn_id) is TxnStatus.OPEN
    assert host.tc.deadline() == 1_000 + 60_000


def test_records_that_a_position_was_given_to_are_read_back() -> None:
    tc = TransactionCoordinator(3)
    for index, record in enumerate([records.new_transaction(0, 5, 1), records.prepared(0, b"token", 2, 0)]):
        tc.apply("log", (LEDGER, index), tc.decode("log", tc.encode("log", record)))
    (info,) = tc.transactions()
    assert (info.status, info.modified_ms, info.prepared) == (TxnStatus.PREPARED, 2, True)
