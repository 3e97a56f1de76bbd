"""Topics of a query as the driver sees them: partitions and their ends, the subscription, and the report of a stream.

The subscription keeps what is not processed. `OpenTransactions` asks the cluster's admin API (the option `admin.url`) for the
messages that open transactions hide from the query.

Spark has no metrics for sources in Python. It shows what `reportLatestOffset` answers, as `latestOffset` of the source. So
the report stands there: how far the query is behind, and what is hidden from it. `source_progress` reads it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

import attrs

from pulsar_txn.client import AsyncClient, InitialPosition, MessageId, TopicNotFound
from pulsar_txn.client.encoded import existing_partitions, matching_topics
from pulsar_txn.pipeline.spark.connecting import Admin
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.limits import Heads, Limits
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Ledgers, Place, Places, at_least, place
from pulsar_txn.pipeline.spark.source.ranges import Patience

logger = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 5.0
"""Interval at which the admin API is asked while a query runs."""
_PARTITIONS_AT_ONCE: Final = 8
_TRANSACTIONS: Final = "/admin/v3/transactions"


@attrs.frozen
class Oldest:
    """The transaction whose first entry in a topic partition readers wait for."""

    first: Place
    txn: str
    """Its id, as Pulsar writes it: `(coordinator,number)`."""
    since_ms: int


@attrs.frozen
class Hidden:
    """A topic partition at a moment: its ledgers, and what of it readers may not see yet."""

    ledgers: Ledgers
    entries: int
    """Stored entries after the last one that readers may see."""
    transactions: int
    """Open transactions that have written here."""
    oldest: Oldest | None


class OpenTransactions:
    """Watch of open transactions, which asks the admin API in the background. Without `admin.url` it does nothing."""

    def __init__(self, options: Options) -> None:
        self._admin = None if options.admin_url is None else Admin(options)
        self._warn_after_ms = options.warn_open_transaction_after_ms
        self._look: asyncio.Task[None] | None = None
        self._looked_at = -_EVERY_SECONDS
        self._said: set[str] = set()
        self._is_in_trouble = False
        self.found: Mapping[str, Hidden] = {}
        """Last seen state, by topic partition; those that could not be asked are missing."""

    @property
    def is_told(self) -> bool:
        """True if there is anybody to ask."""
        return self._admin is not None

    @property
    def age_seconds(self) -> float:
        """Seconds since the last look."""
        return time.monotonic() - self._looked_at

    async def watch(self, partitions: Iterable[str], patience_seconds: float) -> None:
        """Look again when it is time. The first look is waited for, for so long; later ones are not."""
        if self._admin is None:
            return
        if self._look is None or (self._look.done() and self.age_seconds >= _EVERY_SECONDS):
            is_first = self._look is None
            self._look = asyncio.create_task(self._look_at(self._admin, sorted(partitions)))
            if is_first:
                await asyncio.wait([self._look], timeout=patience_seconds)

    async def _look_at(self, admin: Admin, partitions: list[str]) -> None:
        places = asyncio.Semaphore(_PARTITIONS_AT_ONCE)

        async def one(partition: str) -> Hidden | Exception | None:
            async with places:
                try:
                    return await self._one(admin, partition)
                except (OSError, ValueError, KeyError, TypeError) as error:
                    return error

        seen = await asyncio.gather(*(one(each) for each in partitions))
        self.found = {each: hidden for each, hidden in zip(partitions, seen, strict=True) if isinstance(hidden, Hidden)}
        self._looked_at = time.monotonic()
        self._tell_trouble(admin, next((each for each in seen if isinstance(each, Exception)), None))
        self._warn()

    async def _one(self, admin: Admin, partition: str) -> Hidden | None:
        name = partition.partition("://")[2]
        buffer = await admin.get(f"{_TRANSACTIONS}/transactionBufferStats/{name}")
        stats = await admin.get(
            f"/admin/v2/persistent/{name}/internalStats"
        )  # after it, so that the end is not the earlier one
        if buffer is None or stats is None:
            return None
        ledgers = Ledgers.read(stats)
        transactions = int(buffer["ongoingTxnSize"])
        if not transactions:
            return Hidden(ledgers, 0, 0, None)
        readable = place(buffer["maxReadPosition"])
        first = ledgers.following(readable)
        known = self.found.get(partition)
        oldest = known.oldest if known is not None else None
        if oldest is None or oldest.first != first:
            oldest = await _oldest(admin, name, first)
        return Hidden(ledgers, ledgers.between(readable, ledgers.last), transactions, oldest)

    def _warn(self) -> None:
        """Say once of each transaction that it has been open for long."""
        now_ms = time.time() * 1000
        late: dict[str, list[str]] = {}
        for partition, hidden in self.found.items():
            if hidden.oldest is not None and now_ms - hidden.oldest.since_ms >= self._warn_after_ms:
                late.setdefault(hidden.oldest.txn, []).append(partition)
        for txn in sorted(set(late) - self._said):
            seen = [self.found[partition] for partition in late[txn]]
            since_ms = min(each.oldest.since_ms for each in seen if each.oldest is not None)
            logger.warning(
                "%s: the transaction %s has been open for %d s, and hides %d entries, its own and those after it; this query "
                "reads them once it ends. If its program is gone, wait for its timeout, or abort it (pulsar-admin transactions "
                "abort-transaction)",
                ", ".join(late[txn]),
                txn,
                (now_ms - since_ms) / 1000,
                sum(each.entries for each in seen),
            )
        self._said = set(late)

    def _tell_trouble(self, admin: Admin, error: Exception | None) -> None:
        """Log the beginning of each trouble once: a query works without the admin API."""
        if error is not None and not self._is_in_trouble:
            logger.warning(
                "%s did not list the open transactions (%r): the query goes on, and its progress does not count what they "
                "hide. Check admin.url, and that the query's role may ask for them",
                admin.url,
                error,
            )
        self._is_in_trouble = error is not None

    async def close(self) -> None:
        """Stop looking."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.wait([self._look])


async def _oldest(admin: Admin, name: str, first: Place) -> Oldest | None:
    """The transaction of the entry `first`; None when it is gone, which means that the transaction has just ended."""
    said = await admin.headers(f"/admin/v2/persistent/{name}/ledger/{first[0]}/entry/{first[1]}")
    fields = {} if said is None else {field.lower(): value for field, value in said.items()}
    most, least = fields.get("x-pulsar-txnid-most-bits"), fields.get("x-pulsar-txnid-least-bits")
    if most is None or least is None:
        return None
    since_ms = datetime.fromisoformat(fields["x-pulsar-publish-time"]).timestamp() * 1000
    try:
        metadata = await admin.get(f"{_TRANSACTIONS}/transactionMetadata/{most}/{least}")
    except (OSError, ValueError):
        metadata = None  # its coordinator is elsewhere, or we may not ask: its first entry is nearly as old as it is
    if metadata is not None:
        since_ms = metadata["openTimestamp"]
    return Oldest(first, f"({most},{least})", int(since_ms))


def behind(found: Mapping[str, Hidden], read: Mapping[str, Place], newest: Mapping[str, Place]) -> dict[str, Any]:
    """Backlog by topic partition, and in all: entries that are not read yet, up to `newest` and to the end, and hidden ones."""
    partitions = {
        topic: _of(hidden, read.get(topic, NOTHING), newest.get(topic, NOTHING)) for topic, hidden in sorted(found.items())
    }
    names = ("lag_entries", "lag_entries_to_end", "hidden_entries", "open_transactions")
    total: dict[str, Any] = {name: sum(each[name] for each in partitions.values()) for name in names}
    ages = [each["oldest_open_ms"] for each in partitions.values() if "oldest_open_ms" in each]
    if ages:
        total["oldest_open_ms"] = max(ages)
    return {"partitions": partitions, "total": total}


def _of(hidden: Hidden, read: Place, newest: Place) -> dict[str, Any]:
    said: dict[str, Any] = {
        "lag_entries": hidden.ledgers.between(read, newest),
        "lag_entries_to_end": hidden.ledgers.between(read, max(newest, hidden.ledgers.last)),
        "hidden_entries": hidden.entries,
        "open_transactions": hidden.transactions,
    }
    if hidden.oldest is not None:
        said["oldest_transaction"] = hidden.oldest.txn
        said["oldest_open_ms"] = max(0, int(time.time() * 1000) - hidden.oldest.since_ms)
    return said


_AT_ONCE: Final = 50
_LAST_SECONDS: Final = 5.0


class Topics:
    """The topics of a source as its driver sees them; use it on the client's loop. Nothing here creates a topic."""

    def __init__(self, client: AsyncClient, options: Options) -> None:
        self.client = client
        self.heads = Heads(client)
        self.limits = Limits(client)
        self.hidden = OpenTransactions(options)
        self.missing: list[str] = []
        """Topics and partitions that were asked for last, and do not exist."""
        self._options = options
        self._subscribed: Places = {}
        """Position of the subscription, as far as this run has moved it."""
        self._wanted: Places = {}
        self._acknowledging: asyncio.Task[None] | None = None

    async def ends(self) -> Places:
        """The last visible message of every partition; NOTHING for an empty one. Everything up to it is decided.

        Partitions are asked for each time, so that new ones are found.
        """
        wanted: dict[str, bool] = {}
        if self._options.topics_pattern is not None:
            wanted = dict.fromkeys(await matching_topics(self.client, self._options.topics_pattern), False)
        unknown: list[str] = []
        for topic in self._options.topics:
            try:
                partitions = await existing_partitions(self.client, topic)
            except TopicNotFound:
                unknown.append(topic)
                continue
            for partition in partitions:
                wanted[partition] = len(partitions) > 1  # of a topic that exists, in part perhaps only in its metadata
        ends, missing = await self.heads.ends(wanted)
        self.missing = unknown + missing
        return ends

    async def watched_ends(self) -> Places:
        """The same; and the heads wait for what comes after, in the background."""
        ends = await self.ends()
        self.heads.sit(ends)
        return ends

    async def subscribe(self, start: Mapping[str, Place]) -> None:
        """Create the durable subscription where it is missing, and move it up to `start`."""
        await self._move_to(start)

    def acknowledge(self, end: Mapping[str, Place]) -> None:
        """Tell the subscription, in the background, that everything up to `end` was processed. It never goes back.

        Raises what ended an earlier call: a broker or a subscription that could not be had for too long.
        """
        if self._acknowledging is not None and self._acknowledging.done():
            done, self._acknowledging = self._acknowledging, None
            done.result()
        self._wanted = at_least(self._wanted, end)
        if self._acknowledging is None:
            self._acknowledging = asyncio.get_running_loop().create_task(self._acknowledge())

    async def acknowledged(self) -> None:
        """Wait until the subscription stands where it was told to stand last. Raises as `acknowledge`."""
        if self._acknowledging is not None:
            done, self._acknowledging = self._acknowledging, None
            await done

    async def _acknowledge(self) -> None:
        while True:
            moved = {topic: place for topic, place in self._wanted.items() if place > self._subscribed.get(topic, NOTHING)}
            if not moved:
                return
            patience = Patience(self._options.fail_after_ms)
            await patience.insist(partial(self._move_to, moved), f"acknowledging on {self._options.subscription_name}")

    async def _move_to(self, places: Mapping[str, Place]) -> None:
        """Move the subscription of each topic; what succeeds is not done again after an error."""
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def one(topic: str, place: Place) -> None:
            async with at_once:
                if self._subscribed.get(topic) != place:
                    await self._move(topic, place)
                    self._subscribed[topic] = place

        for result in await asyncio.gather(*(one(*each) for each in places.items()), return_exceptions=True):
            if result is not None:
                raise result

    async def _move(self, topic: str, place: Place) -> None:
        """Move the subscription with a short-lived consumer: one that stays would create a deleted topic again."""
        name = self._options.subscription_name or ""
        position = InitialPosition.EARLIEST
        there = self.heads.topics()
        if there and topic not in there:
            return  # deleted meanwhile
        async with await self.client.subscribe(topic, name, initial_position=position, receiver_queue_size=1) as consumer:
            if place != NOTHING:
                await consumer.acknowledge_cumulative(MessageId(*place), receipt=True)

    async def close(self) -> None:
        """Close the readers. What is still to be acknowledged is acknowledged by the next run."""
        if self._acknowledging is not None:
            await asyncio.wait([self._acknowledging], timeout=_LAST_SECONDS)
            self._acknowledging.cancel()
            await asyncio.wait([self._acknowledging])
        await self.hidden.close()
        await self.limits.close()
        await self.heads.close()
