"""Host of a topic's transaction buffer: the path of every published entry, and what readers may see.

A plain entry is appended and applied without a Step, so its cost is the log's. `published` is the one number that dispatchers
obey: the newest max_read_position whose cause is durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.txn.hosts import MachineHost
from pulsar_txn.ledger.hosting import Place, Receipt, Registration
from pulsar_txn.ledger.machine import CopyEntries, Effect, Machine, PublishMaxRead
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


class TopicView(Protocol):
    """Topic, as far as the host tells it."""

    def entry_applied(self, header: EntryHeader) -> None:
        """A data entry was appended, or folded in recovery."""

    def receipt(self, producer: Any, sequence_id: int, highest_sequence_id: int, position: Position) -> None:
        """A plain publish is durable."""

    def log_moved(self) -> None:
        """A commit group of the topic's log is durable; `published` may have changed."""

    def verification_ended(self) -> None:
        """Sends that waited for a verification may go on."""

    def snapshot_state(self) -> bytes:
        """State of the topic beside its buffer, as bytes."""

    def restore_state(self, data: bytes) -> None:
        """The inverse."""


class BufferHost(MachineHost[Request, TopicRecord]):
    """One transaction buffer with the topic's log and its own logs."""

    def __init__(
        self,
        machine: TransactionBuffer,
        logs: Mapping[str, Log],
        turn: Turn,
        on_failed: Callable[[Exception], None],
        *,
        topic: TopicView,
        registration: Registration,
    ) -> None:
        super().__init__(machine, logs, turn, on_failed, registration=registration, verified=Verified)
        self.buffer = machine
        self.published: Position = EARLIEST
        self.snapshot_after = SNAPSHOT_AFTER
        """Entries after which a snapshot is taken; what comes after the last one is read again in recovery."""
        self._topic = topic
        self._notes: deque[tuple[Place, Position, Position]] = deque()
        self._noted: Position = EARLIEST
        self._since_snapshot = 0
        self._copies: deque[CopyEntries] = deque()
        self._copier: asyncio.Task[None] | None = None

    # ---- publishing

    def publish(self, entry: bytes, header: EntryHeader, receipt: Receipt) -> None:
        """Append a plain entry; `TopicView.receipt` follows, in order with all other effects.

        Raises LedgerError when the log takes nothing.
        """
        position = self.host.publish(TOPIC, entry, PLAIN, receipt)
        self.applied(TOPIC, position, PLAIN)
        self._topic.entry_applied(header)

    def applied(self, log: str, position: Position, record: TopicRecord) -> None:
        """An entry of the topic, or of a log of the buffer's own."""
        max_read = self.buffer.max_read_position
        if max_read != self._noted:
            self._noted = max_read
            self._notes.append((self.host.places[log], position, max_read))
        self._since_snapshot += 1
        if record is not PLAIN and log in DATA_LOGS and record.header.marker_type is None:
            self._topic.entry_applied(record.header)

    def stored(self, receipt: Receipt, position: Position) -> None:
        """A plain entry is durable."""
        self._topic.receipt(*receipt, position)

    def confirmed(self) -> None:
        """Publish the newest max_read_position whose cause is durable, then tell the topic."""
        notes, newest = self._notes, self.published
        while notes and notes[0][1] <= notes[0][0].confirmed:
            newest = notes.popleft()[2]
        self.published = newest
        self._topic.log_moved()
        if self._since_snapshot >= self.snapshot_after:
            self._take_snapshot_if_due()

    def _take_snapshot_if_due(self) -> None:
        if self._since_snapshot >= self.host.snapshots.last_bytes // _SNAPSHOT_BYTES_PER_ENTRY:
            self._since_snapshot = 0
            self.submit(TakeSnapshot())

    # ---- effects

    def perform(self, effect: Effect) -> None:
        """The effects of a buffer."""
        if type(effect) is PublishMaxRead:
            place = self.host.places[TOPIC]
            self.published = max(self.published, min(effect.position, place.confirmed))
            self._noted = self.buffer.max_read_position
            if self._noted > self.published:
                self._notes.append((place, place.applied, self._noted))
            self._topic.log_moved()
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

    def verification_ended(self, txn_id: Any) -> None:
        """Let sends go on that waited."""
        self._topic.verification_ended()

    # ---- recovery

    def fold(self, machine: Machine[Request, TopicRecord], log: str, position: Position, data: bytes) -> None:
        """Entries of the topic are read by their headers, those of other logs by the buffer."""
        if log != TOPIC:
            record = machine.decode(log, data)
            machine.apply(log, position, record)
            if log in DATA_LOGS:
                self._topic.entry_applied(record.header)
            return
        header = read_header(data)
        plain = header.txn_id is None and header.marker_type is None
        machine.apply(TOPIC, position, PLAIN if plain else TopicRecord(header))
        if header.marker_type is None:
            self._topic.entry_applied(header)

    def _record(self, name: str, data: bytes) -> TopicRecord:
        return TopicRecord(read_header(data), data) if name == TOPIC else self.machine.decode(name, data)

    def snapshot_extra(self) -> bytes:
        """The topic's own part."""
        return self._topic.snapshot_state()

    def restore_extra(self, data: bytes) -> None:
        """The topic's own part."""
        self._topic.restore_state(data)
