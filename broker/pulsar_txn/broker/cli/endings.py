"""Ends of commands because of an error. It knows the errors of all rooms, so it is imported only when there is one."""

from __future__ import annotations

from typing import Final

from pulsar_txn.broker.base.plugins import PluginError
from pulsar_txn.broker.base.settings import ConfigError
from pulsar_txn.ledger.protocols import (
    LedgerError,
    StoreInUse,
    StoreReadOnly,
    StoreTooNew,
    StoreUnsupported,
)

from .exits import REFUSED, STORAGE_FAILED, STORE_REFUSED, USAGE, Ending

_REFUSALS: Final = ("BackupRefused", "CannotSalvage")
"""Of the journal, which is not imported for its errors."""
_STORE: Final = (StoreInUse, StoreTooNew, StoreReadOnly, StoreUnsupported)


def ending_of(error: Exception) -> Ending | None:
    """Ending of the process because of `error`; None for an error that only a bug raises."""
    match error:
        case ConfigError() | PluginError():
            return Ending(USAGE, str(error))
        case _ if type(error).__name__ in _REFUSALS:
            return Ending(REFUSED, str(error))
        case LedgerError():
            return Ending(STORE_REFUSED if isinstance(error, _STORE) else STORAGE_FAILED, str(error))
        case _:
            return None
