"""Backups of a provider of logs whose folder can be copied while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pulsar_txn.ledger.journal.holds import Cut


class Leases(Protocol):
    """Holds by name."""

    def renew(self, name: str, lease_seconds: float) -> bool:
        """A new lease; False when the hold is over: what was copied may not be whole."""

    def end(self, name: str) -> bool:
        """The copy was made; False when the hold was over before."""


@runtime_checkable
class Holdable(Protocol):
    """A store whose segments can be held for a copy."""

    holds: Leases

    async def hold(self, lease_seconds: float) -> tuple[str, Cut]:
        """Keep the segments; the name of the hold, and where the copy ends. Raises StorageFailed, LogClosed."""
