"""Who opened a transaction, and who may act on it."""

from __future__ import annotations

from typing import Final, TypeAlias

Identity: TypeAlias = tuple[str, int]
"""Transactional id and epoch."""

Owner: TypeAlias = tuple[str | None, Identity | None]
"""Principal and identity of the client that opened a transaction; None asks for nothing."""

ANYBODY: Final[Owner] = (None, None)


def is_permitted(owner: Owner | None, asker: Owner) -> bool:
    """Whether `asker` may act on a transaction of `owner`: the asker must name everything that the owner named, alike."""
    if owner is None:
        return False
    return (owner[0] is None or owner[0] == asker[0]) and (owner[1] is None or owner[1] == asker[1])


def is_older(owner: Owner, than: Owner) -> bool:
    """Whether both have the same transactional id, and `owner` has a lower epoch."""
    (principal, identity), (other, newer) = owner, than
    if identity is None or newer is None or principal != other:
        return False
    return identity[0] == newer[0] and identity[1] < newer[1]
