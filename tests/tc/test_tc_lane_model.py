"""Lanes against a plain model, through crashes at any record and restarts from snapshots; and very many of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from insides import lanes_of
from lane_host import LaneHost
from tc_host import LEDGER

from pulsar_txn.ledger.machine import SLICE_BYTES
from pulsar_txn.tc import (
    AddParticipants,
    Check,
    CheckAnswered,
    CheckOutcome,
    FencingCoordinator,
    Goodbye,
    GroupJoined,
    GroupLeft,
    LaneIds,
    NewTxn,
    PrepareTxn,
    Renew,
    TakeOver,
    TransactionInfo,
    Vanished,
    records,
)
from pulsar_txn.tc.ids import lane_of
from pulsar_txn.tc.lane_table import Lane
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.ids import Participant, TxnAction, TxnStatus

LEASE_MS = 1_000
CHECK = Check("group", after_ms=300)

WHO = st.sampled_from([{}, {"principal": "anna"}, {"identity": ("app", 1)}, {"identity": ("app", 2)}, {"identity": ("app", 3)}])
INCARNATION = st.sampled_from(["i", "j", "k", None])
PICK = st.integers(0, 9)
PRINCIPAL = st.sampled_from([None, "anna"])


class PlainLanes:
    """What the records of a log say about lanes, in the words of the rule and not of the table."""

    def __init__(self) -> None:
        self.living: dict[int, int] = {}
        self.status: dict[int, int] = {}
        self.holder: dict[int, tuple[Any, Any]] = {}
        self.doomed: set[int] = set()
        self.leaving: set[int] = set()
        self.pooled: set[int] = set()
        self.retired: set[int] = set()

    def fold(self, record: records.Entry) -> None:
        """One more record."""
        if record.operation == records.NEW:
            self._opened(record)
        elif record.operation == records.UPDATE:
            self._moved(record)
        elif record.operation == records.PREPARED:
            self.status[record.least] = TxnStatus.PREPARED
        elif record.operation == records.TAKEN_OVER:
            self._succeeded(record.owner)
        elif record.operation in (records.GOODBYE, records.VANISHED):
            self._gone(record)

    def _opened(self, record: records.Entry) -> None:
        lane, holder = record.lane, (record.owner, record.incarnation)
        assert lane is not None
        if record.owner[1] is not None:
            self._succeeded(record.owner)
        assert lane not in self.living, "a lane has one transaction at a time"
        assert lane not in self.retired, "a retired lane is never used again"
        if lane in self.holder and lane not in self.pooled:
            assert self.holder[lane] == holder, "a lane belongs to one holder"
            assert record.incarnation is not None, "a lane without a holder is used once"
        self.pooled.discard(lane)
        self.holder[lane] = holder
        self.living[lane], self.status[record.least] = record.least, TxnStatus.OPEN
        if record.incarnation is None:
            self.doomed.add(lane)

    def _moved(self, record: records.Entry) -> None:
        self.status[record.least] = record.new_status
        if record.new_status in (TxnStatus.COMMITTED, TxnStatus.ABORTED):
            (lane,) = [lane for lane, least in self.living.items() if least == record.least]
            del self.living[lane]
            if lane in self.doomed:
                self.retired.add(lane)
            elif lane in self.leaving:
                self.leaving.discard(lane)
                self.pooled.add(lane)

    def _succeeded(self, owner: Any) -> None:
        principal, (name, epoch) = owner
        for lane, ((of, identity), _) in self.holder.items():
            if of == principal and identity is not None and identity[0] == name and identity[1] < epoch:
                self._doom(lane)

    def _doom(self, lane: int) -> None:
        self.leaving.discard(lane)
        self.pooled.discard(lane)
        (self.doomed if lane in self.living else self.retired).add(lane)

    def _gone(self, record: records.Entry) -> None:
        for lane, ((principal, _), incarnation) in self.holder.items():
            mine = (principal, incarnation) == (record.owner[0], record.incarnation)
            if not mine or lane in self.doomed | self.leaving | self.pooled | self.retired:
                continue
            if record.operation == records.VANISHED:
                self._doom(lane)
            elif lane not in self.living:
                self.pooled.add(lane)
            elif self.status[self.living[lane]] == TxnStatus.COMMITTING:
                self.leaving.add(lane)
            else:
                self.doomed.add(lane)


class LaneModel(RuleBasedStateMachine):
    """Clients with leases and epochs. What they ask is decided by the machine; what the log says is judged by `PlainLanes`."""

    def __init__(self) -> None:
        super().__init__()
        self.host = LaneHost(snapshot_every=7, expire_limit=2, policy={"lease_ms": LEASE_MS, "max_lanes_of_incarnation": 4})
        self.tokens = 0

    def ask(self, request: Any) -> None:
        """Refusals change nothing; the host checks it."""
        try:
            self.host.ask(request)
        except Refusal:
            return

    def pick(self, number: int) -> TransactionInfo | None:
        living = self.host.tc.transactions()
        return living[-1 - number % len(living)] if living else None

    def token(self) -> int:
        self.tokens += 1
        return self.tokens

    @rule(incarnation=INCARNATION, who=WHO, number=PICK)
    def new(self, incarnation: str | None, who: dict[str, Any], number: int) -> None:
        self.ask(NewTxn(self.token(), 10**6, incarnation=incarnation, check=CHECK if number % 2 else None, **who))

    @rule(number=PICK)
    def add(self, number: int) -> None:
        info = self.pick(number)
        if info is not None:
            self.ask(AddParticipants(self.token(), info.txn_id, (Participant("t"),), info.principal, info.identity))

    @rule(number=PICK, action=st.sampled_from(TxnAction))
    def end(self, number: int, action: TxnAction) -> None:
        info = self.pick(number)
        if info is not None and info.status in (TxnStatus.OPEN, TxnStatus.PREPARED):
            self.host.end(info.txn_id, action, prepared_token=b"token", superuser=True)

    @rule(number=PICK)
    def prepare(self, number: int) -> None:
        info = self.pick(number)
        if info is not None:
            self.ask(PrepareTxn(self.token(), info.txn_id, b"token", info.principal, info.identity))

    @rule(
        number=PICK,
        principal=st.sampled_from([None, "anna"]),
        what=st.sampled_from("jla"),
        outcome=st.sampled_from(CheckOutcome),
    )
    def check_group(self, number: int, principal: str | None, what: str, outcome: CheckOutcome) -> None:
        info = self.pick(number)
        if what == "a":
            if info is not None:
                self.ask(CheckAnswered(info.txn_id, CHECK.group, outcome, principal))
        else:
            self.ask((GroupJoined if what == "j" else GroupLeft)(CHECK.group, principal))

    @rule(number=PICK)
    def done(self, number: int) -> None:
        self.host.confirm()
        info = self.pick(number)
        if info is not None and info.status in (TxnStatus.COMMITTING, TxnStatus.ABORTING):
            self.host.done(info.txn_id)

    @rule(incarnation=st.sampled_from("ijk"), principal=PRINCIPAL, kind=st.sampled_from("rgv"))
    def client(self, incarnation: str, principal: str | None, kind: str) -> None:
        if kind == "v":
            self.ask(Vanished(incarnation, principal))
        else:
            self.ask((Renew if kind == "r" else Goodbye)(self.token(), incarnation, principal))

    @rule(epoch=st.integers(1, 3))
    def take_over(self, epoch: int) -> None:
        token = self.token()
        self.ask(TakeOver(token, ("app", epoch), "i"))
        self.host.confirm()
        if self.host.answers.get(token) is True:
            of_app = [info for info in self.host.tc.transactions() if info.principal is None and info.identity is not None]
            older = {info.status for info in of_app if info.identity is not None and info.identity[1] < epoch}
            assert older <= {TxnStatus.PREPARED}, "what older epochs left is over, but for what waits for its outcome"

    @rule(ms=st.sampled_from([1, LEASE_MS // 2, LEASE_MS]))
    def time_passes(self, ms: int) -> None:
        self.host.now_ms += ms
        self.host.expire()

    @rule(part=st.floats(0, 1))
    def confirm(self, part: float) -> None:
        host = self.host
        host.confirm(host.confirmed + round(part * (len(host.log) - host.confirmed)))

    @rule()
    def snapshot(self) -> None:
        self.host.take_snapshot()

    @rule(part=st.floats(0, 1))
    def crash(self, part: float) -> None:
        host = self.host
        host.crash(host.confirmed + round(part * (len(host.log) - host.confirmed)))

    @invariant()
    def the_lanes_are_what_the_log_says(self) -> None:
        host, plain = self.host, PlainLanes()
        host.tc.check_invariants()
        for data in host.log:
            record = host.tc.decode("log", data)
            assert isinstance(record, records.Entry)
            plain.fold(record)
        lanes = lanes_of(host.tc)
        assert {lane_of(info.txn_id.most): info.txn_id.least for info in host.tc.transactions()} == plain.living
        for lane in plain.holder:
            assert (lanes.state(lane) is Lane.RETIRED) is (lane in plain.retired)
            assert (lanes.state(lane) is Lane.POOLED) is (lane in plain.pooled)
            assert (lanes.state(lane) is Lane.LEAVING) is (lane in plain.leaving)

    @invariant()
    def whoever_holds_something_has_a_lease(self) -> None:
        lanes = lanes_of(self.host.tc)
        bound = (Lane.IDLE, Lane.OPEN, Lane.COMMITTING, Lane.ABORTING, Lane.PREPARED)
        holders = {(held.holder.owner[0], held.holder.incarnation) for held in lanes.kept.values() if held.state in bound}
        assert len(lanes.leases) == len(holders)
        assert all(holder in lanes.leases for holder in holders)

    def teardown(self) -> None:
        """When all clients are gone, nothing is kept."""
        host = self.host
        host.confirm()
        for principal in (None, "anna"):
            host.ask(GroupLeft(CHECK.group, principal))
        host.now_ms += 10**13
        host.expire()
        host.confirm()
        for info in host.tc.transactions():
            if info.prepared:
                host.end(info.txn_id, TxnAction.COMMIT, superuser=True)
            host.done(info.txn_id)
        lanes = lanes_of(host.tc)
        assert {held.state for held in lanes.kept.values()} <= {Lane.POOLED}
        assert not len(lanes.leases)
        assert host.tc.deadline() is None
        host.tc.check_invariants()


TestLaneModel = LaneModel.TestCase


@pytest.mark.parametrize("size", [(1_000, 5), pytest.param((100_000, 10), marks=pytest.mark.soak)])
def test_very_many_lanes_and_transactions_take_bounded_room_and_give_it_back(size: tuple[int, int]) -> None:
    clients, rounds = size
    machine = FencingCoordinator(3, ids=LaneIds(max_lanes=clients), outcome_retention_count=8_192)
    lanes, entry = lanes_of(machine), 0

    def apply(record: Any) -> None:
        nonlocal entry
        machine.apply("log", (LEDGER, entry), record)
        entry += 1

    for _ in range(rounds):
        for number in range(clients):
            ((_, opened),) = machine.decide(NewTxn(None, 10**6, incarnation=f"c{number}"), entry).records
            apply(opened)
            for old, new in ((TxnStatus.OPEN, TxnStatus.COMMITTING), (TxnStatus.COMMITTING, TxnStatus.COMMITTED)):
                apply(records.update_status(opened.least, old, new, 0, opened.least))
    assert machine.next_local_txn_id == 1 + clients * rounds
    assert len(lanes.kept) == len(lanes.leases) == clients
    assert len(machine.transactions()) == 0
    machine.check_invariants()
    parts = tuple(machine.snapshot())
    assert max(map(len, parts)) <= 2 * SLICE_BYTES
    again = FencingCoordinator(3, ids=LaneIds(max_lanes=clients), outcome_retention_count=8_192)
    for part in parts:
        again.restore(part)
    assert tuple(again.snapshot()) == parts
    again.check_invariants()
    longest = 0
    now_ms = 10**9
    while (deadline := machine.deadline()) is not None and deadline <= now_ms:
        step = machine.expire(now_ms)
        longest = max(longest, len(step.records))
        for _, record in step.records:
            apply(record)
    assert longest == 1
    assert not lanes.kept
    assert not len(lanes.leases)
    machine.check_invariants()
