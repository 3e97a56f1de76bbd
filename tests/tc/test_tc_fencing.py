"""Fencing: of all instances of a transactional id only the newest goes on, whatever crashes in between."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tc_host import TcHost

from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc import Fencing, FencingCoordinator, TransactionCoordinator
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
FENCED = ServerError.ProducerFenced


class FencingHost(TcHost):
    """The host of the coordinator's tests, with the fencing one."""

    tc: FencingCoordinator

    def fresh(self) -> TransactionCoordinator:
        return FencingCoordinator(self.tc_id, **self.options)


def instance(epoch: int, name: str = "app", **more: Any) -> dict[str, Any]:
    return {"identity": (name, epoch), **more}


def epochs(host: FencingHost) -> dict[str, int]:
    """The highest epoch of every transactional id without a principal."""
    return {name: epoch for (principal, name), (epoch, _) in host.tc.fencing.epochs.items() if principal is None}


def refused(call: Any, *args: Any, **kwargs: Any) -> ServerError:
    with pytest.raises(Refusal) as caught:
        call(*args, **kwargs)
    return caught.value.code


@pytest.mark.seed_rows("B19", "D41")
def test_it_is_found_by_its_entry_point() -> None:
    (point,) = entry_points(group="pulsar_txn.coordinators", name="fencing")
    assert point.load() is FencingCoordinator


def test_a_successor_ends_what_its_predecessor_left_open_before_it_is_given_an_id() -> None:
    host = FencingHost()
    old = host.new(**instance(1))
    host.add(old, Participant("t"), **instance(1))
    told = len(host.released)
    new = host.new(**instance(2))
    assert host.tc.status(old) is TxnStatus.ABORTING
    assert host.tc.status(new) is TxnStatus.OPEN
    tells = [effect for effect in host.released[told:] if isinstance(effect, TellParticipant)]
    assert [(each.txn_id, each.action) for each in tells] == [(old, ABORT)]


@pytest.mark.seed_rows("E14")
def test_a_torn_step_leaves_aborts_without_a_successor_never_a_successor_beside_open_ones() -> None:
    host = FencingHost()
    olds = [host.new(**instance(1)) for _ in range(2)]
    before = len(host.log)
    new = host.new(**instance(2))
    for keep in range(before, len(host.log) + 1):
        torn = FencingHost(log=host.log[:keep])
        if torn.tc.status(new) is not None:
            assert [torn.tc.status(old) for old in olds] == [TxnStatus.ABORTED] * 2


@pytest.mark.seed_rows("C10")
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_zombie_is_told_that_it_is_fenced(crash: bool, snapshot: bool) -> None:
    host = FencingHost()
    old = host.new(**instance(1))
    host.new(**instance(2))
    if snapshot:
        host.take_snapshot()
    if crash:
        host.crash()
    assert refused(host.new, **instance(1)) is FENCED
    assert refused(host.add, old, Participant("t"), **instance(1)) is FENCED
    assert refused(host.end, old, COMMIT, **instance(1)) is FENCED
    assert refused(host.end, TxnId(3, 99), COMMIT, **instance(1)) is ServerError.TransactionNotFound, "may have happened"
    host.end(old, ABORT, "again", **instance(1))
    assert host.answers["again"] in (None, ABORT), "what it asks for has happened"


@pytest.mark.seed_rows("E14")
def test_a_commit_decided_before_the_fence_stays_one() -> None:
    host = FencingHost()
    old = host.new(**instance(1))
    host.add(old, Participant("t"), **instance(1))
    host.end(old, COMMIT, "first", **instance(1))
    host.new(**instance(2))
    host.end(old, COMMIT, "repeat", **instance(1))
    host.end(old, COMMIT, "successor", **instance(2))
    host.done(old)
    host.confirm()
    assert host.answers["first"] is host.answers["repeat"] is host.answers["successor"] is COMMIT


def test_a_successor_may_ask_for_the_outcomes_of_those_before_it_and_not_the_other_way_round() -> None:
    host = FencingHost()
    old = host.new(**instance(1))
    new = host.new(**instance(2))
    assert refused(host.end, old, COMMIT, **instance(2)) is ServerError.InvalidTxnStatus
    assert refused(host.end, new, COMMIT, **instance(1)) is ServerError.TransactionNotFound
    assert refused(host.end, new, COMMIT, **instance(2, "other")) is ServerError.TransactionNotFound
    assert refused(host.end, new, COMMIT) is ServerError.TransactionNotFound


def test_one_epoch_has_as_many_transactions_as_it_likes_and_plain_clients_are_never_fenced() -> None:
    host = FencingHost()
    plain = host.new()
    many = [host.new(**instance(7)) for _ in range(3)]
    other = host.new(**instance(1, "other"))
    anna = host.new(**instance(1, principal="anna"))
    for txn_id in (plain, *many, other, anna):
        assert host.tc.status(txn_id) is TxnStatus.OPEN
    host.new(**instance(8))
    host.tc.check_invariants()
    for txn_id in (plain, other, anna):
        assert host.tc.status(txn_id) is TxnStatus.OPEN
    host.end(plain, COMMIT, "plain")
    assert host.answers["plain"] is COMMIT
    assert epochs(host) == {"app": 8, "other": 1}


@pytest.mark.seed_rows("E11")
def test_an_id_out_of_use_is_forgotten_and_what_it_left_open_is_fenced_all_the_same() -> None:
    host = FencingHost(id_retention_ms=10_000)
    old = host.new(timeout_ms=10**9, **instance(5))
    host.now_ms += 10_001
    host.new(**instance(1, "other"))
    assert epochs(host) == {"other": 1}
    host.take_snapshot()
    host.crash()
    assert epochs(host) == {"other": 1}
    host.new(**instance(6))
    assert host.tc.status(old) is TxnStatus.ABORTED


@pytest.mark.seed_rows("B19")
def test_it_takes_over_the_log_and_the_snapshot_of_a_plain_coordinator() -> None:
    plain = TcHost()
    open_one = plain.new(**instance(3))
    plain.take_snapshot()
    host = FencingHost(log=plain.log, stored=plain.stored)
    assert epochs(host) == {}
    host.new(**instance(4))
    assert host.tc.status(open_one) is TxnStatus.ABORTED


class Instances(RuleBasedStateMachine):
    """Two ids, instances that come and go, crashes: only an instance that opened before every newer one is fenced."""

    def __init__(self) -> None:
        super().__init__()
        self.host = FencingHost(snapshot_every=7)
        self.newest = {"a": 0, "b": 0}
        self.opened: list[tuple[str, int, TxnId]] = []
        self.committed: set[TxnId] = set()

    @rule(name=st.sampled_from("ab"), ahead=st.integers(-2, 1))
    def begin(self, name: str, ahead: int) -> None:
        epoch = max(0, self.newest[name] + ahead)
        if epoch < self.newest[name]:
            assert refused(self.host.new, **instance(epoch, name)) is FENCED
            return
        self.newest[name] = epoch
        self.opened.append((name, epoch, self.host.new(**instance(epoch, name))))

    @rule(pick=st.integers(0, 30), action=st.sampled_from(TxnAction))
    def end(self, pick: int, action: TxnAction) -> None:
        if not self.opened:
            return
        name, epoch, txn_id = self.opened[pick % len(self.opened)]
        fenced = epoch < self.newest[name]
        status = self.host.tc.status(txn_id)
        over = status in (TxnStatus.COMMITTED, TxnStatus.ABORTED)
        if over and (status is TxnStatus.COMMITTED) != (action is COMMIT):
            wanted = FENCED if fenced else ServerError.InvalidTxnStatus
            assert refused(self.host.end, txn_id, action, **instance(epoch, name)) is wanted
            return
        self.host.end(txn_id, action, **instance(epoch, name))
        if action is COMMIT:
            self.committed.add(txn_id)

    @rule(snapshot=st.booleans())
    def crash(self, snapshot: bool) -> None:
        if snapshot:
            self.host.take_snapshot()
        self.host.crash()

    @invariant()
    def only_the_newest_have_something_open(self) -> None:
        self.host.tc.check_invariants()
        for name, epoch, txn_id in self.opened:
            status = self.host.tc.status(txn_id)
            assert (status is TxnStatus.COMMITTED) == (txn_id in self.committed)
            assert status is not TxnStatus.OPEN or epoch == self.newest[name]


TestInstances = Instances.TestCase


def test_the_invariant_sees_a_zombie() -> None:
    host = FencingHost()
    host.new(**instance(1))
    host.tc.fencing.epochs[None, "app"] = (2, 0)
    with pytest.raises(AssertionError, match="fencing"):
        host.tc.check_invariants()


def test_a_client_without_a_transactional_id_is_not_followed() -> None:
    fencing, plain = Fencing(), ("anna", None)
    fencing.entered(plain, 1, is_open=True)
    fencing.note(plain, 5)
    fencing.check_asker(plain)
    fencing.left_open(plain, 1)
    fencing.ended(plain, 1)
    assert not fencing.open_of(plain)
    assert not len(fencing.epochs)
    assert not fencing.unfinished
