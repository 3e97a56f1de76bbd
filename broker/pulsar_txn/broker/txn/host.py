"""The host of one machine: append, apply, and release what the machine wants once its records are durable.

This is the one implementation of the duties H1-H7 of `ledger.machine`; coordinators, transaction buffers and
pending-ack handles differ only in the effects that they carry out (`perform`). About ten Steps run through here per
transaction, so the path is short: no future, no task and no lock per request. Requests carry an `Answer` as their token.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pulsar_txn.broker.base.slices import SLICE_SECONDS, LoopBudget
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.machine import AwaitOutcome, Effect, Machine, Outcome, Reply, Step, VerifyRegistered, WriteSnapshot
from pulsar_txn.ledger.protocols import DiskFull, EntryTooLarge, LedgerError, Log, LogClosed, LogDamaged, Snapshot
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import Position, TxnId

from .envelope import Envelope
from .snapshots import SnapshotTaker

_logger = logging.getLogger(__name__)

Answer: TypeAlias = Callable[[Any, ServerError | None, str], None]
"""The token of every request: called once with (value, None, "") or (None, code, message)."""

_OWED_SECONDS: Final = 0.5

RequestT = TypeVar("RequestT")
RecordT = TypeVar("RecordT")

_Waiting: TypeAlias = "tuple[str, Position, tuple[Effect, ...], list[Position], tuple[tuple[str, Position], ...]]"


class _Ear:
    """Listens to one log of a host."""

    __slots__ = ("_host", "_name")

    def __init__(self, host: MachineHost[Any, Any], name: str) -> None:
        self._host = host
        self._name = name

    def log_confirmed(self, position: Position) -> None:
        self._host.confirmed(self._name, position)

    def log_failed(self, error: LedgerError) -> None:
        self._host.fail(error)


class MachineHost(Generic[RequestT, RecordT]):
    """One machine with its open logs. `recover()` first; then `submit` requests.

    `on_failed` is called once when a log fails after the recovery: the host is of no more use, its owner calls `release`
    and recovers a new one (H4).
    """

    retriable = ServerError.ServiceNotReady
    """What requests are answered while the host cannot serve."""

    def __init__(
        self, machine: Machine[RequestT, RecordT], logs: Mapping[str, Log], turn: Turn, on_failed: Callable[[Exception], None]
    ) -> None:
        self.machine = machine
        self.logs = dict(logs)
        self.ready = False
        self.failure: Exception | None = None
        self._is_owned = False  # until it is recovered, failures go to the caller of `recover`
        self.expired = 0  # records that time wrote, for metrics
        self.appended = 0  # records since the start, for metrics
        self.turn = turn
        self._on_failed = on_failed
        self._main = machine.logs[0]
        self._confirmed: dict[str, Position] = {name: log.last_confirmed for name, log in logs.items()}
        self._applied: dict[str, Position] = dict(self._confirmed)
        self._waiting: deque[_Waiting] = deque()
        self._snapshots = SnapshotTaker(self)
        self._awaiting: dict[TxnId, list[Answer]] = {}
        self._owed: deque[RequestT] = deque()
        self._owed_timer: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._turn_due = False
        for name, log in logs.items():
            log.listen(_Ear(self, name))

    # ---- requests

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for an answer of this host."""
        return bool(self._waiting or self._awaiting)

    def submit(self, request: RequestT, *, reserve: bool = False) -> None:
        """Decide a request and carry it out. `reserve`: it must go on when the disk is full (ends, acks)."""
        if not self.ready:
            self._refuse(request, self.retriable, f"not ready: {self.failure or 'recovering'}; retry")
            return
        if self._owed and _token_of(request) is None:
            self._owe(request)
            return
        try:
            step = self.machine.decide(request, self.turn.clock.now_ms())
        except Refusal as refusal:
            token = _token_of(request)
            if token is not None:
                self.release_at_tail((Reply(token, error=refusal.code, message=refusal.message),))
            return
        try:
            self.carry_out(step, reserve=reserve)
        except (DiskFull, EntryTooLarge) as error:
            token = _token_of(request)
            if token is not None:
                token(None, ServerError.PersistenceError, str(error))
            elif isinstance(error, DiskFull):
                self._owe(request)
        except LedgerError as error:
            self.fail(error)
            self._refuse(request, self.retriable, f"{error}; retry")

    def carry_out(self, step: Step[RecordT], *, reserve: bool = False) -> None:
        """H2 and H3. Raises DiskFull or EntryTooLarge only when nothing of the Step was appended, or will be released."""
        if not self._turn_due:
            self._turn_due = True
            self.turn.defer(self._after_turn)
        records, effects = step.records, step.effects
        held: _Waiting | None = None
        if len(records) == 1 and not step.trailing:
            name, record = records[0]
            position = self._append(name, record, reserve)
            held = (name, position, effects, [position], ())
        elif records or step.trailing:
            held = self._append_all(step, reserve)
        # Everything is in the log: from here on nothing is refused any more, so no token is answered twice.
        for effect in effects:  # H3: noted at once, so that the outcome cannot pass it by
            if type(effect) is AwaitOutcome:
                self._awaiting.setdefault(effect.txn_id, []).append(effect.token)
        if not effects:
            return
        if records and held is not None:
            self._waiting.append(held)
        elif step.trailing or (len(effects) == 1 and type(effects[0]) is VerifyRegistered):
            # A verification is a question, not an answer: nothing leaves, so it need not wait for the tail either.
            self._release(effects, [])
        else:
            self.release_at_tail(effects)

    def _append_all(self, step: Step[RecordT], reserve: bool) -> _Waiting | None:
        """Append records and trailing records; what the effects wait for, None when there are trailing records only."""
        positions: list[Position] = []
        last: dict[str, Position] = {}
        begun = False
        try:
            for name, record in step.records:
                position = self._append(name, record, reserve)
                positions.append(position)
                last[name] = position
                begun = True
            for name, record in step.trailing:
                self._append(name, record, True)
                begun = True
        except (DiskFull, EntryTooLarge) as error:
            if begun:  # a part of the Step is in the log: what is in memory is no state of the machine
                raise LedgerError(f"a Step was appended in part: {error}") from error
            raise
        if not last:
            return None
        first, *more = last.items()
        return (first[0], first[1], step.effects, positions, tuple(more))

    def _append(self, name: str, record: RecordT, reserve: bool) -> Position:
        machine = self.machine
        position = self.logs[name].append(machine.encode(name, record), reserve=reserve)
        try:
            machine.apply(name, position, record)
        except Exception as error:  # the log has a record that the state lacks: H4
            _logger.exception("%r could not apply its own record", machine)
            raise LedgerError(f"a record could not be applied: {error!r}") from error
        self._applied[name] = position
        self.appended += 1
        return position

    # ---- facts that the disk has no room for

    def _owe(self, request: RequestT) -> None:
        """Nobody waits for an answer to it, so nobody would repeat it: it is told again until there is room."""
        self._owed.append(request)
        if self._owed_timer is None:
            self._owed_timer = self.turn.runtime.call_later(_OWED_SECONDS, self._pay)

    def _pay(self) -> None:
        """Tell the machine what is owed, in order, up to the first that there is still no room for."""
        self._owed_timer = None
        owed, self._owed = self._owed, deque()
        while owed:
            if self._owed:
                self._owe(owed.popleft())
            else:
                self.submit(owed.popleft(), reserve=True)

    def _refuse(self, request: RequestT, code: ServerError, message: str) -> None:
        token = _token_of(request)
        if token is not None:
            token(None, code, message)

    # ---- release

    def _tail(self) -> list[tuple[str, Position]] | None:
        """H3: what a Step without records waits for: the record last applied in each log; None when all is durable."""
        applied, confirmed = self._applied, self._confirmed
        if not self._waiting and all(applied[name] <= confirmed[name] for name in applied):
            return None
        return list(applied.items())

    def release_at_tail(self, effects: tuple[Effect, ...]) -> None:
        """Release effects that have no record once everything before them is durable."""
        tail = self._tail()
        if tail is None:
            self._release(effects, [])
        else:
            self._waiting.append((*tail[0], effects, [], tuple(tail[1:])))

    def confirmed(self, name: str, position: Position) -> None:
        """A log says that everything up to `position` is durable."""
        confirmed = self._confirmed
        confirmed[name] = position
        waiting = self._waiting
        while waiting:
            log, at, effects, positions, more = waiting[0]
            if at > confirmed[log] or (more and any(place > confirmed[other] for other, place in more)):
                break
            waiting.popleft()
            try:
                self._release(effects, positions)
            except Exception as error:
                _logger.exception("effects of %r could not be released", self.machine)
                self.fail(error)
                return
        if self._snapshots.is_under_way:
            self._snapshots.advance()

    def _release(self, effects: tuple[Effect, ...], positions: list[Position]) -> None:
        for effect in effects:
            if type(effect) is Reply:
                value = effect.value if effect.position_of is None else positions[effect.position_of]
                effect.token(value, effect.error, effect.message)
            elif type(effect) is WriteSnapshot:
                self.take_snapshot(effect.log)
            elif type(effect) is Outcome:
                self.outcome(effect.txn_id)
            elif type(effect) is not AwaitOutcome:
                self.perform(effect)

    def perform(self, effect: Effect) -> None:
        """Carry out what only some machines want; their hosts override it and match theirs."""
        raise TypeError(f"{type(self).__name__} does not carry out {type(effect).__name__}")

    def outcome(self, txn_id: TxnId) -> None:
        """The end of a transaction was carried out: answer those who await it."""
        for answer in self._awaiting.pop(txn_id, ()):
            answer(None, None, "")

    # ---- time

    def _after_turn(self) -> None:
        self._turn_due = False
        deadline = self.machine.deadline()
        if deadline is None or self.failure is not None:
            return
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        delay = max(0, deadline - self.turn.clock.now_ms()) / 1000
        self._timer = self.turn.runtime.call_later(delay, self.turn.defer, self._expire)

    def _expire(self) -> None:
        """H6, in slices: what is left after some milliseconds is done in the next turn."""
        self._timer = None
        if not self.ready:
            return
        clock, runtime = self.turn.clock, self.turn.runtime
        until = runtime.monotonic() + SLICE_SECONDS
        try:
            while (deadline := self.machine.deadline()) is not None and deadline <= clock.now_ms():
                step = self.machine.expire(clock.now_ms())
                self.expired += len(step.records)
                self.carry_out(step, reserve=True)
                if runtime.monotonic() >= until:
                    break
        except DiskFull:  # nothing of the Step was appended: what is due is carried out once there is room
            self._timer_at = 0
            self._timer = self.turn.runtime.call_later(_OWED_SECONDS, self.turn.defer, self._expire)
            return
        except LedgerError as error:
            self.fail(error)
            return
        self._after_turn()

    # ---- snapshots

    def snapshot_extra(self) -> bytes:
        """What the host itself remembers beside the machine; hosts override it together with `restore_extra`."""
        return b""

    def restore_extra(self, data: bytes) -> None:
        """The inverse of `snapshot_extra`."""

    def take_snapshot(self, log: str, stored: Callable[[], None] | None = None) -> None:
        """H7: the state of this moment, stored in `log` once everything it covers is durable; then `stored` is called.

        When it cannot be stored, `stored` is not called.
        """
        self._snapshots.take(log, stored)

    def applied(self) -> dict[str, Position]:
        """The record last applied of each log."""
        return dict(self._applied)

    def is_durable(self, covers: Mapping[str, Position]) -> bool:
        """Whether everything up to these positions is confirmed."""
        return all(position <= self._confirmed[log] for log, position in covers.items())

    def trim(self, covers: Mapping[str, Position]) -> None:
        """A snapshot that covers so much is stored: give back what the machine does not need any more."""
        for name, log in self.logs.items():
            before = self.machine.trim_before(name)
            if before is not None:
                log.trim(min(before, log.next_position(covers[name])))

    # ---- recovery and end

    async def recover(self) -> None:
        """H5: the newest snapshot, then every entry after it, in slices. Raises LedgerError or WireError.

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
        covers = await self._restore()
        for name in self.machine.logs:
            await self._fold(name, covers.get(name), self.turn.budget)
        self.folded()
        self.ready = True
        self.carry_out(self.machine.recovered(self.turn.clock.now_ms()), reserve=True)
        if self.failure is not None:
            raise self.failure

    async def _restore(self) -> Mapping[str, Position]:
        newest: Envelope | None = None
        slices: tuple[bytes, ...] = ()
        for log in self.logs.values():
            stored = await log.latest_snapshot()
            if stored is None:
                continue
            envelope, parts = self._read_envelope(log, stored)
            if newest is None or list(envelope.covers.values()) > list(newest.covers.values()):
                newest, slices = envelope, parts
        if newest is None:
            return {}
        for part in slices:
            await self.turn.budget.pause()
            self.machine.restore(part)
        self.restore_extra(newest.extra)
        return newest.covers

    def _read_envelope(self, log: Log, stored: Snapshot) -> tuple[Envelope, tuple[bytes, ...]]:
        try:
            return Envelope.read(stored.parts)
        except WireError as error:
            raise LogDamaged(log.name, stored.covers, str(error)) from error

    async def _fold(self, name: str, covered: Position | None, budget: LoopBudget) -> None:
        log = self.logs[name]
        start = log.first if covered is None else log.next_position(covered)
        while start is not None:
            await budget.pause()
            entries = await log.read(start, max_entries=256)
            for position, data in entries:
                try:
                    self.fold(name, position, data)
                except WireError as error:
                    raise LogDamaged(log.name, position, f"not a record: {error}") from error
            start = log.next_position(entries[-1][0]) if entries else None

    def fold(self, name: str, position: Position, data: bytes) -> None:
        """Apply one entry in recovery; a host whose entries are not all the machine's records overrides it."""
        self.machine.apply(name, position, self.machine.decode(name, data))

    def folded(self) -> None:
        """Called after the fold, before `recovered`."""

    def fail(self, error: Exception) -> None:
        """H4: nothing of this machine is believed any more; what waits gets a retriable error."""
        if self.failure is not None:
            return
        self.failure = error
        self.ready = False
        self._stop_timers()
        waiting, self._waiting = self._waiting, deque()
        awaiting, self._awaiting = self._awaiting, {}
        self._snapshots.abandon()
        message = f"{error}; retry"
        for answers in awaiting.values():
            for answer in answers:
                answer(None, self.retriable, message)
        for _, _, effects, _, _ in waiting:
            for effect in effects:
                if type(effect) is Reply:
                    effect.token(None, self.retriable, message)
        if self._is_owned:
            self._on_failed(error)

    async def close(self) -> None:
        """Stop timers, let what is under way become durable, close the logs. Raises LedgerError when a log failed."""
        self._stop_timers()
        await self._snapshots.finish()
        for log in self.logs.values():
            await log.close()
        self.ready = False

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._owed_timer):
            if timer is not None:
                timer.cancel()

    async def release(self) -> None:
        """Close the logs of a host that failed: their names are free for its successor when this returns."""
        for result in await asyncio.gather(*(log.close() for log in self.logs.values()), return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, LedgerError):
                raise result


def _token_of(request: Any) -> Answer | None:
    inner = getattr(request, "request", request)  # a Verified carries the request that it is about
    token: Answer | None = getattr(inner, "token", None)
    return token
