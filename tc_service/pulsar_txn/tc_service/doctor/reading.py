"""Reading a cluster's admin API into facts. Nothing here judges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any, Final

from pulsar_txn.tc_service.cluster.admin import AdminApi, AdminRefused, path_part, topic_path
from pulsar_txn.tc_service.cluster.participants import ParticipantRefused, normalise
from pulsar_txn.wire.ids import Position, TxnId, signed64
from pulsar_txn.wire.topics import ASSIGN_TOPIC, TopicName

from .facts import (
    BufferFacts,
    CoordinatorFacts,
    EntryFacts,
    KnownTxn,
    Ledgers,
    PendingAckFacts,
    Status,
    position_of,
)

_TRANSACTIONS: Final = "/admin/v3/transactions"
READY: Final = "Ready"
FORBIDDEN: Final = frozenset({401, 403})
_NOT_ENABLED: Final = 503
_NOT_FOUND: Final = 404
_STATUS: Final = {
    "OPEN": Status.OPEN,
    "COMMITTING": Status.COMMITTING,
    "COMMITTED": Status.COMMITTING,
    "ABORTING": Status.ABORTING,
    "ABORTED": Status.ABORTING,
}


class TransactionsOff(Exception):  # noqa: N818 - named by what is found
    """The brokers have no transactions."""


class Reading:
    """Reading of what one cluster says of itself."""

    def __init__(self, admin: AdminApi) -> None:
        self._admin = admin

    async def version(self) -> str:
        """The version of a broker. Raises AdminUnreachable when there is no admin API."""
        return (await self._admin.read("/admin/v2/brokers/version")).body.decode(errors="replace").strip()

    async def health(self) -> str:
        """`ok`, or what the broker says is wrong with it."""
        try:
            return (await self._admin.read("/admin/v2/brokers/health")).body.decode(errors="replace").strip()
        except AdminRefused as error:
            return error.reason

    # ---- coordinators

    async def coordinators(self) -> list[CoordinatorFacts]:
        """All that are to be there, also those that are not loaded. Raises TransactionsOff."""
        try:
            found: dict[str, Any] = await self._admin.get(f"{_TRANSACTIONS}/coordinatorStats") or {}
        except AdminRefused as error:
            if error.status == _NOT_ENABLED:
                raise TransactionsOff from None
            return [await self._coordinator(number) for number in range(await self._partition_count(ASSIGN_TOPIC))]
        return sorted((_coordinator(int(number), stats) for number, stats in found.items()), key=lambda each: each.number)

    async def _partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 for one that is not partitioned, or not there."""
        try:
            answer = await self._admin.get(f"/admin/v2/persistent/{topic_path(topic)}/partitions")
        except AdminRefused as error:
            if error.status != _NOT_FOUND:
                raise
            return 0
        return int(answer["partitions"])

    async def _coordinator(self, number: int) -> CoordinatorFacts:
        try:
            stats = await self._admin.get(f"{_TRANSACTIONS}/coordinatorStats?coordinatorId={number}")
        except AdminRefused as error:
            return CoordinatorFacts(number, error.reason, -1, 0)
        return _coordinator(number, stats)

    async def known(self) -> dict[TxnId, KnownTxn]:
        """Return what the coordinators that are ready have open, or are ending."""
        ready = [each.number for each in await self.coordinators() if each.state == READY]
        answers = await asyncio.gather(*map(self.known_to, ready))
        return {txn_id: txn for answer in answers for txn_id, txn in (answer or {}).items()}

    async def known_to(self, number: int) -> dict[TxnId, KnownTxn] | None:
        """Return what one coordinator has open, or is ending; None when it cannot say, because it is being moved.

        They are asked one by one: asked together, one that is not loaded makes the answer fail for all.
        """
        try:
            found = await self._admin.get(f"{_TRANSACTIONS}/slowTransactions/0?coordinatorId={number}") or {}
        except AdminRefused as error:
            if error.status in FORBIDDEN:
                raise
            return None
        return {txn.txn_id: txn for txn in map(_known, found.values())}

    async def status(self, txn_id: TxnId) -> Status:
        """Return what the coordinator of one transaction says of it now."""
        found = await self._metadata(txn_id)
        if found is not None:
            return found.status
        # The broker refuses in the same way for a coordinator that it is about to load.
        state = {each.number: each.state for each in await self.coordinators()}.get(txn_id.most)
        if state is not None and state != READY:
            return Status.AWAY
        found = await self._metadata(txn_id)
        return Status.NOT_KNOWN if found is None else found.status

    async def _metadata(self, txn_id: TxnId) -> KnownTxn | None:
        try:
            found = await self._admin.get(f"{_TRANSACTIONS}/transactionMetadata/{txn_id.most}/{txn_id.least}")
        except AdminRefused as error:  # 404, and 500 for the number of a coordinator that cannot be
            if error.status in FORBIDDEN:
                raise
            return None
        return _known(found)

    # ---- topics

    async def topics(self, namespaces: Iterable[str], topics: Iterable[str]) -> list[str]:
        """Full names of the partitions to look at: of `topics`, or else of `namespaces`, or else of everything."""
        found: list[str] = []
        for topic in topics:
            found += await self._partitions(topic)
        if found:
            return found
        for namespace in list(namespaces) or [each async for each in self._namespaces()]:
            found += await self._admin.get(f"/admin/v2/persistent/{namespace}") or []
        return sorted(filter(_takes_part, found))

    async def _partitions(self, topic: str) -> list[str]:
        name = TopicName.parse(normalise(topic).topic)
        if name.partition < 0:
            count = await self._partition_count(str(name))
            if count:
                return [str(name.with_partition(index)) for index in range(count)]
        return [str(name)]

    async def _namespaces(self) -> AsyncIterator[str]:
        for tenant in await self._admin.get("/admin/v2/tenants"):
            for namespace in await self._admin.get(f"/admin/v2/namespaces/{path_part(tenant)}"):
                yield namespace

    async def buffer(self, topic: str) -> BufferFacts:
        """The topic's transaction buffer."""
        stats = await self._admin.get(f"{_TRANSACTIONS}/transactionBufferStats/{topic_path(topic)}")
        position = position_of(stats.get("maxReadPosition") or "-1:-1")
        return BufferFacts(topic, stats["state"], position, stats.get("ongoingTxnSize", 0), _recovering(stats))

    async def subscriptions(self, topic: str) -> list[PendingAckFacts]:
        """The subscriptions, with their pending acknowledgements."""
        stats = await self._admin.get(f"/admin/v2/persistent/{topic_path(topic)}/stats")
        found = (stats.get("subscriptions") or {}).items()
        return list(
            await asyncio.gather(*(self.pending_acks(topic, name, sub.get("unackedMessages", 0)) for name, sub in found))
        )

    async def pending_acks(self, topic: str, subscription: str, unacknowledged: int = 0) -> PendingAckFacts:
        """The pending acknowledgements of one."""
        stats = await self._admin.get(f"{_TRANSACTIONS}/pendingAckStats/{topic_path(topic)}/{path_part(subscription)}")
        ongoing = stats.get("ongoingTxnSize", 0)
        return PendingAckFacts(topic, subscription, stats["state"], ongoing, unacknowledged, _recovering(stats))

    async def ledgers(self, topic: str) -> Ledgers:
        """Return where the entries of a topic are."""
        return Ledgers.of(await self._admin.get(f"/admin/v2/persistent/{topic_path(topic)}/internalStats"))

    async def entry(self, topic: str, position: Position) -> EntryFacts:
        """One entry. An entry that cannot be read says nothing."""
        path = f"/admin/v2/persistent/{topic_path(topic)}/ledger/{position[0]}/entry/{position[1]}"
        try:
            headers = (await self._admin.read(path)).headers
        except AdminRefused:
            return EntryFacts(position, None, None, 0)
        return _entry(position, headers)

    async def first_position(self, topic: str, txn_id: TxnId) -> Position | None:
        """Return where a transaction begins that is ongoing in a topic; None for any other."""
        path = f"{_TRANSACTIONS}/transactionInBufferStats/{topic_path(topic)}/{txn_id.most}/{txn_id.least}"
        stats = await self._admin.get(path)
        return position_of(stats["startPosition"]) if stats.get("startPosition") and not stats.get("aborted") else None


def _takes_part(topic: str) -> bool:
    try:
        normalise(topic)
    except ParticipantRefused:
        return False
    return True


def _coordinator(number: int, stats: dict[str, Any]) -> CoordinatorFacts:
    return CoordinatorFacts(number, stats["state"], stats.get("leastSigBits", -1), stats.get("ongoingTxnSize", 0))


def _known(found: dict[str, Any]) -> KnownTxn:
    acked = found.get("ackedPartitions") or {}
    return KnownTxn(
        TxnId.parse(found["txnId"]),
        _STATUS.get(found["status"], Status.OPEN),
        found["openTimestamp"],
        found["timeoutAt"],
        frozenset(found.get("producedPartitions") or {}),
        frozenset((topic, subscription) for topic, subscriptions in acked.items() for subscription in subscriptions),
    )


def _recovering(stats: dict[str, Any]) -> int:
    began = int(stats.get("recoverStartTime") or 0)
    return began if began and not stats.get("recoverEndTime") else 0


def _entry(position: Position, headers: Any) -> EntryFacts:
    most, least = headers.get("x-pulsar-txnid-most-bits"), headers.get("x-pulsar-txnid-least-bits")
    txn_id = None if most is None or least is None else TxnId(signed64(int(most)), signed64(int(least)))
    marker = headers.get("x-pulsar-marker-type")
    published = headers.get("x-pulsar-publish-time")
    published_ms = int(datetime.fromisoformat(published).timestamp() * 1000) if published else 0
    return EntryFacts(position, txn_id, None if marker is None else int(marker), published_ms)
