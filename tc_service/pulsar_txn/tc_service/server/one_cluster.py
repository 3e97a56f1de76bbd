"""One cluster of the service: the connections to its brokers, the driver of its ends, and the check of its participants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pulsar_txn.client.errors import PulsarError, TopicNotFound
from pulsar_txn.client.inside import Runtime
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc_service.cluster.attempts import BrokerAttempts
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.tc_service.cluster.ends import EndDriver
from pulsar_txn.tc_service.config import ClusterConfig
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnId
from pulsar_txn.wire.topics import TopicName

_REMEMBERED: Final = 100_000
"""Participants that were found there; the oldest is forgotten first, and looked for again."""


class OneCluster:
    """Implements `clusters.Cluster`."""

    def __init__(self, name: str, config: ClusterConfig, runtime: Runtime) -> None:
        self.name = name
        self._brokers = Brokers(name, config.service_url, config.settings(), runtime)
        self.driver = EndDriver(name, BrokerAttempts(self._brokers), runtime)
        self._found: dict[Participant, None] = {}

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        """See `Cluster.tell`."""
        self.driver.tell(effect, told)

    def is_checked(self, participant: Participant) -> bool:
        """See `Cluster.is_checked`."""
        return participant in self._found

    async def check(self, participant: Participant) -> None:
        """See `Cluster.check`. The subscription itself cannot be looked for: the brokers' protocol does not show it."""
        name = TopicName.parse(participant.topic)
        try:
            count = await self._brokers.partitions(str(name.base))
        except TopicNotFound:
            raise Refusal(ServerError.TopicNotFound, f"{name} is not in the cluster {self.name}") from None
        except PulsarError as error:
            raise Refusal(ServerError.ServiceNotReady, f"the cluster {self.name} could not be asked: {error}; retry") from error
        if count and name.partition < 0:
            raise Refusal(ServerError.NotAllowedError, f"{name} has {count} partitions in the cluster {self.name}; name those")
        if name.partition >= count > 0:
            raise Refusal(ServerError.TopicNotFound, f"{name.base} has {count} partitions in the cluster {self.name}")
        self._found[participant] = None
        if len(self._found) > _REMEMBERED:
            del self._found[next(iter(self._found))]

    async def close(self) -> None:
        """Tell nobody any more."""
        await self.driver.close()
        await self._brokers.close()
