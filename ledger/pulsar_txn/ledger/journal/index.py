"""Where entries are: two numbers per run of a log, and per segment how much of it is still needed."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque

from pulsar_txn.ledger.journal.frame import SNAPSHOT, RunPlace


def location(segment: int, offset: int) -> int:
    """A place in the journal as one number."""
    return segment << 32 | offset


def split_location(place: int) -> tuple[int, int]:
    """(segment number, offset) of a location."""
    return place >> 32, place & 0xFFFFFFFF


class LogIndex:
    """First entry and location of each run of a log, ascending, with the log's bytes up to the run."""

    __slots__ = ("_bytes", "_firsts", "_locations", "_upto")

    def __init__(self) -> None:
        self._firsts = array("q")
        self._locations = array("Q")
        self._upto = array("Q")
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, first: int, place: int, size: int) -> None:
        """A run behind all others."""
        self._firsts.append(first)
        self._locations.append(place)
        self._upto.append(self._bytes)
        self._bytes += size

    def find(self, entry: int) -> tuple[int, int]:
        """(first entry, location) of the run that should hold `entry`; the entry must not lie before the first run."""
        at = bisect_right(self._firsts, entry) - 1
        return self._firsts[at], self._locations[at]

    def move(self, first: int, old: int, new: int) -> bool:
        """The run that begins with `first` was copied from `old` to `new`; False when it is not there any more."""
        at = bisect_right(self._firsts, first) - 1
        if at < 0 or self._firsts[at] != first or self._locations[at] != old:
            return False
        self._locations[at] = new
        return True

    def holds(self, first: int, place: int) -> bool:
        """Whether the run that begins with `first` is read from `place`."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and self._firsts[at] == first and self._locations[at] == place

    def bytes_from(self, entry: int) -> int:
        """Bytes of the runs from the one that holds `entry` on."""
        if not self._firsts:
            return 0
        return self._bytes - self._upto[max(0, bisect_right(self._firsts, entry) - 1)]

    def trim(self, first_entry: int) -> None:
        """Forget runs that end before `first_entry`; in large steps, as each step moves the rest."""
        gone = bisect_right(self._firsts, first_entry) - 1
        if gone > 0 and 4 * gone >= len(self._firsts):
            del self._firsts[:gone], self._locations[:gone], self._upto[:gone]

    def clear(self) -> None:
        """Forget everything."""
        del self._firsts[:], self._locations[:], self._upto[:]


class SegmentUse:
    """What a segment holds for whom: per log its last entry and bytes there, per log the bytes of its snapshot."""

    __slots__ = ("bytes", "logs", "number", "pinned", "sealed", "snapshots")

    def __init__(self, number: int) -> None:
        self.number = number
        self.sealed = False
        self.pinned = False
        self.bytes = 0
        self.logs: dict[int, tuple[int, int]] = {}
        self.snapshots: dict[int, int] = {}

    @property
    def empty(self) -> bool:
        """Nothing in the segment is needed."""
        return not self.logs and not self.snapshots and not self.pinned


class Usage:
    """Which segments are needed, by whom. Whole runs and whole segments count, entries do not."""

    def __init__(self) -> None:
        self.segments: dict[int, SegmentUse] = {}
        self._of_log: dict[int, deque[int]] = {}
        self._snapshot_of: dict[int, int] = {}

    def segment(self, number: int) -> SegmentUse:
        """The segment's use; a new one if it was not known."""
        use = self.segments.get(number)
        if use is None:
            use = self.segments[number] = SegmentUse(number)
        return use

    def add(self, number: int, place: RunPlace) -> None:
        """A run (data or snapshot) lies in the segment and is needed."""
        use = self.segment(number)
        if place.kind & SNAPSHOT:
            self.forget_snapshot(place.ledger_id)
            use.snapshots[place.ledger_id] = place.bytes
            use.bytes += place.bytes
            self._snapshot_of[place.ledger_id] = number
            return
        self.add_data(number, place.ledger_id, place.first + place.entries - 1, place.bytes)

    def add_data(self, number: int, ledger_id: int, last: int, size: int) -> None:
        """Entries up to `last` of a log lie in the segment."""
        use = self.segment(number)
        known = use.logs.get(ledger_id)
        if known is None:
            use.logs[ledger_id] = (last, size)
            self._of_log.setdefault(ledger_id, deque()).append(number)
        else:
            use.logs[ledger_id] = (max(known[0], last), known[1] + size)
        use.bytes += size

    def trim(self, ledger_id: int, first_entry: int) -> None:
        """Entries before `first_entry` are not needed any more."""
        numbers = self._of_log.get(ledger_id, deque())
        for _ in range(len(numbers)):
            number = numbers.popleft()
            use = self.segments.get(number)
            known = None if use is None else use.logs.get(ledger_id)
            if use is None or known is None:
                continue
            if known[0] >= first_entry:
                numbers.append(number)
                continue
            use.bytes -= known[1]
            del use.logs[ledger_id]

    def forget_log(self, ledger_id: int) -> None:
        """The log was deleted."""
        self.trim(ledger_id, 2**63)
        self._of_log.pop(ledger_id, None)
        self.forget_snapshot(ledger_id)

    def forget_snapshot(self, ledger_id: int) -> None:
        """The log's snapshot was replaced."""
        use = self.segments.get(self._snapshot_of.pop(ledger_id, -1))
        if use is not None:
            use.bytes -= use.snapshots.pop(ledger_id, 0)

    def remove_log_from(self, number: int, ledger_id: int) -> None:
        """All of the log's needed runs were copied out of the segment."""
        known = self.segments[number].logs.pop(ledger_id, None)
        if known is not None:
            self.segments[number].bytes -= known[1]

    def drop(self, number: int) -> None:
        """The segment is gone."""
        self.segments.pop(number, None)
