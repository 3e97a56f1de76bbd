"""A topic with one transaction buffer, in memory, on a clock that is set by hand.

Nothing is confirmed until `confirm` or `settle` says so; `crashed` gives the disk as it is when only a prefix of what
was appended survives. The buffer's host is `ledger.hosting.Host`, the one that serves it in a broker. Along the way this
asserts what no buffer may break: decisions leave no trace and repeat themselves, `decode` inverts `encode`, invariants hold
after every record, what readers were shown is never taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Final, TypeAlias

from pulsar_txn.ledger.by_hand import Asked, ByToken, HandLog, Skin, hosted
from pulsar_txn.ledger.hosting import Host
from pulsar_txn.ledger.machine import CopyEntries, Effect, Machine, PublishMaxRead, Reply, Step
from pulsar_txn.ledger.protocols import Snapshot
from pulsar_txn.ledger.snapshots import Envelope
from pulsar_txn.rm_producer.requests import (
    PLAIN,
    Copied,
    EndTxnOnPartition,
    MakeMarker,
    Publish,
    Request,
    TakeSnapshot,
    TopicRecord,
    TransactionBuffer,
    Verified,
)
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EARLIEST, EntryHeader, MarkerType, Position, TxnAction, TxnId

from .entries import Disk, StoredSnapshot, checksum_of, make_entry, read_entry

Factory: TypeAlias = Callable[[str, MakeMarker], TransactionBuffer]

TOPIC = "persistent://public/default/suite"
_MARKERS = {TxnAction.COMMIT: MarkerType.TXN_COMMIT, TxnAction.ABORT: MarkerType.TXN_ABORT}
_EXPIRED_AT_ONCE: Final = 10_000


class BufferHost:
    """One topic with its buffer. `open_txns` are those that the coordinator would call open and registered.

    `replies`: what was answered, by token; a refusal is a Reply with its error.
    `published`: the max_read_position that readers know.
    """

    def __init__(self, factory: Factory, disk: Disk | None = None, open_txns: Iterable[TxnId] = (), *, now_ms: int = 0) -> None:
        disk = disk or Disk()
        self.now_ms = now_ms
        self.open_txns = set(open_txns)
        self.replies: dict[int, Reply] = {}
        self.published: Position = EARLIEST
        self._snapshots: list[tuple[int, StoredSnapshot]] | None = None
        self._views: list[list[bytes]] | None = None
        self.buffer = factory(TOPIC, self.make_marker)
        self._generation = disk.generation + 1
        self._journal = list(disk.journal)
        self.logs = {name: self._log(name, disk) for name in self.buffer.logs}
        self._main = self.logs[self.buffer.logs[0]]
        self._seen = _CheckedBuffer(self)
        self._skin = _TopicSkin(self)
        self._tokens = 0
        self._sequence_ids = count(self._generation << 20)
        self._host: Host[Any, TopicRecord] = hosted(
            self._seen, self.logs, self._skin, self, registration=self._skin, verified=self._seen.verified, start=False
        )
        assert self.buffer.max_read_position == EARLIEST, "S9: max_read_position before recovery is complete"
        first = next((position for log, position, _ in self.journal if log == "topic"), EARLIEST)
        while self.buffer.topic_trimmed(first):
            pass
        self._seen.is_live = True
        self._host.start()
        self._skin.go_on()

    def _log(self, name: str, disk: Disk) -> HandLog:
        entries = [(position, data) for log, position, data in disk.journal if log == name]
        stored = None
        if disk.snapshot is not None and name == self.buffer.logs[0]:
            covers = disk.snapshot.covers
            stored = Snapshot(covers, (*Envelope({name: covers}, b"").parts(), *disk.snapshot.parts))
        return HandLog(
            name,
            self._generation,
            entries,
            stored=stored,
            on_append=lambda position, data: self._journal.append((name, position, data)),
        )

    # ---- what a test does

    def keep_snapshots(self) -> list[tuple[int, StoredSnapshot]]:
        """The snapshot of now, and from now on of after every record, each with the length of the journal; the list grows."""
        self._snapshots = [(len(self.journal), self.covered())]
        return self._snapshots

    def keep_views(self) -> list[list[bytes]]:
        """Return what readers see after every record from now on; the list grows."""
        self._views = []
        return self._views

    def recorded(self) -> None:
        """A record was applied."""
        if self._snapshots is not None:
            self._snapshots.append((len(self.journal), self.covered()))
        if self._views is not None:
            self._views.append(self.readable())

    def send_plain(self, payload: bytes) -> None:
        """A SEND outside transactions."""
        entry = make_entry(EntryHeader("plain", 0, 0, self.now_ms), payload)
        position = self._host.publish("topic", entry, PLAIN, (_unheard, None, 0, 0))
        self._skin.applied("topic", position, PLAIN)

    def send(
        self, txn_id: TxnId, payload: bytes, *, producer: str = "producer", sequence_ids: tuple[int, int] | None = None
    ) -> int:
        """A SEND in a transaction; gives the token of its reply.

        `sequence_ids`: the first and the last one of a batch, in place of an id that nothing was sent with.
        """
        first, last = sequence_ids or (next(self._sequence_ids),) * 2
        messages = None if first == last else last - first + 1
        header = EntryHeader(producer, first, last, self.now_ms, txn_id, None, messages, checksum=checksum_of(payload))
        return self._ask(Publish(self._token(), txn_id, TopicRecord(header, make_entry(header, payload))))

    def end(self, txn_id: TxnId, action: TxnAction, low_watermark: int = -1) -> int:
        """The coordinator tells the outcome; gives the token of its reply."""
        self.open_txns.discard(txn_id)
        marker = self.make_marker(txn_id, action, low_watermark)
        return self._ask(EndTxnOnPartition(self._token(), txn_id, action, low_watermark, marker))

    def take_snapshot(self) -> None:
        """Ask for a snapshot now."""
        self.request(TakeSnapshot())

    def advance(self, ms: int) -> None:
        """Let time pass and carry out what is due (H6)."""
        self.now_ms += ms
        self._host.expire()
        due = self.buffer.deadline()
        assert due is None or due > self.now_ms, "H6: expire leaves its deadline in the past for ever"
        self._skin.go_on()

    def confirm(self, log: str | None = None) -> None:
        """Everything appended up to now (of one log, or of all) is durable; what waited for it is released."""
        for name in self.buffer.logs if log is None else (log,):
            self.logs[name].confirm()
        self._skin.go_on()

    def settle(self) -> None:
        """Confirm until nothing is in flight any more."""
        self.confirm()
        while self.in_flight:
            self.confirm()

    @property
    def in_flight(self) -> bool:
        """True if something was appended that is not confirmed, or waits to be done."""
        if self._host.is_busy or self._skin.is_busy:
            return True
        return any(log.last_confirmed < log.last_appended for log in self.logs.values())

    @property
    def journal(self) -> list[tuple[str, Position, bytes]]:
        """The entries of all logs that are not trimmed, in the order in which they were appended."""
        logs = self.logs
        return [entry for entry in self._journal if entry[1] >= logs[entry[0]].trimmed]

    def readable(self) -> list[bytes]:
        """Payloads that a reader of the topic gets now, in its order."""
        entries = [(position, *read_entry(data)) for log, position, data in self.journal if log == "topic"]
        hidden = self.buffer.is_hidden
        return [payload for position, header, payload in entries if position <= self.published and not hidden(position, header)]

    def crashed(self, lucky: int = 0) -> Disk:
        """The disk when what is confirmed survives, and the first `lucky` entries of what is not."""
        journal, logs = self.journal, self.logs
        kept = [entry for entry in journal if entry[1] <= logs[entry[0]].last_confirmed]
        others = [entry for entry in journal if entry[1] > logs[entry[0]].last_confirmed]
        stored = self._main.stored
        snapshot = None if stored is None else StoredSnapshot(stored.covers, Envelope.read(stored.parts)[1])
        return Disk((*kept, *others[:lucky]), snapshot, self._generation)

    def covered(self) -> StoredSnapshot:
        """A snapshot of this moment, as the host would store it."""
        return StoredSnapshot(self._main.last_appended, tuple(self.buffer.snapshot()))

    def make_marker(self, txn_id: TxnId, action: TxnAction, low_watermark: int = -1) -> TopicRecord:
        """The marker of an end; also what the buffer is constructed with."""
        header = EntryHeader("pulsar.txn.marker", -1, low_watermark + 1, self.now_ms, txn_id, int(_MARKERS[action]))
        return TopicRecord(header, make_entry(header, b""))

    # ---- requests

    def request(self, request: Request) -> None:
        """Decide and carry out."""
        self._host.submit(self._seen.asked(request))
        self._skin.go_on()

    def _ask(self, request: Publish | EndTxnOnPartition) -> int:
        token: int = request.token
        self.request(request)
        return token

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def answered(self, token: int, value: Any, error: ServerError | None, message: str) -> None:
        """A reply to a request."""
        assert token not in self.replies, "a request was answered twice"
        self.replies[token] = Reply(token, value, error, message)


class _CheckedBuffer(ByToken):
    """A buffer that is checked with every decision and every record, once `is_live`."""

    def __init__(self, host: BufferHost) -> None:
        super().__init__(host.buffer, host.answered, Verified)
        self.is_live = False
        self._topic = host.logs["topic"]

    def decide(self, request: Asked, now_ms: int) -> Step[Any]:
        """H1: a decision leaves no trace, and repeats itself."""
        before = self._state()
        try:
            step = self.machine.decide(request.original, now_ms)
            assert step == self.machine.decide(request.original, now_ms), "H1: a decision does not repeat itself"
        except Refusal:
            assert request.token is not None, f"refused what nobody waits for: {request.original}"
            raise
        finally:
            assert before == self._state(), "H1: a decision changed the state"
        return self.shown(step)

    def _state(self) -> bytes:
        return b"".join(self.machine.snapshot())

    def encode(self, log: str, record: Any) -> bytes:
        """A record of an own log is what its bytes say."""
        data = super().encode(log, record)
        own = log != "topic"
        assert not own or self.machine.decode(log, data) == record, "a record of an own log does not survive encode and decode"
        return data

    def apply(self, log: str, position: Position, record: Any) -> None:
        """Invariants hold after every record, and what readers may see never shrinks."""
        before: Position = self.machine.max_read_position
        super().apply(log, position, record)
        if self.is_live:
            self.machine.check_invariants()
            after: Position = self.machine.max_read_position
            assert before <= after <= max(self._topic.last_appended, before), (
                "S9: max_read_position went back, or beyond the log"
            )


def _unheard(_receipt: Any, _position: Position, _: str) -> None:
    """Do nothing: nobody waits for the receipt of a plain message."""


class _TopicSkin(Skin):
    """Topic as the host of a buffer sees it. The coordinator answers once everything before the question is durable."""

    def __init__(self, topic: BufferHost) -> None:
        self._topic = topic
        self._noted: Position = EARLIEST
        self._notes: list[tuple[Position, Position]] = []
        self._questions: list[tuple[dict[str, Position], TxnId, Callable[[bool | None], None]]] = []
        self._copies: list[CopyEntries] = []

    @property
    def is_busy(self) -> bool:
        """True if something is left to be done."""
        return bool(self._questions or self._copies)

    def applied(self, log: str, position: Position, record: TopicRecord) -> None:
        """A record was appended."""
        max_read = self._topic.buffer.max_read_position
        if max_read != self._noted:
            self._noted = max_read
            self._notes.append((self._topic.logs["topic"].last_appended, max_read))
        self._topic.recorded()

    def confirmed(self) -> None:
        """Readers see what is durable."""
        durable = self._topic.logs["topic"].last_confirmed
        while self._notes and self._notes[0][0] <= durable:
            self._topic.published = self._notes.pop(0)[1]

    def knows(self, txn_id: TxnId) -> bool:
        """The coordinator is always asked."""
        return False

    def ask(self, txn_id: TxnId, answer: Callable[[bool | None], None]) -> None:
        """Ask the coordinator, which answers after everything that is in a log now is durable."""
        needs = {name: log.last_appended for name, log in self._topic.logs.items()}
        self._questions.append((needs, txn_id, answer))

    def perform(self, effect: Effect) -> None:
        """The effects of a buffer."""
        match effect:
            case CopyEntries():
                self._copies.append(effect)
            case PublishMaxRead():
                self._topic.published = max(self._topic.published, effect.position)
            case _:
                raise AssertionError(f"not an effect of a transaction buffer: {effect}")

    def fold(self, machine: Machine[Any, Any], log: str, position: Position, data: bytes) -> None:
        """Entries of the topic are read by their headers."""
        if log != "topic":
            super().fold(machine, log, position, data)
            return
        header, _ = read_entry(data)
        plain = header.txn_id is None and header.marker_type is None
        machine.apply(log, position, PLAIN if plain else TopicRecord(header))

    def slice(self) -> Callable[[], bool]:
        """So much work that only what never ends is cut."""
        left = iter(range(_EXPIRED_AT_ONCE))
        return lambda: next(left, None) is None

    def failed(self, error: Exception) -> None:
        """A buffer makes no host fail."""
        raise AssertionError(str(error)) from error

    def go_on(self) -> None:
        """Answer questions, and copy, as far as what they need is durable."""
        logs = self._topic.logs
        while True:
            if self._questions and all(logs[name].last_confirmed >= at for name, at in self._questions[0][0].items()):
                _, txn_id, answer = self._questions.pop(0)
                answer(txn_id in self._topic.open_txns)
            elif self._copies:
                self._copy(self._copies.pop(0))
            else:
                return

    def _copy(self, copy: CopyEntries) -> None:
        source = self._topic.logs[copy.source]
        assert copy.positions[-1] <= source.last_confirmed, "what is copied is not durable in its own log"
        stored = dict(source.entries)
        for position in copy.positions:
            record = self._topic.buffer.decode(copy.source, stored[position])
            self._topic.request(Copied(copy.source, copy.target, position, record, copy.txn_id))
