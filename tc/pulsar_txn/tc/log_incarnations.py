"""Incarnations of a log: each start of its coordinator, and each take-over of the lead, begins another one.

An INCARNATION record says so, before anything is opened in the incarnation. It names the incarnation by a service number, drawn
at random. With lanes the number is the upper part of every lane that the incarnation gives, so no two of them give the
same id, whatever became of their logs: a lane has 48 bits, 28 of the service and 20 that count. The highest bit of a service
number is set, so it is never a part of a lane that was given before there were incarnations.

The host keeps the newest incarnation of a log, and how far the log had come, where the participants are. A log that does not
hold that was restored, rolled back or copied (`LogIncarnations.holds`): the incarnation that is lost may have decided what is
open in this log.

What is open then is HELD, by records after the INCARNATION record: see `table`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from pulsar_txn.ledger.machine import Reply, Step
from pulsar_txn.tc import records
from pulsar_txn.tc.records import Record
from pulsar_txn.tc.records_pb2 import CoordinatorSnapshot
from pulsar_txn.tc.requests import BeginIncarnation
from pulsar_txn.tc.table import HELD, OPEN
from pulsar_txn.wire.ids import Position, TxnStatus

LOG: Final = "log"

COUNT_BITS: Final = 20
SERVICE_BITS: Final = 28
FIRST_SERVICE: Final = 1 << SERVICE_BITS - 1
LAST_SERVICE: Final = (1 << SERVICE_BITS) - 1
"""Numbers that are drawn: from the first to the last one."""
NO_SERVICE: Final = 0
"""The service of everything that was given before the first INCARNATION record."""

_MOST_INCARNATIONS: Final = 4096
_HELD_AT_ONCE: Final = 2048
"""Transactions that one record holds: a few milliseconds."""

_Records: TypeAlias = tuple[tuple[str, Record], ...]


def first_lane(service: int) -> int:
    """The lane before the first one that an incarnation gives."""
    return service << COUNT_BITS


def end_of_lanes(service: int) -> int:
    """The lane after the last one that an incarnation gives."""
    return service + 1 << COUNT_BITS if service else FIRST_SERVICE << COUNT_BITS


def service_of(lane: int) -> int:
    """The incarnation that gave a lane."""
    service = lane >> COUNT_BITS
    return service if service >= FIRST_SERVICE else NO_SERVICE


class LogIncarnation(NamedTuple):
    """`first_least`: the first id that it may give. `begins_at`: its record. `goes_on`: it follows in the same process."""

    service: int
    first_least: int
    begins_at: Position
    goes_on: bool


class LogIncarnations:
    """The newest incarnations of a log, in order. `is_awaited`: nothing is opened or ended by itself until one has begun.

    `until_least`: ids from here on are not reserved yet; None: none have to be.
    """

    def __init__(self) -> None:
        self.kept: list[LogIncarnation] = []
        self.is_awaited = False
        self.until_least: int | None = None

    @property
    def newest(self) -> int:
        """The service number of the newest incarnation; NO_SERVICE before the first one."""
        return self.kept[-1].service if self.kept else NO_SERVICE

    def began(self, incarnation: LogIncarnation, until_least: int) -> None:
        """An INCARNATION record was applied."""
        if not self.kept or self.kept[-1].service != incarnation.service:
            self.kept.append(incarnation)
            del self.kept[:-_MOST_INCARNATIONS]
        self.is_awaited = False
        if until_least:
            self.until_least = max(until_least, self.until_least or 0)

    def of(self, least: int) -> int | None:
        """The incarnation that gave an id; None when that incarnation is forgotten."""
        at = bisect_right(self.kept, least, key=lambda incarnation: incarnation.first_least)
        if at:
            return self.kept[at - 1].service
        return NO_SERVICE if len(self.kept) < _MOST_INCARNATIONS else None

    def holds(self, service: int, position: Position, last_applied: Position) -> bool:
        """True if this log holds what an incarnation had written up to a position."""
        for at, incarnation in enumerate(self.kept):
            if incarnation.service == service:
                following = self.kept[at + 1].begins_at if at + 1 < len(self.kept) else None
                return position <= last_applied if following is None else position < following
        return False

    def elements(self) -> Iterator[tuple[str, CoordinatorSnapshot.Incarnation]]:
        """The incarnations, each with the name of its field in a snapshot."""
        for service, first_least, (ledger_id, entry_id), goes_on in tuple(self.kept):
            yield (
                "incarnations",
                CoordinatorSnapshot.Incarnation(
                    service=service, first_least=first_least, ledger_id=ledger_id, entry_id=entry_id, goes_on=goes_on
                ),
            )

    def recovered(self, *, is_awaited: bool) -> None:
        """The log has been read. `is_awaited`: an incarnation has to begin now."""
        self.is_awaited = is_awaited

    def restore(self, part: CoordinatorSnapshot) -> None:
        """Take over the incarnations of a slice, and of the first one how far numbers are reserved."""
        if part.HasField("until_least"):
            self.until_least = part.until_least
        self.kept += [
            LogIncarnation(each.service, each.first_least, (each.ledger_id, each.entry_id), each.goes_on)
            for each in part.incarnations
        ]


def begin(request: BeginIncarnation, statuses: Iterable[tuple[int, TxnStatus]], next_id: int, now_ms: int) -> Step[Record]:
    """The INCARNATION record, and then those that hold what may have been decided in an incarnation that is lost: they are of
    the new incarnation.

    `statuses`: those of the transactions that are to be held. Registers move after all of this is durable, so after a crash in
    between the next start compares again, and holds the others.
    """
    by_status: dict[TxnStatus, list[int]] = {}
    for least, status in statuses:
        by_status.setdefault(status, []).append(least)
    held: list[tuple[str, Record]] = []
    for status, leasts in by_status.items():
        held += moved(leasts, status, HELD, now_ms, next_id - 1, request.cause)
    newest = max(next_id, request.first_least) - 1
    begins = records.incarnation(request.service, request.goes_on, request.first_least, request.until_least, now_ms, newest)
    return Step(((LOG, begins), *held), (Reply(request.token),))


def release(leasts: Collection[int], next_id: int, now_ms: int) -> _Records:
    """The records that let HELD transactions go on."""
    return tuple(moved(list(leasts), HELD, OPEN, now_ms, next_id - 1, 0))


def moved(leasts: list[int], old: TxnStatus, new: TxnStatus, now_ms: int, max_id: int, cause: int) -> _Records:
    """Records that move these transactions together, some thousands each."""
    slices = (leasts[start : start + _HELD_AT_ONCE] for start in range(0, len(leasts), _HELD_AT_ONCE))
    return tuple((LOG, records.update_together(first, tuple(more), old, new, now_ms, max_id, cause)) for first, *more in slices)
