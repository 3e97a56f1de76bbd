"""The transaction around the running code, which operations without `txn=` join: `client.transaction(ambient=True)`.

Every unit of work hides the one around it: inside a block that is not ambient, in the work of `run_transaction` and in the
handler of a pipeline an operation without `txn=` is part of no transaction. Tasks of the client itself have none around
them, whichever code has started them.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from pulsar_txn.client._checks import no_transaction
from pulsar_txn.client.txn.enlist import Enlisting

T = TypeVar("T")

AMBIENT: Final[contextvars.ContextVar[Enlisting | None]] = contextvars.ContextVar("pulsar_txn_ambient", default=None)
"""What operations without `txn=` join."""


class Joinable(Protocol):
    """A transaction of a program, or its unit."""

    @property
    def inside(self) -> Enlisting:
        """The inside."""
        ...


def unit_of(txn: Joinable | None) -> Enlisting | None:
    """The inside of the transaction that an operation names, of the one around it when it names none.

    Raises UsageError when it is no transaction of this kind of client.
    """
    if txn is None:
        return AMBIENT.get()
    try:
        return txn.inside
    except AttributeError:
        raise no_transaction(txn) from None


class Surroundings:
    """What is around a block of code while it runs: a unit that is ambient there, or nothing."""

    def __init__(self) -> None:
        self._reset: contextvars.Token[Enlisting | None] | None = None

    def enter(self, unit: Enlisting | None) -> None:
        """From here on operations without `txn=` join this unit; with None they join nothing."""
        self._reset = AMBIENT.set(unit)

    def leave(self) -> None:
        """Take it back. In another context, as when a generator is closed by somebody else, there is nothing to take back."""
        reset, self._reset = self._reset, None
        if reset is not None:
            with contextlib.suppress(ValueError):
                AMBIENT.reset(reset)


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """`function(*arguments)`, with no transaction around it."""
    around = Surroundings()
    around.enter(None)
    try:
        return function(*arguments)
    finally:
        around.leave()
