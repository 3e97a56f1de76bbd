"""The smallest host that keeps all the duties of `ledger.machine` (H1-H7), in memory, on a clock that is set by hand.

Nothing is confirmed until `confirm` or `settle` says so; `crashed` gives the disk as it is when only a prefix of what
was appended survives. Along the way it asserts what no buffer may break: decisions leave no trace and repeat
themselves, `decode` inverts `encode`, invariants hold after every record, what readers were shown is never taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias, assert_never

import attrs

from pulsar_txn.ledger.machine import (
    AskProducer,
    AwaitOutcome,
    CopyEntries,
    Effect,
    MoveCursor,
    Outcome,
    PublishMaxRead,
    Redeliver,
    Reply,
    Step,
    TellParticipant,
    VerifyRegistered,
    WriteSnapshot,
)  # fmt: skip
from pulsar_txn.rm_producer.requests import (
    PLAIN,
    Copied,
    EndTxnOnPartition,
    MakeMarker,
    ProducerAnswered,
    Publish,
    Request,
    TakeSnapshot,
    TopicRecord,
    TransactionBuffer,
    Verified,
)  # fmt: skip
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.ids import EARLIEST, EntryHeader, MarkerType, Position, TxnAction, TxnId

from .entries import Disk, StoredSnapshot, make_entry, read_entry

Factory: TypeAlias = Callable[[str, MakeMarker], TransactionBuffer]

TOPIC = "persistent://public/default/suite"
_MARKERS = {TxnAction.COMMIT: MarkerType.TXN_COMMIT, TxnAction.ABORT: MarkerType.TXN_ABORT}


@attrs.frozen
class _Held:
    needs: dict[str, Position]
    effects: tuple[Effect, ...]
    positions: tuple[Position, ...] = ()


class BufferHost:
    """One topic with its buffer. `open_txns` are those that the coordinator would call open and registered.

    `replies`: what was answered, by token; a refusal is a Reply with its error. `asked`: back-checks to producers.
    `published`: the max_read_position that readers know. `on_record` is called after every record that is applied.
    """

    def __init__(self, factory: Factory, disk: Disk | None = None, *, now_ms: int = 0) -> None:
        disk = disk or Disk()
        self.now_ms = now_ms
        self.open_txns: set[TxnId] = set()
        self.replies: dict[int, Reply] = {}
        self.asked: list[AskProducer] = []
        self.published: Position = EARLIEST
        self.journal = list(disk.journal)
        self.on_record: Callable[[], None] = lambda: None
        self.buffer = factory(TOPIC, self.make_marker)
        self._snapshot = disk.snapshot
        self._generation = disk.generation + 1
        self._appended: dict[str, Position] = dict.fromkeys(self.buffer.logs, (self._generation, -1))
        self._appended |= {log: position for log, position, _ in disk.journal}
        self._next = dict.fromkeys(self.buffer.logs, 0)
        self._confirmed = dict(self._appended)
        self._held: list[_Held] = []
        self._notes: list[tuple[Position, Position]] = []
        self._verifying: dict[TxnId, list[Publish | EndTxnOnPartition]] = {}
        self._awaiting: dict[TxnId, list[int]] = {}
        self._copies: list[CopyEntries] = []
        self._storing: list[tuple[dict[str, Position], Iterator[bytes]]] = []
        self._tokens = 0
        self._recover()

    # ---- what a test does

    def send_plain(self, payload: bytes) -> None:
        """A SEND outside transactions."""
        self._append("topic", PLAIN, make_entry(EntryHeader("plain", 0, 0, self.now_ms), payload))

    def send(self, txn_id: TxnId, payload: bytes) -> int:
        """A SEND in a transaction; gives the token of its reply."""
        header = EntryHeader("producer", 0, 0, self.now_ms, txn_id)
        return self._ask(Publish(self._token(), txn_id, TopicRecord(header, make_entry(header, payload))))

    def end(self, txn_id: TxnId, action: TxnAction, low_watermark: int = -1) -> int:
        """The coordinator tells the outcome; gives the token of its reply."""
        self.open_txns.discard(txn_id)
        marker = self.make_marker(txn_id, action, low_watermark)
        return self._ask(EndTxnOnPartition(self._token(), txn_id, action, low_watermark, marker))

    def answer(self, asked: AskProducer, action: TxnAction | None) -> None:
        """A producer answers a back-check."""
        self.request(ProducerAnswered(asked.txn_id, asked.position, action))

    def take_snapshot(self) -> None:
        """Ask for a snapshot now."""
        self.request(TakeSnapshot())

    def advance(self, ms: int) -> None:
        """Let time pass and carry out what is due (H6)."""
        self.now_ms += ms
        for _ in range(10_000):
            due = self.buffer.deadline()
            if due is None or due > self.now_ms:
                return
            self._carry_out(self.buffer.expire(self.now_ms))
        raise AssertionError("H6: expire leaves its deadline in the past for ever")

    def confirm(self, log: str | None = None) -> None:
        """Everything appended up to now (of one log, or of all) is durable; what waited for it is released."""
        for name in self.buffer.logs if log is None else (log,):
            self._confirmed[name] = self._appended[name]
        self._release()

    def settle(self) -> None:
        """Confirm until nothing is in flight any more."""
        self.confirm()
        while self.in_flight:
            self.confirm()

    @property
    def in_flight(self) -> bool:
        """Whether something was appended that is not confirmed, or waits to be done."""
        return self._confirmed != self._appended or bool(self._held or self._copies)

    def readable(self) -> list[bytes]:
        """Payloads that a reader of the topic gets now, in its order."""
        entries = [(position, *read_entry(data)) for log, position, data in self.journal if log == "topic"]
        hidden = self.buffer.is_hidden
        return [payload for position, header, payload in entries if position <= self.published and not hidden(position, header)]

    def crashed(self, lucky: int = 0) -> Disk:
        """The disk when what is confirmed survives, and the first `lucky` entries of what is not."""
        kept = [entry for entry in self.journal if entry[1] <= self._confirmed[entry[0]]]
        others = [entry for entry in self.journal if entry[1] > self._confirmed[entry[0]]]
        return Disk((*kept, *others[:lucky]), self._snapshot, self._generation)

    def covered(self) -> StoredSnapshot:
        """A snapshot of this moment, as the host would store it."""
        return StoredSnapshot(self._appended[self.buffer.logs[0]], tuple(self.buffer.snapshot()))

    def make_marker(self, txn_id: TxnId, action: TxnAction, low_watermark: int = -1) -> TopicRecord:
        """The marker of an end; also what the buffer is constructed with."""
        header = EntryHeader("pulsar.txn.marker", -1, low_watermark + 1, self.now_ms, txn_id, int(_MARKERS[action]))
        return TopicRecord(header, make_entry(header, b""))

    # ---- duties

    def request(self, request: Request) -> None:
        """Decide (twice, to see that it leaves no trace) and carry out: H1, H2, H3."""
        before = self._state()
        try:
            step = self.buffer.decide(request, self.now_ms)
            assert step == self.buffer.decide(request, self.now_ms), "H1: a decision does not repeat itself"
        except Refusal as refusal:
            step = Step(effects=(_refused(request, refusal),))
        assert before == self._state(), "H1: a decision changed the state"
        self._carry_out(step)

    def _state(self) -> bytes:
        return b"".join(self.buffer.snapshot())

    def _ask(self, request: Publish | EndTxnOnPartition) -> int:
        token: int = request.token
        if request.txn_id in self._verifying:
            self._verifying[request.txn_id].append(request)
        else:
            self.request(request)
        return token

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _carry_out(self, step: Step[TopicRecord]) -> None:
        positions = [self._append(log, record, self.buffer.encode(log, record)) for log, record in step.records]
        waits_for = {log for log, _ in step.records} or set(() if step.trailing else self.buffer.logs)
        needs = {log: self._appended[log] for log in waits_for}
        for log, record in step.trailing:
            self._append(log, record, self.buffer.encode(log, record))
        for effect in step.effects:
            if isinstance(effect, VerifyRegistered):
                self._verifying[effect.txn_id] = []
            elif isinstance(effect, AwaitOutcome):
                self._awaiting.setdefault(effect.txn_id, []).append(effect.token)
        self._held.append(_Held(needs, step.effects, tuple(positions)))
        self._release()

    def _append(self, log: str, record: TopicRecord, data: bytes) -> Position:
        position = (self._generation, self._next[log])
        self._next[log] += 1
        self._appended[log] = position
        self.journal.append((log, position, data))
        if log != "topic":
            assert self.buffer.decode(log, data) == record, "a record of an own log does not survive encode and decode"
        self._apply(log, position, record)
        self.on_record()
        return position

    def _apply(self, log: str, position: Position, record: TopicRecord) -> None:
        before = self.buffer.max_read_position
        self.buffer.apply(log, position, record)
        self.buffer.check_invariants()
        after = self.buffer.max_read_position
        assert before <= after <= max(self._appended["topic"], before), "S9: max_read_position went back, or beyond the log"
        if after != before:
            self._notes.append((self._appended["topic"], after))

    def _durable(self, needs: dict[str, Position]) -> bool:
        return all(self._confirmed[log] >= position for log, position in needs.items())

    def _release(self) -> None:
        self._publish()
        while self._held and self._durable(self._held[0].needs):
            held = self._held.pop(0)
            for effect in held.effects:
                self._perform(effect, held.positions)
        self._copy()
        while self._storing and self._durable(self._storing[0][0]):
            needs, slices = self._storing.pop(0)
            # Only now: the slices must show nothing of what was applied since.
            self._snapshot = StoredSnapshot(needs[self.buffer.logs[0]], tuple(slices))
            self._trim()

    def _publish(self) -> None:
        while self._notes and self._notes[0][0] <= self._confirmed["topic"]:
            self.published = self._notes.pop(0)[1]

    def _copy(self) -> None:
        copies, self._copies = self._copies, []
        for copy in copies:
            assert copy.positions[-1] <= self._confirmed[copy.source], "what is copied is not durable in its own log"
            stored = {position: data for log, position, data in self.journal if log == copy.source}
            for position in copy.positions:
                record = self.buffer.decode(copy.source, stored[position])
                self.request(Copied(copy.source, copy.target, position, record, copy.txn_id))

    def _trim(self) -> None:
        for log in self.buffer.logs:
            before = self.buffer.trim_before(log)
            if before is not None:
                self.journal = [entry for entry in self.journal if entry[0] != log or entry[1] >= before]

    def _perform(self, effect: Effect, positions: tuple[Position, ...]) -> None:
        match effect:
            case Reply(position_of=index):
                value = effect.value if index is None else positions[index]
                assert effect.token not in self.replies, "a request was answered twice"
                self.replies[effect.token] = attrs.evolve(effect, value=value)
            case AwaitOutcome():
                pass  # done with its Step, not on release
            case Outcome():
                self.replies |= {token: Reply(token) for token in self._awaiting.pop(effect.txn_id, ())}
            case VerifyRegistered():
                self._verify(effect)
            case CopyEntries():
                self._copies.append(effect)
            case AskProducer():
                self.asked.append(effect)
            case PublishMaxRead():
                self.published = max(self.published, effect.position)
            case WriteSnapshot():
                self._storing.append((dict(self._appended), self.buffer.snapshot()))
            case TellParticipant() | Redeliver() | MoveCursor():
                raise AssertionError(f"not an effect of a transaction buffer: {effect}")
            case _:
                assert_never(effect)

    def _verify(self, effect: VerifyRegistered) -> None:
        """The coordinator's answer; what arrived for the transaction since the question waited behind it."""
        waiting = self._verifying.pop(effect.txn_id)
        self.request(Verified(effect.request, effect.txn_id in self.open_txns))
        for request in waiting:
            self._ask(request)

    def _recover(self) -> None:
        main = self.buffer.logs[0]
        if self._snapshot is not None:
            for part in self._snapshot.parts:
                self.buffer.restore(part)
        for log in self.buffer.logs:
            for _, position, data in [entry for entry in self.journal if entry[0] == log]:
                if log != main or self._snapshot is None or position > self._snapshot.covers:
                    self._replay(log, position, data)
        assert self.buffer.max_read_position == EARLIEST, "S9: max_read_position before recovery is complete"
        first = next((position for log, position, _ in self.journal if log == "topic"), EARLIEST)
        while self.buffer.topic_trimmed(first):
            pass
        self._carry_out(self.buffer.recovered(self.now_ms))

    def _replay(self, log: str, position: Position, data: bytes) -> None:
        if log != "topic":
            self.buffer.apply(log, position, self.buffer.decode(log, data))
            return
        header, _ = read_entry(data)
        plain = header.txn_id is None and header.marker_type is None
        self.buffer.apply(log, position, PLAIN if plain else TopicRecord(header))


def _refused(request: Request, refusal: Refusal) -> Reply:
    asked = request.request if isinstance(request, Verified) else request
    assert isinstance(asked, Publish | EndTxnOnPartition), f"refused what nobody waits for: {asked}"
    return Reply(asked.token, error=refusal.code, message=refusal.message)
