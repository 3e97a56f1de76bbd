"""The window of outcomes: the outcomes of the last transactions, in two bits and an owner each.

END_TXN is idempotent because of it (S16): a repeat is answered as the first was. Ids are kept in pages of 4,096; when
the first id of a page is given, pages are dropped that are wholly more than `retention` ids before it. So at least
`retention` ids are answered from the window, at most two pages more, in 2.3 MiB for a million.

A transaction that was open for so long that most of the window passed it would be forgotten soon after its end, or
at once. Those that end more than half a window below are therefore remembered one by one, for a window from their
end; there are few of them. So every outcome can be asked for during half a window after the end, at the least.

Who may ask is kept as a 16-bit index into a list of owners, 0 for "anybody". Indexes of owners that no page names
any more are used again. With more than 65,534 owners at the same time the rest becomes "nobody": such an outcome is told
to a superuser only, so that nobody ever gets another's.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from typing import Final, TypeAlias

from pulsar_txn.ledger.ordered import OrderedMap
from pulsar_txn.tc.owners import ANYBODY, Owner

PAGE: Final = 4096
"""Ids in a page."""
PAGE_SHIFT: Final = 12

NO_OUTCOME: Final = 0
STILL_OPEN: Final = 1
WAS_COMMITTED: Final = 2
WAS_ABORTED: Final = 3

NOBODY_INDEX: Final = 0xFFFF
_OWNERS: Final = struct.Struct(f"<{PAGE}H")

_PAGES_AT_ONCE: Final = 4
_LATE_FORGOTTEN_PER_ID: Final = 4

# For each byte of four outcomes: how many of them are STILL_OPEN.
_OPEN_IN_BYTE: Final = bytes(sum(byte >> shift & 3 == STILL_OPEN for shift in (0, 2, 4, 6)) for byte in range(256))

Late: TypeAlias = tuple[int, Owner, int]
"""An outcome remembered by itself: outcome, owner, the id at whose page it is forgotten."""


Image: TypeAlias = tuple[bytes, "bytes | None"]


class Page:
    """4,096 ids: `outcomes` two bits each, low bits first; `owners` 16 bits each, little-endian, None while nobody owns any."""

    __slots__ = ("outcomes", "owners")

    def __init__(self, outcomes: bytearray | None = None, owners: bytearray | None = None) -> None:
        self.outcomes = outcomes if outcomes is not None else bytearray(PAGE // 4)
        self.owners = owners

    def image(self) -> Image:
        """Return what it holds now, for a snapshot."""
        return bytes(self.outcomes), None if self.owners is None else bytes(self.owners)

    def owner_indexes(self) -> Counter[int]:
        """Return how many ids each owner index has, 0 left out."""
        counts = Counter(_OWNERS.unpack(self.owners)) if self.owners is not None else Counter[int]()
        del counts[0]
        return counts


class OwnerIndex:
    """Numbers from 1 for owners, given out lowest first, so that a replay and a restored state number alike."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.owners: OrderedMap[int, Owner] = OrderedMap()
        self._index_of: dict[Owner, int] = {}
        self._uses: Counter[int] = Counter()
        self._free: list[int] | None = []  # None: to be found from `owners`, after a restore
        self._highest = 0

    def take(self, owner: Owner) -> int:
        """The index of `owner`, used once more; NOBODY_INDEX when all are taken."""
        index = self._index_of.get(owner)
        if index is None:
            index = self._fresh()
            if index == NOBODY_INDEX:
                return index
            self.put(index, owner)
        self._uses[index] += 1
        return index

    def put(self, index: int, owner: Owner) -> None:
        """Bind `index` to `owner`."""
        self.owners[index] = owner
        self._index_of[owner] = index

    def release(self, uses: Counter[int]) -> None:
        """Give back `uses`; an index without any is free again."""
        for index in sorted(uses.keys() - {NOBODY_INDEX}):
            self._uses[index] -= uses[index]
            if not self._uses[index]:
                free = self._free_indexes()
                del self._uses[index], self._index_of[self.owners[index]], self.owners[index]
                heapq.heappush(free, index)

    def count(self, uses: Counter[int]) -> None:
        """Take over uses of a restored page."""
        self._uses.update({index: n for index, n in uses.items() if index != NOBODY_INDEX})
        self._free = None

    def _free_indexes(self) -> list[int]:
        if self._free is None:
            self._highest = max(self.owners, default=0)
            self._free = [index for index in range(1, self._highest) if index not in self.owners]
        return self._free

    def _fresh(self) -> int:
        free = self._free_indexes()
        if free:
            return heapq.heappop(free)
        if self._highest >= self.limit:
            return NOBODY_INDEX
        self._highest += 1
        return self._highest


class OutcomeWindow:
    """Outcomes of the last `retention` ids and a little more; see the page above."""

    def __init__(self, retention: int, *, max_owners: int = NOBODY_INDEX - 1) -> None:
        self.retention = retention
        self.owners = OwnerIndex(max_owners)
        self.pages: OrderedMap[int, Page] = OrderedMap(Page.image, group=_PAGES_AT_ONCE)
        self.late: OrderedMap[int, Late] = OrderedMap()  # as they are to be forgotten
        self._turned = 0  # the first id of the newest page

    def opened(self, least: int, owner: Owner) -> None:
        """`least` was given to `owner`. Ids come in ascending order."""
        number = least >> PAGE_SHIFT
        page = self.pages.get(number)
        if page is None:
            page = self._turn_page(number)
        elif self.pages.moments:
            self.pages.changing(number)
        if self.late:
            self._forget_late()
        page.outcomes[(least & 4095) >> 2] |= STILL_OPEN << ((least & 3) << 1)
        if owner != ANYBODY:
            if page.owners is None:
                page.owners = bytearray(2 * PAGE)
            at = (least & 4095) << 1
            page.owners[at : at + 2] = self.owners.take(owner).to_bytes(2, "little")

    def ended(self, least: int, outcome: int, owner: Owner, next_id: int) -> None:
        """`least` was COMMITTED or ABORTED when `next_id` was the id to be given next."""
        number = least >> PAGE_SHIFT
        page = self.pages.get(number)
        if page is not None:
            if self.pages.moments:
                self.pages.changing(number)
            at, shift = (least & 4095) >> 2, (least & 3) << 1
            page.outcomes[at] = page.outcomes[at] & ~(3 << shift) | outcome << shift
        if least + self.retention // 2 < next_id:
            self.late[least] = (outcome, owner, next_id + self.retention)

    def lookup(self, least: int) -> tuple[int, Owner | None]:
        """Outcome and owner; owner None: a superuser's business only."""
        page = self.pages.get(least >> PAGE_SHIFT)
        if page is None:
            late = self.late.get(least)
            return (NO_OUTCOME, ANYBODY) if late is None or late[2] <= self._turned else late[:2]
        outcome = page.outcomes[(least & 4095) >> 2] >> ((least & 3) << 1) & 3
        if page.owners is None:
            return outcome, ANYBODY
        at = (least & 4095) << 1
        index = int.from_bytes(page.owners[at : at + 2], "little")
        return outcome, self.owners.owners.get(index) if index else ANYBODY

    def restore_page(self, number: int, page: Page) -> None:
        """Take over a page of a snapshot; pages come in ascending order."""
        self.pages[number] = page
        self._turned = number << PAGE_SHIFT
        self.owners.count(page.owner_indexes())

    def count_open(self) -> int:
        """Return how many ids of the pages are STILL_OPEN."""
        return sum(sum(page.outcomes.translate(_OPEN_IN_BYTE)) for page in self.pages.values())

    def _turn_page(self, number: int) -> Page:
        start = self._turned = number << PAGE_SHIFT
        while (oldest := self.pages.first()) is not None and (oldest[0] + 1) << PAGE_SHIFT <= start - self.retention:
            self.owners.release(oldest[1].owner_indexes())
            del self.pages[oldest[0]]
        page = self.pages[number] = Page()
        return page

    def _forget_late(self) -> None:
        """A few with each id: many may have ended at the same time, and none is told once its time has passed."""
        for _ in range(_LATE_FORGOTTEN_PER_ID):
            oldest = self.late.first()
            if oldest is None or oldest[1][2] > self._turned:
                return
            del self.late[oldest[0]]
