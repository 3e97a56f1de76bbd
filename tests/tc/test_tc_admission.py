"""Who may do what, how many, how long; participants; the low watermark; how it is found."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tc_host import TcHost

from pulsar_txn.ledger.machine import Machine, Reply, TellParticipant
from pulsar_txn.tc import (
    INVARIANTS,
    AddParticipants,
    EndTxn,
    IsRegistered,
    NewTxn,
    ParticipantsDone,
    Record,
    Request,
    TransactionCoordinator,
)
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus


def refusal(host: TcHost, request: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        host.ask(request)
    return caught.value


@pytest.mark.seed_rows("D41")
def test_it_is_found_by_its_entry_point_and_is_a_machine() -> None:
    (point,) = entry_points(group="pulsar_txn.coordinators", name="log")
    assert point.load() is TransactionCoordinator
    machine: Machine[Request, Record] = TransactionCoordinator(0)
    assert list(machine.logs) == ["log"]
    assert set(INVARIANTS) == {"S2", "S18", "S16", "L1", "L7"}


@pytest.mark.parametrize("status", [TxnStatus.OPEN, TxnStatus.COMMITTING, TxnStatus.ABORTING])
def test_over_the_limit_is_refused_aloud_and_an_end_makes_room(status: TxnStatus) -> None:
    host = TcHost(max_active=2)
    host.in_state(status)
    last = host.in_state(TxnStatus.OPEN)
    caught = refusal(host, NewTxn("token", 1_000))
    assert caught.code is ServerError.TooManyRequests
    assert "2 transactions open" in caught.message
    assert host.answers["token"] is ServerError.TooManyRequests
    host.end(last, TxnAction.ABORT)
    host.done(last)
    assert host.new().least == 2


@pytest.mark.seed_rows("C14")
@pytest.mark.parametrize(
    ("timeout_ms", "says"),
    [
        (-1, "a timeout of -1 ms is in the past: ask for 0 or more"),
        (60_001, "ask for at most 60000 ms, or raise maxTransactionTimeoutInSeconds"),
    ],
)
def test_a_timeout_beyond_the_limit_is_not_allowed(timeout_ms: int, says: str) -> None:
    host = TcHost(max_timeout_ms=60_000)
    caught = refusal(host, NewTxn(None, timeout_ms))
    assert caught.code is ServerError.NotAllowedError
    assert says in caught.message
    assert host.new(60_000).least == 0


def test_the_longest_timeout_that_java_knows_is_kept() -> None:
    host = TcHost()
    host.new(2**63 - 1)
    host.take_snapshot()
    host.crash()
    assert host.tc.deadline() == host.now_ms + 2**63 - 1


@pytest.mark.parametrize("principal", ["", "  "])
def test_a_blank_owner_is_not_allowed(principal: str) -> None:
    assert refusal(TcHost(), NewTxn(None, 1, principal)).code is ServerError.NotAllowedError


OWNERS = [
    ({}, {}, True),
    ({}, {"principal": "bert"}, False),
    ({}, {"identity": ("app", 1)}, True),
    ({"principal": "anna"}, {"principal": "anna"}, True),
    ({"principal": "anna"}, {"principal": "bert"}, False),
    ({"principal": "anna"}, {}, False),
    ({"identity": ("app", 2)}, {"identity": ("app", 2)}, True),
    ({"identity": ("app", 2)}, {"identity": ("app", 1)}, False),
    ({"identity": ("app", 2)}, {"identity": ("other", 2)}, False),
    ({"identity": ("app", 2)}, {"principal": "anna"}, False),
    ({"principal": "anna", "identity": ("app", 2)}, {"principal": "anna", "identity": ("app", 2)}, True),
    ({"principal": "anna", "identity": ("app", 2)}, {"principal": "bert", "identity": ("app", 2)}, False),
]


@pytest.mark.parametrize(("owner", "asker", "may"), OWNERS)
@pytest.mark.parametrize("recovered", [False, True], ids=["live", "recovered"])
def test_what_the_owner_named_the_asker_must_name_alike(owner: Any, asker: Any, may: bool, recovered: bool) -> None:
    host = TcHost()
    txn_id = host.new(**owner)
    if recovered:
        host.take_snapshot()
        host.crash()
    requests = [AddParticipants(None, txn_id, (Participant("t"),), **asker), EndTxn(None, txn_id, TxnAction.COMMIT, **asker)]
    for request in requests:
        if may:
            host.ask(request)
        else:
            caught = refusal(host, request)
            assert caught.code is ServerError.TransactionNotFound
            unknown = refusal(host, EndTxn(None, TxnId(3, 99), TxnAction.COMMIT))
            assert caught.message.replace(str(txn_id), "") == unknown.message.replace("(3,99)", "")


def test_a_superuser_may_end_anybodys_transaction() -> None:
    host = TcHost()
    txn_id = host.new(principal="anna", identity=("app", 1))
    host.ask(EndTxn(None, txn_id, TxnAction.ABORT, principal="root", superuser=True))
    assert host.tc.status(txn_id) is TxnStatus.ABORTED


@pytest.mark.seed_rows("D49")
def test_only_new_participants_are_written_each_once_and_all_known_is_answered_without_a_record() -> None:
    host = TcHost()
    txn_id = host.new()
    t, u, ts = Participant("t"), Participant("u"), Participant("t", "s")
    step = host.add(txn_id, t, ts, t, ts)
    assert [(list(record.partitions), len(record.subscriptions)) for _, record in step.records] == [(["t"], 0), ([], 1)]
    step = host.add(txn_id, ts, t, u)
    assert [list(record.partitions) for _, record in step.records] == [["u"]]
    for again in ((), (u,), (t, ts)):
        assert host.add(txn_id, *again).records == ()
    assert host.tc.transactions()[0].participants == (t, u, ts)


def test_registered_means_open_and_added() -> None:
    host = TcHost()
    txn_id = host.in_state(TxnStatus.OPEN)
    host.add(txn_id, Participant("t", "s"))

    def asked(participant: Participant, of: TxnId = txn_id) -> object:
        (effect,) = host.ask(IsRegistered("token", of, participant)).effects
        assert isinstance(effect, Reply)
        return effect.value

    assert asked(Participant("t")) is asked(Participant("t", "s")) is True
    assert asked(Participant("u")) is asked(Participant("t", "r")) is False
    assert asked(Participant("t"), TxnId(4, txn_id.least)) is False
    host.end(txn_id, TxnAction.COMMIT)
    assert asked(Participant("t")) is False


@pytest.mark.seed_rows("C31")
def test_the_low_watermark_is_just_below_the_oldest_that_is_open_or_ending() -> None:
    host = TcHost()
    assert host.tc.low_watermark == -1
    a, b, c = host.in_state(TxnStatus.OPEN), host.in_state(TxnStatus.OPEN), host.in_state(TxnStatus.OPEN)

    def told(txn_id: TxnId) -> int:
        (mark,) = {
            effect.low_watermark for effect in host.end(txn_id, TxnAction.ABORT).effects if isinstance(effect, TellParticipant)
        }
        return mark

    assert told(b) == -1
    host.done(b)
    assert told(c) == -1
    assert told(a) == -1
    host.done(a)
    assert host.tc.low_watermark == 1
    host.done(c)
    assert host.tc.low_watermark == 2
    d = host.in_state(TxnStatus.OPEN)
    assert told(d) == 2


@pytest.mark.seed_rows("C06")
@given(st.lists(st.tuples(st.sampled_from(["new", "end", "done"]), st.integers(0, 6)), max_size=60))
def test_the_low_watermark_never_falls_and_never_covers_what_is_open_or_ending(steps: list[tuple[str, int]]) -> None:
    host = TcHost()
    mark = -1
    for kind, number in steps:
        txns = host.tc.transactions()
        if kind == "new" or not txns:
            host.add(host.new(), Participant("t"))
        else:
            txn_id = txns[number % len(txns)].txn_id
            if host.tc.status(txn_id) is TxnStatus.OPEN:
                host.end(txn_id, TxnAction.COMMIT)
            elif kind == "done":
                host.ask(ParticipantsDone(txn_id))
        assert mark <= host.tc.low_watermark
        mark = host.tc.low_watermark
        assert all(mark < info.txn_id.least for info in host.tc.transactions())
        assert mark >= -1
