"""Lanes: one transaction at a time, one holder for life, and none is used again that somebody may still write to."""

from __future__ import annotations

from typing import Any

import pytest
from insides import lanes_of, move_lane, state_of
from lane_host import TOPIC, LaneHost
from tc_host import LEDGER, TcHost

from pulsar_txn.ledger.machine import Act, TellParticipant
from pulsar_txn.tc import (
    LANE_TRANSITIONS,
    BeginIncarnation,
    EndTxn,
    Goodbye,
    LaneIds,
    Renew,
    TransactionCoordinator,
    Vanished,
    records,
)
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.ids import lane_of, most_of_lane
from pulsar_txn.tc.lane_table import Lane, LaneEvent, LaneState
from pulsar_txn.tc.lanes import LANES_AT_ONCE, MAX_POOLED
from pulsar_txn.tc.log_incarnations import FIRST_SERVICE
from pulsar_txn.tc.records_pb2 import TransactionMetadataEntry
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus, coordinator_of

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
STATES: list[LaneState] = [None, *Lane]
CELLS = [
    pytest.param(state, event, id=f"{state.name if state is not None else 'UNKNOWN'}-{event.name}")
    for state in STATES
    for event in LaneEvent
]


def refused(call: Any, *args: Any, **kwargs: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call(*args, **kwargs)
    return caught.value


# ---------------------------------------------------------------------------------------------------- the table


def in_state(host: LaneHost, state: LaneState) -> int:
    """A lane of incarnation "i" that was brought to `state` by requests."""
    if state is None:
        host.finished()
        return int(lanes_of(host.tc).next_lane)
    if state in (Lane.OPEN, Lane.PREPARED, Lane.PARKED, Lane.HELD):
        txn_id = host.opened()
    elif state in (Lane.COMMITTING, Lane.ABORTING, Lane.LEAVING, Lane.RETIRING):
        txn_id = host.opened()
        host.end(txn_id, ABORT if state is Lane.ABORTING else COMMIT)
    else:
        txn_id = host.finished()
    if state in (Lane.LEAVING, Lane.POOLED):
        host.goodbye()
    if state in (Lane.PREPARED, Lane.PARKED):
        host.prepare(txn_id)
    if state in (Lane.RETIRING, Lane.RETIRED, Lane.PARKED):
        host.vanish()
    if state is Lane.HELD:
        host.ask(BeginIncarnation("token", FIRST_SERVICE, (txn_id.least,), Cause.DOUBT, goes_on=True))
        host.confirm()
    assert host.lane(txn_id) is state
    host.tc.check_invariants()
    return lane_of(txn_id.most)


def test_every_state_of_a_lane_has_a_cell_for_every_event() -> None:
    assert set(LANE_TRANSITIONS) == {(state, event) for state in STATES for event in LaneEvent}


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_a_lane_does_what_its_table_says(state: LaneState, event: LaneEvent) -> None:
    host = LaneHost()
    lane = in_state(host, state)
    cell = LANE_TRANSITIONS[state, event]
    lanes, least = lanes_of(host.tc), host.tc.next_local_txn_id
    if event in (LaneEvent.NEW, LaneEvent.ONCE):
        incarnation = "i" if event is LaneEvent.NEW else None
        txn_id = lanes.opened(lane, least, (None, None), incarnation, host.now_ms)
        assert (txn_id is not None) is (cell.act is Act.WRITE)
    else:
        move_lane(host.tc, lane, event)
    assert lanes.state(lane) is cell.to
    assert not [why for why in lanes.contradictions([]) if why[0] in ("LANE2", "LANE4")]


def test_a_lane_never_has_two_transactions_and_a_retired_one_never_another() -> None:
    opening = {state for (state, event), cell in LANE_TRANSITIONS.items() if event <= LaneEvent.ONCE and cell.act is Act.WRITE}
    assert opening == {None, Lane.IDLE, Lane.POOLED}
    assert all(cell.to is Lane.RETIRED for (state, _), cell in LANE_TRANSITIONS.items() if state is Lane.RETIRED)


# ---------------------------------------------------------------------------------------------------- ids and watermarks


def test_an_id_names_bit_62_the_coordinator_and_the_lane_and_least_begins_with_1() -> None:
    first, second = LaneHost(5).new(), LaneHost(5).new(incarnation="i")
    assert first == second == TxnId(1 << 62 | 5 << 48 | 1, 1)
    assert coordinator_of(first.most) == 5
    assert coordinator_of(7) == 7
    assert lane_of(most_of_lane(16383, (1 << 48) - 1)) == (1 << 48) - 1
    assert most_of_lane(16383, (1 << 48) - 1) < 1 << 63, "Java reads bit 63 as a sign"


def test_a_coordinator_whose_number_has_no_room_beside_a_lane_is_refused() -> None:
    with pytest.raises(ValueError, match="0 to 16383"):
        TransactionCoordinator(16384, ids=LaneIds())


def test_least_is_one_sequence_of_the_coordinator_over_all_lanes() -> None:
    host = LaneHost()
    assert [host.new(incarnation=name).least for name in ("a", "b", "a", None, "b")] == [1, 2, 3, 4, 5]


def test_an_end_goes_out_with_the_own_number_as_watermark_while_lower_ones_are_open_elsewhere() -> None:
    host = LaneHost()
    host.opened("a")
    later = host.opened("b")
    host.end(later, COMMIT)
    assert host.released[-1] == TellParticipant(later, TOPIC, COMMIT, later.least)


def test_the_next_transaction_of_a_lane_begins_after_all_participants_hold_the_outcome() -> None:
    host = LaneHost()
    first = host.opened()
    assert host.opened().most != first.most
    host.end(first, COMMIT)
    assert host.opened().most != first.most, "its end is not carried out yet"
    host.done(first)
    assert host.opened().most == first.most


def test_one_after_the_other_takes_one_lane() -> None:
    host = LaneHost()
    assert len({host.finished().most for _ in range(50)}) == 1


def test_a_lane_belongs_to_one_incarnation_of_one_principal_and_one_epoch() -> None:
    host = LaneHost()
    holders: list[dict[str, Any]] = [
        {},
        {"incarnation": "j"},
        {"principal": "anna"},
        {"identity": ("app", 1)},
        {"identity": ("app", 2)},
        {"identity": ("other", 2)},
        {"incarnation": None},
        {"incarnation": None},
    ]
    lanes = [host.finished(**who).most for who in holders]
    assert len(set(lanes)) == len(holders)
    again = [host.finished(**who).most for who in holders if who.get("identity") != ("app", 1)]
    assert again[:3] == lanes[:3]
    assert again[3:5] == lanes[4:6]
    assert not {*again[5:]} & {*lanes}, "without an incarnation a lane is used once"


def test_a_transaction_in_another_lane_with_the_same_number_is_not_found() -> None:
    host = LaneHost()
    txn_id = host.opened()
    stranger = TxnId(txn_id.most + 1, txn_id.least)
    assert refused(host.add, stranger, Participant("u")).code is ServerError.TransactionNotFound
    assert refused(host.end, stranger, COMMIT).code is ServerError.TransactionNotFound
    assert not host.tc.is_registered(stranger, TOPIC)
    assert host.tc.is_registered(txn_id, TOPIC)
    host.end(txn_id, COMMIT)
    host.done(stranger)
    assert host.tc.status(txn_id) is TxnStatus.COMMITTING
    assert host.tc.status(stranger) is None
    host.done(txn_id)
    assert refused(host.end, TxnId(3, txn_id.least), COMMIT).code is ServerError.TransactionNotFound


def test_a_group_in_lanes_ends_by_one_record() -> None:
    host = LaneHost()
    group = [host.opened() for _ in range(3)]
    host.ask(EndTxn("token", group[0], COMMIT, group=tuple(group[1:])))
    host.confirm()
    assert {host.tc.status(txn_id) for txn_id in group} == {TxnStatus.COMMITTING}
    for txn_id in group:
        host.done(txn_id)
    assert {host.lane(txn_id) for txn_id in group} == {Lane.IDLE}
    host.tc.check_invariants()


# ---------------------------------------------------------------------------------------------------- goodbye


def test_lanes_of_a_client_that_says_goodbye_go_to_other_clients() -> None:
    host = LaneHost()
    lane = host.finished("a").most
    host.goodbye("a")
    assert host.finished("b").most == lane
    assert not host.renew("a"), "it holds nothing"


def test_what_a_goodbye_leaves_open_is_aborted_and_its_lane_is_never_used_again() -> None:
    host = LaneHost()
    decided, left_open = host.opened(), host.opened()
    host.end(decided, COMMIT)
    host.goodbye()
    assert host.tc.status(left_open) is TxnStatus.ABORTING
    assert (host.lane(decided), host.lane(left_open)) == (Lane.LEAVING, Lane.RETIRING)
    for txn_id in (decided, left_open):
        host.done(txn_id)
    assert (host.lane(decided), host.lane(left_open)) == (Lane.POOLED, Lane.RETIRED)
    host.tc.check_invariants()


def test_a_goodbye_of_a_stranger_changes_nothing() -> None:
    host = LaneHost()
    txn_id = host.finished(principal="anna")
    written = len(host.log)
    host.goodbye(principal="bert")
    host.goodbye()
    host.vanish(principal="bert")
    assert len(host.log) == written
    assert host.lane(txn_id) is Lane.IDLE


def test_a_goodbye_that_leaves_very_much_open_counts_as_a_client_that_is_gone() -> None:
    host = LaneHost(expire_limit=4)
    left_open = [host.opened() for _ in range(10)]
    host.goodbye()
    deadline = host.tc.deadline()
    assert deadline is not None
    assert deadline <= host.now_ms
    host.expire()
    host.confirm()
    assert {host.tc.status(txn_id) for txn_id in left_open} == {TxnStatus.ABORTING}
    assert {host.lane(txn_id) for txn_id in left_open} == {Lane.RETIRING}


def with_idle_lanes(count: int) -> LaneHost:
    """A coordinator in which incarnation "i" holds so many."""
    host = LaneHost()
    for number in range(1, count + 1):
        host.tc.apply("log", (LEDGER, 3 * number), records.new_in_lane(number, 1, host.now_ms, (None, None), number, "i"))
        for at, (old, new) in enumerate(((TxnStatus.OPEN, TxnStatus.COMMITTING), (TxnStatus.COMMITTING, TxnStatus.COMMITTED))):
            host.tc.apply("log", (LEDGER, 3 * number + at + 1), records.update_status(number, old, new, 0, number))
    return host


def test_very_many_lanes_of_one_client_are_retired_a_bounded_number_at_a_time() -> None:
    host = with_idle_lanes(2 * LANES_AT_ONCE + 10)
    machine, lanes = host.tc, lanes_of(host.tc)
    step = machine.decide(Goodbye("token", "i"), host.now_ms)
    assert step.records == ()
    kept = [len(lanes.kept)]
    while lanes.kept:
        assert machine.deadline() is not None
        ((_, record),) = machine.expire(host.now_ms).records
        machine.apply("log", (LEDGER, 10**6 + len(kept)), record)
        kept.append(len(lanes.kept))
    assert kept == [2 * LANES_AT_ONCE + 10, LANES_AT_ONCE + 10, 10, 0]
    assert machine.deadline() is None
    machine.check_invariants()


def test_the_pool_is_bounded_and_what_has_no_room_in_it_is_retired() -> None:
    many = MAX_POOLED + 10
    machine = with_idle_lanes(many).tc
    lanes = lanes_of(machine)
    machine.apply("log", (LEDGER, 10**6), records.departed(records.GOODBYE, None, "i", 0, many))
    assert len(lanes.kept) == MAX_POOLED
    machine.check_invariants()
    assert lanes.choose((None, None), "j") <= MAX_POOLED


# ---------------------------------------------------------------------------------------------------- bounds and names


def test_an_incarnation_has_a_bounded_number_of_lanes_and_the_coordinator_too() -> None:
    host = LaneHost(policy={"max_lanes": 5, "max_lanes_of_incarnation": 3})
    for _ in range(3):
        host.new(incarnation="a")
    assert refused(host.new, incarnation="a").code is ServerError.TooManyRequests
    for _ in range(2):
        host.new()
    for incarnation in ("b", None):
        refusal = refused(host.new, incarnation=incarnation)
        assert refusal.code is ServerError.TooManyRequests
        assert "5 lanes" in refusal.message
    host.vanish("a")
    host.new(incarnation="b")


@pytest.mark.parametrize("name", ["", "  ", "x" * 257])
def test_an_incarnation_without_a_name_is_refused(name: str) -> None:
    host = LaneHost()
    assert refused(host.new, incarnation=name).code is ServerError.NotAllowedError
    assert not host.log


# ---------------------------------------------------------------------------------------------------- the log


def test_a_record_with_a_lane_has_the_bytes_of_protobuf_and_a_version_that_older_readers_refuse() -> None:
    writer = records.Writer(3)
    record = records.new_in_lane(7, 60, 1_000, ("anna", ("app", -1)), 1 << 40, "ünì")
    expected = TransactionMetadataEntry(
        metadata_op=TransactionMetadataEntry.NEW,
        txnid_least_bits=7,
        txnid_most_bits=3,
        timeout_ms=60,
        start_time=1_000,
        last_modification_time=1_000,
        max_local_txn_id=7,
        owner="anna",
        record_version=3,
        transactional_id="app",
        transactional_epoch=-1,
        lane=1 << 40,
        incarnation="ünì",
    ).SerializeToString()
    assert writer.encode("log", record) == expected
    assert records.decode(3, expected, lanes=True) == record._replace(data=expected)
    alone = records.new_in_lane(1, 60, 1_000, (None, None), 1, None)
    data = writer.encode("log", alone)
    assert records.decode(3, data, lanes=True) == alone._replace(data=data)


@pytest.mark.parametrize(
    "record",
    [
        records.departed(records.GOODBYE, "anna", "i", 5, 9),
        records.departed(records.VANISHED, None, "i", 5, 9),
        records.taken_over(("anna", ("app", 4)), 5, 9),
    ],
)
def test_records_about_clients_come_back_as_they_were_written(record: records.Entry) -> None:
    data = records.Writer(3).encode("log", record)
    assert records.decode(3, data, lanes=True) == record._replace(data=data)
    assert TransactionMetadataEntry.FromString(data).record_version == 3


def test_a_log_goes_on_only_with_the_id_policy_that_it_began_with() -> None:
    lanes, plain = LaneHost(), TcHost()
    for host, other in ((lanes, plain), (plain, lanes)):
        host.new()
        with pytest.raises(WireError, match="this log has"):
            other.fresh().decode("log", host.log[0])
        with pytest.raises(WireError, match="this log has"):
            other.fresh().restore(next(host.tc.snapshot()))
    lanes.goodbye(incarnation="nobody")
    lanes.finished()
    lanes.goodbye()
    with pytest.raises(WireError, match="has lanes"):
        plain.fresh().decode("log", lanes.log[-1])


def test_a_record_that_names_a_lane_in_use_opens_nothing() -> None:
    host = LaneHost()
    host.opened("a")
    for incarnation in ("a", "b", None):
        host.append(records.new_in_lane(host.tc.next_local_txn_id, 9, host.now_ms, (None, None), 1, incarnation))
    assert len(host.tc.transactions()) == 1
    assert host.tc.transactions()[0].txn_id.least == 1
    host.tc.check_invariants()


def test_a_coordinator_of_a_broker_writes_and_answers_as_before_whatever_the_client_names() -> None:
    host, named = TcHost(), TcHost()
    assert host.new() == named.new(incarnation="i") == TxnId(3, 0)
    named.ask(Renew("renewed", "i"))
    named.ask(Goodbye("said goodbye", "i"))
    named.ask(Vanished("i"))
    assert named.answers == {**named.answers, "renewed": False, "said goodbye": None}
    assert host.log == named.log
    assert named.tc.status(TxnId(3, 0)) is TxnStatus.OPEN


def two_in_one_lane(host: LaneHost) -> None:
    info = host.tc.transactions()[0]
    move_lane(host.tc, lane_of(info.txn_id.most), LaneEvent.COMMIT)


def a_retired_lane_comes_back(host: LaneHost) -> None:
    lanes = lanes_of(host.tc)
    lanes.kept[lanes.next_lane + 5] = lanes.kept[2]


def a_forgotten_idle_lane(host: LaneHost) -> None:
    next(iter(lanes_of(host.tc)._idle.values())).clear()


def two_below_one_watermark(host: LaneHost) -> None:
    state = state_of(host.tc)
    txn = state.transactions[1]
    other = host.opened("c")
    state.transactions[other.least].txn_id = TxnId(txn.txn_id.most, other.least)


@pytest.mark.parametrize(
    ("invariant", "damage"),
    [
        ("LANE1", two_in_one_lane),
        ("LANE2", a_retired_lane_comes_back),
        ("LANE3", two_below_one_watermark),
        ("LANE4", a_forgotten_idle_lane),
    ],
)
def test_a_contradiction_about_lanes_is_named_by_its_invariant(invariant: str, damage: Any) -> None:
    host = LaneHost()
    host.opened("a")
    host.finished("b")
    damage(host)
    with pytest.raises(AssertionError, match=f"^{invariant}: "):
        host.tc.check_invariants()
