"""Reading runs from segments: every entry's checksum is checked, every time."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Final, NamedTuple

from pulsar_txn.ledger.journal.frame import COPY, DATA, RUN, SNAPSHOT, crc_seed, entry_crc, split_run
from pulsar_txn.ledger.journal.index import split_location
from pulsar_txn.ledger.journal.segments import NotAtHand, OpenSegments, Segment
from pulsar_txn.ledger.journal.snapshots import StoredSnapshot
from pulsar_txn.ledger.journal.state import LogState
from pulsar_txn.ledger.protocols import ReadFailed

_FIRST_READ_BYTES: Final = 16 << 10
_LONG_RUN_ENTRIES: Final = 256
_KEPT_ENTRIES: Final = 1 << 18
"""Tables of long runs are kept for the next read, of so many entries together, about 16 bytes each."""


class OpenRun(NamedTuple):
    """A run's header and tables, where its data is, and the data as far as it was read along."""

    entries: int
    lengths: array[int]
    crcs: array[int]
    data_offset: int
    size: int
    segment: Segment
    chunk: bytes
    chunk_offset: int
    ends: array[int] | None = None
    """Of a long run: where each entry ends, counted from the first."""

    def start_of(self, number: int) -> int:
        """Return where the entry of this number begins."""
        if self.ends is None:
            return sum(self.lengths[:number])
        return self.ends[number - 1] if number else 0


class RunReader:
    """Reads entries by the location of their run.

    Damage is a LogDamaged naming log and position. Bytes that cannot be read are a ReadFailed, but only for those who
    asked for them: what is read along, to save a call, may fail.
    """

    def __init__(self, opened: OpenSegments) -> None:
        self._opened = opened
        self._long: dict[int, OpenRun] = {}
        """Long runs read lately, by location, the last one last: a reader of one in steps comes again."""
        self._long_entries = 0

    def entries(self, log: LogState, entry: int, upto: int, max_entries: int, max_bytes: int) -> list[bytes]:
        """Entries from `entry` on, of one run, at most up to `upto`; at least one."""
        try:
            first, place = log.index.find(entry)
        except LookupError:
            raise log.missing(entry, "no run of it was found") from None
        run = self._long.get(place) or self._open(log, first, place, DATA, entry)
        if run.entries >= _LONG_RUN_ENTRIES:
            run = self._keep(place, run)
        skip = entry - first
        if skip >= run.entries:
            raise log.missing(entry, f"its run has only {run.entries} entries")
        wanted = min(run.entries - skip, max_entries, upto - entry + 1)
        lengths = run.lengths[skip : skip + wanted]
        fitting = sum(1 for total in accumulate(lengths) if total <= max_bytes)
        lengths = lengths[: max(1, fitting)]
        start = run.start_of(skip)
        try:
            data = self._data(log, run, start, sum(lengths), entry)
        except ReadFailed:
            lengths = lengths[:1]  # perhaps only one after it cannot be read
            data = self._data(log, run, start, sum(lengths), entry)
        return self._split(log, run, data, lengths, skip, entry)

    def entries_at_hand(self, log: LogState, entry: int, upto: int, max_entries: int, max_bytes: int) -> list[bytes] | None:
        """As `entries`, but never waits for the disk: None when something is not in memory. It is being fetched then."""
        self._opened.at_hand_only = True
        try:
            return self.entries(log, entry, upto, max_entries, max_bytes)
        except NotAtHand:
            return None
        finally:
            self._opened.at_hand_only = False

    def forget(self, number: int) -> None:
        """The segment is gone."""
        for place in [place for place in self._long if place >> 32 == number]:
            self._long_entries -= self._long.pop(place).entries

    def _keep(self, place: int, run: OpenRun) -> OpenRun:
        """Keep the tables of a long run; the ones that were not read for longest make room."""
        kept = self._long.pop(place, None)
        if kept is None:
            kept = run._replace(chunk=b"", ends=array("Q", accumulate(run.lengths)))
            self._long_entries += run.entries
        self._long[place] = kept
        while self._long_entries > _KEPT_ENTRIES and len(self._long) > 1:
            self._long_entries -= self._long.pop(next(iter(self._long))).entries
        return kept

    def part(self, log: LogState, stored: StoredSnapshot, serial: int) -> bytes:
        """The bytes of one part of a snapshot of the log."""
        run = self._open(log, serial, stored.place(serial), SNAPSHOT, log.first_entry)
        data = self._data(log, run, 0, run.size, log.first_entry)
        if entry_crc(crc_seed(log.ledger_id, SNAPSHOT), serial, data) != run.crcs[0]:
            raise log.damaged(log.first_entry, f"its snapshot does not fit its checksum{_where(run)}")
        return data

    def raw(self, log: LogState, first: int, place: int, kind: int) -> tuple[OpenRun, bytes]:
        """A whole run as it is, checksums not checked, to be copied: wrong entries stay wrong."""
        run = self._open(log, first, place, kind, first)
        return run, self._data(log, run, 0, run.size, first)

    def _open(self, log: LogState, first: int, place: int, kind: int, entry: int) -> OpenRun:
        number, offset = split_location(place)
        segment = self._opened.segments.get(number)
        if segment is None:
            raise log.damaged(entry, f"segment {number} is missing")
        chunk = self._read_along(log, segment, offset, entry)
        if len(chunk) >= RUN.size:
            ledger_id, found_first, count, found_kind, table_at, data_at, size = RUN.unpack_from(chunk)
            fits = (ledger_id, found_first, found_kind & ~COPY) == (log.ledger_id, first, kind & ~COPY)
            tables_end = table_at + 8 * count
            if fits and offset + data_at + size <= segment.size and tables_end <= data_at:
                if tables_end <= len(chunk):
                    tables = chunk[table_at:tables_end]
                else:
                    tables = self._read(log, segment, 8 * count, offset + table_at, entry)
                lengths, crcs = split_run(tables, count)
                if sum(lengths) == size:
                    return OpenRun(count, lengths, crcs, offset + data_at, size, segment, chunk, offset)
        raise log.damaged(entry, f"no run of it in {segment.path} at {offset}")

    def _data(self, log: LogState, run: OpenRun, start: int, size: int, entry: int) -> bytes:
        offset = run.data_offset + start
        skip = offset - run.chunk_offset
        if not size:
            return b""
        if skip + size <= len(run.chunk):
            return run.chunk[skip : skip + size]
        data = self._read(log, run.segment, size, offset, entry)
        if len(data) < size:
            raise log.damaged(entry, f"{run.segment.path} ends at {offset + len(data)}")
        return data

    def _split(self, log: LogState, run: OpenRun, data: bytes, lengths: array[int], skip: int, entry: int) -> list[bytes]:
        seed, at = crc_seed(log.ledger_id, DATA), 0
        found: list[bytes] = []
        for number, length in enumerate(lengths):
            piece = data[at : at + length]
            at += length
            if entry_crc(seed, entry + number, piece) != run.crcs[skip + number]:
                if found:
                    return found  # the good ones first; the next read says what is wrong
                raise log.damaged(entry + number, f"its bytes do not fit their checksum{_where(run)}")
            found.append(piece)
        return found

    def _read_along(self, log: LogState, segment: Segment, offset: int, entry: int) -> bytes:
        """A run's header, and what is after it if that can be read."""
        try:
            return self._opened.read(segment, _FIRST_READ_BYTES, offset)
        except OSError:
            return self._read(log, segment, RUN.size, offset, entry)

    def _read(self, log: LogState, segment: Segment, size: int, offset: int, entry: int) -> bytes:
        try:
            return self._opened.read(segment, size, offset)
        except OSError as error:
            raise ReadFailed(log.name, (log.ledger_id, entry), f"{segment.path} at {offset}: {error.strerror}") from error


def _where(run: OpenRun) -> str:
    return f" ({run.segment.path} at {run.data_offset})"
