"""An open log: this instance leads it. What is readable is in memory as well; the topic makes it durable.

Its frames are filled in a turn of the loop, sent in order, and confirmed in order (`FrameQueue`). Nothing counts as durable
before it is known to be in the topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.inside import Runtime
from pulsar_txn.ledger.confirming import confirm, fail
from pulsar_txn.ledger.groups import CommitGroup
from pulsar_txn.ledger.handles import BaseLog, OpenLogs, SnapshotParts
from pulsar_txn.ledger.limits import MAX_VALUE_BYTES, Pressure, Tally
from pulsar_txn.ledger.protocols import (
    Buffer,
    Cursor,
    EntryTooLarge,
    LedgerError,
    LogClosed,
    Snapshot,
    StoreUnsupported,
)
from pulsar_txn.ledger.turn import Turn
from pulsar_txn.wire.ids import Position

from .candidate import ClaimedLog
from .frames import HEADER_BYTES, RECORD_BYTES, Frame, Kind, Record, encode, end_of_snapshot

logger = logging.getLogger("pulsar_txn.tc_service")

_MOST_IN_FLIGHT: Final = 16
"""Frames that are not confirmed; what comes meanwhile shares the next ones, so frames grow with the load."""

FRAME_BYTES: Final = 1 << 20
"""A frame takes no further record from here on."""

_HEARTBEATS_PER_LEASE: Final = 4
_UNANSWERED_SECONDS: Final = 30.0
"""A send without an answer for so long is given up; a broker that restarts takes less."""

_TRIM_FRAMES: Final = 32
_TRIM_SECONDS: Final = 1.0
_SEND_OVERHEAD_BYTES: Final = 1024
_REWRITE_FRAMES: Final = 1024
_REWRITE_BYTES_PER_FRAME: Final = 256
"""A log that is idle is written again when its heartbeats and old records are so many more than what is needed of it."""


class FrameGroup(CommitGroup):
    """A frame that still takes records, and what waits for it."""

    __slots__ = ("entries", "records", "size")

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []
        self.entries = 0
        self.size = 0

    def add(self, record: Record, *, is_new: bool) -> None:
        """One more record; `is_new`: a further entry."""
        self.records.append(record)
        self.entries += is_new
        self.size += len(record.data) + RECORD_BYTES


class _Sent(NamedTuple):
    group: FrameGroup
    frame: Frame
    at: float


class FrameQueue:
    """The frames of one log (implements `ledger.groups.Groups`). Without IO: what is to be sent and told, it returns.

    `turn` is asked for when there may be a frame to send. `confirmed_at` is the time at which the newest confirmed frame was
    sent, `sent_at` that of the last one sent.
    """

    max_value_bytes = MAX_VALUE_BYTES

    def __init__(self, pressure: Pressure, epoch: int, turn: Turn, claimed_at: float) -> None:
        self.open_group: FrameGroup = FrameGroup()
        self.tally = Tally()
        self.confirmed_at = claimed_at
        self.sent_at = claimed_at
        self._pressure = pressure
        self._epoch = epoch
        self._turn = turn
        self._sequence = 1  # 0 was the claim
        self._ready: deque[tuple[FrameGroup, Frame]] = deque()
        self._in_flight: deque[_Sent] = deque()
        self._ended = False

    @property
    def newest(self) -> FrameGroup | None:
        """The last group that has something to be confirmed."""
        if self.open_group:
            return self.open_group
        if self._ready:
            return self._ready[-1][0]
        return self._in_flight[-1].group if self._in_flight else None

    @property
    def bytes_in_flight(self) -> int:
        """Bytes that are not confirmed."""
        waiting = sum(group.bytes for group, _ in self._ready) + sum(sent.group.bytes for sent in self._in_flight)
        return self.open_group.bytes + waiting

    def unanswered_seconds(self, now: float) -> float:
        """Seconds since the oldest frame without a receipt was sent; 0 when there is none."""
        return now - self._in_flight[0].at if self._in_flight else 0.0

    def is_full_with(self, size: int) -> bool:
        """True if a record of so many bytes would make the open frame too large: `close_frame` first."""
        group = self.open_group
        return bool(group.records) and group.size + size + RECORD_BYTES > FRAME_BYTES

    def add(self, record: Record, *, is_new: bool = False) -> None:
        """One more record of the open frame, which has room and which the log has joined. `is_new`: a further entry."""
        size = len(record.data)
        self.open_group.add(record, is_new=is_new)
        self.count(size)

    def count(self, size: int) -> None:
        """Count bytes that joined the open group."""
        self.open_group.grew(size)
        self._pressure.enter(size)

    def wake(self) -> None:
        """Something joined: it is sent when the turn ends."""
        if not self._ended:
            self._turn.ask()

    def close_frame(self, first_entry: int, next_entry: int, finished_snapshot: int) -> None:
        """Close the open frame, if there is something in it: the log is like this after it."""
        group = self.open_group
        if not group or self._ended:
            return
        group.seal()
        self.open_group = FrameGroup()
        frame = Frame(self._epoch, self._sequence, next_entry - group.entries, first_entry, finished_snapshot, group.records)
        self._sequence += 1
        self._ready.append((group, frame))

    @property
    def has_room(self) -> bool:
        """True if another frame may be sent before one is confirmed."""
        return len(self._in_flight) < _MOST_IN_FLIGHT

    def frames_to_send(self, now: float) -> Iterator[bytes]:
        """Closed frames, encoded; each is in flight from now on."""
        while self._ready and self.has_room:
            group, frame = self._ready.popleft()
            self.sent_at = now
            self._in_flight.append(_Sent(group, frame, now))
            yield encode(frame)

    @property
    def oldest(self) -> Frame | None:
        """The oldest frame that was sent and is not confirmed; its sequence is its number at the writer."""
        return self._in_flight[0].frame if self._in_flight else None

    def written(self, sequence: int) -> Iterator[FrameGroup]:
        """Groups to confirm, because the frames up to this one are in the topic and count."""
        while self._in_flight and self._in_flight[0].frame.sequence <= sequence:
            sent = self._in_flight.popleft()
            self.confirmed_at = sent.at
            yield sent.group
            self._pressure.leave(sent.group.bytes)

    def end(self) -> list[FrameGroup]:
        """Send nothing more; the groups that are never confirmed."""
        self._ended = True
        groups = [sent.group for sent in self._in_flight] + [group for group, _ in self._ready] + [self.open_group]
        self._in_flight.clear()
        self._ready.clear()
        self.open_group = FrameGroup()
        for group in groups:
            self._pressure.leave(group.bytes)
        return groups


class TopicLog(BaseLog):
    """A log that this instance leads, from its CLAIM on until it is closed or the lease is lost (`LeaseLost`).

    A frame is confirmed once everything before it is known to be ours, or was read: no other CLAIM can be in between. A receipt
    alone is not enough: stock brokers that let two producers in at the same moment may keep both, each with an epoch of its
    own. But a receipt that names the message after the last known one says the same as reading it, without the wait.

    `queue` has its frames. The log sends them at the end of a turn, and reads the news of its writer and its tail.
    """

    def __init__(
        self,
        claimed: ClaimedLog,
        runtime: Runtime,
        lease_seconds: float,
        pressure: Pressure,
        open_logs: OpenLogs[TopicLog],
    ) -> None:
        fold, writer, claimed_at = claimed.fold, claimed.writer, claimed.at
        self._turn = Turn(self._turn_ends)
        self.queue = FrameQueue(pressure, writer.epoch, self._turn, claimed_at)
        super().__init__(self.queue, fold.name, fold.ledger_id, writer.epoch, fold.first_entry, fold.next_entry or 0)
        self.finished_snapshot = 0 if fold.snapshot is None else fold.snapshot.number
        self.max_entry_bytes = writer.max_message_size - HEADER_BYTES - RECORD_BYTES - _SEND_OVERHEAD_BYTES
        self._snapshots = fold.snapshot_number
        self._fold = fold
        self._writer = writer
        self._tail = claimed.tail
        self._subscription = claimed.subscription
        self._runtime = runtime
        self._lease_seconds = lease_seconds
        self._open_logs = open_logs
        self._rewritten_at = 0
        self._trimmed_at = claimed_at
        self._trimming: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._following = asyncio.get_running_loop().create_task(self._follow(claimed.news))
        self._timer = runtime.call_later(lease_seconds / _HEARTBEATS_PER_LEASE, self._heartbeat)

    # ---- the lease

    @property
    def fresh(self) -> bool:
        """True if nobody else can lead this log at this moment, so that the state in memory is the newest.

        False after a lease without a confirmed frame, and while it is not attached to the broker: an answer that follows from
        memory has to wait for a frame then (`refresh`).
        """
        is_in_time = self._runtime.monotonic() < self.queue.confirmed_at + self._lease_seconds
        return is_in_time and self._writer.is_attached and self.closed is None

    def refresh(self) -> Position:
        """Take a position for nothing: once it is confirmed, this instance led until then. Raises LeaseLost, LogClosed."""
        self.check_open()
        self._make_room(0)
        entry, self.next_entry = self.next_entry, self.next_entry + 1
        self.join()
        self.queue.add(Record(Kind.NOTHING, entry, b""), is_new=True)
        return (self.ledger_id, entry)

    def _failed(self, error: LedgerError) -> None:
        """Nothing more is believed; the listener is told."""
        if self.closed is None:
            self.closed = error
            self._end(error)
            self.tell_failed(error)

    def _heartbeat(self) -> None:
        pause = self._lease_seconds / _HEARTBEATS_PER_LEASE
        self._timer = self._runtime.call_later(pause, self._heartbeat)
        if self.queue.unanswered_seconds(self._runtime.monotonic()) > _UNANSWERED_SECONDS:
            self._writer.give_up(f"no answer to a send for {_UNANSWERED_SECONDS:g} s {self._writer.refusal}")
        elif self.queue.newest is None:
            self._rewrite()
            if self._runtime.monotonic() >= self.queue.sent_at + pause / 2:
                self.join()

    # ---- frames

    def _make_room(self, size: int) -> None:
        """Close the open frame if a record of so many bytes would make it too large."""
        if self.queue.is_full_with(size):
            self._close_frame()
            self._turn.ask()

    def _close_frame(self) -> None:
        self.queue.close_frame(self.first_entry, self.next_entry, self.finished_snapshot)

    def _turn_ends(self) -> None:
        self._turn.begun()
        if self.queue.has_room:
            self._close_frame()
            self._send()

    def _send(self) -> None:
        for payload in self.queue.frames_to_send(self._runtime.monotonic()):
            self._writer.send(payload)

    # ---- entries

    def append(self, data: Buffer | Sequence[Buffer], *, reserve: bool = False) -> Position:
        """Append one entry; its position at once. Raises EntryTooLarge, LogClosed, LeaseLost."""
        self.check_open()
        entry_bytes = b"".join(data) if isinstance(data, list | tuple) else bytes(data)  # type: ignore[arg-type] # a Buffer
        self._check_size(len(entry_bytes), "an entry")
        self._make_room(len(entry_bytes))
        entry, self.next_entry = self.next_entry, self.next_entry + 1
        self.join()
        self.queue.add(Record(Kind.ENTRY, 0, entry_bytes), is_new=True)
        return (self.ledger_id, entry)

    def _check_size(self, size: int, what: str) -> None:
        if size > self.max_entry_bytes:
            raise EntryTooLarge(f"{what} of {size} bytes; the brokers' maxMessageSize leaves {self.max_entry_bytes}")

    async def read(self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20) -> list[tuple[Position, bytes]]:
        """Confirmed entries from `start` on."""
        self.check_open()
        found: list[tuple[Position, bytes]] = []
        for entry in range(max(self.entry_of(start), self.first_entry), self.confirmed_entry + 1):
            data = self._fold.entries[entry]
            if data is None:
                continue
            max_bytes -= len(data)
            if found and (len(found) >= max_entries or max_bytes < 0):
                break
            found.append(((self.ledger_id, entry), data))
        return found

    def read_cached(self, position: Position) -> bytes | None:
        """The entry, if it is confirmed and not trimmed."""
        entry = self.entry_of(position)
        return self._fold.entries.get(entry) if self.first_entry <= entry <= self.confirmed_entry else None

    def trim(self, before: Position) -> None:
        """Forget entries before `before`, at most those appended so far."""
        self.check_open()
        entry = min(self.entry_of(before), self.next_entry)
        if entry > self.first_entry:
            self.first_entry = entry
            self.join()

    # ---- snapshots

    def begin_snapshot(self, covers: Position) -> TopicSnapshot:
        """A snapshot whose parts are records of the topic."""
        self._snapshots += 1
        return TopicSnapshot(self, covers, self._snapshots)

    def add_part(self, number: int, part: bytes) -> None:
        """A part of the snapshot `number`."""
        self._check_size(len(part), "a part of a snapshot")
        self._make_room(len(part))
        self.join()
        self.queue.add(Record(Kind.PART, number, part))

    def end_snapshot(self, number: int, covers: int, parts: int) -> None:
        """The snapshot `number` is complete."""
        self._make_room(0)
        self.join()
        self.finished_snapshot = number
        self.queue.add(end_of_snapshot(number, covers, parts))

    def forget_snapshot(self, number: int) -> None:
        """The snapshot `number` is given up."""
        self._fold.forget_snapshot(number)

    async def latest_snapshot(self) -> Snapshot | None:
        """The newest durable snapshot."""
        self.check_open()
        stored = self._fold.snapshot
        return None if stored is None else Snapshot((self.ledger_id, stored.covers), stored.parts)

    # ---- cursors

    async def open_cursor(self, name: str, *, initial: Position | None = None) -> Cursor:
        """Logs in topics have none: StoreUnsupported."""
        raise StoreUnsupported("a log in a topic has no cursors; subscribe to a topic of the cluster instead")

    async def delete_cursor(self, name: str) -> None:
        """There is none."""

    # ---- durability

    async def wait_durable(self) -> None:
        """Wait for the newest group."""
        group = self.queue.newest
        if group is not None:
            await group.waiter()
            self.check_open()

    def readable_bytes(self) -> int:
        """Bytes of readable entries."""
        return self._fold.bytes

    def bytes_in_flight(self) -> int:
        """Bytes of this log appended and not confirmed."""
        return self.queue.bytes_in_flight

    async def close(self) -> None:
        """Let everything become durable, then give the lease to whoever waits. Idempotent.

        Raises LeaseLost when what was appended may not be in the log.
        """
        try:
            if self.closed is None:
                await self.wait_durable()
        finally:
            self.leave()
            if self._leaving is not None:
                await self._leaving

    def leave(self) -> None:
        """Give the lease up without waiting for anything."""
        if self.closed is None:
            self.release()
            self._end(LogClosed(f"log {self._name!r} was closed"))

    def _end(self, error: LedgerError) -> None:
        self._timer.cancel()
        for group in self.queue.end():
            fail(group, error)
        if self._trimming is not None:
            self._trimming.cancel()
        self._open_logs.forget(self)
        self._leaving = asyncio.get_running_loop().create_task(self._leave())

    async def _leave(self) -> None:
        self._following.cancel()
        await self._writer.close()
        await self._tail.close()

    # ---- what the topic holds

    async def _follow(self, news: asyncio.Event) -> None:
        """Look at what comes from the topic, until the log is closed or has failed."""
        try:
            while self.closed is None:
                await news.wait()
                news.clear()
                self._read()
        except LedgerError as error:
            self._failed(error)
        except Exception as error:
            logger.exception("log %r cannot be read any more", self._name)
            self._failed(LogClosed(f"log {self._name!r} cannot be read any more: {type(error).__name__}: {error}"))

    def _read(self) -> None:
        """Look at what has come. Raises LedgerError for what ends the log."""
        writer, tail = self._writer, self._tail
        while (receipt := writer.next_receipt()) is not None:
            self._written(*receipt)
        while (message := tail.next_message()) is not None:
            self._take(*message)
        ended = writer.lost or tail.failure
        if ended is not None:
            raise ended

    def _written(self, number: int, where: Position | None) -> None:
        """A receipt. Where it leaves a gap, or says no place, the tail comes to the frame in its turn.

        A frame that is not the oldest one has counted already: its first copy was read, and this receipt is of the second.
        """
        tail, fold, oldest = self._tail, self._fold, self.queue.oldest
        ledger_id, entry_id = tail.last
        if where == (ledger_id, entry_id + 1) and oldest is not None and number == oldest.sequence:
            tail.skip(where)
            fold.apply(oldest, where, self._writer.name)
            self._confirm(fold.sequence)

    def _take(self, where: Position, producer: str, payload: memoryview) -> None:
        """A message of the topic that is not known yet. Raises as `LogFold.take`."""
        fold = self._fold
        if self.closed is None and fold.take(where, producer, payload):
            if fold.producer != self._writer.name:
                self._writer.give_up(f"{fold.leader} has claimed it, in epoch {fold.epoch}")
            else:
                self._confirm(fold.sequence)

    def _confirm(self, sequence: int) -> None:
        for group in self.queue.written(sequence):
            confirm(group)
        self._turn_ends()
        fold = self._fold
        is_time = self.closed is None and self._trimming is None and self.queue.sent_at >= self._trimmed_at + _TRIM_SECONDS
        if is_time and fold.droppable() >= _TRIM_FRAMES:
            self._trimming = asyncio.get_running_loop().create_task(self._give_back())

    async def _give_back(self) -> None:
        """Tell the broker what nobody needs; what it does not hear is told with the next time."""
        where = self._fold.drop()
        try:
            if where is not None:
                await self._subscription.drop_until(where)
        except PulsarError as error:
            logger.info("log %r: its topic is trimmed later: %s", self._name, error)
        self._trimmed_at = self._runtime.monotonic()
        self._trimming = None

    def _rewrite(self) -> None:
        """Write what is needed once more, when the topic holds much else: so a log that has only heartbeats does not grow."""
        fold = self._fold
        kept = min(fold.frame_count, fold.frames - self._rewritten_at)
        if kept < _REWRITE_FRAMES + fold.live_bytes // _REWRITE_BYTES_PER_FRAME:
            return
        self._rewritten_at = fold.frames
        stored = fold.snapshot
        if stored is not None:
            self._snapshots += 1
            for part in stored.parts:
                self.add_part(self._snapshots, part)
            self.end_snapshot(self._snapshots, stored.covers, len(stored.parts))
        for entry in range(self.first_entry, self.next_entry):
            data = fold.entries[entry]
            self._make_room(len(data or b""))
            self.join()
            self.queue.add(Record(Kind.NOTHING, entry, b"") if data is None else Record(Kind.KEPT, entry, data))


class TopicSnapshot(SnapshotParts):
    """The parts of a snapshot on their way into the topic."""

    def __init__(self, log: TopicLog, covers: Position, number: int) -> None:
        super().__init__(log, covers)
        self._log = log
        self._number = number
        self._parts = 0

    def keep(self, part: bytes) -> None:
        """One more record."""
        self._log.add_part(self._number, part)
        self._parts += 1

    def kept(self) -> None:
        """The record that makes it the newest."""
        self._log.end_snapshot(self._number, self._log.entry_of(self.covers), self._parts)

    def dropped(self) -> None:
        """Its parts need no room in the topic."""
        self._log.forget_snapshot(self._number)
