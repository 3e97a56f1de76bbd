"""Looking a cluster over: coordinators first, then each topic with its subscriptions. The result is findings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import attrs

from pulsar_txn.tc_service.cluster.admin import AdminRefused, AdminUnreachable
from pulsar_txn.wire.ids import Position, TxnId
from pulsar_txn.wire.values import value

from . import known
from .facts import BufferFacts, CoordinatorFacts, EntryFacts, KnownTxn, Ledgers, PendingAckFacts, Status
from .findings import ADVICE, Cure, Finding, Verdict, cure_of, verdict_of
from .reading import FORBIDDEN, READY, Reading, TransactionsOff

_READY: Final = frozenset({"Ready", "NoSnapshot", "None"})
_RECOVERS_MS: Final = 10_000
"""How long a recovery may take before it counts as one that does not end."""
_TOPICS_AT_ONCE: Final = 64
_ENTRIES_AT_ONCE: Final = 32
_SAMPLES: Final = 3


@attrs.frozen
class Scope:
    """Scope of what to look at. `entries`: how many of a topic to read for the transactions that hold it back."""

    topics: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    older_than_ms: int = 60_000
    entries: int = 1000


@value
class _Holder:
    """A transaction that is ongoing in a topic, and its first entry there."""

    txn_id: TxnId
    first: EntryFacts


class Looking:
    """One look at a cluster. `coordinators` and `known` are what it saw of the coordinators.

    `load(number)` connects to a coordinator as a client does, and says what kept it from that. A broker loads a coordinator
    when the first client asks for it, so one that is not loaded may be one that nobody has used.
    """

    def __init__(
        self,
        reading: Reading,
        scope: Scope,
        now_ms: Callable[[], int],
        pause: Callable[[float], Awaitable[object]],
        load: Callable[[int], Awaitable[str]],
    ) -> None:
        self.coordinators: list[CoordinatorFacts] = []
        self.known: dict[TxnId, KnownTxn] = {}
        self.topics: list[str] = []
        self._reading = reading
        self._scope = scope
        self._now_ms = now_ms
        self._pause = pause
        self._load = load

    async def look(self) -> list[Finding]:
        """Everything that is wrong in the scope. Raises AdminUnreachable, and AdminRefused for a role that may not look."""
        try:
            findings = await self._look_at_coordinators()
        except TransactionsOff:
            return [Finding("transactions_off", "the brokers have no transactions", known.TRANSACTIONS_OFF)]
        self.topics = await self._reading.topics(self._scope.namespaces, self._scope.topics)
        for start in range(0, len(self.topics), _TOPICS_AT_ONCE):  # a task for each of all topics would be too many
            part = self.topics[start : start + _TOPICS_AT_ONCE]
            for found in await asyncio.gather(*map(self._look_at, part)):
                findings += found
        return findings

    # ---- coordinators

    async def _look_at_coordinators(self) -> list[Finding]:
        findings = []
        health = await self._reading.health()
        if "eadlock" in health:
            findings.append(Finding("deadlock", "threads of the broker wait for each other", known.DEADLOCK))
        self.coordinators = await self._reading.coordinators()
        if not self.coordinators:
            what = "the cluster has no transaction coordinator"
            return [*findings, Finding("no_coordinators", what, known.NO_ASSIGN_TOPIC)]
        findings += await self._load_all([each.number for each in self.coordinators if each.state != READY])
        self.known = await self._reading.known()
        return findings

    async def _load_all(self, numbers: Sequence[int]) -> list[Finding]:
        """Those of these coordinators that do not get ready when a client asks for them."""
        if not numbers:
            return []
        words = dict(zip(numbers, await asyncio.gather(*map(self._load, numbers)), strict=True))
        self.coordinators = await self._reading.coordinators()
        findings = []
        for each in self.coordinators:
            if each.state != READY:
                said = words.get(each.number) or each.state
                advice = known.COORDINATOR_NOT_LOADED.format(number=each.number)
                findings.append(Finding("coordinator", f"coordinator {each.number} is not ready: {said}", advice))
        return findings

    # ---- topics

    async def _look_at(self, topic: str) -> list[Finding]:
        """One that cannot be looked at keeps no other from being looked at."""
        try:
            buffer = await self._reading.buffer(topic)
            findings = await self._look_at_buffer(buffer)
            for subscription in await self._reading.subscriptions(topic):
                findings += await self._look_at_subscription(subscription)
        except AdminRefused as error:
            if error.status in FORBIDDEN:
                raise
            if error.status == 404:
                return self._missing(topic)
            return [Finding("unreadable", f"the broker cannot say how it is: {error}", "look at its log", topic=topic)]
        except AdminUnreachable as error:
            advice = f"if that stays so: {known.REPLAY_SPINS}"
            return [Finding("silent", f"the broker does not say how it is: {error}", advice, topic=topic)]
        return findings

    async def holders(self, topic: str) -> list[TxnId]:
        """The transactions that are ongoing in a topic, as far as its entries are read. AdminRefused, AdminUnreachable."""
        buffer = await self._reading.buffer(topic)
        if buffer.state not in _READY or not buffer.ongoing:
            return []
        found, _ = await self._holders(buffer, await self._reading.ledgers(topic))
        return [holder.txn_id for holder in found]

    def _missing(self, topic: str) -> list[Finding]:
        """One that was listed was deleted meanwhile."""
        if not self._scope.topics:
            return []
        return [Finding("missing", "there is no such topic", "check its name, and --cluster", topic=topic)]

    async def _look_at_buffer(self, buffer: BufferFacts) -> list[Finding]:
        if buffer.state not in _READY:
            since = buffer.recovering_since_ms
            if self._is_old(since, _RECOVERS_MS):
                what = f"its transactions are not recovered: {buffer.state}"
                return [Finding("recovery", what, known.BUFFER_RECOVERY_SPINS, topic=buffer.topic, since_ms=since)]
            return []
        if not buffer.ongoing:
            return []
        ledgers = await self._reading.ledgers(buffer.topic)
        holders, seen = await self._holders(buffer, ledgers)
        findings = [await self._judge(buffer, ledgers, holder, seen) for holder in holders]
        if len(holders) < buffer.ongoing and not self._scope_is_recent(holders):
            findings += await self._not_found(buffer, len(holders))
        return [finding for finding in findings if self._is_old(finding.since_ms, self._scope.older_than_ms)]

    def _scope_is_recent(self, holders: Sequence[_Holder]) -> bool:
        """True if even the oldest of them is young: then the others are younger."""
        oldest = min((holder.first.published_ms for holder in holders), default=0)
        return bool(holders) and not self._is_old(oldest, self._scope.older_than_ms)

    async def _not_found(self, buffer: BufferFacts, found: int) -> list[Finding]:
        now = await self._reading.buffer(buffer.topic)
        if now.ongoing <= found or now.max_read_position != buffer.max_read_position:
            return []
        what = (
            f"{now.ongoing - found} more transactions are ongoing, with no entry among the {self._scope.entries} that were read"
        )
        return [Finding("more", what, "read more of the topic with --entries", topic=buffer.topic, since_ms=1)]

    async def _holders(self, buffer: BufferFacts, ledgers: Ledgers) -> tuple[list[_Holder], list[EntryFacts]]:
        """The transactions that are ongoing there, oldest first, and the entries that were read for it."""
        holders: dict[TxnId, _Holder] = {}
        asked: set[TxnId] = set()
        seen: list[EntryFacts] = []
        position = ledgers.after(buffer.max_read_position)
        while position is not None and len(seen) < self._scope.entries and len(holders) < buffer.ongoing:
            batch: list[Position] = []
            while position is not None and len(batch) < _ENTRIES_AT_ONCE:
                batch.append(position)
                position = ledgers.after(position)
            entries = await asyncio.gather(*(self._reading.entry(buffer.topic, each) for each in batch))
            seen += entries
            for entry in entries:
                if entry.txn_id is None or entry.marker is not None or entry.txn_id in asked:
                    continue
                asked.add(entry.txn_id)
                if await self._reading.first_position(buffer.topic, entry.txn_id) is not None:
                    holders[entry.txn_id] = _Holder(entry.txn_id, entry)
        return list(holders.values()), seen

    async def _judge(self, buffer: BufferFacts, ledgers: Ledgers, holder: _Holder, seen: Sequence[EntryFacts]) -> Finding:
        txn_id, topic = holder.txn_id, buffer.topic
        status = await self._reading.status(txn_id)
        ended_here = None
        if status in (Status.NOT_KNOWN, Status.AWAY):
            ended_here = _outcome_of(txn_id, seen) or await self._outcome_before(topic, ledgers, holder)
        verdict = verdict_of(txn_id, status, ended_here)
        blocked = ledgers.count_after(buffer.max_read_position)
        known_txn = self.known.get(txn_id)
        since_ms = holder.first.published_ms if known_txn is None else known_txn.opened_ms
        return _finding(verdict, status, txn_id, topic, None, since_ms, blocked)

    async def _outcome_before(self, topic: str, ledgers: Ledgers, holder: _Holder) -> str | None:
        """The outcome of the marker that the transaction has before its late entry."""
        position = ledgers.before(holder.first.position)
        left = self._scope.entries
        while position is not None and left > 0:
            batch: list[Position] = []
            while position is not None and len(batch) < min(_ENTRIES_AT_ONCE, left):
                batch.append(position)
                position = ledgers.before(position)
            left -= len(batch)
            entries = await asyncio.gather(*(self._reading.entry(topic, each) for each in batch))
            outcome = _outcome_of(holder.txn_id, entries)
            if outcome is not None:
                return outcome
        return None

    # ---- subscriptions

    async def _look_at_subscription(self, facts: PendingAckFacts) -> list[Finding]:
        place: dict[str, Any] = {"topic": facts.topic, "subscription": facts.subscription}
        if facts.state not in _READY:
            since = facts.recovering_since_ms
            if facts.state == "Error":
                advice = "look for its reason in the log of the broker, and unload the topic"
                return [Finding("failed", "its pending acknowledgements failed", advice, **place, since_ms=since)]
            if self._is_old(since, _RECOVERS_MS):
                what = f"its pending acknowledgements are not recovered: {facts.state}"
                return [Finding("replay", what, known.REPLAY_SPINS, **place, since_ms=since)]
            return []
        if not facts.ongoing:
            return []
        findings = []
        for txn in self._which_acked(self.known, facts):
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
                await self._pause(0.3)
            before = await self._reading.known()
            facts = await self._reading.pending_acks(topic, subscription)
            after = await self._reading.known()
            explained = self._which_acked(before | after, facts)
            missing = facts.ongoing - len(explained)
            if missing <= 0:
                return 0
            fewest = missing if not sample else min(fewest, missing)
        return fewest

    @staticmethod
    def _which_acked(txns: dict[TxnId, KnownTxn], facts: PendingAckFacts) -> list[KnownTxn]:
        return [txn for txn in txns.values() if (facts.topic, facts.subscription) in txn.acked]

    def _is_old(self, since_ms: int, age_ms: int) -> bool:
        return bool(since_ms) and since_ms <= self._now_ms() - age_ms


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
