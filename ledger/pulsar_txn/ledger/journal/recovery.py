"""Recovery: from segment files to the state they add up to. Reads only; the same path serves `check`.

The newest segment that begins with a whole checkpoint gives the state; its later frames are applied to that. Older
segments give only places of entries, from their index, or from their frames when they were never sealed.

A bad frame with nothing valid behind it is a torn tail: it was never confirmed, because a frame is written only after
the sync of the one before. A bad frame with a valid one behind it is damage. When its directory still fits, its
entries are judged one by one when they are read; otherwise nobody knows what it held, and the store does not start.

The last frame is only readable, which does not mean that it is on the disk: the process before may have ended because
its sync failed, and the kernel calls the pages clean after that. `Recovered.tail` is to be written again before it is
synced and built on. Every frame before it is proven by the one that follows, which was written after its sync.
"""

from __future__ import annotations

import logging

import attrs

from pulsar_txn.ledger.journal.files import UNREADABLE
from pulsar_txn.ledger.journal.findings import Finding, of_error
from pulsar_txn.ledger.journal.frame import (
    ALIGNMENT,
    CHECKPOINT,
    HEADER,
    RUN,
    SEAL,
    TRAILER,
    decode_trailer,
    directory_fits,
    encode_trailer,
    read_header,
    read_records,
    read_runs,
)
from pulsar_txn.ledger.journal.index import SegmentIndex
from pulsar_txn.ledger.journal.scan import Content, FoundFrame, Scan, read_content, scan_segment
from pulsar_txn.ledger.journal.segments import OpenSegments, Segment
from pulsar_txn.ledger.journal.state import JournalState

logger = logging.getLogger(__name__)


@attrs.define
class Recovered:
    """Where the writer goes on: in segment `number` at `offset`, or in a new one when `sealed` (or number -1).

    `tail` is the last frame (and a sealed segment's trailer), by offset: to be written again before it is synced.
    """

    state: JournalState
    number: int = -1
    offset: int = 0
    sequence: int = 0
    sealed: bool = True
    index: SegmentIndex = attrs.field(factory=SegmentIndex)
    tail: list[tuple[int, bytes]] = attrs.field(factory=list)
    unneeded: list[int] = attrs.field(factory=list)
    findings: list[Finding] = attrs.field(factory=list)
    unreadable_runs: bool = False
    """Some runs are not known because a medium could not be read: what is missing may come back."""


def recover(opened: OpenSegments, uuid: bytes, *, started: bool, marked: int | None) -> Recovered:
    """Read everything, and say what is wrong in `findings`; a fatal one means that the state cannot be relied on.

    `marked`: the newest segment that was begun, None when the folder does not say (before version 2, or not started).
    Raises OSError for errors that are not the medium's: too many open files, no memory.
    """
    state = JournalState()
    found = Recovered(state)
    segments = opened.segments
    for number in sorted(segments, reverse=True):
        segment = segments[number]
        content = read_content(opened, segment)
        scan = scan_segment(content, uuid, number)
        _add_damage(found, segment, scan, newest=marked is None or number <= marked)
        if scan.frames:
            _apply_newest(found, segment, content, scan)
            found.tail = _tail(segment, content, scan.frames[-1], uuid)
            break
        found.unneeded.append(number)
    if marked is not None and found.number < marked:
        state_of = "holds no valid frame" if marked in segments else "is missing"
        detail = f"segment {marked} was begun and {state_of}: what was confirmed in it is lost"
        found.findings.append(Finding(None, None, detail, "segment", marked, fatal=True))
    elif found.number < 0 and started:
        found.findings.append(Finding(None, None, "no segment begins with a valid checkpoint", "checkpoint", fatal=True))
    _add_older(found, opened, uuid)
    state.build_indexes(unreadable=found.unreadable_runs)
    found.findings += [of_error(log.damage, "log") for log in state.logs.values() if log.damage is not None]
    for finding in found.findings:
        logger.error("%s", finding.detail)
    return found


def _add_damage(found: Recovered, segment: Segment, scan: Scan, *, newest: bool) -> None:
    """Findings of what is wrong between a segment's frames; what cannot be known of the newest one is fatal."""
    for each in scan.damage:
        fatal = newest and each.unknown
        detail = f"{segment.path} at offset {each.offset}: {each.detail}"
        place = (segment.number, each.offset)
        found.findings.append(Finding(None, None, detail, each.kind, *place, unreadable=each.unreadable, fatal=fatal))
        found.unreadable_runs |= each.unreadable and each.unknown


def _apply_newest(found: Recovered, segment: Segment, content: Content, scan: Scan) -> None:
    """The newest segment's checkpoint and everything behind it."""
    first = scan.frames[0]
    if first.offset or not first.header.flags & CHECKPOINT:
        detail = f"{segment.path}: its checkpoint is unreadable and valid frames follow"
        found.findings.append(Finding(None, None, detail, "checkpoint", segment.number, 0, fatal=True))
    view = memoryview(content.data)
    for frame in scan.frames:
        found.sequence = frame.header.sequence + 1
        if not frame.header.flags & SEAL:
            runs, entries = _add_runs(found.index, view, frame)
            records = read_records(view, frame.offset, frame.header, entries)
            try:
                found.state.apply(frame.header.flags, runs, records)
            except (ValueError, LookupError) as error:
                detail = f"{segment.path} at offset {frame.offset}: its records make no sense: {error}"
                found.findings.append(Finding(None, None, detail, "records", segment.number, frame.offset, fatal=True))
    if scan.torn:
        logger.warning("%s: dropped a torn frame at offset %d; it was never confirmed", segment.path, scan.end)
    found.number, found.offset = segment.number, scan.end
    found.sealed = not scan.writable or bool(scan.frames[-1].header.flags & SEAL)
    found.state.usage.segment(segment.number).sealed = found.sealed
    found.state.add_segment(segment.number, found.index)


def _tail(segment: Segment, content: Content, last: FoundFrame, uuid: bytes) -> list[tuple[int, bytes]]:
    """What nothing proves to be on the disk: the last frame, and the trailer that goes with a SEAL."""
    end, trailer_at = last.offset + last.header.length, segment.size - TRAILER.size
    tail = content.readable(last.offset, end)
    if last.header.flags & SEAL and end <= trailer_at:
        tail.append((trailer_at, encode_trailer(uuid, segment.number, last.offset)))
    return tail


def _add_runs(index: SegmentIndex, view: memoryview, frame: FoundFrame) -> tuple[list[tuple[int, int, int, int]], int]:
    """Put a frame's runs into the index of its segment; what of them counts, and their entries together."""
    offset, entries, runs, add = frame.offset + HEADER.size, 0, [], index.add
    for ledger_id, first, count, kind, _, _, size in read_runs(view, frame.offset, frame.header):
        add(ledger_id, first, count, kind, offset, size)
        runs.append((ledger_id, first, count, kind))
        offset += RUN.size
        entries += count
    return runs, entries


def _add_older(found: Recovered, opened: OpenSegments, uuid: bytes) -> None:
    """Places of entries in the segments before the newest; segments nobody needs; segments that are missing."""
    state, segments = found.state, opened.segments
    for number in sorted(segments):
        if number >= found.number:
            continue
        if number not in state.live_segments:
            found.unneeded.append(number)
            continue
        segment = segments[number]
        index = read_index(opened, segment, uuid)
        if index is None:
            index = _scan_old(found, opened, segment, uuid)
        state.usage.segment(number).sealed = True
        state.add_segment(number, index)
    for number in sorted(state.live_segments - set(segments)):
        found.findings.append(Finding(None, None, f"segment {number} is missing", "segment", number))


def read_index(opened: OpenSegments, segment: Segment, uuid: bytes) -> SegmentIndex | None:
    """The runs of a sealed segment, by its index; None when there is no index that fits, or it cannot be read."""
    try:
        return _read_index(opened, segment, uuid)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
        return None


def _read_index(opened: OpenSegments, segment: Segment, uuid: bytes) -> SegmentIndex | None:
    if segment.size < ALIGNMENT:
        return None
    offset = decode_trailer(opened.read(segment, TRAILER.size, segment.size - TRAILER.size), uuid, segment.number)
    if offset is None or not offset < segment.size - TRAILER.size:
        return None
    data = opened.read(segment, segment.size - offset, offset)
    header = read_header(data, 0, uuid, segment.number)
    if header is None or not header.flags & SEAL or not directory_fits(memoryview(data), 0, header):
        return None
    return SegmentIndex.decode(data[HEADER.size : HEADER.size + header.directory_length])


def scan_runs(opened: OpenSegments, segment: Segment, uuid: bytes) -> tuple[SegmentIndex, Scan]:
    """The runs of a segment, by its frames."""
    content = read_content(opened, segment)
    scan = scan_segment(content, uuid, segment.number)
    view = memoryview(content.data)
    index = SegmentIndex()
    for frame in scan.frames:
        if not frame.header.flags & SEAL:
            _add_runs(index, view, frame)
    return index, scan


def _scan_old(found: Recovered, opened: OpenSegments, segment: Segment, uuid: bytes) -> SegmentIndex:
    index, scan = scan_runs(opened, segment, uuid)
    detail = f"{segment.path}: its index or its trailer is unreadable; its frames were read instead"
    found.findings.append(Finding(None, None, detail, "index", segment.number))
    _add_damage(found, segment, scan, newest=False)
    return index
