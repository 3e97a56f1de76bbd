"""Errors that the logs of this provider raise beside the errors of every ledger."""

from __future__ import annotations

from pulsar_txn.ledger.protocols import StoreUnsupported


class LogTopicRefused(StoreUnsupported):
    """A topic that would lose or split the log, or that cannot be made; the message says what to change."""
