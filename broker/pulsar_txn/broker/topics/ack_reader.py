"""Messages that an ACK names, judged by the entries themselves and not by what the client says of them.

A client may say any batch size, any index, any position. The size of a batch is what its entry says; sizes of delivered
batches are remembered, so that an acknowledgement costs no read. Where one is not remembered, the entry is read first.
There is also a bound for what acknowledgements add to the state of a subscription. ACKs wait until the size of a batch is read
where it was delivered long ago, or by another broker process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from pulsar_txn.broker.dispatch.position_notes import PositionNotes
from pulsar_txn.ledger.hosting import Answer
from pulsar_txn.ledger.protocols import Cursor, LedgerError, Log
from pulsar_txn.rm_pending_ack.requests import AckItem
from pulsar_txn.wire.entries import read_header
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import Position, full_ack_set

_GENERATION: Final = 8192
"""Batch sizes are kept in two generations of this many entries."""


class ColdEntries(Exception):  # noqa: N818 - no error: read these, and ask again
    """The sizes of these batches have to be read before it can be said what the ACK names."""

    def __init__(self, positions: Sequence[Position]) -> None:
        super().__init__(f"{len(positions)} entries are not at hand")
        self.positions = positions


class AckReader:
    """Reads the ids of ACKs for one subscription."""

    __slots__ = ("_cursor", "_log", "_max_bytes", "_older", "_sizes")

    def __init__(self, log: Log, cursor: Cursor, max_bytes: int) -> None:
        self._log = log
        self._cursor = cursor
        self._max_bytes = max_bytes
        self._sizes: dict[Position, int] = {}
        self._older: dict[Position, int] = {}

    def batch_delivered(self, position: Position, batch_size: int) -> None:
        """Remember the size of a batch, or 0 for an entry that is not a batch."""
        if len(self._sizes) >= _GENERATION:
            self._older, self._sizes = self._sizes, {}
        self._sizes[position] = batch_size

    def read(
        self, ids: Sequence[AckId], given: PositionNotes[tuple[int, int]] | None, *, strict: bool
    ) -> tuple[list[Position], list[AckItem]]:
        """Whole entries, and parts of batches. `given` says what "the whole entry" means where it is less than all of it.

        Refusal NotAllowedError, when `strict`, for what cannot be: no such position, another batch size, an index of an
        entry that is no batch. Otherwise such ids are left out, for nobody waits for an answer. Raises ColdEntries.
        """
        whole: list[Position] = []
        parts: list[AckItem] = []
        cold: list[Position] = []
        last = self._log.last_appended
        for ledger_id, entry_id, ack_set, batch_size in ids:
            position = (ledger_id, entry_id)
            if position > last:
                _wrong(strict, f"there is no message {ledger_id}:{entry_id}")
            elif ack_set is None:
                if given is not None and position in given:
                    parts.append((position, *given[position]))
                else:
                    whole.append(position)
            elif self._cursor.is_deleted(position):
                whole.append(position)
            elif (size := self._size(position)) is None:
                cold.append(position)
            elif batch_size and batch_size != max(size, 1):
                text = f"the batch {ledger_id}:{entry_id} has {size} messages, not {batch_size}"
                _wrong(strict, f"{text}; acknowledge with the batch size that its metadata says")
            elif size:
                parts.append((position, full_ack_set(size) & ~ack_set, size))
            elif not ack_set:
                whole.append(position)
            else:
                _wrong(strict, f"{ledger_id}:{entry_id} is no batch; acknowledge it without an ack_set")
        if cold:
            raise ColdEntries(cold)
        return whole, parts

    def _size(self, position: Position) -> int | None:
        size = self._sizes.get(position)
        if size is None:
            size = self._older.get(position)
        if size is None and (entry := self._log.read_cached(position)) is not None:
            size = self._note(position, entry)
        return size

    def _note(self, position: Position, entry: bytes) -> int:
        try:
            size = read_header(entry).num_messages or 0
        except WireError:  # delivered it cannot be; nothing of it can be acknowledged but all
            size = 0
        self.batch_delivered(position, size)
        return size

    async def fetch(self, positions: Sequence[Position]) -> None:
        """Read the sizes of entries that are not at hand. Raises LedgerError. If cancelled: some of them are read."""
        for position in positions:
            if self._size(position) is None:
                entries = await self._log.read(position, max_entries=1)
                if entries and entries[0][0] == position:
                    self._note(position, entries[0][1])
                else:
                    self.batch_delivered(position, 0)

    def admitted(self, whole: list[Position], parts: list[AckItem], *, strict: bool) -> tuple[list[Position], list[AckItem]]:
        """Return what of it may still be held: all, or with too much held already, what adds nothing.

        Refusal TooManyRequests, when `strict`, when that is not all.
        """
        full = self._cursor.state_full()
        if not full and self._cursor.state_bytes() < self._max_bytes:
            return whole, parts
        kept = [position for position in whole if self._adds_nothing(position)]
        kept_parts = [part for part in parts if self._adds_nothing(part[0])]
        if strict and (len(kept), len(kept_parts)) != (len(whole), len(parts)):
            ledger_id, entry_id = self._log.next_position(self._cursor.mark_delete)
            text = (
                f"subscription {self._cursor.name!r} keeps {self._cursor.state_bytes()} bytes of acknowledgements out of order"
            )
            key = "maxStoreStateBytes" if full else "maxAckStateBytesPerSubscription"
            advice = f"acknowledge {ledger_id}:{entry_id} first, or raise {key}"
            raise Refusal(ServerError.TooManyRequests, f"{text}; {advice}")
        return kept, kept_parts

    def _adds_nothing(self, position: Position) -> bool:
        cursor = self._cursor
        if position == self._log.next_position(cursor.mark_delete):
            return True
        return cursor.ack_set(position) is not None or cursor.is_deleted(position)


def _wrong(strict: bool, text: str) -> None:
    if strict:
        raise Refusal(ServerError.NotAllowedError, text)


MAX_WAITING: Final = 1000
"""ACKs of one subscription that wait; more are refused."""


class ColdAcks:
    """Reads for them one after the other, in the order of their coming."""

    def __init__(self, reader: AckReader) -> None:
        self._reader = reader
        self._waiting: deque[tuple[Sequence[Position], Callable[[], None], Answer | None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, positions: Sequence[Position], again: Callable[[], None], answer: Answer | None) -> None:
        """Call `again` once the sizes of these entries are known; when they cannot be read, `answer` says why."""
        if len(self._waiting) >= MAX_WAITING:
            if answer is not None:
                text = f"{MAX_WAITING} acknowledgements of this subscription wait for their batches to be read; retry"
                answer(None, ServerError.TooManyRequests, text)
            return
        self._waiting.append((positions, again, answer))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            while self._waiting:
                positions, again, answer = self._waiting[0]
                try:
                    await self._reader.fetch(positions)
                except LedgerError as error:
                    self._waiting.popleft()
                    if answer is not None:
                        answer(None, ServerError.PersistenceError, str(error))
                else:
                    self._waiting.popleft()
                    again()
        finally:
            self._task = None

    async def close(self) -> None:
        """Stop reading; those that wait are told to try again."""
        waiting, self._waiting = self._waiting, deque()
        for _, _, answer in waiting:
            if answer is not None:
                answer(None, ServerError.ServiceNotReady, "the subscription is closed; retry")
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
