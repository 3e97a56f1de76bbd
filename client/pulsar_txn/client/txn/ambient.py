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
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

import attrs

from pulsar_txn.client._validation import no_transaction
from pulsar_txn.client.errors import UsageError
from pulsar_txn.client.txn.enlist import Caller, Enlisting

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


class Joinable(Protocol):
    """A transaction of a program, or its unit."""

    @property
    def inside(self) -> Enlisting:
        """The inside."""
        ...


def unit_of(txn: Joinable | None, caller: Caller | None = None) -> Enlisting | None:
    """The inside of the transaction that an operation names, of the one around it when it names none.

    It is told in the log when its `caller` has said nothing inside a unit that it does not join. Raises UsageError when it
    is no transaction of this kind of client.
    """
    if txn is None or txn is NOT_SAID:
        around = AMBIENT.get()
        if not isinstance(around, Aside):
            return around
        if txn is NOT_SAID and caller is not None and (unit := around.unit()) is not None:
            unit.left_out(caller)
        return None
    try:
        return txn.inside
    except AttributeError:
        raise no_transaction(txn) from None


def joined_unit() -> Enlisting | None:
    """The unit that operations without `txn=` join."""
    around = AMBIENT.get()
    return None if isinstance(around, Aside) else around


def noted(call: Coroutine[Any, Any, T], txn: Joinable | None) -> Coroutine[Any, Any, T]:
    """A call that was made in a transaction and has to be awaited: the commit fails when that was forgotten."""
    try:
        unit = joined_unit() if txn is None or txn is NOT_SAID else txn.inside
    except (AttributeError, UsageError):
        return call  # which raises it
    if unit is not None:
        unit.called(call)
    return call


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
