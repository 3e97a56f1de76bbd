"""How much an object keeps, without a name of what is inside it: what memory that must stay bounded is measured by."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

_MAPS = (dict, WeakKeyDictionary, WeakValueDictionary)
_OTHERS = (list, set, deque, WeakSet)


def kept_by(thing: Any) -> int:
    """The elements of all containers that an object has, and of the containers in those; no other object is looked into."""
    return sum(_elements(each) for each in _attributes(thing))


def _attributes(thing: Any) -> Iterator[Any]:
    yield from getattr(thing, "__dict__", {}).values()
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            mangled = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            if name not in ("__dict__", "__weakref__") and hasattr(thing, mangled):
                yield getattr(thing, mangled)


def _elements(value: Any) -> int:
    if isinstance(value, _MAPS):
        return len(value) + sum(map(_elements, value.values()))
    if isinstance(value, _OTHERS):
        return len(value) + sum(map(_elements, value))
    return 0
