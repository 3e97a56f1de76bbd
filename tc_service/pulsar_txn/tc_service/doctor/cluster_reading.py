"""Examination of a cluster: its coordinators first, then each topic with its subscriptions. The result is findings.

`ClusterReader` turns the answers of the admin API into facts and judges nothing; `Examination` judges them.
`compare_with_coordinator` sets the log of a coordinator beside the cluster against what brokers show: commits that are hidden,
and transactions that are HELD. Nothing here changes the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import attrs

from pulsar_txn.client.inside import NO_ASSIGN_TOPIC, TRANSACTIONS_OFF
from pulsar_txn.tc_service.cluster.admin import AdminApi, AdminRefused, AdminUnreachable, hides, path_part, topic_path
from pulsar_txn.tc_service.cluster.participants import ParticipantRefused, normalise
from pulsar_txn.wire.ids import Position, TxnId, signed64
from pulsar_txn.wire.topics import ASSIGN_TOPIC, TopicName
from pulsar_txn.wire.values import value

from .findings import (
    ADVICE,
    BUFFER_RECOVERY_SPINS,
    COORDINATOR_NOT_LOADED,
    DEADLOCK,
    REPLAY_SPINS,
    BufferFacts,
    CoordinatorFacts,
    Cure,
    EntryFacts,
    Finding,
    KnownTxn,
    Ledgers,
    PendingAckFacts,
    Status,
    Verdict,
    cure_of,
    position_of,
    verdict_of,
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
_RECOVERED: Final = frozenset({"Ready", "NoSnapshot", "None"})
_RECOVERS_MS: Final = 10_000
"""Milliseconds that a recovery may take before it counts as one that does not end."""
_TOPICS_AT_ONCE: Final = 64
_ENTRIES_AT_ONCE: Final = 32
_SAMPLES: Final = 3
_COMPARED_AT_ONCE: Final = 32
_HIDDEN: Final = (
    "its id was given twice, or it was ended twice with different outcomes: the broker keeps the abort. Stop this coordinator;"
    " the messages are in the topic, and only a copy of them can bring them back"
)
_HELD: Final = (
    "decide: pulsar-txn transactions commit {txn} if another participant of it shows its messages, or its program knows that it"
    " has committed; pulsar-txn transactions abort {txn} if not. Stop every other process that has a copy of the log first"
)


class TransactionsOff(Exception):  # noqa: N818 - named by what is found
    """The brokers have no transactions."""


class ClusterReader:
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
        """Number of partitions of a topic; 0 for one that is not partitioned, or not there."""
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
        """Transactions that the ready coordinators have open, or are ending."""
        ready = [each.number for each in await self.coordinators() if each.state == READY]
        answers = await asyncio.gather(*map(self.known_to, ready))
        return {txn_id: txn for answer in answers for txn_id, txn in (answer or {}).items()}

    async def known_to(self, number: int) -> dict[TxnId, KnownTxn] | None:
        """Transactions that one coordinator has open, or is ending; None when it cannot say, because it is being moved.

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
        """Status of a transaction at its coordinator now."""
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
        """Ledgers of a topic, with their numbers of entries."""
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
        """Position of the first entry of a transaction that is ongoing in a topic; None for any other."""
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


@attrs.frozen
class Scope:
    """Scope of what to look at. `entries`: how many of a topic to read for the transactions that hold it back."""

    topics: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    older_than_ms: int = 60_000
    entries: int = 1000


@value
class _OngoingTransaction:
    """A transaction that is ongoing in a topic, and its first entry there."""

    txn_id: TxnId
    first: EntryFacts


class Examination:
    """One examination of a cluster. `coordinators` and `known` are what it saw of the coordinators.

    `pause_seconds`: between two samples of what moves on. `load(number)` connects to a coordinator as a client does, and says
    what kept it from that. A broker loads a coordinator
    when the first client asks for it, so one that is not loaded may be one that nobody has used.
    """

    def __init__(
        self,
        reader: ClusterReader,
        scope: Scope,
        load: Callable[[int], Awaitable[str]],
        *,
        pause_seconds: float = 0.3,
    ) -> None:
        self.coordinators: list[CoordinatorFacts] = []
        self.known: dict[TxnId, KnownTxn] = {}
        self.topics: list[str] = []
        self._reader = reader
        self._scope = scope
        self._load = load
        self._pause_seconds = pause_seconds
        self._now_ms = 0

    async def examine(self, now_ms: int) -> list[Finding]:
        """Everything that is wrong in the scope. Raises AdminUnreachable, and AdminRefused for a role that may not look."""
        self._now_ms = now_ms
        try:
            findings = await self._examine_coordinators()
        except TransactionsOff:
            return [Finding("transactions_off", "the brokers have no transactions", TRANSACTIONS_OFF)]
        self.topics = await self._reader.topics(self._scope.namespaces, self._scope.topics)
        for start in range(0, len(self.topics), _TOPICS_AT_ONCE):  # a task for each of all topics would be too many
            part = self.topics[start : start + _TOPICS_AT_ONCE]
            for found in await asyncio.gather(*map(self._examine_topic, part)):
                findings += found
        return findings

    # ---- coordinators

    async def _examine_coordinators(self) -> list[Finding]:
        findings = []
        health = await self._reader.health()
        if "eadlock" in health:
            findings.append(Finding("deadlock", "threads of the broker wait for each other", DEADLOCK))
        self.coordinators = await self._reader.coordinators()
        if not self.coordinators:
            what = "the cluster has no transaction coordinator"
            return [*findings, Finding("no_coordinators", what, NO_ASSIGN_TOPIC)]
        findings += await self._load_all([each.number for each in self.coordinators if each.state != READY])
        self.known = await self._reader.known()
        return findings

    async def _load_all(self, numbers: Sequence[int]) -> list[Finding]:
        """Coordinators among these that do not get ready when a client asks for them."""
        if not numbers:
            return []
        words = dict(zip(numbers, await asyncio.gather(*map(self._load, numbers)), strict=True))
        self.coordinators = await self._reader.coordinators()
        findings = []
        for each in self.coordinators:
            if each.state != READY:
                said = words.get(each.number) or each.state
                advice = COORDINATOR_NOT_LOADED.format(number=each.number)
                findings.append(Finding("coordinator", f"coordinator {each.number} is not ready: {said}", advice))
        return findings

    # ---- topics

    async def _examine_topic(self, topic: str) -> list[Finding]:
        """One that cannot be looked at keeps no other from being looked at."""
        try:
            buffer = await self._reader.buffer(topic)
            findings = await self._examine_buffer(buffer)
            for subscription in await self._reader.subscriptions(topic):
                findings += await self._examine_subscription(subscription)
        except AdminRefused as error:
            if error.status in FORBIDDEN:
                raise
            if error.status == 404:
                return self._missing_topic(topic)
            return [Finding("unreadable", f"the broker cannot say how it is: {error}", "look at its log", topic=topic)]
        except AdminUnreachable as error:
            advice = f"if that stays so: {REPLAY_SPINS}"
            return [Finding("silent", f"the broker does not say how it is: {error}", advice, topic=topic)]
        return findings

    async def ongoing_transactions(self, topic: str) -> list[TxnId]:
        """The transactions that are ongoing in a topic, as far as its entries are read. AdminRefused, AdminUnreachable."""
        buffer = await self._reader.buffer(topic)
        if buffer.state not in _RECOVERED or not buffer.ongoing:
            return []
        found, _ = await self._ongoing_transactions(buffer, await self._reader.ledgers(topic))
        return [ongoing.txn_id for ongoing in found]

    def _missing_topic(self, topic: str) -> list[Finding]:
        """One that was listed was deleted meanwhile."""
        if not self._scope.topics:
            return []
        return [Finding("missing", "there is no such topic", "check its name, and --cluster", topic=topic)]

    async def _examine_buffer(self, buffer: BufferFacts) -> list[Finding]:
        if buffer.state not in _RECOVERED:
            since = buffer.recovering_since_ms
            if self._is_old(since, _RECOVERS_MS):
                what = f"its transactions are not recovered: {buffer.state}"
                return [Finding("recovery", what, BUFFER_RECOVERY_SPINS, topic=buffer.topic, since_ms=since)]
            return []
        if not buffer.ongoing:
            return []
        ledgers = await self._reader.ledgers(buffer.topic)
        ongoing_transactions, seen = await self._ongoing_transactions(buffer, ledgers)
        findings = [await self._judge(buffer, ledgers, ongoing, seen) for ongoing in ongoing_transactions]
        if len(ongoing_transactions) < buffer.ongoing and not self._are_all_recent(ongoing_transactions):
            findings += await self._ongoing_without_entry(buffer, len(ongoing_transactions))
        return [finding for finding in findings if self._is_old(finding.since_ms, self._scope.older_than_ms)]

    def _are_all_recent(self, ongoing_transactions: Sequence[_OngoingTransaction]) -> bool:
        """True if even the oldest of them is young: then the others are younger."""
        oldest = min((ongoing.first.published_ms for ongoing in ongoing_transactions), default=0)
        return bool(ongoing_transactions) and not self._is_old(oldest, self._scope.older_than_ms)

    async def _ongoing_without_entry(self, buffer: BufferFacts, found: int) -> list[Finding]:
        now = await self._reader.buffer(buffer.topic)
        if now.ongoing <= found or now.max_read_position != buffer.max_read_position:
            return []
        what = (
            f"{now.ongoing - found} more transactions are ongoing, with no entry among the {self._scope.entries} that were read"
        )
        return [Finding("more", what, "read more of the topic with --entries", topic=buffer.topic, since_ms=1)]

    async def _ongoing_transactions(
        self, buffer: BufferFacts, ledgers: Ledgers
    ) -> tuple[list[_OngoingTransaction], list[EntryFacts]]:
        """The transactions that are ongoing there, oldest first, and the entries that were read for it."""
        ongoing_transactions: dict[TxnId, _OngoingTransaction] = {}
        asked: set[TxnId] = set()
        seen: list[EntryFacts] = []
        position = ledgers.after(buffer.max_read_position)
        while position is not None and len(seen) < self._scope.entries and len(ongoing_transactions) < buffer.ongoing:
            batch: list[Position] = []
            while position is not None and len(batch) < _ENTRIES_AT_ONCE:
                batch.append(position)
                position = ledgers.after(position)
            entries = await asyncio.gather(*(self._reader.entry(buffer.topic, each) for each in batch))
            seen += entries
            for entry in entries:
                if entry.txn_id is None or entry.marker is not None or entry.txn_id in asked:
                    continue
                asked.add(entry.txn_id)
                if await self._reader.first_position(buffer.topic, entry.txn_id) is not None:
                    ongoing_transactions[entry.txn_id] = _OngoingTransaction(entry.txn_id, entry)
        return list(ongoing_transactions.values()), seen

    async def _judge(
        self, buffer: BufferFacts, ledgers: Ledgers, ongoing: _OngoingTransaction, seen: Sequence[EntryFacts]
    ) -> Finding:
        txn_id, topic = ongoing.txn_id, buffer.topic
        status = await self._reader.status(txn_id)
        ended_here = None
        if status in (Status.NOT_KNOWN, Status.AWAY):
            ended_here = _outcome_of(txn_id, seen) or await self._outcome_before(topic, ledgers, ongoing)
        verdict = verdict_of(txn_id, status, ended_here)
        blocked = ledgers.count_after(buffer.max_read_position)
        known_txn = self.known.get(txn_id)
        since_ms = ongoing.first.published_ms if known_txn is None else known_txn.opened_ms
        return _finding(verdict, status, txn_id, topic, None, since_ms, blocked)

    async def _outcome_before(self, topic: str, ledgers: Ledgers, ongoing: _OngoingTransaction) -> str | None:
        """The outcome of the marker that the transaction has before its late entry."""
        position = ledgers.before(ongoing.first.position)
        left = self._scope.entries
        while position is not None and left > 0:
            batch: list[Position] = []
            while position is not None and len(batch) < min(_ENTRIES_AT_ONCE, left):
                batch.append(position)
                position = ledgers.before(position)
            left -= len(batch)
            entries = await asyncio.gather(*(self._reader.entry(topic, each) for each in batch))
            outcome = _outcome_of(ongoing.txn_id, entries)
            if outcome is not None:
                return outcome
        return None

    # ---- subscriptions

    async def _examine_subscription(self, facts: PendingAckFacts) -> list[Finding]:
        place: dict[str, Any] = {"topic": facts.topic, "subscription": facts.subscription}
        if facts.state not in _RECOVERED:
            since = facts.recovering_since_ms
            if facts.state == "Error":
                advice = "look for its reason in the log of the broker, and unload the topic"
                return [Finding("failed", "its pending acknowledgements failed", advice, **place, since_ms=since)]
            if self._is_old(since, _RECOVERS_MS):
                what = f"its pending acknowledgements are not recovered: {facts.state}"
                return [Finding("replay", what, REPLAY_SPINS, **place, since_ms=since)]
            return []
        if not facts.ongoing:
            return []
        findings = []
        for txn in self._transactions_acking(self.known, facts):
            verdict = verdict_of(txn.txn_id, txn.status, None)
            found = _finding(
                verdict, txn.status, txn.txn_id, facts.topic, facts.subscription, txn.opened_ms, facts.unacknowledged
            )
            if self._is_old(txn.opened_ms, self._scope.older_than_ms):
                findings.append(found)
        unexplained = await self.unexplained(facts.topic, facts.subscription)
        if unexplained:
            which = "a transaction" if unexplained == 1 else f"{unexplained} transactions"
            what = f"held back by acknowledgements of {which} that no coordinator knows"
            advice = (
                "the broker does not say which transactions these are; pulsar-txn doctor --cure aborts the newest ended ids "
                "of each coordinator there, until they are gone: their messages are then delivered again"
            )
            findings.append(Finding("pending_acks", what, advice, Cure.SEARCH, **place, blocked=facts.unacknowledged))
        return findings

    async def unexplained(self, topic: str, subscription: str) -> int:
        """Count of transactions with pending acks that no coordinator knows: the least of several samples, as all moves on."""
        fewest = 0
        for sample in range(_SAMPLES):
            if sample:
                await asyncio.sleep(self._pause_seconds)
            before = await self._reader.known()
            facts = await self._reader.pending_acks(topic, subscription)
            after = await self._reader.known()
            explained = self._transactions_acking(before | after, facts)
            missing = facts.ongoing - len(explained)
            if missing <= 0:
                return 0
            fewest = missing if not sample else min(fewest, missing)
        return fewest

    @staticmethod
    def _transactions_acking(txns: dict[TxnId, KnownTxn], facts: PendingAckFacts) -> list[KnownTxn]:
        return [txn for txn in txns.values() if (facts.topic, facts.subscription) in txn.acked]

    def _is_old(self, since_ms: int, age_ms: int) -> bool:
        return bool(since_ms) and since_ms <= self._now_ms - age_ms


def _outcome_of(txn_id: TxnId, entries: Iterable[EntryFacts]) -> str | None:
    return next((entry.outcome for entry in entries if entry.txn_id == txn_id and entry.outcome is not None), None)


def _finding(
    verdict: Verdict, status: Status, txn_id: TxnId, topic: str, subscription: str | None, since_ms: int, blocked: int
) -> Finding:
    return Finding(
        kind=verdict.name.lower(),
        what=f"held back by the transaction {txn_id}, {verdict.value}",
        advice=ADVICE[verdict].sentence.format(txn=f"{txn_id.most}:{txn_id.least}"),
        cure=cure_of(verdict, status),
        topic=topic,
        subscription=subscription,
        txn_id=txn_id,
        since_ms=since_ms,
        blocked=blocked,
    )


async def compare_with_coordinator(coordinator: AdminApi, brokers: AdminApi, cluster: str | None) -> list[Finding]:
    """Findings from a coordinator's log compared with the brokers.

    `cluster`: the name that the coordinator has for this one; None where it has one alone.
    Raises AdminUnreachable, AdminRefused.
    """
    held: dict[str, Any] = await coordinator.get(f"{_TRANSACTIONS}/slowTransactions/0?held=true") or {}
    findings = [_held(txn_id, each) for txn_id, each in held.items()]
    ended: list[dict[str, Any]] = await coordinator.get(f"{_TRANSACTIONS}/ended") or []
    commits = [
        (TxnId.parse(each["txnId"]), where["topic"])
        for each in ended
        if each["outcome"] == "commit"
        for where in each["participants"]
        if "subscription" not in where and cluster in (None, where["cluster"])
    ]
    for start in range(0, len(commits), _COMPARED_AT_ONCE):
        part = commits[start : start + _COMPARED_AT_ONCE]
        hidden = await asyncio.gather(*(_is_hidden(brokers, topic, txn_id) for txn_id, topic in part))
        for (txn_id, topic), is_hidden in zip(part, hidden, strict=True):
            if is_hidden:
                what = f"hides the transaction {txn_id}, which the coordinator has committed"
                findings.append(Finding("hidden", what, _HIDDEN, topic=topic, txn_id=txn_id))
    return findings


async def _is_hidden(brokers: AdminApi, topic: str, txn_id: TxnId) -> bool:
    try:
        return await hides(brokers, topic, txn_id)
    except AdminRefused:  # the topic is gone, or is being moved
        return False


def _held(txn_id: str, said: dict[str, Any]) -> Finding:
    found = TxnId.parse(txn_id)
    what = f"the transaction {found} is held by its coordinator ({said.get('heldBecause', 'unknown')})"
    return Finding(
        "held",
        what,
        _HELD.format(txn=f"{found.most}:{found.least}"),
        txn_id=found,
        since_ms=said.get("openTimestamp", 0),
    )
