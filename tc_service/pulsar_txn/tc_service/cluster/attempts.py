"""One attempt to end a transaction at a participant: look the owner up, tell it, and say what came of it."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from pulsar_txn.client.errors import ConnectionLost, OperationTimeout, PulsarError
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.wire.values import value

from .brokers import Brokers, LookupFailed
from .rules import Answer, answer_of

ATTEMPT_SECONDS: Final = 5.0


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

    async def attempt(self, effect: TellParticipant) -> Outcome:
        """See `Attempts.attempt`."""
        try:
            async with asyncio.timeout(self._seconds):
                connection = await self._brokers.owner(effect.participant.topic)
        except LookupFailed as error:
            return _failed(error.__cause__, at_lookup=True)
        except TimeoutError:
            return Outcome(Answer.NO_CONNECTION, f"the owner was not found within {self._seconds:g} s")
        slots = self._slots.get(connection.endpoint)
        if slots is None:
            slots = self._slots[connection.endpoint] = asyncio.Semaphore(self._per_broker)
        async with slots:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._brokers.end(connection, effect)
            except PulsarError as error:
                return _failed(error)
            except TimeoutError:
                return Outcome(Answer.SILENT, f"no answer within {self._seconds:g} s")
        return Outcome(Answer.OK)


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
