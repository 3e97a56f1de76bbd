"""Limits that every provider of logs keeps: of names, of the state in memory, and of bytes that are not confirmed yet.

* A name of a log or cursor, or a path of the metadata store, must have a form that every provider can write.
* `Tally` counts the memory beside entries: logs, cursors with their acknowledgements, metadata. Checkpoints are written in
  slices, so no size of the state is too large for the disk; the limit is the memory and the time of a restart.
* `Pressure` counts bytes that were appended and not confirmed. Above a high-water mark its listeners stop to accept more,
  until it is below half of that.

Code that adds a name or a state asks before anything has moved: a record that cannot be written must not reach a commit
group, which has other members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pulsar_txn.ledger.protocols import NameRefused, StateTooLarge

MAX_NAME_BYTES: Final = 0xFFFF
"""In UTF-8; the journal writes the length of a name in two bytes."""

MAX_VALUE_BYTES: Final = 1 << 20
"""Largest size of one value: a cursor's properties, a value of the metadata store."""

_SHOWN: Final = 60


def check_name(kind: str, name: str) -> None:
    """NameRefused for a name that cannot be kept; `kind` says what it is the name of."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise NameRefused(f"{kind} {name[:_SHOWN]!r} cannot be written in UTF-8 ({error.reason}); choose another") from error
    if size > MAX_NAME_BYTES:
        raise NameRefused(
            f"{kind} {name[:_SHOWN]!r}… has {size} bytes, at most {MAX_NAME_BYTES} are kept; choose a shorter one"
        )


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

    def grew(self, size: int) -> None:
        """Count bytes that came, or, below 0, that went."""
        self.bytes += size

    def limit(self, max_bytes: int) -> None:
        """Set the limit."""
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


DEFAULT_HIGH_WATER_BYTES: Final = 64 << 20


class Pressure:
    """Counts bytes in flight; tells its listeners True above `high_bytes`, and False once they are below half of it."""

    __slots__ = ("_callbacks", "bytes", "high", "high_bytes", "low_bytes", "released")

    def __init__(self, high_bytes: int = DEFAULT_HIGH_WATER_BYTES) -> None:
        self.bytes = 0
        self.released = 0
        """Number of times that bytes were confirmed or given up."""
        self.high = False
        self.high_bytes = high_bytes
        self.low_bytes = high_bytes // 2
        self._callbacks: list[Callable[[bool], None]] = []

    def listen(self, callback: Callable[[bool], None]) -> None:
        """Tell `callback` of every change from now on."""
        self._callbacks.append(callback)

    def enter(self, size: int) -> None:
        """`size` bytes were appended."""
        self.bytes += size
        if self.bytes > self.high_bytes and not self.high:
            self._turn(high=True)

    def leave(self, size: int) -> None:
        """`size` bytes were confirmed, or given up."""
        self.bytes -= size
        self.released += 1
        if self.high and self.bytes <= self.low_bytes:
            self._turn(high=False)

    def _turn(self, *, high: bool) -> None:
        self.high = high
        for callback in self._callbacks:
            callback(high)
