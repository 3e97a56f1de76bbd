"""One Step tells a bounded number of participants; what is left comes with the next ones, and nothing is forgotten."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from tc_host import TcHost

from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc import AddParticipants, FencingCoordinator, NewTxn
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

MANY = 300
BOUND = 1024 + MANY


class FencedHost(TcHost):
    def fresh(self) -> FencingCoordinator:
        return FencingCoordinator(self.tc_id, **self.options)


def with_participants(host: TcHost, txn_id: TxnId, count: int = MANY) -> TxnId:
    host.add(txn_id, *(Participant(f"t{number}") for number in range(count)))
    return txn_id


def told(host: TcHost) -> Counter[TxnId]:
    host.confirm()
    return Counter(effect.txn_id for effect in host.released if isinstance(effect, TellParticipant))


def test_transactions_that_are_due_together_are_told_in_several_steps() -> None:
    host = TcHost()
    ids = [with_participants(host, host.new(100)) for _ in range(8)]
    host.now_ms += 100
    step = host.tc.expire(host.now_ms)
    assert len(step.effects) <= BOUND
    assert len(step.records) < len(ids)
    host.carry_out(step)
    host.expire()
    assert told(host) == dict.fromkeys(ids, MANY)


def test_ends_that_recovery_found_are_told_in_several_steps() -> None:
    host = TcHost()
    ids = [with_participants(host, host.new()) for _ in range(8)]
    for txn_id in ids:
        host.end(txn_id, TxnAction.COMMIT)
    host.confirm()
    host.crash()
    host.released.clear()
    host.crash()
    while host.tc.deadline() == 0:
        step = host.tc.expire(host.now_ms)
        assert len(step.effects) <= BOUND
        host.carry_out(step)
    assert told(host) == dict.fromkeys(ids, MANY)


def test_an_end_that_is_finished_while_those_before_it_wait_is_not_told_again() -> None:
    host = TcHost(expire_limit=2)
    ids = [with_participants(host, host.new(), 1) for _ in range(4)]
    for txn_id in ids:
        host.end(txn_id, TxnAction.COMMIT)
    host.confirm()
    host.released.clear()
    host.crash()
    host.done(ids[3])
    host.carry_out(host.tc.expire(host.now_ms))
    assert host.tc.deadline() is None
    assert told(host) == dict.fromkeys(ids[:3], 1)


def test_a_successor_ends_what_its_predecessors_left_in_several_steps() -> None:
    host = FencedHost()
    left = []
    for _ in range(8):
        host.ask(NewTxn("token", 60_000, identity=("mine", 1)))
        host.confirm()
        left.append(with_participants_of(host, host.answers["token"]))
    host.released.clear()
    step = host.ask(NewTxn("next", 60_000, identity=("mine", 2)))
    assert len(step.effects) <= BOUND + 1
    assert {host.tc.status(txn_id) for txn_id in left} == {TxnStatus.ABORTING}, "all of them are decided at once"
    host.expire()
    assert told(host) == dict.fromkeys(left, MANY)


def with_participants_of(host: FencedHost, txn_id: TxnId) -> TxnId:
    participants = tuple(Participant(f"t{number}") for number in range(MANY))
    host.ask(AddParticipants(None, txn_id, participants, identity=("mine", 1)))
    return txn_id


def test_ids_out_of_use_are_forgotten_a_few_with_each_new_one() -> None:
    host = FencedHost(id_retention_ms=1_000)
    for number in range(20):
        host.ask(NewTxn(None, 1, identity=(f"old-{number}", 1)))
    host.expire()
    host.now_ms += 10_000
    host.expire()
    counts = []
    for number in range(8):
        host.ask(NewTxn(None, 1, identity=(f"new-{number}", 1)))
        counts.append(len(host.tc.fencing.epochs))  # type: ignore[attr-defined]  # a FencingCoordinator
    assert all(before - after <= 4 for before, after in pairwise(counts))
    assert counts[-1] == 8


@pytest.mark.parametrize("status", [TxnStatus.OPEN, TxnStatus.COMMITTING])
def test_one_transaction_is_shown_by_its_number(status: TxnStatus) -> None:
    host = TcHost()
    txn_id = host.in_state(status)
    shown = host.tc.transaction(txn_id.least)
    assert shown is not None
    assert (shown.txn_id, shown.status) == (txn_id, status)
    assert host.tc.transaction(txn_id.least + 1) is None
