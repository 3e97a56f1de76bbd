"""Warnings where `txn=` was mostly forgotten.

* A commit that has nothing in it: once for each place of the program.
* A send or an acknowledgement without `txn=` inside the block of an open transaction: once for each client.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")

logger = logging.getLogger("pulsar_txn.client.txn")

PLACES_LIMIT: Final = 1000
"""Places that are remembered; the warnings of further ones are left out."""

_NOT_THE_PROGRAM: Final = ("pulsar_txn.", "asyncio.", "concurrent.", "contextlib", "threading", "functools", "uvloop")


def calling_place() -> str | None:
    """`file:line` of the code of the program that is running or waits, as far as it can be seen from here."""
    return _place() or _CALLER.get()


def _place() -> str | None:
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        name = str(frame.f_globals.get("__name__", "")) + "."
        if not name.startswith(_NOT_THE_PROGRAM):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


_CALLER: Final[contextvars.ContextVar[str | None]] = contextvars.ContextVar("pulsar_txn_caller", default=None)
"""The place of a program that waits in another thread."""


def from_here(function: Callable[..., T], *arguments: Any) -> T:
    """`function(*arguments)`, which hands work to another thread; a place that is asked for there is the caller's."""
    before = _CALLER.set(_place())
    try:
        return function(*arguments)
    finally:
        _CALLER.reset(before)


class EmptyCommits:
    """What one client's program was told: the places that have committed a transaction with nothing in it, and so on."""

    def __init__(self) -> None:
        self._places: set[str] = set()
        self._has_told_left_out = False

    def left_out(self, call: str) -> None:
        """Log a warning, unless one was logged already, for a call that is no part of the transaction around it."""
        if self._has_told_left_out:
            return
        self._has_told_left_out = True
        place = calling_place()
        logger.warning(
            "%s without txn=%s, inside the block of an open transaction, is no part of it: give txn=, or open the block with"
            " ambient=True; txn=None says that it is meant. Further ones are not told",
            call,
            f" at {place}" if place else "",
        )

    def warn(self, name: str | None, place: str | None) -> None:
        """Log a warning, unless one was logged for this place already."""
        key = place or name or ""
        if key in self._places or len(self._places) >= PLACES_LIMIT:
            return
        self._places.add(key)
        logger.warning(
            "a transaction%s was committed with nothing in it%s: was txn= left out of a send, an acknowledgement or receive()?",
            f" {name!r}" if name else "",
            f" at {place}" if place else "",
        )
