"""The metadata store of embedded providers: a tree in memory, which the provider writes later.

State changes at once, so that two compare-and-sets of one loop turn see each other; calls return, and watchers hear
of a change, once it is durable.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from pulsar_txn.ledger.handles import MAX_VALUE_BYTES
from pulsar_txn.ledger.limits import COUNTER_BYTES, VALUE_BYTES, Tally, check_name
from pulsar_txn.ledger.protocols import EntryTooLarge, VersionConflict, Versioned

ChangeWriter: TypeAlias = Callable[[str, Versioned | None], Awaitable[None]]
"""Writes one changed key (None: deleted) and returns an awaitable of its durability; raises when the store cannot."""

CounterWriter: TypeAlias = Callable[[str, int], Awaitable[None]]
"""Writes the next value of a counter, in the same way."""


class MetadataTree:
    """Versioned keys with compare-and-set, children, counters and watch (protocol `MetadataStore`)."""

    def __init__(
        self,
        write: ChangeWriter,
        write_counter: CounterWriter,
        values: dict[str, Versioned] | None = None,
        counters: dict[str, int] | None = None,
        *,
        tally: Tally | None = None,
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        self.values: dict[str, Versioned] = {}
        self.counters = dict(counters or {})
        self._write = write
        self._write_counter = write_counter
        self._children: dict[str, dict[str, int]] = {}
        self._watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
        self._tally = tally or Tally()
        self._max_value_bytes = max_value_bytes
        for path, value in (values or {}).items():
            self._set(path, value)
        self._tally.bytes += sum(COUNTER_BYTES + len(path) for path in self.counters)

    async def get(self, path: str) -> Versioned | None:
        """The value, or None."""
        return self.values.get(_checked(path))

    async def put(self, path: str, data: bytes, *, expected_version: int | None = None) -> int:
        """Write; returns the new version once durable. If cancelled: it may be written all the same."""
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
        await self._write(path, value)
        self._tell(path)
        return value.version

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        """Delete, once durable. If cancelled: it may be deleted all the same."""
        old = self.values.get(_checked(path))
        _expect(path, -1 if old is None else old.version, expected_version)
        if old is None:
            return
        self._unset(path)
        await self._write(path, None)
        self._tell(path)

    async def children(self, path: str) -> list[str]:
        """Names of the direct children, sorted; a path that only leads to keys counts as a child as well."""
        return sorted(self._children.get("" if path == "/" else _checked(path), ()))

    async def increment(self, path: str) -> int:
        """A durable counter: 0, 1, 2, …. If cancelled: the number is spent."""
        number = self.counters.get(_checked(path), 0)
        if not number:
            check_name("metadata path", path)
            self._tally.check(f"the counter {path[:60]!r}", COUNTER_BYTES + len(path))
            self._tally.bytes += COUNTER_BYTES + len(path)
        self.counters[path] = number + 1
        await self._write_counter(path, number + 1)
        return number

    def watch(self, prefix: str) -> Watcher:
        """Paths that start with `prefix` and change from now on; several changes nobody asked for meanwhile are one."""
        watcher = Watcher(prefix)
        self._watchers.add(watcher)
        return watcher

    def _set(self, path: str, value: Versioned) -> None:
        old = self.values.get(path)
        if old is None:
            self._count(path, 1)
            self._tally.bytes += VALUE_BYTES + len(path)
        self._tally.bytes += len(value.data) - (0 if old is None else len(old.data))
        self.values[path] = value

    def _unset(self, path: str) -> None:
        self._tally.bytes -= VALUE_BYTES + len(path) + len(self.values.pop(path).data)
        self._count(path, -1)

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
