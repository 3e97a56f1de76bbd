"""The metadata store of embedded providers: a tree in memory, whose changes the provider writes.

State changes at once, so that two compare-and-sets of one loop turn see each other; calls return, and watchers hear
of a change, once it is durable.
"""

from __future__ import annotations

import abc
import asyncio
import weakref
from collections.abc import AsyncIterator

from pulsar_txn.ledger.limits import COUNTER_BYTES, MAX_VALUE_BYTES, VALUE_BYTES, Tally, check_name
from pulsar_txn.ledger.protocols import EntryTooLarge, VersionConflict, Versioned


class MetadataTree:
    """Versioned keys with their children, and counters; checks before anything has moved. Pure."""

    def __init__(
        self,
        values: dict[str, Versioned] | None = None,
        counters: dict[str, int] | None = None,
        *,
        tally: Tally | None = None,
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        self.values: dict[str, Versioned] = {}
        self.counters = dict(counters or {})
        self._children: dict[str, dict[str, int]] = {}
        self._tally = tally or Tally()
        self._max_value_bytes = max_value_bytes
        for path, value in (values or {}).items():
            self._set(path, value)
        self._tally.grew(sum(COUNTER_BYTES + len(path) for path in self.counters))

    def get(self, path: str) -> Versioned | None:
        """The value, or None."""
        return self.values.get(_checked(path))

    def put(self, path: str, data: bytes, expected_version: int | None) -> Versioned:
        """The new value, which is to be written."""
        old = self.values.get(_checked(path))
        version = -1 if old is None else old.version
        _expect(path, version, expected_version)
        if len(data) > self._max_value_bytes:
            raise EntryTooLarge(f"metadata value of {path!r} has {len(data)} bytes, at most {self._max_value_bytes} are kept")
        check_name("metadata path", path)
        more = VALUE_BYTES + len(path) + len(data) if old is None else len(data) - len(old.data)
        if more > 0:
            self._tally.check(f"the value of {path[:60]!r}", more)
        value = Versioned(bytes(data), version + 1)
        self._set(path, value)
        return value

    def delete(self, path: str, expected_version: int | None) -> bool:
        """True if there was a value: that it is gone is to be written."""
        old = self.values.get(_checked(path))
        _expect(path, -1 if old is None else old.version, expected_version)
        if old is not None:
            self._tally.grew(-(VALUE_BYTES + len(path) + len(self.values.pop(path).data)))
            self._count(path, -1)
        return old is not None

    def children(self, path: str) -> list[str]:
        """Names of the direct children, sorted."""
        return sorted(self._children.get("" if path == "/" else _checked(path), ()))

    def increment(self, path: str) -> int:
        """The counter's number; the next one is to be written."""
        number = self.counters.get(_checked(path), 0)
        if not number:
            check_name("metadata path", path)
            self._tally.check(f"the counter {path[:60]!r}", COUNTER_BYTES + len(path))
            self._tally.grew(COUNTER_BYTES + len(path))
        self.counters[path] = number + 1
        return number

    def _set(self, path: str, value: Versioned) -> None:
        old = self.values.get(path)
        if old is None:
            self._count(path, 1)
            self._tally.grew(VALUE_BYTES + len(path))
        self._tally.grew(len(value.data) - (0 if old is None else len(old.data)))
        self.values[path] = value

    def _count(self, path: str, change: int) -> None:
        """Every key counts once at each of its ancestors, so that parents need no keys of their own."""
        while path:
            parent, _, name = path.rpartition("/")
            names = self._children.setdefault(parent, {})
            names[name] = names.get(name, 0) + change
            if not names[name]:
                del names[name]
                if not names:
                    del self._children[parent]
            path = parent


class TreeStore(abc.ABC):
    """Metadata in a tree (protocol `MetadataStore`); how changes become durable is the provider's."""

    def __init__(self, tree: MetadataTree) -> None:
        self._tree = tree
        self._watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()

    @property
    def values(self) -> dict[str, Versioned]:
        """All values by path."""
        return self._tree.values

    @property
    def counters(self) -> dict[str, int]:
        """The next number of each counter by path."""
        return self._tree.counters

    @abc.abstractmethod
    async def write(self, path: str, value: Versioned | None) -> None:
        """Write one changed key (None: deleted); returns when that is durable. Raises when the provider cannot."""

    @abc.abstractmethod
    async def write_counter(self, path: str, value: int) -> None:
        """Write the next number of a counter, in the same way."""

    async def get(self, path: str) -> Versioned | None:
        """The value, or None."""
        return self._tree.get(path)

    async def put(self, path: str, data: bytes, *, expected_version: int | None = None) -> int:
        """Write; returns the new version once durable. If cancelled: it may be written all the same."""
        value = self._tree.put(path, data, expected_version)
        await self.write(path, value)
        self._tell(path)
        return value.version

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        """Delete, once durable. If cancelled: it may be deleted all the same."""
        if self._tree.delete(path, expected_version):
            await self.write(path, None)
            self._tell(path)

    async def children(self, path: str) -> list[str]:
        """Names of the direct children, sorted; a path that only leads to keys counts as a child as well."""
        return self._tree.children(path)

    async def increment(self, path: str) -> int:
        """A durable counter: 0, 1, 2, …. If cancelled: the number is spent."""
        number = self._tree.increment(path)
        await self.write_counter(path, number + 1)
        return number

    def watch(self, prefix: str) -> Watcher:
        """Paths that start with `prefix` and change from now on; several changes nobody asked for meanwhile are one."""
        watcher = Watcher(prefix)
        self._watchers.add(watcher)
        return watcher

    def _tell(self, path: str) -> None:
        for watcher in list(self._watchers):
            if path.startswith(watcher.prefix):
                watcher.changed(path)


class Watcher(AsyncIterator[str]):
    """Paths that changed and were not asked for yet; bounded by the number of keys. Dropped, it watches no more."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._paths: dict[str, None] = {}
        self._event = asyncio.Event()

    def changed(self, path: str) -> None:
        """Remember it, once."""
        self._paths[path] = None
        self._event.set()

    async def __anext__(self) -> str:
        while not self._paths:
            self._event.clear()
            await self._event.wait()
        path = next(iter(self._paths))
        del self._paths[path]
        return path


def _checked(path: str) -> str:
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError(f"metadata path {path!r}: start with '/' and do not end with it")
    return path


def _expect(path: str, version: int, expected: int | None) -> None:
    if expected is not None and expected != version:
        found = "no value" if version == -1 else f"version {version}"
        raise VersionConflict(f"{path!r}: expected version {expected}, found {found}; read it again")
