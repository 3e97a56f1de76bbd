"""Participants that a transaction begins with: registered by the Step that opens it, or else nothing is opened."""

from __future__ import annotations

from typing import Any

import pytest
from tc_host import TcHost

from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc import LaneIds, NewTxn
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId

TOPIC, OTHER, SUBSCRIPTION = Participant("a"), Participant("b"), Participant("a", "s")


@pytest.mark.parametrize(
    "participants", [(), (TOPIC,), (SUBSCRIPTION,), (TOPIC, SUBSCRIPTION, OTHER), (TOPIC, TOPIC, SUBSCRIPTION, SUBSCRIPTION)]
)
def test_they_are_as_if_they_had_been_added(participants: tuple[Participant, ...]) -> None:
    together, apart = TcHost(), TcHost()
    txn_id = together.new(participants=participants)
    assert apart.new() == txn_id
    if participants:
        apart.add(txn_id, *participants)
    assert together.log == apart.log
    together.end(txn_id, TxnAction.COMMIT)
    together.confirm()
    told = [each.participant for each in together.released if type(each) is TellParticipant]
    assert sorted(told, key=str) == sorted(set(participants), key=str)


def test_in_a_lane_topics_and_subscriptions_are_registered_by_the_record_that_opens_it() -> None:
    host = TcHost(ids=LaneIds())
    txn_id = host.new(participants=(TOPIC, SUBSCRIPTION, OTHER))
    assert len(host.log) == 1
    host.confirm()
    host.crash()
    assert [host.tc.is_registered(txn_id, each) for each in (TOPIC, SUBSCRIPTION, OTHER)] == [True] * 3
    host.tc.check_invariants()


@pytest.mark.parametrize("identity", [None, ("id", 1)])
@pytest.mark.parametrize(
    ("limits", "code"),
    [({"max_participants": 1}, ServerError.NotAllowedError), ({"max_state_bytes": 1000}, ServerError.TooManyRequests)],
)
def test_what_a_transaction_may_not_have_opens_none(limits: dict[str, int], code: ServerError, identity: Any) -> None:
    host = TcHost(**limits)
    with pytest.raises(Refusal) as refused:
        host.ask(NewTxn("token", 1_000, identity=identity, participants=(TOPIC, Participant("c" * 500, "s"))))
    assert refused.value.code is code
    assert host.tc.next_local_txn_id == 0
    assert host.new(participants=(TOPIC,)) == TxnId(3, 0)
