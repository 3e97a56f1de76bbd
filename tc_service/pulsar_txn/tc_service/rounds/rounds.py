"""The rounds of a service: over each cluster that has an admin API, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from pulsar_txn.broker.serving import Repeating, Runtime
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc_service.cluster.admin import AdminApi
from pulsar_txn.tc_service.cluster.participants import encode
from pulsar_txn.tc_service.doctor.facts import BufferFacts, PendingAckFacts, Status
from pulsar_txn.tc_service.doctor.looking import Looking, Scope
from pulsar_txn.tc_service.doctor.reading import Reading
from pulsar_txn.tc_service.server.service import CoordinatorService
from pulsar_txn.wire.ids import LANE_BIT, Participant, TxnAction, TxnId, TxnStatus, coordinator_of

from .late_writes import ROUND_SECONDS, LateWrites

_ENTRIES: Final = 200


class _OfAdmin:
    """Implements `late_writes.Reads`."""

    def __init__(self, admin: AdminApi, runtime: Runtime) -> None:
        self._reading = Reading(admin)
        self._looking = Looking(self._reading, Scope(entries=_ENTRIES), runtime.wall_ms, asyncio.sleep, _load_nothing)

    async def buffer(self, topic: str) -> BufferFacts:
        return await self._reading.buffer(topic)

    async def pending_acks(self, topic: str, subscription: str) -> PendingAckFacts:
        return await self._reading.pending_acks(topic, subscription)

    async def holders(self, topic: str) -> list[TxnId]:
        return await self._looking.holders(topic)

    async def status(self, txn_id: TxnId) -> Status:
        return await self._reading.status(txn_id)


async def _load_nothing(_number: int) -> str:
    return ""


class _OfService:
    """Implements `late_writes.Knows` for one cluster."""

    def __init__(self, cluster: str, service: CoordinatorService) -> None:
        self._cluster = cluster
        self._service = service

    def touched_since(self, since_ms: int) -> list[Participant]:
        touched = self._service.following.touched.items()
        return [
            Participant(topic, subscription)
            for (cluster, topic, subscription), at_ms in touched
            if cluster == self._cluster and at_ms >= since_ms
        ]

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        all_of_them = self._service.coordinators if txn_id.most & LANE_BIT else self._service.front_coordinators
        host = None if all_of_them is None else all_of_them.ready(coordinator_of(txn_id.most))
        machine: Any = None if host is None else host.machine
        found: TxnStatus | None = None if machine is None else machine.status(txn_id)
        return found

    def is_open_at(self, participant: Participant) -> bool:
        named = encode(self._cluster, participant)
        for all_of_them in (self._service.coordinators, self._service.front_coordinators):
            for tc_id in () if all_of_them is None else all_of_them.here:
                host = None if all_of_them is None else all_of_them.ready(tc_id)
                machine: Any = None if host is None else host.machine
                if machine is not None and any(named in info.participants for info in machine.transactions()):
                    return True
        return False

    def ended_at(self, participant: Participant) -> list[tuple[TxnId, TxnAction]]:
        ends = self._service.following.ended_at(self._cluster, participant)
        return [(end.txn_id, TxnAction.COMMIT if end.is_commit else TxnAction.ABORT) for end in ends]

    def tell_again(self, effect: TellParticipant) -> None:
        driver = self._service.clusters.driver(self._cluster)
        if driver is not None:
            driver.repeat(effect, 0)


class Rounds:
    """`start()` once the service serves; `close()` before it is closed."""

    def __init__(self, service: CoordinatorService, admins: Mapping[str, AdminApi], runtime: Runtime) -> None:
        self._repeating = Repeating(runtime)
        self._runtime = runtime
        self._looks = [LateWrites(name, _OfAdmin(admin, runtime), _OfService(name, service)) for name, admin in admins.items()]

    def start(self) -> None:
        """Look in a while, and then again and again."""
        if self._looks:
            self._repeating.every(ROUND_SECONDS, self._look)

    async def close(self) -> None:
        """Look no more."""
        await self._repeating.close()

    async def _look(self) -> None:
        await asyncio.gather(*(each.look(self._runtime.wall_ms()) for each in self._looks))
