"""The public suite notices coordinators that break a promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pulsar_txn.ledger.machine import AwaitOutcome, Outcome, Reply, Step
from pulsar_txn.tc import AddParticipants, EndTxn, NewTxn, TransactionCoordinator
from pulsar_txn.tc.testing import TransactionCoordinatorSuite
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Position


class TellsBeforeTheDecisionIsDurable(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        step = super().decide(request, now_ms)
        return Step((), step.effects, (*step.records, *step.trailing)) if isinstance(request, EndTxn) else step


class AnswersAnEndAtOnce(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        step = super().decide(request, now_ms)
        effects = [Reply(each.token) if isinstance(each, AwaitOutcome) else each for each in step.effects]
        return Step(step.records, tuple(effects), step.trailing)


class KnowsNoStrangers(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        if isinstance(request, EndTxn):
            request = EndTxn(request.token, request.txn_id, request.action, superuser=True)
        return super().decide(request, now_ms)


class RefusesRepeats(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        step = super().decide(request, now_ms)
        if isinstance(request, EndTxn) and not step.records:
            raise Refusal(ServerError.InvalidTxnStatus, "ended before")
        return step


class WritesWhatIsRegistered(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        step = super().decide(request, now_ms)
        if isinstance(request, AddParticipants) and not step.records:
            return Step(super().decide(NewTxn(None, 1), now_ms).records, step.effects)
        return step


class ForgetsEndsUnderWay(TransactionCoordinator):
    def recovered(self, now_ms: int) -> Step[Any]:
        return Step()


class NeverTimesOut(TransactionCoordinator):
    def deadline(self) -> int | None:
        return None


class SnapshotsWithoutOutcomes(TransactionCoordinator):
    def snapshot(self) -> Iterator[bytes]:
        return iter(list(super().snapshot())[:1])


class ChangesStateInDecide(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        step = super().decide(request, now_ms)
        for name, record in step.records:
            self.apply(name, (9, 9), record)
        return step


class EndsWithoutItsParticipants(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        step = super().decide(request, now_ms)
        if isinstance(request, EndTxn) and step.records:
            return Step(step.records, (*step.effects, Outcome(request.txn_id, request.action)), step.trailing)
        return step


class GivesIdsAgain(TransactionCoordinator):
    def apply(self, log: str, position: Position, record: Any) -> None:
        super().apply(log, position, record)
        if len(self.transactions()) == 1:
            self._state.next_id = self.transactions()[0].txn_id.least + 1


def broken(factory: Any) -> list[str]:
    """The promises that a coordinator breaks."""
    suite = type("Suite", (TransactionCoordinatorSuite,), {"factory": factory})()
    found = []
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except Exception:  # noqa: BLE001 - whatever it is, it was noticed
                found.append(name)
    return found


@pytest.mark.parametrize(
    "factory",
    [
        TellsBeforeTheDecisionIsDurable,
        AnswersAnEndAtOnce,
        KnowsNoStrangers,
        RefusesRepeats,
        WritesWhatIsRegistered,
        ForgetsEndsUnderWay,
        NeverTimesOut,
        SnapshotsWithoutOutcomes,
        ChangesStateInDecide,
        EndsWithoutItsParticipants,
        GivesIdsAgain,
    ],
)
def test_the_suite_notices(factory: Any) -> None:
    assert broken(factory)


def test_the_suite_finds_nothing_in_our_coordinator() -> None:
    assert broken(TransactionCoordinator) == []
