"""One cluster of the service: the connections to its brokers, the driver of its ends, and the check of its participants."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.inside import Runtime
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc_service.claims import ClaimsPlace, TopicClaims
from pulsar_txn.tc_service.cluster.admin import AdminApi, AdminUnreachable, open_admin
from pulsar_txn.tc_service.cluster.attempts import BrokerAttempts
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.tc_service.cluster.ends import EndDriver
from pulsar_txn.tc_service.cluster.participants import (
    ClusterRefused,
    ParticipantRefused,
    check_cluster,
    check_participant,
    is_missing,
)
from pulsar_txn.tc_service.config import ClusterConfig
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnId

logger = logging.getLogger("pulsar_txn.tc_service")

_REMEMBERED: Final = 100_000
"""Participants that were found there; the oldest is forgotten first, and looked for again."""


class OneCluster:
    """Implements `clusters.Cluster`. `repeat_after_seconds`: see `EndDriver`."""

    def __init__(self, name: str, config: ClusterConfig, runtime: Runtime, repeat_after_seconds: float | None = None) -> None:
        self.name = name
        self._config = config
        self._brokers = Brokers(name, config.service_url, config.settings(), runtime)
        self._attempts = BrokerAttempts(self._brokers)
        self._open = AsyncExitStack()
        self._admin: AdminApi | None = None
        self.place: ClaimsPlace = TopicClaims(self._brokers)
        self.driver = EndDriver(name, self._attempts, runtime, repeat_after_seconds=repeat_after_seconds)
        self._found: dict[tuple[str, str | None], None] = {}

    @property
    def admin(self) -> AdminApi | None:
        """Its admin API, where the configuration names one; after `start`."""
        return self._admin

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        """See `Cluster.tell`."""
        self.driver.tell(effect, told)

    def is_checked(self, participant: Participant) -> bool:
        """See `Cluster.is_checked`."""
        return (participant.topic, participant.subscription) in self._found

    async def start(self) -> None:
        """Look whether the cluster can take part. Raises ClusterRefused when its configuration, or ours, has to be changed.

        A cluster that is away now does not keep the service from the others: its participants are told when it is back.
        """
        if self._config.admin_url:
            self._admin = await self._open.enter_async_context(open_admin(self._config.admin_url, self._config.settings()))
        try:
            await check_cluster(self._brokers, self._attempts)
        except ClusterRefused as refused:
            if not refused.passes:
                raise
            logger.warning("%s. Everything that concerns it waits", refused)

    async def check(self, participant: Participant) -> None:
        """See `Cluster.check`."""
        try:
            await check_participant(self._brokers, participant, self._admin)
        except ParticipantRefused as refused:
            raise Refusal(ServerError.NotAllowedError, str(refused)) from None
        except (PulsarError, AdminUnreachable) as error:
            raise Refusal(ServerError.ServiceNotReady, f"the cluster {self.name} could not be asked: {error}; retry") from error
        self._found[participant.topic, participant.subscription] = None
        if len(self._found) > _REMEMBERED:
            del self._found[next(iter(self._found))]

    async def is_missing(self, topic: str) -> bool:
        """See `Cluster.is_missing`."""
        try:
            return await is_missing(self._brokers, topic)
        except (PulsarError, ParticipantRefused) as error:
            logger.info("whether %s is in the cluster %s is not known: %s", topic, self.name, error)
            return False

    async def close(self) -> None:
        """Tell nobody any more."""
        await self.driver.close()
        await self._brokers.close()
        await self._open.aclose()
