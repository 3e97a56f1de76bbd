"""One coordinator in `ledger.hosting.Host`, as a broker hosts it. Tests say what is confirmed, and when it crashes.

It checks by itself what would harm every user of a coordinator: effects leave in their order, and none before the durable part
of the log holds its reason (S3); the live machine always equals the fold of its log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from insides import state_of

from pulsar_txn.ledger.by_hand import Asked, ByToken, HandLog, Skin, hosted
from pulsar_txn.ledger.machine import (
    AskProducer,
    AwaitOutcome,
    Effect,
    Outcome,
    Reply,
    Step,
    TellGroup,
    TellParticipant,
    WriteSnapshot,
)
from pulsar_txn.ledger.protocols import Snapshot
from pulsar_txn.tc import (
    AddParticipants,
    EndTxn,
    NewTxn,
    ParticipantsDone,
    PrepareTxn,
    TransactionCoordinator,
    records,
    snapshots,
)
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.ids import has_lane
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, Position, TxnAction, TxnId, TxnStatus

LEDGER = 7
DECIDED = {
    TxnAction.COMMIT: {TxnStatus.COMMITTING, TxnStatus.COMMITTED},
    TxnAction.ABORT: {TxnStatus.ABORTING, TxnStatus.ABORTED},
}


class TcHost:
    """A coordinator with its log; `confirm` makes a prefix durable and releases what waited for it.

    It begins with the records of `log`, all of them durable, and the snapshot `stored`. `start` False: the coordinator is
    folded, and not recovered yet. Snapshots are taken by `take_snapshot`, not when the coordinator asks for them.
    `released`: the effects that left, in order, without answers. `held`: the effects that wait, each with the length of the log
    that it waits for.
    """

    def __init__(
        self, tc_id: int = 3, *, log: Iterable[bytes] = (), stored: Snapshot | None = None, start: bool = True, **options: Any
    ) -> None:
        self.tc_id, self.options = tc_id, options
        self.now_ms = 1_000
        self.confirmed = 0
        self.released: list[Any] = []
        self.asked: list[AskProducer] = []
        self.held: deque[tuple[int, Effect]] = deque()
        self.answers: dict[Any, Any] = {}
        self.ended: dict[TxnId, TxnAction] = {}
        self.durable = self.fresh()
        self._log = HandLog("log", LEDGER, [((LEDGER, index), data) for index, data in enumerate(log)], stored=stored)
        self._fold_confirmed()
        self.serve(self.fresh(), start=start)

    def fresh(self) -> TransactionCoordinator:
        return TransactionCoordinator(self.tc_id, **self.options)

    def serve(self, tc: TransactionCoordinator, *, start: bool = True) -> None:
        """Recover `tc` from the log and host it from here on."""
        self.tc = tc
        self._seen = _Seen(self)
        self._host = hosted(self._seen, {"log": self._log}, _Skin(self), self, start=start)

    @property
    def log(self) -> list[bytes]:
        """All records, those of before the last snapshot included."""
        return [data for _, data in self._log.entries]

    @property
    def is_short(self) -> bool:
        """Whether the state is small enough to be compared with every decision."""
        return len(self._log.entries) < 50

    @property
    def stored(self) -> Snapshot | None:
        """The newest snapshot."""
        return self._log.stored

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return self._host.is_busy

    # ------------------------------------------------------------------ requests, time and disk

    def ask(self, request: Any) -> Step[Any]:
        """Submit a request; a Refusal is raised on, after it was noted as the token's answer."""
        self._host.submit(self._seen.asked(request))
        decided = self._seen.decided
        assert decided is not None
        if isinstance(decided, Refusal):
            raise decided
        return decided

    def state(self) -> bytes:
        """The whole state of the live machine, without the notice that `snapshot()` takes for trimming."""
        return b"".join(snapshots.write(state_of(self.tc)))

    def carry_out(self, step: Step[Any]) -> None:
        """Carry out a Step that the test has asked the machine for."""
        self._host.carry_out(self._seen.shown(step))

    def append(self, record: Any) -> None:
        """Append a record that the machine did not decide."""
        self.carry_out(Step((("log", record),)))

    def confirm(self, upto: int | None = None) -> None:
        """The first `upto` records are durable, None: all of them."""
        if self._log.entries:
            upto = len(self._log.entries) if upto is None else upto
            self._fold_confirmed(upto)
            self._log.confirm((LEDGER, upto - 1))

    def _fold_confirmed(self, upto: int | None = None) -> None:
        entries = self._log.entries[self.confirmed : upto]
        for position, data in entries:
            self.durable.apply("log", position, self.durable.decode("log", data))
        self.confirmed += len(entries)

    def expire(self) -> None:
        """Carry out what is due."""
        self._host.expire()

    def crash(self, keep: int | None = None) -> None:
        """Lose everything after the first `keep` entries (at least the confirmed ones) and recover."""
        keep = self.confirmed if keep is None else keep
        assert keep >= self.confirmed
        self._log = HandLog("log", LEDGER, self._log.entries[:keep], stored=self._log.stored, trimmed=self._log.trimmed)
        self._fold_confirmed()
        self.held.clear()
        self.serve(self.fresh(), start=False)
        assert self.state() == b"".join(self.fold().snapshot()), "snapshot and tail differ from a full replay"
        self._host.start()
        self.now_ms = max(self.now_ms, self.tc.newest_time_ms)

    def recover(self) -> TransactionCoordinator:
        """A coordinator that was folded from the newest snapshot and the log, and not recovered yet."""
        return type(self)(self.tc_id, log=self.log, stored=self.stored, start=False, **self.options).tc

    def fold(self) -> TransactionCoordinator:
        """A coordinator to which every record of the log was applied."""
        machine = self.fresh()
        for index, data in enumerate(self.log):
            machine.apply("log", (LEDGER, index), machine.decode("log", data))
        return machine

    def take_snapshot(self) -> None:
        """Store a snapshot of what is confirmed (everything, here)."""
        self.confirm()
        stored: list[None] = []
        self._host.take_snapshot("log", lambda *_: stored.append(None))
        while not stored:
            self._host.go_on_with_snapshots()
        covered: Position | None = (LEDGER, len(self.log)) if self.log else None
        assert self.tc.trim_before("log") == covered
        assert covered is None or self._log.trimmed == covered

    # ------------------------------------------------------------------ what leaves

    def hold(self, step: Step[Any]) -> None:
        """The effects of a Step, which is appended next, leave in this order."""
        self.asked.extend(effect for effect in step.effects if isinstance(effect, AskProducer))
        need = len(self._log.entries) + len(step.records) if step.records or not step.trailing else 0
        self.held.extend((need, effect) for effect in step.effects if not isinstance(effect, AwaitOutcome))

    def let_out(self, effect: Effect) -> None:
        """An effect left; only a Step that has no record to wait for overtakes those that wait."""
        if (0, effect) in self.held:
            self.held.remove((0, effect))
        else:
            need, expected = self.held.popleft()
            assert effect == expected, f"{effect} left before {expected}"
            assert need <= self.confirmed, f"{effect} left before record {need} was durable"
        match effect:
            case Reply(token=token, value=value, error=error):
                self.answers[token] = value if error is None else error
                assert not isinstance(value, TxnId) or self.durable.status(value) is not None, "S18: the id is not durable"
                return
            case TellParticipant(txn_id=txn_id, action=action, low_watermark=low_watermark):
                assert self.durable.status(txn_id) in DECIDED[action], f"S3: {txn_id} is told before it is decided"
                self.check_watermark(txn_id, low_watermark)
            case Outcome(txn_id=txn_id, action=action):
                assert self.durable.status(txn_id) in DECIDED[action], f"S3: {txn_id} ended before it is decided"
                assert self.ended.setdefault(txn_id, action) is action, f"S2: two outcomes of {txn_id}"
            case AskProducer(txn_id=txn_id, count=count):
                (info,) = [info for info in self.durable.transactions() if info.txn_id == txn_id] or [None]
                assert info is None or info.check_count == count - 1, f"{txn_id} is asked for before the last one is counted"
            case TellGroup(txn_id=txn_id, action=action):
                (info,) = [info for info in self.durable.transactions() if info.txn_id == txn_id] or [None]
                is_decided = self.durable.status(txn_id) in DECIDED[action] if action is not None else info is not None
                assert is_decided, f"{txn_id} is told before it is decided"
                assert action is not None or info is None or info.parked_ms is not None, f"{txn_id} is not parked"
            case _:
                assert isinstance(effect, WriteSnapshot), f"a coordinator has no business with {effect!r}"
        self.released.append(effect)

    def check_watermark(self, txn_id: TxnId, low_watermark: int) -> None:
        """Participants refuse what the watermark covers, and abort it where it is open."""
        transactions = state_of(self.tc).transactions.values()  # four thousand participants may be told at once
        living = [txn.txn_id for txn in transactions if txn.txn_id.most == txn_id.most]
        if has_lane(txn_id.most):
            assert low_watermark == txn_id.least, f"{txn_id} ends with the watermark {low_watermark}"
            living = [each for each in living if each != txn_id]
        else:
            assert low_watermark < txn_id.least, f"the low watermark {low_watermark} covers {txn_id}"
        assert all(each.least > low_watermark for each in living), f"the low watermark {low_watermark} covers one of {living}"

    # ------------------------------------------------------------------ short cuts

    def new(self, timeout_ms: int = 60_000, **who: Any) -> TxnId:
        """Open a transaction, durably."""
        step = self.ask(NewTxn(object(), timeout_ms, **who))
        self.confirm()
        (reply,) = [effect for effect in step.effects if isinstance(effect, Reply)]
        assert isinstance(reply.value, TxnId)
        return reply.value

    def add(self, txn_id: TxnId, *participants: Participant, **who: Any) -> Step[Any]:
        step = self.ask(AddParticipants(object(), txn_id, participants, **who))
        self.confirm()
        return step

    def end(self, txn_id: TxnId, action: TxnAction, token: object = None, **who: Any) -> Step[Any]:
        step = self.ask(EndTxn(token, txn_id, action, **who))
        self.confirm()
        return step

    def prepare(self, txn_id: TxnId, prepared_token: bytes = b"token", **who: Any) -> Step[Any]:
        step = self.ask(PrepareTxn(object(), txn_id, prepared_token, **who))
        self.confirm()
        return step

    def done(self, txn_id: TxnId) -> Step[Any]:
        return self.ask(ParticipantsDone(txn_id))

    def in_state(self, status: TxnStatus | None, **new: Any) -> TxnId:
        """A transaction with one participant that was brought to `status`; an id that was never given for None."""
        if status is None:
            self.in_state(TxnStatus.COMMITTED)  # a log with records, in which ids were given
            return TxnId(self.tc_id, self.tc.next_local_txn_id)
        txn_id = self.new(**new)
        self.add(txn_id, Participant("t"))
        if status is TxnStatus.PREPARED:
            self.prepare(txn_id)
        elif status is TxnStatus.HELD:
            self.append(records.update_status(txn_id.least, TxnStatus.OPEN, status, self.now_ms, txn_id.least, Cause.RESTORED))
        elif status is not TxnStatus.OPEN:
            self.end(txn_id, TxnAction.COMMIT if status in DECIDED[TxnAction.COMMIT] else TxnAction.ABORT)
        if status in (TxnStatus.COMMITTED, TxnStatus.ABORTED):
            self.done(txn_id)
            self.confirm()
        assert self.tc.status(txn_id) is status
        return txn_id


class _Seen(ByToken):
    """The coordinator as its host sees it. Its owner learns what is decided, and what leaves."""

    def __init__(self, owner: TcHost) -> None:
        super().__init__(owner.tc, self._refused)
        self._owner = owner

    def decide(self, request: Asked, now_ms: int) -> Step[Any]:
        """H1: a decision leaves no trace."""
        owner = self._owner
        before = owner.state() if owner.is_short else None
        try:
            return super().decide(request, now_ms)
        except Refusal as refusal:
            if request.token is not None:
                owner.hold(Step(effects=(Reply(request.original.token, error=refusal.code, message=refusal.message),)))
            raise
        finally:
            assert before is None or owner.state() == before, "H1: a decision changed the state"

    def shown(self, step: Step[Any]) -> Step[Any]:
        self._owner.hold(step)
        return Step(step.records, tuple([self._with_answer(effect) for effect in step.effects]), step.trailing)

    def _with_answer(self, effect: Any) -> Any:
        match effect:
            case Reply():
                return Reply(lambda value, error, message: self._owner.let_out(effect))
            case AwaitOutcome(token=token, txn_id=txn_id):
                return AwaitOutcome(lambda value, error, message: self._joined(token, txn_id), txn_id)
            case WriteSnapshot():
                return _Noted(effect)
        return effect

    def _joined(self, token: Any, txn_id: TxnId) -> None:
        self._owner.answers[token] = self._owner.ended[txn_id]

    def _refused(self, token: Any, value: Any, error: ServerError | None, message: str) -> None:
        self._owner.let_out(Reply(token, value, error, message))


class _Noted:
    """An effect that the host of a broker would carry out itself, and a test does."""

    def __init__(self, effect: Effect) -> None:
        self.effect = effect


class _Skin(Skin):
    """What the host of a coordinator asks of its surroundings."""

    def __init__(self, owner: TcHost) -> None:
        self._owner = owner

    def perform(self, effect: Any) -> None:
        self._owner.let_out(effect.effect if isinstance(effect, _Noted) else effect)

    def outcome(self, txn_id: TxnId, action: TxnAction) -> None:
        self._owner.let_out(Outcome(txn_id, action))

    def failed(self, error: Exception) -> None:
        raise error
