"""Tally of a store's memory beside entries: logs, cursors with their acknowledgements, metadata. One count, one limit.

Checkpoints are written in slices, so no size of the state is too large for the disk; the limit is the memory that it
takes and the time of a restart. Code that adds to it asks before anything has moved.
"""

from __future__ import annotations

from typing import Final

from pulsar_txn.ledger.protocols import StateTooLarge

DEFAULT_MAX_STATE_BYTES: Final = 512 << 20

LOG_BYTES: Final = 1024
CURSOR_BYTES: Final = 512
VALUE_BYTES: Final = 256
COUNTER_BYTES: Final = 128
"""About what one of each takes in memory beside its name and its contents."""


class Tally:
    """Bytes of a state, about as they are in memory, and how many there may be."""

    __slots__ = ("bytes", "max_bytes")

    def __init__(self, max_bytes: int = 1 << 62) -> None:
        self.bytes = 0
        self.max_bytes = max_bytes

    @property
    def full(self) -> bool:
        """True if what takes more is to be refused."""
        return self.bytes >= self.max_bytes

    def check(self, what: str, more: int) -> None:
        """StateTooLarge when `more` bytes for `what` are too many."""
        if self.bytes + more > self.max_bytes:
            raise StateTooLarge(
                f"{what} needs {more} bytes beside {self.bytes} of the state, and at most {self.max_bytes} are kept: delete"
                " topics, subscriptions or metadata, acknowledge old messages, or raise maxStoreStateBytes"
            )
