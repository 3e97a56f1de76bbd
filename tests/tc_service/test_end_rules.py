"""What each answer to an end means: the whole table, and every error code of the protocol."""

from __future__ import annotations

import pytest

from pulsar_txn.tc_service.cluster.attempts import RULES, Answer, answer_of, pause_ms, raises_alarm
from pulsar_txn.wire.errors import ServerError

DONE = {Answer.OK, Answer.GONE, Answer.SETTLED_OTHERWISE}


def test_every_answer_has_a_rule() -> None:
    assert set(RULES) == set(Answer)


@pytest.mark.parametrize("answer", Answer)
def test_only_what_a_participant_has_settled_is_done(answer: Answer) -> None:
    assert RULES[answer].done == (answer in DONE)


@pytest.mark.parametrize("answer", sorted(set(Answer) - DONE, key=str))
def test_the_pause_grows_up_to_a_bound_and_is_a_second_at_least_once_an_end_was_sent(answer: Answer) -> None:
    pauses = [pause_ms(answer, failures) for failures in range(1, 2000)]
    assert pauses == sorted(pauses)
    assert pauses[-1] <= 30_000
    assert pauses[0] >= (200 if answer is Answer.NO_CONNECTION else 1000)


@pytest.mark.parametrize("answer", sorted(set(Answer) - DONE, key=str))
def test_an_alarm_comes_and_comes_again_ever_more_rarely(answer: Answer) -> None:
    alarms = [failures for failures in range(1, 1000) if raises_alarm(answer, failures)]
    first = RULES[answer].alarm_after
    assert alarms == [first << times for times in range(12) if first << times < 1000]
    assert RULES[answer].remedy


@pytest.mark.parametrize("code", ServerError)
def test_no_error_code_but_a_missing_participant_or_one_settled_before_counts_as_done(code: ServerError) -> None:
    done = RULES[answer_of(code)].done
    assert done == (code in (ServerError.TopicNotFound, ServerError.SubscriptionNotFound, ServerError.InvalidTxnStatus))
    if code is not ServerError.InvalidTxnStatus:
        assert not RULES[answer_of(code, at_lookup=True)].done


@pytest.mark.parametrize(
    ("code", "answer", "at_lookup"),
    [
        (None, Answer.OK, Answer.OK),
        (ServerError.ServiceNotReady, Answer.NOT_READY, Answer.LOOKUP_FAILED),
        (ServerError.MetadataError, Answer.BEING_MOVED, Answer.LOOKUP_FAILED),
        (ServerError.PersistenceError, Answer.BEING_MOVED, Answer.LOOKUP_FAILED),
        (ServerError.UnknownError, Answer.BROKER_FAILED, Answer.LOOKUP_FAILED),
        (ServerError.TransactionNotFound, Answer.NOT_SUPERUSER, Answer.NOT_SUPERUSER),
        (ServerError.NotAllowedError, Answer.NOT_ALLOWED, Answer.NOT_ALLOWED),
        (ServerError.AuthorizationError, Answer.UNAUTHORIZED, Answer.UNAUTHORIZED),
        (ServerError.TopicNotFound, Answer.GONE, Answer.LOOKUP_FAILED),
    ],
)
def test_a_code_means(code: ServerError | None, answer: Answer, at_lookup: Answer) -> None:
    assert answer_of(code) is answer
    assert answer_of(code, at_lookup=True) is at_lookup


@pytest.mark.parametrize("answer", [Answer.NOT_SUPERUSER, Answer.NOT_ALLOWED, Answer.UNAUTHORIZED])
def test_what_must_be_configured_raises_an_alarm_at_once_and_names_the_key(answer: Answer) -> None:
    assert raises_alarm(answer, 1)
    assert "superUserRoles" in RULES[answer].remedy or "transactionCoordinatorEnabled" in RULES[answer].remedy
