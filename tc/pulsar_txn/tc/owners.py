"""Owners of transactions: who opened one, and who may act on it."""

from __future__ import annotations

from typing import Final, TypeAlias

Identity: TypeAlias = tuple[str, int]
"""Transactional id and epoch."""

Owner: TypeAlias = tuple[str | None, Identity | None]
"""Principal and identity of the client that opened a transaction. No identity asks for none; no principal is one of its own."""

ANYBODY: Final[Owner] = (None, None)
"""Whoever came while nobody had to say who they are."""


def is_permitted(owner: Owner | None, asker: Owner) -> bool:
    """True if `asker` may act on a transaction of `owner`: it has the same principal, and the identity that the owner named.

    What was begun without a principal is for nobody who has one: it was begun before authentication was switched on, and
    nobody can show that it is theirs.
    """
    if owner is None:
        return False
    return owner[0] == asker[0] and (owner[1] is None or owner[1] == asker[1])


def is_older(owner: Owner, than: Owner) -> bool:
    """True if both have the same transactional id, and `owner` has a lower epoch."""
    (principal, identity), (other, newer) = owner, than
    if identity is None or newer is None or principal != other:
        return False
    return identity[0] == newer[0] and identity[1] < newer[1]
