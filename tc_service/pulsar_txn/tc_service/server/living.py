"""Lives of clients: their leases at the coordinators, and their goodbyes.

A connection is the sign of life. While a client has one, its leases are renewed for it; when it has none for the time of a
lease, the coordinators abort what it has open and never use its lanes again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pulsar_txn.broker.serving import Coordinators, asked
from pulsar_txn.wire.errors import ServerError

from .session import Session


async def say_goodbye(coordinators: Coordinators, tc_id: int, incarnation: str, principal: str | None) -> None:
    """The client has ended all that it began: its lanes may serve another one. Raises Refusal."""
    await asked(lambda answer: coordinators.goodbye(tc_id, principal, incarnation, answer))


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


def _not_needed(_value: Any, _error: ServerError | None, _message: str) -> None:
    """A client that was believed gone hears of it when it goes on."""
