"""Incarnations of a log: numbers of their own, lanes that are only ended, outcomes of foreign ones, and what is HELD."""

from __future__ import annotations

from typing import Any

import pytest
from insides import lanes_of, state_of
from lane_host import LaneHost
from tc_host import TcHost

from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc import BeginIncarnation, Check, EndTxn, NewTxn, PulsarIds, ReleaseHeld, TransactionCoordinator
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.ids import lane_of
from pulsar_txn.tc.lane_table import Lane
from pulsar_txn.tc.log_incarnations import COUNT_BITS, FIRST_SERVICE, LAST_SERVICE, end_of_lanes, first_lane, service_of
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import LANE_BIT, TxnAction, TxnId, TxnStatus, coordinator_of, signed64

ONE, TWO, THREE = FIRST_SERVICE + 1, FIRST_SERVICE + 2, LAST_SERVICE


class LivesHost(LaneHost):
    """A coordinator beside a cluster. `services` are begun one after the other, with a restart before each."""

    def __init__(self, *services: int, **options: Any) -> None:
        super().__init__(has_incarnations=True, **options)
        for number, service in enumerate(services):
            if number:
                self.crash()
            self.begin(service)

    def begin(self, service: int, *hold: TxnId, **more: Any) -> None:
        self.ask(BeginIncarnation(object(), service, tuple(each.least for each in hold), **more))
        self.confirm()

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        status: TxnStatus | None = self.tc.status(txn_id)
        return status


def service_in(txn_id: TxnId) -> int:
    return service_of(lane_of(txn_id.most))


def test_an_id_has_bit_62_the_coordinator_the_life_and_a_count() -> None:
    host = LivesHost(ONE, tc_id=(1 << 14) - 1)
    first, second = host.opened("i"), host.opened("i")
    assert first.most == LANE_BIT | ((1 << 14) - 1) << 48 | ONE << COUNT_BITS | 1
    assert second.most == first.most + 1
    assert coordinator_of(first.most) == (1 << 14) - 1
    assert signed64(first.most) > 0
    assert first_lane(THREE) < end_of_lanes(THREE) == 1 << 48


@pytest.mark.parametrize("incarnation", ["i", None])
def test_each_life_gives_lanes_of_its_own_also_to_clients_without_an_incarnation(incarnation: str | None) -> None:
    host = LivesHost(ONE)
    before = [host.finished(incarnation) for _ in range(3)]
    host.crash()
    host.begin(TWO)
    after = [host.finished(incarnation) for _ in range(3)]
    assert {service_in(each) for each in before} == {ONE}
    assert {service_in(each) for each in after} == {TWO}


def test_lanes_of_an_older_life_are_only_ended() -> None:
    host = LivesHost(ONE)
    idle, open_, pooled = host.finished("idle"), host.opened("open"), host.finished("pooled")
    host.goodbye("pooled")
    host.crash()
    host.begin(TWO)
    assert [host.lane(each) for each in (idle, open_, pooled)] == [Lane.RETIRED, Lane.OPEN, Lane.RETIRED]
    host.end(open_, TxnAction.COMMIT)
    host.done(open_)
    assert host.lane(open_) is Lane.RETIRED
    assert {service_in(host.opened(each)) for each in ("idle", "open", "new")} == {TWO}


def test_a_log_of_before_lives_goes_on_and_its_lanes_are_only_ended() -> None:
    old = LaneHost()
    open_, idle = old.opened("open"), old.finished("idle")
    old.confirm()
    host = LivesHost(log=old.log)
    host.begin(ONE)
    assert service_in(open_) == 0
    assert host.lane(idle) is Lane.RETIRED
    host.end(open_, TxnAction.COMMIT)
    host.done(open_)
    host.confirm()
    assert host.status(open_) is TxnStatus.COMMITTED
    assert host.status(idle) is TxnStatus.COMMITTED, "a repeat is answered"
    assert service_in(host.opened("idle")) == ONE
    assert lanes_of(host.tc).given == 3


def test_nothing_is_opened_and_nothing_open_ends_by_itself_before_the_life_has_begun() -> None:
    host = LivesHost(ONE)
    open_ = host.opened("i", timeout_ms=5)
    ending = host.opened("i")
    host.end(ending, TxnAction.COMMIT)
    host.crash()
    host.now_ms += 10**9
    host.expire()
    assert host.status(open_) is TxnStatus.OPEN
    told = len(host.released)
    with pytest.raises(Refusal) as refused:
        host.ask(NewTxn("token", 1000, incarnation="i"))
    assert refused.value.code is ServerError.ServiceNotReady
    host.begin(TWO)
    host.expire()
    host.confirm()
    assert {each.txn_id for each in host.released[told:]} >= {ending, open_}
    assert host.status(open_) is TxnStatus.ABORTING


def test_an_id_of_a_life_that_the_log_does_not_know_has_no_outcome_here() -> None:
    host = LivesHost(ONE)
    known = host.finished("i")
    lost = TxnId(LANE_BIT | 3 << 48 | first_lane(THREE) + 1, known.least)
    old = TxnId(LANE_BIT | 3 << 48 | 1, known.least)
    assert host.status(known) is TxnStatus.COMMITTED
    for foreign in (lost, old):
        assert host.status(foreign) is None
        assert not host.tc.belongs_to(foreign, None)
        with pytest.raises(Refusal) as refused:
            host.end(foreign, TxnAction.COMMIT)
        assert refused.value.code is ServerError.TransactionNotFound


def test_when_lanes_are_used_up_a_life_that_goes_on_gives_others_and_clients_keep_theirs() -> None:
    host = LivesHost(ONE)
    kept = host.finished("i")
    lanes_of(host.tc).next_lane = end_of_lanes(ONE) - 1
    assert host.tc.ids_left == 1
    host.opened(None)
    with pytest.raises(Refusal) as refused:
        host.ask(NewTxn("token", 1000))
    assert refused.value.code is ServerError.ServiceNotReady
    host.begin(TWO, goes_on=True)
    assert service_in(host.opened(None)) == TWO
    assert host.opened("i").most == kept.most


def test_a_log_holds_what_it_wrote_in_each_of_its_lives_and_nothing_beyond() -> None:
    host = LivesHost(ONE)
    host.finished("i")
    end_of_one = host.tc.position
    host.crash()
    host.begin(TWO)
    host.finished("i")
    newest = host.tc.position
    ledger, entry = newest
    assert host.tc.holds(ONE, end_of_one)
    assert host.tc.holds(TWO, newest)
    assert not host.tc.holds(TWO, (ledger, entry + 1)), "rolled back within the life"
    assert not host.tc.holds(ONE, newest), "the life went on elsewhere"
    assert not host.tc.holds(THREE, (0, 0)), "a life that this log does not know"


def test_what_is_decided_in_a_restored_log_is_held_as_well() -> None:
    """The process that lost its claims, and did not know it yet, has decided it, and nobody was told."""
    host = LivesHost(ONE)
    committing, aborting = host.opened("i"), host.opened("i")
    host.end(committing, TxnAction.COMMIT)
    host.end(aborting, TxnAction.ABORT)
    host.crash()
    told = len(host.released)
    host.begin(TWO, committing, aborting)
    host.expire()
    host.confirm()
    assert {host.status(each) for each in (committing, aborting)} == {TxnStatus.HELD}
    assert not [each for each in host.released[told:] if getattr(each, "participant", None)]
    host.end(committing, TxnAction.COMMIT, superuser=True)
    host.confirm()
    assert [each.txn_id for each in host.released[told:] if getattr(each, "participant", None)] == [committing]
    host.tc.check_invariants()


def in_doubt(host: LivesHost) -> tuple[TxnId, TxnId, TxnId]:
    """An open one, a prepared one, and one with a check group, all held when the next life begins."""
    plain, prepared = host.opened("i", timeout_ms=5), host.opened("i")
    checked = host.new(incarnation="i", check=Check("group", after_ms=1), timeout_ms=5)
    host.prepare(prepared)
    return plain, prepared, checked


@pytest.mark.parametrize("snapshot", [False, True])
def test_what_is_held_stays_so_through_restarts_and_takes_no_room_from_others(snapshot: bool) -> None:
    host = LivesHost(ONE, max_active=3)
    three = in_doubt(host)
    host.crash()
    host.begin(TWO, *three)
    if snapshot:
        host.take_snapshot()
    host.crash()
    host.begin(THREE)
    host.now_ms += 10**9
    host.expire()
    host.goodbye("i")
    assert {host.status(each) for each in three} == {TxnStatus.HELD}
    assert [info.held for info in host.tc.held(Cause.RESTORED)] == [Cause.RESTORED] * 3
    for each in three:
        for action in TxnAction:
            with pytest.raises(Refusal) as refused:
                host.ask(EndTxn("token", each, action, prepared_token=b"token"))
            assert refused.value.code is ServerError.ServiceNotReady
    host.opened("j")
    for each, action in zip(three, (TxnAction.COMMIT, TxnAction.ABORT, TxnAction.COMMIT), strict=True):
        host.end(each, action, superuser=True)
        host.confirm()
        host.done(each)
    host.confirm()
    assert [host.status(each) for each in three] == [TxnStatus.COMMITTED, TxnStatus.ABORTED, TxnStatus.COMMITTED]
    assert host.tc.held_count == 0
    host.tc.check_invariants()


def test_what_is_held_in_doubt_goes_on_when_nothing_was_lost_and_else_stays_held() -> None:
    host = LivesHost(ONE)
    going, staying = host.opened("i", timeout_ms=5), host.opened("i", timeout_ms=5)
    host.crash()
    host.begin(TWO, going, staying, cause=Cause.DOUBT)
    host.begin(TWO, staying, goes_on=True)
    host.ask(ReleaseHeld("token", (going.least, staying.least)))
    assert [host.status(each) for each in (going, staying)] == [TxnStatus.OPEN, TxnStatus.HELD]
    host.now_ms += 10
    host.expire()
    assert [host.status(each) for each in (going, staying)] == [TxnStatus.ABORTING, TxnStatus.HELD]
    host.confirm()
    host.done(going)
    host.confirm()
    assert host.lane(going) is Lane.RETIRED
    host.tc.check_invariants()


def test_an_epoch_does_not_wait_for_what_is_held_of_an_older_one() -> None:
    host = LivesHost(ONE)
    held = host.opened("i", identity=("app", 1))
    host.crash()
    host.begin(TWO, held)
    assert host.answers[host.take_over(2)] is True


def test_without_lanes_numbers_are_given_only_from_what_is_reserved() -> None:
    host = TcHost(ids=PulsarIds(first_least=10), has_incarnations=True)
    host.ask(BeginIncarnation(0, ONE, first_least=100, until_least=102))
    assert [host.new(), host.new()] == [TxnId(3, 100), TxnId(3, 101)]
    with pytest.raises(Refusal) as refused:
        host.ask(NewTxn("token", 1000))
    assert refused.value.code is ServerError.ServiceNotReady
    host.ask(BeginIncarnation(1, ONE, goes_on=True, until_least=110))
    assert host.new() == TxnId(3, 102)
    assert host.tc.ids_left == 7
    host.take_snapshot()
    host.crash()
    host.ask(BeginIncarnation(2, TWO, first_least=200, until_least=300))
    assert host.new() == TxnId(3, 200)


def test_a_snapshot_says_the_lives_and_an_older_version_refuses_it() -> None:
    host = LivesHost(ONE, TWO)
    host.opened("i")
    parts = list(host.tc.snapshot())
    again = host.fresh()
    for part in parts:
        again.restore(part)
    assert state_of(again).incarnations.kept == state_of(host.tc).incarnations.kept
    assert lanes_of(again).giving == (TWO,)
    assert list(again.snapshot()) == parts
    assert isinstance(again, TransactionCoordinator)


def test_the_records_that_hold_are_of_the_new_life() -> None:
    """The original, of which this log is a copy, has written something else at their place."""
    host = LivesHost(ONE)
    open_ = host.opened("i")
    ledger, entry = host.tc.position
    host.crash()
    host.begin(TWO, open_)
    assert host.tc.holds(ONE, (ledger, entry))
    assert not host.tc.holds(ONE, (ledger, entry + 1))


@pytest.mark.parametrize("gone", ["goodbye", "lease", "successor"])
@pytest.mark.parametrize("when", ["held", "released"])
def test_what_a_client_leaves_behind_that_is_held_in_doubt_is_aborted_when_the_doubt_is_over(gone: str, when: str) -> None:
    host = LivesHost(ONE)
    identity = {"identity": ("app", 1)} if gone == "successor" else {}
    left, other, nameless = host.opened("i", **identity), host.opened("other"), host.opened(None)
    host.crash()
    host.begin(TWO, left, other, nameless, cause=Cause.DOUBT)

    def release() -> None:
        host.ask(ReleaseHeld("token", (left.least, other.least, nameless.least)))
        host.confirm()

    def goes() -> None:
        if gone == "goodbye":
            host.goodbye("i")
        elif gone == "lease":
            host.vanish("i")
        else:
            host.take_over(2)

    for step in (goes, release) if when == "held" else (release, goes):
        step()
        host.tc.check_invariants()
    host.expire()
    host.confirm()
    assert host.status(left) is TxnStatus.ABORTING
    assert [each.txn_id for each in host.released if isinstance(each, TellParticipant)][-1:] == [left]
    assert host.renew("other")
    for each in (other, nameless):
        assert host.status(each) is TxnStatus.OPEN
        host.end(each, TxnAction.COMMIT)
    host.confirm()
    for each in (left, other, nameless):
        host.done(each)
    host.confirm()
    assert {host.lane(each) for each in (left, other, nameless)} == {Lane.RETIRED}
    host.tc.check_invariants()


def test_what_has_a_check_group_is_released_although_its_client_is_gone() -> None:
    host = LivesHost(ONE)
    checked = host.new(incarnation="i", check=Check("group"))
    host.crash()
    host.begin(TWO, checked, cause=Cause.DOUBT)
    host.vanish("i")
    host.ask(ReleaseHeld("token", (checked.least,)))
    assert host.status(checked) is TxnStatus.OPEN
    host.tc.check_invariants()
