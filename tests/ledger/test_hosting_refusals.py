"""A host on a disk without room: every request has one answer, and what nobody would repeat is not lost."""

from __future__ import annotations

from typing import Any

import pytest
from hand_skin import HandSkin, HandTime
from scripted_machine import ScriptedMachine, ScriptedRequest

from pulsar_txn.ledger.by_hand import HandLog, hosted
from pulsar_txn.ledger.hosting import Host
from pulsar_txn.ledger.machine import AwaitOutcome, Outcome, Reply, Step
from pulsar_txn.ledger.protocols import DiskFull, EntryTooLarge
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId

TXN = TxnId(0, 1)


class _World:
    """A host, its machine, its log and its skin."""

    def __init__(self) -> None:
        self.machine, self.log, self.skin = ScriptedMachine(), HandLog(), HandSkin()
        self.host: Host[Any, bytes] = hosted(self.machine, {"log": self.log}, self.skin, HandTime())


@pytest.fixture
def world() -> _World:
    return _World()


def test_an_end_that_the_disk_has_no_room_for_is_refused_once_and_not_answered_again_by_the_outcome(world: _World) -> None:
    answers: list[Any] = []
    request = ScriptedRequest(Step(), answers)
    request.step = Step((("log", b"decision"),), (AwaitOutcome(request.token, TXN),))
    world.log.room = 0
    world.host.submit(request, reserve=True)
    assert answers == [(None, ServerError.PersistenceError)]
    world.log.room = 9
    world.host.submit(request, reserve=True)
    world.host.carry_out(Step((("log", b"done"),), (Outcome(TXN, TxnAction.COMMIT),)))
    world.log.confirm()
    assert answers[1:] == [(None, None)], "the repeat has its own answer"
    assert not world.host.is_busy


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("records", [1, 2])
def test_a_step_that_finds_no_room_for_its_trailing_record_fails_the_host_and_is_answered_once(
    world: _World, records: int, awaits: bool
) -> None:
    answers: list[Any] = []
    request = ScriptedRequest(Step(), answers)
    effect = AwaitOutcome(request.token, TXN) if awaits else Reply(request.token, "value")
    request.step = Step((("log", b"decision"),) * records, (effect, Outcome(TXN, TxnAction.COMMIT)), (("log", b"end"),))
    world.log.room = records
    world.host.submit(request, reserve=True)
    assert world.host.failure is not None, "what is in memory is no state of the machine"
    assert answers == [(None, ServerError.ServiceNotReady)]
    world.log.confirm()
    assert len(answers) == 1
    assert world.skin.failures == [world.host.failure]


def test_what_nobody_waits_for_is_told_again_in_its_order_until_there_is_room(world: _World) -> None:
    answers: list[Any] = []
    done = Step(effects=(Outcome(TXN, TxnAction.COMMIT),), trailing=(("log", b"1"),))
    world.host.carry_out(Step(effects=(AwaitOutcome(lambda *answer: answers.append(answer), TXN),)))
    world.log.room = 0
    world.host.submit(ScriptedRequest(done), reserve=True)
    world.log.room = 1
    world.host.submit(ScriptedRequest(Step((("log", b"2"),))), reserve=True)
    world.host.submit(ScriptedRequest(Step((("log", b"3"),))), reserve=True)
    assert world.machine.applied == [], "the later ones wait behind the first"
    assert world.skin.owed == 1, "the skin is asked once to call `pay`"
    world.host.pay()
    assert world.machine.applied == [b"1"]
    assert answers == [(None, None, "")]
    assert world.skin.owed == 2, "there is still something to pay"
    world.log.room = 2
    world.host.pay()
    assert world.machine.applied == [b"1", b"2", b"3"]
    assert world.host.failure is None


def test_what_is_due_waits_for_room_and_does_not_fail_the_host(world: _World) -> None:
    world.log.room = 0
    world.machine.due = [Step((("log", b"timeout"),))]
    world.host.carry_out(Step())
    assert not world.host.expire(), "the skin tries again in a while"
    assert world.host.failure is None
    world.log.room = 1
    assert world.host.expire()
    assert world.machine.applied == [b"timeout"]
    assert world.host.expired == 1, "what found no room was not written"


def test_a_machine_that_cannot_apply_its_own_record_fails_its_host(world: _World) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("a mistake in a plug-in")

    answers: list[Any] = []
    world.machine.apply = broken  # type: ignore[method-assign] # a mistake
    request = ScriptedRequest(Step(), answers)
    request.step = Step((("log", b"1"),), (Reply(request.token),))
    world.host.submit(request)
    assert answers == [(None, ServerError.ServiceNotReady)]
    assert world.host.failure is not None


@pytest.mark.parametrize("error", [DiskFull("full"), EntryTooLarge("too large")])
def test_a_snapshot_that_cannot_be_stored_fails_nobody_and_the_next_one_is_stored(
    world: _World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    stored: list[str] = []

    class Refusing:
        def write(self, part: bytes) -> None:
            raise error

        def abandon(self) -> None:
            stored.append("abandoned")

    with monkeypatch.context() as patch:
        patch.setattr(world.log, "write_snapshot", lambda _: Refusing())
        world.host.take_snapshot("log", lambda *_: stored.append("first"))
    assert stored == ["abandoned"]
    assert world.host.failure is None
    world.host.take_snapshot("log", lambda *_: stored.append("second"))
    assert stored == ["abandoned", "second"]
