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
from typing import Final

import attrs

from pulsar_txn.ledger.journal.frame import (
    ALIGNMENT,
    CHECKPOINT,
    HEADER,
    RUN,
    SEAL,
    TRAILER,
    FrameHeader,
    aligned,
    decode_trailer,
    directory_fits,
    encode_trailer,
    frame_fits,
    frame_prefix,
    read_header,
    read_records,
    read_runs,
)
from pulsar_txn.ledger.journal.index import SegmentIndex
from pulsar_txn.ledger.journal.segments import OpenSegments, Segment
from pulsar_txn.ledger.journal.state import JournalState
from pulsar_txn.ledger.protocols import LogDamaged

logger = logging.getLogger(__name__)


@attrs.frozen
class FoundFrame:
    """A frame whose directory fits; `whole` says whether its data does."""

    offset: int
    header: FrameHeader
    whole: bool


@attrs.frozen
class Scan:
    """The frames of a segment, where they end, and what is wrong between them."""

    frames: list[FoundFrame]
    end: int
    damage: list[tuple[int, str]]
    torn: bool


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
    findings: list[str] = attrs.field(factory=list)


def scan_segment(data: bytes, uuid: bytes, number: int) -> Scan:
    """Walk the frames of a segment's bytes."""
    view, prefix = memoryview(data), frame_prefix(uuid)
    frames: list[FoundFrame] = []
    damage: list[tuple[int, str]] = []
    offset, sequence = 0, -1
    while True:
        header = read_header(view, offset, uuid, number)
        known = header is not None and directory_fits(view, offset, header)
        whole = known and header is not None and frame_fits(view, offset, header)
        if header is not None and whole:
            if frames and header.sequence != sequence + 1:
                damage.append((offset, f"frame {header.sequence} follows frame {sequence}"))
            frames.append(FoundFrame(offset, header, whole=True))
            offset, sequence = offset + aligned(header.length), header.sequence
            continue
        behind = _next_frame(data, view, prefix, (offset, number), uuid, sequence)
        if behind is None:
            torn = header is not None or data.startswith(prefix, offset)
            return Scan(frames, offset, damage, torn)
        if header is not None and known:
            frames.append(FoundFrame(offset, header, whole=False))
            damage.append((offset, "the data of a frame does not fit its checksum"))
            sequence = header.sequence
        else:
            damage.append((offset, UNKNOWN_FRAME))
            sequence = -1 if not frames else sequence + 1
        offset = behind


UNKNOWN_FRAME: Final = "a frame is unreadable and valid ones follow: what it held cannot be known"


def _next_frame(data: bytes, view: memoryview, prefix: bytes, place: tuple[int, int], uuid: bytes, sequence: int) -> int | None:
    """The offset of the first frame behind `place` that is evidence of damage: it fits, and it was written later."""
    offset, number = place
    at = data.find(prefix, offset + ALIGNMENT)
    while at >= 0:
        header = read_header(view, at, uuid, number) if at % ALIGNMENT == 0 else None
        if header is not None and header.sequence > sequence + 1 and directory_fits(view, at, header):
            return at
        at = data.find(prefix, at + 1)
    return None


def recover(opened: OpenSegments, uuid: bytes, *, started: bool) -> Recovered:
    """Read everything. Raises LogDamaged when what all logs share is damaged; damage of single logs is in the state."""
    state = JournalState()
    found = Recovered(state)
    segments = opened.segments
    for number in sorted(segments, reverse=True):
        segment = segments[number]
        data = opened.read(segment, segment.size, 0)
        scan = scan_segment(data, uuid, number)
        if scan.frames:
            _apply_newest(found, segment, data, scan)
            found.tail = _tail(segment, data, scan.frames[-1], uuid)
            break
        found.unneeded.append(number)
    if found.number < 0 and started:
        raise LogDamaged("(the whole journal)", None, "no segment begins with a valid checkpoint")
    _add_older(found, opened, uuid)
    state.build_indexes()
    for log in state.logs.values():
        if log.damage is not None:
            found.findings.append(str(log.damage))
    for finding in found.findings:
        logger.error("%s", finding)
    return found


def _apply_newest(found: Recovered, segment: Segment, data: bytes, scan: Scan) -> None:
    """The newest segment's checkpoint and everything behind it."""
    first = scan.frames[0]
    if first.offset or not first.header.flags & CHECKPOINT:
        raise LogDamaged(segment.path, None, "its checkpoint is unreadable and valid frames follow")
    view = memoryview(data)
    for offset, detail in scan.damage:
        if detail == UNKNOWN_FRAME:
            raise LogDamaged(segment.path, None, f"at offset {offset} {detail}")
        found.findings.append(f"{segment.path} at offset {offset}: {detail}")
    for frame in scan.frames:
        found.sequence = frame.header.sequence + 1
        if not frame.header.flags & SEAL:
            runs, entries = _add_runs(found.index, view, frame)
            records = read_records(view, frame.offset, frame.header, entries)
            try:
                found.state.apply(frame.header.flags, runs, records)
            except (ValueError, LookupError) as error:
                raise LogDamaged(segment.path, None, f"records at offset {frame.offset}: {error}") from error
    if scan.torn:
        logger.warning("%s: dropped a torn frame at offset %d; it was never confirmed", segment.path, scan.end)
    found.number, found.offset = segment.number, scan.end
    found.sealed = bool(scan.frames[-1].header.flags & SEAL)
    found.state.usage.segment(segment.number).sealed = found.sealed
    found.state.add_segment(segment.number, found.index)


def _tail(segment: Segment, data: bytes, last: FoundFrame, uuid: bytes) -> list[tuple[int, bytes]]:
    """What nothing proves to be on the disk: the last frame, and the trailer that goes with a SEAL."""
    end, trailer_at = last.offset + last.header.length, segment.size - TRAILER.size
    tail = [(last.offset, data[last.offset : end])]
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
        index = read_index(opened, segments[number], uuid)
        if index is None:
            index = _scan_old(found, opened, segments[number], uuid)
        state.usage.segment(number).sealed = True
        state.add_segment(number, index)
    missing = sorted(state.live_segments - set(segments))
    if missing:
        found.findings.append(f"segments {missing} are missing")


def read_index(opened: OpenSegments, segment: Segment, uuid: bytes) -> SegmentIndex | None:
    """The runs of a sealed segment, by its index; None when there is no index that fits."""
    trailer = opened.read(segment, TRAILER.size, segment.size - TRAILER.size)
    offset = decode_trailer(trailer, uuid, segment.number)
    if offset is None:
        return None
    data = opened.read(segment, segment.size - offset, offset)
    header = read_header(data, 0, uuid, segment.number)
    if header is None or not header.flags & SEAL or not directory_fits(memoryview(data), 0, header):
        return None
    return SegmentIndex.decode(data[HEADER.size : HEADER.size + header.directory_length])


def scan_runs(opened: OpenSegments, segment: Segment, uuid: bytes) -> tuple[SegmentIndex, Scan]:
    """The runs of a segment, by its frames."""
    data = opened.read(segment, segment.size, 0)
    scan = scan_segment(data, uuid, segment.number)
    view = memoryview(data)
    index = SegmentIndex()
    for frame in scan.frames:
        if not frame.header.flags & SEAL:
            _add_runs(index, view, frame)
    return index, scan


def _scan_old(found: Recovered, opened: OpenSegments, segment: Segment, uuid: bytes) -> SegmentIndex:
    index, scan = scan_runs(opened, segment, uuid)
    for offset, detail in scan.damage:
        found.findings.append(f"{segment.path} at offset {offset}: {detail}")
    return index
