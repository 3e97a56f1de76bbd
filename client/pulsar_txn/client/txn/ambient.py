"""The transaction around the running code, which operations without `txn=` join: `client.transaction(ambient=True)`.

Every unit of work hides the one around it: inside a block that is not ambient, in the work of `run_transaction` and in the
handler of a pipeline an operation without `txn=` is part of no transaction. Mostly `txn=` was forgotten there, so the first
such send or acknowledgement of a client is told in the log; `txn=None` says that it is meant. Tasks of the client itself have
no transaction around them, whichever code has started them.
"""

from __future__ import annotations

import contextlib
import contextvars
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar

import attrs

from pulsar_txn.client.txn.enlist import Enlisting

T = TypeVar("T")


class _NotSaid:
    def __repr__(self) -> str:
        return "NOT_SAID"


NOT_SAID: Final[Any] = _NotSaid()
"""The default of `txn=`, where it matters whether somebody has said None."""


@attrs.frozen(eq=False)
class Aside:
    """An open unit around the running code, which operations join by `txn=` only.

    It is held weakly: whatever was started in the block, a timer for instance, keeps for long what was around it then.
    """

    unit: weakref.ref[Enlisting]


AMBIENT: Final[contextvars.ContextVar[Enlisting | Aside | None]] = contextvars.ContextVar("pulsar_txn_ambient", default=None)
"""Surrounding unit: the one that operations without `txn=` join, or one that they do not join."""


class Surroundings:
    """Surroundings of a block of code while it runs: a unit that is ambient there, or nothing."""

    def __init__(self) -> None:
        self._reset: contextvars.Token[Enlisting | Aside | None] | None = None

    def enter(self, unit: Enlisting, *, joins: bool) -> None:
        """From here on this unit is around; operations without `txn=` join it, or are told."""
        self._reset = AMBIENT.set(unit if joins else Aside(weakref.ref(unit)))

    def leave(self) -> None:
        """Take it back. In another context, as when a generator is closed by somebody else, there is nothing to take back."""
        reset, self._reset = self._reset, None
        if reset is not None:
            with contextlib.suppress(ValueError):
                AMBIENT.reset(reset)


def within(unit: Enlisting, joins: bool, function: Callable[..., T], *arguments: Any) -> T:
    """`function(*arguments)`, with this unit around it."""
    around = Surroundings()
    around.enter(unit, joins=joins)
    try:
        return function(*arguments)
    finally:
        around.leave()
