"""Which rows may go: those of transactions that the coordinator has ended.

A row is needed as long as its coordinator may ask for it. That is until the transaction has ended there, however long it takes:
a row that goes by its age alone makes the check write a tombstone for what the database has committed. So a trim ends each
transaction by its row's outcome, with the secret of its preparation, and removes the row after the answer. That is idempotent.
The secret is what keeps a trim from ending another transaction: an open one, or one of another cluster with the same id.

Rows of transactions that this process has ended need no question: it had the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import attrs

from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    InvalidTransactionStatus,
    PulsarError,
    TransactionAborted,
    TransactionNotFound,
)
from pulsar_txn.client.outbox.rows import PAGE_ROWS, Outcome, Row

logger = logging.getLogger("pulsar_txn.client.outbox")


@attrs.frozen
class TrimResult:
    """What a trim did: rows removed, and rows kept because their transactions could not be ended now."""

    removed: int = 0
    kept: int = 0


class RowStore(Protocol):
    """The rows, over a connection of the trim's own."""

    async def older(self, before_ms: int, after: str) -> list[Row]:
        """A page of them."""
        ...

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove them."""
        ...


async def trim(rows: RowStore, end: Callable[[Row], Awaitable[None]], before_ms: int) -> TrimResult:
    """Remove the rows written before a time whose transactions have ended. `end` ends a row's transaction by its outcome."""
    removed = kept = 0
    after = ""
    while page := await rows.older(before_ms, after):
        gone = [row.key for row in page if await _has_ended(row, end)]
        if gone:
            await rows.remove(gone)
        removed, kept = removed + len(gone), kept + len(page) - len(gone)
        after = page[-1].key
        if len(page) < PAGE_ROWS:
            break
    return TrimResult(removed, kept)


async def _has_ended(row: Row, end: Callable[[Row], Awaitable[None]]) -> bool:
    try:
        await end(row)
    except (TransactionNotFound, CommitOutcomeUnknown) as error:
        # The coordinator has forgotten it, and it forgets only what has ended. A commit says so by its cause.
        return isinstance(error, TransactionNotFound) or isinstance(error.__cause__, TransactionNotFound)
    except (TransactionAborted, InvalidTransactionStatus) as error:
        return _ended_otherwise(row, error)
    except PulsarError as error:
        logger.warning("the row of %s is kept: its coordinator did not answer: %s", row.txn_id, error)
        return False
    return True


def _ended_otherwise(row: Row, error: PulsarError) -> bool:
    """An answer that contradicts the row.

    A tombstone may have been written by a check that came late, after the transaction was committed and its row removed.
    """
    if row.outcome is Outcome.ABORT:
        return True
    logger.error("the database has committed %s, and Pulsar has not (%s); its row is kept", row.txn_id, error)
    return False


class Ended:
    """The keys of transactions that this process has ended, until their rows are removed together."""

    def __init__(self, every: int | None) -> None:
        self._every = every
        self._keys: list[str] = []

    def add(self, key: str) -> None:
        """Its row may go."""
        if self._every is not None:
            self._keys.append(key)

    def due(self, *, all_of_them: bool = False) -> list[str]:
        """Those to remove now: as many as a batch, or all. `add` those again that could not be removed."""
        if self._every is None or (len(self._keys) < self._every and not all_of_them):
            return []
        due, self._keys = self._keys, []
        return due
