"""Fold of the operations of a metadata topic. Without IO.

Several instances write; the order in the topic decides. Every instance applies the same operations in the same order, so each
knows for its own which compare-and-set has won.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, TypeAlias

from pulsar_txn.ledger.protocols import LogDamaged, VersionConflict, Versioned
from pulsar_txn.wire.ids import Position

from .frames import NotAFrame
from .metadata_records import ANY_VERSION, Item, Op, Operation, decode_items, encode_items

_COVERS: Final = struct.Struct(">qqI")
_MOST_WRITERS: Final = 1000
"""Lives of instances whose last operation is known; an older one writes no more."""

Result: TypeAlias = int | VersionConflict

CHANGES: Final = frozenset({Op.PUT, Op.DELETE, Op.INCREMENT})
"""Operations that change something."""


class MetadataFold:
    """Values, counters, and what each writer wrote last. `since_snapshot` counts operations after the newest snapshot."""

    def __init__(self) -> None:
        self.values: dict[str, Versioned] = {}
        self.counters: dict[str, int] = {}
        self.since_snapshot = 0
        self._writers: dict[bytes, int] = {}

    def is_new(self, operation: Operation) -> bool:
        """True if it was not applied before."""
        return operation.sequence > self._writers.get(operation.writer, -1)

    def apply(self, operation: Operation) -> Result:
        """A change: the new version, the counter's number before it, or the conflict."""
        self._writers.pop(operation.writer, None)
        self._writers[operation.writer] = operation.sequence
        if len(self._writers) > _MOST_WRITERS:
            del self._writers[next(iter(self._writers))]
        if operation.kind == Op.PUT:
            return self._put(operation)
        if operation.kind == Op.DELETE:
            return self._delete(operation)
        self.since_snapshot += 1
        number = self.counters.get(operation.path, 0)
        self.counters[operation.path] = number + 1
        return number

    def _put(self, operation: Operation) -> Result:
        old = self.values.get(operation.path)
        version = -1 if old is None else old.version
        if operation.expected not in (ANY_VERSION, version):
            return _conflict(operation, version)
        self.since_snapshot += 1
        self.values[operation.path] = Versioned(operation.data, version + 1)
        return version + 1

    def _delete(self, operation: Operation) -> Result:
        old = self.values.get(operation.path)
        version = -1 if old is None else old.version
        if operation.expected not in (ANY_VERSION, version):
            return _conflict(operation, version)
        self.since_snapshot += 1
        self.values.pop(operation.path, None)
        return version

    # ---- snapshots

    def snapshot(self, part_bytes: int) -> Iterator[bytes]:
        """The parts of a snapshot of this moment."""
        return encode_items(self._items(), part_bytes)

    def _items(self) -> Iterator[Item]:
        for path, value in self.values.items():
            yield Item(b"V", path.encode(), value.data, value.version)
        for path, number in self.counters.items():
            yield Item(b"C", path.encode(), b"", number)
        for writer, sequence in self._writers.items():
            yield Item(b"W", writer, b"", sequence)

    def restore(self, parts: list[bytes]) -> None:
        """Take over a snapshot. NotAFrame."""
        self.values.clear()
        self.counters.clear()
        self._writers.clear()
        self.since_snapshot = 0
        for part in parts:
            for kind, name, data, number in decode_items(part):
                if kind == b"V":
                    self.values[name.decode()] = Versioned(data, number)
                elif kind == b"C":
                    self.counters[name.decode()] = number
                elif kind == b"W":
                    self._writers[name] = number
                else:
                    raise NotAFrame(f"an item of kind {kind!r}")


def end_data(covers: Position, parts: int) -> bytes:
    """The data of an END: the last message that the snapshot covers, and how many parts it has."""
    return _COVERS.pack(covers[0], covers[1], parts)


class Catchup:
    """The operations of a topic as they are read at a start, until everything is there: then `settle`.

    A snapshot stands behind operations that it covers, and others may stand between: so all are kept until the end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._kept: list[tuple[Position, Operation]] = []
        self._parts: dict[bytes, list[bytes]] = {}
        self._snapshot: tuple[Position, list[bytes]] | None = None
        self._seen: dict[bytes, int] = {}

    def take(self, where: Position, operation: Operation) -> None:
        """The next message."""
        if operation.sequence <= self._seen.get(operation.writer, -1):
            return
        self._seen[operation.writer] = operation.sequence
        if operation.kind in CHANGES:
            self._kept.append((where, operation))
        elif operation.kind == Op.PART:
            if operation.expected == 0:
                self._parts[operation.writer] = []
            self._parts.setdefault(operation.writer, []).append(operation.data)
        elif operation.kind == Op.END and len(operation.data) == _COVERS.size:
            ledger_id, entry_id, count = _COVERS.unpack(operation.data)
            parts = self._parts.pop(operation.writer, [])
            if len(parts) == count:
                self._snapshot = ((ledger_id, entry_id), parts)

    def settle(self, fold: MetadataFold, was_trimmed: bool) -> None:
        """Bring `fold` to the state after the last message. LogDamaged when a snapshot is needed that is not there."""
        covers: Position = (-1, -1)
        if self._snapshot is not None:
            covers, parts = self._snapshot
            try:
                fold.restore(parts)
            except (NotAFrame, UnicodeDecodeError) as error:
                raise LogDamaged(self._name, None, f"its snapshot cannot be read: {error}") from None
        elif was_trimmed:
            raise LogDamaged(self._name, None, "its beginning was acknowledged, and there is no snapshot of it")
        for where, operation in self._kept:
            if where > covers and fold.is_new(operation):
                fold.apply(operation)


def _conflict(operation: Operation, version: int) -> VersionConflict:
    found = "no value" if version == -1 else f"version {version}"
    return VersionConflict(f"{operation.path!r}: expected version {operation.expected}, found {found}; read it again")
