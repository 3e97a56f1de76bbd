"""The keys of the configuration that say when check groups are asked, and what may wait, as options of a coordinator."""

from __future__ import annotations

from typing import Any, Protocol


class CheckKeys(Protocol):
    """The part of a configuration that this needs."""

    @property
    def transaction_check_after_in_seconds(self) -> int:
        """The age at which an open transaction is asked for first, where it does not say so itself."""

    @property
    def transaction_check_interval_in_seconds(self) -> int:
        """Between two questions about one transaction."""

    @property
    def transaction_check_max(self) -> int:
        """Return how many questions there are about one transaction."""

    @property
    def transaction_check_policy(self) -> str:
        """Return what becomes of it after the last one: `park`, `abort`, `commit` or `keep`."""

    @property
    def max_active_transactions_per_role(self) -> int:
        """Return how many transactions of one role a coordinator takes."""

    @property
    def max_prepared_transactions_per_role(self) -> int:
        """Return how many of them may be prepared."""

    @property
    def max_parked_transactions_per_coordinator(self) -> int:
        """Return how many transactions may wait for an operator."""


def check_options(config: CheckKeys) -> dict[str, Any]:
    """Return what a coordinator plug-in with `checks` is made with."""
    return {
        "check_after_ms": config.transaction_check_after_in_seconds * 1000,
        "check_interval_ms": config.transaction_check_interval_in_seconds * 1000,
        "max_checks": config.transaction_check_max,
        "check_policy": config.transaction_check_policy,
        "max_active_of_role": config.max_active_transactions_per_role,
        "max_prepared_of_role": config.max_prepared_transactions_per_role,
        "max_parked": config.max_parked_transactions_per_coordinator,
    }
