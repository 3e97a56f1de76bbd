"""Nonces: a NEW_TXN that is repeated opens nothing twice, over connections and restarts (KIP-98 leaves that to the client)."""

from __future__ import annotations

from typing import Any

import pytest
from insides import state_of
from lane_host import LaneHost
from tc_host import TcHost

from pulsar_txn.ledger.machine import Reply
from pulsar_txn.tc import Check, FencingCoordinator, NewTxn, TransactionCoordinator
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnStatus

TOPIC, OTHER = Participant("t"), Participant("t", "s")


class FencingHost(TcHost):
    """With transactional ids."""

    def fresh(self) -> TransactionCoordinator:
        return FencingCoordinator(self.tc_id, **self.options)


@pytest.mark.seed_rows("C37")
def test_a_repeat_is_answered_the_same_id_and_opens_nothing() -> None:
    host = TcHost()
    txn_id = host.new(nonce=b"once")
    written = len(host.log)
    assert host.ask(NewTxn("again", 60_000, nonce=b"once")).effects == (Reply("again", txn_id),)
    assert host.answers["again"] == txn_id
    assert len(host.log) == written
    assert host.new(nonce=b"twice") != txn_id
    assert host.new() != host.new(), "without a nonce each opens one"


@pytest.mark.seed_rows("C37")
def test_a_repeat_is_answered_after_the_first_one_is_durable() -> None:
    host = TcHost()
    host.ask(NewTxn("first", 60_000, nonce=b"once"))
    host.ask(NewTxn("again", 60_000, nonce=b"once"))
    assert not {"first", "again"} & host.answers.keys()
    host.confirm()
    assert host.answers["first"] == host.answers["again"]


@pytest.mark.seed_rows("C37")
@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_repeat_after_a_restart_is_answered_the_same_id(with_snapshot: bool) -> None:
    host = TcHost()
    txn_id = host.new(nonce=b"once", principal="anna")
    if with_snapshot:
        host.take_snapshot()
    host.crash()
    assert host.new(nonce=b"once", principal="anna") == txn_id
    host.tc.check_invariants()


def test_what_was_lost_with_a_crash_is_opened_by_the_repeat() -> None:
    host = TcHost()
    host.ask(NewTxn("first", 60_000, nonce=b"once"))
    host.crash()
    assert host.new(nonce=b"once").least == 0
    assert host.tc.active_count == 1


@pytest.mark.seed_rows("C37")
def test_owners_do_not_meet_by_their_nonces() -> None:
    host = FencingHost()
    owners: list[dict[str, Any]] = [
        {},
        {"principal": "anna"},
        {"principal": "bert"},
        {"principal": "anna", "identity": ("app", 1)},
        {"principal": "anna", "identity": ("other", 1)},
        {"principal": "anna", "identity": ("app", 2)},
    ]
    assert len({host.new(nonce=b"once", **owner) for owner in owners}) == len(owners)
    with pytest.raises(Refusal) as caught:
        host.new(nonce=b"once", principal="anna", identity=("app", 1))
    assert caught.value.code is ServerError.ProducerFenced


@pytest.mark.parametrize("status", [TxnStatus.OPEN, TxnStatus.PREPARED, TxnStatus.COMMITTING, TxnStatus.ABORTING])
def test_it_holds_while_the_transaction_takes_room(status: TxnStatus) -> None:
    host = TcHost()
    txn_id = host.in_state(status, nonce=b"once")
    assert host.new(nonce=b"once") == txn_id
    if status in (TxnStatus.OPEN, TxnStatus.PREPARED):
        host.end(txn_id, TxnAction.ABORT)
    host.done(txn_id)
    assert host.new(nonce=b"once") != txn_id
    host.tc.check_invariants()


def test_a_repeat_is_answered_where_there_is_no_room_for_another_one() -> None:
    host = TcHost(max_active=1, max_state_bytes=900)
    txn_id = host.new(nonce=b"once")
    assert host.new(nonce=b"once") == txn_id
    with pytest.raises(Refusal):
        host.new(nonce=b"twice")


@pytest.mark.seed_rows("C37")
def test_a_repeat_registers_first_participants_that_a_crash_has_lost() -> None:
    host = TcHost()
    host.ask(NewTxn("first", 60_000, participants=(TOPIC, OTHER), nonce=b"once"))
    host.crash(1)
    assert not host.tc.is_registered(host.tc.transactions()[0].txn_id, TOPIC)
    request = NewTxn("again", 60_000, participants=(TOPIC, OTHER), nonce=b"once")
    step = host.ask(request)
    assert len(step.records) == 2
    host.confirm()
    txn_id = host.answers["again"]
    assert host.tc.is_registered(txn_id, TOPIC)
    assert host.tc.is_registered(txn_id, OTHER)
    assert host.ask(request).records == ()
    host.end(txn_id, TxnAction.COMMIT)
    assert host.ask(request).effects == (Reply("again", txn_id),), "what is decided takes no participants"


def test_a_nonce_has_at_most_64_bytes() -> None:
    host = TcHost()
    with pytest.raises(Refusal) as caught:
        host.new(nonce=b"x" * 65)
    assert caught.value.code is ServerError.NotAllowedError
    assert host.new(nonce=b"x" * 64).least == 0


def test_a_nonce_alone_is_no_reason_for_a_format_that_older_readers_refuse() -> None:
    host = TcHost()
    txn_id = host.new(nonce=b"once")
    assert next(iter(host.tc.snapshot()))[:2] == b"\x08\x02"
    host.prepare(txn_id)
    assert next(iter(host.tc.snapshot()))[:2] == b"\x08\x04"
    host.end(txn_id, TxnAction.COMMIT)
    assert next(iter(host.tc.snapshot()))[:2] == b"\x08\x04", "the token of what has ended is kept"
    other = TcHost()
    checked = other.new(check=Check("g"))
    assert next(iter(other.tc.snapshot()))[:2] == b"\x08\x04"
    other.end(checked, TxnAction.COMMIT)
    assert next(iter(other.tc.snapshot()))[:2] == b"\x08\x02"


def test_in_lanes_a_repeat_takes_no_other_lane() -> None:
    host = LaneHost()
    txn_id = host.new(incarnation="i", nonce=b"once")
    assert host.new(incarnation="i", nonce=b"once") == txn_id
    host.crash()
    assert host.new(incarnation="i", nonce=b"once") == txn_id
    host.end(txn_id, TxnAction.COMMIT)
    assert host.new(incarnation="i", nonce=b"once").least != txn_id.least


def test_a_log_that_uses_a_nonce_twice_is_folded() -> None:
    host = TcHost()
    host.new(nonce=b"once")
    second = state_of(host.tc)
    entry = host.tc.decode("log", host.log[0])._replace(least=1, max_local_txn_id=1, data=None)
    host.append(entry)
    assert second.extra.nonces == {((None, None), b"once"): 1}
    host.end(type(host.tc.transactions()[0].txn_id)(3, 0), TxnAction.ABORT)
    assert host.new(nonce=b"once").least == 1
