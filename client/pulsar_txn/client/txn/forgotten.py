"""Mistakes of programs that can be seen: `await` or `txn=` was forgotten.

* A call in a transaction that nobody has awaited by its commit: the commit fails.
* A commit that has nothing in it: a warning, once for each place of the program.
* A send or an acknowledgement without `txn=` inside the block of an open transaction: a warning, once for each client.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final, TypeVar

from pulsar_txn.client.errors import TransactionStateError

T = TypeVar("T")

logger = logging.getLogger("pulsar_txn.client.txn")

LOOK_AT: Final = 64
"""Calls that are noted before it is looked which of them have started."""

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


class Forgotten:
    """Warnings that the program of one client was given: each place that has committed nothing is named once, and so on."""

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


class UnawaitedCalls:
    """The calls in one transaction of which it is not known yet whether somebody awaits them."""

    def __init__(self) -> None:
        self._calls: list[Coroutine[Any, Any, Any]] = []
        self._look_at = LOOK_AT

    def add(self, call: Coroutine[Any, Any, Any]) -> None:
        """An operation was called; it starts when it is awaited."""
        self._calls.append(call)
        if len(self._calls) >= self._look_at:
            self._calls = _not_begun(self._calls)
            self._look_at = max(LOOK_AT, 2 * len(self._calls))

    def clear(self) -> None:
        """Forget them."""
        self._calls = []

    def failure(self) -> TransactionStateError | None:
        """Return the error of calls that nobody has awaited, which are closed: they are no part of what is committed."""
        forgotten, self._calls = _not_begun(self._calls), []
        if not forgotten:
            return None
        error = TransactionStateError(
            f"{_name_of(forgotten[0])} was called in the transaction and never awaited"
            + (f", and {len(forgotten) - 1} more calls" if len(forgotten) > 1 else ""),
            hint="wait for the call, or give it to a task that the block waits for",
            fatal=True,  # the program is at fault, and no message
        )
        for each in forgotten:
            each.close()
        return error


def _not_begun(calls: list[Any]) -> list[Any]:
    """Coroutines that nobody has awaited so far, and nobody has closed."""
    return [each for each in calls if each.cr_frame is not None and not each.cr_suspended and not each.cr_running]


def _name_of(call: Any) -> str:
    """The call as a program writes it, and of what it is a method."""
    given = call.cr_frame.f_locals
    owner = given["self"] if "self" in given else given["args"][0]
    return f"{call.__qualname__}() of {owner!r}{_origin_of(call)}"


def _origin_of(call: Any) -> str:
    """The place of the call, which Python notes in asyncio's debug mode only."""
    return f" at {call.cr_origin[0][0]}:{call.cr_origin[0][1]}" if call.cr_origin else ""
