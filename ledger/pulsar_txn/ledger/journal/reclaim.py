"""Getting room back: segments nobody needs are recycled, segments that few need are copied forward.

A segment goes in two steps, so that a crash between them leaves it, or a file nobody names: a record says that it is
gone; once that is durable, the file becomes a spare. Copies carry the checksums of the originals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from pulsar_txn.ledger.journal.frame import COPY, SEGMENT_GONE, SNAPSHOT, Run, encode_record
from pulsar_txn.ledger.journal.recovery import index_of
from pulsar_txn.ledger.journal.segments import OpenSegments, RunReader
from pulsar_txn.ledger.journal.state import JournalState, LogState, SegmentUse, StoredSnapshot, location
from pulsar_txn.ledger.journal.writer import Deleted, Finished, JournalWriter, Trimmed, Unneeded
from pulsar_txn.ledger.protocols import LedgerError, LogDamaged, ReadFailed

logger = logging.getLogger(__name__)

MAX_SPACE_FACTOR: Final = 2
SLACK_SEGMENTS: Final = 2
"""Segments take at most so many times what is needed of them and a checkpoint takes, and so many segments more.

The segment that is copied is the emptiest, so less than half of it is needed: each byte written frees one at least.
"""

COPY_SLICE_BYTES: Final = 256 << 10

RUN_OVERHEAD_BYTES: Final = 128
"""Of a run in a frame, in the index and in memory: runs of no bytes must not add up to a group that fits no segment."""


class Reclaimer:
    """Watches trims, deletions and new snapshots."""

    def __init__(
        self,
        state: JournalState,
        writer: JournalWriter,
        reader: RunReader,
        opened: OpenSegments,
        uuid: bytes,
        segment_bytes: int,
    ) -> None:
        self._state = state
        self._writer = writer
        self._reader = reader
        self._opened = opened
        self._uuid = uuid
        self._segment_bytes = segment_bytes
        self._copying: asyncio.Task[None] | None = None
        self._horizon = 0
        """Only segments before it are copied: those that were there when something was last given up.

        Copying fills segments, and segments begin checkpoints that are soon not needed any more; without this bound copying
        could keep itself going for ever.
        """

    def confirmed(self, change: Trimmed | Finished | Deleted) -> None:
        """A change that gives room back is durable."""
        log, usage = change.log, self._state.usage
        if isinstance(change, Trimmed):
            log.index.trim(change.first_entry)
            usage.trim(log.ledger_id, change.first_entry)
        elif isinstance(change, Finished):
            log.finished(change.snapshot, usage)
        else:
            log.index.clear()
            usage.forget_log(log.ledger_id)
            log.forget_snapshots(usage)
        self._given_up()

    def abandon(self, log: LogState, stored: StoredSnapshot) -> None:
        """A snapshot will not be finished."""
        if log.abandon(stored, self._state.usage):
            self._given_up()

    def begin(self) -> None:
        """The store was started."""
        self._given_up()

    def _given_up(self) -> None:
        self._horizon = self._writer.planned_segment
        self.look()

    def look(self) -> None:
        """Drop what is empty; begin to copy what is nearly empty."""
        replay_from = self._state.usage.replay_from
        for use in list(self._state.usage.segments.values()):
            if use.sealed and use.empty and use.number < replay_from:
                self._drop(use.number)
        if self._copying is None and (use_to_copy := self._candidate()) is not None:
            self._copying = asyncio.get_running_loop().create_task(self._copy_forward(use_to_copy))
            self._copying.add_done_callback(self._copied)

    async def close(self) -> None:
        """Stop copying; what was copied is a second copy and does no harm."""
        if self._copying is not None:
            self._copying.cancel()
            await asyncio.gather(self._copying, return_exceptions=True)

    def _drop(self, number: int) -> None:
        self._state.usage.drop(number)
        record = encode_record(SEGMENT_GONE, number)
        self._reader.forget(number)
        group = self._writer.join(len(record))
        group.add_record(record)
        group.change(Unneeded(number))
        self._writer.wake()

    def _candidate(self) -> SegmentUse | None:
        """The segment to copy next, None while the space is within its bound; what recovery replays is not touched."""
        usage = self._state.usage
        sealed = [use for use in usage.segments.values() if use.sealed and not use.pinned]
        full = [use for use in sealed if use.number < usage.replay_from]
        needed = sum(use.bytes for use in full) + self._writer.checkpoint_bytes
        if (len(full) - SLACK_SEGMENTS) * self._segment_bytes <= MAX_SPACE_FACTOR * needed:
            return None
        return min((use for use in full if use.number < self._horizon), key=lambda use: use.bytes, default=None)

    def _copied(self, task: asyncio.Task[None]) -> None:
        self._copying = None
        if not task.cancelled() and task.exception() is None:
            self.look()

    async def _copy_forward(self, use: SegmentUse) -> None:
        """Copy the needed runs of a segment into the open groups, a slice at a time, then drop it."""
        logger.info("copying %d bytes out of segment %d", use.bytes, use.number)
        copied = 0
        try:
            for run in self._copies(use):
                cost = run.bytes + RUN_OVERHEAD_BYTES + 8 * run.count
                self._writer.join(cost).add_run(run)
                copied += cost
                if copied >= COPY_SLICE_BYTES:
                    copied = 0
                    await self._writer.wait_durable()
            if copied:
                await self._writer.wait_durable()
        except (LogDamaged, ReadFailed) as error:
            use.pin()
            text = "segment %d of the journal cannot be reclaimed and is kept: %s; run `pulsar-txn check`"
            logger.error(text, use.number, error)  # noqa: TRY400 - the error says it all
        except LedgerError:
            use.pin()  # the store failed and has said so
        else:
            if self._state.usage.segments.get(use.number) is not use:
                return  # the last that needed it went while it was being copied, and it was dropped then
            for ledger_id in list(use.logs):
                self._state.usage.remove_log_from(use.number, ledger_id)
            self._drop(use.number)

    def _copies(self, use: SegmentUse) -> Iterator[Run]:
        """The runs to write; whether somebody still needs one is asked when its turn comes."""
        for section in index_of(self._opened, use.number, self._uuid).sections:
            for first, end, offset in section.runs():
                log = self._state.logs.get(section.ledger_id)
                old = location(use.number, offset)
                if log is not None and self._is_needed(log, section.kind, (first, end), old):
                    yield self._copy_of(log, first, section.kind, old)

    def _copy_of(self, log: LogState, first: int, kind: int, old: int) -> Run:
        opened, data = self._reader.raw(log, first, old, kind)
        run = Run(log, log.ledger_id, first, kind | COPY, old_location=old)
        run.add_all([data], opened.lengths, opened.crcs)
        return run

    def _is_needed(self, log: LogState, kind: int, run: tuple[int, int], old: int) -> bool:
        first, end = run
        if kind & SNAPSHOT:
            stored = log.snapshot_of(first)
            return stored is not None and stored.place(first) == old
        return end > log.first_entry and log.index.holds(first, old)
