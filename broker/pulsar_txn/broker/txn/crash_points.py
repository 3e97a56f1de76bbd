"""Named points at which tests and the demo end a server of coordinators with SIGKILL, with something in flight.

PULSAR_TXN_CRASH_POINT names the point; without a known one nothing here is installed and nothing is asked later.
PULSAR_TXN_CRASH_LOG is a file that gets a line of JSON before the kill: what was in flight. A point that has a line
there does not fire again, so that the environment may stay as it is for the restart.
PULSAR_TXN_CRASH_NTH (default 1) is the commit that fires; PULSAR_TXN_CRASH_AFTER names a file: commits count from the
moment on at which it exists.

`broker.before_last_marker`: a commit's COMMITTING record is durable, all its participants but one hold their markers
durably, and the last one has not been told.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId

from .participants import Participants

BEFORE_LAST_MARKER: Final = "broker.before_last_marker"


class ClosableParticipants(Participants, Protocol):
    """Way by which the broker tells participants."""

    def close(self) -> None:
        """Retry nothing any more."""


@attrs.frozen(kw_only=True)
class Arming:
    """Time at which the point fires, and the place where it says what was in flight."""

    log: Path | None = None
    nth: int = 1
    after: Path | None = None

    def is_due(self, commits: int) -> bool:
        """True if commit number `commits` is the one, or one after it."""
        return commits >= self.nth


def arming(point: str, environ: Mapping[str, str]) -> Arming | None:
    """Return what the environment asks of `point`; None when it names another one, or when it has fired before."""
    if environ.get("PULSAR_TXN_CRASH_POINT") != point:
        return None
    log = Path(environ["PULSAR_TXN_CRASH_LOG"]) if environ.get("PULSAR_TXN_CRASH_LOG") else None
    if log is not None and log.exists() and f'"point": "{point}"' in log.read_text(encoding="utf-8"):
        return None
    after = Path(environ["PULSAR_TXN_CRASH_AFTER"]) if environ.get("PULSAR_TXN_CRASH_AFTER") else None
    return Arming(log=log, nth=int(environ.get("PULSAR_TXN_CRASH_NTH", "1")), after=after)


def armed(participants: ClosableParticipants, turn: Turn, environ: Mapping[str, str]) -> ClosableParticipants:
    """`participants` itself, or (only when the environment names the point) something that kills at it."""
    found = arming(BEFORE_LAST_MARKER, environ)
    return participants if found is None else HoldsOneBack(participants, turn, found, end_process)


def end_process(log: Path | None, in_flight: Mapping[str, Any]) -> None:
    """Write the line, make it durable, SIGKILL."""
    if log is not None:
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**in_flight, "pid": os.getpid()}) + "\n")
            file.flush()
            os.fsync(file.fileno())
    os.kill(os.getpid(), signal.SIGKILL)


class HoldsOneBack:
    """Participants, of which one is not told of the chosen commit; when all others are done, `end` is called.

    All participants of a decision are told in one turn of the loop. A commit with a single participant has nobody who
    could be done before it: it is let through, and the next one is the chosen one.
    """

    def __init__(
        self,
        inner: ClosableParticipants,
        turn: Turn,
        plan: Arming,
        end: Callable[[Path | None, Mapping[str, Any]], None],
    ) -> None:
        self._inner = inner
        self._turn = turn
        self._plan = plan
        self._end = end
        self._commits = 0
        self._latest: TxnId | None = None
        self._held: tuple[TellParticipant, Callable[[TxnId], None]] | None = None
        self._passed: list[Participant] = []
        self._told: list[Participant] = []
        self._all_known = False

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        """See `Participants.tell`."""
        if effect.action is not TxnAction.COMMIT:
            self._inner.tell(effect, told)
        elif self._held is not None and effect.txn_id == self._held[0].txn_id:
            self._passed.append(effect.participant)
            self._inner.tell(effect, partial(self._done, effect.participant, told))
        elif self._held is None and self._is_chosen(effect.txn_id):
            self._held = (effect, told)
            self._turn.runtime.call_soon(self._told_all)
        else:
            self._inner.tell(effect, told)

    def close(self) -> None:
        """As of the participants that are told."""
        self._inner.close()

    def _is_chosen(self, txn_id: TxnId) -> bool:
        if txn_id != self._latest:
            self._latest = txn_id
            if self._plan.after is None or self._plan.after.exists():
                self._commits += 1
        return self._plan.is_due(self._commits)

    def _told_all(self) -> None:
        if self._held is None:
            return
        if self._passed:
            self._all_known = True
            self._end_when_told()
        else:
            effect, told = self._held
            self._held = None
            self._inner.tell(effect, told)

    def _done(self, participant: Participant, told: Callable[[TxnId], None], txn_id: TxnId) -> None:
        self._told.append(participant)
        self._end_when_told()
        told(txn_id)

    def _end_when_told(self) -> None:
        if self._held is None or not self._all_known or len(self._told) < len(self._passed):
            return
        effect, _ = self._held
        self._end(
            self._plan.log,
            {
                "point": BEFORE_LAST_MARKER,
                "time_ms": self._turn.clock.now_ms(),
                "txn_id": str(effect.txn_id),
                "told": [_text(each) for each in self._told],
                "not_told": [_text(effect.participant)],
            },
        )


def _text(participant: Participant) -> str:
    name = participant.topic
    return name if participant.subscription is None else f"{name} / {participant.subscription}"
