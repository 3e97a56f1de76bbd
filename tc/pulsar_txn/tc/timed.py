"""Keys that are due at a time each: one may be put later, or earlier, or taken out, at about the cost of a heap's push."""

from __future__ import annotations

from typing import Generic, TypeVar

from pulsar_txn.ledger.swept_heap import SweptHeap

KeyT = TypeVar("KeyT")


class Timed(Generic[KeyT]):
    """Times at which keys are due. What is due at the same time comes in the order in which it was put in."""

    __slots__ = ("_entries", "_heap", "_keys", "_serial")

    def __init__(self) -> None:
        self._entries: dict[KeyT, tuple[int, int]] = {}
        self._keys: dict[int, KeyT] = {}
        self._serial = 0
        self._heap: SweptHeap[tuple[int, int]] = SweptHeap(self._is_alive)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._entries

    def put(self, key: KeyT, due_ms: int) -> None:
        """The key is due at this time, and at no other."""
        before = self._entries.get(key)
        if before is not None:
            if before[0] == due_ms:
                return
            self.drop(key)
        self._serial += 1
        entry = self._entries[key] = (due_ms, self._serial)
        self._keys[self._serial] = key
        self._heap.add(entry)

    def drop(self, key: KeyT) -> None:
        """The key is not due any more, if it was."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            del self._keys[entry[1]]
            self._heap.lost(len(self._entries))

    def of(self, key: KeyT) -> int | None:
        """Return when the key is due, None: never."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def first_ms(self) -> int | None:
        """Return when the first one is due. After many changes it may say an earlier time; looking again sees further."""
        entry = self._heap.first()
        return None if entry is None else entry[0]

    def due(self, now_ms: int, limit: int) -> list[KeyT]:
        """Return what is due at `now_ms`, the earliest first, at most `limit`."""
        return [self._keys[serial] for _, serial in self._heap.smallest(limit, lambda entry: entry[0] <= now_ms)]

    def _is_alive(self, entry: tuple[int, int]) -> bool:
        return entry[1] in self._keys
