"""The half-topic transaction buffer: open data in log `half`, outcomes in log `op`, copied into `topic` at commit.

So an open transaction holds nobody back: readers get messages in the order in which they were committed. The price is that each
entry of a transaction is written twice. What happens to a transaction: `transitions`.

Transactions are copied one after the other, in the order of their ops, so `max_read_position` waits for the one that is
being copied and for no other. Each op asks for the copies of its transaction once it is durable. The host makes them in that
order, and one transaction does not wait for the copies of the one before it to be durable: many are copied in one group.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, assert_never

from pulsar_txn.ledger.machine import (
    ASK,
    JOIN,
    NOTHING,
    SKIP,
    WRITE,
    AwaitOutcome,
    CopyEntries,
    Outcome,
    PublishMaxRead,
    Reply,
    Step,
    VerifyRegistered,
    WriteSnapshot,
)
from pulsar_txn.ledger.ordered import OrderedMap
from pulsar_txn.ledger.swept_heap import SweptHeap
from pulsar_txn.rm_producer.publishing import stored, unregistered
from pulsar_txn.rm_producer.requests import (
    PLAIN,
    BufferStats,
    Copied,
    EndTxnOnPartition,
    MakeMarker,
    Publish,
    Request,
    TakeSnapshot,
    TopicRecord,
    Verified,
    Waiting,
)
from pulsar_txn.rm_producer.sent_messages import SentMessages
from pulsar_txn.rm_producer.snapshots import SENT
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import EARLIEST, EntryHeader, Position, TxnAction, TxnId

from . import records
from .half_transaction import HalfTransaction
from .snapshots import LOGS, VERSION, Head, read_slice, slices
from .transitions import (
    COMMITTING,
    END_EVENT,
    FINISHING,
    OP_EVENT,
    OPEN,
    OVER,
    STALE,
    TRANSITIONS,
    UNKNOWN,
    Event,
    TxnState,
)

if TYPE_CHECKING:
    from pulsar_txn.rm_producer.requests import TransactionBuffer


_SIGNED_LIMIT: Final = 1 << 63
_AT_ONCE: Final = 256
"""Transactions that are ended in one step, because many may be passed at once."""


class Watermarks:
    """The low watermarks of coordinators at one topic, and the open transactions that they pass.

    `of`: the highest watermark of each coordinator, which is state. The heaps follow from what is open.
    """

    def __init__(self, is_open: Callable[[TxnId], bool]) -> None:
        self.of: dict[int, int] = {}
        self._is_open = is_open
        self._leasts: dict[int, SweptHeap[TxnId]] = {}

    def has_passed(self, txn_id: TxnId) -> bool:
        """True if the coordinator says that the transaction is over."""
        return txn_id.least <= self.of.get(txn_id.most, -1)

    def rise(self, most: int, low_watermark: int) -> None:
        """A watermark was read. It never falls."""
        if self.of.get(most, -1) < low_watermark < _SIGNED_LIMIT:
            self.of[most] = low_watermark

    def restore(self, low_watermarks: Mapping[int, int]) -> None:
        """Take over the watermarks of a snapshot."""
        self.of = dict(low_watermarks)

    def opened(self, txn_id: TxnId) -> None:
        """A transaction is open here."""
        leasts = self._leasts.get(txn_id.most)
        if leasts is None:
            leasts = self._leasts[txn_id.most] = SweptHeap(self._is_open)
        leasts.add(txn_id)

    def left(self, txn_id: TxnId, still_open: int) -> None:
        """Removes the watermark; returns how many others became due."""
        if still_open:
            self._leasts[txn_id.most].lost(still_open)
        else:
            self._leasts.clear()

    def passed(self, most: int, low_watermark: int) -> list[TxnId]:
        """Open transactions that a watermark passes, the oldest first, and not more than are quick to end."""
        leasts = self._leasts.get(most)
        if leasts is None:
            return []
        return list(dict.fromkeys(leasts.smallest(_AT_ONCE, lambda txn_id: txn_id.least <= low_watermark)))

    def stale(self) -> list[TxnId]:
        """Some of the open transactions of one coordinator that its known watermark has passed."""
        return next(filter(None, (self.passed(most, low) for most, low in self.of.items())), [])

    def is_any_stale(self) -> bool:
        """True if there are such."""
        of = self.of
        firsts = ((most, leasts.first()) for most, leasts in self._leasts.items())
        return any(first is not None and first.least <= of.get(most, -1) for most, first in firsts)

    def found(self) -> frozenset[TxnId]:
        """Transactions that would be found, for invariants."""
        return frozenset(txn_id for leasts in self._leasts.values() for txn_id in leasts)


class HalfTopicTransactionBuffer:
    """The buffer of one topic partition; see `requests.TransactionBuffer` for what each method promises.

    A receipt carries the position in log `half`: where a message will be in the topic is not known before its transaction is
    committed. `snapshot_interval_transactions`: a WriteSnapshot effect comes with every end that makes the number of ended
    transactions pass a multiple of it.
    """

    logs: Sequence[str] = LOGS

    def __init__(self, topic: str, make_marker: MakeMarker, *, snapshot_interval_transactions: int = 1000) -> None:
        if snapshot_interval_transactions < 1:
            raise ValueError("snapshot_interval_transactions must be at least 1")
        self._topic = topic
        self._make_marker = make_marker
        self._interval = snapshot_interval_transactions
        self._ready = False
        self._is_restoring = False
        self._open_count = 0
        self._transactions: OrderedMap[TxnId, HalfTransaction] = OrderedMap(HalfTransaction.image)
        self._committing: OrderedDict[TxnId, HalfTransaction] = OrderedDict()  # those with a commit, in its order; derived
        self._sent = SentMessages()
        self._watermarks = Watermarks(self._is_open)
        self._last: dict[str, Position] = dict.fromkeys(LOGS, EARLIEST)
        self._commits = 0
        self._committed_count = 0
        self._aborted_count = 0

    # ---- what readers ask

    @property
    def max_read_position(self) -> Position:
        """Readers may see entries up to here, as far as they are confirmed; EARLIEST until `recovered`."""
        if not self._ready:
            return EARLIEST
        first = next(iter(self._committing.values()), None)
        return first.before if first is not None and first.copied else self._last["topic"]

    def is_hidden(self, position: Position, header: EntryHeader) -> bool:
        """True if an entry is a marker (of another buffer, before this one). Nothing of an aborted transaction gets here."""
        return header.marker_type is not None

    def is_aborted(self, txn_id: TxnId) -> bool:
        """False: no entry of an aborted transaction is ever in the topic."""
        return False

    def state_of(self, txn_id: TxnId) -> TxnState:
        """State of the transaction at this topic."""
        passed, txn = self._watermarks.has_passed(txn_id), self._transactions.get(txn_id)
        if txn is None:
            return OVER if passed else UNKNOWN
        if txn.commit:
            return FINISHING if passed else COMMITTING
        return STALE if passed else OPEN

    def first_position(self, txn_id: TxnId) -> Position | None:
        """The position of its first half while it is open, or being copied."""
        txn = self._transactions.get(txn_id)
        return None if txn is None else txn.position(0)

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest sequence id of a producer in open transactions, -1 when it is in none of them."""
        return self._sent.last(producer_name)

    def stats(self) -> BufferStats:
        """Counters at this moment. `state` is Initializing or Ready."""
        return BufferStats(
            state="Ready" if self._ready else "Initializing",
            max_read_position=self.max_read_position,
            ongoing_txn_size=len(self._transactions),
            total_aborted_transactions=0,
            committed_txn_count=self._committed_count,
            aborted_txn_count=self._aborted_count,
            low_watermarks=dict(self._watermarks.of),
        )

    def waiting(self) -> Waiting:
        """The half messages of transactions that are open, or not copied to their end."""
        oldest = self._transactions.first()
        return Waiting(self._last["half"], None if oldest is None else oldest[1].position(0))

    def topic_trimmed(self, before: Position) -> bool:
        """Nothing is kept about entries of the topic."""
        return False

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
            case Copied():
                return self._copied(request)
            case Verified():
                return self._verified(request)
            case TakeSnapshot():
                return Step(effects=(WriteSnapshot("half"),))
            case _:
                assert_never(request)

    def _publish(self, request: Publish) -> Step[TopicRecord]:
        cell = TRANSITIONS[self.state_of(request.txn_id), Event.PUBLISH]
        if cell.act is ASK:
            return Step(effects=(VerifyRegistered(request.txn_id, request),))
        return stored(request, cell.code, "half", self._topic, self._sent)

    def _verified(self, verified: Verified) -> Step[TopicRecord]:
        request = verified.request
        state = self.state_of(request.txn_id)
        if not verified.registered:
            raise unregistered(request, TRANSITIONS[state, Event.NOT_VERIFIED].code, self._topic)
        return stored(request, TRANSITIONS[state, Event.VERIFIED].code, "half", self._topic, self._sent)

    def _end(self, request: EndTxnOnPartition) -> Step[TopicRecord]:
        txn_id, action = request.txn_id, request.action
        cell = TRANSITIONS[self.state_of(txn_id), END_EVENT[action]]
        if cell.code is not None:
            raise Refusal(cell.code, f"transaction {txn_id} is being committed on {self._topic}; it cannot be aborted")
        passed = self._watermarks.passed(txn_id.most, request.low_watermark)
        ops = self._aborts([stale for stale in passed if stale != txn_id], Event.WATERMARK)
        if cell.act is JOIN:
            return Step(tuple(ops), (AwaitOutcome(request.token, txn_id),))
        if cell.act is not WRITE:
            return Step(tuple(ops), (Reply(request.token),))
        ops.append(("op", self._op(txn_id, request.marker)))
        due = self._snapshot_due(len(ops))
        if action is TxnAction.ABORT:
            return Step(tuple(ops), (Reply(request.token), *due))
        return Step(tuple(ops), (AwaitOutcome(request.token, txn_id), self._copies(txn_id), *due))

    def _aborts(self, stale: list[TxnId], event: Event) -> list[tuple[str, TopicRecord]]:
        wanted = [txn_id for txn_id in stale if TRANSITIONS[self.state_of(txn_id), event].act is WRITE]
        return [("op", self._op(txn_id, self._make_marker(txn_id, TxnAction.ABORT))) for txn_id in wanted]

    def _op(self, txn_id: TxnId, marker: TopicRecord) -> TopicRecord:
        txn = self._transactions[txn_id]
        return records.op(marker, txn.position(0), txn.position(len(txn) - 1), len(txn))

    def _copies(self, txn_id: TxnId) -> CopyEntries:
        return CopyEntries("half", "topic", self._transactions[txn_id].remaining(), txn_id)

    def _copied(self, copied: Copied) -> Step[TopicRecord]:
        """Only the next half of the transaction whose turn it is: whatever else comes is of a time before."""
        if copied.txn_id is None or next(iter(self._committing), None) != copied.txn_id:
            return NOTHING
        txn = self._committing[copied.txn_id]
        cell = TRANSITIONS[self.state_of(copied.txn_id), Event.COPIED]
        if cell.act is SKIP or txn.position(txn.copied) != copied.position:
            return NOTHING
        done = txn.copied + 1 == len(txn)
        return Step((("topic", copied.record),), (Outcome(copied.txn_id, TxnAction.COMMIT),) if done else ())

    def _snapshot_due(self, ending: int) -> tuple[WriteSnapshot, ...]:
        ended = self._commits + self._aborted_count
        return (WriteSnapshot("half"),) if ended // self._interval != (ended + ending) // self._interval else ()

    # ---- apply

    def apply(self, log: str, position: Position, record: TopicRecord) -> None:
        """Fold one record. PLAIN is the path of every message outside transactions."""
        before = self._last[log]
        if position <= before:
            return  # a snapshot taken at a position of `half` covers this much of the other logs
        self._last[log] = position
        if record is PLAIN or record.header.txn_id is None:
            return
        txn_id, header = record.header.txn_id, record.header
        if log == "half":
            self._half(txn_id, position, header)
        elif log == "op":
            self._outcome(txn_id, header)
        else:
            self._copy(txn_id, before if before != EARLIEST else (position[0], -1))

    def _half(self, txn_id: TxnId, position: Position, header: EntryHeader) -> None:
        if TRANSITIONS[self.state_of(txn_id), Event.HALF_READ].act is SKIP:
            return
        txn = self._transactions.get(txn_id)
        if txn is None:
            txn = self._transactions[txn_id] = HalfTransaction()
            self._open(txn_id)
        elif self._transactions.moments:
            self._transactions.changing(txn_id)
        txn.add(position)
        self._sent.note(txn_id, header)

    def _open(self, txn_id: TxnId) -> None:
        self._open_count += 1
        self._watermarks.opened(txn_id)

    def _outcome(self, txn_id: TxnId, header: EntryHeader) -> None:
        event = OP_EVENT.get(header.marker_type if header.marker_type is not None else -1)
        cell = None if event is None else TRANSITIONS[self.state_of(txn_id), event]
        self._watermarks.rise(txn_id.most, header.highest_sequence_id - 1)
        if cell is None or cell.act is SKIP:
            return
        txn = self._transactions[txn_id]
        self._open_count -= 1
        self._sent.ended(txn_id)
        if event is Event.ABORT_READ:
            del self._transactions[txn_id]
            self._aborted_count += 1
        else:
            if self._transactions.moments:
                self._transactions.changing(txn_id)
            self._commits += 1
            txn.decide(self._commits)
            self._committing[txn_id] = txn
        self._watermarks.left(txn_id, self._open_count)

    def _copy(self, txn_id: TxnId, before: Position) -> None:
        txn = self._transactions.get(txn_id)
        last = txn is not None and txn.copied + 1 == len(txn)
        cell = TRANSITIONS[self.state_of(txn_id), Event.LAST_COPY_READ if last else Event.COPY_READ]
        if txn is None or cell.act is SKIP:
            return
        if self._transactions.moments:
            self._transactions.changing(txn_id)
        txn.copy(before)
        if last:
            del self._transactions[txn_id], self._committing[txn_id]
            self._committed_count += 1

    def _is_open(self, txn_id: TxnId) -> bool:
        txn = self._transactions.get(txn_id)
        return txn is not None and not txn.commit

    # ---- records

    def encode(self, log: str, record: TopicRecord) -> bytes:
        """An entry of the topic is what the host handed in; half messages and ops: `records`."""
        if log == "topic":
            data: bytes = record.data
            return data
        return records.encode(record)

    def decode(self, log: str, data: bytes) -> TopicRecord:
        """A half, or an op. Raises WireError, also for `"topic"`, whose entries the host reads."""
        if log == "topic":
            raise WireError("entries of 'topic' are decoded by the host, which hands over their headers")
        return records.decode(data)

    # ---- recovery, time, snapshots

    def recovered(self, now_ms: int) -> Step[TopicRecord]:
        """Serve from here on, and go on with the copies that are missing. What is stale is due at once."""
        self._ready = True
        self._committing = self._in_order_of_commit()
        return Step(effects=(PublishMaxRead(self.max_read_position), *map(self._copies, self._committing)))

    def _in_order_of_commit(self) -> OrderedDict[TxnId, HalfTransaction]:
        """Transactions with a commit. A snapshot tells transactions in the order in which they opened."""
        return OrderedDict(sorted(self._committing.items(), key=lambda item: item[1].commit))

    def deadline(self) -> int | None:
        """The past while transactions are open that a known low watermark has passed. Timeouts are the coordinator's."""
        return 0 if self._ready and self._open_count and self._watermarks.is_any_stale() else None

    def expire(self, now_ms: int) -> Step[TopicRecord]:
        """Abort some of the open transactions that a known low watermark has passed."""
        ops = self._aborts(self._watermarks.stale(), Event.DUE)
        return Step(tuple(ops), self._snapshot_due(len(ops))) if ops else NOTHING

    def snapshot(self) -> Iterator[bytes]:
        """The whole state up to the positions applied last; see `snapshots` for its bytes."""
        counts = self._committed_count, self._aborted_count, self._commits
        head = Head(dict(self._last), *counts, dict(self._watermarks.of))
        return slices(head, self._transactions.moment().groups(), self._sent.slices())

    def restore(self, part: bytes) -> None:
        """Take over a slice, on a fresh buffer. Raises WireError when the bytes are not one of this version."""
        if part[1:2] == SENT and self._is_restoring and part[0] <= VERSION:
            self._sent.restore(part, 2)
            return
        read = read_slice(part, is_first=not self._is_restoring)
        if read.head is not None:
            self._is_restoring = True
            self._last = dict(read.head.last)
            self._committed_count, self._aborted_count = read.head.committed_count, read.head.aborted_count
            self._commits = read.head.commits
            self._watermarks.restore(read.head.low_watermarks)
        for txn_id, commit, copied, before in read.transactions:
            txn = self._transactions[txn_id] = HalfTransaction(commit, copied, before)
            if commit:
                self._committing[txn_id] = txn  # `recovered` puts them in order
            else:
                self._open(txn_id)
        for txn_id, position in read.places:
            if txn_id not in self._transactions:
                raise WireError(f"a damaged snapshot of a half-topic buffer: {txn_id} has places, and is not there")
            self._transactions[txn_id].add(position)

    def trim_before(self, log: str) -> Position | None:
        """Half messages: kept from the oldest open transaction on; ops not at all after a snapshot, the topic is not ours."""
        if log == "topic":
            return None
        ledger_id, entry_id = self._last[log]
        oldest = self._transactions.first() if log == "half" else None
        return (ledger_id, entry_id + 1) if oldest is None else oldest[1].position(0)

    def check_invariants(self) -> None:
        """S1 (whole, in the order of commit), S9 (max_read_position), and what is derived."""
        committing = self._committing if self._ready else self._in_order_of_commit()  # as `recovered` will have them
        turn = list(committing)
        commits = [txn.commit for txn in committing.values()]
        _invariant(commits == sorted(set(commits)), "S1: commits are out of order")
        _invariant(all(not self._committing[txn_id].copied for txn_id in turn[1:]), "S1: copied before its turn")
        _invariant(self._open_count == len(self._transactions) - len(turn), "S9: what is open is not counted")
        wrong = self._sent.check_invariants({txn_id for txn_id in self._transactions if self._is_open(txn_id)})
        _invariant(wrong is None, f"S11: {wrong}")
        found = self._watermarks.found()
        for txn_id, txn in self._transactions.items():
            _invariant(txn.copied < len(txn), f"S1: {txn_id} is copied, and still here")
            _invariant(bool(txn.commit) == (txn_id in self._committing), f"S1: {txn_id} is committing, or not")
            _invariant(txn.commit != 0 or txn_id in found, f"heap: {txn_id} is missing")


def _invariant(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text)


if TYPE_CHECKING:
    _HAS_THE_SHAPE_OF_THE_DOOR: type[TransactionBuffer] = HalfTopicTransactionBuffer
