"""From facts about a cluster to what is wrong: values, and a table of what each transaction means that holds something back.

The sentences on known defects and configurations say what is wrong, and what to do. What a client meets at its first
transaction is said by the client itself, in the same words. Nothing here asks a cluster.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pulsar_txn.wire.ids import MarkerType, Position, TxnAction, TxnId
from pulsar_txn.wire.values import value

COORDINATOR_NOT_LOADED: Final = (
    "a coordinator that is not loaded refuses its transactions (apache/pulsar#20851); run: pulsar-admin topics unload "
    "persistent://pulsar/system/transaction_coordinator_assign-partition-{number}, and restart the broker that owns this "
    "partition if that does not help"
)
REPLAY_SPINS: Final = (
    "the log of pending acknowledgements is read over and over (apache/pulsar#26368, #26374; up to 4.0.13 and 4.2.4): "
    "SUBSCRIBE hangs here and on other subscriptions, and a thread pulsar-transaction-executor of the broker uses a whole "
    "core. Restart the broker, unload topics rarely, and upgrade"
)
BUFFER_RECOVERY_SPINS: Final = (
    "the topic's transactions are recovered over and over (apache/pulsar#26379): nothing is delivered in transactions. Look "
    "for read errors of this topic in the log of the broker, mend what it names, and unload the topic"
)
DEADLOCK: Final = (
    "an abort of single acknowledgements on a Shared subscription does that on stock Pulsar, in a topic that has transactions; "
    "only a kill of the broker process helps"
)
EXTERNAL: Final = 1 << 62
"""Upper id bits from here on are lanes of a coordinator beside the cluster."""


class Status(enum.Enum):
    """Status that the coordinator of a transaction says of it."""

    OPEN = "open"
    COMMITTING = "being committed"
    ABORTING = "being aborted"
    NOT_KNOWN = "not known"
    AWAY = "its coordinator is not ready"


@value
class KnownTxn:
    """A transaction that its coordinator has. `acked`: pairs of topic and subscription."""

    txn_id: TxnId
    status: Status
    opened_ms: int
    timeout_ms: int
    produced: frozenset[str]
    acked: frozenset[tuple[str, str]]


@value
class CoordinatorFacts:
    """One coordinator. `last_id`: the newest id that it gave out."""

    number: int
    state: str
    last_id: int
    ongoing: int


@value
class EntryFacts:
    """Facts that an entry of a topic says of itself."""

    position: Position
    txn_id: TxnId | None
    marker: int | None
    published_ms: int

    @property
    def outcome(self) -> str | None:
        """`commit` or `abort` for a marker of a transaction."""
        if self.marker == MarkerType.TXN_COMMIT:
            return "commit"
        return "abort" if self.marker == MarkerType.TXN_ABORT else None


@value
class BufferFacts:
    """The transaction buffer of a topic. `recovering_since_ms`: 0 once it has recovered."""

    topic: str
    state: str
    max_read_position: Position
    ongoing: int
    recovering_since_ms: int


@value
class PendingAckFacts:
    """The pending acknowledgements of a subscription."""

    topic: str
    subscription: str
    state: str
    ongoing: int
    unacknowledged: int
    recovering_since_ms: int


class Ledgers:
    """The ledgers of a topic in order, with their numbers of entries: steps from entry to entry."""

    def __init__(self, ledgers: Sequence[tuple[int, int]]) -> None:
        self._ids = [ledger_id for ledger_id, entries in ledgers if entries]
        self._entries = [entries for _, entries in ledgers if entries]

    @classmethod
    def of(cls, internal_stats: Mapping[str, object]) -> Ledgers:
        """Read it from the answer of `internalStats`, where the newest ledger has its count beside the others."""
        listed: list[dict[str, int]] = internal_stats["ledgers"]  # type: ignore[assignment]  # as the broker writes it
        found = [(int(each["ledgerId"]), int(each["entries"])) for each in listed]
        newest, last = position_of(str(internal_stats["lastConfirmedEntry"]))
        return cls([(ledger_id, last + 1 if ledger_id == newest else entries) for ledger_id, entries in found])

    def after(self, position: Position) -> Position | None:
        """The next entry; None after the last one."""
        place = bisect_left(self._ids, position[0])
        if place < len(self._ids) and self._ids[place] == position[0]:
            if position[1] + 1 < self._entries[place]:
                return position[0], position[1] + 1
            place += 1
        return (self._ids[place], 0) if place < len(self._ids) else None

    def before(self, position: Position) -> Position | None:
        """The entry before; None before the first one."""
        place = bisect_left(self._ids, position[0])
        if place < len(self._ids) and self._ids[place] == position[0] and position[1] > 0:
            return position[0], min(position[1], self._entries[place]) - 1
        return (self._ids[place - 1], self._entries[place - 1] - 1) if place else None

    def count_after(self, position: Position) -> int:
        """Number of entries after a position."""
        place = bisect_left(self._ids, position[0])
        if place == len(self._ids):
            return 0
        here = self._entries[place] - position[1] - 1 if self._ids[place] == position[0] else self._entries[place]
        return max(here, 0) + sum(self._entries[place + 1 :])


def position_of(text: str) -> Position:
    """`ledger:entry`."""
    ledger_id, _, entry_id = text.partition(":")
    return int(ledger_id), int(entry_id)


class Verdict(enum.Enum):
    """Verdict on a transaction that holds something back."""

    OPEN = "open at its coordinator"
    ENDING = "decided, and its end has not arrived here"
    LATE_AFTER_COMMIT = "committed before; a late write came after its end"
    LATE_AFTER_ABORT = "aborted before; a late write came after its end"
    AWAY = "of a coordinator that is not ready"
    EXTERNAL = "of a coordinator beside this cluster"
    UNKNOWN = "not known to any coordinator, and never ended here"


class Cure(enum.Enum):
    """Cure that the doctor has."""

    NOTHING = "nothing"
    REPEAT_COMMIT = "repeat the commit"
    REPEAT_ABORT = "repeat the abort"
    ABORT = "abort it"
    SEARCH = "abort the newest ended transactions on this subscription, one after the other"

    @property
    def action(self) -> TxnAction:
        """The outcome that is sent."""
        return TxnAction.COMMIT if self is Cure.REPEAT_COMMIT else TxnAction.ABORT

    @property
    def guesses(self) -> bool:
        """True if no log says this outcome: never without a question."""
        return self in (Cure.ABORT, Cure.SEARCH)


@value
class Advice:
    """The cure of a verdict, and what to say."""

    cure: Cure
    sentence: str


ADVICE: Final[Mapping[Verdict, Advice]] = MappingProxyType(
    {
        Verdict.OPEN: Advice(
            Cure.NOTHING, "its coordinator aborts it at its timeout; to abort it now: pulsar-txn transactions abort {txn}"
        ),
        Verdict.ENDING: Advice(Cure.NOTHING, "repeat its end: pulsar-txn doctor --cure"),
        Verdict.LATE_AFTER_COMMIT: Advice(
            Cure.REPEAT_COMMIT, "repeat the commit (the late message becomes visible): pulsar-txn doctor --cure"
        ),
        Verdict.LATE_AFTER_ABORT: Advice(
            Cure.REPEAT_ABORT, "repeat the abort (the late message stays hidden): pulsar-txn doctor --cure"
        ),
        Verdict.AWAY: Advice(Cure.NOTHING, "get its coordinator ready first: it may be open, or decided"),
        Verdict.EXTERNAL: Advice(Cure.NOTHING, "look for it at that coordinator, which ends it by its own log"),
        Verdict.UNKNOWN: Advice(
            Cure.ABORT,
            "abort it, if no coordinator elsewhere has it and nobody keeps its outcome (its messages are gone then): "
            "pulsar-txn doctor --cure",
        ),
    }
)


def verdict_of(txn_id: TxnId, status: Status, ended_here: str | None) -> Verdict:
    """Judge a transaction by the status at its coordinator, and by the marker of it in its topic."""
    if status is Status.OPEN:
        return Verdict.OPEN
    if status in (Status.COMMITTING, Status.ABORTING):
        return Verdict.ENDING
    if ended_here is not None:
        return Verdict.LATE_AFTER_COMMIT if ended_here == "commit" else Verdict.LATE_AFTER_ABORT
    if status is Status.AWAY:
        return Verdict.AWAY
    return Verdict.EXTERNAL if txn_id.most >= EXTERNAL else Verdict.UNKNOWN


def cure_of(verdict: Verdict, status: Status) -> Cure:
    """Cure for a verdict; for a transaction that is being ended, by the outcome in its coordinator's log."""
    if verdict is Verdict.ENDING:
        return Cure.REPEAT_COMMIT if status is Status.COMMITTING else Cure.REPEAT_ABORT
    return ADVICE[verdict].cure


@value
class Finding:
    """Something that is wrong. `since_ms` 0: not known. `subscription` and `txn_id` are None where none is meant."""

    kind: str
    what: str
    advice: str
    cure: Cure = Cure.NOTHING
    topic: str | None = None
    subscription: str | None = None
    txn_id: TxnId | None = None
    since_ms: int = 0
    blocked: int = 0
