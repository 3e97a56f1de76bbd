"""From what was seen to what is wrong: what each transaction means that holds something back. A table, without IO."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pulsar_txn.wire.ids import TxnAction, TxnId
from pulsar_txn.wire.values import value

from .facts import Status

EXTERNAL: Final = 1 << 62
"""Upper id bits from here on are lanes of a coordinator beside the cluster."""


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
    """Return what a transaction is, by what its coordinator says and by the marker that its topic has of it."""
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
    """Return what to do; for one that is being ended, by the outcome in its coordinator's log."""
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
