"""What coordinators offer to the clients of a server that gives lanes: leases, goodbyes, and take-overs that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from pulsar_txn.broker.base.runtime import AsyncioRuntime, Clock
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.txn.coordinator_host import ServingByLane
from pulsar_txn.broker.txn.coordinators import Coordinators, PlainCoordinators
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.tc import FencingCoordinator, LaneIds
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, TxnStatus


class _Deaf:
    """Participants that take an outcome when the test says so."""

    def __init__(self) -> None:
        self.told: list[tuple[TellParticipant, Callable[[TxnId], None]]] = []
        self.heard: asyncio.Queue[TxnId] = asyncio.Queue()

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        self.told.append((effect, told))
        self.heard.put_nowait(effect.txn_id)

    def take(self, txn_id: TxnId) -> None:
        for effect, told in self.told:
            if effect.txn_id == txn_id:
                told(txn_id)


class World:
    """Two coordinators over a memory store."""

    def __init__(self) -> None:
        self.participants = _Deaf()
        runtime = AsyncioRuntime()
        turn = Turn(runtime, Clock(runtime))
        self.store = MemoryStore()
        self.coordinators = Coordinators(
            self.store,
            turn,
            PlainCoordinators(lambda tc_id: FencingCoordinator(tc_id, ids=LaneIds(lease_ms=200)), turn, self.participants),
            lambda *_: None,
            serving=ServingByLane(),
        )

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """The value that a request is answered with; the code of a refusal."""
        answered = asyncio.get_running_loop().create_future()

        def answer(value: Any, error: ServerError | None, message: str) -> None:
            answered.set_result(value if error is None else error)

        names = {"new_txn": 4, "take_over": 3, "renew": 3, "goodbye": 3, "add": 4, "end": 4}
        at = names[method]
        getattr(self.coordinators, method)(*args[:at], answer, *args[at:], **kwargs)
        return await asyncio.wait_for(answered, 30)

    async def opened(self, epoch: int = 1, incarnation: str = "i") -> TxnId:
        """A transaction with a participant, of a transactional id at coordinator 1."""
        identity = ("app", epoch)
        txn_id = await self.call("new_txn", 1, 60_000, None, identity, incarnation)
        assert isinstance(txn_id, TxnId)
        assert await self.call("add", txn_id, (Participant("t"),), None, identity) is None
        return txn_id

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        """The status of a transaction."""
        serving = self.coordinators.ready(1)
        assert serving is not None
        status: TxnStatus | None = serving.coordinator.status(txn_id)  # type: ignore[attr-defined]  # ours has it
        return status


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Coordinators that serve."""
    world = World()
    await world.store.start()
    world.coordinators.grow(2)
    await world.coordinators.wait_ready()
    yield world
    await world.coordinators.close()


async def test_a_take_over_returns_after_everything_of_older_epochs_has_ended(world: World) -> None:
    left_open, decided = await world.opened(), await world.opened()
    committing = asyncio.ensure_future(world.call("end", decided, TxnAction.COMMIT, None, ("app", 1)))
    taking_over = asyncio.ensure_future(world.call("take_over", 1, None, ("app", 2)))
    assert {await world.participants.heard.get() for _ in range(2)} == {left_open, decided}
    for txn_id in (left_open, decided):
        assert not taking_over.done()
        world.participants.take(txn_id)
        for _ in range(5):
            await asyncio.sleep(0)
    assert await taking_over is None
    assert await committing is None
    assert (world.status(left_open), world.status(decided)) == (TxnStatus.ABORTED, TxnStatus.COMMITTED)
    assert await world.call("new_txn", 1, 1, None, ("app", 1)) is ServerError.ProducerFenced
    assert await world.call("take_over", 1, None, ("app", 1)) is ServerError.ProducerFenced


async def test_a_client_that_does_not_renew_is_gone_when_its_lease_is_over(world: World) -> None:
    gone, alive = await world.opened(), await world.opened(incarnation="j")
    while world.status(gone) is TxnStatus.OPEN:
        assert await world.call("renew", 1, None, "j") is True
        await asyncio.sleep(0.01)
    assert world.status(alive) is TxnStatus.OPEN
    assert await world.call("renew", 1, None, "i") is False


async def test_a_client_that_says_goodbye_or_is_known_to_be_gone_leaves_nothing_open(world: World) -> None:
    first, second = await world.opened(), await world.opened(incarnation="j")
    assert await world.call("goodbye", 1, None, "i") is None
    world.coordinators.vanished(1, None, "j")
    assert (world.status(first), world.status(second)) == (TxnStatus.ABORTING, TxnStatus.ABORTING)


async def test_a_coordinator_that_is_not_here_says_so(world: World) -> None:
    for method, who in (("renew", ("i",)), ("goodbye", ("i",)), ("take_over", (("app", 1),))):
        assert await world.call(method, 9, None, *who) is ServerError.TransactionCoordinatorNotFound
    world.coordinators.vanished(9, None, "i")
