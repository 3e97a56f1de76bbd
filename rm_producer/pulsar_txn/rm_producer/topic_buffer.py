"""The in-topic transaction buffer, Pulsar's: data goes into the topic at once, readers are held back.

The whole buffer is two maps and a position. `ongoing` keeps, in the order of the log, where each open transaction
began and which position was applied just before; the oldest one's "just before" is max_read_position, and with
nothing open it is the position applied last. `aborted` keeps where the last entry of each aborted transaction lies,
so that it can be forgotten when the topic was trimmed behind it. What happens to a transaction: `transitions`.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pulsar_txn.ledger.machine import NOTHING, PublishMaxRead, Reply, Step, VerifyRegistered, WriteSnapshot
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import EARLIEST, EntryHeader, MarkerType, Position, TxnAction, TxnId

from .requests import PLAIN, BufferStats, EndTxnOnPartition, MakeMarker, Publish, Request, TakeSnapshot, TopicRecord, Verified
from .snapshots import pack_columns, unpack_columns

if TYPE_CHECKING:
    from .requests import TransactionBuffer

_COMMIT: Final = int(MarkerType.TXN_COMMIT)
_ABORT: Final = int(MarkerType.TXN_ABORT)
_SIGNED_LIMIT: Final = 1 << 63
_COLUMNS: Final = 13


class TopicTransactionBuffer:
    """The buffer of one topic partition; see `requests.TransactionBuffer` for what each method promises.

    Its log is the topic. `snapshot_interval_transactions`: a WriteSnapshot effect comes with every end that makes
    the number of ended transactions pass a multiple of it.
    """

    logs: Sequence[str] = ("topic",)

    def __init__(self, topic: str, make_marker: MakeMarker, *, snapshot_interval_transactions: int = 1000) -> None:
        if snapshot_interval_transactions < 1:
            raise ValueError("snapshot_interval_transactions must be at least 1")
        self._topic = topic
        self._make_marker = make_marker
        self._interval = snapshot_interval_transactions
        self._ready = False
        # OrderedDict, not dict: transactions end about in the order in which they began, and the first key of a
        # dict that is eaten from its head costs a walk over all its holes.
        self._ongoing: OrderedDict[TxnId, tuple[Position, Position]] = OrderedDict()
        self._aborted: OrderedDict[TxnId, Position] = OrderedDict()
        self._low_watermarks: dict[int, int] = {}
        self._last: Position = EARLIEST
        self._max_read: Position = EARLIEST
        self._committed_count = 0
        self._aborted_count = 0
        # Derived from `ongoing`: per coordinator a heap of sequence numbers whose top is always ongoing, so that
        # a low watermark that covers nothing is seen without a walk.
        self._leasts: dict[int, list[int]] = {}

    # ---- what readers ask

    @property
    def max_read_position(self) -> Position:
        """Readers may see entries up to here, as far as they are confirmed; EARLIEST until `recovered`."""
        return self._max_read if self._ready else EARLIEST

    def is_hidden(self, position: Position, header: EntryHeader) -> bool:
        """Whether an entry at or below max_read_position is not for readers: a marker, or of an aborted transaction."""
        return header.marker_type is not None or (header.txn_id is not None and header.txn_id in self._aborted)

    def is_aborted(self, txn_id: TxnId) -> bool:
        """Whether the transaction is known as aborted here."""
        return txn_id in self._aborted

    def first_position(self, txn_id: TxnId) -> Position | None:
        """Where an open transaction's first entry lies, None when it is not ongoing here."""
        entry = self._ongoing.get(txn_id)
        return None if entry is None else entry[0]

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

    def topic_trimmed(self, before: Position) -> None:
        """Forget aborted transactions whose last entry (their marker, as a rule) lies before `before`."""
        aborted = self._aborted
        while aborted and next(iter(aborted.values())) < before:
            aborted.popitem(last=False)

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
        if txn_id not in self._ongoing:
            self._refuse_ended(txn_id)
            return Step(effects=(VerifyRegistered(txn_id, request),))
        return self._append(request)

    def _verified(self, verified: Verified) -> Step[TopicRecord]:
        txn_id = verified.request.txn_id
        if not verified.registered:
            text = f"transaction {txn_id} is not open, or {self._topic} is not registered in it"
            raise Refusal(ServerError.NotAllowedError, text)
        if txn_id not in self._ongoing:
            self._refuse_ended(txn_id)
        return self._append(verified.request)

    def _append(self, request: Publish) -> Step[TopicRecord]:
        header = request.record.header
        if header.txn_id != request.txn_id or header.marker_type is not None:
            text = f"the entry's metadata names {header.txn_id}, marker {header.marker_type}; it was sent in {request.txn_id}"
            raise Refusal(ServerError.NotAllowedError, text)
        return Step((("topic", request.record),), (Reply(request.token, position_of=0),))

    def _refuse_ended(self, txn_id: TxnId) -> None:
        if txn_id in self._aborted or txn_id.least <= self._low_watermarks.get(txn_id.most, -1):
            text = f"transaction {txn_id} has ended on {self._topic}; use a new transaction"
            raise Refusal(ServerError.NotAllowedError, text)

    def _end(self, request: EndTxnOnPartition) -> Step[TopicRecord]:
        txn_id = request.txn_id
        if txn_id in self._aborted and request.action is TxnAction.COMMIT:
            text = f"transaction {txn_id} was aborted on {self._topic}; it cannot be committed"
            raise Refusal(ServerError.InvalidTxnStatus, text)
        records = self._abort_stale(txn_id.most, request.low_watermark, txn_id)
        if txn_id in self._ongoing:
            records.append(("topic", request.marker))
        ended = self._committed_count + self._aborted_count
        if ended // self._interval == (ended + len(records)) // self._interval:
            return Step(tuple(records), (Reply(request.token),))
        return Step(tuple(records), (Reply(request.token), WriteSnapshot("topic")))

    def _abort_stale(self, most: int, low_watermark: int, ending: TxnId | None) -> list[tuple[str, TopicRecord]]:
        leasts = self._leasts.get(most)
        if leasts is None or leasts[0] > low_watermark:
            return []
        stale = (txn_id for txn_id in self._ongoing if txn_id.most == most and txn_id.least <= low_watermark)
        return [("topic", self._make_marker(txn_id, TxnAction.ABORT)) for txn_id in stale if txn_id != ending]

    # ---- apply

    def apply(self, log: str, position: Position, record: TopicRecord) -> None:
        """Fold one entry of the topic. PLAIN is the path of every message outside transactions."""
        if record is not PLAIN:
            header = record.header
            if header.txn_id is not None:
                if header.marker_type is None:
                    self._data(header.txn_id, position)
                elif header.marker_type in (_COMMIT, _ABORT):
                    self._marker(header.txn_id, position, header)
        self._last = position
        if not self._ongoing:
            self._max_read = position

    def _data(self, txn_id: TxnId, position: Position) -> None:
        if txn_id in self._ongoing:
            return
        if txn_id in self._aborted:
            self._aborted[txn_id] = position
            self._aborted.move_to_end(txn_id)
            return
        before = self._last if self._last != EARLIEST else (position[0], -1)
        if not self._ongoing:
            self._max_read = before
        self._ongoing[txn_id] = (position, before)
        heapq.heappush(self._leasts.setdefault(txn_id.most, []), txn_id.least)

    def _marker(self, txn_id: TxnId, position: Position, header: EntryHeader) -> None:
        low_watermark = header.highest_sequence_id - 1
        if self._low_watermarks.get(txn_id.most, -1) < low_watermark < _SIGNED_LIMIT:
            self._low_watermarks[txn_id.most] = low_watermark
        if self._ongoing.pop(txn_id, None) is None:
            return  # the first marker wins
        if header.marker_type == _ABORT:
            self._aborted[txn_id] = position
            self._aborted_count += 1
        else:
            self._committed_count += 1
        self._settle_leasts(txn_id.most)
        if self._ongoing:
            self._max_read = next(iter(self._ongoing.values()))[1]

    def _settle_leasts(self, most: int) -> None:
        leasts = self._leasts[most]
        while leasts and (most, leasts[0]) not in self._ongoing:
            heapq.heappop(leasts)
        if not leasts:
            del self._leasts[most]
        elif len(leasts) > 2 * len(self._ongoing) + 64:
            # One old transaction stays on top for long while thousands behind it end: do not keep their numbers.
            leasts[:] = sorted(txn_id.least for txn_id in self._ongoing if txn_id.most == most)

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
        stale = [self._abort_stale(most, low, None) for most, low in self._low_watermarks.items()]
        return Step(tuple(record for records in stale for record in records), (PublishMaxRead(self._max_read),))

    def deadline(self) -> int | None:
        """None: nothing here is timed; timeouts are the coordinator's."""
        return None

    def expire(self, now_ms: int) -> Step[TopicRecord]:
        """Nothing is ever due."""
        return NOTHING

    def snapshot(self) -> Iterator[bytes]:
        """The whole state up to the position applied last; see `snapshots` for its bytes."""
        first = [entry[0] for entry in self._ongoing.values()]
        before = [entry[1] for entry in self._ongoing.values()]
        marker = list(self._aborted.values())
        packed = pack_columns(
            (
                (*self._last, self._committed_count, self._aborted_count),
                list(self._low_watermarks),
                list(self._low_watermarks.values()),
                [txn_id.most for txn_id in self._ongoing],
                [txn_id.least for txn_id in self._ongoing],
                [position[0] for position in first],
                [position[1] for position in first],
                [position[0] for position in before],
                [position[1] for position in before],
                [txn_id.most for txn_id in self._aborted],
                [txn_id.least for txn_id in self._aborted],
                [position[0] for position in marker],
                [position[1] for position in marker],
            )
        )
        return iter((packed,))

    def restore(self, part: bytes) -> None:
        """Take over a snapshot, on a fresh buffer. Raises WireError when the bytes are not one of this version or older."""
        columns = unpack_columns(part, _COLUMNS)
        for group in (columns[1:3], columns[3:9], columns[9:13]):
            if len({len(column) for column in group}) != 1 or len(columns[0]) != 4:
                raise WireError("a damaged transaction buffer snapshot: its columns differ in length")
        ledger_id, entry_id, self._committed_count, self._aborted_count = columns[0]
        self._last = (ledger_id, entry_id)
        self._low_watermarks = dict(zip(*columns[1:3], strict=True))
        for most, least, *places in zip(*columns[3:9], strict=True):
            self._ongoing[TxnId(most, least)] = ((places[0], places[1]), (places[2], places[3]))
            heapq.heappush(self._leasts.setdefault(most, []), least)
        for most, least, ledger_id, entry_id in zip(*columns[9:13], strict=True):
            self._aborted[TxnId(most, least)] = (ledger_id, entry_id)
        self._max_read = next(iter(self._ongoing.values()))[1] if self._ongoing else self._last

    def trim_before(self, log: str) -> Position | None:
        """None: the topic is trimmed by acknowledgement and retention, not by its buffer."""
        return None

    def check_invariants(self) -> None:
        """S9 (max_read_position), S10 (aborted set), S11 (never both), and the derived heap."""
        oldest = next(iter(self._ongoing.values()), None)
        _invariant(self._max_read == (self._last if oldest is None else oldest[1]), "S9: max_read_position is not derived")
        previous = EARLIEST
        heaps = {most: frozenset(leasts) for most, leasts in self._leasts.items()}
        for txn_id, (first, before) in self._ongoing.items():
            _invariant(previous <= before < first <= self._last, f"S9: {txn_id} is out of order at {first}")
            _invariant(txn_id not in self._aborted, f"S11: {txn_id} is ongoing and aborted")
            _invariant(txn_id.least in heaps.get(txn_id.most, ()), f"heap: {txn_id} is missing")
            previous = first
        markers = list(self._aborted.values())
        _invariant(markers == sorted(set(markers)), "S10: aborted transactions are not in the order of the log")
        _invariant(all(position <= self._last for position in markers), "S10: an abort lies behind the log")
        for most, leasts in self._leasts.items():
            _invariant((most, leasts[0]) in self._ongoing, f"heap: the top of coordinator {most} has ended")


def _invariant(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text)


if TYPE_CHECKING:
    _HAS_THE_SHAPE_OF_THE_DOOR: type[TransactionBuffer] = TopicTransactionBuffer
