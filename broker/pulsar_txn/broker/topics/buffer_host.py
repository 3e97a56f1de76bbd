"""Host of a topic's transaction buffer: the path of every published entry, and what readers may see.

A plain entry is appended and applied without a Step, so its cost is the log's. `published` is the one number that dispatchers
obey: the newest max_read_position whose cause is durable. Who waits for it to move is told at the end of the turn.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any, Final, Protocol

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.txn.hosts import MachineHost, News
from pulsar_txn.ledger.hosting import Place, Receipt, Registration
from pulsar_txn.ledger.machine import CopyEntries, Effect, PublishMaxRead
from pulsar_txn.ledger.protocols import Log
from pulsar_txn.rm_producer.requests import PLAIN, Copied, Request, TakeSnapshot, TopicRecord, TransactionBuffer, Verified
from pulsar_txn.wire.entries import read_header
from pulsar_txn.wire.ids import EARLIEST, EntryHeader, Position

TOPIC: Final = "topic"
DATA_LOGS: Final = frozenset((TOPIC, "half"))
"""Logs with what producers sent: a message counts as sent while it waits for its transaction, too."""

COPIED_AT_ONCE: Final = 256
"""Half messages whose copies are not durable yet."""

SNAPSHOT_AFTER: Final = 10_000
_SNAPSHOT_BYTES_PER_ENTRY: Final = 64
"""Largest part of a snapshot that each published entry pays for."""


class Sequences:
    """Highest sequence id of each producer name, the `limit` names that published last.

    Changed only by `note`, with the header of every data entry that is appended or folded in recovery.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._highest: OrderedDict[str, int] = OrderedDict()

    def note(self, header: EntryHeader) -> None:
        """An entry is in the log."""
        name = header.producer_name
        highest = self._highest
        sequence_id = max(header.highest_sequence_id, header.sequence_id)
        if sequence_id > highest.get(name, -1):
            highest[name] = sequence_id
        if name in highest:
            highest.move_to_end(name)
        if len(highest) > self._limit:
            highest.popitem(last=False)

    def is_duplicate(self, header: EntryHeader, *, is_chunk: bool) -> bool:
        """True if the entry is in the log already. Chunks of one message share a sequence id: only older ones are known."""
        known = self._highest.get(header.producer_name, -1)
        return header.sequence_id < known if is_chunk else header.sequence_id <= known

    def missing(self, header: EntryHeader) -> int | None:
        """The sequence id that should have come before this entry; None when there is no gap, or its producer is not known."""
        known = self._highest.get(header.producer_name)
        return None if known is None or header.sequence_id <= known + 1 else known + 1

    def last(self, name: str) -> int:
        """The highest sequence id of a producer name, -1 when it is not known."""
        return self._highest.get(name, -1)

    def pack(self) -> bytes:
        """For `unpack`."""
        return json.dumps(list(self._highest.items())).encode()

    def unpack(self, data: bytes) -> None:
        """Take over what `pack` gave."""
        self._highest = OrderedDict((name, sequence_id) for name, sequence_id in json.loads(data or b"[]"))


class LogWatcher(Protocol):
    """A part of a topic that wants to know when its log moves."""

    def log_moved(self, *_: object) -> None:
        """A commit group is durable, and `published` may have changed."""


class LogWatchers:
    """Those of one topic that are attentive now. The others cost nothing."""

    __slots__ = ("_watchers",)

    def __init__(self) -> None:
        self._watchers: dict[LogWatcher, None] = {}

    def add(self, watcher: LogWatcher) -> None:
        """Tell this one from now on."""
        self._watchers[watcher] = None

    def discard(self, watcher: LogWatcher) -> None:
        """Tell this one no more."""
        self._watchers.pop(watcher, None)

    def tell(self, turn: Turn) -> None:
        """Tell all of them at the end of the turn."""
        for each in self._watchers:
            turn.answer(each.log_moved, None, None, "")


class BufferHost(MachineHost[Request, TopicRecord]):
    """One transaction buffer with the topic's log and its own logs.

    `watchers` are told when the log has moved. `sequences`: of a topic that deduplicates; stored beside the buffer's snapshots.
    `snapshot_after`: entries after which one is taken; what comes after the last one is read again in recovery.
    """

    def __init__(
        self,
        machine: TransactionBuffer,
        logs: Mapping[str, Log],
        turn: Turn,
        on_news: News,
        *,
        watchers: LogWatchers,
        registration: Registration,
        sequences: Sequences | None = None,
        snapshot_after: int = SNAPSHOT_AFTER,
    ) -> None:
        super().__init__(machine, logs, turn, on_news, registration=registration)
        self.buffer = machine
        self.published: Position = EARLIEST
        self._watchers = watchers
        self._sequences = sequences
        self._snapshot_after = snapshot_after
        self._notes: deque[tuple[Place, Position, Position]] = deque()
        self._noted: Position = EARLIEST
        self._since_snapshot = 0
        self._copies: deque[CopyEntries] = deque()
        self._copier: asyncio.Task[None] | None = None

    # ---- publishing

    def publish_plain(self, entry: bytes, header: EntryHeader, receipt: Receipt) -> None:
        """Append a plain entry; its receipt follows, in order with all other effects.

        Raises LedgerError when the log takes nothing.
        """
        position = self.publish(TOPIC, entry, PLAIN, receipt)
        self.applied(TOPIC, position, PLAIN)
        if self._sequences is not None:
            self._sequences.note(header)

    def applied(self, log: str, position: Position, record: TopicRecord) -> None:
        """An entry of the topic, or of a log of the buffer's own."""
        max_read = self.buffer.max_read_position
        if max_read != self._noted:
            self._noted = max_read
            self._notes.append((self.places[log], position, max_read))
        self._since_snapshot += 1
        if self._sequences is not None and record is not PLAIN and log in DATA_LOGS and record.header.marker_type is None:
            self._sequences.note(record.header)

    def confirmed(self) -> None:
        """Publish the newest max_read_position whose cause is durable, then tell who watches the log."""
        notes, newest = self._notes, self.published
        while notes and notes[0][1] <= notes[0][0].confirmed:
            newest = notes.popleft()[2]
        self.published = newest
        self._watchers.tell(self.turn)
        if self._since_snapshot >= self._snapshot_after:
            self._take_snapshot_if_due()

    def _take_snapshot_if_due(self) -> None:
        if self._since_snapshot >= self.snapshots.last_bytes // _SNAPSHOT_BYTES_PER_ENTRY:
            self._since_snapshot = 0
            self.submit(TakeSnapshot())

    # ---- effects

    def perform(self, effect: Effect) -> None:
        """The effects of a buffer."""
        if type(effect) is PublishMaxRead:
            place = self.places[TOPIC]
            self.published = max(self.published, min(effect.position, place.confirmed))
            self._noted = self.buffer.max_read_position
            if self._noted > self.published:
                self._notes.append((place, place.applied, self._noted))
            self._watchers.tell(self.turn)
        elif type(effect) is CopyEntries:
            self._copies.append(effect)
            if self._copier is None:
                self._copier = asyncio.get_running_loop().create_task(self._copy_all())
        else:
            super().perform(effect)

    async def _copy_all(self) -> None:
        """Make all copies in their order. Not too many are in flight: each few hundred wait until they are durable."""
        count, copies = 0, self._copies
        try:
            while copies:
                effect = copies.popleft()
                log = self.logs[effect.source]
                for position in effect.positions:
                    data = log.read_cached(position)
                    if data is None:
                        ((_, data),) = await log.read(position, max_entries=1)
                    record = self._record(effect.source, data)
                    self.submit(Copied(effect.source, effect.target, position, record, effect.txn_id), reserve=True)
                    count += 1
                    if count % COPIED_AT_ONCE == 0:
                        await self.logs[effect.target].flush()
        except Exception as error:  # noqa: BLE001 - whatever it is, this buffer cannot go on: recovery copies again
            copies.clear()
            self.fail(error)
        finally:
            self._copier = None

    def verified(self, request: Any, registered: bool) -> Request:
        """The request with the coordinator's answer."""
        return Verified(request, registered)

    # ---- recovery

    def fold(self, log: str, position: Position, data: bytes) -> None:
        """Entries of the topic are read by their headers, those of other logs by the buffer."""
        if log != TOPIC:
            record = self.machine.decode(log, data)
            self.machine.apply(log, position, record)
            if self._sequences is not None and log in DATA_LOGS:
                self._sequences.note(record.header)
            return
        header = read_header(data)
        plain = header.txn_id is None and header.marker_type is None
        self.machine.apply(TOPIC, position, PLAIN if plain else TopicRecord(header))
        if self._sequences is not None and header.marker_type is None:
            self._sequences.note(header)

    def _record(self, name: str, data: bytes) -> TopicRecord:
        return TopicRecord(read_header(data), data) if name == TOPIC else self.machine.decode(name, data)

    def snapshot_extra(self) -> bytes:
        """State of deduplication, as bytes."""
        return b"" if self._sequences is None else self._sequences.pack()

    def restore_extra(self, data: bytes) -> None:
        """The inverse."""
        if self._sequences is not None:
            self._sequences.unpack(data)
