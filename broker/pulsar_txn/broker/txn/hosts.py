"""Asyncio hosts of machines: `MachineHost`, and on it the host of transaction buffers.

What a host owes its machine is `ledger.hosting.Host`. A `MachineHost` adds timers, the turn of the loop and the reads of a
recovery. Each kind of machine has a host of its own, since each carries out other effects; that of coordinators is in
`coordinator_host`, that of pending-ack handles in `topics.pending_ack_host`. No host decides anything of a transaction.

`BufferHost` is the path of every published entry, and says what readers may see. A plain entry is appended and applied without
a Step, so its cost is the log's. `published` is the one number that dispatchers obey: the newest max_read_position whose cause
is durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from pulsar_txn.broker.base.slices import SLICE_SECONDS
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.hosting import Answer, Host, Place, Receipt, Registration, Skin
from pulsar_txn.ledger.machine import CopyEntries, Effect, Machine, PublishMaxRead
from pulsar_txn.ledger.protocols import LedgerError, Log, LogClosed
from pulsar_txn.ledger.snapshots import Recovery
from pulsar_txn.rm_producer.requests import PLAIN, Copied, TakeSnapshot, TopicRecord, TransactionBuffer
from pulsar_txn.rm_producer.requests import Request as BufferRequest
from pulsar_txn.rm_producer.requests import Verified as BufferVerified
from pulsar_txn.wire.entries import read_header
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EARLIEST, EntryHeader, Position

_OWED_SECONDS: Final = 0.5

TOPIC: Final = "topic"
DATA_LOGS: Final = frozenset((TOPIC, "half"))
"""Logs with what producers sent: a message counts as sent while it waits for its transaction, too."""

COPIED_AT_ONCE: Final = 256
"""Half messages whose copies are not durable yet."""

SNAPSHOT_AFTER: Final = 10_000
_SNAPSHOT_BYTES_PER_ENTRY: Final = 64
"""What each published entry pays for in the snapshots of its topic, at the most."""

RequestT = TypeVar("RequestT")
RecordT = TypeVar("RecordT")


class MachineHost(Skin, Generic[RequestT, RecordT]):
    """One machine with its open logs. `recover()` first; then `submit` requests.

    `looks`: the machine's deadline may be nearer than the timer, so `look` at it when the turn ends.
    `on_failed` is called once when a log fails after the recovery: the host is of no more use, its owner calls `release`
    and recovers a new one (H4).
    """

    def __init__(
        self,
        machine: Machine[RequestT, RecordT],
        logs: Mapping[str, Log],
        turn: Turn,
        on_failed: Callable[[Exception], None],
        *,
        registration: Registration | None = None,
        verified: Callable[[Any, bool], RequestT] | None = None,
    ) -> None:
        self.machine = machine
        self.logs = dict(logs)
        self.turn = turn
        self.host: Host[RequestT, RecordT] = Host(machine, self.logs, self, turn, registration=registration, verified=verified)
        self.submit = self.host.submit
        self.carry_out = self.host.carry_out
        self.release_at_tail = self.host.release_at_tail
        self.fail = self.host.fail
        self.verifying = self.host.verifying
        self.snapshots = self.host.snapshots
        self.looks = True
        self._on_failed = on_failed
        self._is_owned = False  # until it is recovered, failures go to the caller of `recover`
        self._owed_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    @property
    def ready(self) -> bool:
        """True if it serves."""
        return self.host.ready

    @property
    def failure(self) -> Exception | None:
        """Error that made it fail."""
        return self.host.failure

    @property
    def is_busy(self) -> bool:
        """True if somebody waits for an answer of this host."""
        return self.host.is_busy

    # ---- what the host asks for

    def turn_beginner(self) -> Callable[[], None]:
        """The host takes part in the turn."""
        return partial(self.turn.enter, self)

    def owes(self) -> None:
        """Pay in a while."""
        self._owed_timer = self.turn.runtime.call_later(_OWED_SECONDS, self.host.pay)

    def slice(self) -> Callable[[], bool]:
        """A few milliseconds."""
        monotonic = self.turn.runtime.monotonic
        until = monotonic() + SLICE_SECONDS
        return lambda: monotonic() >= until

    def failed(self, error: Exception) -> None:
        """Tell the owner."""
        self._stop_timers()
        if self._is_owned:
            self._on_failed(error)

    # ---- time

    def look(self) -> None:
        """The turn ends: set the timer to the machine's deadline (H6)."""
        deadline = self.machine.deadline()
        if deadline is None or self.host.failure is not None:
            return
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        delay = max(0, deadline - self.turn.clock.now_ms()) / 1000
        self._timer = self.turn.runtime.call_later(delay, self.turn.defer, self.expire)

    def expire(self) -> None:
        """Carry out what is due, in slices: what is left after some milliseconds is done in the next turn."""
        self._timer = None
        if self.host.ready and not self.host.expire():
            self._timer_at = 0
            self._timer = self.turn.runtime.call_later(_OWED_SECONDS, self.turn.defer, self.expire)

    # ---- recovery and end

    async def recover(self) -> None:
        """The newest snapshot, then every entry after it, in slices. Raises LedgerError or WireError.

        A recovery that fails, or is cancelled, leaves no log open, and calls nobody: its owner has the error.
        """
        try:
            await self._recover()
        except BaseException as error:
            self.fail(error if isinstance(error, Exception) else LogClosed("recovery was cancelled"))
            await self.release()
            raise
        self._is_owned = True

    async def _recover(self) -> None:
        pause = self.turn.budget.pause
        stored = {name: await log.latest_snapshot() for name, log in self.logs.items()}
        recovery = Recovery(self.host, {name: snapshot for name, snapshot in stored.items() if snapshot is not None})
        for _ in recovery.restored():
            await pause()
        while (wanted := recovery.wanted()) is not None:
            name, start = wanted
            await pause()
            recovery.fold(await self.logs[name].read(start, max_entries=256))
        self.host.start()
        await self.begin()
        if self.failure is not None:
            raise self.failure

    async def begin(self) -> None:
        """Do what is to be done at the end of a recovery, before anybody is served: nothing, by default. Raises."""

    async def close(self) -> None:
        """Stop timers, let what is under way become durable, close the logs. Raises LedgerError when a log failed."""
        self._stop_timers()
        while self.snapshots.is_under_way:
            for log in self.logs.values():
                await log.flush()
            self.snapshots.advance()
        for log in self.logs.values():
            await log.close()
        self.host.ready = False

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._owed_timer):
            if timer is not None:
                timer.cancel()

    async def release(self) -> None:
        """Close the logs of a host that failed: their names are free for its successor when this returns."""
        for result in await asyncio.gather(*(log.close() for log in self.logs.values()), return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, LedgerError):
                raise result


async def asked(ask: Callable[[Answer], None]) -> Any:
    """The value that a machine answers with. Raises the Refusal it answers with. If cancelled: it goes on."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(value: Any, error: ServerError | None, message: str) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(Refusal(error, message))

    ask(answer)
    return await future


class TopicView(Protocol):
    """Topic, as far as the host tells it."""

    def entry_applied(self, header: EntryHeader) -> None:
        """A data entry was appended, or folded in recovery."""

    def receipt(self, producer: Any, sequence_id: int, highest_sequence_id: int, position: Position) -> None:
        """A plain publish is durable."""

    def log_moved(self) -> None:
        """A commit group of the topic's log is durable; `published` may have changed."""

    def verification_ended(self) -> None:
        """Sends that waited for a verification may go on."""

    def snapshot_state(self) -> bytes:
        """State of the topic beside its buffer, as bytes."""

    def restore_state(self, data: bytes) -> None:
        """The inverse."""


class BufferHost(MachineHost[BufferRequest, TopicRecord]):
    """One transaction buffer with the topic's log and its own logs."""

    def __init__(
        self,
        machine: TransactionBuffer,
        logs: Mapping[str, Log],
        turn: Turn,
        on_failed: Callable[[Exception], None],
        *,
        topic: TopicView,
        registration: Registration,
    ) -> None:
        super().__init__(machine, logs, turn, on_failed, registration=registration, verified=BufferVerified)
        self.buffer = machine
        self.published: Position = EARLIEST
        self.snapshot_after = SNAPSHOT_AFTER
        """Entries after which a snapshot is taken; what comes after the last one is read again in recovery."""
        self._topic = topic
        self._notes: deque[tuple[Place, Position, Position]] = deque()
        self._noted: Position = EARLIEST
        self._since_snapshot = 0
        self._copies: deque[CopyEntries] = deque()
        self._copier: asyncio.Task[None] | None = None

    # ---- publishing

    def publish(self, entry: bytes, header: EntryHeader, receipt: Receipt) -> None:
        """Append a plain entry; `TopicView.receipt` follows, in order with all other effects.

        Raises LedgerError when the log takes nothing.
        """
        position = self.host.publish(TOPIC, entry, PLAIN, receipt)
        self.applied(TOPIC, position, PLAIN)
        self._topic.entry_applied(header)

    def applied(self, log: str, position: Position, record: TopicRecord) -> None:
        """An entry of the topic, or of a log of the buffer's own."""
        max_read = self.buffer.max_read_position
        if max_read != self._noted:
            self._noted = max_read
            self._notes.append((self.host.places[log], position, max_read))
        self._since_snapshot += 1
        if record is not PLAIN and log in DATA_LOGS and record.header.marker_type is None:
            self._topic.entry_applied(record.header)

    def stored(self, receipt: Receipt, position: Position) -> None:
        """A plain entry is durable."""
        self._topic.receipt(*receipt, position)

    def confirmed(self) -> None:
        """Publish the newest max_read_position whose cause is durable, then tell the topic."""
        notes, newest = self._notes, self.published
        while notes and notes[0][1] <= notes[0][0].confirmed:
            newest = notes.popleft()[2]
        self.published = newest
        self._topic.log_moved()
        if self._since_snapshot >= self.snapshot_after:
            self._take_snapshot_if_due()

    def _take_snapshot_if_due(self) -> None:
        if self._since_snapshot >= self.host.snapshots.last_bytes // _SNAPSHOT_BYTES_PER_ENTRY:
            self._since_snapshot = 0
            self.submit(TakeSnapshot())

    # ---- effects

    def perform(self, effect: Effect) -> None:
        """The effects of a buffer."""
        if type(effect) is PublishMaxRead:
            place = self.host.places[TOPIC]
            self.published = max(self.published, min(effect.position, place.confirmed))
            self._noted = self.buffer.max_read_position
            if self._noted > self.published:
                self._notes.append((place, place.applied, self._noted))
            self._topic.log_moved()
        elif type(effect) is CopyEntries:
            self._copies.append(effect)
            if self._copier is None:
                self._copier = asyncio.get_running_loop().create_task(self._copy_all())
        else:
            super().perform(effect)

    async def _copy_all(self) -> None:
        """Make all copies in their order. Not too many are in flight: each few hundred wait until they are durable."""
        count, copies = 0, self._copies
        try:
            while copies:
                effect = copies.popleft()
                log = self.logs[effect.source]
                for position in effect.positions:
                    data = log.read_cached(position)
                    if data is None:
                        ((_, data),) = await log.read(position, max_entries=1)
                    record = self._record(effect.source, data)
                    self.submit(Copied(effect.source, effect.target, position, record, effect.txn_id), reserve=True)
                    count += 1
                    if count % COPIED_AT_ONCE == 0:
                        await self.logs[effect.target].flush()
        except Exception as error:  # noqa: BLE001 - whatever it is, this buffer cannot go on: recovery copies again
            copies.clear()
            self.fail(error)
        finally:
            self._copier = None

    def verification_ended(self, txn_id: Any) -> None:
        """Let sends go on that waited."""
        self._topic.verification_ended()

    # ---- recovery

    def fold(self, machine: Machine[BufferRequest, TopicRecord], log: str, position: Position, data: bytes) -> None:
        """Entries of the topic are read by their headers, those of other logs by the buffer."""
        if log != TOPIC:
            record = machine.decode(log, data)
            machine.apply(log, position, record)
            if log in DATA_LOGS:
                self._topic.entry_applied(record.header)
            return
        header = read_header(data)
        plain = header.txn_id is None and header.marker_type is None
        machine.apply(TOPIC, position, PLAIN if plain else TopicRecord(header))
        if header.marker_type is None:
            self._topic.entry_applied(header)

    def _record(self, name: str, data: bytes) -> TopicRecord:
        return TopicRecord(read_header(data), data) if name == TOPIC else self.machine.decode(name, data)

    def snapshot_extra(self) -> bytes:
        """The topic's own part."""
        return self._topic.snapshot_state()

    def restore_extra(self, data: bytes) -> None:
        """The topic's own part."""
        self._topic.restore_state(data)
