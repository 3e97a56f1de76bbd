"""A transaction buffer with half messages: open data in log `half`, outcomes in log `op`, copied into `topic` at commit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from pulsar_txn.ledger.machine import (
    NOTHING,
    AwaitOutcome,
    CopyEntries,
    Outcome,
    PublishMaxRead,
    Reply,
    Step,
    VerifyRegistered,
    WriteSnapshot,
)  # fmt: skip
from pulsar_txn.rm_producer.requests import (
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
)  # fmt: skip
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import EARLIEST, EntryHeader, MarkerType, Position, TxnAction, TxnId


@attrs.define
class _Open:
    """A transaction whose entries are not all where they belong. `outcome`: COMMIT once it is decided, and copying."""

    halves: list[Position] = attrs.Factory(list)
    outcome: TxnAction | None = None
    copied: int = 0
    sent: list[tuple[str, int, int, int]] = attrs.Factory(list)


class HalfTopicTransactionBuffer:
    """See the README. Records of `half` are entries; of `op` markers, which are the outcomes."""

    logs: Sequence[str] = ("half", "op", "topic")

    def __init__(self, topic: str, make_marker: MakeMarker) -> None:
        self._topic, self._make_marker = topic, make_marker
        self._ready = False
        self._open: dict[TxnId, _Open] = {}
        self._copying: dict[TxnId, Position] = {}  # copied in part: the topic's position before the first copy
        self._low_watermarks: dict[int, int] = {}
        self._last: dict[str, Position] = dict.fromkeys(self.logs, EARLIEST)
        self._counts = {TxnAction.COMMIT: 0, TxnAction.ABORT: 0}

    @property
    def max_read_position(self) -> Position:
        return next(iter(self._copying.values()), self._last["topic"]) if self._ready else EARLIEST

    def is_hidden(self, position: Position, header: EntryHeader) -> bool:
        return header.is_marker

    def is_aborted(self, txn_id: TxnId) -> bool:
        return False  # nothing of an aborted transaction ever comes into the topic

    def first_position(self, txn_id: TxnId) -> Position | None:
        txn = self._open.get(txn_id)
        return None if txn is None else txn.halves[0]

    def last_sequence_id(self, producer_name: str) -> int:
        ids = [last for txn in self._open.values() for name, _, last, _ in txn.sent if name == producer_name]
        return max(ids, default=-1)

    def stats(self) -> BufferStats:
        counts, state = self._counts, "Ready" if self._ready else "Initializing"
        ended = counts[TxnAction.COMMIT], counts[TxnAction.ABORT]
        return BufferStats(state, self.max_read_position, len(self._open), 0, *ended, dict(self._low_watermarks))

    def waiting(self) -> Waiting:
        oldest = next(iter(self._open.values()), None)
        return Waiting(self._last["half"], None if oldest is None else oldest.halves[0])

    def topic_trimmed(self, before: Position) -> bool:
        return False  # nothing is kept about entries of the topic

    def decide(self, request: Request, now_ms: int) -> Step[TopicRecord]:
        if not self._ready:
            raise Refusal(ServerError.ServiceNotReady, f"{self._topic} is recovering; retry")
        match request:
            case Publish():
                return self._publish(request, asked=False)
            case Verified(request=publish, registered=registered):
                if not registered:
                    raise Refusal(ServerError.NotAllowedError, f"{publish.txn_id} is not open with {self._topic} registered")
                return self._publish(publish, asked=True)
            case EndTxnOnPartition():
                return self._end(request)
            case Copied():
                return self._copied(request)
            case TakeSnapshot():
                return Step(effects=(WriteSnapshot("half"),))
        return NOTHING

    def _undecided(self, txn_id: TxnId) -> bool:
        return txn_id in self._open and self._open[txn_id].outcome is None

    def _publish(self, request: Publish, *, asked: bool) -> Step[TopicRecord]:
        txn_id, txn = request.txn_id, self._open.get(request.txn_id)
        ended = txn_id.least <= self._low_watermarks.get(txn_id.most, -1) if txn is None else txn.outcome is not None
        if ended or request.record.header.txn_id != txn_id:
            raise Refusal(ServerError.NotAllowedError, f"{txn_id} has ended on {self._topic}, or is not what the entry names")
        if txn is None and not asked:
            return Step(effects=(VerifyRegistered(txn_id, request),))
        key = _key(request.record.header)
        if txn is not None and key in txn.sent:
            return Step(effects=(Reply(request.token, EARLIEST),))  # sent again, because its receipt was lost
        if txn is not None and any(key[:3] == each[:3] for each in txn.sent):
            raise Refusal(ServerError.NotAllowedError, f"{key[0]!r} has sent another message with sequence id {key[1]}")
        return Step((("half", request.record),), (Reply(request.token, position_of=0),))

    def _end(self, request: EndTxnOnPartition) -> Step[TopicRecord]:
        txn_id, low = request.txn_id, request.low_watermark
        stale = [t for t in self._open if t.most == txn_id.most and t.least <= low and self._undecided(t) and t != txn_id]
        aborts = tuple(("op", self._make_marker(other, TxnAction.ABORT)) for other in stale)
        if txn_id not in self._open:
            return Step(aborts, (Reply(request.token),))
        joined = AwaitOutcome(request.token, txn_id)
        if not self._undecided(txn_id):
            if request.action is TxnAction.ABORT:
                raise Refusal(ServerError.InvalidTxnStatus, f"{txn_id} is being committed on {self._topic}")
            return Step(aborts, (joined,))
        step = self._decision(txn_id, request.marker, request.action)
        answer = joined if request.action is TxnAction.COMMIT else Reply(request.token)
        return Step((*aborts, *step.records), (answer, *step.effects))

    def _decision(self, txn_id: TxnId, marker: TopicRecord, action: TxnAction) -> Step[TopicRecord]:
        copy = CopyEntries("half", "topic", tuple(self._open[txn_id].halves), txn_id)
        return Step((("op", marker),), (copy,) if action is TxnAction.COMMIT else ())

    def _copied(self, copied: Copied) -> Step[TopicRecord]:
        txn = self._open.get(copied.txn_id) if copied.txn_id else None
        if txn is None or copied.txn_id is None or txn.halves[txn.copied] != copied.position:
            return NOTHING
        last = txn.copied + 1 == len(txn.halves)
        return Step((("topic", copied.record),), (Outcome(copied.txn_id, TxnAction.COMMIT),) if last else ())

    def apply(self, log: str, position: Position, record: TopicRecord) -> None:
        before = self._last[log]
        if position <= before:
            return  # a snapshot taken at a position of `half` covers this much of the other logs
        self._last[log] = position
        txn_id = record.header.txn_id
        if txn_id is None:
            return
        if log == "half":
            txn = self._open.setdefault(txn_id, _Open())
            txn.halves.append(position)
            txn.sent.append(_key(record.header))
        elif log == "op":
            self._outcome(txn_id, record.header)
        elif txn_id in self._open:
            self._copy(txn_id, before if before != EARLIEST else (position[0], -1))

    def _outcome(self, txn_id: TxnId, header: EntryHeader) -> None:
        low = header.highest_sequence_id - 1
        if low > self._low_watermarks.get(txn_id.most, -1):
            self._low_watermarks[txn_id.most] = low
        if not self._undecided(txn_id):
            return
        txn = self._open[txn_id]
        if header.marker_type == MarkerType.TXN_COMMIT:
            txn.outcome = TxnAction.COMMIT
        else:
            del self._open[txn_id]
            self._counts[TxnAction.ABORT] += 1

    def _copy(self, txn_id: TxnId, before: Position) -> None:
        txn = self._open[txn_id]
        txn.copied += 1
        self._copying.setdefault(txn_id, before)
        if txn.copied == len(txn.halves):
            del self._open[txn_id], self._copying[txn_id]
            self._counts[TxnAction.COMMIT] += 1

    def encode(self, log: str, record: TopicRecord) -> bytes:
        if log == "topic":
            return bytes(record.data)
        header = (*attrs.astuple(record.header, recurse=False)[:7], record.header.checksum)  # its hints are in the entry
        return json.dumps(header).encode() + b"\n" + bytes(record.data or b"")

    def decode(self, log: str, data: bytes) -> TopicRecord:
        head, line, body = data.partition(b"\n")
        if log == "topic" or not line:
            raise WireError(f"not a record of {log!r}")
        name, sequence_id, highest, time_ms, txn_id, marker_type, count, checksum = json.loads(head)
        header = EntryHeader(name, sequence_id, highest, time_ms, TxnId(*txn_id), marker_type, count, checksum=checksum)
        return TopicRecord(header, body)

    def recovered(self, now_ms: int) -> Step[TopicRecord]:
        self._ready = True
        decided = [(txn_id, txn.halves[txn.copied :]) for txn_id, txn in self._open.items() if txn.outcome is not None]
        copies = [CopyEntries("half", "topic", tuple(halves), txn_id) for txn_id, halves in decided]
        return Step(effects=(PublishMaxRead(self.max_read_position), *copies))

    def deadline(self) -> int | None:
        return None

    def expire(self, now_ms: int) -> Step[TopicRecord]:
        return NOTHING  # nothing is timed: the coordinator decides

    def snapshot(self) -> Iterator[bytes]:
        open_txns = [(txn_id, attrs.astuple(txn, recurse=False)) for txn_id, txn in self._open.items()]
        maps = [list(kept.items()) for kept in (self._copying, self._low_watermarks, self._counts)]
        return iter((json.dumps([self._last, open_txns, *maps]).encode(),))

    def restore(self, part: bytes) -> None:
        last, open_txns, copying, low_watermarks, counts = json.loads(part)
        self._last = {log: (position[0], position[1]) for log, position in last.items()}
        self._copying = {TxnId(*txn_id): (before[0], before[1]) for txn_id, before in copying}
        self._low_watermarks, self._counts = dict(low_watermarks), {TxnAction(action): count for action, count in counts}
        for txn_id, (halves, outcome, copied, sent) in open_txns:
            places: list[Any] = [tuple(position) for position in halves]
            action = None if outcome is None else TxnAction(outcome)
            self._open[TxnId(*txn_id)] = _Open(places, action, copied, [(name, *numbers) for name, *numbers in sent])

    def trim_before(self, log: str) -> Position | None:
        if log == "topic":
            return None
        needed = [txn.halves[0] for txn in self._open.values()] if log == "half" else []
        return min(needed, default=(self._last[log][0], self._last[log][1] + 1))

    def check_invariants(self) -> None:
        for txn_id, txn in self._open.items():
            if not txn.copied < len(txn.halves) or (txn.copied > 0) != (txn_id in self._copying):
                raise AssertionError(f"S1: {txn_id} is copied, or torn")


def _key(header: EntryHeader) -> tuple[str, int, int, int]:
    return header.producer_name, header.sequence_id, header.highest_sequence_id, header.checksum
