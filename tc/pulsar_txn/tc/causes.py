"""Causes of ends: who decided that a transaction ends, as its record says."""

from __future__ import annotations

import enum


class Cause(enum.IntEnum):
    """The numbers are stored in records."""

    CLIENT = 0
    """Its client has asked."""
    TIMEOUT = 1
    """The transaction was open for longer than its timeout."""
    LEASE = 2
    """Its client had no connection for the time of a lease, or is known to be gone."""
    GOODBYE = 3
    """Its client has left in order, and had it open."""
    FENCED = 4
    """A newer epoch of its transactional id has begun."""
    OPERATOR = 5
    """A superuser has asked."""
    CHECKED = 6
    """A member of its check group was asked, and has answered."""
    DISCONNECTED = 7
    """The connection that opened it has ended, and it was to end with that."""
    UNANSWERED = 8
    """Its check group was asked as often as it may be, and nobody knew: the coordinator's policy decided."""
    RESTORED = 9
    """Its log was restored, rolled back or copied: the incarnation that is lost may have decided it. It is HELD."""
    DOUBT = 10
    """A cluster of it could not be asked whether the log was restored. It is HELD until that one answers."""


def cause_of(number: int) -> Cause | None:
    """The cause that a record names; None for one of a newer version."""
    return Cause(number) if number in Cause._value2member_map_ else None
