"""A frozen picture of a transaction, with counters and times."""

from __future__ import annotations

import attrs

from pulsar_txn.client.state.transaction import TransactionState
from pulsar_txn.wire.ids import TxnId


@attrs.frozen
class PartitionStats:
    """Counters of a transaction at one topic partition: messages started, receipted, failed, and bytes."""

    topic: str
    registered: bool
    sent: int
    confirmed: int
    failed: int
    bytes: int


@attrs.frozen
class SubscriptionStats:
    """Counters of a transaction at one subscription: messages acknowledged (started), confirmed, failed."""

    topic: str
    subscription: str
    registered: bool
    acked: int
    confirmed: int
    failed: int
    cumulative: bool


@attrs.frozen
class Phases:
    """Milliseconds that a transaction has spent so far, by phase.

    `begin`: NEW_TXN. `register`: the registrations, one after another or at once, added up. `send`: while at least one
    operation was under way. `wait_ops`: between the call of the end and the last operation's answer. `end`: END_TXN.
    """

    begin: float = 0.0
    register: float = 0.0
    send: float = 0.0
    wait_ops: float = 0.0
    end: float = 0.0


@attrs.frozen
class TransactionStats:
    """A transaction at a moment. Counters of operations are messages.

    `opened_at` is on the clock of `loop.time()`, None before NEW_TXN was answered. `retries`: requests to the coordinator
    that were sent again. `coordinator_endpoint`: `host:port` of the broker that answered the last of them.
    """

    id: TxnId | None
    name: str | None
    state: TransactionState
    opened_at: float | None
    age_ms: int
    partitions: tuple[PartitionStats, ...]
    subscriptions: tuple[SubscriptionStats, ...]
    sends_in_flight: int
    acks_in_flight: int
    doomed: bool
    doom_cause: BaseException | None
    phases: Phases
    retries: int
    coordinator_id: int | None
    coordinator_endpoint: str | None

    @property
    def operations_in_flight(self) -> int:
        """Sends and acknowledgements under way."""
        return self.sends_in_flight + self.acks_in_flight


class RequestTally:
    """Counters of one transaction's requests to its coordinator."""

    __slots__ = ("endpoint", "retries", "sent")

    def __init__(self) -> None:
        self.sent = 0
        """Requests that left, or may have."""
        self.retries = 0
        self.endpoint: str | None = None
