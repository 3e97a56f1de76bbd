"""The metadata store of a `TopicStore`: a topic that all instances write to, and each of them reads.

A change is an operation in the topic. It has happened when it was read back, and so its writer knows what came before it.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import Final

from pulsar_txn.client.errors import AuthorizationError, PulsarError
from pulsar_txn.ledger.handles import MAX_VALUE_BYTES
from pulsar_txn.ledger.metadata import Watcher
from pulsar_txn.ledger.names import check_name
from pulsar_txn.ledger.protocols import (
    SNAPSHOT_PART_BYTES,
    EntryTooLarge,
    LedgerError,
    LogClosed,
    VersionConflict,
    Versioned,
)
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.wire.ids import Position

from .errors import LogTopicRefused
from .frames import NotAFrame
from .line import pause_seconds
from .metadata_fold import CHANGES, Catchup, MetadataFold, Result, end_data
from .metadata_records import ANY_VERSION, Op, Operation, decode, encode
from .place import Place
from .tail import Tail
from .writer import SHARED, Writer

logger = logging.getLogger("pulsar_txn.tc_service")

_START_SECONDS: Final = 30.0
_SNAPSHOT_AFTER: Final = 1000
"""Changes between two snapshots at least; more of them where there is more to store."""


class SharedMetadata:
    """Protocol `MetadataStore`. `start()` first.

    `get` and `children` answer what this instance has read: another instance's newest change may be on its way. What depends
    on it uses `put` with an expected version, which does not lie.
    """

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._brokers = brokers
        self._topic = topic
        self._place = Place(brokers, topic)
        self._nonce = int(brokers.runtime.random() * 2**52).to_bytes(8)
        self._writer = Writer(brokers, topic, f"pulsar-txn-metadata-{self._nonce.hex()}")
        self._writer.when_lost = self._fail
        self._tail: Tail | None = None
        self._fold = MetadataFold()
        self._catchup: Catchup | None = Catchup(topic)
        self._next = 0
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
        self._was_trimmed = False
        self._snapshot: tuple[int, Position] | None = None
        self._trimming: asyncio.Task[None] | None = None
        self._failure: LedgerError | None = None
        self._strange = 0

    async def start(self) -> None:
        """Read everything that is there. Waits a while for the cluster. Raises LogTopicRefused, LogDamaged, StoreTooNew."""
        mark = await self._until_there()
        self._was_trimmed = mark[1] >= 0
        self._tail = tail = Tail(self._brokers, self._topic, mark, self._take)
        tail.start()
        hello = asyncio.ensure_future(self._ask(Op.HELLO, ""))
        ended = asyncio.ensure_future(tail.until(hello.done))
        try:
            await asyncio.wait([hello, ended], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
            await hello
        finally:
            for task in (hello, ended):
                task.cancel()
            await asyncio.gather(hello, ended, return_exceptions=True)

    async def _until_there(self) -> Position:
        failures, until = 0, self._brokers.runtime.monotonic() + _START_SECONDS
        while True:
            try:
                mark = await self._place.make()
                await self._writer.attach(SHARED)
            except AuthorizationError as error:
                raise LogTopicRefused(f"this role may not produce to and consume from {self._topic} ({error})") from None
            except PulsarError as error:
                if failures == 0:
                    logger.warning("%s cannot be used yet: %s", self._topic, error)
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
        failure: Exception | None = self._failure
        if failure is None and self._tail is not None:
            failure = self._tail.failure
        if failure is not None:
            raise failure

    def _fail(self, error: LedgerError) -> None:
        if self._failure is None:
            self._failure = error
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            if not waiter.done():
                waiter.set_exception(error)

    # ---- reading

    def _take(self, where: Position, producer: str, payload: memoryview) -> bool:
        try:
            operation = decode(payload)
        except NotAFrame as error:
            self._strange += 1
            logger.warning("the metadata ignores message %s of producer %r: %s", where, producer, error)
            return False
        is_own = operation.writer == self._nonce
        result: Result = 0
        if self._catchup is not None:
            self._catchup.take(where, operation)
        elif operation.kind in CHANGES:
            if not self._fold.is_new(operation):
                return False
            result = self._fold.apply(operation)
            self._tell(operation.path)
        elif operation.kind == Op.END:
            self._fold.since_snapshot = 0
        if is_own:
            self._answer(operation, where, result)
        return True

    def _answer(self, operation: Operation, where: Position, result: Result) -> None:
        waiter = self._waiting.get(operation.sequence)
        if waiter is not None and not waiter.done():
            if self._catchup is not None:  # it was our HELLO: everything before it was read
                self._catchup.settle(self._fold, was_trimmed=self._was_trimmed)
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
            await self._place.drop_until(covers)
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
