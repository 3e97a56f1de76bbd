"""Recovery, snapshots, trimming, determinism: state is the fold of the log and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from insides import state_of
from tc_host import LEDGER, TcHost

from pulsar_txn.ledger.machine import Outcome, TellParticipant, WriteSnapshot
from pulsar_txn.ledger.swept_heap import SLACK
from pulsar_txn.tc import AddParticipants, EndTxn, NewTxn, ParticipantsDone, TransactionCoordinator, records
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.ids import EARLIEST, Participant, TxnAction, TxnId, TxnStatus

SUPPORT = Path(__file__).resolve().parents[1] / "support"


@pytest.mark.seed_rows("C34", "D50")
@pytest.mark.parametrize("action", TxnAction)
@pytest.mark.parametrize("stored", [False, True], ids=["replayed", "from a snapshot"])
def test_what_was_decided_is_carried_out_again_with_the_same_action(action: TxnAction, stored: bool) -> None:
    host = TcHost()
    older, txn_id = host.new(), host.new()
    host.add(txn_id, Participant("b"), Participant("a", "s"), Participant("a"))
    host.end(txn_id, action)
    if stored:
        host.take_snapshot()
    step = host.recover().recovered(host.now_ms)
    assert step.records == step.trailing == ()
    assert step.effects == tuple(
        TellParticipant(txn_id, participant, action, older.least - 1)
        for participant in (Participant("b"), Participant("a"), Participant("a", "s"))
    )
    host.released.clear()
    host.crash()
    assert [type(effect) for effect in host.released] == [TellParticipant] * 3
    host.end(txn_id, action, "again")
    host.done(txn_id)
    assert host.answers["again"] is action


@pytest.mark.parametrize("action", TxnAction)
def test_a_decision_without_participants_is_finished_by_recovery(action: TxnAction) -> None:
    host = TcHost()
    txn_id = host.new()
    host.ask(EndTxn(None, txn_id, action))
    host.crash(keep=len(host.log) - 1)
    assert host.released[-1] == Outcome(txn_id, action)
    assert host.tc.active_count == 0
    assert host.tc.status(txn_id) in (TxnStatus.COMMITTED, TxnStatus.ABORTED)


def test_recovery_touches_nothing_that_is_open_or_ended() -> None:
    host = TcHost()
    host.in_state(TxnStatus.OPEN)
    host.in_state(TxnStatus.COMMITTED)
    step = host.recover().recovered(host.now_ms)
    assert (step.records, step.effects, step.trailing) == ((), (), ())


@pytest.mark.seed_rows("D25")
def test_no_id_is_given_twice_whatever_is_left_of_the_log() -> None:
    host = TcHost()
    given_ids = {host.in_state(status) for status in (TxnStatus.COMMITTED, TxnStatus.ABORTED, TxnStatus.COMMITTED)}
    host.take_snapshot()
    trimmed = TcHost(stored=host.stored, start=False).tc
    assert TxnId(3, trimmed.next_local_txn_id) not in given_ids
    assert trimmed.next_local_txn_id == 3
    last_only = host.fresh()
    last_only.apply("log", (LEDGER, 99), last_only.decode("log", host.log[-1]))
    assert last_only.next_local_txn_id == 3


def test_the_clock_is_told_the_newest_time_of_the_log() -> None:
    host = TcHost()
    host.now_ms = 5_000
    host.new()
    host.now_ms = 4_000
    host.new()
    assert host.recover().newest_time_ms == 5_000
    host.take_snapshot()
    assert host.recover().newest_time_ms == 5_000


@pytest.mark.seed_rows("C11")
def test_trimming_goes_up_to_what_the_last_snapshot_covers() -> None:
    host = TcHost()
    assert host.tc.trim_before("log") is None
    empty = b"".join(host.tc.snapshot())
    assert host.tc.trim_before("log") is None
    fresh = host.fresh()
    fresh.restore(empty)
    assert fresh.trim_before("log") is None
    host.in_state(TxnStatus.OPEN)
    host.take_snapshot()
    covered = (LEDGER, len(host.log))
    host.in_state(TxnStatus.COMMITTED)
    assert host.tc.trim_before("log") == covered
    assert host.recover().trim_before("log") == covered
    assert state_of(host.tc).last_applied > EARLIEST


def test_a_snapshot_is_asked_for_once_in_a_round_of_records() -> None:
    host = TcHost(snapshot_every=7)
    for _ in range(10):
        host.in_state(TxnStatus.COMMITTED)
    rounds = len(host.log) // 7
    assert rounds > 3
    assert host.released.count(WriteSnapshot("log")) == rounds


def test_recovery_of_a_long_tail_asks_for_a_snapshot_at_once() -> None:
    host = TcHost(snapshot_every=4)
    host.in_state(TxnStatus.COMMITTED)
    assert host.recover().recovered(0).effects == (WriteSnapshot("log"),)
    host.take_snapshot()
    assert host.recover().recovered(0).effects == ()


def test_a_query_never_asks_for_a_snapshot() -> None:
    host = TcHost(snapshot_every=1)
    txn_id = host.in_state(TxnStatus.COMMITTING)
    assert WriteSnapshot("log") not in host.end(txn_id, TxnAction.COMMIT).effects


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["new", "add", "commit", "abort", "done", "wait"]), st.integers(0, 5), st.sampled_from([None, "a", "b"])
    ),
    max_size=40,
)


def drive(host: TcHost, steps: list[tuple[str, int, str | None]]) -> None:
    for kind, number, principal in steps:
        txn_id = TxnId(3, max(0, host.tc.next_local_txn_id - 1 - number))
        host.now_ms += number
        try:
            if kind == "new":
                host.ask(NewTxn(None, 10 * number, principal))
            elif kind == "add":
                host.ask(AddParticipants(None, txn_id, (Participant(f"t{number}"), Participant("t", f"s{number}")), principal))
            elif kind == "done":
                host.confirm()
                host.ask(ParticipantsDone(txn_id))
            elif kind == "wait":
                host.expire()
            else:
                host.ask(EndTxn(None, txn_id, TxnAction.COMMIT if kind == "commit" else TxnAction.ABORT, principal))
        except Refusal:
            continue


@pytest.mark.seed_rows("C44")
@given(STEPS, st.floats(0, 1))
def test_snapshot_and_tail_equal_a_full_replay(steps: list[tuple[str, int, str | None]], part: float) -> None:
    host = TcHost()
    drive(host, steps)
    at = round(part * len(host.log))
    front = host.fresh()
    for index, data in enumerate(host.log[:at]):
        front.apply("log", (LEDGER, index), front.decode("log", data))
    back = host.fresh()
    back.restore(b"".join(front.snapshot()))
    assert b"".join(back.snapshot()) == b"".join(front.snapshot())
    for index, data in enumerate(host.log[at:], at):
        back.apply("log", (LEDGER, index), back.decode("log", data))
    back.check_invariants()
    assert b"".join(back.snapshot()) == b"".join(host.tc.snapshot())
    assert back.transactions() == host.tc.transactions()
    assert (back.deadline(), back.low_watermark) == (host.tc.deadline(), host.tc.low_watermark)
    assert back.recovered(host.now_ms).effects == host.fold().recovered(host.now_ms).effects


@given(STEPS)
def test_a_second_fold_of_the_same_log_changes_nothing_that_was_ended(steps: list[tuple[str, int, str | None]]) -> None:
    host = TcHost()
    drive(host, steps)
    ended = {least: host.tc.status(TxnId(3, least)) for least in range(host.tc.next_local_txn_id)}
    next_id = host.tc.next_local_txn_id
    for index, data in enumerate(host.log):
        host.tc.apply("log", (LEDGER, index), host.tc.decode("log", data))
    host.tc.check_invariants()
    assert host.tc.next_local_txn_id == next_id
    for least, status in ended.items():
        if status in (TxnStatus.COMMITTED, TxnStatus.ABORTED):
            assert host.tc.status(TxnId(3, least)) is status


SCRIPT = """
import hashlib, random
from tc_host import TcHost
from pulsar_txn.tc import *
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.ids import *

host, rng = TcHost(snapshot_every=50, expire_limit=3), random.Random(7)
effects = []
for _ in range(300):
    host.now_ms += rng.randrange(5)
    txn_id = TxnId(3, rng.randrange(host.tc.next_local_txn_id + 1))
    who = rng.choice(["anna", "bert", None])
    many = tuple(Participant(f"t{rng.randrange(40)}", rng.choice([None, "s"])) for _ in range(5))
    request = rng.choice([NewTxn(1, 60, who), NewTxn(1, 60, who), AddParticipants(1, txn_id, many, who),
                          EndTxn(1, txn_id, rng.choice(list(TxnAction)), who), ParticipantsDone(txn_id)])
    try:
        if isinstance(request, ParticipantsDone):
            host.confirm()
        effects.append(repr(host.ask(request).effects))
    except Refusal as refusal:
        effects.append(refusal.message)
    host.expire()
host.confirm()
state = b"".join(host.tc.snapshot())
print(hashlib.sha256(repr((host.log, effects, host.released, state)).encode()).hexdigest(), len(host.log))
"""


def test_equal_requests_give_equal_bytes_whatever_the_hash_seed() -> None:
    seen = set()
    for seed in ("0", "1", "4242"):
        path = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
        seen.add(run.stdout)
    (only,) = seen
    assert int(only.split()[1]) > 200


def broken_status(tc: TransactionCoordinator) -> None:
    state_of(tc).transactions[0].status = TxnStatus.COMMITTED


def broken_ids(tc: TransactionCoordinator) -> None:
    state_of(tc).next_id = 0


def broken_order(tc: TransactionCoordinator) -> None:
    state_of(tc).transactions[0] = state_of(tc).transactions.pop(0)  # type: ignore[assignment]  # it is there


def broken_window(tc: TransactionCoordinator) -> None:
    state_of(tc).outcomes.pages[0].outcomes[0] = 0


def broken_owner(tc: TransactionCoordinator) -> None:
    state_of(tc).transactions[0].owner = ("bert", None)


def ghost_in_the_window(tc: TransactionCoordinator) -> None:
    state_of(tc).outcomes.pages[0].outcomes[100] = 1


def lost_deadline(tc: TransactionCoordinator) -> None:
    state_of(tc).deadlines.heap.clear()


def heaped_deadlines(tc: TransactionCoordinator) -> None:
    state_of(tc).deadlines.heap += [(10**9, n) for n in range(4 * SLACK)]


@pytest.mark.parametrize(
    ("invariant", "damage"),
    [
        ("S2", broken_status),
        ("S18", broken_ids),
        ("S18", broken_order),
        ("S16", broken_window),
        ("S16", broken_owner),
        ("S16", ghost_in_the_window),
        ("L1", lost_deadline),
        ("L7", heaped_deadlines),
    ],
)
def test_a_contradiction_in_the_state_is_named_by_its_invariant(invariant: str, damage: object) -> None:
    host = TcHost()
    host.new(principal="anna")
    host.new()
    host.tc.check_invariants()
    assert callable(damage)
    damage(host.tc)
    with pytest.raises(AssertionError, match=f"^{invariant}: "):
        host.tc.check_invariants()


def test_the_machine_takes_nothing_but_requests() -> None:
    with pytest.raises(AssertionError):
        TransactionCoordinator(3).decide("a string", 0)  # type: ignore[arg-type]  # that is the point
    assert records.RECORD_VERSION == 7


def test_a_record_that_names_a_participant_again_registers_it_once() -> None:
    host = TcHost()
    txn_id = host.new()
    for _ in range(2):
        host.append(records.add_partitions(txn_id.least, ("t",), host.now_ms, txn_id.least))
        host.append(records.add_subscriptions(txn_id.least, (("t", "s"),), host.now_ms, txn_id.least))
    assert host.tc.transactions()[0].participants == (Participant("t"), Participant("t", "s"))
    host.tc.check_invariants()
