"""Groups: several transactions of one coordinator end by one record, all of them or none, whatever crashes in between."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tc_host import TcHost

from pulsar_txn.ledger.machine import ANSWER, JOIN, REFUSE, WRITE, AwaitOutcome, Cell, Reply, TellParticipant
from pulsar_txn.tc import TRANSITIONS, EndTxn, FencingCoordinator, TransactionCoordinator
from pulsar_txn.tc.table import END_EVENT
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
STATES = [None, *TxnStatus]


class FencingHost(TcHost):
    """With transactional ids."""

    def fresh(self) -> TransactionCoordinator:
        return FencingCoordinator(self.tc_id, **self.options)


def together(host: TcHost, txn_ids: list[TxnId], action: TxnAction = COMMIT, token: object = "group", **who: Any) -> Any:
    """End transactions by one request, durably; its Step."""
    step = host.ask(EndTxn(token, txn_ids[0], action, group=tuple(txn_ids[1:]), **who))
    host.confirm()
    return step


def statuses(host: TcHost, txn_ids: list[TxnId]) -> list[TxnStatus | None]:
    return [host.tc.status(txn_id) for txn_id in txn_ids]


def opened(host: TcHost, count: int, **who: Any) -> list[TxnId]:
    """Open transactions with a participant each."""
    txn_ids = [host.new(**who) for _ in range(count)]
    for number, txn_id in enumerate(txn_ids):
        host.add(txn_id, Participant(f"t{number}"), **who)
    return txn_ids


@pytest.mark.parametrize("action", TxnAction)
def test_one_record_decides_all_and_every_participant_is_told(action: TxnAction) -> None:
    host = TcHost()
    txn_ids = opened(host, 5)
    before = len(host.log)
    together(host, txn_ids, action)
    assert len(host.log) == before + 1
    assert len(set(statuses(host, txn_ids))) == 1
    tells = [effect for effect in host.released if isinstance(effect, TellParticipant)]
    assert [(each.txn_id, each.participant.topic, each.action) for each in tells] == [
        (txn_id, f"t{number}", action) for number, txn_id in enumerate(txn_ids)
    ]
    host.tc.check_invariants()


def cell_of(state: TxnStatus | None, action: TxnAction) -> Cell[TxnStatus | None]:
    """What is PREPARED ends by itself, and in no group. What is HELD is ended by administrators alone."""
    if state is TxnStatus.HELD:
        return Cell(REFUSE, state, ServerError.ServiceNotReady)
    is_prepared = state is TxnStatus.PREPARED
    return Cell(REFUSE, state, ServerError.InvalidTxnStatus) if is_prepared else TRANSITIONS[state, END_EVENT[action]]


@pytest.mark.parametrize(("first", "second", "action"), list(product(STATES, STATES, TxnAction)))
def test_a_group_does_what_the_cells_of_its_members_agree_on(
    first: TxnStatus | None, second: TxnStatus | None, action: TxnAction
) -> None:
    host = TcHost()
    pair = [host.in_state(first), host.in_state(second)]
    if first is None:
        pair[0] = TxnId(3, 77)
    cells = [cell_of(state, action) for state in (first, second)]
    before = host.state()
    acts = {cell.act for cell in cells}
    if acts == {WRITE}:
        together(host, pair, action)
        assert statuses(host, pair) == [cell.to for cell in cells]
    elif REFUSE in acts or WRITE in acts:
        with pytest.raises(Refusal) as caught:
            together(host, pair, action)
        refusing = next((cell for cell in cells if cell.act is REFUSE), None)
        assert caught.value.code is (ServerError.InvalidTxnStatus if refusing is None else refusing.code)
        assert host.state() == before
    else:
        step = together(host, pair, action)
        assert acts <= {JOIN, ANSWER}
        assert [type(effect) for effect in step.effects] == [AwaitOutcome if JOIN in acts else Reply]
        assert host.state() == before


def test_it_is_answered_when_one_is_over_and_its_repeats_join_the_others() -> None:
    host = TcHost()
    txn_ids = opened(host, 3)
    together(host, txn_ids)
    host.done(txn_ids[0])
    host.confirm()
    assert host.answers["group"] is COMMIT
    together(host, txn_ids, token="repeat")
    host.done(txn_ids[1])
    host.confirm()
    assert host.answers["repeat"] is COMMIT
    host.done(txn_ids[2])
    host.confirm()
    together(host, txn_ids, token="late")
    assert host.answers["late"] is None


def test_a_member_that_timed_out_refuses_the_group_and_leaves_the_others_open() -> None:
    host = TcHost()
    short = host.new(10)
    (long,) = opened(host, 1)
    host.now_ms += 11
    host.expire()
    with pytest.raises(Refusal, match="ABORT"):
        together(host, [long, short])
    assert host.tc.status(long) is TxnStatus.OPEN
    host.end(long, COMMIT)


def test_a_member_that_is_named_twice_counts_once() -> None:
    host = TcHost()
    one, two = opened(host, 2)
    together(host, [one, two, one, two])
    host.done(one)
    host.done(two)
    host.confirm()
    assert statuses(host, [one, two]) == [TxnStatus.COMMITTED] * 2


def test_members_of_somebody_else_or_of_another_coordinator_are_not_found() -> None:
    host = TcHost()
    (mine,) = opened(host, 1, principal="anna")
    (other,) = opened(host, 1, principal="bert")
    for foreign in (other, TxnId(4, mine.least)):
        with pytest.raises(Refusal) as caught:
            together(host, [mine, foreign], principal="anna")
        assert caught.value.code is ServerError.TransactionNotFound
    assert statuses(host, [mine, other]) == [TxnStatus.OPEN] * 2


def test_a_zombie_ends_no_group() -> None:
    host = FencingHost()
    old = opened(host, 2, identity=("app", 1))
    host.new(identity=("app", 2))
    with pytest.raises(Refusal) as caught:
        together(host, old, identity=("app", 1))
    assert caught.value.code is ServerError.ProducerFenced
    assert set(statuses(host, old)) == {TxnStatus.ABORTING}


def test_a_group_decided_before_the_fence_stays_committed() -> None:
    host = FencingHost()
    old = opened(host, 2, identity=("app", 1))
    together(host, old, identity=("app", 1))
    host.new(identity=("app", 2))
    together(host, old, token="repeat", identity=("app", 1))
    for txn_id in old:
        host.done(txn_id)
    host.confirm()
    assert host.answers["repeat"] is COMMIT


@pytest.mark.parametrize("action", TxnAction)
def test_the_others_of_an_id_are_aborted_and_nobody_elses(action: TxnAction) -> None:
    host = FencingHost()
    who = {"identity": ("app", 1)}
    taken, left = opened(host, 2, **who), opened(host, 2, **who)
    strangers = [host.new(), host.new(identity=("app", 1), principal="anna"), host.new(identity=("b", 1))]
    together(host, taken, action, abort_others=True, **who)
    goal = TxnStatus.COMMITTING if action is COMMIT else TxnStatus.ABORTING
    assert statuses(host, taken) == [goal] * 2
    assert statuses(host, left) == [TxnStatus.ABORTING] * 2
    assert statuses(host, strangers) == [TxnStatus.OPEN] * 3
    late = host.new(**who)
    together(host, taken, action, "repeat", abort_others=True, **who)
    assert host.tc.status(late) is TxnStatus.OPEN, "a repeat changes nothing"


def test_a_torn_step_keeps_the_decision_before_the_aborts_of_the_others() -> None:
    host = FencingHost()
    who = {"identity": ("app", 1)}
    taken, left = opened(host, 2, **who), opened(host, 2, **who)
    begun = len(host.log)
    host.ask(EndTxn("group", taken[0], COMMIT, group=(taken[1],), abort_others=True, **who))
    for keep in range(begun + 1, len(host.log) + 1):
        torn = FencingHost(log=host.log[:keep])
        assert set(statuses(torn, taken)) == {TxnStatus.COMMITTING}
        assert not {TxnStatus.COMMITTING, TxnStatus.COMMITTED} & set(statuses(torn, left))


def test_one_without_a_fenced_id_has_no_others() -> None:
    for host, who in ((FencingHost(), {}), (TcHost(), {"identity": ("app", 1)})):
        txn_id = host.new(**who)
        with pytest.raises(Refusal) as caught:
            together(host, [txn_id], abort_others=True, **who)
        assert caught.value.code is ServerError.NotAllowedError
        assert host.tc.status(txn_id) is TxnStatus.OPEN


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_crash_at_every_append_leaves_all_of_a_group_or_none(snapshot: bool) -> None:
    host = TcHost()
    txn_ids = opened(host, 4)
    if snapshot:
        host.take_snapshot()
    begun = len(host.log)
    host.ask(EndTxn("group", txn_ids[0], COMMIT, group=tuple(txn_ids[1:])))
    for keep in range(begun, len(host.log) + 1):
        again = TcHost(log=host.log[:keep], stored=host.stored)
        again.confirm()
        found = set(statuses(again, txn_ids))
        assert found == {TxnStatus.OPEN if keep == begun else TxnStatus.COMMITTING}
        told = {effect.txn_id for effect in again.released if isinstance(effect, TellParticipant)}
        assert told == (set() if keep == begun else set(txn_ids)), "what was decided is carried out again"


def test_a_snapshot_between_decision_and_end_keeps_every_member() -> None:
    host = TcHost()
    txn_ids = opened(host, 3)
    together(host, txn_ids)
    host.take_snapshot()
    host.crash()
    assert statuses(host, txn_ids) == [TxnStatus.COMMITTING] * 3


def test_a_group_of_many_participants_is_told_in_several_steps() -> None:
    host = TcHost()
    txn_ids = [host.new() for _ in range(40)]
    for txn_id in txn_ids:
        host.add(txn_id, *(Participant(f"t{number}") for number in range(100)))
    step = together(host, txn_ids)
    assert len(step.effects) < 1200
    host.expire()
    host.confirm()
    told = [effect for effect in host.released if isinstance(effect, TellParticipant)]
    assert len(told) == len({(each.txn_id, each.participant) for each in told}) == 4000


def test_a_record_of_a_group_moves_only_members_that_are_where_it_expects_them() -> None:
    host = TcHost()
    one, two = opened(host, 2)
    host.end(two, ABORT)
    record = host.tc.decode("log", host.log[-1])
    wrong = record._replace(least=one.least, new_status=1, group=(two.least, 99), data=None)
    host.append(wrong)
    assert statuses(host, [one, two]) == [TxnStatus.COMMITTING, TxnStatus.ABORTING]


def test_a_group_that_recovery_cannot_carry_out_at_once_is_carried_out_when_the_past_is_due() -> None:
    """The decision is there and the ends are not: recovery carries out two, and asks for its next turn at once."""
    host = TcHost(expire_limit=2)
    txn_ids = [host.new() for _ in range(3)]
    host.confirm()
    host.ask(EndTxn("group", txn_ids[0], COMMIT, group=tuple(txn_ids[1:])))
    host.crash(len(txn_ids) + 1)
    assert statuses(host, txn_ids) == [TxnStatus.COMMITTED, TxnStatus.COMMITTED, TxnStatus.COMMITTING]
    assert host.tc.deadline() == 0
    host.expire()
    assert statuses(host, txn_ids) == [TxnStatus.COMMITTED] * 3
    assert host.tc.deadline() is None
