"""Rules for answers to an end of a transaction: what each means, and what comes next. A table, without IO.

A participant is told until it answers "ok", however long that takes, and always the same outcome. What differs is how long to
wait before the next attempt, and whether somebody must be told that the cluster needs a hand.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.values import value

ALARM_AFTER: Final = 10
"""Attempts in a row that failed, before an alarm is raised for what usually passes by itself."""


class Answer(enum.Enum):
    """Answer to one attempt: LOOKUP of the owner, and END_TXN_ON_PARTITION or _ON_SUBSCRIPTION there."""

    OK = "ok"
    GONE = "there is no such topic or subscription"
    SETTLED_OTHERWISE = "the participant had ended it the other way before"
    NOT_READY = "the broker does not serve this topic at the moment"
    LOOKUP_FAILED = "the owner of the topic could not be looked up"
    BEING_MOVED = "the topic is being moved"
    BROKER_FAILED = "the broker failed"
    BROKEN = "the connection ended before the answer"
    SILENT = "the broker did not answer in time"
    NO_CONNECTION = "no connection to the broker"
    NOT_SUPERUSER = "the broker does not let this role end transactions"
    NOT_ALLOWED = "the broker does not allow it"
    UNAUTHORIZED = "the broker does not accept this role or its credentials"
    OTHER = "the broker refused"

    __hash__ = object.__hash__
    """Each end is looked up by its answer; what Enum has for that is a Python call."""


@value
class Rule:
    """Rule for what to do after an answer.

    `done`: nothing can be told any more. `first_pause_ms`: before the next attempt; it doubles with each failure in a row up
    to `longest_pause_ms`. `alarm_after`: attempts in a row after which an alarm is raised, 1 for what does not pass by
    itself, 0 for no alarm. `remedy`: what the alarm says to do.
    """

    done: bool = False
    first_pause_ms: int = 1000
    longest_pause_ms: int = 5000
    alarm_after: int = ALARM_AFTER
    remedy: str = "look at the log of the broker"


RULES: Final[Mapping[Answer, Rule]] = MappingProxyType(
    {
        Answer.OK: Rule(done=True, alarm_after=0),
        # It holds nothing of the transaction. Stock brokers answer "ok" here.
        Answer.GONE: Rule(done=True, alarm_after=0),
        Answer.SETTLED_OTHERWISE: Rule(
            done=True, alarm_after=1, remedy="a low watermark passed the transaction by: look who else ends transactions there"
        ),
        # Not faster: ends repeated during unloads make the replay of stock 4.2.4 spin (apache/pulsar#26368).
        Answer.NOT_READY: Rule(),
        Answer.LOOKUP_FAILED: Rule(),
        Answer.BEING_MOVED: Rule(),
        Answer.BROKER_FAILED: Rule(),
        Answer.BROKEN: Rule(),
        Answer.SILENT: Rule(),
        # The lookup goes on to name a dead broker until its session has expired, so this can take half a minute.
        Answer.NO_CONNECTION: Rule(
            first_pause_ms=200, longest_pause_ms=2000, remedy="check that the brokers of the cluster run and can be reached"
        ),
        Answer.NOT_SUPERUSER: Rule(
            first_pause_ms=5000,
            longest_pause_ms=30_000,
            alarm_after=1,
            remedy="put the coordinator's role into superUserRoles of every broker",
        ),
        Answer.NOT_ALLOWED: Rule(
            first_pause_ms=5000,
            longest_pause_ms=30_000,
            alarm_after=1,
            remedy="set transactionCoordinatorEnabled=true on every broker, and on those of pulsar-txn"
            " externalTransactionCoordinatorsEnabled=true",
        ),
        Answer.UNAUTHORIZED: Rule(
            first_pause_ms=5000,
            longest_pause_ms=30_000,
            alarm_after=1,
            remedy="check the coordinator's credentials, and superUserRoles of every broker",
        ),
        Answer.OTHER: Rule(alarm_after=1),
    }
)

_OF_CODE: Final[Mapping[ServerError, Answer]] = MappingProxyType(
    {
        ServerError.UnknownError: Answer.BROKER_FAILED,
        ServerError.MetadataError: Answer.BEING_MOVED,
        ServerError.PersistenceError: Answer.BEING_MOVED,
        ServerError.ServiceNotReady: Answer.NOT_READY,
        ServerError.TooManyRequests: Answer.NOT_READY,
        ServerError.TopicNotFound: Answer.GONE,
        ServerError.SubscriptionNotFound: Answer.GONE,
        ServerError.InvalidTxnStatus: Answer.SETTLED_OTHERWISE,
        ServerError.TransactionNotFound: Answer.NOT_SUPERUSER,
        ServerError.NotAllowedError: Answer.NOT_ALLOWED,
        ServerError.AuthenticationError: Answer.UNAUTHORIZED,
        ServerError.AuthorizationError: Answer.UNAUTHORIZED,
    }
)
_OF_LOOKUP: Final = frozenset({Answer.BROKER_FAILED, Answer.BEING_MOVED, Answer.NOT_READY, Answer.GONE})


def answer_of(code: ServerError | None, *, at_lookup: bool = False) -> Answer:
    """Return what an error code in an answer means; None for an answer without an error."""
    if code is None:
        return Answer.OK
    answer = _OF_CODE.get(code, Answer.OTHER)
    return Answer.LOOKUP_FAILED if at_lookup and answer in _OF_LOOKUP else answer


def pause_ms(answer: Answer, failures: int) -> int:
    """Return how long to wait after the `failures`-th attempt in a row that failed, the last of them with `answer`."""
    rule = RULES[answer]
    return min(rule.first_pause_ms << min(max(failures - 1, 0), 8), rule.longest_pause_ms)


def raises_alarm(answer: Answer, failures: int) -> bool:
    """True if the `failures`-th failure in a row raises an alarm: the first one, and then each time the count doubles."""
    first = RULES[answer].alarm_after
    if not first or failures < first:
        return False
    times, rest = divmod(failures, first)
    return not rest and times & (times - 1) == 0
