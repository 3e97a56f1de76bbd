"""Leases of the incarnations of clients, by the host's clock. No state: after a restart everybody has a whole lease again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeAlias

Incarnation: TypeAlias = tuple[str | None, str]
"""Principal, and what the client calls this life of its process."""


class Leases:
    """Times at which each incarnation was heard of last.

    All leases are equally long, so the one that ends next is always in front.
    """

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._heard: OrderedDict[Incarnation, int] = OrderedDict()
        self._ended: dict[Incarnation, bool] = {}

    def __len__(self) -> int:
        return len(self._heard)

    def __contains__(self, incarnation: Incarnation) -> bool:
        return incarnation in self._heard

    def heard(self, incarnation: Incarnation, now_ms: int) -> None:
        """The incarnation has given a sign of life: its lease begins again."""
        self._ended.pop(incarnation, None)
        self._heard[incarnation] = now_ms
        self._heard.move_to_end(incarnation)

    def end(self, incarnation: Incarnation, *, said_so: bool = True) -> None:
        """End the lease of an incarnation now. A renewal does not bring it back. `said_so`: the client has said goodbye."""
        self._ended[incarnation] = said_so
        self._heard[incarnation] = -self._lease_ms
        self._heard.move_to_end(incarnation, last=False)

    def is_ended(self, incarnation: Incarnation) -> bool:
        """True if `end` was called for it, and it holds something still."""
        return incarnation in self._ended

    def has_left(self, incarnation: Incarnation) -> bool:
        """True if it has said goodbye, and holds something still."""
        return self._ended.get(incarnation, False)

    def forget(self, incarnation: Incarnation) -> None:
        """The incarnation holds nothing any more."""
        self._heard.pop(incarnation, None)
        self._ended.pop(incarnation, None)

    def begin_all(self, incarnations: Iterable[Incarnation], now_ms: int) -> None:
        """Give each of these a whole lease, after a restart."""
        self._heard = OrderedDict.fromkeys(incarnations, now_ms)
        self._ended.clear()

    def until_ms(self, incarnation: Incarnation) -> int:
        """Return when the lease of an incarnation ends; 0 when it has none."""
        heard_ms = self._heard.get(incarnation)
        return 0 if heard_ms is None else heard_ms + self._lease_ms

    def deadline(self) -> int | None:
        """Return when the next lease ends; None while nobody has one."""
        for heard_ms in self._heard.values():
            return heard_ms + self._lease_ms
        return None

    def over(self, now_ms: int) -> Incarnation | None:
        """The incarnation whose lease ended first, None while all are alive."""
        deadline = self.deadline()
        return next(iter(self._heard)) if deadline is not None and deadline <= now_ms else None
