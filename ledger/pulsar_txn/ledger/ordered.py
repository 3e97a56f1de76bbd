"""A dict in the order of insertion that can be walked as it was at one moment, while it goes on changing.

Machines keep what grows in these maps, so that a snapshot can be taken in slices over many turns of the loop (H7 of
`ledger.machine`). Keys lie in small groups. A `Moment` knows the groups there were when it was made; when a group that it
has not walked yet is about to change, it gets a copy first. So making a moment, walking one group and the copy are each
short, whatever the size of the map; and a change costs nothing extra while nobody walks.

The first key is at hand at any time, however many were taken out before it (a plain dict that is eaten from its head walks
over all its holes).
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

GROUP: Final = 64
"""Keys in a group, unless the map's maker says otherwise."""


class _Group(dict[KeyT, None]):
    """Group of keys that were inserted one after the other."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class OrderedMap(dict[KeyT, ValueT]):
    """Keys to values in the order of insertion; a new value for an old key stays in its place.

    It is a dict, so reading it has a dict's speed: machines read these maps some thirty times per transaction. It
    changes by `map[key] = value`, `del map[key]` and `pop(key)`, and by no other method of a dict.

    `image`: what a moment shows of a value. It is called when a group is copied or walked, and must give something that
    later changes of the value do not reach. Values that never change need none. Before a value changes in place, its owner
    calls `changing`, unless `moments`, those that are walked, is empty. `group`: how many keys are copied at once.
    """

    __slots__ = ("_group", "_groups", "_home", "_image", "_last", "_numbers", "moments")

    def __init__(self, image: Callable[[ValueT], Any] | None = None, *, group: int | None = None) -> None:
        super().__init__()
        self._image = image
        self._group = group or GROUP
        self._home: dict[KeyT, _Group[KeyT]] = {}
        self._groups: OrderedDict[int, _Group[KeyT]] = OrderedDict()
        self._last: _Group[KeyT] | None = None
        self._numbers = 0
        self.moments: list[weakref.ref[Moment[KeyT]]] = []

    def first(self) -> tuple[KeyT, ValueT] | None:
        """The key that was put in first, and its value; None when the map is empty. Never a walk."""
        for group in self._groups.values():
            for key in group:
                return key, self[key]
        return None

    def __setitem__(self, key: KeyT, value: ValueT) -> None:
        group = self._home.get(key)
        if group is None:
            group = self._last
            if group is None or len(group) >= self._group:
                group = self._open_group()
            self._home[key] = group
        if self.moments:
            self._copy_first(group)
        group[key] = None
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: KeyT) -> None:
        group = self._home.pop(key)
        if self.moments:
            self._copy_first(group)
        dict.__delitem__(self, key)
        del group[key]
        if not group:
            del self._groups[group.number]
            if group is self._last:
                self._last = None

    def pop(self, key: KeyT) -> ValueT | None:  # type: ignore[override] # None instead of a KeyError
        """Take a key out; its value, None when it is not there."""
        if key not in self:
            return None
        value = self[key]
        del self[key]
        return value

    def changing(self, key: KeyT) -> None:
        """The value of `key` is about to change in place."""
        if self.moments:
            self._copy_first(self._home[key])

    def moment(self) -> Moment[KeyT]:
        """Return what is here now, to be walked later. It ends when it is dropped."""
        self._last = None  # what is put in from now on is in groups that the moment does not know
        moment = Moment(self, self._groups, self._image, self._numbers)
        self.moments.append(weakref.ref(moment, self.moments.remove))
        return moment

    def _open_group(self) -> _Group[KeyT]:
        group: _Group[KeyT] = _Group(self._numbers)
        self._numbers += 1
        self._last = self._groups[group.number] = group
        return group

    def _copy_first(self, group: _Group[KeyT]) -> None:
        for reference in self.moments:
            moment = reference()
            if moment is not None:
                moment.copy(group)


class Moment(Generic[KeyT]):
    """A map at the moment when this was made: `groups` gives its keys and images once, a group at a time."""

    __slots__ = ("__weakref__", "_below", "_copies", "_groups", "_image", "_left", "_values")

    def __init__(
        self,
        values: dict[KeyT, Any],
        groups: OrderedDict[int, _Group[KeyT]],
        image: Callable[[Any], Any] | None,
        below: int,
    ) -> None:
        self._values = values
        self._groups = groups
        self._image = image
        self._below = below  # groups from here on came later
        self._left = list(groups)[::-1]
        self._copies: dict[int, list[tuple[KeyT, Any]]] = {}

    def groups(self) -> Iterator[list[tuple[KeyT, Any]]]:
        """Keys and the images of their values, in order."""
        left, groups, copies = self._left, self._groups, self._copies
        while left:
            number = left.pop()
            yield copies.pop(number) if number in copies else self._show(groups[number])

    def copy(self, group: _Group[KeyT]) -> None:
        """`group` is about to change: remember it unless it was walked, is remembered, or is newer."""
        number = group.number
        if number < self._below and self._left and number >= self._left[-1] and number not in self._copies:
            self._copies[number] = self._show(group)

    def _show(self, group: _Group[KeyT]) -> list[tuple[KeyT, Any]]:
        image, values = self._image, self._values
        if image is None:
            return [(key, values[key]) for key in group]
        return [(key, image(values[key])) for key in group]
