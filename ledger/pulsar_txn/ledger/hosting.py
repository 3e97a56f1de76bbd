"""The host of a machine, without IO: the duties H1 to H7 of `ledger.machine`, written once.

A host owns no clock, no loop and no file. It calls its logs (`HostedLog`), which say later what is durable; it reads the
time from a `Time`; it calls nobody back. Answers go to the `answer` that it was made with: in a broker they leave at the end
of the loop turn, by hand at once. Everything else is a method that a subclass overrides: the broker's hosts have timers and
tasks of asyncio, those of tests confirm and crash by hand.

About ten Steps run through here per transaction, so the path is short: no future, no task and no lock per request, and
nothing is called that only some machines need. Requests carry an `Answer` as their token.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

from pulsar_txn.ledger.machine import AwaitOutcome, Effect, Machine, Outcome, Reply, Step, VerifyRegistered, WriteSnapshot
from pulsar_txn.ledger.protocols import (
    DiskFull,
    EntryTooLarge,
    LeasedLog,
    LedgerError,
    LogDamaged,
    LogListener,
    SnapshotWriter,
)
from pulsar_txn.ledger.snapshots import SnapshotTaker
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import Position, TxnAction, TxnId

_logger = logging.getLogger(__name__)

Answer: TypeAlias = Callable[[Any, ServerError | None, str], None]
"""The token of every request: called once with (value, None, "") or (None, code, message)."""

Answering: TypeAlias = Callable[[Callable[[Any, Any, str], None], Any, Any, str], None]
"""Calls its first argument with the others, now or at the end of the loop turn, in the order in which it was asked to."""

Receipt: TypeAlias = tuple[Callable[[Any, Position, str], None], Any, int, int]
"""An entry that needs no decision: called with the receipt and the position; its producer, sequence id and highest one."""

RETRIABLE = ServerError.ServiceNotReady
"""Answer to requests while a host cannot serve."""

RequestT = TypeVar("RequestT")
RecordT = TypeVar("RecordT")


class Time(Protocol):
    """The time of the present turn. Its owner moves it, and never back (H6)."""

    now_ms: int


class HostedLog(Protocol):
    """Log, as far as a host needs it; `protocols.Log` has it. Errors are those of `protocols.Log`."""

    @property
    def name(self) -> str:
        """The name it was opened by."""

    @property
    def first(self) -> Position | None:
        """The first readable entry, None when the log is empty."""

    @property
    def last_confirmed(self) -> Position:
        """The last durable entry."""

    def listen(self, listener: LogListener) -> None:
        """Tell `listener` what becomes durable."""

    def append(self, data: bytes, *, reserve: bool = False) -> Position:
        """Append one entry and return its position at once."""

    def next_position(self, position: Position) -> Position:
        """The position of the entry after `position`."""

    def trim(self, before: Position) -> None:
        """Entries before `before` are not needed any more."""

    def write_snapshot(self, covers: Position) -> SnapshotWriter:
        """Begin a snapshot."""


class Registration(Protocol):
    """The coordinators, as one participant asks them whether a transaction is open and registered there."""

    def knows(self, txn_id: TxnId) -> bool:
        """True: it is, and durably so. False: the answer is not known at once; `ask` gives it."""

    def ask(self, txn_id: TxnId, answer: Callable[[bool | None], None]) -> None:
        """Call `answer` with the answer, now or later; None: the coordinator cannot be asked now."""


class Place:
    """One log of a host: the position that was applied last, and the position that is durable."""

    __slots__ = ("applied", "confirmed", "log", "name")

    def __init__(self, name: str, log: HostedLog) -> None:
        self.name = name
        self.log = log
        self.applied = self.confirmed = log.last_confirmed


class _Listener:
    """Listens to the log of one place, for its host."""

    __slots__ = ("_host", "_place")

    def __init__(self, host: Host[Any, Any], place: Place) -> None:
        self._host = host
        self._place = place

    def log_confirmed(self, position: Position) -> None:
        """Everything up to `position` is durable."""
        self._place.confirmed = position
        self._host.release()

    def log_failed(self, error: LedgerError) -> None:
        """The log is closed."""
        self._host.fail(error)


_Later: TypeAlias = Sequence[tuple[Place, Position]]
_Waiting: TypeAlias = tuple[Place, Position, tuple[Effect, ...], Sequence[Position], _Later, Receipt | None]
"""Work that waits for a position of a log: effects, their records' positions, further positions to wait for; or a receipt."""


class Host(Generic[RequestT, RecordT]):
    """One machine with its open logs. `snapshots.Recovery` comes first, then `start`, then requests.

    `registration` is for machines that want VerifyRegistered: whom to ask. `verifying`: transactions that an answer is awaited
    for, with the requests that wait for it. A machine that has asked for one request of a type will ask for others: what is
    known is told to it with the request.
    `in_turn`: the turn has begun for this host; who counts turns takes the mark back when it ends, and looks at the machine's
    deadline then (H6). For metrics: `appended`, all records since the start; `expired`, those that time wrote, as far as they
    count.
    """

    def __init__(
        self,
        machine: Machine[RequestT, RecordT],
        logs: Mapping[str, HostedLog],
        time: Time,
        answer: Answering,
        *,
        registration: Registration | None = None,
    ) -> None:
        self.machine = machine
        self.time = time
        self.ready = False
        self.failure: Exception | None = None
        self.expired = 0
        self.appended = 0
        self.places = {name: Place(name, logs[name]) for name in machine.logs}
        self.main = self.places[machine.logs[0]]
        self._leased = self.main.log if isinstance(self.main.log, LeasedLog) else None
        self.snapshots = SnapshotTaker(self.places)
        self.verifying: dict[TxnId, list[tuple[RequestT, bool]]] = {}
        self._answer = answer
        self._registration = registration
        self._asked_for: dict[type, Callable[[TxnId], bool]] = {}
        self._verified_next: dict[TxnId, list[Answer]] = {}
        self._others = tuple(place for place in self.places.values() if place is not self.main)
        self._waiting: deque[_Waiting] = deque()
        self._awaiting: dict[TxnId, list[Answer]] = {}
        self._owed: deque[RequestT] = deque()
        self.in_turn = False
        overridden = type(self)
        self._tell_applied = self.applied if overridden.applied is not Host.applied else None
        self._tell_confirmed = self.confirmed if overridden.confirmed is not Host.confirmed else None
        for place in self.places.values():
            place.log.listen(_Listener(self, place))

    # ---- what each kind of host does in its own way

    def begin_turn(self) -> None:
        """The host has work for the first time in a turn: bring the time up to date, take `in_turn` back when it ends."""

    def perform(self, effect: Effect) -> None:
        """Carry out an effect that only some machines want."""
        raise TypeError(f"{type(self).__name__} does not carry out {type(effect).__name__}")

    def applied(self, log: str, position: Position, record: Any) -> None:
        """A record was appended and applied."""

    def confirmed(self) -> None:
        """A log has confirmed entries, and everything that waited for them is released."""

    def lapsed(self, records: Sequence[tuple[str, Any]]) -> int:
        """Time has written these records; how many of them count."""
        return len(records)

    def outcome(self, txn_id: TxnId, action: TxnAction) -> None:
        """The end of a transaction was carried out; those who await it are answered next."""

    def verified(self, request: Any, registered: bool) -> RequestT:
        """Make the request that carries the answer to VerifyRegistered."""
        raise TypeError(f"{self.machine!r} asks for a registration, and its host has no request for the answer")

    def owes(self) -> None:
        """The disk has no room for a fact that nobody repeats: call `pay` in a while."""

    def failed(self, error: Exception) -> None:
        """The host is of no more use: its machine has to be recovered from the log (H4)."""

    def slice(self) -> Callable[[], bool]:
        """A question for long work: is the time that it may take of this turn over?"""
        return never

    def snapshot_extra(self) -> bytes:
        """Return what is stored beside the machine's snapshot."""
        return b""

    def restore_extra(self, data: bytes) -> None:
        """The inverse of `snapshot_extra`."""

    def fold(self, log: str, position: Position, data: bytes) -> None:
        """Apply one entry in recovery; a host whose entries are not all the machine's records overrides it."""
        self.machine.apply(log, position, self.machine.decode(log, data))

    def folded(self) -> None:
        """Everything that the logs hold is applied."""

    # ---- requests

    @property
    def is_busy(self) -> bool:
        """True if somebody waits for an answer of this host."""
        return bool(self._waiting or self._awaiting)

    def fold_all(self, log: str, entries: Sequence[tuple[Position, bytes]]) -> None:
        """Apply entries of a log in recovery. Raises LogDamaged for bytes that cannot be right."""
        for position, data in entries:
            try:
                self.fold(log, position, data)
            except WireError as error:
                raise LogDamaged(self.places[log].log.name, position, f"not a record: {error}") from error

    def start(self) -> None:
        """The fold is complete: serve from here on. What the machine wants after its recovery is carried out (H5)."""
        self.folded()
        self.ready = True
        self._begin_turn()
        self.carry_out(self.machine.recovered(self.time.now_ms), reserve=True)

    def submit(self, request: RequestT, *, reserve: bool = False) -> None:
        """Decide a request and carry it out. `reserve`: it must go on when the disk is full (ends, acks)."""
        if (not self.ready or self.verifying or self._owed) and self._held_back(request, reserve):
            return
        if not self.in_turn:
            self.in_turn = True
            self.begin_turn()
        knows, machine = self._asked_for.get(type(request)), self.machine
        # Known and durable: one decision instead of two.
        known = knows is not None and knows(cast("Any", request).txn_id)
        decided = self.verified(request, True) if known else request
        try:
            step = machine.decide(decided, self.time.now_ms)
            records, trailing = step.records, step.trailing
            if len(records) + len(trailing) != 1:
                self.carry_out(step, reserve=reserve)
                return
            # H2 and H3 of nearly all Steps: one record, and effects that wait for it unless it is a trailing one.
            ((name, record),) = records or trailing
            place = self.places[name]
            position = place.log.append(machine.encode(name, record), reserve=reserve or not records)
            try:
                machine.apply(name, position, record)
            except Exception as error:  # the log has a record that the state lacks: H4
                raise self._not_applied(error) from error
            place.applied = position
            self.appended += 1
            if self._tell_applied is not None:
                self._tell_applied(name, position, record)
            effects = step.effects
            for effect in effects:  # noted at once, so that the outcome cannot pass it by
                if type(effect) is AwaitOutcome:
                    self._awaiting.setdefault(effect.txn_id, []).append(effect.token)
            if not records:
                self._release(effects, ())
            elif effects:
                self._waiting.append((place, position, effects, (position,), (), None))
        except (Refusal, LedgerError) as error:
            self._not_carried_out(request, error)

    def _held_back(self, request: RequestT, reserve: bool) -> bool:
        """True if a request cannot be decided now: it is refused, or waits."""
        if not self.ready:
            self._refuse(request, RETRIABLE, f"not ready: {self.failure or 'recovering'}; retry")
            return True
        held = self.verifying.get(getattr(request, "txn_id", None))  # type: ignore[arg-type] # None is no key there
        if held is not None:
            held.append((request, reserve))
            return True
        if self._owed and token_of(request) is None:
            self._owe(request)
            return True
        return False

    def _not_carried_out(self, request: RequestT, error: Refusal | LedgerError) -> None:
        """Nothing of a request's Step leaves: answer the request, or keep it until there is room."""
        if isinstance(error, Refusal):
            token = token_of(request)
            if token is not None:
                self.release_at_tail((Reply(token, error=error.code, message=error.message),))
        elif isinstance(error, DiskFull | EntryTooLarge):
            self._no_room(request, error)
        else:
            self.fail(error)
            self._refuse(request, RETRIABLE, f"{error}; retry")

    def _refuse(self, request: RequestT, code: ServerError, message: str) -> None:
        token = token_of(request)
        if token is not None:
            self._answer(token, None, code, message)

    def publish(self, log: str, data: bytes, record: RecordT, receipt: Receipt) -> Position:
        """Append and apply an entry that needs no decision; its receipt follows, in order with all effects.

        Raises LedgerError when the log takes nothing.
        """
        place = self.places[log]
        position = place.log.append(data)
        self.machine.apply(log, position, record)
        place.applied = position
        self._waiting.append((place, position, (), (), (), receipt))
        return position

    def carry_out(self, step: Step[RecordT], *, reserve: bool = False) -> None:
        """H2 and H3. Raises DiskFull or EntryTooLarge only when nothing of the Step was appended, or will be released."""
        records, effects, trailing = step.records, step.effects, step.trailing
        waiting = self._append_all(step, reserve) if records or trailing else None
        # Everything is in the log: from here on nothing is refused any more, so no token is answered twice.
        if not effects:
            return
        for effect in effects:  # H3: noted at once, so that the outcome cannot pass it by
            if type(effect) is AwaitOutcome:
                self._awaiting.setdefault(effect.txn_id, []).append(effect.token)
        if waiting is not None:
            self._waiting.append(waiting)
        elif trailing:
            self._release(effects, ())
        elif len(effects) == 1 and type(effects[0]) is VerifyRegistered:
            # A verification is a question, not an answer: nothing leaves, so it need not wait for the tail.
            self._verify(effects[0], reserve)
        else:
            self.release_at_tail(effects)

    def _append(self, place: Place, record: RecordT, reserve: bool) -> Position:
        machine, name = self.machine, place.name
        position = place.log.append(machine.encode(name, record), reserve=reserve)
        try:
            machine.apply(name, position, record)
        except Exception as error:  # the log has a record that the state lacks: H4
            raise self._not_applied(error) from error
        place.applied = position
        self.appended += 1
        if self._tell_applied is not None:
            self._tell_applied(name, position, record)
        return position

    def _not_applied(self, error: Exception) -> LedgerError:
        _logger.error("%r could not apply its own record, and stops: this is a defect; report it", self.machine, exc_info=error)
        return LedgerError(f"a record could not be applied: {error!r}")

    def _append_all(self, step: Step[RecordT], reserve: bool) -> _Waiting | None:
        """Append records and trailing records; what the effects wait for, None when there are trailing records only."""
        positions: list[Position] = []
        last: dict[Place, Position] = {}
        begun = False
        try:
            for name, record in step.records:
                place = self.places[name]
                position = last[place] = self._append(place, record, reserve)
                positions.append(position)
                begun = True
            for name, record in step.trailing:
                self._append(self.places[name], record, True)
                begun = True
        except (DiskFull, EntryTooLarge) as error:
            if begun:  # a part of the Step is in the log: what is in memory is no state of the machine
                raise LedgerError(f"a Step was appended in part: {error}") from error
            raise
        if not last:
            return None
        first, *more = last.items()
        return (*first, step.effects, positions, more, None)

    # ---- registration

    def _verify(self, effect: VerifyRegistered, reserve: bool) -> None:
        txn_id, request, registration = effect.txn_id, effect.request, self._registration
        if registration is None:
            raise TypeError(f"{self.machine!r} asks for a registration, and its host knows nobody to ask")
        if getattr(request, "txn_id", None) == txn_id:
            self._asked_for[type(request)] = registration.knows
        if registration.knows(txn_id):
            self.carry_out(self.machine.decide(self.verified(request, True), self.time.now_ms), reserve=reserve)
        else:
            self.verifying[txn_id] = [(request, reserve)]
            registration.ask(txn_id, partial(self._registration_known, txn_id))

    def _registration_known(self, txn_id: TxnId, registered: bool | None) -> None:
        (request, reserve), *held = self.verifying.pop(txn_id)
        if registered is None:
            self._refuse(request, RETRIABLE, f"the coordinator of {txn_id} is not ready; retry")
        else:
            self.submit(self.verified(request, registered), reserve=reserve)
        for request, reserve in held:
            self.submit(request, reserve=reserve)
        for answer in self._verified_next.pop(txn_id, ()):
            self._answer(answer, None, None, "")

    def when_verified(self, txn_id: TxnId, answer: Answer) -> None:
        """Answer once the verification under way has ended, and everything that waited for it went on."""
        self._verified_next.setdefault(txn_id, []).append(answer)

    # ---- facts that the disk has no room for

    def _no_room(self, request: RequestT, error: DiskFull | EntryTooLarge) -> None:
        token = token_of(request)
        if token is not None:
            self._answer(token, None, ServerError.PersistenceError, str(error))
        elif isinstance(error, DiskFull):
            self._owe(request)

    def _owe(self, request: RequestT) -> None:
        """Tell it again until there is room: nobody waits for an answer to it, so nobody would repeat it."""
        self._owed.append(request)
        if len(self._owed) == 1:
            self.owes()

    def pay(self) -> None:
        """Tell the machine what is owed, in order, up to the first fact that there is still no room for."""
        owed, self._owed = self._owed, deque()
        while owed:
            if self._owed:
                self._owed.append(owed.popleft())
            else:
                self.submit(owed.popleft(), reserve=True)

    # ---- release

    def release_at_tail(self, effects: tuple[Effect, ...]) -> None:
        """H3: release effects that have no record once the record last applied in each log is durable.

        What is in memory may be old where another process may have taken the log: then they wait for one more record.
        """
        main, others = self.main, self._others
        if self._leased is not None and not self._leased.fresh:
            self._release_when_fresh(self._leased, effects)
            return
        later = [(place, place.applied) for place in others] if others else ()
        if self._waiting or main.applied > main.confirmed or (later and _is_later(later)):
            self._waiting.append((main, main.applied, effects, (), later, None))
        else:
            self._release(effects, ())

    def _release_when_fresh(self, log: LeasedLog, effects: tuple[Effect, ...]) -> None:
        """The process was held up for longer than its lease: a successor makes this record, and with it this host, fail."""
        main = self.main
        try:
            main.applied = log.refresh()
        except LedgerError as error:
            self._waiting.append((main, main.applied, effects, (), (), None))
            self.fail(error)
        else:
            self._waiting.append((main, main.applied, effects, (), [(place, place.applied) for place in self._others], None))

    def release(self) -> None:
        """Something became durable: release what waited for it."""
        waiting, answer = self._waiting, self._answer
        try:
            while waiting:
                place, position, effects, positions, more, receipt = waiting[0]
                if position > place.confirmed or (more and _is_later(more)):
                    break
                waiting.popleft()
                if len(effects) == 1 and type(reply := effects[0]) is Reply:  # nearly all of them
                    value = reply.value if reply.position_of is None else positions[reply.position_of]
                    answer(reply.token, value, reply.error, reply.message)
                elif receipt is None:
                    self._release(effects, positions)
                else:
                    answer(receipt[0], receipt, position, "")
        except Exception as error:
            _logger.exception("%r stops, because its effects could not be performed", self.machine)
            self.fail(error)
            return
        if self.snapshots.is_under_way:
            self.go_on_with_snapshots()
        if self._tell_confirmed is not None and self.failure is None:
            self._tell_confirmed()

    def _release(self, effects: tuple[Effect, ...], positions: Sequence[Position]) -> None:
        answer = self._answer
        for effect in effects:
            if type(effect) is Reply:
                value = effect.value if effect.position_of is None else positions[effect.position_of]
                answer(effect.token, value, effect.error, effect.message)
            elif type(effect) is Outcome:
                self.outcome(effect.txn_id, effect.action)
                for token in self._awaiting.pop(effect.txn_id, ()):
                    answer(token, None, None, "")
            elif type(effect) is WriteSnapshot:
                self.take_snapshot(effect.log)
            elif type(effect) is not AwaitOutcome:
                self.perform(effect)

    # ---- time

    def _begin_turn(self) -> None:
        if not self.in_turn:
            self.in_turn = True
            self.begin_turn()

    def expire(self) -> bool:
        """H6: carry out what is due, as much as a turn allows. False: the disk has no room, try again in a while."""
        machine, time, is_over = self.machine, self.time, self.slice()
        self._begin_turn()
        try:
            while self.ready and (deadline := machine.deadline()) is not None and deadline <= time.now_ms:
                step = machine.expire(time.now_ms)
                self.carry_out(step, reserve=True)
                self.expired += self.lapsed(step.records)
                if is_over():
                    break
        except DiskFull:  # nothing of the Step was appended: what is due is carried out once there is room
            return False
        except LedgerError as error:
            self.fail(error)
        return True

    # ---- snapshots and the end

    def take_snapshot(self, log: str, stored: Answer | None = None) -> None:
        """Take a snapshot of this moment in `log`, or of a later one when one is under way; `stored` is answered at its end."""
        self.snapshots.want(log, stored)
        self.go_on_with_snapshots()

    def go_on_with_snapshots(self) -> None:
        """Go on with the snapshot under way as far as one turn allows, and with the next one when it has ended (H7)."""
        snapshots = self.snapshots
        try:
            while snapshots.is_under_way:
                if snapshots.wants_moment:
                    snapshots.begin(self.snapshot_extra(), self.machine.snapshot())
                ended = snapshots.advance(self.slice())
                if ended is None:
                    return
                if ended.covers is not None:
                    self._trim(ended.covers)
                for stored in ended.wanted_by:
                    self._answer(stored, None, None, "")
        except LedgerError as error:
            self.fail(error)

    def _trim(self, covers: Mapping[str, Position]) -> None:
        """A snapshot that covers so much is stored: give back what the machine does not need any more."""
        for name, place in self.places.items():
            before = self.machine.trim_before(name)
            if before is not None:
                place.log.trim(min(before, place.log.next_position(covers[name])))

    def fail(self, error: Exception) -> None:
        """H4: nothing of this machine is believed any more; what waits gets a retriable error."""
        if self.failure is not None:
            return
        self.failure = error
        self.ready = False
        waiting, self._waiting = self._waiting, deque()
        awaiting, self._awaiting = self._awaiting, {}
        self.snapshots.abandon()
        message = f"{error}; retry"
        for answers in awaiting.values():
            for answer in answers:
                self._answer(answer, None, RETRIABLE, message)
        for _, _, effects, _, _, _ in waiting:
            for effect in effects:
                if type(effect) is Reply:
                    self._answer(effect.token, None, RETRIABLE, message)
        self.failed(error)


def never() -> bool:
    """Return the answer of a turn without an end."""
    return False


def _is_later(positions: _Later) -> bool:
    """True if one of these positions is not durable yet."""
    return any(position > place.confirmed for place, position in positions)


def token_of(request: Any) -> Answer | None:
    """The answer of a request, None when nobody waits for it."""
    inner = getattr(request, "request", request)  # a Verified carries the request that it is about
    token: Answer | None = getattr(inner, "token", None)
    return token
