"""The host of a machine, without IO: the duties H1 to H7 of `ledger.machine`, written once.

A host owns no clock, no loop and no file. It calls its logs (`HostedLog`), which say later what is durable; it reads the
time from a `Time`; everything else is the work of its `Skin`: the broker's skin has timers and tasks of asyncio, a test's skin
confirms and crashes by hand.

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
from pulsar_txn.ledger.protocols import DiskFull, EntryTooLarge, LeasedLog, LedgerError, LogListener, SnapshotWriter
from pulsar_txn.ledger.snapshots import SnapshotTaker
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Position, TxnAction, TxnId

_logger = logging.getLogger(__name__)

Answer: TypeAlias = Callable[[Any, ServerError | None, str], None]
"""The token of every request: called once with (value, None, "") or (None, code, message)."""

Receipt: TypeAlias = tuple[Any, int, int]
"""Producer of an entry that needs no decision, its sequence id and its highest sequence id."""

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


class Skin:
    """The part around a host that does its IO. Each kind of machine has a skin that overrides what it needs."""

    def turn_beginner(self) -> Callable[[], None]:
        """Return what the host calls when it has work for the first time in a turn.

        It brings the time up to date. After the turn the skin takes `Host.in_turn` back.
        """
        return _nothing

    def perform(self, effect: Effect) -> None:
        """Carry out an effect that only some machines want."""
        raise TypeError(f"{type(self).__name__} does not carry out {type(effect).__name__}")

    def performed(self) -> None:
        """All effects of a Step were released, and `perform` was called for one of them."""

    def applied(self, log: str, position: Position, record: Any) -> None:
        """A record was appended and applied."""

    def confirmed(self) -> None:
        """A log has confirmed entries, and everything that waited for them is released."""

    def lapsed(self, records: Sequence[tuple[str, Any]]) -> int:
        """Time has written these records; how many of them count."""
        return len(records)

    def stored(self, receipt: Receipt, position: Position) -> None:
        """An entry of `Host.publish` is durable."""
        raise TypeError(f"{type(self).__name__} publishes nothing")

    def outcome(self, txn_id: TxnId, action: TxnAction) -> None:
        """The end of a transaction was carried out; those who await it are answered next."""

    def verification_ended(self, txn_id: TxnId) -> None:
        """A verification is answered, and everything that waited for it went on."""

    def owes(self) -> None:
        """The disk has no room for a fact that nobody repeats: call `Host.pay` in a while."""

    def failed(self, error: Exception) -> None:
        """The host is of no more use: its machine has to be recovered from the log (H4)."""

    def slice(self) -> Callable[[], bool]:
        """A question for long work: is the time that it may take of this turn over?"""
        return _never

    # ---- snapshots and recovery

    def snapshot_extra(self) -> bytes:
        """Return what is stored beside the machine's snapshot."""
        return b""

    def restore_extra(self, data: bytes) -> None:
        """The inverse of `snapshot_extra`."""

    def fold(self, machine: Machine[Any, Any], log: str, position: Position, data: bytes) -> None:
        """Apply one entry in recovery; a skin whose entries are not all the machine's records overrides it."""
        machine.apply(log, position, machine.decode(log, data))

    def folded(self) -> None:
        """Everything that the logs hold is applied."""


def _never() -> bool:
    return False


def _nothing() -> None:
    """Do nothing: nobody counts turns."""


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

    `registration` and `verified` are for machines that want VerifyRegistered: whom to ask, and what makes the request that
    carries the answer. `verifying`: transactions that an answer is awaited for, with the requests that wait for it.
    A machine that has asked for one request of a type will ask for others: what is known is told to it with the request.
    `in_turn`: the skin was told that the turn began; it takes the mark back when the turn ends, and looks at the machine's
    deadline then (H6). For metrics: `appended`, all records since the start; `expired`, those that time wrote, as far as the
    skin counts them.
    """

    def __init__(
        self,
        machine: Machine[RequestT, RecordT],
        logs: Mapping[str, HostedLog],
        skin: Skin,
        time: Time,
        *,
        registration: Registration | None = None,
        verified: Callable[[Any, bool], RequestT] | None = None,
    ) -> None:
        self.machine = machine
        self.skin = skin
        self.time = time
        self.ready = False
        self.failure: Exception | None = None
        self.expired = 0
        self.appended = 0
        self.places = {name: Place(name, log) for name, log in logs.items()}
        self.main = self.places[machine.logs[0]]
        self._leased = self.main.log if isinstance(self.main.log, LeasedLog) else None
        self.snapshots = SnapshotTaker(self)
        self.verifying: dict[TxnId, list[tuple[RequestT, bool]]] = {}
        self._registration = registration
        self._verified = verified
        self._asked_for: dict[type, tuple[Callable[[TxnId], bool], Callable[[Any, bool], RequestT]]] = {}
        self._others = tuple(place for place in self.places.values() if place is not self.main)
        self._waiting: deque[_Waiting] = deque()
        self._awaiting: dict[TxnId, list[Answer]] = {}
        self._owed: deque[RequestT] = deque()
        self.in_turn = False
        self._turn_began = skin.turn_beginner()
        overridden = type(skin)
        self._tell_applied = skin.applied if overridden.applied is not Skin.applied else None
        self._tell_performed = skin.performed if overridden.performed is not Skin.performed else None
        self._tell_confirmed = skin.confirmed if overridden.confirmed is not Skin.confirmed else None
        for place in self.places.values():
            place.log.listen(_Listener(self, place))

    # ---- requests

    @property
    def is_busy(self) -> bool:
        """True if somebody waits for an answer of this host."""
        return bool(self._waiting or self._awaiting)

    def start(self) -> None:
        """The fold is complete: serve from here on. What the machine wants after its recovery is carried out (H5)."""
        self.skin.folded()
        self.ready = True
        self._begin_turn()
        self.carry_out(self.machine.recovered(self.time.now_ms), reserve=True)

    def submit(self, request: RequestT, *, reserve: bool = False) -> None:
        """Decide a request and carry it out. `reserve`: it must go on when the disk is full (ends, acks)."""
        if (not self.ready or self.verifying or self._owed) and self._held_back(request, reserve):
            return
        if not self.in_turn:
            self.in_turn = True
            self._turn_began()
        asks, named, machine = self._asked_for.get(type(request)), cast("Any", request), self.machine
        # Known and durable: one decision instead of two.
        decided = request if asks is None or not asks[0](named.txn_id) else asks[1](request, True)
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
            _refuse(request, RETRIABLE, f"not ready: {self.failure or 'recovering'}; retry")
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
            _refuse(request, RETRIABLE, f"{error}; retry")

    def publish(self, log: str, data: bytes, record: RecordT, receipt: Receipt) -> Position:
        """Append and apply an entry that needs no decision; `Skin.stored` follows, in order with all effects.

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
        if registration is None or self._verified is None:
            raise TypeError(f"{self.machine!r} asks for a registration, and its host knows nobody to ask")
        if getattr(request, "txn_id", None) == txn_id:
            self._asked_for[type(request)] = (registration.knows, self._verified)
        if registration.knows(txn_id):
            self.carry_out(self.machine.decide(self._verified(request, True), self.time.now_ms), reserve=reserve)
        else:
            self.verifying[txn_id] = [(request, reserve)]
            registration.ask(txn_id, partial(self._registration_known, txn_id, self._verified))

    def _registration_known(self, txn_id: TxnId, verified: Callable[[Any, bool], RequestT], registered: bool | None) -> None:
        (request, reserve), *held = self.verifying.pop(txn_id)
        if registered is None:
            _refuse(request, RETRIABLE, f"the coordinator of {txn_id} is not ready; retry")
        else:
            self.submit(verified(request, registered), reserve=reserve)
        for request, reserve in held:
            self.submit(request, reserve=reserve)
        self.skin.verification_ended(txn_id)

    # ---- facts that the disk has no room for

    def _no_room(self, request: RequestT, error: DiskFull | EntryTooLarge) -> None:
        token = token_of(request)
        if token is not None:
            token(None, ServerError.PersistenceError, str(error))
        elif isinstance(error, DiskFull):
            self._owe(request)

    def _owe(self, request: RequestT) -> None:
        """Tell it again until there is room: nobody waits for an answer to it, so nobody would repeat it."""
        self._owed.append(request)
        if len(self._owed) == 1:
            self.skin.owes()

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
        waiting = self._waiting
        try:
            while waiting:
                place, position, effects, positions, more, receipt = waiting[0]
                if position > place.confirmed or (more and _is_later(more)):
                    break
                waiting.popleft()
                if len(effects) == 1 and type(reply := effects[0]) is Reply:  # nearly all of them
                    value = reply.value if reply.position_of is None else positions[reply.position_of]
                    reply.token(value, reply.error, reply.message)
                elif receipt is None:
                    self._release(effects, positions)
                else:
                    self.skin.stored(receipt, position)
        except Exception as error:
            _logger.exception("%r stops, because its effects could not be performed", self.machine)
            self.fail(error)
            return
        if self.snapshots.is_under_way:
            self.snapshots.advance()
        if self._tell_confirmed is not None and self.failure is None:
            self._tell_confirmed()

    def _release(self, effects: tuple[Effect, ...], positions: Sequence[Position]) -> None:
        performed = False
        for effect in effects:
            if type(effect) is Reply:
                value = effect.value if effect.position_of is None else positions[effect.position_of]
                effect.token(value, effect.error, effect.message)
            elif type(effect) is Outcome:
                self.skin.outcome(effect.txn_id, effect.action)
                for answer in self._awaiting.pop(effect.txn_id, ()):
                    answer(None, None, "")
            elif type(effect) is WriteSnapshot:
                self.snapshots.take(effect.log, None)
            elif type(effect) is not AwaitOutcome:
                self.skin.perform(effect)
                performed = True
        if performed and self._tell_performed is not None:
            self._tell_performed()

    # ---- time

    def _begin_turn(self) -> None:
        if not self.in_turn:
            self.in_turn = True
            self._turn_began()

    def expire(self) -> bool:
        """H6: carry out what is due, as much as a turn allows. False: the disk has no room, try again in a while."""
        machine, time, is_over = self.machine, self.time, self.skin.slice()
        self._begin_turn()
        try:
            while self.ready and (deadline := machine.deadline()) is not None and deadline <= time.now_ms:
                step = machine.expire(time.now_ms)
                self.carry_out(step, reserve=True)
                self.expired += self.skin.lapsed(step.records)
                if is_over():
                    break
        except DiskFull:  # nothing of the Step was appended: what is due is carried out once there is room
            return False
        except LedgerError as error:
            self.fail(error)
        return True

    # ---- snapshots and the end

    def applied(self) -> dict[str, Position]:
        """The record last applied of each log."""
        return {name: place.applied for name, place in self.places.items()}

    def is_durable(self, covers: Mapping[str, Position]) -> bool:
        """True if everything up to these positions is confirmed."""
        return all(position <= self.places[name].confirmed for name, position in covers.items())

    def trim(self, covers: Mapping[str, Position]) -> None:
        """A snapshot that covers so much is stored: give back what the machine does not need any more (H7)."""
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
                answer(None, RETRIABLE, message)
        for _, _, effects, _, _, _ in waiting:
            for effect in effects:
                if type(effect) is Reply:
                    effect.token(None, RETRIABLE, message)
        self.skin.failed(error)


def _is_later(positions: _Later) -> bool:
    """True if one of these positions is not durable yet."""
    return any(position > place.confirmed for place, position in positions)


def token_of(request: Any) -> Answer | None:
    """The answer of a request, None when nobody waits for it."""
    inner = getattr(request, "request", request)  # a Verified carries the request that it is about
    token: Answer | None = getattr(inner, "token", None)
    return token


def _refuse(request: Any, code: ServerError, message: str) -> None:
    token = token_of(request)
    if token is not None:
        token(None, code, message)
