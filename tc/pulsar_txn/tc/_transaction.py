"""A transaction in memory, and how it looks at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, starmap
from typing import Final, NamedTuple

from pulsar_txn.tc.extras import NO_EXTRAS, Extras
from pulsar_txn.tc.owners import Owner
from pulsar_txn.tc.table import HELD, OPEN, PREPARED
from pulsar_txn.wire.ids import Participant, TxnId, TxnStatus

TRANSACTION_BYTES: Final = 512
PARTICIPANT_BYTES: Final = 64
"""Bytes that an open transaction, and each of its participants in addition to its name, add to the size of the state."""


class Image(NamedTuple):
    """A transaction at a moment: later changes of `txn` reach neither its status nor the number of its participants."""

    txn: Transaction
    status: TxnStatus
    modified_ms: int
    extras: Extras | None
    topic_count: int
    subscription_count: int

    def topics(self) -> Iterator[str]:
        """The topic partitions it had."""
        return islice(tuple(self.txn.topics), self.topic_count)

    def subscriptions(self) -> Iterator[tuple[str, str]]:
        """The (topic, subscription) pairs it had."""
        return islice(tuple(self.txn.subscriptions), self.subscription_count)


class Transaction:
    """An open, prepared or ending transaction.

    Participants keep their order of arrival and are never taken out. `bytes` is the memory that the limits count for it.
    `deadline_ms`: when the coordinator aborts it, unless it was decided or prepared before. `modified_ms`: when its status
    changed last, or a participant was registered. `extras`: None for nearly all.
    """

    __slots__ = (
        "bytes",
        "deadline_ms",
        "extras",
        "modified_ms",
        "owner",
        "participant_count",
        "start_time_ms",
        "status",
        "subscriptions",
        "timeout_ms",
        "topics",
        "txn_id",
    )

    def __init__(
        self,
        txn_id: TxnId,
        owner: Owner,
        start_time_ms: int,
        timeout_ms: int,
        extras: Extras | None = None,
        *,
        status: TxnStatus = OPEN,
        modified_ms: int | None = None,
    ) -> None:
        self.txn_id = txn_id
        self.owner = owner
        self.start_time_ms = start_time_ms
        self.timeout_ms = timeout_ms
        self.deadline_ms = start_time_ms + timeout_ms
        self.modified_ms = start_time_ms if modified_ms is None else modified_ms
        self.status = status
        self.extras = extras
        self.bytes = TRANSACTION_BYTES
        if extras is not None:
            self.bytes += extras.size
            if extras.resumed_ms is not None:
                self.deadline_ms = extras.resumed_ms + timeout_ms
        self.participant_count = 0
        self.topics: dict[str, None] = {}
        self.subscriptions: dict[tuple[str, str], None] = {}

    @property
    def is_parked(self) -> bool:
        """True if it waits for an operator; then it is OPEN."""
        return self.extras is not None and self.extras.parked_ms is not None

    # ---- what records say. Each returns the bytes that it adds, where it may add some

    def register(self, topics: Iterable[str], subscriptions: Iterable[tuple[str, str]], modified_ms: int) -> tuple[int, int]:
        """Add participants; how many of them are new, and their bytes."""
        size = count = 0
        for topic in topics:
            if topic not in self.topics:
                self.topics[topic] = None
                count += 1
                size += PARTICIPANT_BYTES + len(topic)
        for pair in subscriptions:
            if pair not in self.subscriptions:
                self.subscriptions[pair] = None
                count += 1
                size += PARTICIPANT_BYTES + len(pair[0]) + len(pair[1])
        self.modified_ms = modified_ms
        self.participant_count += count
        self.bytes += size
        return count, size

    def put_off(self, until_ms: int) -> None:
        """The timeout is over later. No state: the next incarnation of the coordinator asks again."""
        self.deadline_ms = until_ms

    def moved(self, status: TxnStatus, now_ms: int) -> None:
        """A decision was written, or carried out."""
        self.status = status
        self.modified_ms = now_ms

    def prepared(self, token: bytes, now_ms: int) -> int:
        """Wait for the outcome as long as it takes."""
        self.moved(PREPARED, now_ms)
        return self._carry((self.extras or NO_EXTRAS).prepared(token, now_ms))

    def held(self, status: TxnStatus, cause: int, now_ms: int) -> int:
        """Be HELD, or go on with another status; then its check group is asked again."""
        self.moved(status, now_ms)
        before = self.extras or NO_EXTRAS
        if before.parked_ms is not None:
            before = before.resumed(now_ms)
        after = before._replace(held=(cause or before.held) if status is HELD else 0)
        return self._carry(None if after == NO_EXTRAS else after)

    def asked(self, extras: Extras, now_ms: int) -> None:
        """Count one more question. `extras`: its own until then."""
        self.extras = extras.asked(now_ms)

    def parked(self, extras: Extras, now_ms: int) -> None:
        """Wait for an operator. `extras`: its own until then."""
        self.extras, self.modified_ms = extras.parked(now_ms), now_ms

    def resumed(self, extras: Extras, now_ms: int) -> None:
        """Go on; the timeout begins again. `extras`: its own until then."""
        self.extras, self.modified_ms = extras.resumed(now_ms), now_ms
        self.deadline_ms = now_ms + self.timeout_ms

    def _carry(self, extras: Extras | None) -> int:
        added = (0 if extras is None else extras.size) - (0 if self.extras is None else self.extras.size)
        self.extras = extras
        self.bytes += added
        return added

    # ---- how it looks

    def image(self) -> Image:
        """The transaction as it is now, for a snapshot."""
        return Image(self, self.status, self.modified_ms, self.extras, len(self.topics), len(self.subscriptions))

    def participants(self) -> list[Participant]:
        """Topic partitions, then subscriptions, each in order of arrival; the same after a restore."""
        return [*map(Participant, self.topics), *starmap(Participant, self.subscriptions)]
