"""The clusters that take part in transactions: their names, who may take part in each, and how their participants are told.

`Clusters` are all of a service; `OneCluster` has the connections to the brokers of one, the driver of its ends, and the check
of its participants. All instances of a service agree on how many coordinators there are, and compare the clusters' names: that
is in the store's metadata, and several instances may start, or grow, at the same moment. Outcomes are decided elsewhere.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from pulsar_txn.broker.serving import coordinator_log_name
from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.inside import Runtime
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.ledger.protocols import LogStore, MetadataStore, StoreUnsupported, VersionConflict
from pulsar_txn.tc_service.claims import Claims, TopicClaims
from pulsar_txn.tc_service.cluster.admin import AdminApi, AdminUnreachable, open_admin
from pulsar_txn.tc_service.cluster.attempts import BrokerAttempts
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.tc_service.cluster.ends import EndDriver, Told
from pulsar_txn.tc_service.cluster.participants import (
    ClusterRefused,
    ParticipantRefused,
    decode,
    encode,
    is_missing,
    verify_cluster,
    verify_participant,
)
from pulsar_txn.tc_service.config import ClusterConfig
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnId

logger = logging.getLogger("pulsar_txn.tc_service")


_REMEMBERED: Final = 100_000
"""Participants that were found there; the oldest is forgotten first, and looked for again."""

_COUNT: Final = "/tc-service/coordinators"
_CLUSTERS: Final = "/tc-service/clusters"


class Clusters:
    """All of them, by name. Implements the broker's protocol `Participants` for the coordinators."""

    def __init__(self, clusters: Mapping[str, OneCluster]) -> None:
        self._clusters = dict(clusters)
        self._only = next(iter(clusters)) if len(clusters) == 1 else None
        self._watch: Callable[[str, TellParticipant, int], None] | None = None
        self._unknown: dict[str, int] = {}
        self._closed = False
        self.claims: Mapping[str, Claims] = {}
        """Claims of the service in each cluster, once it has begun to claim."""

    def claim(self, store: str, *, is_shared: bool) -> Mapping[str, Claims]:
        """The claims of the process that has this store, in each cluster."""
        made = {name: Claims(name, each.claims_backend, store, is_shared=is_shared) for name, each in self._clusters.items()}
        self.claims = made
        return made

    @property
    def names(self) -> list[str]:
        """Their names."""
        return list(self._clusters)

    def named(self, name: str) -> str:
        """The cluster that a client means by `name`; it need not say it where there is one.

        Refusal NotAllowedError for one that is not there, ServiceNotReady for one in which nothing is claimed at this moment.
        """
        if not name and self._only is not None:
            name = self._only
        if name in self._clusters:
            claims = self.claims.get(name)
            if claims is not None and not claims.is_held:
                raise claims.refusal()
            return name
        known = ", ".join(self._clusters)
        what = f"there is no cluster {name[:80]!r} here" if name else "the client does not say which cluster it writes to"
        raise Refusal(ServerError.NotAllowedError, f"{what}; make the client with cluster= one of: {known}")

    def seen_from(self, name: str) -> Clusters:
        """The same clusters for clients of one of them, which never say its name."""
        seen = Clusters(self._clusters)
        seen._only = name
        seen.claims = self.claims
        return seen

    def is_verified(self, cluster: str, participants: Iterable[Participant]) -> bool:
        """True if nobody has to be asked about these."""
        return all(map(self._clusters[cluster].is_verified, participants))

    async def verify(self, cluster: str, participants: Iterable[Participant]) -> None:
        """Refusal when one of them cannot take part."""
        for each in participants:
            if not self._clusters[cluster].is_verified(each):
                await self._clusters[cluster].verify(each)

    async def is_missing(self, cluster: str, topic: str) -> bool:
        """True if a cluster says that it has no such topic at this moment."""
        found = self._clusters.get(cluster)
        return found is not None and await found.is_missing(topic)

    def driver(self, cluster: str) -> EndDriver | None:
        """The driver of a cluster's ends; None for one that is not configured any more."""
        found = self._clusters.get(cluster)
        return None if found is None else found.driver

    def watch(self, told: Callable[[str, TellParticipant, int], None]) -> None:
        """Call `told` with the cluster, the end and its attempts, for each participant that holds its outcome."""
        self._watch = told

    def all_answered(self, txn_id: TxnId) -> None:
        """Nothing of a transaction can come late, says its client."""
        for cluster in self._clusters.values():
            cluster.driver.all_answered(txn_id)

    def repeat(self, effect: TellParticipant, seconds: float) -> None:
        """Tell a participant once more, as the coordinator's machine names it, after so many seconds."""
        name, participant = decode(effect.participant)
        driver = self.driver(name)
        if driver is not None:
            driver.repeat(TellParticipant(effect.txn_id, participant, effect.action, effect.low_watermark), seconds)

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        """See `Participants.tell`. A cluster that is not configured any more keeps its transactions until it is again."""
        if self._closed:
            return
        name, participant = decode(effect.participant)
        cluster = self._clusters.get(name)
        if cluster is not None:
            end = TellParticipant(effect.txn_id, participant, effect.action, effect.low_watermark)
            cluster.tell(end, partial(self._holds, name, told))
            return
        waiting = self._unknown[name] = self._unknown.get(name, 0) + 1
        if waiting == 1:
            logger.error(
                "%s of %s at %s waits: the configuration has no cluster %r any more; configure it again, and restart",
                effect.action.name, effect.txn_id, participant.topic, name,
            )  # fmt: skip

    def _holds(self, name: str, told: Callable[[TxnId], None], effect: TellParticipant, attempts: int) -> None:
        """A participant holds its outcome."""
        if self._watch is not None:
            self._watch(name, effect, attempts)
        told(effect.txn_id)

    async def start(self) -> None:
        """Look whether they can take part. Raises ClusterRefused."""
        for cluster in self._clusters.values():
            await cluster.start()

    def close(self) -> None:
        """Tell nobody any more; what is not told is told after the next start."""
        self._closed = True

    async def leave(self) -> None:
        """Close the connections to all of them; after `close`."""
        for cluster in self._clusters.values():
            await cluster.close()


def of_cluster(cluster: str, participants: Iterable[Participant]) -> tuple[Participant, ...]:
    """The participants as the machines of the coordinators know them."""
    return tuple(encode(cluster, each) for each in participants)


class OneCluster:
    """One cluster, as the server asks it. `repeat_after_seconds`: see `EndDriver`."""

    def __init__(self, name: str, config: ClusterConfig, runtime: Runtime, repeat_after_seconds: float | None = None) -> None:
        self.name = name
        self._config = config
        self._brokers = Brokers(name, config.service_url, config.settings(), runtime)
        self._attempts = BrokerAttempts(self._brokers)
        self._open = AsyncExitStack()
        self._admin: AdminApi | None = None
        self.claims_backend = TopicClaims(self._brokers)
        self.driver = EndDriver(name, self._attempts, runtime, repeat_after_seconds=repeat_after_seconds)
        self._found: dict[tuple[str, str | None], None] = {}

    @property
    def admin(self) -> AdminApi | None:
        """Its admin API, where the configuration names one; after `start`."""
        return self._admin

    def tell(self, effect: TellParticipant, told: Told) -> None:
        """Tell one of its participants the outcome until it holds it durably."""
        self.driver.tell(effect, told)

    def is_verified(self, participant: Participant) -> bool:
        """True if the participant was found there before, so that nobody need be asked."""
        return (participant.topic, participant.subscription) in self._found

    async def start(self) -> None:
        """Look whether the cluster can take part. Raises ClusterRefused when its configuration, or ours, has to be changed.

        A cluster that is away now does not keep the service from the others: its participants are told when it is back.
        """
        if self._config.admin_url:
            self._admin = await self._open.enter_async_context(open_admin(self._config.admin_url, self._config.settings()))
        try:
            await verify_cluster(self._brokers, self._attempts)
        except ClusterRefused as refused:
            if not refused.passes:
                raise
            logger.warning("%s. Its transactions wait until it answers", refused)

    async def verify(self, participant: Participant) -> None:
        """Raise Refusal for a topic or subscription that cannot take part, or that is not there."""
        try:
            await verify_participant(self._brokers, participant, self._admin)
        except ParticipantRefused as refused:
            raise Refusal(ServerError.NotAllowedError, str(refused)) from None
        except (PulsarError, AdminUnreachable) as error:
            raise Refusal(ServerError.ServiceNotReady, f"the cluster {self.name} could not be asked: {error}; retry") from error
        self._found[participant.topic, participant.subscription] = None
        if len(self._found) > _REMEMBERED:
            del self._found[next(iter(self._found))]

    async def is_missing(self, topic: str) -> bool:
        """True if the cluster says that there is no such topic at this moment."""
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


async def agree_on_count(store: LogStore, wanted: int) -> int:
    """Number of coordinators: never less than before, because each may have transactions to end.

    Raises StoreUnsupported for a store whose coordinators are those of a broker.
    """
    has_logs = store.exists(coordinator_log_name(0))  # asked first: the number is stored before the first log is made
    while True:
        stored = await store.metadata.get(_COUNT)
        if stored is None and has_logs:
            raise StoreUnsupported("this folder belongs to a broker; give the coordinator a folder of its own")
        before = 0 if stored is None else int(stored.data)
        if before >= wanted:
            if before > wanted:
                logger.warning(
                    "numberOfTransactionCoordinators=%d has no effect: there are %d, and each is needed", wanted, before
                )
            return before
        try:
            expected = -1 if stored is None else stored.version
            await store.metadata.put(_COUNT, str(wanted).encode(), expected_version=expected)
        except VersionConflict:
            continue  # another instance started at the same moment
        return wanted


async def count_now(metadata: MetadataStore) -> int:
    """Number of coordinators now; another instance may have added some."""
    stored = await metadata.get(_COUNT)
    return 0 if stored is None else int(stored.data)


async def compare_clusters(metadata: MetadataStore, names: Iterable[str]) -> None:
    """Warn when the instance that started last knew other clusters: decisions for those that are not here would wait."""
    mine = sorted(names)
    stored = await metadata.get(_CLUSTERS)
    theirs: list[str] = mine if stored is None else json.loads(stored.data)
    if theirs != mine:
        logger.warning(
            "the clusters here are %s; before, they were %s. Give all instances the same ones: what is decided for a cluster "
            "waits while the instance that leads does not know it",
            ", ".join(mine), ", ".join(theirs),
        )  # fmt: skip
    if stored is None or theirs != mine:
        await metadata.put(_CLUSTERS, json.dumps(mine).encode())
