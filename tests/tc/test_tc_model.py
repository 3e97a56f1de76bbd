"""The coordinator against a plain model, through crashes: what survives is the fold of a prefix of the log (S17)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tc_host import DECIDED, TcHost

from pulsar_txn.tc import AddParticipants, EndTxn, IsRegistered, NewTxn, ParticipantsDone
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus

OPEN, COMMITTING, COMMITTED, ABORTING, ABORTED, PREPARED = TxnStatus
ENDING = {TxnAction.COMMIT: COMMITTING, TxnAction.ABORT: ABORTING}
ENDED = {COMMITTING: COMMITTED, ABORTING: ABORTED}
MAX_ACTIVE = 6
EXPIRE_LIMIT = 2

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


class Coordinator(RuleBasedStateMachine):
    """`txns` is the model; `history[n]` is what it was after the first n records of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.host = TcHost(max_active=MAX_ACTIVE, expire_limit=EXPIRE_LIMIT, snapshot_every=5)
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
        return [least for least, txn in self.txns.items() if txn["status"] in (OPEN, COMMITTING, ABORTING)]

    def finish(self, least: int) -> None:
        self.txns[least]["status"] = ENDED[self.txns[least]["status"]]
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

    @initialize(start=st.integers(0, 10**12))
    def clock(self, start: int) -> None:
        self.host.now_ms = start

    @rule(timeout_ms=st.sampled_from([0, 1, 50, 1_000, 10**6]), who=WHO)
    def new(self, timeout_ms: int, who: dict[str, Any]) -> None:
        request = NewTxn(self.token(), timeout_ms, **who)
        if len(self.active()) == MAX_ACTIVE:
            self.refused(ServerError.TooManyRequests, request)
            return
        step = self.host.ask(request)
        least = len(self.txns)
        assert step.effects[0].value == TxnId(3, least)  # type: ignore[union-attr]  # a Reply comes first
        deadline = self.host.now_ms + timeout_ms
        self.txns[least] = {"status": OPEN, "who": who, "topics": [], "subs": [], "deadline": deadline}
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
                    self.note()

    @rule(number=PICK, who=WHO, action=st.sampled_from(TxnAction), superuser=st.booleans())
    def end(self, number: int, who: dict[str, Any], action: TxnAction, superuser: bool) -> None:
        txn_id = self.pick(number)
        txn = self.txns.get(txn_id.least) if superuser else self.known(txn_id.least, who)
        token = self.token()
        request = EndTxn(token, txn_id, action, superuser=superuser, **who)
        if txn is None:
            self.refused(ServerError.TransactionNotFound, request)
        elif txn["status"] is OPEN:
            self.host.ask(request)
            txn["status"] = ENDING[action]
            self.note()
            if not txn["topics"] + txn["subs"]:
                self.finish(txn_id.least)
        elif txn["status"] in DECIDED[action]:
            self.host.ask(request)
        else:
            self.refused(ServerError.InvalidTxnStatus, request)

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
                self.txns[least]["status"] = ENDING[action]
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
        if txn is not None and txn["status"] is OPEN:
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

    @rule(ms=st.sampled_from([0, 1, 60, 2_000]))
    def time_passes(self, ms: int) -> None:
        self.host.now_ms += ms
        due = [least for least, txn in self.txns.items() if txn["status"] is OPEN and txn["deadline"] <= self.host.now_ms]
        due.sort(key=lambda least: (self.txns[least]["deadline"], least))
        self.host.expire()
        for at in range(0, len(due), EXPIRE_LIMIT):
            for least in due[at : at + EXPIRE_LIMIT]:
                self.txns[least]["status"] = ABORTING
                self.note()
            for least in due[at : at + EXPIRE_LIMIT]:
                if not self.txns[least]["topics"] + self.txns[least]["subs"]:
                    self.finish(least)

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
        del self.history[keep + 1 :]
        host.crash(keep)
        ending = [least for least in self.active() if self.txns[least]["status"] is not OPEN]
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
        assert len(self.history) == len(self.host.log) + 1
        assert tc.next_local_txn_id == len(self.txns)
        assert [info.txn_id.least for info in tc.transactions()] == self.active()
        for info in tc.transactions():
            txn = self.txns[info.txn_id.least]
            assert (info.status, list(info.participants)) == (txn["status"], txn["topics"] + txn["subs"])
            assert (info.principal, info.identity) == (txn["who"].get("principal"), txn["who"].get("identity"))
            assert info.start_time_ms + info.timeout_ms == txn["deadline"]
        assert [tc.status(TxnId(3, least)) for least in self.txns] == [txn["status"] for txn in self.txns.values()]

    @invariant()
    def deadlines_and_the_low_watermark_follow(self) -> None:
        tc = self.host.tc
        assert tc.deadline() == min((txn["deadline"] for txn in self.txns.values() if txn["status"] is OPEN), default=None)
        assert tc.low_watermark == min(self.active(), default=len(self.txns)) - 1

    @invariant()
    def an_unconfirmed_answer_does_not_leave(self) -> None:
        assert all(need > self.host.confirmed for need, _ in self.host.held)

    def teardown(self) -> None:
        """Nothing keeps the machine from coming to rest, and then every token that was not lost has its answer."""
        host = self.host
        host.confirm()
        host.now_ms += 10**13
        host.expire()
        host.confirm()
        for info in host.tc.transactions():
            host.done(info.txn_id)
        assert host.tc.active_count == 0
        assert not host.is_busy
        assert host.tc.deadline() is None
        host.tc.check_invariants()


TestCoordinator = Coordinator.TestCase
