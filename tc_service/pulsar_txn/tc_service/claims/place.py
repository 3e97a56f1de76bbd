"""Place of the claims of a cluster: a topic that all services write to, and a producer that shows that this one lives.

The topic `pulsar-txn-claims` is a small metadata store with compare-and-set (`topic_ledger.shared_metadata`): a claim has
happened when it was read back. The topic `pulsar-txn-claims-<store>` has one exclusive producer, the process that has the
store: so a copy of a folder waits while its original lives. Instances that share a store are producers beside each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.ledger.protocols import LeaseLost, LedgerError, MetadataStore
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.tc_service.topic_ledger.place import Place
from pulsar_txn.tc_service.topic_ledger.shared_metadata import SharedMetadata
from pulsar_txn.tc_service.topic_ledger.writer import EXCLUSIVE, SHARED, WAIT_FOR_EXCLUSIVE, Writer

CLAIMS_TOPIC: Final = "persistent://pulsar/system/pulsar-txn-claims"
_PROBE_SECONDS: Final = 5.0
_TURN_SECONDS: Final = 30.0


def presence_topic(store: str) -> str:
    """The topic whose producer shows that a process has a store, as the cluster is named there."""
    return f"{CLAIMS_TOPIC}-{store}"


class ClaimsPlace(Protocol):
    """The claims of one cluster, while this process is there."""

    @property
    def metadata(self) -> MetadataStore:
        """The claims of all services; after `open`."""

    async def open(self, store: str, *, is_shared: bool, when_lost: Callable[[str], None]) -> None:
        """Be there, however long another process has the store, and read all claims. Raises PulsarError, LedgerError.

        `when_lost` is called with the reason when this process may be there no more.
        """

    async def is_alive(self, store: str) -> bool:
        """True if some process has another store. Raises PulsarError."""

    async def close(self) -> None:
        """Leave. Idempotent; it may be opened again."""


class TopicClaims:
    """Implements `ClaimsPlace` in topics of the cluster."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._presence: Writer | None = None
        self._metadata: SharedMetadata | None = None

    @property
    def metadata(self) -> MetadataStore:
        """See `ClaimsPlace`."""
        assert self._metadata is not None  # noqa: S101 - only after `open`
        return self._metadata

    async def open(self, store: str, *, is_shared: bool, when_lost: Callable[[str], None]) -> None:
        """See `ClaimsPlace`."""
        topic = presence_topic(store)
        await Place(self._brokers, topic).make()
        presence = self._presence = Writer(self._brokers, topic, self._name())
        presence.when_lost = lambda lost: when_lost(str(lost))
        try:
            async with asyncio.timeout(_TURN_SECONDS):  # the queue of a broker that the topic has left lets nobody in
                await presence.attach(SHARED if is_shared else WAIT_FOR_EXCLUSIVE)
        except TimeoutError:
            raise LeaseLost(f"another process has claimed the store {store}") from None
        metadata = self._metadata = SharedMetadata(self._brokers, CLAIMS_TOPIC)
        await metadata.start()

    async def is_alive(self, store: str) -> bool:
        """See `ClaimsPlace`."""
        probe = Writer(self._brokers, presence_topic(store), self._name())
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await probe.attach(EXCLUSIVE)
        except PulsarError as error:
            if error.code is None:
                raise
            return True
        except TimeoutError:
            return True
        finally:
            await probe.close()
        return False

    async def close(self) -> None:
        """See `ClaimsPlace`."""
        metadata, self._metadata = self._metadata, None
        presence, self._presence = self._presence, None
        if metadata is not None:
            await metadata.close()
        if presence is not None:
            await presence.close()

    def _name(self) -> str:
        return f"pulsar-txn-claims-{int(self._brokers.runtime.random() * 2**48):012x}"


PLACE_FAILS: Final = (PulsarError, LedgerError)
"""What `ClaimsPlace.open` raises when it is to be tried again."""
