"""Leases and take-overs of clients.

A client that lives keeps what it has. One that is gone keeps nobody waiting. A successor begins after everything has ended.
"""

from __future__ import annotations

from typing import Any

import pytest
from insides import lanes_of
from lane_host import TOPIC, LaneHost
from tc_host import TcHost

from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc import Check, FencingCoordinator, TakeOver, TransactionCoordinator, Vanished
from pulsar_txn.tc.lane_table import Lane
from pulsar_txn.tc.leases import Leases
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
LEASE_MS = 30_000


def refused(call: Any, *args: Any, **kwargs: Any) -> ServerError:
    with pytest.raises(Refusal) as caught:
        call(*args, **kwargs)
    return caught.value.code


def pass_time(host: TcHost, ms: int) -> None:
    host.now_ms += ms
    host.expire()
    host.confirm()


# ---------------------------------------------------------------------------------------------------- leases


def test_what_a_client_has_open_is_aborted_when_its_lease_is_over_long_before_its_timeout() -> None:
    host = LaneHost()
    gone, alive = host.opened("a", timeout_ms=10**9), host.opened("b", timeout_ms=10**9)
    idle = host.finished("a")
    pass_time(host, LEASE_MS - 1)
    assert host.tc.status(gone) is TxnStatus.OPEN
    assert host.renew("b") is True
    pass_time(host, 1)
    assert host.tc.status(gone) is TxnStatus.ABORTING
    assert TellParticipant(gone, TOPIC, ABORT, gone.least) in host.released
    assert (host.lane(gone), host.lane(idle)) == (Lane.RETIRING, Lane.RETIRED)
    assert host.tc.status(alive) is TxnStatus.OPEN
    assert host.renew("a") is False
    host.done(gone)
    host.tc.check_invariants()


def test_a_client_that_renews_in_time_keeps_everything() -> None:
    host = LaneHost()
    txn_id = host.opened(timeout_ms=10**9)
    for _ in range(20):
        pass_time(host, LEASE_MS - 1)
        assert host.renew() is True
    assert host.tc.status(txn_id) is TxnStatus.OPEN
    assert len(host.log) == 2


def test_a_new_transaction_is_a_sign_of_life() -> None:
    host = LaneHost()
    first = host.opened(timeout_ms=10**9)
    pass_time(host, LEASE_MS - 1)
    host.opened(timeout_ms=10**9)
    pass_time(host, LEASE_MS - 1)
    assert host.tc.status(first) is TxnStatus.OPEN


@pytest.mark.parametrize("snapshot", [False, True])
def test_after_a_restart_every_client_has_a_whole_lease_again(snapshot: bool) -> None:
    host = LaneHost()
    txn_id = host.opened(timeout_ms=10**9)
    pass_time(host, LEASE_MS - 1)
    if snapshot:
        host.take_snapshot()
    host.crash()
    pass_time(host, LEASE_MS - 1)
    assert host.tc.status(txn_id) is TxnStatus.OPEN
    pass_time(host, 1)
    assert host.tc.status(txn_id) is TxnStatus.ABORTING


def test_a_client_that_comes_back_after_its_lease_gets_other_lanes() -> None:
    host = LaneHost()
    before = [host.opened(), host.finished()]
    pass_time(host, LEASE_MS)
    assert host.opened().most not in {txn_id.most for txn_id in before}


def test_a_commit_that_was_decided_before_the_lease_was_over_stays_one() -> None:
    host = LaneHost()
    txn_id = host.opened()
    host.end(txn_id, COMMIT, "token")
    pass_time(host, LEASE_MS)
    assert host.lane(txn_id) is Lane.RETIRING
    host.done(txn_id)
    assert host.answers["token"] is COMMIT
    assert host.lane(txn_id) is Lane.RETIRED


def test_a_host_that_knows_that_a_client_is_gone_need_not_wait_for_its_lease() -> None:
    host = LaneHost()
    txn_id = host.opened()
    host.vanish()
    assert host.tc.status(txn_id) is TxnStatus.ABORTING
    written = len(host.log)
    host.vanish()
    assert len(host.log) == written, "it is not known any more"


def test_a_client_that_is_gone_with_very_much_open_is_aborted_a_bounded_number_at_a_time() -> None:
    host = LaneHost(expire_limit=3)
    left_open = [host.opened(timeout_ms=10**9) for _ in range(10)]
    host.now_ms += LEASE_MS
    steps = 0
    while (deadline := host.tc.deadline()) is not None and deadline <= host.now_ms:
        step = host.tc.expire(host.now_ms)
        assert len(step.records) <= 4
        host.carry_out(step)
        steps += 1
    host.confirm()
    assert steps == 4
    assert {host.tc.status(txn_id) for txn_id in left_open} == {TxnStatus.ABORTING}


def test_a_client_that_said_goodbye_with_very_much_open_is_not_brought_back_by_a_renewal() -> None:
    """Its connection may be open for a moment longer, and the server renews leases of whoever is connected."""
    host = LaneHost(expire_limit=3)
    left_open = [host.opened(timeout_ms=10**9) for _ in range(10)]
    host.goodbye()
    while (deadline := host.tc.deadline()) is not None and deadline <= host.now_ms:
        assert host.renew() is False
        host.carry_out(host.tc.expire(host.now_ms))
    host.confirm()
    assert {host.tc.status(txn_id) for txn_id in left_open} == {TxnStatus.ABORTING}
    assert host.tc.status(host.opened(timeout_ms=10**9)) is TxnStatus.OPEN, "a client that begins again is alive"
    assert host.renew() is True


def test_a_crash_between_the_aborts_and_the_end_of_a_client_leaves_no_lane_that_others_get() -> None:
    host = LaneHost()
    left_open = [host.opened(timeout_ms=10**9) for _ in range(3)]
    before = len(host.log)
    host.ask(Vanished("i"))
    for keep in range(before, len(host.log) + 1):
        torn = LaneHost(log=host.log[:keep])
        torn.confirm()
        other = torn.opened("other")
        assert other.most not in {txn_id.most for txn_id in left_open}
        pass_time(torn, LEASE_MS)
        assert {torn.tc.status(txn_id) for txn_id in left_open} == {TxnStatus.ABORTING}
        assert not lanes_of(torn.tc).leases
        torn.tc.check_invariants()


def test_a_client_without_an_incarnation_has_no_lease() -> None:
    host = LaneHost()
    txn_id = host.opened(None, timeout_ms=10**9)
    pass_time(host, 10 * LEASE_MS)
    assert host.tc.status(txn_id) is TxnStatus.OPEN


def test_incarnations_of_different_principals_do_not_meet() -> None:
    host = LaneHost()
    host.opened(principal="anna", timeout_ms=10**9)
    assert host.renew(principal="bert") is False
    assert host.renew() is False
    assert host.renew(principal="anna") is True


def test_leases_end_in_the_order_in_which_their_clients_were_heard() -> None:
    leases = Leases(10)
    for now_ms, name in enumerate("abc"):
        leases.heard((None, name), now_ms)
    leases.heard((None, "a"), 5)
    assert [leases.deadline(), leases.over(10), leases.over(11)] == [11, None, (None, "b")]
    leases.end((None, "a"))
    assert leases.over(0) == (None, "a")
    leases.forget((None, "a"))
    leases.forget((None, "a"))
    assert ((None, "a") in leases, len(leases)) == (False, 2)
    leases.begin_all([], 0)
    assert leases.deadline() is None
    assert leases.over(10**9) is None


# ---------------------------------------------------------------------------------------------------- take-overs


def test_a_take_over_is_answered_after_everything_of_older_epochs_has_ended_at_all_participants() -> None:
    host = LaneHost()
    left_open, decided, over = (host.opened(identity=("app", 1)) for _ in range(3))
    host.end(decided, COMMIT, identity=("app", 1))
    host.end(over, COMMIT, identity=("app", 1))
    host.done(over)
    token = host.take_over(2)
    assert host.tc.status(left_open) is TxnStatus.ABORTING
    assert token not in host.answers
    host.done(left_open)
    assert host.answers[token] is ABORT, "one of them has ended, so the host asks again"
    token = host.take_over(2)
    assert token not in host.answers
    host.done(decided)
    assert host.answers[token] is COMMIT
    written = len(host.log)
    assert host.answers[host.take_over(2)] is True
    assert len(host.log) == written, "a repeat writes nothing"


def test_a_take_over_without_anything_to_end_is_answered_once_it_is_durable() -> None:
    host = LaneHost()
    token = object()
    host.ask(TakeOver(token, ("app", 1)))
    assert token not in host.answers
    host.confirm()
    assert host.answers[token] is True


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_zombie_is_fenced_by_a_take_over_also_after_a_crash(snapshot: bool) -> None:
    host = LaneHost()
    old = host.opened(identity=("app", 1))
    host.take_over(2)
    if snapshot:
        host.take_snapshot()
    host.crash()
    for attempt in (
        lambda: host.new(identity=("app", 1)),
        lambda: host.add(old, Participant("u"), identity=("app", 1)),
        lambda: host.end(old, COMMIT, identity=("app", 1)),
        lambda: host.take_over(1),
    ):
        assert refused(attempt) is ServerError.ProducerFenced


def test_no_lane_of_an_older_epoch_is_used_again() -> None:
    host = LaneHost()
    identity = ("app", 1)
    idle, busy = host.finished(identity=identity), None
    busy = host.opened(identity=identity)
    pooled = host.finished("j", identity=identity)
    host.goodbye("j")
    assert host.opened("k", identity=("app", 2)).most not in {idle.most, busy.most, pooled.most}
    assert [host.lane(txn_id) for txn_id in (idle, busy, pooled)] == [Lane.RETIRING, Lane.RETIRING, Lane.RETIRED]
    assert idle.most == busy.most
    host.done(busy)
    assert host.lane(busy) is Lane.RETIRED
    host.tc.check_invariants()


def test_other_ids_and_other_principals_are_left_alone_by_a_take_over() -> None:
    host = LaneHost()
    others = [
        host.opened(identity=("other", 1)),
        host.opened(identity=("app", 1), principal="anna"),
        host.opened(),
        host.opened(identity=("app", 2)),
    ]
    assert host.answers[host.take_over(2)] is True
    assert {host.tc.status(txn_id) for txn_id in others} == {TxnStatus.OPEN}


def test_a_torn_take_over_leaves_aborts_without_a_successor_never_a_successor_beside_open_ones() -> None:
    host = LaneHost()
    olds = [host.opened(identity=("app", 1)) for _ in range(3)]
    before = len(host.log)
    host.take_over(2)
    for keep in range(before, len(host.log) + 1):
        torn = LaneHost(log=host.log[:keep])
        if torn.tc.fencing.epochs[None, "app"][0] == 2:  # type: ignore[attr-defined]  # it fences
            assert {torn.tc.status(txn_id) for txn_id in olds} == {TxnStatus.ABORTING}
        torn.tc.check_invariants()


def test_a_take_over_is_a_sign_of_life() -> None:
    host = LaneHost()
    txn_id = host.opened(identity=("app", 1), timeout_ms=10**9)
    pass_time(host, LEASE_MS - 1)
    host.take_over(1, incarnation="i")
    host.take_over(1, incarnation="nobody")
    pass_time(host, LEASE_MS - 1)
    assert host.tc.status(txn_id) is TxnStatus.OPEN


class _Broker(TcHost):
    def fresh(self) -> TransactionCoordinator:
        return FencingCoordinator(self.tc_id, **self.options)


def test_a_broker_s_coordinator_takes_over_as_well() -> None:
    host = _Broker()
    stranger, old, decided = host.new(), host.new(identity=("app", 1)), host.new(identity=("app", 1))
    for txn_id, who in ((stranger, {}), (old, {"identity": ("app", 1)}), (decided, {"identity": ("app", 1)})):
        host.add(txn_id, TOPIC, **who)
    for txn_id, who in ((stranger, {}), (decided, {"identity": ("app", 1)})):
        host.end(txn_id, COMMIT, **who)
    answers = []
    for txn_id in (old, decided, None):
        host.ask(TakeOver(token := object(), ("app", 2)))
        host.confirm()
        if txn_id is not None:
            assert token not in host.answers
            host.done(txn_id)
        answers.append(host.answers[token])
    assert answers == [ABORT, COMMIT, True]
    assert host.tc.status(stranger) is TxnStatus.COMMITTING
    host.take_snapshot()
    host.crash()
    assert refused(host.new, identity=("app", 1)) is ServerError.ProducerFenced


def test_a_coordinator_that_does_not_fence_refuses_take_overs() -> None:
    host = TcHost()
    assert refused(host.ask, TakeOver("token", ("app", 1))) is ServerError.NotAllowedError
    other = _Broker()
    other.ask(TakeOver("token", ("app", 1)))
    other.confirm()
    other.crash()
    assert other.tc.next_local_txn_id == 0, "no id was given yet"
    assert refused(other.new, identity=("app", 0)) is ServerError.ProducerFenced
    plain = TcHost(log=other.log)
    assert plain.new() == TxnId(3, 0), "it passes over the record of one that fences"


def test_operators_see_who_holds_lanes_and_how_many_there_are() -> None:
    host = LaneHost()
    txn_id = host.opened("a")
    host.finished("b")
    host.finished("c")
    host.goodbye("c")
    by_name = {each.incarnation: each for each in host.tc.clients()}
    assert set(by_name) == {"a", "b"}
    assert (by_name["a"].lanes, by_name["a"].open_count, by_name["b"].open_count) == (1, 1, 0)
    assert by_name["a"].lease_until_ms == host.now_ms + LEASE_MS
    counts = host.tc.lane_counts()
    assert counts.by_state == {"pooled": 1, "idle": 1, "in_use": 1, "retired": 0}
    found = host.tc.transaction(txn_id.least)
    assert found is not None
    assert found.txn_id == txn_id
    assert host.tc.transaction(4711) is None


def test_a_coordinator_without_lanes_has_no_clients_to_show() -> None:
    coordinator = FencingCoordinator(3)
    assert coordinator.clients() == []
    with pytest.raises(LookupError, match="no lanes"):
        coordinator.lane_counts()


def test_a_transaction_of_another_coordinator_belongs_to_nobody_here() -> None:
    host = LaneHost()
    ended = host.finished("a")
    assert host.tc.belongs_to(ended, None)
    assert not host.tc.belongs_to(TxnId(5, ended.least), None)


@pytest.mark.parametrize("gone", [LaneHost.vanish, LaneHost.goodbye])
def test_the_end_of_a_client_leaves_its_check_groups_transactions_open_in_lanes_of_their_own(gone: Any) -> None:
    host = LaneHost()
    plain, grouped = host.opened("i"), host.new(incarnation="i", check=Check("orders"))
    host.add(grouped, TOPIC)
    gone(host)
    assert host.tc.status(plain) is TxnStatus.ABORTING
    assert (host.tc.status(grouped), host.lane(grouped)) == (TxnStatus.OPEN, Lane.RETIRING)
    assert host.opened("i").most != grouped.most
    host.take_snapshot()
    host.crash()
    host.tc.check_invariants()
    assert (host.tc.status(grouped), host.lane(grouped)) == (TxnStatus.OPEN, Lane.RETIRING)
    host.end(grouped, COMMIT)
    host.done(grouped)
    assert host.lane(grouped) is Lane.RETIRED
