"""The in-topic transaction buffer, Pulsar's: data goes into the topic at once, readers are held back.

The whole buffer is three maps and a position. `ongoing` keeps, in the order of the log, where each open transaction
began and which position was applied just before; the oldest one's "just before" is max_read_position, and with
nothing open it is the position applied last. `aborted` keeps the position of each aborted transaction's last entry,
so that it can be forgotten when the topic was trimmed after it. What open transactions have got is in `sent_messages`.
What happens to a transaction: `transitions`.

The maps may have millions of keys. So nothing works on all of one in one go: transactions that a low watermark covers are
aborted a few hundred at a time (by `expire`, when they are more), what was trimmed is forgotten so, and snapshots are slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pulsar_txn.ledger.machine import ASK, NOTHING, SKIP, WRITE, PublishMaxRead, Reply, Step, VerifyRegistered, WriteSnapshot
from pulsar_txn.ledger.ordered import OrderedMap
from pulsar_txn.ledger.swept_heap import SweptHeap
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import EARLIEST, EntryHeader, Position, TxnAction, TxnId

from .publishing import stored, unregistered
from .requests import PLAIN, BufferStats, EndTxnOnPartition, MakeMarker, Publish, Request, TakeSnapshot, TopicRecord, Verified
from .sent_messages import SentMessages
from .snapshots import SENT, VERSION, Head, read_slice, slices
from .transitions import (
    ABORTED,
    END_EVENT,
    MARKER_EVENT,
    ONGOING,
    OVER,
    STALE,
    TRANSITIONS,
    UNKNOWN,
    Event,
    TxnState,
)

if TYPE_CHECKING:
    from .requests import TransactionBuffer

_SIGNED_LIMIT: Final = 1 << 63
_ABORTED_AT_ONCE: Final = 256
_FORGOTTEN_AT_ONCE: Final = 4096
_OBJECTS_PER_END: Final = 8


class TopicTransactionBuffer:
    """The buffer of one topic partition; see `requests.TransactionBuffer` for what each method promises.

    Its log is the topic. `snapshot_interval_transactions`: a WriteSnapshot effect comes with every end that makes
    the number of ended transactions pass a multiple of it, once as many ended as is in proportion to the snapshot's size.
    """

    logs: Sequence[str] = ("topic",)

    def __init__(self, topic: str, make_marker: MakeMarker, *, snapshot_interval_transactions: int = 1000) -> None:
        if snapshot_interval_transactions < 1:
            raise ValueError("snapshot_interval_transactions must be at least 1")
        self._topic = topic
        self._make_marker = make_marker
        self._interval = snapshot_interval_transactions
        self._ready = False
        self._is_restoring = False
        self._ongoing: OrderedMap[TxnId, tuple[Position, Position]] = OrderedMap()
        self._has_ongoing = False  # what every plain message asks
        self._aborted: OrderedMap[TxnId, Position] = OrderedMap()
        self._sent = SentMessages()
        self._low_watermarks: dict[int, int] = {}
        self._last: Position = EARLIEST
        self._max_read: Position = EARLIEST
        self._committed_count = 0
        self._aborted_count = 0
        self._ended_at_snapshot = 0  # the pace of snapshots, no state
        # Derived from `ongoing`: the transactions of each coordinator, so that those that a low watermark covers are
        # found without a walk.
        self._leasts: dict[int, SweptHeap[TxnId]] = {}

    # ---- what readers ask

    @property
    def max_read_position(self) -> Position:
        """Readers may see entries up to here, as far as they are confirmed; EARLIEST until `recovered`."""
        return self._max_read if self._ready else EARLIEST

    def is_hidden(self, position: Position, header: EntryHeader) -> bool:
        """True if an entry at or below max_read_position is not for readers: a marker, or of an aborted transaction."""
        return header.marker_type is not None or (header.txn_id is not None and header.txn_id in self._aborted)

    def is_aborted(self, txn_id: TxnId) -> bool:
        """True if the transaction is known as aborted here."""
        return txn_id in self._aborted

    def state_of(self, txn_id: TxnId) -> TxnState:
        """State of the transaction at this topic."""
        most, least = txn_id
        covered = least <= self._low_watermarks.get(most, -1)
        if txn_id in self._ongoing:
            return STALE if covered else ONGOING
        if txn_id in self._aborted:
            return ABORTED
        return OVER if covered else UNKNOWN

    def first_position(self, txn_id: TxnId) -> Position | None:
        """The position of an open transaction's first entry; None when it is not ongoing here."""
        entry = self._ongoing.get(txn_id)
        return None if entry is None else entry[0]

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest sequence id of a producer in open transactions, -1 when it is in none of them."""
        return self._sent.last(producer_name)

    def stats(self) -> BufferStats:
        """Counters at this moment. `state` is Initializing or Ready."""
        return BufferStats(
            state="Ready" if self._ready else "Initializing",
            max_read_position=self.max_read_position,
            ongoing_txn_size=len(self._ongoing),
            total_aborted_transactions=len(self._aborted),
            committed_txn_count=self._committed_count,
            aborted_txn_count=self._aborted_count,
            low_watermarks=dict(self._low_watermarks),
        )

    def waiting(self) -> None:
        """Nothing: what is open is in the topic."""
        return

    def topic_trimmed(self, before: Position) -> bool:
        """Forget aborted transactions whose last entry (their marker, as a rule) is before `before`: some of them."""
        aborted = self._aborted
        for _ in range(_FORGOTTEN_AT_ONCE):
            oldest = aborted.first()
            if oldest is None or oldest[1] >= before:
                return False
            del aborted[oldest[0]]
        return True

    # ---- decide

    def decide(self, request: Request, now_ms: int) -> Step[TopicRecord]:
        """Say what to write for a request. Refusals: ServiceNotReady before `recovered`, and those of the request."""
        if not self._ready:
            raise Refusal(ServerError.ServiceNotReady, f"the transaction buffer of {self._topic} is recovering; retry")
        match request:
            case Publish():
                return self._publish(request)
            case EndTxnOnPartition():
                return self._end(request)
            case Verified():
                return self._verified(request)
            case TakeSnapshot():
                return Step(effects=(WriteSnapshot("topic"),))
            case _:
                raise Refusal(ServerError.NotAllowedError, f"{type(request).__name__}: this buffer keeps no half messages")

    def _publish(self, request: Publish) -> Step[TopicRecord]:
        txn_id = request.txn_id
        cell = TRANSITIONS[self.state_of(txn_id), Event.PUBLISH]
        if cell.act is ASK:
            return Step(effects=(VerifyRegistered(txn_id, request),))
        return stored(request, cell.code, "topic", self._topic, self._sent)

    def _verified(self, verified: Verified) -> Step[TopicRecord]:
        request = verified.request
        state = self.state_of(request.txn_id)
        if not verified.registered:
            raise unregistered(request, TRANSITIONS[state, Event.NOT_VERIFIED].code, self._topic)
        return stored(request, TRANSITIONS[state, Event.VERIFIED].code, "topic", self._topic, self._sent)

    def _end(self, request: EndTxnOnPartition) -> Step[TopicRecord]:
        txn_id = request.txn_id
        cell = TRANSITIONS[self.state_of(txn_id), END_EVENT[request.action]]
        if cell.code is not None:
            raise Refusal(cell.code, f"transaction {txn_id} was aborted on {self._topic}; it cannot be committed")
        records = self._abort_stale(Event.WATERMARK, txn_id.most, request.low_watermark, txn_id)
        if cell.act is WRITE:
            records.append(("topic", request.marker))
        return Step(tuple(records), (Reply(request.token), *self._snapshot_due(len(records))))

    def _snapshot_due(self, ending: int) -> tuple[WriteSnapshot, ...]:
        """A snapshot at each interval, except where its size asks for more ends than there were since the last one."""
        ended = self._committed_count + self._aborted_count
        if ended // self._interval == (ended + ending) // self._interval:
            return ()
        objects = len(self._aborted) + len(self._ongoing)
        return (WriteSnapshot("topic"),) if (ended + ending - self._ended_at_snapshot) * _OBJECTS_PER_END >= objects else ()

    def _abort_stale(
        self, event: Event, most: int, low_watermark: int, ending: TxnId | None = None
    ) -> list[tuple[str, TopicRecord]]:
        """Markers for transactions that a low watermark covers; not more than are quick to write, the oldest first."""
        leasts = self._leasts.get(most)
        if leasts is None or (first := leasts.first()) is None or first.least > low_watermark:  # nearly always
            return []
        found = leasts.smallest(_ABORTED_AT_ONCE, lambda txn_id: txn_id.least <= low_watermark)
        return [
            ("topic", self._make_marker(txn_id, TxnAction.ABORT))
            for txn_id in dict.fromkeys(found)
            if txn_id != ending and TRANSITIONS[self.state_of(txn_id), event].act is WRITE
        ]

    # ---- apply

    def apply(self, log: str, position: Position, record: TopicRecord) -> None:
        """Fold one entry of the topic. PLAIN is the path of every message outside transactions."""
        if record is not PLAIN:
            header = record.header
            if header.txn_id is not None:
                if header.marker_type is None:
                    if header.txn_id not in self._ongoing:
                        self._data(header.txn_id, position)
                    if header.txn_id in self._ongoing:
                        self._sent.note(header.txn_id, header)
                elif (event := MARKER_EVENT.get(header.marker_type)) is not None:
                    self._marker(header.txn_id, position, event, header.highest_sequence_id - 1)
        self._last = position
        if not self._has_ongoing:
            self._max_read = position

    def _data(self, txn_id: TxnId, position: Position) -> None:
        if TRANSITIONS[self.state_of(txn_id), Event.DATA_READ].to is ABORTED:
            del self._aborted[txn_id]  # it goes to the end: entries of it are hidden up to here
            self._aborted[txn_id] = position
            return
        before = self._last if self._last != EARLIEST else (position[0], -1)
        if not self._has_ongoing:
            self._max_read = before
        self._begin(txn_id, position, before)

    def _begin(self, txn_id: TxnId, position: Position, before: Position) -> None:
        self._ongoing[txn_id] = (position, before)
        self._has_ongoing = True
        leasts = self._leasts.get(txn_id.most)
        if leasts is None:
            leasts = self._leasts[txn_id.most] = SweptHeap(self._ongoing.__contains__)
        leasts.add(txn_id)

    def _marker(self, txn_id: TxnId, position: Position, event: Event, low_watermark: int) -> None:
        cell = TRANSITIONS[self.state_of(txn_id), event]
        if self._low_watermarks.get(txn_id.most, -1) < low_watermark < _SIGNED_LIMIT:
            self._low_watermarks[txn_id.most] = low_watermark
        if cell.act is SKIP:
            return  # the first marker wins
        del self._ongoing[txn_id]
        self._sent.ended(txn_id)
        if cell.to is ABORTED:
            self._aborted[txn_id] = position
            self._aborted_count += 1
        else:
            self._committed_count += 1
        self._leasts[txn_id.most].lost(len(self._ongoing))
        oldest = self._ongoing.first()
        if oldest is None:
            self._has_ongoing = False
            self._leasts.clear()
        else:
            self._max_read = oldest[1][1]

    # ---- records

    def encode(self, log: str, record: TopicRecord) -> bytes:
        """The entry itself: what the host handed in is what is appended."""
        data: bytes = record.data
        return data

    def decode(self, log: str, data: bytes) -> TopicRecord:
        """Never called: entries of `"topic"` are decoded by the host (`wire.entries.read_header`). Raises WireError."""
        raise WireError(f"entries of {log!r} are decoded by the host, which hands over their headers")

    # ---- recovery, time, snapshots

    def recovered(self, now_ms: int) -> Step[TopicRecord]:
        """Serve from here on. Transactions at or below a known low watermark are aborted (a log of somebody else)."""
        self._ready = True
        return Step(self._some_stale(), (PublishMaxRead(self._max_read),))

    def deadline(self) -> int | None:
        """The past while transactions are open that a known low watermark covers. Timeouts are the coordinator's."""
        if self._has_ongoing and self._ready:
            for most, leasts in self._leasts.items():
                first = leasts.first()
                if first is not None and first.least <= self._low_watermarks.get(most, -1):
                    return 0
        return None

    def expire(self, now_ms: int) -> Step[TopicRecord]:
        """Abort some of the open transactions that a known low watermark covers."""
        records = self._some_stale()
        return Step(records, self._snapshot_due(len(records))) if records else NOTHING

    def _some_stale(self) -> tuple[tuple[str, TopicRecord], ...]:
        for most, low_watermark in self._low_watermarks.items():
            stale = self._abort_stale(Event.DUE, most, low_watermark)
            if stale:
                return tuple(stale)
        return ()

    def snapshot(self) -> Iterator[bytes]:
        """The whole state up to the position applied last; see `snapshots` for its bytes."""
        self._ended_at_snapshot = self._committed_count + self._aborted_count
        head = Head(self._last, self._committed_count, self._aborted_count, dict(self._low_watermarks))
        return slices(head, self._ongoing.moment().groups(), self._aborted.moment().groups(), self._sent.slices())

    def restore(self, part: bytes) -> None:
        """Take over a slice, on a fresh buffer. Raises WireError when the bytes are not one of this version or older."""
        if part[1:2] == SENT and self._is_restoring and part[0] <= VERSION:
            self._sent.restore(part, 2)
            return
        head, ongoing, aborted = read_slice(part, is_first=self._last == EARLIEST and not self._is_restoring)
        if head is not None:
            self._is_restoring = True
            self._last, self._committed_count, self._aborted_count = head.last, head.committed_count, head.aborted_count
            self._low_watermarks = head.low_watermarks
            self._ended_at_snapshot = head.committed_count + head.aborted_count
        for txn_id, (first, before) in ongoing:
            self._begin(txn_id, first, before)
        for txn_id, position in aborted:
            self._aborted[txn_id] = position
        oldest = self._ongoing.first()
        self._max_read = self._last if oldest is None else oldest[1][1]

    def trim_before(self, log: str) -> Position | None:
        """None: the topic is trimmed by acknowledgement and retention, not by its buffer."""
        return None

    def check_invariants(self) -> None:
        """S9 (max_read_position), S10 (aborted set), S11 (never both), and the derived heap."""
        oldest = self._ongoing.first()
        _invariant(self._has_ongoing == (oldest is not None), "S9: what is ongoing is not counted")
        _invariant(self._max_read == (self._last if oldest is None else oldest[1][1]), "S9: max_read_position is not derived")
        previous = EARLIEST
        heaps = {most: frozenset(leasts) for most, leasts in self._leasts.items()}
        for txn_id, (first, before) in self._ongoing.items():
            _invariant(previous <= before < first <= self._last, f"S9: {txn_id} is out of order at {first}")
            _invariant(txn_id not in self._aborted, f"S11: {txn_id} is ongoing and aborted")
            _invariant(txn_id in heaps.get(txn_id.most, ()), f"heap: {txn_id} is missing")
            previous = first
        markers = list(self._aborted.values())
        wrong = self._sent.check_invariants(self._ongoing)
        _invariant(wrong is None, f"S11: {wrong}")
        _invariant(markers == sorted(set(markers)), "S10: aborted transactions are not in the order of the log")
        _invariant(all(position <= self._last for position in markers), "S10: an abort lies behind the log")


def _invariant(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text)


if TYPE_CHECKING:
    _HAS_THE_SHAPE_OF_THE_DOOR: type[TransactionBuffer] = TopicTransactionBuffer
