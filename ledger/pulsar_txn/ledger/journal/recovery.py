"""Recovery: from the bytes of segment files to frames, and from frames to the state. Reads only; `check` uses the same code.

The newest segment says where the newest complete checkpoint begins: mostly in its own first frame, otherwise some
segments before it. All frames from there on are applied (see `Replay`). Older segments give only places of entries, from
their index, or from their frames when they were never sealed.

A scan finds the frames of a segment, of which some may not be readable. A bad frame with nothing valid after it is a torn
tail: it was never confirmed, because a frame is written only after the sync of the one before. A bad frame with a valid
one after it is damage. When its directory still fits, its entries are judged one by one when they are read; otherwise
its logs are unknown, and the store does not start.

The last frame is only readable, which does not mean that it is on the disk: the process before may have ended because
its sync failed, and the kernel calls the pages clean after that. `Recovered.tail` is to be written again before it is
synced and built on. Every frame before it is proven by the one that follows, which was written after its sync.
"""

from __future__ import annotations

import logging
from typing import Final

import attrs

from pulsar_txn.ledger.journal.checkpoint import Replay, RunHead
from pulsar_txn.ledger.journal.files import UNREADABLE
from pulsar_txn.ledger.journal.folder import Finding, FindingKind, of_error
from pulsar_txn.ledger.journal.frame import (
    ALIGNMENT,
    CHECKPOINT,
    CLOSE,
    COMPLETE,
    HEADER,
    REPLAY_FROM,
    RUN,
    SEAL,
    SEGMENT_SIZE,
    SLICED,
    TRAILER,
    FrameHeader,
    aligned,
    decode_records,
    decode_trailer,
    directory_fits,
    encode_trailer,
    frame_fits,
    frame_prefix,
    read_header,
    read_records,
    read_runs,
)
from pulsar_txn.ledger.journal.segments import UNKNOWN_SIZE, OpenSegments, Segment
from pulsar_txn.ledger.journal.state import JournalState, SegmentIndex
from pulsar_txn.ledger.protocols import ReadFailed

_PIECE_BYTES: Final = 1 << 20


@attrs.frozen
class Content:
    """A segment's bytes. `holes` are the ranges (start, end) that cannot be read, ascending; they are zeros in `data`."""

    data: bytes
    holes: list[tuple[int, int]]

    def hole_in(self, start: int, end: int) -> bool:
        """True if something between `start` and `end` cannot be read."""
        return any(hole_start < end and start < hole_end for hole_start, hole_end in self.holes)

    def readable(self, start: int, end: int) -> list[tuple[int, bytes]]:
        """Return what can be read between `start` and `end`: offsets and bytes."""
        pieces: list[tuple[int, bytes]] = []
        for hole_start, hole_end in [*self.holes, (end, end)]:
            if start < min(hole_start, end):
                pieces.append((start, self.data[start : min(hole_start, end)]))
            start = max(start, hole_end)
        return pieces


def read_content(opened: OpenSegments, segment: Segment) -> Content:
    """All of a segment, around what cannot be read. Raises OSError for errors that are not the medium's."""
    if segment.size == UNKNOWN_SIZE:
        return Content(b"", [(0, ALIGNMENT)])
    try:
        return Content(opened.read(segment, segment.size, 0), [])
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    holes: list[tuple[int, int]] = []
    starts = range(0, segment.size, _PIECE_BYTES)
    parts = [_read_around(opened, segment, start, min(start + _PIECE_BYTES, segment.size), holes) for start in starts]
    return Content(b"".join(parts), holes)


def _read_around(opened: OpenSegments, segment: Segment, start: int, end: int, holes: list[tuple[int, int]]) -> bytes:
    """Halves what fails until it is as small as a frame may be."""
    try:
        return opened.read(segment, end - start, start)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    if end - start <= ALIGNMENT:
        if holes and holes[-1][1] == start:
            start_of_hole, _ = holes.pop()
            holes.append((start_of_hole, end))
        else:
            holes.append((start, end))
        return bytes(end - start)
    middle = start + aligned((end - start) // 2)
    first = _read_around(opened, segment, start, middle, holes)
    return first + _read_around(opened, segment, middle, end, holes)


@attrs.frozen
class FoundFrame:
    """A frame whose directory fits; `whole` says whether its data does."""

    offset: int
    header: FrameHeader
    whole: bool


@attrs.frozen
class Damage:
    """Something between the frames, or in one: `unknown` when nobody can say what is lost with it."""

    offset: int
    detail: str
    kind: FindingKind
    unknown: bool = False
    unreadable: bool = False


@attrs.frozen
class Scan:
    """The frames of a segment, where they end, and what is wrong between them.

    `torn`: a frame was begun at the end and is not whole. `writable`: new frames may follow in this segment.
    """

    frames: list[FoundFrame]
    end: int
    damage: list[Damage]
    torn: bool
    writable: bool = True


def scan_segment(content: Content, uuid: bytes, number: int) -> Scan:
    """Walk the frames of a segment."""
    return _Walk(content, uuid, number).scan()


class _Walk:
    """The state of one walk: where it is, which frame came last, what was wrong."""

    def __init__(self, content: Content, uuid: bytes, number: int) -> None:
        self._content = content
        self._view = memoryview(content.data)
        self._uuid = uuid
        self._prefix = frame_prefix(uuid)
        self._number = number
        self._frames: list[FoundFrame] = []
        self._damage: list[Damage] = []
        self._offset = 0
        self._sequence = -1

    def scan(self) -> Scan:
        while True:
            header = read_header(self._view, self._offset, self._uuid, self._number)
            known = header is not None and directory_fits(self._view, self._offset, header)
            if header is not None and known:
                if not self._is_next(header):
                    if (end := self._stray(header)) is not None:
                        return end
                    continue
                if frame_fits(self._view, self._offset, header):
                    self._frames.append(FoundFrame(self._offset, header, whole=True))
                    self._offset, self._sequence = self._offset + aligned(header.length), header.sequence
                    if header.flags & SEAL:
                        return Scan(self._frames, self._offset, self._damage, torn=False)
                    continue
            behind = self._next_frame()
            if behind is None:
                return self._end(header, known=known)
            self._step_over(header if known else None, *behind)

    def _stray(self, header: FrameHeader) -> Scan | None:
        """A whole frame of another place. No crash leaves that: it is on top of what was here. None: on with a later one."""
        behind = self._next_frame()
        if behind is not None:
            self._step_over(None, *behind)
            return None
        detail = f"frame {header.sequence} is where frame {self._sequence + 1} would be: what was here cannot be known"
        self._damage.append(Damage(self._offset, detail, "order", unknown=True))
        return Scan(self._frames, self._offset, self._damage, torn=False, writable=False)

    def _step_over(self, known: FrameHeader | None, behind: int, sequence: int) -> None:
        """A bad frame, or several, with a valid one after."""
        offset = self._offset
        if known is not None:
            self._keep_directory(known)
            offset += aligned(known.length)
        if known is None or sequence != known.sequence + 1:
            unreadable = self._content.hole_in(offset, behind)
            self._damage.append(Damage(offset, UNKNOWN_FRAME, "frame", unknown=True, unreadable=unreadable))
        self._offset, self._sequence = behind, sequence - 1

    def _keep_directory(self, header: FrameHeader) -> None:
        unreadable = self._content.hole_in(self._offset, self._offset + header.length)
        detail = "the data of a frame cannot be read" if unreadable else "the data of a frame does not fit its checksum"
        self._frames.append(FoundFrame(self._offset, header, whole=False))
        self._damage.append(Damage(self._offset, detail, "data", unreadable=unreadable))

    def _end(self, header: FrameHeader | None, *, known: bool) -> Scan:
        """Nothing valid after: a torn tail, or nothing; unless a confirmed frame may lie in what cannot be read."""
        start = self._offset
        length = ALIGNMENT if header is None else header.length
        if header is not None and self._content.hole_in(start, start + length):
            if known and self._is_next(header):
                self._keep_directory(header)
                return Scan(self._frames, start + aligned(length), self._damage, torn=False, writable=False)
            self._damage.append(Damage(start, UNREADABLE_TAIL, "frame", unknown=True, unreadable=True))
        elif self._content.hole_in(start, start + length):
            self._damage.append(Damage(start, UNREADABLE_TAIL, "frame", unknown=True, unreadable=True))
        elif self._content.hole_in(start, len(self._content.data)):
            hole = next(hole for hole in self._content.holes if hole[1] > start)
            self._damage.append(Damage(hole[0], UNREADABLE_REST, "unused", unreadable=True))
        torn = header is not None or self._content.data.startswith(self._prefix, start)
        return Scan(self._frames, start, self._damage, torn, writable=not self._content.hole_in(start, len(self._view)))

    def _is_next(self, header: FrameHeader) -> bool:
        return not self._frames or header.sequence == self._sequence + 1

    def _next_frame(self) -> tuple[int, int] | None:
        """Offset and sequence of the first frame after that is evidence of damage: it fits, and it was written later."""
        find, view = self._content.data.find, self._view
        at = find(self._prefix, self._offset + ALIGNMENT)
        while at >= 0:
            header = read_header(view, at, self._uuid, self._number) if at % ALIGNMENT == 0 else None
            if header is not None and header.sequence > self._sequence + 1 and directory_fits(view, at, header):
                return at, header.sequence
            at = find(self._prefix, at + 1)
        return None


UNKNOWN_FRAME: Final = "a frame is unreadable and valid ones follow: what it held cannot be known"
UNREADABLE_TAIL: Final = "the place of the next frame cannot be read: whether a confirmed one is there cannot be known"
UNREADABLE_REST: Final = "a part where nothing was written cannot be read; no more is written to this segment"


logger = logging.getLogger(__name__)


@attrs.define
class Recovered:
    """Place where the writer goes on: in segment `number` at `offset`, or in a new one when `sealed` (or number -1).

    `tail` is the last frame (and a sealed segment's trailer), by offset: to be written again before it is synced.
    """

    state: JournalState
    number: int = -1
    offset: int = 0
    sequence: int = 0
    sealed: bool = True
    index: SegmentIndex = attrs.field(factory=SegmentIndex)
    tail: list[tuple[int, bytes]] = attrs.field(factory=list)
    replay_from: int = -1
    """The segment with which the checkpoint begins that the state comes from."""
    unneeded: list[int] = attrs.field(factory=list)
    findings: list[Finding] = attrs.field(factory=list)
    not_known: list[int] = attrs.field(factory=list)
    """Older segments of which some runs are not known: a log that misses entries may have them there."""
    unreadable_runs: bool = False
    """Some runs are not known because a medium could not be read: what is missing may come back."""

    def add_finding(self, finding: Finding) -> None:
        """One more thing that is wrong."""
        self.findings.append(finding)


def recover(opened: OpenSegments, uuid: bytes, *, started: bool, marked: int | None) -> Recovered:
    """Read everything, and say what is wrong in `findings`; a fatal one means that the state cannot be relied on.

    `marked`: the newest segment that was begun, None when the folder does not say (before version 2, or not started).
    Raises OSError for errors that are not the medium's: too many open files, no memory.
    """
    state = JournalState()
    found, replay = Recovered(state), Replay(state)
    segments = opened.segments
    for number in sorted(segments, reverse=True):
        segment = segments[number]
        content = read_content(opened, segment)
        scan = scan_segment(content, uuid, number)
        _add_damage(found, segment, scan, newest=marked is None or number <= marked)
        if scan.frames:
            _Replayed(found, replay, opened, uuid).carry_out(segment, content, scan)
            found.tail = _tail(segment, content, scan.frames[-1], uuid)
            break
        found.unneeded.append(number)
    if marked is not None and found.number < marked:
        state_of = "holds no valid frame" if marked in segments else "is missing"
        detail = f"segment {marked} was begun and {state_of}: what was confirmed in it is lost"
        found.add_finding(Finding(None, None, detail, "segment", marked, fatal=True))
    elif found.number < 0 and started:
        found.add_finding(Finding(None, None, "no segment begins with a valid checkpoint", "checkpoint", fatal=True))
    _add_older(found, replay, opened, uuid)
    replay.build_indexes(unreadable=found.unreadable_runs)
    damaged = [log.damage for log in state.logs.values() if log.damage is not None]
    for damage in damaged:
        found.add_finding(of_error(damage, "log"))
    if damaged:  # nothing may seem to be needed there, and everything that is missing may be there
        for number in found.not_known:
            state.usage.segment(number).pin()
    for finding in found.findings:
        logger.error("%s", finding.detail)
    return found


def _add_damage(found: Recovered, segment: Segment, scan: Scan, *, newest: bool) -> None:
    """Findings of what is wrong between a segment's frames; what cannot be known of the newest one is fatal."""
    for each in scan.damage:
        _add_finding(found, segment, each, fatal=newest and each.unknown)


def _add_finding(found: Recovered, segment: Segment, each: Damage, *, fatal: bool) -> None:
    detail = f"{segment.path} at offset {each.offset}: {each.detail}"
    place = (segment.number, each.offset)
    found.add_finding(Finding(None, None, detail, each.kind, *place, unreadable=each.unreadable, fatal=fatal))
    found.unreadable_runs |= each.unreadable and each.unknown


def _replay_from(newest: Segment, content: Content, scan: Scan) -> int:
    """The segment with which the newest complete checkpoint begins; ValueError when nobody says so."""
    first = scan.frames[0]
    if first.offset:
        raise ValueError("its first frame is unreadable and valid frames follow")
    start = -1
    for frame in scan.frames:
        if frame is first and frame.header.flags & CHECKPOINT and not frame.header.flags & SLICED:
            start = newest.number
        elif frame is first or frame.header.flags & COMPLETE:
            start = _said(content, frame, REPLAY_FROM)
    if not 0 <= start <= newest.number:
        raise ValueError("it does not say where its checkpoint begins")
    return start


def _said(content: Content, frame: FoundFrame, wanted: int) -> int:
    """The number in the first record of a kind; -1 if absent. ValueError when the records are invalid."""
    for kind, number, _, _ in decode_records(_records(memoryview(content.data), frame)):
        if kind == wanted:
            return number
    return -1


class _Replayed:
    """The segments from the checkpoint's on: their frames applied in order, their indexes kept for later."""

    def __init__(self, found: Recovered, replay: Replay, opened: OpenSegments, uuid: bytes) -> None:
        self._found = found
        self._replay = replay
        self._opened = opened
        self._uuid = uuid
        self._sequence = -1
        self._indexes: dict[int, SegmentIndex] = {}

    def carry_out(self, newest: Segment, content: Content, scan: Scan) -> None:
        """All of it. What is wrong is a fatal finding: the state cannot be relied on."""
        found = self._found
        found.number, found.offset = newest.number, scan.end
        found.sealed = not scan.writable or bool(scan.frames[-1].header.flags & SEAL)
        try:
            found.replay_from = _replay_from(newest, content, scan)
            self._check_size(newest, content, scan)
        except (ValueError, LookupError) as error:
            self._fatal("checkpoint", newest, 0, str(error))
            found.replay_from = newest.number
        for number in range(found.replay_from, newest.number):
            self._older(number, newest)
        self._apply(newest, content, scan)
        found.index, found.sequence = self._indexes[newest.number], self._sequence + 1
        if scan.torn:
            logger.warning("%s: dropped a torn frame at offset %d; it was never confirmed", newest.path, scan.end)
        try:
            self._replay.check_complete()
        except ValueError as error:
            self._fatal("checkpoint", newest, 0, str(error))
        usage = found.state.usage
        usage.replay_begins(found.replay_from)
        for number, index in self._indexes.items():
            use = usage.segment(number)
            if number < newest.number or found.sealed:
                use.seal()
            self._replay.add_segment(number, index)

    def _check_size(self, newest: Segment, content: Content, scan: Scan) -> None:
        """A file that lost its end may have lost frames with it, unless the store was closed, or the segment sealed."""
        size = _said(content, scan.frames[0], SEGMENT_SIZE)
        if newest.size < size and not scan.frames[-1].header.flags & (SEAL | CLOSE):
            self._fatal("segment", newest, newest.size, f"the file ends here, it had {size} bytes")

    def _older(self, number: int, newest: Segment) -> None:
        segment = self._opened.segments.get(number)
        if segment is None:
            detail = f"segment {number} is missing; it has the checkpoint that {newest.path} relies on"
            self._found.add_finding(Finding(None, None, detail, "segment", number, fatal=True))
            return
        content = read_content(self._opened, segment)
        scan = scan_segment(content, self._uuid, number)
        sealed = bool(scan.frames) and bool(scan.frames[-1].header.flags & SEAL)
        for each in scan.damage:
            at_the_end = each.offset == scan.end and bool(scan.frames)
            _add_finding(self._found, segment, each, fatal=each.unknown and not at_the_end)
        if not scan.frames or scan.frames[0].offset:
            self._fatal("segment", segment, scan.end, "frames are missing, and the checkpoint relies on them")
        if scan.frames:
            self._apply(segment, content, scan)
            if not sealed:  # only the index may be missing: the first frame of the next segment shows it by its number
                self._sequence += 1

    def _apply(self, segment: Segment, content: Content, scan: Scan) -> None:
        view, index = memoryview(content.data), SegmentIndex()
        self._indexes[segment.number] = index
        if 0 <= self._sequence != scan.frames[0].header.sequence - 1:
            detail = f"frame {scan.frames[0].header.sequence} follows frame {self._sequence} of the segment before"
            self._fatal("order", segment, 0, detail)
        for frame in scan.frames:
            if not frame.header.flags & SEAL:
                runs = _add_runs(index, view, frame)
                try:
                    self._replay.apply(runs, _records(view, frame))
                except (ValueError, LookupError) as error:
                    self._fatal("records", segment, frame.offset, f"its records make no sense: {error}")
        self._sequence = scan.frames[-1].header.sequence

    def _fatal(self, kind: FindingKind, segment: Segment, offset: int, detail: str) -> None:
        text = f"{segment.path} at offset {offset}: {detail}"
        self._found.add_finding(Finding(None, None, text, kind, segment.number, offset, fatal=True))


def _tail(segment: Segment, content: Content, last: FoundFrame, uuid: bytes) -> list[tuple[int, bytes]]:
    """Return what nothing proves to be on the disk: the last frame, and the trailer that goes with a SEAL."""
    end, trailer_at = last.offset + last.header.length, segment.size - TRAILER.size
    tail = content.readable(last.offset, end)
    if last.header.flags & SEAL and end <= trailer_at:
        tail.append((trailer_at, encode_trailer(uuid, segment.number, last.offset)))
    return tail


def _add_runs(index: SegmentIndex, view: memoryview, frame: FoundFrame) -> list[RunHead]:
    """Put a frame's runs into the index of its segment; what of them counts."""
    offset, runs, add = frame.offset + HEADER.size, [], index.add
    for ledger_id, first, count, kind, _, _, size in read_runs(view, frame.offset, frame.header):
        add(ledger_id, first, count, kind, offset, size)
        runs.append((ledger_id, first, count, kind))
        offset += RUN.size
    return runs


def _records(view: memoryview, frame: FoundFrame) -> memoryview:
    """The records of a frame."""
    entries = sum(run[2] for run in read_runs(view, frame.offset, frame.header))
    return read_records(view, frame.offset, frame.header, entries)


def _add_older(found: Recovered, replay: Replay, opened: OpenSegments, uuid: bytes) -> None:
    """Places of entries in the segments before the checkpoint's; segments nobody needs; segments that are missing."""
    state, segments = found.state, opened.segments
    for number in sorted(segments):
        if number >= found.replay_from:
            continue
        if number not in replay.live_segments:
            found.unneeded.append(number)
            continue
        segment = segments[number]
        index = read_index(opened, segment, uuid)
        if index is None:
            index = _scan_old(found, opened, segment, uuid)
        state.usage.segment(number).seal()
        replay.add_segment(number, index)
    for number in sorted(replay.live_segments - set(segments)):
        found.add_finding(Finding(None, None, f"segment {number} is missing", "segment", number))


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
    found.add_finding(Finding(None, None, detail, "index", segment.number))
    _add_damage(found, segment, scan, newest=False)
    if scan.damage or not scan.frames:
        found.not_known.append(segment.number)
    return index


def index_of(opened: OpenSegments, number: int, uuid: bytes) -> SegmentIndex:
    """The runs of a segment that is to be copied. Raises ReadFailed when some are not known."""
    segment = opened.segments[number]
    try:
        index = read_index(opened, segment, uuid)
        if index is not None:
            return index
        index, scan = scan_runs(opened, segment, uuid)
    except OSError as error:
        raise ReadFailed(segment.path, None, str(error)) from error
    if any(damage.unknown for damage in scan.damage):
        raise ReadFailed(segment.path, None, "some of its frames are not known")
    return index
