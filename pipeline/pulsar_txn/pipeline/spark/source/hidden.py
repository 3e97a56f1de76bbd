"""Messages that open transactions hide from the source's query, as the cluster's admin API tells (the option `admin.url`)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import attrs

from pulsar_txn.pipeline.spark.admin import Admin
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.ledgers import Ledgers, place
from pulsar_txn.pipeline.spark.source.offsets import Place

logger = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 5.0
"""How often the admin API is asked while a query runs."""
_AT_ONCE: Final = 8
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
    """Looks from time to time, in the background. Use it on the client's loop; without `admin.url` it does nothing."""

    def __init__(self, options: Options) -> None:
        self._admin = None if options.admin_url is None else Admin(options)
        self._warn_after_ms = options.warn_open_transaction_after_ms
        self._look: asyncio.Task[None] | None = None
        self._looked_at = -_EVERY_SECONDS
        self._said: set[str] = set()
        self._is_in_trouble = False
        self.found: Mapping[str, Hidden] = {}
        """What was seen last, by topic partition; those that could not be asked are missing."""

    @property
    def is_told(self) -> bool:
        """True if there is anybody to ask."""
        return self._admin is not None

    @property
    def age_seconds(self) -> float:
        """Return how long ago that was."""
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
        places = asyncio.Semaphore(_AT_ONCE)

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
        """Said once for each time that it begins: a query works without the admin API."""
        if error is not None and not self._is_in_trouble:
            logger.warning(
                "%s does not say what open transactions hide, so the progress does not show it: %r", admin.url, error
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
