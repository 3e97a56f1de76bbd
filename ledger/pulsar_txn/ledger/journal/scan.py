"""The frames of a segment, from its bytes, where some of them may not be readable. Reads only."""

from __future__ import annotations

from typing import Final

import attrs

from pulsar_txn.ledger.journal.files import UNREADABLE
from pulsar_txn.ledger.journal.findings import FindingKind
from pulsar_txn.ledger.journal.frame import (
    ALIGNMENT,
    SEAL,
    FrameHeader,
    aligned,
    directory_fits,
    frame_fits,
    frame_prefix,
    read_header,
)
from pulsar_txn.ledger.journal.segments import UNKNOWN_SIZE, OpenSegments, Segment

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
