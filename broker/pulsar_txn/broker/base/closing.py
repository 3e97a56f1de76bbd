"""End of a server that listens, whatever it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from logging import Logger

from pulsar_txn.ledger.protocols import LedgerError, LogStore


async def drain(closing: Awaitable[None], timeout_ms: int, logger: Logger) -> None:
    """Wait for an orderly end, at most so long: what was answered is durable in any case."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await closing
    except TimeoutError:
        logger.warning("the shutdown exceeded brokerShutdownTimeoutMs; all answered requests are durable")


async def close_store(store: LogStore, storage_failed: asyncio.Event, logger: Logger) -> None:
    """Close a store. Raises LedgerError, unless it is known that the store has failed."""
    try:
        await store.close()
    except LedgerError as error:
        if not storage_failed.is_set():
            raise
        logger.warning("the store had failed before the shutdown: %s", error)
