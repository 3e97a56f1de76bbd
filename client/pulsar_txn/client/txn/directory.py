"""Directory of the transaction coordinators of a cluster. `CoordinatorDirectory` is the door for another way of discovery.

Brokers up to 4.x tell it by the partitions of the assign topic; Pulsar 5 has a watch for it.
"""

from __future__ import annotations

from typing import Protocol

from pulsar_txn.client.errors import AuthorizationError, TopicNotFound, TransactionsDisabled
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.txn.diagnosis import NO_ASSIGN_TOPIC, explained
from pulsar_txn.wire.topics import ASSIGN_TOPIC, partition_name


class CoordinatorDirectory(Protocol):
    """Source of the coordinators that there are."""

    async def topics(self) -> list[str]:
        """One name per coordinator, in the order of their ids, that a lookup resolves to its broker.

        Raises TransactionsDisabled if there is no coordinator.
        """
        ...


class AssignTopicDirectory:
    """Discovery by the partitions of the assign topic, as brokers up to 4.x have it."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def topics(self) -> list[str]:
        """The partitions of the assign topic."""
        try:
            count = await self._core.retrying(
                lambda: self._core.lookup.partitions(ASSIGN_TOPIC, create=False), "looking up the transaction coordinators"
            )
        except TopicNotFound:
            count = 0
        except AuthorizationError as error:
            raise explained(error) from None
        if not count:
            raise TransactionsDisabled("the cluster has no transaction coordinator", hint=NO_ASSIGN_TOPIC)
        return [partition_name(ASSIGN_TOPIC, index) for index in range(count)]
