"""The commit group: everything called since the last one, made durable together, then confirmed in one go."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsar_txn.ledger.protocols import LedgerError

if TYPE_CHECKING:
    from pulsar_txn.ledger.handles import BaseCursor, BaseLog

logger = logging.getLogger(__name__)


class CommitGroup:
    """Members of a commit group: logs and cursors it touched, and what waits for it.

    `seal` freezes what the group confirms (a log's last entry, a cursor's ticket and encoded changes) at the moment
    when no more can join; `confirm` and `fail` are called once, on the loop.
    """

    __slots__ = ("bytes", "cursors", "logs", "marks", "tickets", "waiters")

    def __init__(self) -> None:
        self.bytes = 0
        self.logs: dict[BaseLog, None] = {}
        self.cursors: dict[BaseCursor, None] = {}
        self.waiters: list[asyncio.Future[None]] = []
        self.marks: list[tuple[BaseLog, int]] = []
        self.tickets: list[tuple[BaseCursor, int, bytes]] = []

    def __bool__(self) -> bool:
        return bool(self.logs or self.cursors or self.waiters)

    def seal(self) -> None:
        """Nothing joins any more: remember what is to be confirmed."""
        for cursor in self.cursors:
            self.logs[cursor.log] = None
            self.tickets.append((cursor, cursor.ticket, cursor.take_changes()))
        self.marks = [(log, log.next_entry - 1) for log in self.logs]

    def confirm(self) -> None:
        """All of it is durable: raise what readers may see, then tell listeners, then those who wait."""
        for cursor, ticket, _ in self.tickets:
            cursor.confirmed_ticket = ticket
        for log, entry in self.marks:
            log.confirmed_entry = entry
        for log, entry in self.marks:
            listener = log.listener
            if listener is not None and log.closed is None:
                try:
                    listener.log_confirmed((log.ledger_id, entry))
                except Exception:  # its mistakes are its own and must not stop other logs
                    logger.exception("the listener of log %r failed", log.name)
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, error: LedgerError) -> None:
        """Fail it, for it will never be durable. Logs are told by their store, which closes all of them."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # a waiter that was cancelled meanwhile will not fetch it: no warning for that
