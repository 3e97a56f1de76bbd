"""Closing of asyncio clients and coordinators behind blocking ones: what is under way is waited for, and never for long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

from pulsar_txn.client.client import AsyncClient
from pulsar_txn.client.coordinator import AsyncCoordinator
from pulsar_txn.client.send.producer import AsyncProducer
from pulsar_txn.client.state.transaction import TransactionState
from pulsar_txn.client.txn.transactions import core_of, cores_of, end_open, owns_transactions

logger = logging.getLogger("pulsar_txn.client.sync")

OUTCOME_SECONDS: Final = 0.5
"""Time that unfinished ones have to report what is known of them, once the connections are closed."""

EXIT_SECONDS: Final = 1.2
"""Time that the end of the program waits for messages and transactions of a client that was not closed."""

LEAVE_SECONDS: Final = 0.3
"""Time that it waits then for the brokers' answers to its goodbyes."""

HASTE_SECONDS: Final = 0.1
"""The same, once closing was interrupted."""


Resident: TypeAlias = AsyncClient | AsyncCoordinator
"""Resource that lives on a loop thread."""


async def close_in_order(resident: Resident) -> None:
    """Close, which gives the ends of transactions two seconds. If cancelled: the closing goes on."""
    await resident.close()
    if owns_transactions(resident):
        await _within(OUTCOME_SECONDS, _ends(resident))


async def close_hastily(residents: Sequence[Resident], seconds: float = HASTE_SECONDS) -> None:
    """Close, with at most so long for receipts and goodbyes: sends without a receipt fail with AlreadyClosed.

    Clients go first: the coordinator that they share may be told then that nothing more comes.
    """
    _hush()
    clients = [each for each in residents if isinstance(each, AsyncClient)]
    coordinators = [each for each in residents if not isinstance(each, AsyncClient)]
    groups: list[Sequence[Resident]] = [clients, coordinators]
    for group in filter(None, groups):
        cores = [core_of(each) for each in group]
        await _within(seconds, [each.close() for core in cores for each in core.resources()])
        await _within(seconds, [each.close() for each in group])
        for core in chain.from_iterable(map(cores_of, group)):
            await core.pool.close()


async def close_at_exit(residents: Sequence[Resident]) -> None:
    """Send what waits, end the transactions, close: all of it within about two seconds."""
    _hush()
    cores = [core_of(each) for each in residents]
    producers = [each for core in cores for each in core.resources() if isinstance(each, AsyncProducer)]
    failed = _failed(producers)
    await _within(EXIT_SECONDS, [*(end_open(each) for each in residents), *(each.flush() for each in producers)])
    await close_hastily(residents, LEAVE_SECONDS)
    if lost := _failed(producers) - failed:
        logger.warning("%d messages have no receipt at the end of the program and may be lost: close() the client first", lost)


def _failed(producers: Sequence[AsyncProducer[Any]]) -> int:
    return sum(each.stats().failed for each in producers)


def _hush() -> None:
    """From here on errors that nobody looks at are expected: waits for receipts are given up."""

    def heard(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        logger.debug("while the client was closed: %s: %r", context.get("message"), context.get("exception"))

    asyncio.get_running_loop().set_exception_handler(heard)


def _ends(resident: Resident) -> list[Coroutine[Any, Any, None]]:
    ending = (TransactionState.COMMITTING, TransactionState.ABORTING)
    return [txn.wait_closed() for txn in resident.transactions() if txn.state in ending]


async def _within(seconds: float, works: Sequence[Coroutine[Any, Any, object]]) -> None:
    """Run them side by side; those that take longer are cancelled, and errors are of no interest here."""
    tasks = [asyncio.ensure_future(each) for each in works]
    if not tasks:
        return
    try:
        await asyncio.wait(tasks, timeout=seconds)
    finally:
        for task in tasks:
            task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException):
            logger.debug("while the client was closed: %r", outcome)
