"""Loss of a connection, as the coordinators see it."""

from __future__ import annotations

from .coordinating import TxnSession


def leave(session: TxnSession) -> None:
    """Its connection has ended: it is a member of no check group any more, and what was to end with it is aborted."""
    coordinators = session.services.coordinators
    if coordinators is None:
        return
    member, session.member = session.member, None
    if member is not None:
        coordinators.check_groups.gone(member)
    if session.bound is not None:
        coordinators.bound.gone(session.bound)
