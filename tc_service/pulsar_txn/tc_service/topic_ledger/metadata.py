"""The metadata store of a `TopicStore`: a topic that all instances write to, and each of them reads.

A change is an operation in the topic. It has happened when it was read back, and so its writer knows what came before it. The
order in the topic decides. Every instance applies the same operations in the same order, so each knows for its own which
compare-and-set has won; no instance decides for another one.

A message has one operation, or a piece of a snapshot:

    "PTXM"  version u8  kind u8  writer 8 bytes  sequence u64  expected i64  path size u16  CRC32C u32  path  data

`writer` names one incarnation of an instance, and `sequence` counts its operations: one that was sent twice counts once.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import weakref
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from pulsar_txn.client.errors import AuthorizationError, PulsarError
from pulsar_txn.ledger.limits import MAX_VALUE_BYTES, check_name
from pulsar_txn.ledger.metadata import Watcher
from pulsar_txn.ledger.protocols import (
    SNAPSHOT_PART_BYTES,
    EntryTooLarge,
    LedgerError,
    LogClosed,
    LogDamaged,
    StoreTooNew,
    VersionConflict,
    Versioned,
)
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.wire import checksums
from pulsar_txn.wire.ids import Position

from .frames import NotAFrame
from .topic import SHARED, LogSubscription, LogTopicRefused, Tail, Writer, pause_seconds

logger = logging.getLogger("pulsar_txn.tc_service")

_MAGIC: Final = b"PTXM"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">4sBB8sQqH")
_CHECKSUM: Final = struct.Struct(">I")
_ITEM: Final = struct.Struct(">BHIQ")
ANY_VERSION: Final = -2
"""`expected` where any version will do; -1: there must be no value."""
_COVERS: Final = struct.Struct(">qqI")
_MOST_WRITERS: Final = 1000
"""Incarnations of instances whose last operation is known; an older one writes no more."""

Result: TypeAlias = int | VersionConflict

_START_SECONDS: Final = 30.0
_SNAPSHOT_AFTER: Final = 1000
"""Changes between two snapshots at least; more of them where there is more to store."""


class Op(IntEnum):
    """Kind of an operation."""

    HELLO = 1
    """Nothing: whoever has read it has read everything before it."""
    PUT = 2
    DELETE = 3
    INCREMENT = 4
    PART = 5
    """A part of a snapshot."""
    END = 6
    """The snapshot of this writer is complete: `data` says which message it covers."""


class Operation(NamedTuple):
    """One operation."""

    kind: int
    writer: bytes
    sequence: int
    expected: int
    path: str
    data: bytes


class Item(NamedTuple):
    """One line of a snapshot: `V`alue, `C`ounter or `W`riter, its name, its data, its version or number."""

    kind: bytes
    name: bytes
    data: bytes
    number: int


def encode(operation: Operation) -> bytes:
    """The payload of a message."""
    path = operation.path.encode()
    kind, writer, sequence, expected = operation[:4]
    head = _HEAD.pack(_MAGIC, _VERSION, kind, writer, sequence, expected, len(path))
    body = path + operation.data
    return head + _CHECKSUM.pack(checksums.crc32c(body, checksums.crc32c(head))) + body


def decode(payload: bytes | memoryview) -> Operation:
    """The operation of a payload. NotAFrame; StoreTooNew."""
    data = bytes(payload)
    start = _HEAD.size + _CHECKSUM.size
    if len(data) < start or data[:4] != _MAGIC:
        raise NotAFrame("the payload does not begin as an operation does")
    _, version, kind, writer, sequence, expected, size = _HEAD.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _HEAD.size)
    if checksum != checksums.crc32c(data[start:], checksums.crc32c(data[: _HEAD.size])):
        raise NotAFrame("its checksum is wrong")
    if version != _VERSION:
        raise StoreTooNew(f"metadata of version {version} was written by a newer pulsar-txn; this one reads {_VERSION}")
    try:
        path = data[start : start + size].decode()
    except UnicodeDecodeError:
        raise NotAFrame("its path is no text") from None
    return Operation(kind, writer, sequence, expected, path, data[start + size :])


def encode_items(items: Iterable[Item], part_bytes: int) -> Iterator[bytes]:
    """The parts of a snapshot, each of about so many bytes, and of whole items."""
    part = bytearray()
    for kind, name, data, number in items:
        part += _ITEM.pack(kind[0], len(name), len(data), number) + name + data
        if len(part) >= part_bytes:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)


def decode_items(part: bytes) -> Iterator[Item]:
    """The items of a part. NotAFrame."""
    at = 0
    while at < len(part):
        if at + _ITEM.size > len(part):
            raise NotAFrame("a part of a snapshot ends within an item")
        kind, name_size, data_size, number = _ITEM.unpack_from(part, at)
        at += _ITEM.size
        end = at + name_size + data_size
        if end > len(part):
            raise NotAFrame("an item is longer than its part")
        yield Item(bytes((kind,)), part[at : at + name_size], part[at + name_size : end], number)
        at = end


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

    def stored(self) -> None:
        """A snapshot is complete in the topic."""
        self.since_snapshot = 0

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
    """The operations of a topic as they are read at a start, until everything is there: then `finish`.

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

    def finish(self, fold: MetadataFold, was_trimmed: bool) -> None:
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


class SharedMetadata:
    """Protocol `MetadataStore`. `start()` first.

    `get` and `children` answer what this instance has read: another instance's newest change may be on its way. What depends
    on it uses `put` with an expected version, which does not lie.
    """

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._brokers = brokers
        self._topic = topic
        self._subscription = LogSubscription(brokers, topic)
        self._nonce = int(brokers.runtime.random() * 2**52).to_bytes(8)
        self._news = asyncio.Event()
        self._writer = Writer(brokers, topic, f"pulsar-txn-metadata-{self._nonce.hex()}", self._news)
        self._tail: Tail | None = None
        self._fold = MetadataFold()
        self._catchup: Catchup | None = Catchup(topic)
        self._next = 0
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
        self._was_trimmed = False
        self._snapshot: tuple[int, Position] | None = None
        self._trimming: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._failure: LedgerError | None = None
        self._strange = 0

    async def start(self) -> None:
        """Read everything that is there. Waits a while for the cluster. Raises LogTopicRefused, LogDamaged, StoreTooNew."""
        mark = await self._until_there()
        self._was_trimmed = mark[1] >= 0
        self._tail = tail = Tail(self._brokers, self._topic, mark, self._news)
        tail.start()
        self._reading = asyncio.get_running_loop().create_task(self._follow(tail))
        await self._ask(Op.HELLO, "")

    async def _until_there(self) -> Position:
        failures, until = 0, self._brokers.runtime.monotonic() + _START_SECONDS
        while True:
            try:
                mark = await self._subscription.make()
                await self._writer.attach(SHARED)
            except AuthorizationError as error:
                raise LogTopicRefused(f"this role may not produce to and consume from {self._topic} ({error})") from None
            except PulsarError as error:
                if failures == 0:
                    logger.warning("%s cannot be used yet (%s); it is tried for %g s", self._topic, error, _START_SECONDS)
                if self._brokers.runtime.monotonic() >= until:
                    raise LogTopicRefused(
                        f"{self._topic} could not be used for {_START_SECONDS:g} s: {error};"
                        " start again when its brokers are there"
                    ) from None
            else:
                return mark
            await asyncio.sleep(pause_seconds(failures))
            failures += 1

    async def close(self) -> None:
        """Stop; what is not answered fails with LogClosed."""
        self._fail(LogClosed("the store was closed"))
        if self._reading is not None:
            self._reading.cancel()
        if self._trimming is not None:
            await asyncio.wait([self._trimming])
        if self._tail is not None:
            await self._tail.close()
        await self._writer.close()

    # ---- the protocol

    async def get(self, path: str) -> Versioned | None:
        """The value, or None."""
        return self.lookup(_checked(path))

    def lookup(self, key: str) -> Versioned | None:
        """The value of any key, also of those that are the store's own."""
        self._check()
        return self._fold.values.get(key)

    def keys(self, start: str) -> list[str]:
        """Keys that begin so."""
        self._check()
        return [key for key in self._fold.values if key.startswith(start)]

    async def put(self, path: str, data: bytes, *, expected_version: int | None = None) -> int:
        """Write; the new version. If cancelled: it may be written all the same."""
        return await self.change(Op.PUT, _checked(path), bytes(data), expected_version)

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        """Delete. If cancelled: it may be deleted all the same."""
        await self.change(Op.DELETE, _checked(path), b"", expected_version)

    async def children(self, path: str) -> list[str]:
        """Names of the direct children, sorted; looks at all keys."""
        start = "/" if path == "/" else _checked(path) + "/"
        return sorted({key[len(start) :].partition("/")[0] for key in self.keys(start)})

    async def increment(self, path: str) -> int:
        """A durable counter, one for all instances: 0, 1, 2, …"""
        return await self.change(Op.INCREMENT, _checked(path))

    def watch(self, prefix: str) -> Watcher:
        """Paths that start with `prefix` and change from now on, whoever changes them."""
        watcher = Watcher(prefix)
        self._watchers.add(watcher)
        return watcher

    async def change(self, op: Op, key: str, data: bytes = b"", expected: int | None = None) -> int:
        """An operation on any key, also on those that are the store's own."""
        check_name("metadata path", key)
        if len(data) > MAX_VALUE_BYTES:
            raise EntryTooLarge(f"metadata value of {key[:60]!r} has {len(data)} bytes, at most {MAX_VALUE_BYTES} are kept")
        result = await self._ask(op, key, data, ANY_VERSION if expected is None else expected)
        if isinstance(result, VersionConflict):
            raise result
        return result

    # ---- writing

    async def _ask(self, op: Op, key: str, data: bytes = b"", expected: int = ANY_VERSION) -> Result:
        self._check()
        number = self._send(op, key, data, expected)
        waiter: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiter
        try:
            return await waiter
        finally:
            self._waiting.pop(number, None)

    def _send(self, op: Op, key: str, data: bytes, expected: int) -> int:
        number, self._next = self._next, self._next + 1
        self._writer.send(encode(Operation(op, self._nonce, number, expected, key, data)))
        return number

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: LedgerError) -> None:
        if self._failure is None:
            self._failure = error
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            if not waiter.done():
                waiter.set_exception(error)

    # ---- reading

    async def _follow(self, tail: Tail) -> None:
        """Apply what comes in, until the store is closed or has failed."""
        try:
            while self._failure is None:
                await self._news.wait()
                self._news.clear()
                self._read(tail)
        except LedgerError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("%s cannot be read any more", self._topic)
            self._fail(LogClosed(f"{self._topic} cannot be read any more: {type(error).__name__}: {error}"))

    def _read(self, tail: Tail) -> None:
        """Apply what has come. Raises LedgerError for what ends the store."""
        while self._writer.next_receipt() is not None:
            pass  # a change has happened when it was read
        while (message := tail.next_message()) is not None:
            self._take(*message)
        ended = self._writer.lost or tail.failure
        if ended is not None:
            raise ended

    def _take(self, where: Position, producer: str, payload: memoryview) -> None:
        try:
            operation = decode(payload)
        except NotAFrame as error:
            self._strange += 1
            logger.warning(
                "%s: message %s of producer %r is no metadata and is ignored: %s", self._topic, where, producer, error
            )
            return
        is_own = operation.writer == self._nonce
        result: Result = 0
        if self._catchup is not None:
            self._catchup.take(where, operation)
        elif operation.kind in CHANGES:
            if not self._fold.is_new(operation):
                return
            result = self._fold.apply(operation)
            self._tell(operation.path)
        elif operation.kind == Op.END:
            self._fold.stored()
        if is_own:
            self._answer(operation, where, result)

    def _answer(self, operation: Operation, where: Position, result: Result) -> None:
        waiter = self._waiting.get(operation.sequence)
        if waiter is not None and not waiter.done():
            if self._catchup is not None:  # it was our HELLO: everything before it was read
                self._catchup.finish(self._fold, was_trimmed=self._was_trimmed)
                self._catchup = None
            waiter.set_result(result)
        if self._snapshot is not None and operation.sequence == self._snapshot[0]:
            self._give_back(self._snapshot[1])
            self._snapshot = None
        elif self._snapshot is None and operation.kind in CHANGES:
            fold = self._fold
            if fold.since_snapshot >= max(_SNAPSHOT_AFTER, 2 * (len(fold.values) + len(fold.counters))):
                self._store(where)

    def _store(self, covers: Position) -> None:
        """Write a snapshot of this moment."""
        parts = list(self._fold.snapshot(SNAPSHOT_PART_BYTES))
        for index, part in enumerate(parts):
            self._send(Op.PART, "", part, index)
        self._snapshot = (self._send(Op.END, "", end_data(covers, len(parts)), 0), covers)

    def _give_back(self, covers: Position) -> None:
        if self._trimming is None:
            self._trimming = asyncio.get_running_loop().create_task(self._trim(covers))

    async def _trim(self, covers: Position) -> None:
        try:
            await self._subscription.drop_until(covers)
        except PulsarError as error:
            logger.info("the metadata topic is trimmed after the next snapshot: %s", error)
        self._trimming = None

    def _tell(self, path: str) -> None:
        for watcher in list(self._watchers):
            if path.startswith(watcher.prefix):
                watcher.changed(path)


def _checked(path: str) -> str:
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError(f"metadata path {path!r}: start with '/' and do not end with it")
    return path
