"""The public suite notices coordinators that break a promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from pulsar_txn.ledger.machine import AskProducer, AwaitOutcome, Outcome, Reply, Step
from pulsar_txn.tc import (
    AddParticipants,
    CheckAnswered,
    CheckBegun,
    EndTxn,
    GroupJoined,
    GroupLeft,
    NewTxn,
    PrepareTxn,
    TransactionCoordinator,
    records,
)
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


class LetsMembersBeginBeforeThatIsDurable(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        step = super().decide(request, now_ms)
        return Step((), step.effects, step.records) if isinstance(request, CheckBegun) else step


class CountsWhatItAsks(TransactionCoordinator):
    def expire(self, now_ms: int) -> Step[Any]:
        step = super().expire(now_ms)
        asked = [each.txn_id.least for each in step.effects if isinstance(each, AskProducer)]
        if not asked:
            return step
        return Step((("log", records.checked(asked[0], tuple(asked[1:]), now_ms, asked[-1])),), step.effects)


class AsksAllAtOnce(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        return super().decide(attrs.evolve(request, room=99) if isinstance(request, GroupJoined) else request, now_ms)


class AsksNobody(TransactionCoordinator):
    def expire(self, now_ms: int) -> Step[Any]:
        step = super().expire(now_ms)
        return Step(step.records, tuple([each for each in step.effects if not isinstance(each, AskProducer)]), step.trailing)


class KnowsNoPrincipalsOfGroups(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        if isinstance(request, GroupJoined | GroupLeft | CheckAnswered):
            request = attrs.evolve(request, principal="anna")
        return super().decide(request, now_ms)


class AsksGroupsThatHaveLeft(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        return Step() if isinstance(request, GroupLeft) else super().decide(request, now_ms)


class HearsNoAnswers(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        return Step() if isinstance(request, CheckAnswered) else super().decide(request, now_ms)


class CountsNoQuestions(TransactionCoordinator):
    def apply(self, log: str, position: Position, record: Any) -> None:
        super().apply(log, position, record)
        for txn in self._state.transactions.values():
            if txn.extras is not None:
                txn.extras = txn.extras._replace(check_count=0)


class PreparesNothing(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        return Step((), (Reply(request.token),)) if isinstance(request, PrepareTxn) else super().decide(request, now_ms)


class ShowsPreparedTransactionsToAnyToken(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        if isinstance(request, EndTxn) and request.prepared_token:
            request = attrs.evolve(request, superuser=True)
        return super().decide(request, now_ms)


class KnowsNoTokens(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        if isinstance(request, EndTxn):
            request = attrs.evolve(request, prepared_token=b"")
        return super().decide(request, now_ms)


class OpensTwiceForANonce(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        if isinstance(request, NewTxn):
            request = attrs.evolve(request, nonce=b"")
        return super().decide(request, now_ms)


class AnswersNoEndByItsDecision(TransactionCoordinator):
    def decide(self, request: Any, now_ms: int) -> Step[Any]:
        if isinstance(request, EndTxn):
            request = attrs.evolve(request, at_decision=False)
        return super().decide(request, now_ms)


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


def broken(factory: Any, only: str = "") -> list[str]:
    """The promises that a coordinator breaks, of all or of one."""
    suite = type("Suite", (TransactionCoordinatorSuite,), {"factory": factory})()
    found = []
    for name in dir(suite):
        if name.startswith("test_" + only):
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


@pytest.mark.parametrize(
    ("factory", "promise"),
    [
        (LetsMembersBeginBeforeThatIsDurable, "a_living_member_is_asked_and_counted_durably_before_it_goes_on"),
        (AsksNobody, "a_living_member_is_asked_and_counted_durably_before_it_goes_on"),
        (CountsWhatItAsks, "a_question_that_nobody_begins_counts_for_nothing"),
        (AsksAllAtOnce, "no_more_is_asked_at_once_than_there_is_room_for"),
        (KnowsNoPrincipalsOfGroups, "nobody_else_is_asked_and_who_comes_later_is_asked_at_once"),
        (AsksGroupsThatHaveLeft, "nobody_else_is_asked_and_who_comes_later_is_asked_at_once"),
        (HearsNoAnswers, "an_answer_decides_once"),
        (KnowsNoPrincipalsOfGroups, "an_answer_decides_once"),
        (CountsNoQuestions, "questions_are_counted_across_crashes_and_come_to_an_end"),
        (PreparesNothing, "what_is_prepared_waits_whatever_happens"),
        (PreparesNothing, "a_prepare_is_durable_before_its_answer_and_repeats_itself"),
        (ShowsPreparedTransactionsToAnyToken, "who_shows_the_token_ends_it_and_repeats_that"),
        (KnowsNoTokens, "who_shows_the_token_ends_it_and_repeats_that"),
        (PreparesNothing, "what_is_prepared_is_asked_for_without_an_end"),
        (OpensTwiceForANonce, "a_nonce_opens_once"),
        (AnswersNoEndByItsDecision, "an_end_may_be_answered_by_its_decision"),
    ],
)
def test_the_suite_notices_about_checks(factory: Any, promise: str) -> None:
    assert broken(factory, promise) == [f"test_{promise}"]


class KnowsNothingOfChecks(KnowsNoTokens, OpensTwiceForANonce, AnswersNoEndByItsDecision, PreparesNothing):
    checks = False


def test_the_suite_asks_a_coordinator_that_does_not_say_checks_for_none_of_that() -> None:
    assert broken(KnowsNothingOfChecks) == []


def test_the_suite_finds_nothing_in_our_coordinator() -> None:
    assert broken(TransactionCoordinator) == []
