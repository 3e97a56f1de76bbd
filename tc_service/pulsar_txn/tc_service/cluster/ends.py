"""The driver of ends: tells the participants in one cluster the outcome of transactions, until each of them holds it.

`rules` says what an answer means, `lines` which end is tried when, and `attempts` makes one attempt. This module runs them on
an event loop. It never gives up and never changes an outcome. What does not go on is logged as an error and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from pulsar_txn.client.inside import Runtime
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.wire.ids import Participant, TxnId
from pulsar_txn.wire.values import value

from .attempts import TAKEN, BrokerAttempts, Outcome
from .lines import Line
from .repeats import Repeats
from .rules import RULES, Answer

logger = logging.getLogger("pulsar_txn.tc_service.ends")

_TOPIC_WIDTH: Final = 64
_MOST_ANSWERED: Final = 20_000
_LEAST_PAUSE_MS: Final = 20
"""Between two looks at what is to be repeated: under load something is due in each millisecond."""


class _End:
    """One participant to be told. `told` None: it holds the outcome already, and is told once more."""

    __slots__ = ("attempts", "effect", "last", "since_ms", "told")

    def __init__(self, effect: TellParticipant, told: Callable[[TxnId], None] | None, now_ms: int) -> None:
        self.effect = effect
        self.told = told
        self.since_ms = now_ms
        self.attempts = 0
        self.last: Outcome | None = None


@value
class WaitingEnd:
    """A participant that does not hold its outcome yet. `answer` and `detail`: what the last attempt gave; empty before."""

    waits_ms: int
    attempts: int
    answer: str = ""
    detail: str = ""


def _nobody(_effect: TellParticipant, _attempts: int) -> None:
    """Do nothing: nobody watches."""


class EndDriver:
    """Implements the broker's protocol `Participants` for the participants of one cluster.

    The topics of the effects are full partition names, as the cluster's brokers know them. Everything runs on the event
    loop on which `tell` is called. `width`: ends under way at once to one topic that takes them. `repeat_after_seconds`: each
    end is told once more after this time, None for never; see `repeats`. It should exceed every client's send timeout.
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
        """What attempts gave."""
        self.watch: Callable[[TellParticipant, int], None] = _nobody
        """Called with each end that is told, and how many attempts that took."""
        self._cluster = cluster
        self._attempts = attempts
        self._runtime = runtime
        self._width = width
        self._lines: dict[str, Line[_End]] = {}
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
        return sum(map(len, self._lines.values()))

    @property
    def spared(self) -> int:
        """Ends that were not told once more, because nothing of their transaction can come late."""
        return 0 if self._repeats is None else self._repeats.spared

    @property
    def to_repeat(self) -> int:
        """Ends that are told, and will be told once more."""
        return 0 if self._repeats is None else len(self._repeats)

    def held_back(self) -> dict[str, int]:
        """Topics whose last attempt failed, with the number of failures in a row."""
        return {topic: line.failures for topic, line in self._lines.items() if line.failures}

    @property
    def oldest_ms(self) -> int:
        """For how long the end waits that was asked for first; 0 when none does."""
        return next((self._now_ms() - end.since_ms for end in self._untold.values()), 0)

    def waiting_end(self, txn_id: TxnId, participant: Participant) -> WaitingEnd | None:
        """Return why a participant does not hold its outcome yet; None when it does, or nothing was decided."""
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

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        """Tell one participant until it holds the outcome durably, then call `told(txn_id)` once. Never raises."""
        if self._closed:
            return
        now_ms, participant = self._now_ms(), effect.participant
        end = _End(effect, told, now_ms)
        self._untold[effect.txn_id, participant.topic, participant.subscription] = end
        self._add(end, now_ms)

    def _add(self, end: _End, now_ms: int) -> None:
        topic = end.effect.participant.topic
        line = self._lines.get(topic)
        if line is None:
            line = self._lines[topic] = Line(self._width)
        if line.start(end):
            self._try(line, end)
        else:
            self._go_on(topic, line, now_ms)

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

    def _go_on(self, topic: str, line: Line[_End], now_ms: int) -> None:
        for end in line.take(now_ms):
            self._try(line, end)
        rests_until_ms = line.rests_until_ms
        if rests_until_ms is not None and topic not in self._timers:
            seconds = max(rests_until_ms - now_ms, 1) / 1000
            self._timers[topic] = self._runtime.call_later(seconds, self._rested, topic)

    def _rested(self, topic: str) -> None:
        del self._timers[topic]
        line = self._lines.get(topic)
        if line is not None:
            self._go_on(topic, line, self._now_ms())

    def _try(self, line: Line[_End], end: _End) -> None:
        end.attempts += 1
        self._attempts.begin(end.effect, partial(self._answered, line, end))

    def _answered(self, line: Line[_End], end: _End, outcome: Outcome) -> None:
        if self._closed:
            return
        end.last, answer, now_ms = outcome, outcome.answer, self._now_ms()
        topic = end.effect.participant.topic
        if outcome is not TAKEN and self._repeats is not None:
            self._repeats.troubled(topic, now_ms)
        self.answers[answer] += 1
        alarm = line.answered(end, answer, now_ms)
        if answer is Answer.OK or RULES[answer].done:
            if not line:
                del self._lines[topic]
            self._done(end, now_ms)
        else:
            self.failed_attempts += 1
        if answer is not Answer.OK:
            self._report(end.effect, line, outcome, alarm=alarm)
        if line.waiting:
            self._go_on(topic, line, now_ms)

    def _done(self, end: _End, now_ms: int) -> None:
        if end.told is None:
            self.repeated += 1
            return
        effect = end.effect
        txn_id, participant = effect.txn_id, effect.participant
        self.ended += 1
        self._untold.pop((txn_id, participant.topic, participant.subscription), None)
        self.watch(effect, end.attempts)
        if self._repeats is not None:
            self._repeats.add(effect, now_ms, all_answered=txn_id in self._all_answered)
            if self._repeating is None:
                self._repeat_later(self._repeats)
        try:  # one coordinator's fault must not take the connection from the others
            end.told(txn_id)
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
            self._add(_End(effect, None, now_ms), now_ms)
        self._repeat_later(repeats)

    def _report(self, effect: TellParticipant, line: Line[_End], outcome: Outcome, *, alarm: bool) -> None:
        what = f"{effect.action.name} of {effect.txn_id} at {_name(effect)} in the cluster {self._cluster}"
        if not alarm:
            logger.debug("%s: %s: %s", what, outcome.answer.value, outcome.detail)
            return
        self.alarms += 1
        logger.error(
            "%s: %s (%s); %s. Failed attempts in a row: %d. Ends that wait there and are tried again: %d",
            what,
            outcome.answer.value,
            outcome.detail,
            RULES[outcome.answer].remedy,
            line.failures,
            len(line),
        )


def _name(effect: TellParticipant) -> str:
    participant = effect.participant
    return participant.topic if participant.subscription is None else f"{participant.topic}, {participant.subscription}"
