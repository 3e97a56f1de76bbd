"""A host that is driven by hand: what is durable, what fails and when it crashes, the caller says. For tests and simulations.

`HandLog` is a log in memory. `hosted` recovers a machine from such logs; what its host asks for goes to the caller's `Skin`,
and answers leave at once. `ByToken` is put between a host and a machine whose tokens are any values, and remembers what was
decided. The public suites of the machines are built on them, so they check a plug-in with the same `hosting.Host` that serves
it in a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from pulsar_txn.ledger.hosting import Answer, Host, Registration, Time, never
from pulsar_txn.ledger.machine import AwaitOutcome, Effect, Machine, Reply, Step, Token
from pulsar_txn.ledger.protocols import Buffer, DiskFull, LedgerError, LogListener, Snapshot
from pulsar_txn.ledger.snapshots import Recovery
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Position, TxnAction, TxnId

RequestT = TypeVar("RequestT")
RecordT = TypeVar("RecordT")


class HandLog:
    """A log in memory. Entries are durable once `confirm` says so, and stay in `entries` when they are trimmed.

    `stored`: the newest snapshot. `room`: how many more entries the disk has room for, None: no end of them.
    `on_append` is called with the position and the bytes of each entry.
    """

    def __init__(
        self,
        name: str = "log",
        ledger_id: int = 0,
        entries: Iterable[tuple[Position, bytes]] = (),
        *,
        stored: Snapshot | None = None,
        trimmed: Position = (-1, -1),
        on_append: Callable[[Position, bytes], None] | None = None,
    ) -> None:
        self.name = name
        self.entries = list(entries)
        self.stored = stored
        self.trimmed = trimmed
        self.room: int | None = None
        self.last_appended: Position = self.entries[-1][0] if self.entries else (ledger_id, -1)
        self.last_confirmed = self.last_appended
        self._ledger_id = ledger_id
        self._on_append = on_append
        self._listener: LogListener | None = None

    @property
    def first(self) -> Position | None:
        """The first readable entry, None when the log is empty."""
        return next((position for position, _ in self.entries if self.trimmed <= position <= self.last_confirmed), None)

    def listen(self, listener: LogListener) -> None:
        """Set the listener."""
        self._listener = listener

    def append(self, data: bytes, *, reserve: bool = False) -> Position:
        """Append one entry. Raises DiskFull when there is no room, `reserve` or not."""
        if self.room is not None:
            if not self.room:
                raise DiskFull("the disk is full")
            self.room -= 1
        ledger_id, entry_id = self.last_appended
        position = self.last_appended = (self._ledger_id, entry_id + 1 if ledger_id == self._ledger_id else 0)
        self.entries.append((position, data))
        if self._on_append is not None:
            self._on_append(position, data)
        return position

    def read(self, start: Position) -> list[tuple[Position, bytes]]:
        """All durable entries from `start` on."""
        return [entry for entry in self.entries if max(start, self.trimmed) <= entry[0] <= self.last_confirmed]

    def next_position(self, position: Position) -> Position:
        """The position after `position`."""
        return (position[0], position[1] + 1)

    def trim(self, before: Position) -> None:
        """Entries before `before` cannot be read any more."""
        self.trimmed = max(self.trimmed, before)

    def write_snapshot(self, covers: Position) -> HandSnapshot:
        """Begin a snapshot; it is the newest one when it is finished."""
        return HandSnapshot(self, covers)

    def cut(self, count: int) -> None:
        """Lose all entries but the first ones, as a crash does."""
        del self.entries[count:]

    def confirm(self, upto: Position | None = None) -> None:
        """Everything up to a position is durable (None: everything that was appended)."""
        self.last_confirmed = max(self.last_confirmed, self.last_appended if upto is None else upto)
        if self._listener is not None:
            self._listener.log_confirmed(self.last_confirmed)

    def fail(self, error: LedgerError) -> None:
        """The log fails."""
        if self._listener is not None:
            self._listener.log_failed(error)


class HandSnapshot:
    """A snapshot on its way into a `HandLog`."""

    def __init__(self, log: HandLog, covers: Position) -> None:
        self._log = log
        self._covers = covers
        self._parts: list[bytes] = []

    def write(self, part: Buffer) -> None:
        """The next part."""
        self._parts.append(bytes(part))

    def finish(self) -> None:
        """Finish it: it is the newest one. ValueError when what it covers is not durable."""
        if self._covers > self._log.last_confirmed:
            raise ValueError(f"a snapshot covers {self._covers}, which is not confirmed yet")
        self._log.stored = Snapshot(self._covers, tuple(self._parts))

    def abandon(self) -> None:
        """Nothing is stored."""
        self._parts.clear()


Answered: TypeAlias = Callable[[Token, Any, "ServerError | None", str], None]
"""Called with the token of a request, and its answer."""


class Asked:
    """A request as its host sees it: `token` is an `Answer`, whatever the token of `original` is."""

    __slots__ = ("original", "token", "txn_id")

    def __init__(self, original: Any, answered: Answered) -> None:
        inner = getattr(original, "request", original)
        token = getattr(inner, "token", None)
        self.original = original
        self.txn_id: TxnId | None = getattr(original, "txn_id", None)
        self.token: Answer | None = None if token is None else partial(answered, token)


class ByToken:
    """A machine as its host sees it, when requests carry any value as their token: answers go to `answered`, by token.

    `decided`: what the machine decided last, a Step or a Refusal. `verified`: the machine's request that carries the
    answer to VerifyRegistered.
    """

    def __init__(self, machine: Any, answered: Answered, verified: type[Any] | None = None) -> None:
        self.machine = machine
        self.logs: Sequence[str] = machine.logs
        self.decided: Step[Any] | Refusal | None = None
        self._answered = answered
        self._verified = verified

    def asked(self, request: Any) -> Asked:
        """Return what to submit for a request of the machine."""
        return Asked(request, self._answered)

    def verified(self, request: Any, registered: bool) -> Asked:
        """Return what to submit once the coordinator has answered."""
        if self._verified is None:
            raise AssertionError(f"{self.machine!r} asks for the registration of {request}")
        return self.asked(self._verified(request, registered))

    def shown(self, step: Step[Any]) -> Step[Any]:
        """The Step as its host sees it."""
        return Step(step.records, tuple([self._shown(effect) for effect in step.effects]), step.trailing)

    def _shown(self, effect: Effect) -> Effect:
        if isinstance(effect, Reply):
            token = partial(self._answered, effect.token)
            return Reply(token, effect.value, effect.error, effect.message, effect.position_of)
        return (
            AwaitOutcome(partial(self._answered, effect.token), effect.txn_id) if isinstance(effect, AwaitOutcome) else effect
        )

    def decide(self, request: Asked, now_ms: int) -> Step[Any]:
        """Call the machine's, for the original request."""
        try:
            step: Step[Any] = self.machine.decide(request.original, now_ms)
        except Refusal as refusal:
            self.decided = refusal
            raise
        self.decided = step
        return self.shown(step)

    def apply(self, log: str, position: Position, record: Any) -> None:
        """Call the machine's."""
        self.machine.apply(log, position, record)

    def encode(self, log: str, record: Any) -> bytes:
        """Call the machine's."""
        data: bytes = self.machine.encode(log, record)
        return data

    def decode(self, log: str, data: bytes) -> Any:
        """Call the machine's."""
        return self.machine.decode(log, data)

    def recovered(self, now_ms: int) -> Step[Any]:
        """Call the machine's."""
        return self.shown(self.machine.recovered(now_ms))

    def deadline(self) -> int | None:
        """Call the machine's."""
        deadline: int | None = self.machine.deadline()
        return deadline

    def expire(self, now_ms: int) -> Step[Any]:
        """Call the machine's."""
        return self.shown(self.machine.expire(now_ms))

    def snapshot(self) -> Iterator[bytes]:
        """Call the machine's."""
        slices: Iterator[bytes] = self.machine.snapshot()
        return slices

    def restore(self, part: bytes) -> None:
        """Call the machine's."""
        self.machine.restore(part)

    def trim_before(self, log: str) -> Position | None:
        """Call the machine's."""
        before: Position | None = self.machine.trim_before(log)
        return before

    def check_invariants(self) -> None:
        """Call the machine's."""
        self.machine.check_invariants()


class Skin:
    """Skin of a `HandHost`: what it asks of its caller. Each overrides what it needs."""

    def begin_turn(self) -> None:
        """See `Host.begin_turn`."""

    def perform(self, effect: Effect) -> None:
        """See `Host.perform`."""
        raise TypeError(f"{type(self).__name__} does not carry out {type(effect).__name__}")

    def applied(self, log: str, position: Position, record: Any) -> None:
        """See `Host.applied`."""

    def confirmed(self) -> None:
        """See `Host.confirmed`."""

    def outcome(self, txn_id: TxnId, action: TxnAction) -> None:
        """See `Host.outcome`."""

    def owes(self) -> None:
        """See `Host.owes`."""

    def failed(self, error: Exception) -> None:
        """See `Host.failed`."""

    def slice(self) -> Callable[[], bool]:
        """See `Host.slice`."""
        return never

    def fold(self, machine: Machine[Any, Any], log: str, position: Position, data: bytes) -> None:
        """See `Host.fold`."""
        machine.apply(log, position, machine.decode(log, data))


class HandHost(Host[RequestT, RecordT]):
    """A host that asks a `Skin`. `verified` makes the request that carries the answer to VerifyRegistered."""

    def __init__(
        self,
        machine: Machine[RequestT, RecordT],
        logs: Mapping[str, HandLog],
        skin: Skin,
        time: Time,
        registration: Registration | None,
        verified: Callable[[Any, bool], RequestT] | None,
    ) -> None:
        super().__init__(machine, logs, time, _at_once, registration=registration)
        self._skin = skin
        self._verified = verified

    def begin_turn(self) -> None:
        """Ask the skin."""
        self._skin.begin_turn()

    def perform(self, effect: Effect) -> None:
        """Ask the skin."""
        self._skin.perform(effect)

    def applied(self, log: str, position: Position, record: Any) -> None:
        """Ask the skin."""
        self._skin.applied(log, position, record)

    def confirmed(self) -> None:
        """Ask the skin."""
        self._skin.confirmed()

    def outcome(self, txn_id: TxnId, action: TxnAction) -> None:
        """Ask the skin."""
        self._skin.outcome(txn_id, action)

    def verified(self, request: Any, registered: bool) -> RequestT:
        """Ask the caller."""
        return super().verified(request, registered) if self._verified is None else self._verified(request, registered)

    def owes(self) -> None:
        """Ask the skin."""
        self._skin.owes()

    def failed(self, error: Exception) -> None:
        """Ask the skin."""
        self._skin.failed(error)

    def slice(self) -> Callable[[], bool]:
        """Ask the skin."""
        return self._skin.slice()

    def fold(self, log: str, position: Position, data: bytes) -> None:
        """Ask the skin."""
        self._skin.fold(self.machine, log, position, data)


def _at_once(answer: Callable[[Any, Any, str], None], value: Any, error: Any, message: str) -> None:
    answer(value, error, message)


def hosted(
    machine: Machine[RequestT, RecordT],
    logs: Mapping[str, HandLog],
    skin: Skin,
    time: Time,
    *,
    registration: Registration | None = None,
    verified: Callable[[Any, bool], RequestT] | None = None,
    start: bool = True,
) -> Host[RequestT, RecordT]:
    """A host of a fresh machine, recovered from its logs. `start` False: the caller calls `Host.start`."""
    host = HandHost(machine, logs, skin, time, registration, verified)
    recovery = Recovery(host.places, {name: log.stored for name, log in logs.items() if log.stored is not None})
    for part in recovery.slices():
        machine.restore(part)
    while (wanted := recovery.wanted()) is not None:
        name, position = wanted
        entries = logs[name].read(position)
        host.fold_all(name, entries)
        recovery.read(entries)
    if start:
        host.start()
    return host
