"""Compaction: of each key the newest committed message, in a log of its own, for readers that ask for no more.

In two phases, as Pulsar does it: first which message of each key is the newest, then those are copied. The copy is complete
once its snapshot is stored, which says up to where the topic is compacted (the horizon); until then the one before is read.
Positions stay those of the topic. A message without payload removes its key, one without key is left out.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator
from typing import Final, TypeAlias
from urllib.parse import quote

from pulsar_txn.broker.base.slices import LoopBudget
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.protocols import LedgerError, Log, LogStore, Snapshot
from pulsar_txn.wire.entries import read_header
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import EARLIEST, Position
from pulsar_txn.wire.topics import TopicName

from .buffer_host import BufferHost
from .compacted_entries import CHUNK, Newest, keys_of, reduced

_logger = logging.getLogger(__name__)

NOT_RUN, RUNNING, SUCCESS, ERROR = "NOT_RUN", "RUNNING", "SUCCESS", "ERROR"
"""Pulsar's words for the state of a compaction."""

_HORIZON: Final = struct.Struct(">qq")
_PLACE: Final = struct.Struct(">qq")
_FLUSH_BYTES: Final = 4 << 20
_Found: TypeAlias = "dict[str, Newest]"


def compacted_log_names(topic: TopicName) -> tuple[str, str]:
    """Two logs that take turns: one is read while the other is written. Outside the names of topics."""
    base = f"{topic.tenant}/{topic.namespace}/compacted/{quote(topic.name, safe='')}"
    return f"{base}-0", f"{base}-1"


def pack_entry(position: Position, entry: bytes) -> list[bytes]:
    """The bytes of one entry of the copy: where it stood in the topic, and the entry."""
    return [_PLACE.pack(*position), entry]


class CompactedView:
    """One complete copy: entries in the order of the topic, found by their positions there; 32 bytes of memory each."""

    def __init__(self, log: Log, horizon: Position, *, loaded: bool = False) -> None:
        self.horizon = horizon
        self.name = log.name
        self._log = log
        self._loaded = loaded
        self._places = array("q")  # ledger and entry in the topic, ledger and entry in the copy

    def __len__(self) -> int:
        return len(self._places) // 4

    def note(self, position: Position, stored_at: Position) -> None:
        """An entry was copied."""
        self._places.extend((*position, *stored_at))

    async def load(self, budget: LoopBudget) -> None:
        """Learn what is in the copy. Raises LedgerError. If cancelled: it is not loaded."""
        if self._loaded:
            return
        places = array("q")
        start = self._log.first
        while start is not None:
            await budget.pause()
            entries = await self._log.read(start, max_entries=256)
            for stored_at, data in entries:
                places.extend((*_PLACE.unpack_from(data), *stored_at))
            start = self._log.next_position(entries[-1][0]) if entries else None
        self._places, self._loaded = places, True

    @property
    def last(self) -> Position | None:
        """The last position that is in the copy."""
        return self._position(len(self) - 1) if len(self) else None

    def at_or_after(self, position: Position) -> Position | None:
        """The first position from this one on that is in the copy."""
        found = self._index(position)
        return self._position(found) if found < len(self) else None

    async def read(self, start: Position, max_entries: int, max_bytes: int) -> list[tuple[Position, bytes]]:
        """Entries from `start` on. An empty list means the end. Raises LedgerError."""
        found = self._index(start)
        if found == len(self):
            return []
        ledger_id, entry_id = self._places[4 * found + 2 : 4 * found + 4]
        stored = await self._log.read((ledger_id, entry_id), max_entries=max_entries, max_bytes=max_bytes)
        return [(_PLACE.unpack_from(data), data[_PLACE.size :]) for _, data in stored]

    async def close(self) -> None:
        """Release the log."""
        await self._log.close()

    def _index(self, position: Position) -> int:
        return bisect_left(range(len(self)), position, key=self._position)

    def _position(self, index: int) -> Position:
        ledger_id, entry_id = self._places[4 * index : 4 * index + 2]
        return ledger_id, entry_id


class CompactedSource:
    """Source that a dispatcher reads: up to the horizon the copy, after it the topic's log. Without a copy: the log."""

    def __init__(self, log: Log, compaction: Compaction) -> None:
        self._log = log
        self._compaction = compaction

    def next_position(self, position: Position) -> Position:
        """The position to be read after this one."""
        view = self._compaction.view
        if view is None or position >= view.horizon:
            return self._log.next_position(position)
        found = view.at_or_after((position[0], position[1] + 1))
        return self._log.next_position(view.horizon) if found is None else found

    def read_cached(self, position: Position) -> bytes | None:
        """An entry that is at hand; those of the copy never are."""
        view = self._compaction.view
        return None if view is not None and position <= view.horizon else self._log.read_cached(position)

    async def read(self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20) -> list[tuple[Position, bytes]]:
        """Entries from `start` on, as `Log.read`. Raises LedgerError."""
        while True:
            view = self._compaction.view
            if view is None or start > view.horizon:
                return await self._log.read(start, max_entries=max_entries, max_bytes=max_bytes)
            try:
                found = await view.read(start, max_entries, max_bytes)
            except LedgerError:
                if view is self._compaction.view:
                    raise
                continue  # a newer copy took its place meanwhile
            if found:
                return found
            start = self._log.next_position(view.horizon)


class Compaction:
    """The compacted copy of one topic, and the work that makes it. `view` is None for a topic that never was compacted."""

    def __init__(self, name: TopicName, log: Log, host: BufferHost, turn: Turn, store: LogStore) -> None:
        self.view: CompactedView | None = None
        self.status = NOT_RUN
        self.error = ""
        self.source = CompactedSource(log, self)
        self._name = name
        self._log = log
        self._host = host
        self._turn = turn
        self._store = store
        self._names = compacted_log_names(name)
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Find the newest complete copy; what is left of others goes. Raises LedgerError."""
        for name in self._names:
            if not self._store.exists(name):
                continue
            log = await self._store.open(name)
            snapshot = await log.latest_snapshot()
            horizon = EARLIEST if snapshot is None else _HORIZON.unpack(snapshot.data)
            if snapshot is None or (self.view is not None and horizon < self.view.horizon):
                await log.close()
                await self._store.delete(name)
                continue
            await self._show(CompactedView(log, horizon))

    @property
    def needed_from(self) -> Position | None:
        """Nothing after this position may be trimmed, because it is not in the copy yet. None: no copy is wanted."""
        if self.view is not None:
            return self.view.horizon
        return EARLIEST if self.status == RUNNING else None

    async def load(self) -> None:
        """Make the copy ready to be read. Raises LedgerError."""
        if self.view is not None:
            await self.view.load(self._turn.budget)

    async def last_message(self, position: Position, batch_size: int) -> tuple[Position, int]:
        """The last entry that readers of the copy see, and its batch size (-1: one message), given that of the topic."""
        if self.view is None or position > self.view.horizon:
            return position, batch_size
        last = self.view.last
        if last is None:
            return EARLIEST, -1
        ((_, data),) = await self.source.read(last, max_entries=1)
        header = read_header(data)
        return last, header.num_messages if header.num_messages is not None else -1

    def start(self) -> None:
        """Compact up to what readers may see now. Refusal NotAllowedError while that is under way."""
        if self.status == RUNNING:
            raise Refusal(ServerError.NotAllowedError, "Compaction already in progress")
        self.status = RUNNING
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop what is under way, and release the log."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.view is not None:
            await self.view.close()

    async def delete(self) -> None:
        """Delete the copy; call `close` before."""
        for name in self._names:
            await self._store.delete(name)

    # ---- the work

    async def _run(self) -> None:
        horizon = self._host.published
        name = self._names[self.view is not None and self.view.name == self._names[0]]
        try:
            await self.load()
            found, unfinished = await self._newest(horizon)
            await self._store.delete(name)  # what a compaction left that did not come to its end
            log = await self._store.open(name)
            try:
                view = await self._copy(log, horizon, found, unfinished)
            except BaseException:
                await log.close()
                raise
            await self._show(view)
        except (LedgerError, WireError) as error:
            _logger.warning("%s was not compacted: %s", self._name, error)
            self.status, self.error = ERROR, str(error)
        else:
            self.status, self.error = SUCCESS, ""

    async def _entries(self, horizon: Position) -> AsyncIterator[tuple[Position, bytes]]:
        """The previous copy, and what came after it: everything committed up to the horizon."""
        start, budget, buffer = self.source.next_position(EARLIEST), self._turn.budget, self._host.buffer
        while start <= horizon:
            entries = await self.source.read(start, max_entries=256, max_bytes=1 << 20)
            for position, data in entries:
                await budget.pause()  # an entry may be a batch of many messages
                if position <= horizon and not buffer.is_hidden(position, read_header(data)):
                    yield position, data
            if not entries:
                return
            start = self.source.next_position(entries[-1][0])

    async def _newest(self, horizon: Position) -> tuple[_Found, set[bytes]]:
        """Phase one: where the newest message of each key is, and which messages have chunks after the horizon."""
        found: _Found = {}
        unfinished: set[bytes] = set()
        async for position, data in self._entries(horizon):
            for key, index, has_payload, chunk in keys_of(data):
                if chunk is not None and not chunk.is_last:
                    unfinished.add(chunk.uuid)
                    continue
                if chunk is not None:
                    unfinished.discard(chunk.uuid)
                if key is None:
                    continue
                if has_payload:
                    found[key] = (position, index) if chunk is None else (CHUNK, chunk.uuid)
                else:
                    found.pop(key, None)
        return found, unfinished

    async def _copy(self, log: Log, horizon: Position, found: _Found, unfinished: set[bytes]) -> CompactedView:
        """Phase two: those messages into the new log; what else is in their batches stays as an empty place."""
        view, unflushed = CompactedView(log, horizon, loaded=True), 0
        async for position, data in self._entries(horizon):
            kept = reduced(position, data, found, unfinished)
            if kept is None:
                continue
            view.note(position, log.append(pack_entry(position, kept)))
            unflushed += len(kept)
            if unflushed >= _FLUSH_BYTES:
                unflushed = 0
                await log.flush()
        await log.flush()
        log.put_snapshot(Snapshot(log.last_confirmed, (_HORIZON.pack(*horizon),)))
        await log.flush()
        return view

    async def _show(self, view: CompactedView) -> None:
        """From now on this copy is read; the one before goes."""
        before, self.view = self.view, view
        if before is not None:
            await before.close()
            await self._store.delete(before.name)
