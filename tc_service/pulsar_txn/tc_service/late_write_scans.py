"""Scans of the clusters of a service for ended transactions that hold a participant back all the same.

Such late writes are stored by a broker after the end. The repeat of each end cures nearly all of them (`cluster.ends`). What
comes later still is seen in the statistics of the brokers: a participant that shows ongoing transactions, and makes no progress
from one look to the next. Whose outcome is known here is told once more; for others, one line in the log names `pulsar-txn
doctor`. No outcome is ever guessed. Only participants that were told something in the last minutes are looked at, some in each
round, and only where the cluster has an `adminUrl`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pulsar_txn.broker.serving import Repeating, Runtime
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc_service.cluster.admin import AdminApi, AdminRefused, AdminUnreachable
from pulsar_txn.tc_service.cluster.ends import NO_WATERMARK
from pulsar_txn.tc_service.cluster.participants import encode
from pulsar_txn.tc_service.doctor.cluster_reading import ClusterReader, Examination, Scope
from pulsar_txn.tc_service.doctor.findings import BufferFacts, PendingAckFacts, Status
from pulsar_txn.tc_service.server.service import CoordinatorService
from pulsar_txn.wire.ids import LANE_BIT, Participant, Position, TxnAction, TxnId, TxnStatus, coordinator_of

logger = logging.getLogger("pulsar_txn.tc_service.late_write_scans")

SCAN_SECONDS: Final = 30.0
PARTICIPANTS_PER_SCAN: Final = 20
"""Participants that are looked at in a scan: forty requests a minute, and a few hundred for one that is held back."""
RECENT_MS: Final = 600_000
_MOST_REPEATED: Final = 256
_MOST_WARNED: Final = 1000
_ACTION: Final = {TxnStatus.COMMITTED: TxnAction.COMMIT, TxnStatus.ABORTED: TxnAction.ABORT}
_ENTRIES: Final = 200


class _ClusterReads:
    """Reads of the brokers of one cluster: its transactions, and what holds a topic back."""

    def __init__(self, admin: AdminApi) -> None:
        self._reader = ClusterReader(admin)
        self._examination = Examination(self._reader, Scope(entries=_ENTRIES), _load_nothing)

    async def buffer(self, topic: str) -> BufferFacts:
        """The transactions of a topic."""
        return await self._reader.buffer(topic)

    async def pending_acks(self, topic: str, subscription: str) -> PendingAckFacts:
        """Pending acks of a subscription."""
        return await self._reader.pending_acks(topic, subscription)

    async def ongoing_transactions(self, topic: str) -> list[TxnId]:
        """Transactions that are ongoing in a topic, as far as its entries are read."""
        return await self._examination.ongoing_transactions(topic)

    async def status(self, txn_id: TxnId) -> Status:
        """Status of a transaction at the cluster's own coordinators."""
        return await self._reader.status(txn_id)


async def _load_nothing(_number: int) -> str:
    return ""


class _ServiceState:
    """State of this service about the participants and transactions of one cluster."""

    def __init__(self, cluster: str, service: CoordinatorService) -> None:
        self._cluster = cluster
        self._service = service

    def touched_since(self, since_ms: int) -> list[Participant]:
        """Participants that were told something."""
        touched = self._service.timelines.touched.items()
        return [
            Participant(topic, subscription)
            for (cluster, topic, subscription), at_ms in touched
            if cluster == self._cluster and at_ms >= since_ms
        ]

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        """Status of a transaction at our coordinators; None for one that they do not know, or do not lead here."""
        all_of_them = self._service.coordinators if txn_id.most & LANE_BIT else self._service.front_coordinators
        host = None if all_of_them is None else all_of_them.ready(coordinator_of(txn_id.most))
        machine: Any = None if host is None else host.machine
        found: TxnStatus | None = None if machine is None else machine.status(txn_id)
        return found

    def is_open_at(self, participant: Participant) -> bool:
        """True if something of ours is open or ending there."""
        named = encode(self._cluster, participant)
        for all_of_them in (self._service.coordinators, self._service.front_coordinators):
            for tc_id in () if all_of_them is None else all_of_them.here:
                host = None if all_of_them is None else all_of_them.ready(tc_id)
                machine: Any = None if host is None else host.machine
                if machine is not None and any(named in info.participants for info in machine.transactions()):
                    return True
        return False

    def ended_at(self, participant: Participant) -> list[tuple[TxnId, TxnAction]]:
        """Transactions that have ended there, as far as they are remembered, with their outcomes."""
        ends = self._service.timelines.ended_at(self._cluster, participant)
        return [(end.txn_id, TxnAction.COMMIT if end.is_commit else TxnAction.ABORT) for end in ends]

    def repeat_end(self, effect: TellParticipant) -> None:
        """Tell an end once more now."""
        driver = self._service.clusters.driver(self._cluster)
        if driver is not None:
            driver.repeat(effect, 0)


class ClusterScan:
    """The scans of one cluster. `cured`: ends that were told once more for what a scan had found."""

    def __init__(self, cluster: str, reads: _ClusterReads, service_state: _ServiceState) -> None:
        self.cured = 0
        self._cluster = cluster
        self._reads = reads
        self._service_state = service_state
        self._next = 0
        self._seen: dict[Participant, tuple[Position | int, bool]] = {}
        """Participants that made no progress yet: where they are, and whether ends were repeated there."""
        self._warned: dict[Participant, None] = {}

    async def scan(self, now_ms: int) -> None:
        """Scan some participants. Brokers that cannot be asked are asked again in the next scan."""
        participants = self._service_state.touched_since(now_ms - RECENT_MS)
        count = min(PARTICIPANTS_PER_SCAN, len(participants))
        start, self._next = self._next, self._next + count
        chosen = {participants[(start + step) % len(participants)]: None for step in range(count)}
        suspects = [each for each in self._seen if each not in chosen]
        for participant in (*suspects[:PARTICIPANTS_PER_SCAN], *chosen):
            try:
                await self._scan_participant(participant)
            except (AdminRefused, AdminUnreachable) as error:
                logger.debug("%s in the cluster %s cannot be looked at: %s", participant.topic, self._cluster, error)
                self._seen.pop(participant, None)

    async def _scan_participant(self, participant: Participant) -> None:
        here = await self._progress_mark(participant)
        before = self._seen.get(participant)
        if here is None:
            self._seen.pop(participant, None)
        elif before is None or before[0] != here:
            self._seen[participant] = (here, False)
        elif participant.subscription is None:
            self._seen[participant] = (here, await self._cure_topic(participant, was_tried=before[1]))
        else:
            self._seen[participant] = (here, self._cure_subscription(participant, was_tried=before[1]))

    async def _progress_mark(self, participant: Participant) -> Position | int | None:
        """Value that changes when the participant makes progress; None where nothing is ongoing."""
        if participant.subscription is None:
            buffer = await self._reads.buffer(participant.topic)
            return buffer.max_read_position if buffer.ongoing else None
        return (await self._reads.pending_acks(participant.topic, participant.subscription)).ongoing or None

    async def _cure_topic(self, participant: Participant, *, was_tried: bool) -> bool:
        unknown, is_curing = [], False
        for txn_id in await self._reads.ongoing_transactions(participant.topic):
            status = self._service_state.status(txn_id)
            action = None if status is None else _ACTION.get(status)
            if action is not None:
                self._repeat(participant, [(txn_id, action)])
                is_curing = True
            elif status is None and not await self._is_of_brokers(txn_id):
                unknown.append(txn_id)
        if unknown or (is_curing and was_tried):
            self._warn(
                participant, f"the transactions {', '.join(map(str, unknown))}" if unknown else "transactions that ended"
            )
        return is_curing

    async def _is_of_brokers(self, txn_id: TxnId) -> bool:
        """True if a coordinator of the cluster itself has it, or cannot say."""
        return not txn_id.most & LANE_BIT and await self._reads.status(txn_id) is not Status.NOT_KNOWN

    def _cure_subscription(self, participant: Participant, *, was_tried: bool) -> bool:
        """Tell once more what has ended there, for it is not shown which transactions these are; that changes nothing else."""
        if self._service_state.is_open_at(participant):
            return False
        if was_tried:
            self._warn(participant, "acknowledgements in transactions that are not known here")
            return True
        ended = self._service_state.ended_at(participant)[-_MOST_REPEATED:]
        self._repeat(participant, ended)
        return True

    def _repeat(self, participant: Participant, ended: Iterable[tuple[TxnId, TxnAction]]) -> None:
        for txn_id, action in ended:
            self.cured += 1
            self._service_state.repeat_end(TellParticipant(txn_id, participant, action, NO_WATERMARK))

    def _warn(self, participant: Participant, by: str) -> None:
        if participant in self._warned:
            return
        self._warned[participant] = None
        if len(self._warned) > _MOST_WARNED:
            del self._warned[next(iter(self._warned))]
        where = participant.topic if participant.subscription is None else f"{participant.topic}, {participant.subscription},"
        logger.warning(
            "%s in the cluster %s is held back by %s; look at it with: pulsar-txn doctor --topic %s --cluster URL",
            where,
            self._cluster,
            by,
            participant.topic,
        )


class LateWriteScans:
    """`start()` once the service serves; `close()` before it is closed."""

    def __init__(self, service: CoordinatorService, admins: Mapping[str, AdminApi], runtime: Runtime) -> None:
        self._repeating = Repeating(runtime)
        self._runtime = runtime
        self._scans = [ClusterScan(name, _ClusterReads(admin), _ServiceState(name, service)) for name, admin in admins.items()]

    def start(self) -> None:
        """Begin to scan every `SCAN_SECONDS`."""
        if self._scans:
            self._repeating.every(SCAN_SECONDS, self._scan_all)

    async def close(self) -> None:
        """Stop scanning."""
        await self._repeating.close()

    async def _scan_all(self) -> None:
        await asyncio.gather(*(each.scan(self._runtime.wall_ms()) for each in self._scans))
