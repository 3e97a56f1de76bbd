"""What the doctor makes of what a cluster says: every verdict, coordinators in every state, recoveries that do not end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.tc_service.cluster.admin import AdminRefused, AdminUnreachable, Entry
from pulsar_txn.tc_service.cluster.attempts import Answer, AttemptResult
from pulsar_txn.tc_service.doctor.cluster_reading import ClusterReader, Examination, Scope
from pulsar_txn.tc_service.doctor.command import as_dict, lines, question
from pulsar_txn.tc_service.doctor.curing import Curing, NotCured
from pulsar_txn.tc_service.doctor.findings import ADVICE, EXTERNAL, Cure, Finding, Ledgers, Status, Verdict, cure_of, verdict_of
from pulsar_txn.wire.ids import TxnAction, TxnId

NOW = 1_800_000_000_000
TXN = "/admin/v3/transactions"
TOPIC = "persistent://public/default/t"


# ---- the table


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("ended_here", [None, "commit", "abort"])
@pytest.mark.parametrize("most", [0, 77, EXTERNAL + 5])
def test_only_a_log_decides_an_outcome_and_only_what_nobody_knows_is_aborted(
    status: Status, ended_here: str | None, most: int
) -> None:
    verdict = verdict_of(TxnId(most, 7), status, ended_here)
    cure = cure_of(verdict, status)
    if status is Status.OPEN or (status is Status.AWAY and ended_here is None):
        assert cure is Cure.NOTHING
    elif status in (Status.COMMITTING, Status.ABORTING):
        assert cure is (Cure.REPEAT_COMMIT if status is Status.COMMITTING else Cure.REPEAT_ABORT)
    elif ended_here is not None:
        assert cure.action is (TxnAction.COMMIT if ended_here == "commit" else TxnAction.ABORT)
        assert not cure.guesses
    else:
        assert cure is (Cure.NOTHING if most >= EXTERNAL else Cure.ABORT)
    assert cure.guesses == (verdict is Verdict.UNKNOWN)


def test_every_verdict_has_advice() -> None:
    assert set(ADVICE) == set(Verdict)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), unique_by=lambda each: each[0], max_size=8))
def test_steps_over_ledgers_visit_each_entry_once_in_both_directions(found: list[tuple[int, int]]) -> None:
    found.sort()
    entries = [(ledger_id, entry_id) for ledger_id, count in found for entry_id in range(count)]
    ledgers = Ledgers(found)
    forwards, position = [], ledgers.after((-1, -1))
    while position is not None:
        forwards.append(position)
        position = ledgers.after(position)
    backwards, position = [], ledgers.before((10**9, 0))
    while position is not None:
        backwards.append(position)
        position = ledgers.before(position)
    assert forwards == entries
    assert backwards == entries[::-1]
    for place, entry in enumerate(entries):
        assert ledgers.count_after(entry) == len(entries) - place - 1
        assert ledgers.count_after((entry[0], -1)) == len([each for each in entries if each[0] >= entry[0]])


# ---- a cluster by the answers of its admin API


class FakeAdmin:
    """Answers by path; a number is an HTTP status, and an exception is raised."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "/admin/v2/brokers/health": Entry({}, b"ok"),
            f"{TXN}/coordinatorStats": {"0": {"state": "Ready", "leastSigBits": 9, "ongoingTxnSize": 0}},
            f"{TXN}/slowTransactions/0?coordinatorId=0": {},
            f"{TXN}/transactionBufferStats/public/default/t": {"state": "Ready", "maxReadPosition": "5:9", "ongoingTxnSize": 0},
            "/admin/v2/persistent/public/default/t/partitions": {"partitions": 0},
            "/admin/v2/persistent/public/default/t/stats": {"subscriptions": {}},
        }

    async def get(self, path: str) -> Any:
        answer = self.answers.get(path, 404)
        if isinstance(answer, int):
            raise AdminRefused(answer, "as the test says")
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def read(self, path: str) -> Entry:
        answer = await self.get(path)
        return answer if isinstance(answer, Entry) else Entry({}, json.dumps(answer).encode())

    def entry(self, ledger_id: int, entry_id: int, txn_id: TxnId | None = None, marker: int | None = None) -> None:
        headers = {"x-pulsar-publish-time": "2026-11-23T04:27:14.781Z"}
        if txn_id is not None:
            headers |= {"x-pulsar-txnid-most-bits": str(txn_id.most), "x-pulsar-txnid-least-bits": str(txn_id.least)}
        if marker is not None:
            headers["x-pulsar-marker-type"] = str(marker)
        self.answers[f"/admin/v2/persistent/public/default/t/ledger/{ledger_id}/entry/{entry_id}"] = Entry(headers, b"")

    def known(self, txn_id: TxnId, status: str, *, acked: str | None = None) -> None:
        found = {
            "txnId": str(txn_id),
            "status": status,
            "openTimestamp": NOW - 600_000,
            "timeoutAt": 1000,
            "producedPartitions": {TOPIC: {}},
            "ackedPartitions": {TOPIC: {acked: {}}} if acked else {},
        }
        self.answers[f"{TXN}/slowTransactions/0?coordinatorId=0"] |= {str(txn_id): found}
        self.answers[f"{TXN}/transactionMetadata/{txn_id.most}/{txn_id.least}"] = found

    def ongoing(self, *txn_ids: TxnId, after: str, last: str) -> None:
        """These transactions are ongoing in the topic, whose ledger 5 has entries up to `last`."""
        buffer = {"state": "Ready", "maxReadPosition": after, "ongoingTxnSize": len(txn_ids)}
        self.answers[f"{TXN}/transactionBufferStats/public/default/t"] = buffer
        ledgers = {"ledgers": [{"ledgerId": 5, "entries": 0}], "lastConfirmedEntry": last}
        self.answers["/admin/v2/persistent/public/default/t/internalStats"] = ledgers
        for txn_id in txn_ids:
            path = f"{TXN}/transactionInBufferStats/public/default/t/{txn_id.most}/{txn_id.least}"
            self.answers[path] = {"startPosition": "5:1", "aborted": False}

    def subscription(self, state: str, ongoing: int, **times: int) -> None:
        self.answers["/admin/v2/persistent/public/default/t/stats"] = {"subscriptions": {"s": {"unackedMessages": 3}}}
        self.answers[f"{TXN}/pendingAckStats/public/default/t/s"] = {"state": state, "ongoingTxnSize": ongoing} | times


async def no_pause(_seconds: float) -> None:
    """Nothing moves on in these clusters."""


async def refused(_number: int) -> str:
    return "as a client hears it"


def examination(admin: FakeAdmin, load: Any = refused, **scope: Any) -> Examination:
    return Examination(ClusterReader(admin), Scope(topics=("t",), **scope), load, pause_seconds=0)  # type: ignore[arg-type]


async def look(admin: FakeAdmin, **scope: Any) -> list[Finding]:
    return await examination(admin, **scope).examine(NOW)


async def test_a_healthy_cluster_has_no_findings() -> None:
    assert await look(FakeAdmin()) == []


async def test_a_decided_transaction_whose_end_has_not_arrived_is_repeated_as_its_log_says() -> None:
    for status, cure in (("COMMITTING", Cure.REPEAT_COMMIT), ("ABORTING", Cure.REPEAT_ABORT)):
        admin, txn_id = FakeAdmin(), TxnId(0, 4)
        admin.entry(5, 1, txn_id)
        admin.ongoing(txn_id, after="5:0", last="5:1")
        admin.known(txn_id, status, acked="s")
        admin.subscription("Ready", 1)
        on_topic, on_subscription = await look(admin)
        assert (on_topic.kind, on_topic.cure, on_topic.subscription) == ("ending", cure, None)
        assert (on_subscription.kind, on_subscription.cure, on_subscription.subscription) == ("ending", cure, "s")
        assert on_topic.since_ms == NOW - 600_000


async def test_the_marker_before_a_late_entry_tells_the_outcome() -> None:
    for marker, cure in ((21, Cure.REPEAT_COMMIT), (22, Cure.REPEAT_ABORT)):
        admin, txn_id = FakeAdmin(), TxnId(0, 4)
        admin.entry(5, 0, txn_id)
        admin.entry(5, 1, txn_id, marker)
        for entry_id in range(2, 100):
            admin.entry(5, entry_id)
        admin.entry(5, 100, txn_id)
        admin.ongoing(txn_id, after="5:99", last="5:100")
        (finding,) = await look(admin)
        assert finding.cure is cure
        (finding,) = await look(admin, entries=50)  # the marker is out of sight: nothing tells the outcome
        assert finding.cure is Cure.ABORT


async def test_a_transaction_without_an_entry_in_sight_is_counted() -> None:
    admin = FakeAdmin()
    for entry_id in range(1, 50):
        admin.entry(5, entry_id)
    admin.ongoing(TxnId(0, 4), after="5:0", last="5:49")
    (finding,) = await look(admin, entries=20)
    assert finding.kind == "more"
    assert "--entries" in finding.advice


async def test_what_is_younger_than_asked_is_passed_over() -> None:
    admin, txn_id = FakeAdmin(), TxnId(0, 4)
    admin.entry(5, 1, txn_id)
    admin.ongoing(txn_id, after="5:0", last="5:1")
    admin.known(txn_id, "OPEN")
    assert len(await look(admin, older_than_ms=600_000)) == 1
    assert await look(admin, older_than_ms=600_001) == []


@pytest.mark.parametrize(
    ("stats", "each", "kind", "words"),
    [
        (503, {}, "transactions_off", "transactionCoordinatorEnabled=true"),
        ({}, {}, "no_coordinators", "initialize-transaction-coordinator-metadata"),
        (404, {"partitions": 404}, "no_coordinators", "initialize-transaction-coordinator-metadata"),
        (404, {"partitions": {"partitions": 1}, "0": 404}, "coordinator", "assign-partition-0"),
        ({"0": {"state": "Initializing"}}, {}, "coordinator", "assign-partition-0"),
    ],
)
async def test_coordinators_that_are_not_there_are_named_with_the_cure(
    stats: Any, each: dict[str, Any], kind: str, words: str
) -> None:
    admin = FakeAdmin()
    admin.answers[f"{TXN}/coordinatorStats"] = stats
    assigned = "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions"
    admin.answers[assigned] = each.get("partitions", 404)
    admin.answers[f"{TXN}/coordinatorStats?coordinatorId=0"] = each.get("0", 404)
    del admin.answers[f"{TXN}/slowTransactions/0?coordinatorId=0"]
    (finding,) = await look(admin)
    assert finding.kind == kind
    assert words in finding.advice
    assert kind != "coordinator" or "as a client hears it" in finding.what


async def test_one_coordinator_that_is_not_loaded_keeps_no_other_from_being_asked() -> None:
    admin = FakeAdmin()
    admin.answers[f"{TXN}/coordinatorStats"] = {"0": {"state": "Ready"}, "1": {"state": "Initializing"}}
    admin.known(TxnId(0, 4), "COMMITTING", acked="s")
    admin.subscription("Ready", 1)
    assert {finding.kind for finding in await look(admin)} == {"coordinator", "ending"}


async def test_a_coordinator_that_nobody_has_used_is_loaded_as_a_client_loads_it_and_is_no_finding() -> None:
    admin, loaded = FakeAdmin(), []
    admin.answers[f"{TXN}/coordinatorStats"] = 404  # what stock says while one of them is not loaded
    admin.answers["/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions"] = {"partitions": 2}
    admin.answers[f"{TXN}/coordinatorStats?coordinatorId=0"] = {"state": "Ready"}

    async def load(number: int) -> str:
        loaded.append(number)
        admin.answers[f"{TXN}/coordinatorStats"] = {"0": {"state": "Ready"}, "1": {"state": "Ready"}}
        return ""

    assert await examination(admin, load).examine(NOW) == []
    assert loaded == [1]


async def test_recoveries_that_do_not_end_are_named_by_their_defects() -> None:
    admin = FakeAdmin()
    long_ago = {"recoverStartTime": NOW - 60_000, "recoverEndTime": 0}
    admin.answers[f"{TXN}/transactionBufferStats/public/default/t"] = {"state": "Initializing"} | long_ago
    admin.subscription("Initializing", 0, **long_ago)
    of_topic, of_subscription = await look(admin)
    assert "#26379" in of_topic.advice
    assert "#26368" in of_subscription.advice
    assert of_topic.since_ms == of_subscription.since_ms == NOW - 60_000
    recently = {"recoverStartTime": NOW - 5_000, "recoverEndTime": 0}
    admin.answers[f"{TXN}/transactionBufferStats/public/default/t"] = {"state": "Initializing"} | recently
    admin.subscription("Initializing", 0, **recently)
    assert await look(admin) == []


async def test_a_deadlock_of_the_broker_is_named() -> None:
    admin = FakeAdmin()
    admin.answers["/admin/v2/brokers/health"] = AdminRefused(500, "Deadlocked threads detected")
    (finding,) = await look(admin)
    assert "kill" in finding.advice


async def test_a_topic_that_is_silent_or_failing_keeps_no_other_from_being_looked_at() -> None:
    admin = FakeAdmin()
    admin.subscription("Error", 0)
    (finding,) = await look(admin)
    assert finding.kind == "failed"
    for trouble, kind in ((AdminUnreachable("silence"), "silent"), (500, "unreadable"), (404, "missing")):
        admin.answers[f"{TXN}/transactionBufferStats/public/default/t"] = trouble
        (finding,) = await look(admin)
        assert (finding.kind, finding.topic) == (kind, TOPIC)
    admin.answers[f"{TXN}/transactionBufferStats/public/default/t"] = 403
    with pytest.raises(AdminRefused):
        await look(admin)


# ---- cures


class FakeAttempts:
    """Takes ends; `on_end` is what the cluster does then."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.effects: list[Any] = []
        self.on_end: Any = lambda _effect: None

    async def attempt(self, effect: Any) -> AttemptResult:
        self.effects.append(effect)
        answer = self.answers.pop(0) if self.answers else Answer.OK
        if answer is Answer.OK:
            self.on_end(effect)
        return AttemptResult(answer, "as the test says")


async def orphan() -> tuple[FakeAdmin, Finding, TxnId]:
    admin, txn_id = FakeAdmin(), TxnId(0, 4)
    admin.entry(5, 1, txn_id)
    admin.ongoing(txn_id, after="5:0", last="5:1")
    (finding,) = await look(admin)
    assert finding.cure is Cure.ABORT
    return admin, finding, txn_id


def curing(admin: FakeAdmin, attempts: FakeAttempts, search: int = 100, suspects: tuple[TxnId, ...] = ()) -> Curing:
    return Curing(attempts, ClusterReader(admin), examination(admin), no_pause, search, suspects)  # type: ignore[arg-type]


async def test_a_cure_is_told_again_after_passing_troubles_and_never_raises_the_watermark() -> None:
    admin, finding, txn_id = await orphan()
    attempts = FakeAttempts(Answer.NOT_READY, Answer.BROKEN, Answer.SILENT)

    def gone(_effect: Any) -> None:
        admin.answers[f"{TXN}/transactionInBufferStats/public/default/t/0/4"] = {"aborted": True}

    attempts.on_end = gone
    await curing(admin, attempts).cure(finding)
    assert len(attempts.effects) == 4
    assert {(each.txn_id, each.action, each.low_watermark) for each in attempts.effects} == {(txn_id, TxnAction.ABORT, -1)}


async def test_a_transaction_of_a_coordinator_that_is_not_ready_is_left_alone() -> None:
    admin, _, txn_id = await orphan()
    admin.answers[f"{TXN}/coordinatorStats"] = {"0": {"state": "Initializing"}}
    coordinator, finding = await look(admin)
    assert coordinator.kind == "coordinator"
    assert (finding.kind, finding.cure, finding.txn_id) == ("away", Cure.NOTHING, txn_id)


async def test_what_has_a_coordinator_by_now_is_not_aborted() -> None:
    admin, finding, txn_id = await orphan()
    admin.known(txn_id, "OPEN")
    attempts = FakeAttempts()
    with pytest.raises(NotCured, match="left alone"):
        await curing(admin, attempts).cure(finding)
    assert attempts.effects == []


@pytest.mark.parametrize(
    ("answer", "words"), [(Answer.NOT_SUPERUSER, "superUserRoles"), (Answer.NOT_READY, "log of the broker")]
)
async def test_a_cure_that_the_broker_refuses_says_why(answer: Answer, words: str) -> None:
    admin, finding, _ = await orphan()
    with pytest.raises(NotCured, match=words):
        await curing(admin, FakeAttempts(*[answer] * 20)).cure(finding)


async def test_a_cure_that_did_not_help_is_not_called_one() -> None:
    admin, finding, _ = await orphan()
    with pytest.raises(NotCured, match="still ongoing"):
        await curing(admin, FakeAttempts()).cure(finding)


async def test_the_search_for_pending_acks_leaves_open_transactions_alone_and_ends_when_nothing_unknown_is_left() -> None:
    admin = FakeAdmin()
    admin.answers[f"{TXN}/coordinatorStats"] = {"0": {"state": "Ready", "leastSigBits": 500}}
    admin.known(TxnId(0, 499), "OPEN", acked="s")
    admin.subscription("Ready", 2)
    found = await look(admin)
    assert [finding.kind for finding in found] == ["open", "pending_acks"]
    attempts = FakeAttempts()
    attempts.on_end = lambda effect: effect.txn_id == TxnId(0, 450) and admin.subscription("Ready", 1)
    await curing(admin, attempts).cure(found[1])
    told = {effect.txn_id for effect in attempts.effects}
    assert TxnId(0, 450) in told
    assert TxnId(0, 499) not in told
    assert len(told) < 100


async def test_nothing_of_a_coordinator_that_cannot_say_what_it_has_open_is_aborted() -> None:
    admin = FakeAdmin()
    admin.subscription("Ready", 1)
    (finding,) = await look(admin)
    del admin.answers[f"{TXN}/slowTransactions/0?coordinatorId=0"]  # it is being moved
    attempts = FakeAttempts()
    with pytest.raises(NotCured):
        await curing(admin, attempts).cure(finding)
    assert attempts.effects == []


async def test_a_search_tries_transactions_that_hold_topics_back_first_and_says_when_it_found_nothing() -> None:
    admin = FakeAdmin()
    admin.subscription("Ready", 1)
    (finding,) = await look(admin)
    attempts = FakeAttempts()
    with pytest.raises(NotCured, match="--search"):
        await curing(admin, attempts, suspects=(TxnId(77, 5),)).cure(finding)
    assert [effect.txn_id for effect in attempts.effects] == [TxnId(77, 5), *(TxnId(0, least) for least in range(9, -1, -1))]
    assert {effect.action for effect in attempts.effects} == {TxnAction.ABORT}


# ---- what is printed


def test_a_finding_says_where_what_since_when_what_it_blocks_and_what_to_do() -> None:
    finding = Finding("unknown", "held back", "abort it", Cure.ABORT, TOPIC, None, TxnId(0, 4), NOW - 7_200_000, 12)
    head, since, blocked, advice = lines(finding, NOW)
    assert head == f"{TOPIC}: held back"
    assert "2 hours" in since
    assert "12 entries wait" in blocked
    assert advice.strip() == "abort it"
    assert "lose its messages" in question(finding)
    told = as_dict(finding)
    assert (told["txnId"], told["sinceMs"], told["cure"]) == ("(0,4)", NOW - 7_200_000, "abort")
    assert json.loads(json.dumps(told)) == told


def test_a_finding_about_the_cluster_has_no_place() -> None:
    finding = Finding("transactions_off", "the brokers have no transactions", "switch them on")
    assert lines(finding, NOW) == ["the brokers have no transactions", "    switch them on"]
