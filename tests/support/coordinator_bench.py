"""A coordinator service over a memory store and scripted clusters, in the test's own loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from memory_claims import MemoryClaims
from raw_client import RawClient

from pulsar_txn.broker.serving import AsyncioRuntime, Runtime
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.tc_service.cluster.attempts import Answer
from pulsar_txn.tc_service.cluster.ends import Told, WaitingEnd
from pulsar_txn.tc_service.config import CoordinatorConfig
from pulsar_txn.tc_service.server.clusters import Clusters
from pulsar_txn.tc_service.server.incarnations import store_id
from pulsar_txn.tc_service.server.service import CoordinatorService
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnId


class ScriptedDriver:
    """What the driver of a scripted cluster shows. `repeats`: ends to be told once more, with the seconds until then."""

    def __init__(self) -> None:
        self.ended = self.alarms = self.repeated = 0
        self.answers: Counter[Answer] = Counter()
        self.waiting = self.to_repeat = self.spared = self.oldest_ms = 0
        self.topics_held_back: dict[str, int] = {}
        self.waiting_ends: dict[tuple[TxnId, Participant], WaitingEnd] = {}
        self.repeats: list[tuple[TellParticipant, float]] = []
        self.answered: list[TxnId] = []

    def failing_topics(self) -> dict[str, int]:
        return self.topics_held_back

    def waiting_end(self, txn_id: TxnId, participant: Participant) -> WaitingEnd | None:
        return self.waiting_ends.get((txn_id, participant))

    def all_answered(self, txn_id: TxnId) -> None:
        self.answered.append(txn_id)

    def repeat(self, effect: TellParticipant, seconds: float) -> None:
        self.repeats.append((effect, seconds))


class ScriptedCluster:
    """A cluster whose brokers answer when the test says so. `missing`: topics that are not there."""

    def __init__(self, claims: MemoryClaims | None = None) -> None:
        self.driver = ScriptedDriver()
        self.claims_place = MemoryClaims() if claims is None else claims
        self.told: list[TellParticipant] = []
        self.missing: set[str] = set()
        self.checks = 0
        self.answers = True
        self.is_away = False
        self.waiting: list[Callable[[], None]] = []
        self._found: set[Participant] = set()

    @property
    def claims_backend(self) -> Any:
        return self.claims_place

    def tell(self, effect: TellParticipant, told: Told) -> None:
        self.told.append(effect)
        self.waiting.append(lambda: self._holds(effect, told))
        if self.answers:
            self.answer()

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()

    def _holds(self, effect: TellParticipant, told: Told) -> None:
        self.driver.ended += 1
        told(effect, 1)

    def is_verified(self, participant: Participant) -> bool:
        return participant in self._found

    async def verify(self, participant: Participant) -> None:
        self.checks += 1
        if self.is_away:
            raise OSError("no route")
        if participant.topic in self.missing:
            raise Refusal(ServerError.TopicNotFound, f"{participant.topic} is not there")
        self._found.add(participant)

    async def is_missing(self, topic: str) -> bool:
        return topic in self.missing

    async def start(self) -> None:
        """It can always take part."""

    async def close(self) -> None:
        """Nothing is open."""

    @property
    def ends(self) -> list[tuple[str, str | None, str]]:
        return [(each.participant.topic, each.participant.subscription, each.action.name) for each in self.told]


class Bench:
    """A service that can crash; `clusters` are those of the present configuration."""

    def __init__(self, *names: str, **config: Any) -> None:
        self.config = CoordinatorConfig(number_of_transaction_coordinators=2, **config)
        self.clusters = {name: ScriptedCluster() for name in names}
        self.store = MemoryStore()
        self.server_runtime: Runtime = AsyncioRuntime()
        self.service: CoordinatorService

    async def start(self) -> Bench:
        await self.store.start()
        clusters = Clusters(self.clusters)
        clusters.claim(await store_id(self.store, self.server_runtime), is_shared=False)
        self.service = CoordinatorService(self.config, self.store, clusters, self.server_runtime)
        await self.service.start(2)
        await self.service.coordinators.wait_ready()
        return self

    async def crash(self, *names: str) -> None:
        """Only what was confirmed survives. `names`: the clusters of the configuration from now on; all of before without."""
        self.store = self.store.crash()
        kept = {name: each.claims_place for name, each in self.clusters.items()}
        for backend in kept.values():
            backend.forget()
        self.clusters = {name: ScriptedCluster(kept.get(name)) for name in names or self.clusters}
        await self.start()

    def client(self) -> Any:
        return RawClient(self.service)  # type: ignore[arg-type]  # it wants connections, and nothing else of a broker
