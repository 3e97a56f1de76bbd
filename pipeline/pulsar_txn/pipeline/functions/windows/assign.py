"""Assignment of messages to windows, and of those that leave with one. Without IO and without a clock.

A message is acknowledged in the transaction of the last window that has it. So after a crash exactly the messages come again
that have windows to come, and `progress`, which the transaction of a window stores, says which windows were before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

import attrs

M = TypeVar("M")

NEVER: Final = -(1 << 62)


@attrs.frozen(order=True)
class Place:
    """Place of a message: comparable within a source."""

    source: str
    position: tuple[int, int, int]


@attrs.frozen(eq=False)
class Item(Generic[M]):
    """One message with its time, and the ends of its first and last window."""

    message: M
    place: Place
    time_ms: int
    first_end: int = 0
    last_end: int = 0


@attrs.frozen(eq=False)
class Window(Generic[M]):
    """A window that is due. `leaving` are acknowledged with it."""

    items: list[Item[M]]
    leaving: list[Item[M]]
    progress: dict[str, Any]
    """Changes to store in the transaction of this window."""
    start_ms: int | None = None
    end_ms: int | None = None


class Windows(Protocol[M]):
    """Collector of messages that gives windows. `due` gives the same window until `fired`."""

    def add(self, message: M, place: Place, time_ms: int) -> bool:
        """One more message; False when it comes after its last window."""
        ...

    def due(self, now_ms: int | None) -> Window[M] | None:
        """The next window; `now_ms` is the time when nothing waits to be received, else None."""
        ...

    def fired(self, window: Window[M]) -> None:
        """The window is committed."""
        ...


class CountWindows(Generic[M]):
    """The last `length` messages, after each `slide` messages."""

    def __init__(self, length: int, slide: int, progress: dict[str, Any] | None = None) -> None:
        self._length = length
        self._slide = slide
        self._before: tuple[int, ...] | None = None
        """The last position that was in a window, when windows overlap: there is one source."""
        if progress is not None and slide < length:
            self._before = tuple(progress["position"])
        self._old: list[Item[M]] = []
        self._new: list[Item[M]] = []

    def add(self, message: M, place: Place, time_ms: int) -> bool:
        """One more message."""
        item = Item(message, place, time_ms)
        was_before = self._before is not None and place.position <= self._before
        (self._old if was_before else self._new).append(item)
        return True

    def due(self, now_ms: int | None) -> Window[M] | None:
        """The next window, when there are enough messages."""
        if len(self._new) < self._slide:
            return None
        both = self._old + self._new[: self._slide]
        items = both[-self._length :]
        kept = self._length - self._slide
        leaving = both[: max(0, len(both) - kept)]
        return Window(items, leaving, {"position": list(items[-1].place.position)})

    def fired(self, window: Window[M]) -> None:
        """The window is committed."""
        gone = {id(item) for item in window.leaving}
        both = self._old + self._new[: self._slide]
        self._old = [item for item in both if id(item) not in gone]
        del self._new[: self._slide]


class TimeWindows(Generic[M]):
    """The messages of `length_ms`, every `slide_ms`: [end - length_ms, end) for each multiple `end` of `slide_ms`.

    A window is due when the watermark has passed its end: the smallest of the newest times of all sources, less `max_lag_ms`.
    When nothing waits to be received, sources without messages are left out, and with `by_clock` the watermark is the time now.
    With `by_clock` a message that comes after its last window is in the next one, and in no other.
    """

    def __init__(
        self,
        length_ms: int,
        slide_ms: int,
        *,
        max_lag_ms: int = 0,
        by_clock: bool = False,
        sources: Iterable[str] = (),
        progress: dict[str, Any] | None = None,
    ) -> None:
        self._length = length_ms
        self._slide = slide_ms
        self._lag = max_lag_ms
        self._by_clock = by_clock
        self._newest: dict[str, int] = dict.fromkeys(sources, NEVER)
        self._end: int = NEVER if progress is None else progress["end"]
        """The end of the last window that was committed."""
        self._items: list[Item[M]] = []
        self._next: int | None = None

    def add(self, message: M, place: Place, time_ms: int) -> bool:
        """One more message; False when it comes after its last window."""
        self._newest[place.source] = max(self._newest.get(place.source, NEVER), time_ms)
        first = (time_ms // self._slide + 1) * self._slide
        last = (time_ms + self._length) // self._slide * self._slide
        if last <= self._end:
            if not self._by_clock:
                return False
            first = last = self._after(self._end)
        item = Item(message, place, time_ms, first, last)
        self._items.append(item)
        self._expect(item)
        return True

    def due(self, now_ms: int | None) -> Window[M] | None:
        """The next window with a message, when the watermark has passed its end."""
        end = self._next
        if end is None or end > self._watermark(now_ms):
            return None
        items = sorted((item for item in self._items if item.first_end <= end <= item.last_end), key=_in_order)
        leaving = [item for item in items if item.last_end <= end]
        return Window(items, leaving, {"end": end}, end - self._length, end)

    def fired(self, window: Window[M]) -> None:
        """The window is committed."""
        self._end = int(window.progress["end"])
        self._items = [item for item in self._items if item.last_end > self._end]
        self._next = None
        for item in self._items:
            self._expect(item)

    def _expect(self, item: Item[M]) -> None:
        end = max(item.first_end, self._after(self._end))
        if self._next is None or end < self._next:
            self._next = end

    def _after(self, end: int) -> int:
        return (end // self._slide + 1) * self._slide

    def _watermark(self, now_ms: int | None) -> int:
        known = self._newest.values() if now_ms is None else [each for each in self._newest.values() if each != NEVER]
        reached = min(known, default=NEVER)
        if self._by_clock and now_ms is not None:
            reached = max(reached, now_ms)
        return reached - self._lag


def _in_order(item: Item[Any]) -> tuple[int, Place]:
    return item.time_ms, item.place
