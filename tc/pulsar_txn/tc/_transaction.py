"""A transaction in memory, and how it looks at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, starmap
from typing import Final, NamedTuple

from pulsar_txn.tc.extras import Extras
from pulsar_txn.tc.owners import Owner
from pulsar_txn.tc.table import OPEN
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

    def __init__(self, txn_id: TxnId, owner: Owner, start_time_ms: int, timeout_ms: int) -> None:
        self.txn_id = txn_id
        self.owner = owner
        self.start_time_ms = start_time_ms
        self.timeout_ms = timeout_ms
        self.deadline_ms = start_time_ms + timeout_ms
        self.modified_ms = start_time_ms
        self.status = OPEN
        self.extras: Extras | None = None
        self.bytes = TRANSACTION_BYTES
        self.participant_count = 0
        self.topics: dict[str, None] = {}
        self.subscriptions: dict[tuple[str, str], None] = {}

    @property
    def is_parked(self) -> bool:
        """True if it waits for an operator; then it is OPEN."""
        return self.extras is not None and self.extras.parked_ms is not None

    def image(self) -> Image:
        """The transaction as it is now, for a snapshot."""
        return Image(self, self.status, self.modified_ms, self.extras, len(self.topics), len(self.subscriptions))

    def participants(self) -> list[Participant]:
        """Topic partitions, then subscriptions, each in order of arrival; the same after a restore."""
        return [*map(Participant, self.topics), *starmap(Participant, self.subscriptions)]
