"""Attempts of a unit of work, and the decision of `run_transaction` which failed ones are repeated, for both clients."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from pulsar_txn.client._checks import check_call, check_whole
from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    PulsarError,
    TransactionAborted,
    TransactionOperationFailed,
    UsageError,
)
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.state.transaction import TransactionState

logger = logging.getLogger("pulsar_txn.client.txn")

DEFAULT_ATTEMPTS: Final = 5

Pauses: TypeAlias = Callable[[int], float]
"""How long to wait after the n-th attempt (1, 2, …), in seconds."""


class Attempts:
    """Judges how an attempt of `run_transaction` ended; one per call."""

    def __init__(self, attempts: int, *, retry_unknown: bool, pauses: Pauses) -> None:
        check_whole("attempts", attempts, 1)
        self._attempts = attempts
        self._done = 0
        self._retry_unknown = retry_unknown
        check_call("backoff", pauses, "a function of the number of attempts")
        self._pauses = pauses

    async def judge(self, error: Exception) -> bool:
        """True if another attempt is to be made; not when the unit is done after all. Raises what is final."""
        self._done += 1
        again = isinstance(error, TransactionAborted) and not is_final(error)
        if isinstance(error, CommitOutcomeUnknown):
            outcome = await _outcome(error)
            if outcome is TransactionState.COMMITTED:
                return False
            again = self._retry_unknown or outcome is TransactionState.ABORTED
        if not again or self._done >= self._attempts:
            if again:
                error.add_note(f"given up after {self._attempts} attempts")
            raise error
        extra = {"txn_id": str(getattr(error, "txn_id", None)), "state": "retry"}
        logger.info("attempt %d of %d was not committed: %s", self._done, self._attempts, error, extra=extra)
        return True

    def pause(self) -> float:
        """Seconds to wait before the next attempt; asks the program's function."""
        return self._pauses(self._done)


async def _outcome(error: CommitOutcomeUnknown) -> TransactionState:
    """The outcome that the coordinator knows; UNKNOWN, with a note, when it cannot be asked."""
    try:
        outcome: TransactionState = await error.resolver()
    except PulsarError as failed:
        error.add_note(f"the coordinator could not be asked for the outcome: {failed}")
        return TransactionState.UNKNOWN
    return outcome


def growing_pauses(core: Core) -> Pauses:
    """Growing pauses within the client's bounds."""
    backoff = core.backoff()
    return lambda _attempt: backoff.next()


def is_final(error: BaseException) -> bool:
    """True if running the unit again cannot help, because the reason is permanent."""
    causes = error.failures if isinstance(error, TransactionOperationFailed) and error.failures else (error,)
    return any(isinstance(cause, UsageError) or (isinstance(cause, PulsarError) and cause.fatal) for cause in causes)
