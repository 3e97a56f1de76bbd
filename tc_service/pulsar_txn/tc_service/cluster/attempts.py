"""One attempt to end a transaction at a participant: find the owner of its topic, tell it, and say what came of it.

A broker that does not own a topic refuses every end on it (ServiceNotReady) and changes nothing. So the broker that took the
last end is told the next one without a lookup, as long as their connection lives. Any other answer ends that, and if it was
a refusal, the owner is looked up at once: when another broker has the topic now, the same attempt goes on there.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from pulsar_txn.client.errors import ConnectionLost, OperationTimeout, PulsarError
from pulsar_txn.client.inside import Connection
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.wire.values import value

from .brokers import Brokers, LookupFailed
from .rules import Answer, answer_of

ATTEMPT_SECONDS: Final = 5.0
_MOST_OWNERS: Final = 10_000


@value
class Outcome:
    """What came of one attempt. `detail`: the broker's own words."""

    answer: Answer
    detail: str = ""


class Attempts(Protocol):
    """Makes attempts at the brokers of one cluster."""

    async def attempt(self, effect: TellParticipant) -> Outcome:
        """One attempt; never raises, except when cancelled."""
        ...


class BrokerAttempts:
    """Attempts over the wire. At most `per_broker` ends are under way to one broker."""

    def __init__(self, brokers: Brokers, *, per_broker: int = 256, seconds: float = ATTEMPT_SECONDS) -> None:
        self._brokers = brokers
        self._per_broker = per_broker
        self._seconds = seconds
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._owners: dict[str, Connection] = {}
        """Where the last end on a topic was taken."""

    async def attempt(self, effect: TellParticipant) -> Outcome:
        """See `Attempts.attempt`."""
        outcome = await self._attempt(effect)
        if outcome.answer in _ROLE_REFUSED:
            self._brokers.show_credentials_again()
        return outcome

    async def _attempt(self, effect: TellParticipant) -> Outcome:
        topic = effect.participant.topic
        known, refusal = self._owners.get(topic), None
        if known is not None and not known.closed:
            outcome = await self._tell(known, effect)
            if outcome.answer is not Answer.NOT_READY:
                return outcome
            refusal = outcome
        owner = await self._look_up(topic)
        if isinstance(owner, Outcome):
            return owner
        if refusal is not None and owner is known:  # the topic is being moved, and wants its pause
            return refusal
        return await self._tell(owner, effect)

    async def _look_up(self, topic: str) -> Connection | Outcome:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._brokers.owner(topic)
        except LookupFailed as error:
            return _failed(error.__cause__, at_lookup=True)
        except TimeoutError:
            return Outcome(Answer.NO_CONNECTION, f"the owner was not found within {self._seconds:g} s")

    async def _tell(self, connection: Connection, effect: TellParticipant) -> Outcome:
        slots = self._slots.get(connection.endpoint)
        if slots is None:
            slots = self._slots[connection.endpoint] = asyncio.Semaphore(self._per_broker)
        async with slots:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._brokers.end(connection, effect)
            except PulsarError as error:
                outcome = _failed(error)
            except TimeoutError:
                outcome = Outcome(Answer.SILENT, f"no answer within {self._seconds:g} s")
            else:
                outcome = _TAKEN
        self._note(effect.participant.topic, connection, taken=outcome is _TAKEN)
        return outcome

    def _note(self, topic: str, connection: Connection, *, taken: bool) -> None:
        """Remember who took an end, and forget whoever did not."""
        if not taken:
            self._owners.pop(topic, None)
        elif self._owners.get(topic) is not connection:
            self._owners[topic] = connection
            if len(self._owners) > _MOST_OWNERS:
                del self._owners[next(iter(self._owners))]


_ROLE_REFUSED: Final = frozenset({Answer.NOT_SUPERUSER, Answer.UNAUTHORIZED})
_TAKEN: Final = Outcome(Answer.OK)


def _failed(error: BaseException | None, *, at_lookup: bool = False) -> Outcome:
    detail = str(error)
    match error:
        case PulsarError(code=code) if code is not None:
            return Outcome(answer_of(code, at_lookup=at_lookup), detail)
        case ConnectionLost():
            return Outcome(Answer.NO_CONNECTION if at_lookup else Answer.BROKEN, detail)
        case OperationTimeout():
            return Outcome(Answer.NO_CONNECTION if at_lookup else Answer.SILENT, detail)
        case _:
            return Outcome(Answer.LOOKUP_FAILED if at_lookup else Answer.OTHER, detail)
