"""Command line of pulsar-txn whose broker ends itself with SIGKILL while a commit is half told, for the demo and the tests.

`python broker_crash.py standalone …`. Without PULSAR_TXN_CRASH_POINT=broker.before_last_marker it is the plain broker. The
point: a commit's COMMITTING record is durable, all its participants but one hold their markers durably, and the last one has
not been told.

PULSAR_TXN_CRASH_LOG is a file that gets a line of JSON before the kill: what was in flight. With that line there the point
does not fire again, so that the environment may stay as it is for the restart. PULSAR_TXN_CRASH_NTH (default 1) is the commit
that fires; PULSAR_TXN_CRASH_AFTER names a file: commits count from the moment on at which it exists.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
from crash import BROKER_POINT, note_kill, read_log

from pulsar_txn.broker import broker
from pulsar_txn.broker.base.runtime import Runtime
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.cli import main
from pulsar_txn.broker.txn.participants import InProcessParticipants
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId


@attrs.frozen(kw_only=True)
class Plan:
    """Time at which the point fires, and the place where it says what was in flight."""

    log: Path
    nth: int = 1
    after: Path | None = None


def plan_of(environ: Mapping[str, str]) -> Plan | None:
    """Return what the environment asks for; None when it names another point, or when this one has fired before."""
    if environ.get("PULSAR_TXN_CRASH_POINT") != BROKER_POINT:
        return None
    log = Path(environ["PULSAR_TXN_CRASH_LOG"])
    if any(kill.point == BROKER_POINT for kill in read_log(log)):
        return None
    after = Path(environ["PULSAR_TXN_CRASH_AFTER"]) if environ.get("PULSAR_TXN_CRASH_AFTER") else None
    return Plan(log=log, nth=int(environ.get("PULSAR_TXN_CRASH_NTH", "1")), after=after)


def armed(participants: Any, runtime: Runtime, environ: Mapping[str, str]) -> Any:
    """`participants` itself, or (only when the environment names the point) something that kills at it."""
    plan = plan_of(environ)
    return participants if plan is None else HoldsOneBack(participants, runtime, plan, end_process)


def end_process(log: Path, in_flight: Mapping[str, Any]) -> None:
    """Write the line, make it durable, SIGKILL."""
    note_kill(log, BROKER_POINT, "broker", os.getpid(), **in_flight)
    os.kill(os.getpid(), signal.SIGKILL)


class HoldsOneBack:
    """Participants, of which one is not told of the chosen commit; when all others are done, `end` is called.

    All participants of a decision are told in one turn of the loop. A commit with a single participant has nobody who
    could be done before it: it is let through, and the next one is the chosen one.
    """

    def __init__(self, participants: Any, runtime: Runtime, plan: Plan, end: Callable[[Path, Mapping[str, Any]], None]) -> None:
        self._inner = participants
        self._runtime = runtime
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
            self._runtime.call_soon(self._told_all)
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
        return self._commits >= self._plan.nth

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
        told, not_told = [_text(each) for each in self._told], [_text(effect.participant)]
        self._end(self._plan.log, {"txn_id": str(effect.txn_id), "told": told, "not_told": not_told})


def _text(participant: Participant) -> str:
    name = participant.topic
    return name if participant.subscription is None else f"{name} / {participant.subscription}"


def armed_participants(turn: Turn, topics: Any) -> Any:
    """Participants of a broker of this environment."""
    return armed(InProcessParticipants(turn, topics), turn.runtime, os.environ)


if __name__ == "__main__":
    with mock.patch.object(broker, "InProcessParticipants", armed_participants):
        main()
