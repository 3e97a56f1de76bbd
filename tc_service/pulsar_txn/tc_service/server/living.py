"""Which clients live: their leases at the coordinators, their goodbyes, and the next epoch of a transactional id.

A connection is the sign of life. While a client has one, its leases are renewed for it; when it has none for the time of a
lease, the coordinators abort what it has open and never use its lanes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from pulsar_txn.broker.serving import Answer, Coordinators
from pulsar_txn.tc import Identity
from pulsar_txn.wire.errors import Refusal, ServerError

from .session import Session


async def take_over(coordinators: Coordinators, tc_id: int, identity: Identity, session: Session) -> None:
    """Return when everything of older epochs has ended, at all participants. Raises Refusal: a newer epoch has begun."""
    await coordinators.connect(tc_id)
    principal, incarnation = session.principal, session.incarnation
    await _answered(lambda answer: coordinators.take_over(tc_id, principal, identity, answer, incarnation))


async def say_goodbye(coordinators: Coordinators, tc_id: int, incarnation: str, principal: str | None) -> None:
    """The client has ended all that it began: its lanes may serve another one. Raises Refusal."""
    await _answered(lambda answer: coordinators.goodbye(tc_id, principal, incarnation, answer))


def renew(coordinators: Coordinators, sessions: Iterable[Session]) -> None:
    """Renew the leases of clients that are connected."""
    alive = {
        (tc_id, session.principal, session.incarnation)
        for session in sessions
        if session.incarnation is not None
        for tc_id in session.coordinators
    }
    for tc_id, principal, incarnation in alive:
        coordinators.renew(tc_id, principal, incarnation, _not_needed)


async def _answered(ask: Callable[[Answer], None]) -> Any:
    """The value that a coordinator answers. Raises Refusal."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(value: Any, error: ServerError | None, message: str) -> None:
        if answered.done():  # the client has left
            return
        if error is None:
            answered.set_result(value)
        else:
            answered.set_exception(Refusal(error, message))

    ask(answer)
    return await answered


def _not_needed(_value: Any, _error: ServerError | None, _message: str) -> None:
    """A client that was believed gone hears of it when it goes on."""
