"""The first commit of each life in each cluster, compared with what the broker shows of it.

A broker answers "ok" to every end, also to one that changes nothing because the transaction was ended the other way before.
Claims prevent that; this would notice it. It needs the cluster's admin API, and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc_service.cluster.admin import AdminApi, AdminRefused, AdminUnreachable, hides
from pulsar_txn.wire.ids import LANE_BIT, Participant, TxnAction, TxnId, coordinator_of

logger = logging.getLogger("pulsar_txn.tc_service")


class FirstCommits:
    """`admins`: those of the clusters that have one. `life`: the newest life of a log. `wrong`: commits that are hidden."""

    def __init__(self, admins: Callable[[], Mapping[str, AdminApi]], life: Callable[[TxnId], int]) -> None:
        self.wrong = 0
        self._admins = admins
        self._life = life
        self._seen: dict[tuple[str, bool, int], int] = {}
        self._looking: set[asyncio.Task[None]] = set()

    def told(self, cluster: str, effect: TellParticipant) -> None:
        """A participant holds an outcome."""
        txn_id, participant = effect.txn_id, effect.participant
        if effect.action is not TxnAction.COMMIT or participant.subscription is not None:
            return
        key = cluster, bool(txn_id.most & LANE_BIT), coordinator_of(txn_id.most)
        life = self._life(txn_id)
        admin = self._admins().get(cluster)
        if self._seen.get(key) == life or admin is None:
            return
        self._seen[key] = life
        task = asyncio.get_running_loop().create_task(self._look(admin, cluster, participant, txn_id))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _look(self, admin: AdminApi, cluster: str, participant: Participant, txn_id: TxnId) -> None:
        try:
            hidden = await hides(admin, participant.topic, txn_id)
        except (AdminRefused, AdminUnreachable) as error:
            logger.info("the first commit of a life could not be compared with %s: %s", participant.topic, error)
            return
        if hidden:
            self.wrong += 1
            logger.error(
                "%s was committed, and %s in the cluster %s hides it: the broker knows its id as aborted. Stop this"
                " coordinator, and look with pulsar-txn doctor --coordinator which commits are hidden",
                txn_id, participant.topic, cluster,
            )  # fmt: skip

    async def close(self) -> None:
        """Look no more."""
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)
