"""Timeouts as data: who is aborted when, how much at a time, and what a clock must not do."""

from __future__ import annotations

import pytest
from insides import state_of
from tc_host import TcHost

from pulsar_txn.ledger.machine import NOTHING, Outcome, TellParticipant
from pulsar_txn.ledger.swept_heap import SLACK
from pulsar_txn.tc import AddParticipants, EndTxn, NewTxn
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnStatus


@pytest.mark.seed_rows("C33")
def test_an_open_transaction_is_aborted_at_its_deadline_and_not_before() -> None:
    host = TcHost()
    txn_id = host.new(500)
    host.add(txn_id, Participant("t"))
    assert host.tc.deadline() == host.now_ms + 500
    host.now_ms += 499
    assert host.tc.expire(host.now_ms) == NOTHING
    host.now_ms += 1
    step = host.tc.expire(host.now_ms)
    assert [record.new_status for _, record in step.records] == [TxnStatus.ABORTING]
    assert step.effects == (TellParticipant(txn_id, Participant("t"), TxnAction.ABORT, -1),)
    host.carry_out(step)
    assert host.tc.deadline() is None


def test_a_timeout_of_zero_gives_an_id_and_is_due_at_once() -> None:
    host = TcHost()
    txn_id = host.new(0)
    assert host.tc.status(txn_id) is TxnStatus.OPEN
    assert host.tc.deadline() == host.now_ms
    host.expire()
    assert host.tc.status(txn_id) is TxnStatus.ABORTED
    with pytest.raises(Refusal) as caught:
        host.add(txn_id, Participant("t"))
    assert caught.value.code is ServerError.InvalidTxnStatus


@pytest.mark.seed_rows("D51")
@pytest.mark.parametrize("action", TxnAction)
def test_the_first_decision_in_the_log_wins_against_the_deadline(action: TxnAction) -> None:
    host = TcHost()
    txn_id = host.new(500)
    host.add(txn_id, Participant("t"))
    host.now_ms += 501
    host.ask(EndTxn("token", txn_id, action))
    assert host.tc.expire(host.now_ms) == NOTHING
    host.confirm()
    host.done(txn_id)
    assert host.answers["token"] is action


def test_the_loser_of_commit_and_timeout_gets_the_winners_status() -> None:
    host = TcHost()
    txn_id = host.new(500)
    host.add(txn_id, Participant("t"))
    host.now_ms += 500
    host.expire()
    with pytest.raises(Refusal) as caught:
        host.ask(EndTxn("token", txn_id, TxnAction.COMMIT))
    assert caught.value.code is ServerError.InvalidTxnStatus
    assert "ABORTING" in caught.value.message


@pytest.mark.parametrize("action", TxnAction)
def test_what_is_ending_has_no_deadline(action: TxnAction) -> None:
    host = TcHost()
    txn_id = host.new(500)
    host.add(txn_id, Participant("t"))
    host.end(txn_id, action)
    assert host.tc.deadline() is None
    host.now_ms += 10**9
    assert host.tc.expire(host.now_ms) == NOTHING
    host.crash()
    assert host.tc.deadline() is None


def test_expire_takes_a_bounded_number_the_earliest_first_and_forgets_nothing_when_its_step_is_thrown_away() -> None:
    host = TcHost(expire_limit=3)
    ids = [host.new(timeout_ms) for timeout_ms in (50, 10, 40, 30, 20)]
    host.now_ms += 100
    earliest = [ids[1], ids[4], ids[3]]
    for _ in range(2):
        step = host.tc.expire(host.now_ms)
        assert [effect.txn_id for effect in step.effects if isinstance(effect, Outcome)] == earliest
    host.carry_out(step)
    assert host.tc.deadline() == host.now_ms - 60
    host.expire()
    assert [host.tc.status(txn_id) for txn_id in ids] == [TxnStatus.ABORTED] * 5


@pytest.mark.seed_rows("C09")
def test_deadlines_are_those_of_the_record_also_after_recovery() -> None:
    host = TcHost()
    host.new(500)
    host.now_ms += 400
    host.crash()
    assert host.tc.deadline() == 1_500
    host.take_snapshot()
    host.crash()
    assert host.tc.deadline() == 1_500


def test_deadlines_of_ended_transactions_do_not_pile_up() -> None:
    host = TcHost()
    host.in_state(TxnStatus.OPEN)
    for _ in range(3 * SLACK):
        txn_id = host.tc.decide(NewTxn(None, 10**6), host.now_ms)
        host.carry_out(txn_id)
        (reply,) = txn_id.effects
        host.carry_out(host.tc.decide(EndTxn(None, reply.value, TxnAction.COMMIT), host.now_ms))  # type: ignore[union-attr,arg-type]  # a Reply with an id
    host.tc.check_invariants()
    assert len(state_of(host.tc).deadlines) <= SLACK + 2


def test_adding_participants_does_not_prolong_a_transaction() -> None:
    host = TcHost()
    txn_id = host.new(500)
    host.now_ms += 499
    host.ask(AddParticipants(None, txn_id, (Participant("t"),)))
    assert host.tc.deadline() == 1_500
