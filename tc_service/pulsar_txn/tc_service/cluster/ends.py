"""The driver of ends: tells the participants in one cluster the outcome of transactions, until each of them holds it.

A `TopicQueue` says which end of a topic may be tried now, and `Repeats` which one is told once more; both are without IO.
`attempts` makes one attempt and says what its answer means. The driver runs them on an event loop. It never gives up and never
changes an outcome. An end that cannot be told for long is logged as an error and counted.

While a topic takes ends, several are under way to it side by side. After a failure one of them alone is tried, after a pause;
the others wait for what comes of it. So a topic or broker that does not answer costs one attempt at a time, however many ends
wait there, and every other topic goes on.

A broker refuses a late send of an ended transaction by the low watermark of its end. It keeps that mark in memory only: after
the topic was moved, a late send is stored, and holds the topic back for everybody. The same end once more, after the longest
time that a client tries to send, cures that.

Nothing of a transaction can be late when its client has an answer to every copy of everything that it sent in it, and says so
with the commit. Such an end is not repeated, if its topic was quiet: nothing failed there, and no other broker took it over,
from one delay before the end to one delay after it.

A repeat carries no low watermark. Its own would abort what is below it in the same lane: a transaction that was committed long
ago, which a late message has opened again, would be hidden from every later reader.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar

from pulsar_txn.client.inside import Runtime
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.wire.ids import Participant, TxnId
from pulsar_txn.wire.values import value

from .attempts import RULES, TAKEN_BY_OWNER, Answer, AttemptResult, BrokerAttempts, pause_ms, raises_alarm

logger = logging.getLogger("pulsar_txn.tc_service.ends")

T = TypeVar("T")

NO_WATERMARK: Final = -1
_AT_ONCE: Final = 256
"""After a restart very many may be due: more would hold the loop."""
_LOOKED_AT_ONCE: Final = 4096
_MOST_TOPICS: Final = 10_000
_TOPIC_WIDTH: Final = 64
_MOST_ANSWERED: Final = 20_000
_LEAST_PAUSE_MS: Final = 20
"""Between two looks at what is to be repeated: under load something is due in each millisecond."""


class TopicQueue(Generic[T]):
    """The ends of one topic. `waiting`: those that are not under way. `failures`: attempts in a row that failed."""

    __slots__ = ("_in_flight", "_next_try_ms", "_width", "failures", "waiting")

    def __init__(self, width: int) -> None:
        self._width = width
        self.waiting: deque[T] = deque()
        self._in_flight = 0
        self._next_try_ms = 0
        self.failures = 0

    def __len__(self) -> int:
        """Ends that wait or are under way."""
        return len(self.waiting) + self._in_flight

    def add(self, end: T) -> None:
        """Another one, tried after those before it."""
        self.waiting.append(end)

    def start(self, end: T) -> bool:
        """Add an end as `add` does. True if it may be tried at once: then it is under way."""
        if self.waiting or self.failures or self._in_flight >= self._width:
            self.waiting.append(end)
            return False
        self._in_flight += 1
        return True

    def take(self, now_ms: int) -> list[T]:
        """Ends to try now; each is reported to `answered`."""
        width = 1 if self.failures else self._width
        if not self.waiting or now_ms < self._next_try_ms:
            return []
        count = min(len(self.waiting), width - self._in_flight)
        found = [self.waiting.popleft() for _ in range(count)]
        self._in_flight += len(found)
        return found

    @property
    def next_try_ms(self) -> int | None:
        """Time of the next attempt, if nothing is under way and something waits; None otherwise."""
        return self._next_try_ms if self.waiting and not self._in_flight else None

    def answered(self, end: T, answer: Answer, now_ms: int) -> bool:
        """Note what came of an attempt; True if an alarm is due. An end that failed is the next one to be tried."""
        self._in_flight -= 1
        if answer is Answer.OK:
            self.failures = self._next_try_ms = 0
            return False
        if RULES[answer].done:
            self.failures = 0
            self._next_try_ms = 0
            return raises_alarm(answer, 1)
        self.waiting.appendleft(end)
        if now_ms < self._next_try_ms:  # begun beside one that has failed: the same failure
            return False
        self.failures += 1
        self._next_try_ms = now_ms + pause_ms(answer, self.failures)
        return raises_alarm(answer, self.failures)


class Repeats:
    """The ends of the last `delay_ms`, in their order. Of more than `most` the oldest are due early.

    `spared`: ends that were not repeated, because nothing can have come late.
    """

    __slots__ = ("_delay_ms", "_ends", "_last_failure_ms", "_most", "_none_before_ms", "spared")

    def __init__(self, delay_ms: int, most: int = 200_000) -> None:
        self._delay_ms = delay_ms
        self._most = most
        self._ends: deque[tuple[int, TellParticipant, bool]] = deque()
        self._last_failure_ms: dict[str, int] = {}
        """Time of the last failure or lookup of each topic, the newest at the end."""
        self._none_before_ms = -1
        """Up to here any topic may have failed: its last failure is forgotten."""
        self.spared = 0

    def __len__(self) -> int:
        """Ends that are to be told once more."""
        return len(self._ends)

    def note_failure(self, topic: str, now_ms: int) -> None:
        """An attempt has failed there, or its owner was looked up."""
        self._last_failure_ms.pop(topic, None)
        self._last_failure_ms[topic] = now_ms
        if len(self._last_failure_ms) > _MOST_TOPICS:
            oldest = next(iter(self._last_failure_ms))
            self._none_before_ms = self._last_failure_ms.pop(oldest)

    def add(self, effect: TellParticipant, now_ms: int, *, all_answered: bool = False) -> None:
        """A participant holds this outcome since now. On a subscription as well: brokers store late acknowledgements.

        `all_answered`: nothing of the transaction can come late.
        """
        ends, due_ms = self._ends, now_ms + self._delay_ms
        if ends and ends[-1][0] > due_ms:
            due_ms = ends[-1][0]
        again = TellParticipant(effect.txn_id, effect.participant, effect.action, NO_WATERMARK)
        ends.append((due_ms, again, all_answered))

    def add_due(self, effect: TellParticipant, due_ms: int) -> None:
        """The same, due at another time; not before those that are here already."""
        again = TellParticipant(effect.txn_id, effect.participant, effect.action, NO_WATERMARK)
        self._ends.append((max(due_ms, self._ends[-1][0] if self._ends else 0), again, False))

    def due(self, now_ms: int) -> list[TellParticipant]:
        """Repeats whose time has come, not too many at once; each is given once."""
        found: list[TellParticipant] = []
        ends = self._ends
        for _ in range(_LOOKED_AT_ONCE):
            if len(found) == _AT_ONCE or not ends or (ends[0][0] > now_ms and len(ends) <= self._most):
                break
            due_ms, effect, all_answered = ends.popleft()
            if all_answered and self._was_quiet(effect.participant.topic, due_ms - 2 * self._delay_ms):
                self.spared += 1
            else:
                found.append(effect)
        return found

    def _was_quiet(self, topic: str, since_ms: int) -> bool:
        return max(self._last_failure_ms.get(topic, -1), self._none_before_ms) < since_ms

    @property
    def next_ms(self) -> int | None:
        """Time at which the first end is due; None when nothing waits."""
        return self._ends[0][0] if self._ends else None


class _End:
    """End to tell one participant. `told` None: the participant holds the outcome already, and is told once more."""

    __slots__ = ("attempts", "effect", "last", "since_ms", "told")

    def __init__(self, effect: TellParticipant, told: Told | None, now_ms: int) -> None:
        self.effect = effect
        self.told = told
        self.since_ms = now_ms
        self.attempts = 0
        self.last: AttemptResult | None = None


@value
class WaitingEnd:
    """A participant that does not hold its outcome yet. `answer` and `detail`: what the last attempt gave; empty before."""

    waits_ms: int
    attempts: int
    answer: str = ""
    detail: str = ""


Told: TypeAlias = Callable[[TellParticipant, int], None]
"""Called with an end that its participant holds, and how many attempts that took."""


class EndDriver:
    """Implements the broker's protocol `Participants` for the participants of one cluster.

    The topics of the effects are full partition names, as the cluster's brokers know them. Everything runs on the event
    loop on which `tell` is called. `width`: ends under way at once to one topic that takes them. `repeat_after_seconds`: each
    end is told once more after this time, None for never; see `Repeats`. It should exceed every client's send timeout.
    """

    def __init__(
        self,
        cluster: str,
        attempts: BrokerAttempts,
        runtime: Runtime,
        *,
        width: int = _TOPIC_WIDTH,
        repeat_after_seconds: float | None = None,
    ) -> None:
        self.ended = 0
        """Participants that hold their outcome."""
        self.failed_attempts = 0
        self.alarms = 0
        """Times that a participant could not be told for long, or because the cluster must be configured first."""
        self.repeated = 0
        """Ends that were told once more."""
        self.answers: Counter[Answer] = Counter()
        """Attempts by their answer."""
        self._cluster = cluster
        self._attempts = attempts
        self._runtime = runtime
        self._width = width
        self._queues: dict[str, TopicQueue[_End]] = {}
        self._untold: dict[tuple[TxnId, str, str | None], _End] = {}
        """By transaction, topic and subscription."""
        self._timers: dict[str, asyncio.Handle] = {}
        self._repeats = None if repeat_after_seconds is None else Repeats(int(repeat_after_seconds * 1000))
        self._repeating: asyncio.Handle | None = None
        self._all_answered: dict[TxnId, None] = {}
        self._closed = False

    @property
    def waiting(self) -> int:
        """Ends that are not told yet, or not once more."""
        return sum(map(len, self._queues.values()))

    @property
    def spared(self) -> int:
        """Ends that were not told once more, because nothing of their transaction can come late."""
        return 0 if self._repeats is None else self._repeats.spared

    @property
    def to_repeat(self) -> int:
        """Ends that are told, and will be told once more."""
        return 0 if self._repeats is None else len(self._repeats)

    def failing_topics(self) -> dict[str, int]:
        """Topics whose last attempt failed, with the number of failures in a row."""
        return {topic: queue.failures for topic, queue in self._queues.items() if queue.failures}

    @property
    def oldest_ms(self) -> int:
        """Age of the end that has waited longest; 0 when none waits."""
        return next((self._now_ms() - end.since_ms for end in self._untold.values()), 0)

    def waiting_end(self, txn_id: TxnId, participant: Participant) -> WaitingEnd | None:
        """The last attempt at a participant that does not hold its outcome yet; None when it does, or nothing was decided."""
        end = self._untold.get((txn_id, participant.topic, participant.subscription))
        if end is None:
            return None
        waits_ms = self._now_ms() - end.since_ms
        if end.last is None:
            return WaitingEnd(waits_ms, end.attempts)
        return WaitingEnd(waits_ms, end.attempts, end.last.answer.value, end.last.detail)

    def repeat(self, effect: TellParticipant, seconds: float) -> None:
        """Tell once more what a process before this one has told, after so many seconds."""
        if self._repeats is not None and not self._closed:
            self._repeats.add_due(effect, self._now_ms() + int(seconds * 1000))
            self._repeat_later(self._repeats)

    def all_answered(self, txn_id: TxnId) -> None:
        """The client of a transaction says that nothing of it can come late. Told before its ends; the oldest are forgotten."""
        self._all_answered[txn_id] = None
        if len(self._all_answered) > _MOST_ANSWERED:
            del self._all_answered[next(iter(self._all_answered))]

    def tell(self, effect: TellParticipant, told: Told) -> None:
        """Tell one participant until it holds the outcome durably, then call `told` once. Never raises."""
        if self._closed:
            return
        now_ms, participant = self._now_ms(), effect.participant
        end = _End(effect, told, now_ms)
        self._untold[effect.txn_id, participant.topic, participant.subscription] = end
        self._enqueue(end, now_ms)

    def _enqueue(self, end: _End, now_ms: int) -> None:
        topic = end.effect.participant.topic
        queue = self._queues.get(topic)
        if queue is None:
            queue = self._queues[topic] = TopicQueue(self._width)
        if queue.start(end):
            self._try(queue, end)
        else:
            self._try_waiting(topic, queue, now_ms)

    async def close(self) -> None:
        """Try nothing more. What is not told is told after the next start: it is in the coordinator's log."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._repeating is not None:
            self._repeating.cancel()
        await self._attempts.close()

    def _now_ms(self) -> int:
        return int(self._runtime.monotonic() * 1000)

    def _try_waiting(self, topic: str, queue: TopicQueue[_End], now_ms: int) -> None:
        for end in queue.take(now_ms):
            self._try(queue, end)
        next_try_ms = queue.next_try_ms
        if next_try_ms is not None and topic not in self._timers:
            seconds = max(next_try_ms - now_ms, 1) / 1000
            self._timers[topic] = self._runtime.call_later(seconds, self._pause_over, topic)

    def _pause_over(self, topic: str) -> None:
        del self._timers[topic]
        queue = self._queues.get(topic)
        if queue is not None:
            self._try_waiting(topic, queue, self._now_ms())

    def _try(self, queue: TopicQueue[_End], end: _End) -> None:
        end.attempts += 1
        self._attempts.begin(end.effect, partial(self._answered, queue, end))

    def _answered(self, queue: TopicQueue[_End], end: _End, result: AttemptResult) -> None:
        if self._closed:
            return
        end.last, answer, now_ms = result, result.answer, self._now_ms()
        topic = end.effect.participant.topic
        if result is not TAKEN_BY_OWNER and self._repeats is not None:
            self._repeats.note_failure(topic, now_ms)
        self.answers[answer] += 1
        alarm = queue.answered(end, answer, now_ms)
        if answer is Answer.OK or RULES[answer].done:
            if not queue:
                del self._queues[topic]
            self._done(end, now_ms)
        else:
            self.failed_attempts += 1
        if answer is not Answer.OK:
            self._report(end.effect, queue, result, alarm=alarm)
        if queue.waiting:
            self._try_waiting(topic, queue, now_ms)

    def _done(self, end: _End, now_ms: int) -> None:
        if end.told is None:
            self.repeated += 1
            return
        effect = end.effect
        txn_id, participant = effect.txn_id, effect.participant
        self.ended += 1
        self._untold.pop((txn_id, participant.topic, participant.subscription), None)
        if self._repeats is not None:
            self._repeats.add(effect, now_ms, all_answered=txn_id in self._all_answered)
            if self._repeating is None:
                self._repeat_later(self._repeats)
        try:  # one coordinator's fault must not take the connection from the others
            end.told(effect, end.attempts)
        except Exception:
            logger.exception("the end of %s was told, and its coordinator failed", txn_id)

    def _repeat_later(self, repeats: Repeats) -> None:
        if self._repeating is None and repeats.next_ms is not None and not self._closed:
            seconds = max(repeats.next_ms - self._now_ms(), _LEAST_PAUSE_MS) / 1000
            self._repeating = self._runtime.call_later(seconds, self._repeat, repeats)

    def _repeat(self, repeats: Repeats) -> None:
        self._repeating = None
        now_ms = self._now_ms()
        for effect in repeats.due(now_ms):
            self._enqueue(_End(effect, None, now_ms), now_ms)
        self._repeat_later(repeats)

    def _report(self, effect: TellParticipant, queue: TopicQueue[_End], result: AttemptResult, *, alarm: bool) -> None:
        what = f"{effect.action.name} of {effect.txn_id} at {_name(effect)} in the cluster {self._cluster}"
        if not alarm:
            logger.debug("%s: %s: %s", what, result.answer.value, result.detail)
            return
        self.alarms += 1
        logger.error(
            "%s: %s (%s); %s. Failed attempts in a row: %d. Ends that wait there and are tried again: %d",
            what,
            result.answer.value,
            result.detail,
            RULES[result.answer].remedy,
            queue.failures,
            len(queue),
        )


def _name(effect: TellParticipant) -> str:
    participant = effect.participant
    return participant.topic if participant.subscription is None else f"{participant.topic}, {participant.subscription}"
