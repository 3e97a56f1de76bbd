"""Commit groups: everything called since the last one, made durable together and confirmed in one go.

A provider gives its handles `Groups`: the group that calls join now, and how to have it committed soon. A group calls none of
its members. It remembers what they add, and reads how far they are when it is sealed; `confirming` tells them afterwards.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pulsar_txn.ledger.cursor_changes import Changes
    from pulsar_txn.ledger.handles import BaseCursor, BaseLog
    from pulsar_txn.ledger.limits import Tally


class CommitGroup:
    """Members of a commit group: logs and cursors it touched, and what waits for it.

    `seal` freezes what the group confirms (a log's last entry, a cursor's ticket and encoded changes) at the moment
    when no more can join.
    """

    __slots__ = ("bytes", "cursors", "logs", "marks", "tickets", "waiters")

    def __init__(self) -> None:
        self.bytes = 0
        self.logs: dict[BaseLog, None] = {}
        self.cursors: dict[BaseCursor, Changes] = {}
        self.waiters: list[asyncio.Future[None]] = []
        self.marks: list[tuple[BaseLog, int]] = []
        self.tickets: list[tuple[BaseCursor, int, bytes]] = []

    def __bool__(self) -> bool:
        return bool(self.logs or self.cursors or self.waiters)

    def add_log(self, log: BaseLog) -> bool:
        """Confirm this log with the group; False when that was asked before."""
        if log in self.logs:
            return False
        self.logs[log] = None
        return True

    def add_cursor(self, cursor: BaseCursor, changes: Changes) -> None:
        """Take the changes of this cursor when the group is sealed."""
        self.cursors[cursor] = changes

    def grew(self, size: int) -> None:
        """Count more bytes."""
        self.bytes += size

    def waiter(self) -> asyncio.Future[None]:
        """A future that is done when the group is durable; its exception says why that will never be."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        return waiter

    def seal(self) -> None:
        """Nothing joins any more: remember what is to be confirmed."""
        for cursor, changes in self.cursors.items():
            self.logs[cursor.log] = None
            self.tickets.append((cursor, changes.ticket, changes.take()))
        self.marks = [(log, log.next_entry - 1) for log in self.logs]


class Groups(Protocol):
    """The open group of a provider, as far as handles need it."""

    @property
    def open_group(self) -> CommitGroup:
        """The group that joins now."""

    @property
    def max_value_bytes(self) -> int:
        """Return what one value has at most."""

    @property
    def tally(self) -> Tally:
        """Return what the provider keeps in memory beside entries."""

    def wake(self) -> None:
        """Something joined the open group: commit it soon."""

    def count(self, size: int) -> None:
        """Count `size` bytes that joined the open group and are no entries; the group may be closed by that."""
