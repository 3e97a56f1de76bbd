"""The duties H1 to H7 of a host, without IO: what waits for what, snapshots, recovery, registrations, time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import pytest
from hand_skin import HandSkin, HandTime

from pulsar_txn.ledger import snapshots
from pulsar_txn.ledger.by_hand import HandLog, hosted
from pulsar_txn.ledger.hosting import Host
from pulsar_txn.ledger.machine import Effect, Redeliver, Reply, Step, VerifyRegistered, WriteSnapshot
from pulsar_txn.ledger.protocols import DiskFull, LedgerError, LogDamaged, Snapshot
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.ids import Position, TxnId

TXN = TxnId(0, 1)


class _Asks:
    """A machine that writes what it is asked to, in two logs, and asks for the registration of a transaction."""

    logs = ("log", "other")

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes]] = []
        self.deadlines: list[int] = []
        self.times: list[int] = []
        self.slices = 0
        self.trims_before: dict[str, Position] = {}

    def decide(self, request: Any, now_ms: int) -> Step[bytes]:
        self.times.append(now_ms)
        if isinstance(request, _Verified):
            if not request.registered:
                raise Refusal(ServerError.NotAllowedError, "not registered")
            return Step((("log", request.request.what),), (Reply(request.token, position_of=0),))
        if request.what == b"no":
            raise Refusal(ServerError.NotAllowedError, "no")
        if request.txn_id is not None:
            return Step((), (VerifyRegistered(request.txn_id, request),))
        return Step(tuple((log, request.what) for log in request.into), (Reply(request.token, request.what),))

    def apply(self, log: str, position: Position, record: bytes) -> None:
        self.records.append((log, record))

    def encode(self, log: str, record: bytes) -> bytes:
        return record

    def decode(self, log: str, data: bytes) -> bytes:
        if data == b"bad":
            raise WireError("bad")
        return data

    def recovered(self, now_ms: int) -> Step[bytes]:
        return Step(effects=(Redeliver(()),))

    def deadline(self) -> int | None:
        return self.deadlines[0] if self.deadlines else None

    def expire(self, now_ms: int) -> Step[bytes]:
        return Step((("log", b"at %d" % self.deadlines.pop(0)),))

    def snapshot(self) -> Iterator[bytes]:
        return self._slices(list(self.records))

    def _slices(self, records: list[tuple[str, bytes]]) -> Iterator[bytes]:
        for log, record in records:
            self.slices += 1
            yield b"%s %s" % (log.encode(), record)

    def restore(self, part: bytes) -> None:
        log, record = part.split(b" ", 1)
        self.records.append((log.decode(), record))

    def trim_before(self, log: str) -> Position | None:
        return self.trims_before.get(log)

    def check_invariants(self) -> None:
        """Nothing."""


@attrs.frozen
class _Request:
    token: Any
    what: bytes
    into: tuple[str, ...] = ("log",)
    txn_id: TxnId | None = None


@attrs.frozen
class _Verified:
    request: _Request
    registered: bool

    @property
    def token(self) -> Any:
        return self.request.token


class _Registration:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.known: set[TxnId] = set()
        self.asked: list[tuple[TxnId, Callable[[bool | None], None]]] = []

    def knows(self, txn_id: TxnId) -> bool:
        return txn_id in self.known

    def ask(self, txn_id: TxnId, answer: Callable[[bool | None], None]) -> None:
        self.asked.append((txn_id, answer))


class _World:
    """A host with its machine, logs, skin and time. `again` recovers it from what is durable."""

    def __init__(self, logs: Mapping[str, HandLog] | None = None) -> None:
        self.machine, self.skin, self.time, self.registration = _Asks(), HandSkin(), HandTime(), _Registration()
        self.logs = logs or {name: HandLog(name) for name in _Asks.logs}
        self.answers: list[Any] = []
        self.host: Host[Any, bytes] = hosted(
            self.machine, self.logs, self.skin, self.time, registration=self.registration, verified=_Verified
        )

    def ask(self, what: bytes, *into: str, txn_id: TxnId | None = None) -> None:
        def answer(value: Any, error: ServerError | None, _message: str) -> None:
            self.answers.append((what, value if error is None else error))

        self.host.submit(_Request(answer, what, into, txn_id))

    def confirm(self) -> None:
        for log in self.logs.values():
            log.confirm()

    def again(self) -> _World:
        kept = {
            name: HandLog(
                name,
                1,
                [entry for entry in log.entries if entry[0] <= log.last_confirmed],
                stored=log.stored,
                trimmed=log.trimmed,
            )
            for name, log in self.logs.items()
        }
        return _World(kept)


@pytest.fixture
def world() -> _World:
    return _World()


def test_an_answer_waits_for_all_its_records_and_one_without_records_for_the_tail_of_all_logs(world: _World) -> None:
    world.ask(b"nothing")
    world.ask(b"both", "log", "other")
    world.ask(b"nothing more")
    world.ask(b"no")
    assert world.answers == [(b"nothing", b"nothing")], "with nothing in flight it is answered at once"
    world.logs["log"].confirm()
    assert len(world.answers) == 1, "the other log has confirmed nothing"
    world.logs["other"].confirm()
    assert world.answers[1:] == [
        (b"both", b"both"), (b"nothing more", b"nothing more"), (b"no", ServerError.NotAllowedError)
    ]  # fmt: skip


def test_a_registration_that_is_known_needs_no_question_and_the_record_is_appended_in_the_same_call(world: _World) -> None:
    world.registration.known.add(TXN)
    world.ask(b"sent", txn_id=TXN)
    assert world.registration.asked == []
    assert world.machine.records == [("log", b"sent")]
    world.confirm()
    assert world.answers == [(b"sent", (0, 0))]


def test_a_machine_that_asked_once_decides_once_about_what_is_known_and_asks_about_what_is_not(world: _World) -> None:
    known, other = TxnId(0, 2), TxnId(0, 3)
    world.registration.known |= {TXN, known}
    world.ask(b"first", txn_id=TXN)
    decisions = len(world.machine.times)
    world.ask(b"second", txn_id=known)
    assert len(world.machine.times) == decisions + 1
    assert world.machine.records == [("log", b"first"), ("log", b"second")]
    world.ask(b"third", txn_id=other)
    assert [txn_id for txn_id, _ in world.registration.asked] == [other]
    world.registration.known.add(other)
    world.ask(b"fourth", txn_id=other)
    assert len(world.machine.records) == 2, "the fourth does not overtake the third, whose answer is awaited"
    world.registration.asked.pop()[1](True)
    assert world.machine.records[2:] == [("log", b"third"), ("log", b"fourth")]
    world.confirm()
    assert [what for what, _ in world.answers] == [b"first", b"second", b"third", b"fourth"]


def test_what_is_known_and_finds_no_room_is_refused_by_its_own_answer(world: _World) -> None:
    world.registration.known.add(TXN)
    world.ask(b"first", txn_id=TXN)
    world.logs["log"].room = 0
    world.ask(b"second", txn_id=TXN)
    assert world.answers == [(b"second", ServerError.PersistenceError)]


def test_what_comes_for_a_transaction_waits_while_its_registration_is_asked_for_and_other_requests_do_not(
    world: _World,
) -> None:
    world.ask(b"first", txn_id=TXN)
    world.ask(b"second", txn_id=TXN)
    world.ask(b"other", "log")
    assert world.machine.records == [("log", b"other")]
    assert list(world.host.verifying) == [TXN]
    world.registration.known.add(TXN)
    world.registration.asked.pop()[1](True)
    assert world.machine.records[1:] == [("log", b"first"), ("log", b"second")], "in the order in which they came"
    assert not world.host.verifying


@pytest.mark.parametrize(("registered", "error"), [(False, ServerError.NotAllowedError), (None, ServerError.ServiceNotReady)])
def test_a_request_whose_transaction_is_not_registered_is_refused_and_one_that_nobody_can_tell_of_is_to_be_repeated(
    world: _World, registered: bool | None, error: ServerError
) -> None:
    world.ask(b"sent", txn_id=TXN)
    world.registration.asked.pop()[1](registered)
    assert world.answers == [(b"sent", error)]
    assert world.machine.records == []


def test_a_failed_log_refuses_what_waits_and_what_comes_and_is_told_once(world: _World) -> None:
    world.ask(b"waits", "log", "other")
    world.logs["log"].fail(LedgerError("gone"))
    world.logs["other"].fail(LedgerError("gone as well"))
    world.ask(b"comes", "log")
    assert world.answers == [(b"waits", ServerError.ServiceNotReady), (b"comes", ServerError.ServiceNotReady)]
    assert [str(error) for error in world.skin.failures] == ["gone"]
    assert not world.host.ready


def test_a_step_that_was_appended_in_part_fails_the_host(world: _World) -> None:
    world.logs["other"].room = 0
    world.ask(b"both", "log", "other")
    assert world.answers == [(b"both", ServerError.ServiceNotReady)]
    assert not isinstance(world.skin.failures[0], DiskFull)


def test_all_decisions_of_a_turn_have_its_time_and_the_skin_hears_of_the_turn_once(world: _World) -> None:
    world.host.in_turn = False
    turns = world.skin.turns
    for _ in range(3):
        world.ask(b"x", "log")
    assert world.skin.turns == turns + 1
    world.time.now_ms += 5
    world.host.in_turn = False
    world.ask(b"x", "log")
    assert world.machine.times == [1000, 1000, 1000, 1005]


def test_what_is_due_is_carried_out_in_pieces_and_nothing_that_is_not_due(world: _World) -> None:
    world.machine.deadlines = [900, 950, 1000, 1001]
    world.skin.pieces = 2
    assert world.host.expire()
    assert world.machine.records == [("log", b"at 900"), ("log", b"at 950")]
    world.host.expire()
    world.host.expire()
    assert world.machine.deadlines == [1001]
    assert world.host.expired == 3


def test_a_snapshot_shows_one_moment_of_all_logs_is_stored_once_that_is_durable_and_recovered_from(world: _World) -> None:
    world.ask(b"1", "log", "other")
    world.host.carry_out(Step((), (WriteSnapshot("log"),)))
    world.ask(b"2", "other")
    world.logs["log"].confirm()
    assert world.logs["log"].stored is None
    world.machine.trims_before = {"log": (9, 9)}
    world.confirm()
    stored = world.logs["log"].stored
    assert stored is not None
    assert stored.covers == (0, 0)
    assert world.logs["log"].first is None, "trimmed to what the snapshot covers"
    assert world.again().machine.records == [("log", b"1"), ("other", b"1"), ("other", b"2")]


def test_nothing_of_a_snapshot_is_made_before_everything_that_it_covers_is_durable(world: _World) -> None:
    world.ask(b"1", "log")
    world.host.take_snapshot("log")
    assert world.machine.slices == 0
    assert world.host.failure is None
    world.confirm()
    assert world.machine.slices == 1


def test_snapshots_that_are_asked_for_while_one_is_under_way_become_one_of_a_later_moment(
    world: _World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_TURN_BYTES", 1)
    stored: list[str] = []
    for _ in range(3):
        world.ask(b"a", "log")
    world.confirm()
    for name in ("first", "second", "third"):
        world.host.take_snapshot("log", lambda *_, name=name: stored.append(name))
        world.ask(name.encode(), "log")
    for _ in range(20):
        world.confirm()
    assert stored == ["first", "second", "third"]
    assert world.machine.slices == 3 + 6, "the second one and the third one are the same snapshot"


def test_a_recovery_reads_each_log_from_where_the_snapshot_covers_it_and_starts_once(world: _World) -> None:
    for what in (b"1", b"2", b"3"):
        world.ask(what, "log", "other")
        world.confirm()
        if what == b"2":
            world.host.take_snapshot("log")
    again = world.again()
    assert again.machine.records == world.machine.records, "nothing is applied twice"
    assert again.skin.effects == [Redeliver(())]
    again.ask(b"4", "log")
    assert again.logs["log"].last_appended == (1, 0)


@pytest.mark.parametrize("damage", ["entry", "snapshot"])
def test_bytes_that_are_no_record_are_damage_that_names_its_log(damage: str) -> None:
    log = HandLog("log", 0, [((0, 0), b"fine"), ((0, 1), b"bad")] if damage == "entry" else [((0, 0), b"fine")])
    if damage == "snapshot":
        log.stored = Snapshot((0, 0), (b"nonsense",))
    with pytest.raises(LogDamaged) as damaged:
        _World({"log": log, "other": HandLog("other")})
    assert damaged.value.log == "log"
    assert damaged.value.position == ((0, 1) if damage == "entry" else (0, 0))


def test_a_skin_that_does_not_carry_out_an_effect_fails_its_host_and_loses_no_answer(world: _World) -> None:
    def perform(effect: Effect) -> None:
        raise TypeError("an effect of another machine")

    world.skin.perform = perform  # type: ignore[method-assign] # a mistake
    world.host.carry_out(Step((("log", b"1"),), (Redeliver(()),)))
    world.ask(b"waits", "log")
    world.confirm()
    assert world.answers == [(b"waits", ServerError.ServiceNotReady)]
    assert isinstance(world.skin.failures[0], TypeError)
