"""One attempt to end a transaction at a participant: find the owner of its topic, tell it, and say what its answer means.

A table says for each answer what comes next (`RULES`). A participant is told until it answers "ok", however long that takes,
and always the same outcome. What differs is how long to wait before the next attempt, and whether somebody must be told that
the cluster needs a hand. Further attempts are made by `ends`.

A broker that does not own a topic refuses every end on it (ServiceNotReady) and changes nothing. So the broker that took the
last end is told the next one without a lookup, as long as their connection lives. Any other answer ends that, and if it was
a refusal, the owner is looked up at once: when another broker has the topic now, the same attempt goes on there.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from pulsar_txn.client.errors import ConnectionLost, OperationTimeout, PulsarError
from pulsar_txn.client.inside import Connection
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.values import value

from .brokers import Brokers, LookupFailed

ALARM_AFTER: Final = 10
"""Attempts in a row that failed, before an alarm is raised for what usually passes by itself."""
ATTEMPT_SECONDS: Final = 5.0
_MOST_OWNERS: Final = 10_000


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


_ANSWER_OF_CODE: Final[Mapping[ServerError, Answer]] = MappingProxyType(
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


_FAILED_LOOKUPS: Final = frozenset({Answer.BROKER_FAILED, Answer.BEING_MOVED, Answer.NOT_READY, Answer.GONE})


def answer_of(code: ServerError | None, *, at_lookup: bool = False) -> Answer:
    """Translate the error code of a broker's answer; None is an answer without an error."""
    if code is None:
        return Answer.OK
    answer = _ANSWER_OF_CODE.get(code, Answer.OTHER)
    return Answer.LOOKUP_FAILED if at_lookup and answer in _FAILED_LOOKUPS else answer


def pause_ms(answer: Answer, failures: int) -> int:
    """Pause (milliseconds) after the `failures`-th attempt in a row that failed, the last of them with `answer`."""
    rule = RULES[answer]
    return min(rule.first_pause_ms << min(max(failures - 1, 0), 8), rule.longest_pause_ms)


def raises_alarm(answer: Answer, failures: int) -> bool:
    """True if the `failures`-th failure in a row raises an alarm: the first one, and then each time the count doubles."""
    first = RULES[answer].alarm_after
    if not first or failures < first:
        return False
    times, rest = divmod(failures, first)
    return not rest and times & (times - 1) == 0


@value
class AttemptResult:
    """Result of one attempt. `detail`: the broker's own words."""

    answer: Answer
    detail: str = ""


_ROLE_REFUSED: Final = frozenset({Answer.NOT_SUPERUSER, Answer.UNAUTHORIZED})


TAKEN_BY_OWNER: Final = AttemptResult(Answer.OK)
"""The broker that took the last end on the topic has taken this one."""


_TAKEN_AFTER_LOOKUP: Final = AttemptResult(Answer.OK, "after a lookup")


class _Attempt:
    """Attempt that is under way; the `Waiter` of its request. `refusal`: of the broker that was told without a lookup."""

    __slots__ = ("_attempts", "connection", "effect", "looked_up", "on_result", "refusal")

    def __init__(
        self,
        attempts: BrokerAttempts,
        effect: TellParticipant,
        on_result: Callable[[AttemptResult], None],
    ) -> None:
        self._attempts = attempts
        self.effect = effect
        self.on_result = on_result
        self.connection: Connection
        self.looked_up = False
        self.refusal: AttemptResult | None = None

    def done(self) -> bool:
        """See `Waiter`: it waits until it is told."""
        return False

    def set_result(self, _body: Any, /) -> None:
        """The broker has taken the end."""
        self._attempts.told(self, _TAKEN_AFTER_LOOKUP if self.looked_up else TAKEN_BY_OWNER)

    def set_exception(self, error: PulsarError, /) -> None:
        """Tell that it has not, or that nobody knows."""
        self._attempts.told(self, _failed(error))


class _Slots:
    """The ends under way to one broker, and those that wait for them."""

    __slots__ = ("in_flight", "waiting")

    def __init__(self) -> None:
        self.in_flight = 0
        self.waiting: deque[_Attempt] = deque()


class BrokerAttempts:
    """Attempts over the wire. At most `per_broker` ends are under way to one broker.

    An end costs a lookup only when the owner is not known; otherwise it is a request and a call for its answer, with no task.
    """

    def __init__(self, brokers: Brokers, *, per_broker: int = 256, seconds: float = ATTEMPT_SECONDS) -> None:
        self._brokers = brokers
        self._per_broker = per_broker
        self._seconds = seconds
        self._slots: dict[str, _Slots] = {}
        self._owners: dict[str, Connection] = {}
        """Broker that took the last end on a topic."""
        self._lookups: set[asyncio.Task[None]] = set()

    async def attempt(self, effect: TellParticipant) -> AttemptResult:
        """One attempt; never raises, except when cancelled."""
        on_result: asyncio.Future[AttemptResult] = asyncio.get_running_loop().create_future()
        self.begin(effect, lambda result: None if on_result.done() else on_result.set_result(result))
        return await on_result

    def begin(self, effect: TellParticipant, on_result: Callable[[AttemptResult], None]) -> None:
        """Begin one attempt; `on_result` is called once, in a later turn of the loop, with what came of it. Never raises."""
        attempt = _Attempt(self, effect, on_result)
        known = self._owners.get(effect.participant.topic)
        if known is None or known.closed:
            self._look_up(attempt)
        else:
            self._tell(known, attempt)

    async def close(self) -> None:
        """Look nothing up any more; what is under way fails when the connections are closed."""
        lookups = list(self._lookups)
        for lookup in lookups:
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)

    def _look_up(self, attempt: _Attempt) -> None:
        lookup = asyncio.get_running_loop().create_task(self._go_to_owner(attempt))
        self._lookups.add(lookup)
        lookup.add_done_callback(self._lookups.discard)

    async def _go_to_owner(self, attempt: _Attempt) -> None:
        refusal, refused_by = attempt.refusal, attempt.connection if attempt.refusal is not None else None
        owner = await self._owner(attempt.effect.participant.topic)
        if isinstance(owner, AttemptResult):
            self._end(attempt, owner)
        elif refusal is not None and owner is refused_by:  # the topic is being moved, and wants its pause
            self._end(attempt, refusal)
        else:
            attempt.looked_up = True
            self._tell(owner, attempt)

    async def _owner(self, topic: str) -> Connection | AttemptResult:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._brokers.owner(topic)
        except LookupFailed as error:
            return _failed(error.__cause__, at_lookup=True)
        except TimeoutError:
            return AttemptResult(Answer.NO_CONNECTION, f"the owner was not found within {self._seconds:g} s")

    def _tell(self, connection: Connection, attempt: _Attempt) -> None:
        attempt.connection = connection
        slots = self._slots.get(connection.endpoint)
        if slots is None:
            slots = self._slots[connection.endpoint] = _Slots()
        if slots.in_flight < self._per_broker:
            slots.in_flight += 1
            self._brokers.end(attempt, connection, attempt.effect, self._seconds)
        else:
            slots.waiting.append(attempt)

    def told(self, attempt: _Attempt, result: AttemptResult) -> None:
        """The broker has answered, or will not."""
        slots = self._slots[attempt.connection.endpoint]
        slots.in_flight -= 1
        if slots.waiting:
            asyncio.get_running_loop().call_soon(self._tell_next, slots)
        topic, taken = attempt.effect.participant.topic, result.answer is Answer.OK
        if not taken or self._owners.get(topic) is not attempt.connection:
            self._remember_owner(topic, attempt.connection, taken=taken)
        if taken:
            attempt.on_result(result)
        elif attempt.looked_up or result.answer is not Answer.NOT_READY:
            self._end(attempt, result)
        else:
            attempt.refusal = result
            self._look_up(attempt)

    def _tell_next(self, slots: _Slots) -> None:
        while slots.waiting and slots.in_flight < self._per_broker:
            attempt = slots.waiting.popleft()
            self._tell(attempt.connection, attempt)

    def _remember_owner(self, topic: str, connection: Connection, *, taken: bool) -> None:
        """Remember who took an end, and forget whoever did not."""
        if not taken:
            self._owners.pop(topic, None)
        else:
            self._owners[topic] = connection
            if len(self._owners) > _MOST_OWNERS:
                del self._owners[next(iter(self._owners))]

    def _end(self, attempt: _Attempt, result: AttemptResult) -> None:
        if result.answer in _ROLE_REFUSED:
            self._brokers.show_credentials_again()
        attempt.on_result(result)


def _failed(error: BaseException | None, *, at_lookup: bool = False) -> AttemptResult:
    detail = str(error)
    match error:
        case PulsarError(code=code) if code is not None:
            return AttemptResult(answer_of(code, at_lookup=at_lookup), detail)
        case ConnectionLost():
            return AttemptResult(Answer.NO_CONNECTION if at_lookup else Answer.BROKEN, detail)
        case OperationTimeout():
            return AttemptResult(Answer.NO_CONNECTION if at_lookup else Answer.SILENT, detail)
        case _:
            return AttemptResult(Answer.LOOKUP_FAILED if at_lookup else Answer.OTHER, detail)
