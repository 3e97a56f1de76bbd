"""A host of one coordinator that does its duties (H1-H7) by hand: what is confirmed, and when it crashes, the test says.

It checks by itself what every host would suffer from: no effect is released that the durable part of the log does not
bear out (S3), and the live machine always equals the fold of its log.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from pulsar_txn.ledger.machine import AwaitOutcome, Outcome, Reply, Step, TellParticipant, WriteSnapshot
from pulsar_txn.tc import AddParticipants, EndTxn, NewTxn, ParticipantsDone, TransactionCoordinator, snapshots
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.ids import Participant, Position, TxnAction, TxnId, TxnStatus

LEDGER = 7
DECIDED = {
    TxnAction.COMMIT: {TxnStatus.COMMITTING, TxnStatus.COMMITTED},
    TxnAction.ABORT: {TxnStatus.ABORTING, TxnStatus.ABORTED},
}


class TcHost:
    """Appends to a list; `confirm` makes a prefix durable and releases what waited for it."""

    def __init__(self, tc_id: int = 3, **options: Any) -> None:
        self.tc_id, self.options = tc_id, options
        self.log: list[bytes] = []
        self.confirmed = 0
        self.stored: tuple[int, tuple[bytes, ...]] | None = None
        self.held: deque[tuple[int, Any]] = deque()
        self.released: list[Any] = []
        self.waiting: dict[TxnId, list[Any]] = {}
        self.answers: dict[Any, Any] = {}
        self.ended: dict[TxnId, TxnAction] = {}
        self.tc = self.fresh()
        self.durable = self.fresh()
        self.now = 1_000

    def fresh(self) -> TransactionCoordinator:
        return TransactionCoordinator(self.tc_id, **self.options)

    # ------------------------------------------------------------------ duties

    def ask(self, request: Any) -> Step[Any]:
        """Decide and carry out; a Refusal is raised on, after it was noted as the token's answer."""
        before = self.state() if len(self.log) < 50 else b""
        try:
            step = self.tc.decide(request, self.now)
        except Refusal as refusal:
            self.held.append((len(self.log), Reply(getattr(request, "token", None), error=refusal.code)))
            assert not before or self.state() == before, "a refusal changed the state"
            self._release()
            raise
        assert not before or self.state() == before, "decide changed the state"
        self.carry_out(step)
        return step

    def state(self) -> bytes:
        """The whole state of the live machine, without the notice that `snapshot()` takes for trimming."""
        return b"".join(snapshots.write(self.tc._state))

    def carry_out(self, step: Step[Any]) -> None:
        for name, record in step.records:
            self._append(name, record)
        need = len(self.log) if step.records or not step.trailing else 0
        for name, record in step.trailing:
            self._append(name, record)
        for effect in step.effects:
            if isinstance(effect, AwaitOutcome):
                self.waiting.setdefault(effect.txn_id, []).append(effect.token)
            elif need == 0 and step.trailing:
                self._let_out(effect)
            else:
                self.held.append((need, effect))
        self._release()

    def confirm(self, upto: int | None = None) -> None:
        upto = len(self.log) if upto is None else upto
        for index in range(self.confirmed, upto):
            self.durable.apply("log", (LEDGER, index), self.durable.decode("log", self.log[index]))
        self.confirmed = max(self.confirmed, upto)
        self._release()

    def expire(self) -> None:
        while (deadline := self.tc.deadline()) is not None and deadline <= self.now:
            self.carry_out(self.tc.expire(self.now))

    def crash(self, keep: int | None = None) -> None:
        """Lose everything after the first `keep` entries (at least the confirmed ones) and recover."""
        keep = self.confirmed if keep is None else keep
        assert keep >= self.confirmed
        del self.log[keep:]
        self.confirm(keep)
        self.held.clear()
        self.waiting.clear()
        self.tc = self.recover()
        live = b"".join(self.tc.snapshot())
        assert live == b"".join(self.fold().snapshot()), "snapshot and tail differ from a full replay"
        self.carry_out(self.tc.recovered(self.now))
        self.now = max(self.now, self.tc.newest_time_ms)

    def recover(self) -> TransactionCoordinator:
        machine, start = self.fresh(), 0
        if self.stored is not None:
            start, parts = self.stored
            for part in parts:
                machine.restore(part)
        for index in range(start, len(self.log)):
            machine.apply("log", (LEDGER, index), machine.decode("log", self.log[index]))
        return machine

    def fold(self) -> TransactionCoordinator:
        machine = self.fresh()
        for index, data in enumerate(self.log):
            machine.apply("log", (LEDGER, index), machine.decode("log", data))
        return machine

    def take_snapshot(self) -> None:
        """Store a snapshot of what is confirmed (everything, here)."""
        self.confirm()
        self.stored = (len(self.log), tuple(self.tc.snapshot()))
        assert self.tc.trim_before("log") == ((LEDGER, len(self.log)) if self.log else None)

    def _append(self, name: str, record: Any) -> None:
        assert name == "log"
        data = self.tc.encode(name, record)
        position: Position = (LEDGER, len(self.log))
        self.log.append(data)
        self.tc.apply(name, position, self.tc.decode(name, data))

    def _release(self) -> None:
        while self.held and self.held[0][0] <= self.confirmed:
            self._let_out(self.held.popleft()[1])

    def _let_out(self, effect: Any) -> None:
        self.released.append(effect)
        match effect:
            case Reply(token=token, value=value, error=error):
                self.answers[token] = value if error is None else error
                assert not isinstance(value, TxnId) or self.durable.status(value) is not None, "S18: the id is not durable"
            case TellParticipant(txn_id=txn_id, action=action, low_watermark=low_watermark):
                assert self.durable.status(txn_id) in DECIDED[action], f"S3: {txn_id} is told before it is decided"
                assert low_watermark < txn_id.least, f"the low watermark {low_watermark} covers {txn_id}"
            case Outcome(txn_id=txn_id, action=action):
                assert self.durable.status(txn_id) in DECIDED[action], f"S3: {txn_id} ended before it is decided"
                assert self.ended.setdefault(txn_id, action) is action, f"S2: two outcomes of {txn_id}"
                for token in self.waiting.pop(txn_id, ()):
                    self.answers[token] = action
            case WriteSnapshot():
                pass
            case _:
                raise AssertionError(f"a coordinator has no business with {effect!r}")

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

    def done(self, txn_id: TxnId) -> Step[Any]:
        return self.ask(ParticipantsDone(txn_id))

    def in_state(self, status: TxnStatus | None) -> TxnId:
        """A transaction with one participant that was brought to `status`; an id that was never given for None."""
        if status is None:
            self.in_state(TxnStatus.COMMITTED)  # a log with records, in which ids were given
            return TxnId(self.tc_id, self.tc.next_local_txn_id)
        txn_id = self.new()
        self.add(txn_id, Participant("t"))
        if status is not TxnStatus.OPEN:
            self.end(txn_id, TxnAction.COMMIT if status in DECIDED[TxnAction.COMMIT] else TxnAction.ABORT)
        if status in (TxnStatus.COMMITTED, TxnStatus.ABORTED):
            self.done(txn_id)
            self.confirm()
        assert self.tc.status(txn_id) is status
        return txn_id
