"""The coordinator against a plain model, through crashes: what survives is the fold of a prefix of the log (S17).

Check groups come and go, transactions are prepared, and NEW_TXN is repeated with its nonce, all between crashes and snapshots.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tc_host import DECIDED, TcHost

from pulsar_txn.tc import (
    AddParticipants,
    Check,
    CheckAnswered,
    CheckBegun,
    CheckOutcome,
    CheckPolicy,
    CheckReturned,
    EndTxn,
    GroupJoined,
    GroupLeft,
    IsRegistered,
    NewTxn,
    ParticipantsDone,
    PrepareTxn,
    ResumeTxn,
    records,
)
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.check_times import ABSENCE_MS
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

OPEN, COMMITTING, COMMITTED, ABORTING, ABORTED, PREPARED, _ = TxnStatus
ENDING = {TxnAction.COMMIT: COMMITTING, TxnAction.ABORT: ABORTING}
ENDED = {COMMITTING: COMMITTED, ABORTING: ABORTED}
LIVING = (OPEN, PREPARED, COMMITTING, ABORTING)
POLICIES = {CheckPolicy.ABORT: ABORTING, CheckPolicy.COMMIT: COMMITTING}
MAX_ACTIVE = 6
EXPIRE_LIMIT = 2
AFTER_MS, INTERVAL_MS, MAX_CHECKS = 40, 25, 2

WHO = st.sampled_from(
    [
        {},
        {},
        {"principal": "anna"},
        {"principal": "bert"},
        {"principal": "anna", "identity": ("app", 1)},
        {"principal": "anna", "identity": ("app", 2)},
    ]
)
PARTICIPANTS = st.lists(
    st.sampled_from([Participant("a"), Participant("b"), Participant("a", "s"), Participant("b", "s")]), max_size=3
)
PICK = st.integers(0, 11)
CHECKS = st.sampled_from([None, None, Check("g", b"data"), Check("g", after_ms=0), Check("h", after_ms=70)])
NONCES = st.sampled_from([b"", b"", b"", b"n0", b"n1"])
TOKENS = st.sampled_from([b"", b"t0", b"t1"])
GROUPS = st.sampled_from([(None, "g"), ("anna", "g"), ("anna", "h"), ("bert", "g")])


class Coordinator(RuleBasedStateMachine):
    """`txns` is the model; `history[n]` is what it was after the first n records of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.host = TcHost()
        self.policy = CheckPolicy.ABORT
        self.room: dict[tuple[str | None, str], int] = {}
        self.out: set[int] = set()
        self.left: dict[tuple[str | None, str], int] = {}
        self.started_ms = self.host.now_ms
        self.txns: dict[int, dict[str, Any]] = {}
        self.history: list[dict[int, dict[str, Any]]] = [{}]
        self.tokens = 0

    # ------------------------------------------------------------------ the model

    def note(self) -> None:
        """A record was written."""
        self.history.append(copy.deepcopy(self.txns))

    def known(self, least: int, who: dict[str, Any]) -> dict[str, Any] | None:
        txn = self.txns.get(least)
        if txn is None or txn["who"].get("principal") != who.get("principal"):
            return None
        return txn if txn["who"].get("identity") in (None, who.get("identity")) else None

    def active(self) -> list[int]:
        return [least for least, txn in self.txns.items() if txn["status"] in LIVING]

    def is_full(self) -> bool:
        return sum(self.txns[each]["parked"] is None for each in self.active()) >= MAX_ACTIVE

    def has_room_to_prepare(self, txn: dict[str, Any]) -> bool:
        """What is prepared has half of the room, and one role a half of that; what was parked needs room first."""
        prepared = [each["who"].get("principal") for each in self.txns.values() if each["status"] is PREPARED]
        has_room = txn["parked"] is None or not self.is_full()
        of_role = prepared.count(txn["who"].get("principal"))
        return has_room and len(prepared) < MAX_ACTIVE // 2 and of_role < MAX_ACTIVE // 4

    def key(self, txn: dict[str, Any]) -> tuple[str | None, str]:
        return (txn["who"].get("principal"), txn["check"].group)

    def due(self, txn: dict[str, Any]) -> tuple[str, int] | None:
        """Whether a question or the policy is due, and when."""
        check, status = txn["check"], txn["status"]
        if not self.is_asked_for(txn) or txn["least"] in self.out:
            return None
        first = txn["since"] + (AFTER_MS if check.after_ms is None else check.after_ms)
        at = first if txn["asked"] is None else txn["asked"] + INTERVAL_MS
        if status is PREPARED or txn["count"] < MAX_CHECKS:
            out = sum(self.key(self.txns[least]) == self.key(txn) for least in self.out)
            return ("question", at) if self.room.get(self.key(txn), 0) > out else None
        return None if self.policy is CheckPolicy.KEEP else ("policy", at)

    def is_asked_for(self, txn: dict[str, Any]) -> bool:
        return txn["check"] is not None and txn["status"] in (OPEN, PREPARED) and txn["parked"] is None

    def spared_until(self, txn: dict[str, Any]) -> int | None:
        """Until when no timeout ends what is due now."""
        now_ms = self.host.now_ms
        if txn["check"] is None:
            return None
        if txn["least"] not in self.out and txn["count"] >= MAX_CHECKS:
            due = self.due(txn)
            return None if due is None else max(due[1], now_ms + 1)
        whole_ms = max(txn["timeout"], ABSENCE_MS)
        if self.key(txn) in self.room:
            return now_ms + whole_ms
        since_ms = self.left.get(self.key(txn), self.started_ms if txn["start"] < self.started_ms else None)
        return None if since_ms is None or since_ms + whole_ms <= now_ms else since_ms + whole_ms

    def deadlines(self) -> list[int]:
        timeouts = [txn["deadline"] for txn in self.txns.values() if txn["status"] is OPEN and txn["parked"] is None]
        return timeouts + [due[1] for due in map(self.due, self.txns.values()) if due is not None]

    def moved(self, least: int, status: TxnStatus) -> None:
        self.txns[least]["status"] = status
        self.txns[least]["modified"] = self.host.now_ms

    def fold(self, record: Any) -> None:
        """A record that the machine wrote by itself: it had a reason to."""
        now_ms = self.host.now_ms
        if record.operation == records.PARKED:
            members = (record.least, *record.group)
            assert len(members) <= EXPIRE_LIMIT
            for least in members:
                due = self.due(self.txns[least])
                assert due is not None
                assert due[0] == "policy"
                assert due[1] <= now_ms
                assert self.txns[least]["status"] is OPEN
                self.txns[least]["parked"] = self.txns[least]["modified"] = now_ms
            self.note()
            return
        txn = self.txns[record.least]
        if record.new_status in ENDED.values():
            assert not txn["topics"] + txn["subs"]
            self.finish(record.least)
            return
        assert txn["status"] is OPEN, "nothing else ends by itself"
        if record.cause == Cause.TIMEOUT:
            assert txn["deadline"] <= now_ms
            assert self.spared_until(txn) is None
            assert record.new_status == ABORTING
        else:
            assert record.cause == Cause.UNANSWERED
            due = self.due(txn)
            assert due is not None
            assert due[0] == "policy"
            assert due[1] <= now_ms
            assert record.new_status == POLICIES[self.policy]
        self.moved(record.least, TxnStatus(record.new_status))
        self.note()

    def finish(self, least: int) -> None:
        self.moved(least, ENDED[self.txns[least]["status"]])
        self.note()

    def pick(self, number: int) -> TxnId:
        """Any id that was given, favouring the last ones, or the one after them."""
        return TxnId(3, max(0, len(self.txns) - number))

    def token(self) -> int:
        self.tokens += 1
        return self.tokens

    def refused(self, code: ServerError, request: Any) -> None:
        with pytest.raises(Refusal) as caught:
            self.host.ask(request)
        assert caught.value.code is code

    # ------------------------------------------------------------------ what happens

    @initialize(start=st.integers(0, 10**12), policy=st.sampled_from(CheckPolicy))
    def begin(self, start: int, policy: CheckPolicy) -> None:
        rules = {"check_after_ms": AFTER_MS, "check_interval_ms": INTERVAL_MS, "max_checks": MAX_CHECKS}
        self.policy = policy
        self.host = TcHost(
            max_active=MAX_ACTIVE, expire_limit=EXPIRE_LIMIT, snapshot_every=5, check_policy=policy.value, **rules
        )
        self.started_ms = self.host.now_ms  # it may be in the future
        self.host.now_ms = start

    @rule(timeout_ms=st.sampled_from([0, 1, 50, 1_000, 10**6]), who=WHO, check=CHECKS, nonce=NONCES)
    def new(self, timeout_ms: int, who: dict[str, Any], check: Check | None, nonce: bytes) -> None:
        request = NewTxn(self.token(), timeout_ms, check=check, nonce=nonce, **who)
        same = [each for each in self.active() if nonce and (self.txns[each]["who"], self.txns[each]["nonce"]) == (who, nonce)]
        if same:
            step = self.host.ask(request)
            assert step.records == ()
            assert [effect.value for effect in step.effects] == [TxnId(3, same[0])]  # type: ignore[union-attr]  # a Reply
            return
        if self.is_full():
            self.refused(ServerError.TooManyRequests, request)
            return
        step = self.host.ask(request)
        least = len(self.txns)
        assert step.effects[0].value == TxnId(3, least)  # type: ignore[union-attr]  # a Reply comes first
        now_ms = self.host.now_ms
        self.txns[least] = {"status": OPEN, "who": who, "topics": [], "subs": [], "deadline": now_ms + timeout_ms}
        self.txns[least] |= {"check": check, "nonce": nonce, "token": b"", "since": now_ms, "asked": None, "count": 0}
        self.txns[least] |= {"least": least, "start": now_ms, "timeout": timeout_ms, "base": now_ms + timeout_ms}
        self.txns[least] |= {"parked": None, "resumed": False}
        self.txns[least]["modified"] = now_ms
        self.note()

    @rule(number=PICK, who=WHO, participants=PARTICIPANTS)
    def add(self, number: int, who: dict[str, Any], participants: list[Participant]) -> None:
        txn_id = self.pick(number)
        txn = self.known(txn_id.least, who)
        request = AddParticipants(self.token(), txn_id, tuple(participants), **who)
        if txn is None:
            self.refused(ServerError.TransactionNotFound, request)
        elif txn["status"] is not OPEN:
            self.refused(ServerError.InvalidTxnStatus, request)
        else:
            self.host.ask(request)
            for kind, subscribed in (("topics", False), ("subs", True)):
                new = [
                    p for p in dict.fromkeys(participants) if (p.subscription is not None) == subscribed and p not in txn[kind]
                ]
                txn[kind] += new
                if new:
                    txn["modified"] = self.host.now_ms
                    self.note()

    def decided(self, least: int, action: TxnAction) -> None:
        txn = self.txns[least]
        self.moved(least, ENDING[action])
        txn["parked"] = None
        self.out.discard(least)
        self.note()
        if not txn["topics"] + txn["subs"]:
            self.finish(least)

    @rule(number=PICK, who=WHO, action=st.sampled_from(TxnAction), superuser=st.booleans(), shown=TOKENS, early=st.booleans())
    def end(self, number: int, who: dict[str, Any], action: TxnAction, superuser: bool, shown: bytes, early: bool) -> None:
        txn_id = self.pick(number)
        txn = self.txns.get(txn_id.least) if superuser else self.known(txn_id.least, who)
        if txn is None and shown and shown == self.txns.get(txn_id.least, {}).get("token"):
            txn = self.txns[txn_id.least]
        token = self.token()
        request = EndTxn(token, txn_id, action, superuser=superuser, prepared_token=shown, at_decision=early, **who)
        if txn is None:
            self.refused(ServerError.TransactionNotFound, request)
        elif txn["status"] in (OPEN, PREPARED):
            self.host.ask(request)
            self.decided(txn_id.least, action)
            if early:
                self.host.confirm()
                assert self.host.answers[token] is None
        elif txn["status"] in DECIDED[action]:
            self.host.ask(request)
        else:
            self.refused(ServerError.InvalidTxnStatus, request)

    @rule(number=PICK)
    def connection_ends(self, number: int) -> None:
        txn_id, token = self.pick(number), self.token()
        self.host.ask(EndTxn(token, txn_id, TxnAction.ABORT, superuser=True, cause=Cause.DISCONNECTED))
        if self.txns.get(txn_id.least, {}).get("status") is OPEN:
            self.decided(txn_id.least, TxnAction.ABORT)

    @rule(number=PICK, who=WHO, shown=TOKENS)
    def prepare(self, number: int, who: dict[str, Any], shown: bytes) -> None:
        txn_id = self.pick(number)
        txn = self.known(txn_id.least, who)
        request = PrepareTxn(self.token(), txn_id, shown, **who)
        if txn is None:
            self.refused(ServerError.TransactionNotFound, request)
        elif txn["status"] not in (OPEN, PREPARED):
            self.refused(ServerError.InvalidTxnStatus, request)
        elif not shown:
            self.refused(ServerError.NotAllowedError, request)
        elif txn["status"] is PREPARED and txn["token"] != shown:
            self.refused(ServerError.InvalidTxnStatus, request)
        elif txn["status"] is OPEN and not self.has_room_to_prepare(txn):
            self.refused(ServerError.TooManyRequests, request)
        else:
            self.host.ask(request)
            if txn["status"] is OPEN:
                txn |= {"token": shown, "since": self.host.now_ms, "asked": None, "parked": None}
                self.moved(txn_id.least, PREPARED)
                self.note()

    @rule(key=GROUPS, room=st.sampled_from([None, None, 0, 1, 3]))
    def member(self, key: tuple[str | None, str], room: int | None) -> None:
        if room is not None:
            self.host.ask(GroupJoined(key[1], key[0], room))
            self.room[key] = room
            self.left.pop(key, None)
            return
        self.host.ask(GroupLeft(key[1], key[0]))
        if self.room.pop(key, None) is not None and key in self.watched():
            self.left[key] = self.host.now_ms

    def watched(self) -> set[tuple[str | None, str]]:
        """Groups of which something waits for a question, or is out."""
        asked = [txn for txn in self.txns.values() if self.is_asked_for(txn)]
        return {
            self.key(txn) for txn in asked if txn["status"] is PREPARED or txn["count"] < MAX_CHECKS or txn["least"] in self.out
        }

    @rule(number=PICK, key=GROUPS)
    def begins(self, number: int, key: tuple[str | None, str]) -> None:
        txn_id = self.pick(number)
        txn = self.txns.get(txn_id.least)
        request = CheckBegun(self.token(), txn_id, key[1], key[0])
        if txn is None or not self.is_asked_for(txn) or self.key(txn) != key:
            self.refused(ServerError.InvalidTxnStatus, request)
            return
        self.host.ask(request)
        txn["count"] += 1
        txn["asked"] = self.host.now_ms
        self.note()

    @rule(number=PICK)
    def comes_back(self, number: int) -> None:
        txn_id = self.pick(number)
        self.host.ask(CheckReturned(txn_id))
        self.out.discard(txn_id.least)

    @rule(number=PICK, who=WHO, superuser=st.booleans())
    def resume(self, number: int, who: dict[str, Any], superuser: bool) -> None:
        txn_id = self.pick(number)
        txn = self.txns.get(txn_id.least) if superuser else self.known(txn_id.least, who)
        request = ResumeTxn(self.token(), txn_id, superuser=superuser, **who)
        if txn is None:
            self.refused(ServerError.TransactionNotFound, request)
        elif txn["parked"] is None:
            self.refused(ServerError.InvalidTxnStatus, request)
        elif self.is_full():
            self.refused(ServerError.TooManyRequests, request)
        else:
            self.host.ask(request)
            now_ms = self.host.now_ms
            txn |= {"parked": None, "count": 0, "asked": None, "modified": now_ms, "resumed": True}
            txn["deadline"] = txn["base"] = now_ms + txn["timeout"]
            self.note()

    @rule(number=PICK, key=GROUPS, outcome=st.sampled_from(CheckOutcome))
    def answer(self, number: int, key: tuple[str | None, str], outcome: CheckOutcome) -> None:
        txn_id = self.pick(number)
        self.host.ask(CheckAnswered(txn_id, key[1], outcome, key[0]))
        txn = self.txns.get(txn_id.least)
        if txn is None or txn["check"] is None or self.key(txn) != key:
            return
        self.out.discard(txn_id.least)
        was_asked = txn["count"] or txn["resumed"]
        if outcome is not CheckOutcome.UNKNOWN and was_asked and txn["status"] in (OPEN, PREPARED):
            self.decided(txn_id.least, TxnAction(outcome))

    @rule(numbers=st.lists(PICK, min_size=2, max_size=4), who=WHO, action=st.sampled_from(TxnAction))
    def end_together(self, numbers: list[int], who: dict[str, Any], action: TxnAction) -> None:
        """One record for all of them, or a refusal that changes nothing."""
        txn_ids = [self.pick(number) for number in numbers]
        members = {txn_id.least: self.known(txn_id.least, who) for txn_id in txn_ids}
        request = EndTxn(self.token(), txn_ids[0], action, group=tuple(txn_ids[1:]), **who)
        statuses = {None if txn is None else txn["status"] for txn in members.values()}
        if statuses == {OPEN}:
            self.host.ask(request)
            for least in members:
                self.moved(least, ENDING[action])
                self.txns[least]["parked"] = None
                self.out.discard(least)
            self.note()
            for least in members:
                if not self.txns[least]["topics"] + self.txns[least]["subs"]:
                    self.finish(least)
        elif statuses <= DECIDED[action]:
            self.host.ask(request)
        else:
            first = (
                next(txn for txn in members.values() if txn is None or txn["status"] not in {OPEN, *DECIDED[action]})
                if (not statuses <= {OPEN, *DECIDED[action]})
                else members[txn_ids[0].least]
            )
            self.refused(ServerError.TransactionNotFound if first is None else ServerError.InvalidTxnStatus, request)

    @rule(number=PICK)
    def done(self, number: int) -> None:
        txn_id = self.pick(number)
        txn = self.txns.get(txn_id.least)
        if txn is not None and txn["status"] in (OPEN, PREPARED):
            self.refused(ServerError.InvalidTxnStatus, ParticipantsDone(txn_id))
            return
        if txn is not None and txn["status"] in ENDED:
            self.host.confirm()  # participants hear of a decision only when it is durable
        self.host.ask(ParticipantsDone(txn_id))
        if txn is not None and txn["status"] in ENDED:
            self.finish(txn_id.least)

    @rule(number=PICK, participant=st.sampled_from([Participant("a"), Participant("a", "s")]))
    def query(self, number: int, participant: Participant) -> None:
        txn_id, token = self.pick(number), self.token()
        self.host.ask(IsRegistered(token, txn_id, participant))
        self.host.confirm()
        txn = self.txns.get(txn_id.least)
        expected = txn is not None and txn["status"] is OPEN and participant in txn["topics"] + txn["subs"]
        assert self.host.answers[token] is expected

    @rule(ms=st.sampled_from([0, 1, 25, 60, 2_000, 90_000]))
    def time_passes(self, ms: int) -> None:
        host, written = self.host, len(self.host.log)
        host.now_ms += ms
        due = []
        for least, txn in self.txns.items():
            if txn["status"] is OPEN and txn["parked"] is None and txn["deadline"] <= host.now_ms:
                until_ms = self.spared_until(txn)
                if until_ms is None:
                    due.append(least)
                else:
                    txn["deadline"] = until_ms
        due.sort(key=lambda least: (self.txns[least]["deadline"], least))
        asked_before = len(host.asked)
        host.expire()
        timed_out = []
        for data in host.log[written:]:
            record = host.tc.decode("log", data)
            assert isinstance(record, records.Entry)
            self.fold(record)
            if record.new_status and record.cause == Cause.TIMEOUT:
                timed_out.append(record.least)
        assert timed_out == due
        for question in host.asked[asked_before:]:
            txn = self.txns[question.txn_id.least]
            found = self.due(txn)
            assert found is not None
            assert found[0] == "question"
            assert found[1] <= host.now_ms
            assert (question.count, question.group) == (txn["count"] + 1, txn["check"].group)
            self.out.add(question.txn_id.least)
        assert all(deadline > host.now_ms for deadline in self.deadlines())

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
        keep = host.confirmed + round(part * (len(host.log) - host.confirmed))
        self.txns = copy.deepcopy(self.history[keep])
        for txn in self.txns.values():
            txn["deadline"] = txn["base"]
        for kept in (self.room, self.left, self.out):
            kept.clear()
        del self.history[keep + 1 :]
        host.crash(keep)
        self.started_ms = host.now_ms
        ending = [least for least in self.active() if self.txns[least]["status"] in ENDED]
        for least in ending:
            if not self.txns[least]["topics"] + self.txns[least]["subs"]:
                self.finish(least)
        if len(ending) > EXPIRE_LIMIT:  # recovery carries out so many, and its host does the others by `expire`
            self.time_passes(0)

    # ------------------------------------------------------------------ what holds

    @invariant()
    def the_machine_is_the_model(self) -> None:
        tc = self.host.tc
        tc.check_invariants()
        watched = self.watched()
        self.left = {key: when for key, when in self.left.items() if key in watched}
        assert len(self.history) == len(self.host.log) + 1
        assert tc.next_local_txn_id == len(self.txns)
        assert [info.txn_id.least for info in tc.transactions()] == self.active()
        for info in tc.transactions():
            txn = self.txns[info.txn_id.least]
            assert (info.status, list(info.participants)) == (txn["status"], txn["topics"] + txn["subs"])
            assert (info.principal, info.identity) == (txn["who"].get("principal"), txn["who"].get("identity"))
            assert (info.start_time_ms, info.timeout_ms) == (txn["start"], txn["timeout"])
            group = None if txn["check"] is None else txn["check"].group
            assert (info.check_group, info.check_count, info.modified_ms) == (group, txn["count"], txn["modified"])
            assert info.parked_ms == txn["parked"]
            assert info.prepared is (txn["status"] is PREPARED)
        assert [tc.status(TxnId(3, least)) for least in self.txns] == [txn["status"] for txn in self.txns.values()]

    @invariant()
    def deadlines_and_the_low_watermark_follow(self) -> None:
        tc = self.host.tc
        assert tc.deadline() == min(self.deadlines(), default=None)
        assert tc.low_watermark == min(self.active(), default=len(self.txns)) - 1

    @invariant()
    def an_unconfirmed_answer_does_not_leave(self) -> None:
        assert all(need > self.host.confirmed for need, _ in self.host.held)

    def teardown(self) -> None:
        """Nothing keeps the machine from coming to rest, and then every token that was not lost has its answer."""
        host = self.host
        host.confirm()
        for txn in self.txns.values():
            host.ask(CheckReturned(TxnId(3, txn["least"])))
        for key in self.room:
            host.ask(GroupLeft(key[1], key[0]))
        host.now_ms += 10**13
        host.expire()
        host.now_ms += 10**13
        host.expire()
        host.confirm()
        for info in host.tc.transactions():
            if info.prepared or info.parked_ms is not None:
                host.end(info.txn_id, TxnAction.COMMIT, superuser=True)
            host.done(info.txn_id)
        assert host.tc.active_count == 0
        assert not host.is_busy
        assert host.tc.deadline() is None
        host.tc.check_invariants()


TestCoordinator = Coordinator.TestCase
