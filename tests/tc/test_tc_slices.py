"""Snapshots in slices: of one moment whatever is applied meanwhile, of any size, and no slice or record works long."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from insides import lanes_of, state_of
from tc_host import LEDGER, TcHost

from pulsar_txn.ledger import ordered
from pulsar_txn.ledger.machine import SLICE_BYTES, TellParticipant, WriteSnapshot
from pulsar_txn.tc import (
    AddParticipants,
    EndTxn,
    FencingCoordinator,
    Goodbye,
    LaneIds,
    NewTxn,
    ParticipantsDone,
    PulsarIds,
    TransactionCoordinator,
    Vanished,
    records,
)
from pulsar_txn.tc import snapshots as module
from pulsar_txn.tc.ids import IdPolicy
from pulsar_txn.tc.outcomes import PAGE
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.ids import Participant, TxnAction, TxnStatus

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["new", "new", "new", "add", "end", "done", "wait", "page", "begin", "slice", "slice"]),
        st.integers(0, 7),
        st.sampled_from([None, None, ("a", 1), ("a", 2), ("b", 1)]),
    ),
    min_size=20,
    max_size=80,
)


class _Host(TcHost):
    ids: IdPolicy = PulsarIds()

    def fresh(self) -> TransactionCoordinator:
        more = {"id_retention_ms": 20, "outcome_retention_count": PAGE, "ids": self.ids, **self.options}
        return FencingCoordinator(self.tc_id, **more)


class _LaneHost(_Host):
    ids = LaneIds()


def restored(host: _Host, parts: tuple[bytes, ...]) -> TransactionCoordinator:
    machine = host.fresh()
    for part in parts:
        machine.restore(part)
    return machine


@pytest.mark.parametrize("kind_of_host", [_Host, _LaneHost], ids=["Pulsar's ids", "lanes"])
@settings(deadline=None)
@given(steps=STEPS)
def test_slices_taken_between_records_of_any_history_are_those_of_the_moment(
    kind_of_host: type[_Host], steps: list[tuple[str, int, Any]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "GROUP", 2)
        patch.setattr(module, "_OBJECTS_PER_SLICE", 1)
        patch.setattr(module, "_NAMES_PER_ELEMENT", 2)
        host = kind_of_host()
        walks: list[tuple[tuple[bytes, ...], Iterator[bytes], list[bytes]]] = []
        for kind, number, identity in steps:
            host.now_ms += number
            if kind == "begin":
                walks.append((tuple(host.tc.snapshot()), host.tc.snapshot(), []))
            elif kind == "slice" and walks:
                _, slices, seen = walks[number % len(walks)]
                seen.extend(part for part in [next(slices, b"")] if part)
            elif kind == "page":
                skip_to_the_next_page(host)
            else:
                happen(host, kind, number, identity)
            host.confirm()
        for expected, slices, seen in walks:
            assert (*seen, *slices) == expected
            copy = restored(host, expected)
            copy.check_invariants()
            assert tuple(copy.snapshot()) == expected


def happen(host: TcHost, kind: str, number: int, identity: Any) -> None:
    active = host.tc.transactions()
    if kind == "new" or not active:
        with contextlib.suppress(Refusal):  # fenced
            host.ask(NewTxn(None, 40, identity=identity, incarnation=f"i{number}" if number else None))
        return
    if kind == "wait" and number > 4:
        host.ask(Vanished(f"i{number}"))
        host.ask(Goodbye(None, f"i{number - 4}"))
    chosen = active[number % len(active)]
    if kind == "wait":
        host.expire()
    elif kind == "add" and chosen.status is TxnStatus.OPEN:
        many = tuple(Participant(f"t{n}", None if n % 2 else "s") for n in range(number))
        host.ask(AddParticipants(None, chosen.txn_id, many, chosen.principal, chosen.identity))
    elif kind == "end" and chosen.status is TxnStatus.OPEN:
        host.ask(EndTxn(None, chosen.txn_id, TxnAction(number % 2), superuser=True))
    elif chosen.status is not TxnStatus.OPEN:
        host.ask(ParticipantsDone(chosen.txn_id))


def skip_to_the_next_page(host: TcHost) -> None:
    """A record that names ids far ahead, as a log that was trimmed shows them."""
    ahead = (host.tc.next_local_txn_id // PAGE + 1) * PAGE
    if lanes_of(host.tc) is not None:
        host.append(records.new_in_lane(ahead, 40, host.now_ms, ("anna", None), ahead, "far"))
    else:
        host.append(records.new_transaction(ahead, 40, host.now_ms, ("anna", None)))


@pytest.mark.parametrize("size", [(32, 100, 300, 700), pytest.param((320, 1_000, 8_100, 230_000), marks=pytest.mark.soak)])
def test_a_snapshot_has_slices_of_bounded_size_and_no_limit_on_all_of_them(size: tuple[int, int, int, int]) -> None:
    open_count, participants, ended, ids = size
    machine = FencingCoordinator(3)
    log = _Applied(machine)
    for _ in range(open_count):
        least = log.new()
        log.apply(records.add_partitions(least, [f"persistent://public/default/topic-{n}" for n in range(participants)], 0, 0))
    for _ in range(ended):
        log.end(log.new())
    for number in range(ids):
        log.end(log.new((f"id-{number}", 1)))
    parts = tuple(machine.snapshot())
    assert max(map(len, parts)) <= 2 * SLICE_BYTES
    assert len(machine.fencing.epochs) == ids
    copy = FencingCoordinator(3)
    for part in parts:
        copy.restore(part)
    assert tuple(copy.snapshot()) == parts
    assert copy.transactions() == machine.transactions()
    assert list(copy.fencing.epochs.items()) == list(machine.fencing.epochs.items())
    copy.check_invariants()


class _Applied:
    """Records applied one after the other, without a host."""

    def __init__(self, machine: TransactionCoordinator) -> None:
        self.machine = machine
        self.entry = 0

    def apply(self, record: Any) -> None:
        self.machine.apply("log", (LEDGER, self.entry), record)
        self.entry += 1

    def new(self, identity: tuple[str, int] | None = None, timeout_ms: int = 60_000) -> int:
        least = self.machine.next_local_txn_id
        self.apply(records.new_transaction(least, timeout_ms, 0, (None, identity)))
        return least

    def end(self, least: int) -> None:
        for expected, new in ((TxnStatus.OPEN, TxnStatus.ABORTING), (TxnStatus.ABORTING, TxnStatus.ABORTED)):
            self.apply(records.update_status(least, expected, new, 0, least))


def test_a_snapshot_of_one_piece_as_stored_by_earlier_versions_is_read() -> None:
    machine = FencingCoordinator(3)
    log = _Applied(machine)
    log.apply(records.add_partitions(log.new(("a", 1)), [f"t{n}" for n in range(500)], 0, 0))
    log.end(log.new())
    old = module.CoordinatorSnapshot()
    for part in machine.snapshot():
        piece = module.CoordinatorSnapshot.FromString(part)
        for further in list(piece.transactions)[1:]:
            piece.transactions[0].partitions.extend(further.partitions)
        del piece.transactions[1:]
        old.MergeFrom(piece)
    old.format_version = 1
    copy = FencingCoordinator(3)
    copy.restore(old.SerializeToString())
    assert tuple(copy.snapshot()) == tuple(machine.snapshot())


def test_snapshots_are_asked_for_the_less_often_the_more_there_is_to_write() -> None:
    host = TcHost(snapshot_every=4)
    for _ in range(400):
        host.new()
    for part in host.tc.snapshot():
        assert part
    host.released.clear()
    for number in range(160):
        txn_id = host.new()
        host.end(txn_id, TxnAction.ABORT)
        asked = host.released.count(WriteSnapshot("log"))
        assert asked == (0 if (number + 1) * 3 < 400 else asked)
    assert host.released.count(WriteSnapshot("log")) > 0


def test_many_ends_under_way_are_carried_out_again_a_bounded_number_at_a_time() -> None:
    host = TcHost(expire_limit=10)
    told = {host.in_state(TxnStatus.COMMITTING) for _ in range(25)}
    host.crash()
    assert len(host.recover().recovered(host.now_ms).effects) == 10
    host = TcHost(log=host.log, **host.options)
    assert len(host.released) == 10
    while host.tc.deadline() == 0:
        step = host.tc.expire(host.now_ms)
        assert len(step.effects) <= 10
        host.carry_out(step)
    assert {effect.txn_id for effect in host.released if isinstance(effect, TellParticipant)} == told


def test_an_end_that_is_finished_while_recovery_goes_on_is_not_carried_out_again() -> None:
    host = TcHost(expire_limit=1)
    first, second = host.in_state(TxnStatus.COMMITTING), host.in_state(TxnStatus.ABORTING)
    host = TcHost(log=host.log, **host.options)
    host.done(second)
    assert host.tc.deadline() is None, "nothing is left to carry out again"
    host.confirm()
    assert [effect.txn_id for effect in host.released if isinstance(effect, TellParticipant)] == [first]


def test_a_successor_finds_what_its_predecessors_left_open_without_looking_at_others() -> None:
    machine = FencingCoordinator(3)
    log = _Applied(machine)
    mine = [log.new(("mine", 1)) for _ in range(3)]
    for number in range(2_000):
        log.new((f"other-{number}", 1))
    looked_at = _count_looks(machine)
    step = machine.decide(NewTxn("token", 60_000, identity=("mine", 2)), 0)
    assert [record.least for _, record in step.records[:-1]] == mine
    assert len(looked_at) < 20


def _count_looks(machine: TransactionCoordinator) -> list[int]:
    """The keys of open transactions that are looked at from now on."""
    looked: list[int] = []

    class Watched(ordered.OrderedMap[int, Any]):
        def __getitem__(self, key: int) -> Any:
            looked.append(key)
            return super().__getitem__(key)

        def get(self, key: int) -> Any:
            looked.append(key)
            return super().get(key)

        def values(self) -> Any:
            for key, value in super().items():
                looked.append(key)
                yield value

        def items(self) -> Any:
            for key, value in super().items():
                looked.append(key)
                yield key, value

    watched = Watched()
    for key, value in state_of(machine).transactions.items():
        watched[key] = value
    state_of(machine).transactions = watched
    return looked


def test_a_transactional_id_has_a_bounded_number_of_open_transactions_so_that_a_successor_ends_them_in_one_step() -> None:
    machine = FencingCoordinator(3, max_active_of_id=2)
    log = _Applied(machine)
    for _ in range(2):
        log.new(("mine", 1))
    with pytest.raises(Refusal, match="maxActiveTransactionsPerTransactionalId"):
        machine.decide(NewTxn("token", 1, identity=("mine", 1)), 0)
    machine.decide(NewTxn("token", 1, identity=("other", 1)), 0)
    assert len(machine.decide(NewTxn("token", 1, identity=("mine", 2)), 0).records) == 3
    machine.check_invariants()


def test_a_transaction_has_a_bounded_number_of_participants_and_all_of_them_of_bytes() -> None:
    host = TcHost(max_participants=3, max_state_bytes=4_000)
    txn_id = host.new()
    host.add(txn_id, Participant("a"), Participant("b", "s"))
    host.add(txn_id, Participant("a"), Participant("b", "s"), Participant("c"))
    with pytest.raises(Refusal, match="maxParticipantsPerTransaction"):
        host.add(txn_id, Participant("d"))
    assert host.tc.transactions()[0].participants == (Participant("a"), Participant("c"), Participant("b", "s"))
    other = host.new()
    with pytest.raises(Refusal, match="maxTransactionStateSizeInMB"):
        host.add(other, Participant("x" * 3_500))
    host.end(txn_id, TxnAction.ABORT)
    host.done(txn_id)
    host.add(other, Participant("x" * 3_300))
    host.take_snapshot()
    host.crash()
    with pytest.raises(Refusal, match="maxTransactionStateSizeInMB"):
        host.new()
    host.tc.check_invariants()


def test_deadlines_are_swept_a_few_at_a_time_and_the_earliest_stays_known() -> None:
    rng = random.Random(4)
    machine = TransactionCoordinator(3)
    log = _Applied(machine)
    keep = [log.new(timeout_ms=10**6 + number) for number in range(500)]
    longest = 0
    for _ in range(6_000):
        before = len(state_of(machine).deadlines.heap)
        log.end(log.new(timeout_ms=rng.randrange(10**6)))
        longest = max(longest, abs(len(state_of(machine).deadlines.heap) - before))
        machine.check_invariants() if rng.random() < 0.01 else None
    deadline = machine.deadline()
    while deadline is not None and deadline < 10**6:
        deadline = machine.deadline()
    assert deadline == 10**6
    assert [txn.txn_id.least for txn in state_of(machine).due(10**7, 3)] == keep[:3]
