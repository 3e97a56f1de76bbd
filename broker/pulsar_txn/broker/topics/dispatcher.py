"""The dispatcher of a subscription: the shell around its dispatch machine, and the moves of its cursor that concern it.

It is woken (by a confirmed publish, a transaction's end, permits, a connection that can be written again, something to
redeliver) and then works once at the end of the loop turn: it reads up to the topic's `published` position and never polls for
more. It reads only the header of an entry; payloads are handed on as they lie in the log.

Markers and aborted entries go to no consumer. They are acknowledged on its behalf, but together with the acknowledgement
next to them: their positions are remembered (`hidden`) when the dispatcher passes them, and join the change of the cursor
that reaches them. So they cost no change and leave no hole of their own. It always holds that no hidden entry follows an
acknowledged one: every path that acknowledges something (plain, in a transaction, cumulative, the last index of a batch)
comes through `CursorMoves`, so that it holds after each of them.

Everything that settles entries comes through here: the cursor moves, and the machine is told. Which entry goes to whom is the
machine's to say (`dispatch.machine`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.catalog.policies import TopicRules
from pulsar_txn.broker.dispatch.consumers import Consumer
from pulsar_txn.broker.dispatch.machine import Activate, Dispatch, Effect, Rewind, SingleActive, TellActive
from pulsar_txn.broker.dispatch.position_notes import PositionNotes
from pulsar_txn.ledger.machine import MoveCursor
from pulsar_txn.ledger.protocols import Cursor, LedgerError, Log, ReadFailed
from pulsar_txn.rm_pending_ack.requests import AckItem, PendingAck
from pulsar_txn.wire.entries import read_header
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import EntryHeader, Position, full_ack_set

from .ack_reader import AckReader
from .context import TopicContext

_logger = logging.getLogger(__name__)

ENTRIES_PER_TURN: Final = 512
BYTES_PER_TURN: Final = 2 << 20
"""A dispatcher gives the loop back after this much, and goes on in the next turn."""

READ_RETRY_SECONDS: Final = 1.0
_LONGEST_TIMER_SECONDS: Final = 3600.0


MAX_HIDDEN: Final = 4096
"""Hidden entries that are remembered. More than these, after a message that nobody acknowledges, are acknowledged at once."""


class CursorMoves:
    """Moves the cursor of one subscription. What raises LedgerError has the log closed."""

    __slots__ = ("_cursor", "_log", "hidden")

    def __init__(self, cursor: Cursor, log: Log) -> None:
        self.hidden: PositionNotes[None] = PositionNotes(cursor.is_deleted)
        self._cursor = cursor
        self._log = log

    def delete(self, positions: list[Position]) -> None:
        """Acknowledge whole entries."""
        self._cursor.delete(self._with_hidden(positions) if self.hidden else positions)

    def delete_indexes(self, items: Iterable[AckItem]) -> None:
        """Acknowledge batch indexes; an entry is done with after its last one."""
        cursor = self._cursor
        for position, acked, batch_size in items:
            if acked is not None:
                cursor.delete_indexes(position, acked, batch_size)
                if self.hidden and cursor.is_deleted(position):
                    self._absorb_after(position)

    def delete_upto(self, position: Position, acked: int | None, batch_size: int) -> None:
        """Acknowledge everything before `position`, and of its own entry the indexes in `acked` (None: all)."""
        if acked is None:
            self._cursor.mark_delete_to(position)
        else:
            self._cursor.mark_delete_to((position[0], position[1] - 1))
            self._cursor.delete_indexes(position, acked, batch_size)
        if self.hidden:
            self._absorb_after(self._cursor.mark_delete)

    def hide(self, position: Position) -> None:
        """The dispatcher passed an entry that is for nobody."""
        cursor = self._cursor
        if self._log.next_position(cursor.mark_delete) == position:
            self._cursor.mark_delete_to([position, *self._hidden_after(position)][-1])
        elif cursor.is_deleted((position[0], position[1] - 1)):
            self.delete([position])
        else:
            self.hidden.put(position, None)
            if len(self.hidden) >= MAX_HIDDEN:
                cursor.delete(sorted(self.hidden))
                self.hidden.clear()

    def reset(self, mark_delete: Position) -> int:
        """Put the cursor to `mark_delete`; everything after it is read again. Returns the ticket."""
        self.hidden.clear()
        return self._cursor.reset(mark_delete)

    def _with_hidden(self, positions: list[Position]) -> list[Position]:
        return [*positions, *(hidden for position in positions for hidden in self._hidden_after(position))]

    def _absorb_after(self, position: Position) -> None:
        run = self._hidden_after(position)
        if not run:
            return
        if position == self._cursor.mark_delete:
            self._cursor.mark_delete_to(run[-1])
        else:
            self._cursor.delete(run)

    def _hidden_after(self, position: Position) -> list[Position]:
        """The hidden entries that follow a position without a gap; they are hidden no more."""
        run: list[Position] = []
        following = self._log.next_position
        after = following(position)
        while after in self.hidden:
            self.hidden.discard(after)
            run.append(after)
            after = following(after)
        return run


class Source(Protocol):
    """Source that a dispatcher reads: the topic's log, or its compacted copy followed by the rest of the log."""

    def next_position(self, position: Position) -> Position:
        """The position to be read after this one."""

    def read_cached(self, position: Position) -> bytes | None:
        """The entry, if it is at hand without waiting."""

    async def read(self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20) -> list[tuple[Position, bytes]]:
        """Entries from `start` on, or from the next one that is there."""


class Dispatcher:
    """Shell of the dispatch of one subscription.

    `machine` is another one when consumers of another type come. `on_failed` is called when an entry cannot be delivered.
    """

    def __init__(
        self,
        name: str,
        topic: TopicContext,
        cursor: Cursor,
        reader: AckReader,
        rules: TopicRules,
        on_failed: Callable[[Exception], None],
    ) -> None:
        self.cursor = cursor
        self.moves = CursorMoves(cursor, topic.log)
        self._name = name
        self._topic = topic
        self._turn: Turn = topic.turn
        self._host = topic.host
        self._reader = reader
        self._on_failed = on_failed
        self._pending_ack: PendingAck | None = None
        self._rules = rules
        self._source: Source = topic.log
        self.machine: Dispatch = SingleActive(self._start(), failover=False, partition=topic.name.partition)
        self._is_due = False
        self._is_closed = False
        self._reading: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._fetched: dict[Position, bytes] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms: float = 0

    def __repr__(self) -> str:
        return f"subscription {self._name!r} of {self._topic.name}"

    @property
    def read_position(self) -> Position:
        """The position after the last entry that was read."""
        return self.machine.read_position

    def use(self, machine: Dispatch) -> None:
        """Consumers of another type come: this machine says from now on who gets what."""
        self._stop()
        self.machine = machine
        self._source = self._topic.log
        self._rewind()

    def use_pending_ack(self, handle: PendingAck | None) -> None:
        """The handle of the subscription's pending acknowledgements is open, or not any more."""
        self._pending_ack = handle

    def set_rules(self, rules: TopicRules) -> None:
        """The namespace's policies changed: what waits for its time may go out."""
        self._rules = rules
        self.wake()

    def close(self) -> None:
        """Stop reading. Nothing goes out any more."""
        self._is_closed = True
        self.machine.close()
        self._stop()

    def _stop(self) -> None:
        self._forget_delayed()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    # ---- consumers

    def add(self, consumer: Consumer) -> None:
        """A consumer came. Raises Refusal when there is no place for it."""
        self._perform(self.machine.add(consumer))
        self.wake()

    def remove(self, consumer: Consumer) -> None:
        """A consumer is gone."""
        self._perform(self.machine.remove(consumer))
        if not self.machine.consumers:
            self._forget_delayed()
        self.wake()

    def redeliver(self, consumer: Consumer, positions: Iterator[Position] | None) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES; None: all that the consumer holds."""
        self._perform(self.machine.redeliver(consumer, positions))
        self.wake()

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Rewind():
                    self._rewind()
                case Activate(consumer):
                    is_compacted = consumer is not None and consumer.read_compacted
                    self._source = self._topic.compaction.source if is_compacted else self._topic.log
                case TellActive(consumer, is_active):
                    consumer.owner.active_changed(consumer, is_active)

    def _rewind(self) -> None:
        """Start again after the mark-delete position."""
        self._forget_delayed()
        self._fetched.clear()
        self.moves.hidden.clear()
        self.machine.rewind(self._start())
        self.wake()

    def _start(self) -> Position:
        return self._source.next_position(self.cursor.mark_delete)

    # ---- what is settled, or comes back

    def delete(self, positions: list[Position]) -> None:
        """Acknowledge whole entries for good."""
        self.moves.delete(positions)
        machine = self.machine
        if machine.individual:
            for position in positions:
                machine.settled(position, None)
            self.wake()

    def delete_indexes(self, items: Sequence[AckItem]) -> None:
        """Acknowledge parts of batches for good."""
        self.moves.delete_indexes(items)
        machine, cursor = self.machine, self.cursor
        if machine.individual:
            for position, acked, _ in items:
                machine.settled(position, None if cursor.is_deleted(position) else acked)
            self.wake()

    def delete_upto(self, position: Position, acked: int | None, batch_size: int) -> None:
        """Acknowledge everything before `position`, and of its own entry the indexes in `acked` (None: all)."""
        self.moves.delete_upto(position, acked, batch_size)

    def pledge(self, whole: Sequence[Position], parts: Sequence[AckItem]) -> None:
        """An open transaction acknowledged these: consumers hold them for their keys only, until an abort gives them back."""
        for position in whole:
            self.machine.pledged(position, None)
        for position, indexes, _ in parts:
            self.machine.pledged(position, indexes)
        self.wake()

    def acknowledged_by(self, consumer: Consumer, whole: Sequence[Position], parts: Sequence[AckItem]) -> None:
        """A consumer acknowledged these. On Failover, others may have been given them as well."""
        machine = self.machine
        if not machine.individual and len(machine.consumers) > 1 and (whole or parts):
            machine.acknowledged_by(consumer, min([*whole, *(part[0] for part in parts)]))

    def acknowledged_upto_by(self, consumer: Consumer) -> None:
        """A consumer acknowledges everything that is left, up to some message."""
        if len(self.machine.consumers) > 1:
            self.machine.acknowledged_by(consumer, self._topic.log.next_position(self.cursor.mark_delete))

    def apply_move(self, move: MoveCursor) -> None:
        """Acknowledge what a transaction committed."""
        individual = move.individual
        if len(individual) == 1 and individual[0][1] is None:  # nearly every transaction's
            self.delete([individual[0][0]])
        else:
            whole = [position for position, acked, _ in individual if acked is None]
            if len(whole) < len(individual):
                self.delete_indexes([item for item in individual if item[1] is not None])
            if whole:
                self.delete(whole)
        if move.cumulative is not None:
            position, left, batch_size = move.cumulative
            acked = None if not left else full_ack_set(batch_size) & ~left
            self.delete_upto(position, acked, batch_size)

    @property
    def releases_one_by_one(self) -> bool:
        """True if what is given back is delivered again by itself, and not everything that follows the first of it."""
        return self.machine.individual

    def release(self, positions: Sequence[tuple[Position, int | None]]) -> None:
        """Deliver again what a transaction gave back."""
        machine = self.machine
        if machine.individual:
            for position, indexes in positions:
                machine.release(position, indexes)
        else:
            self._perform(machine.release(*min(positions, key=lambda each: each[0])))
        self.wake()

    def reset(self, mark_delete: Position) -> int:
        """Put the cursor to `mark_delete`, and read on after it. Returns the cursor's ticket."""
        ticket = self.moves.reset(mark_delete)
        self._rewind()
        return ticket

    # ---- work of a turn

    def wake(self) -> None:
        """Dispatch at the end of this turn."""
        if not self._is_due:
            self._is_due = True
            self._turn.defer(self._run)

    def _run(self) -> None:
        self._is_due = False
        if self._reading is None and not self._is_closed:
            try:
                self._dispatch()
            except WireError as error:
                self._on_failed(error)

    def _dispatch(self) -> None:
        machine, source, rules = self.machine, self._source, self._rules
        published, entries, size = self._host.published, ENTRIES_PER_TURN, BYTES_PER_TURN
        now_ms: float = self._turn.now_ms if rules.delays else float("inf")
        machine.begin(now_ms, rules.delay_tick_ms)
        if machine.must_look and self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        while (position := machine.wanted(published)) is not None:
            if entries <= 0 or size <= 0:
                self.wake()
                break
            data = source.read_cached(position)
            if data is None:
                data = self._fetched.pop(position, None)
                if data is None:
                    self._fetched.clear()
                    self._reading = asyncio.get_running_loop().create_task(self._read(position))
                    break
            entries -= 1
            live, batch_size, pending, header = self._live(position, data)
            delivery = machine.offer(position, source.next_position(position), live, batch_size, pending, header, data)
            if delivery is not None:
                consumer, ack_set, redeliveries = delivery
                if batch_size:
                    self._reader.batch_delivered(position, batch_size)
                consumer.send(position, data, ack_set, batch_size, redeliveries)
                size -= len(data)
        due_ms = machine.end(now_ms)
        if due_ms is not None:
            self._come_back(now_ms, due_ms)

    def _live(self, position: Position, data: bytes) -> tuple[int, int, int, EntryHeader | None]:
        """Indexes of an entry that may be delivered, its batch size, the indexes in open transactions, and its header.

        Nothing of markers, of aborted data, and of what is acknowledged.
        """
        cursor, handle = self.cursor, self._pending_ack
        if cursor.is_deleted(position):
            return 0, 0, 0, None
        header = read_header(data)
        if self._host.buffer.is_hidden(position, header):
            self.moves.hide(position)
            return 0, 0, 0, None
        pending = 0 if handle is None else handle.pending(position)
        batch_size = header.num_messages
        if batch_size is None:
            return (0, 0, 1, header) if pending else (1, 0, 0, header)
        live = full_ack_set(batch_size)
        left = cursor.ack_set(position)
        if left is not None:
            live &= left
        # What is committed stays pending until the cursor's move is durable; it is not left.
        return live & ~pending, batch_size, live & pending, header

    def _come_back(self, now_ms: float, due_ms: float) -> None:
        if due_ms <= now_ms:
            if self._reading is None:
                self.wake()
            return
        if self._timer is not None:
            if self._timer_at_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = due_ms
        delay = min((due_ms - now_ms) / 1000, _LONGEST_TIMER_SECONDS)
        self._timer = self._turn.runtime.call_later(delay, self._time_has_come)

    def _time_has_come(self) -> None:
        self._timer = None
        self.wake()

    def _forget_delayed(self) -> None:
        """Nothing waits for its time any more: the log is read again, or nobody is there to read."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    # ---- reading

    async def _read(self, position: Position) -> None:
        config = self._topic.config
        entries: list[tuple[Position, bytes]] | None
        try:
            entries = await self._source.read(
                position,
                max_entries=config.dispatcher_max_read_batch_size,
                max_bytes=min(config.dispatcher_max_read_size_bytes, BYTES_PER_TURN),
            )
        except ReadFailed as error:  # nothing is proven to be damaged: ask again, unless a seek has led elsewhere by then
            _logger.warning("%s cannot read its topic, next attempt in %g s: %s", self, READ_RETRY_SECONDS, error)
            await asyncio.sleep(READ_RETRY_SECONDS)
            entries = None
        except LedgerError as error:
            self._on_failed(error)
            return
        finally:
            if self._reading is asyncio.current_task():  # it is another one's when this was cancelled
                self._reading = None
        if entries is None:
            self.wake()
            return
        self._fetched = dict(entries)
        if not entries:
            return  # woken when something is published
        first = entries[0][0]
        if first != position:  # trimmed meanwhile
            self.machine.trimmed(position, first)
        self.wake()

    async def _look(self) -> None:
        """Read again what was passed, for the delayed entries that were forgotten."""
        machine = self.machine
        log, buffer, cursor = self._topic.log, self._host.buffer, self.cursor
        machine.begin_look()
        start, end = log.next_position(cursor.mark_delete), machine.read_position
        try:
            while start < end:
                await self._turn.budget.pause()
                entries = await log.read(start, max_entries=256)
                for position, data in entries:
                    header = read_header(data)
                    deliver_at_ms = None if header.hints is None else header.hints.deliver_at_ms
                    if deliver_at_ms is None or position >= end or buffer.is_hidden(position, header):
                        continue
                    if not (cursor.is_deleted(position) or machine.has(position)):
                        machine.delay(position, deliver_at_ms)
                if not entries:
                    break
                start = log.next_position(entries[-1][0])
        except (LedgerError, WireError) as error:
            self._on_failed(error)
        machine.end_look()
        self._looking = None
        self.wake()
