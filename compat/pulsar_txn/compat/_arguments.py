"""Checks of arguments, and bodies that serve both kinds of client.

Wrong types are ValueErrors, as programs for the official client expect; dead arguments are warned of. One body awaits what may
have to be awaited, and blocking objects never suspend it.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.inside import NOT_SAID, marked, noted
from pulsar_txn.compat.exceptions import translated

_OURS: Final = "pulsar_txn.compat"


def check(kind: type | tuple[type, ...], value: object, name: str) -> None:
    """ValueError unless `value` is of this type."""
    if not isinstance(value, kind):
        expected = kind.__name__ if isinstance(kind, type) else " or ".join(each.__name__ for each in kind)
        raise ValueError(f"{name} must be of type {expected}, not {type(value).__name__}")  # noqa: TRY004 - the official client's class


def check_optional(kind: type | tuple[type, ...], value: object, name: str) -> None:
    """Check a value as `check` does; None will do."""
    if value is not None:
        check(kind, value, name)


def dead(name: str, value: Any, default: Any, why: str) -> None:
    """Warn of a parameter that is accepted and has no effect, when it was given; the warning is the program's, not ours."""
    if value == default:
        return
    level, frame = 1, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{name} has no effect: {why}", DeprecationWarning, stacklevel=level)


P = ParamSpec("P")
T = TypeVar("T")


async def done(result: T | Awaitable[T]) -> T:
    """The result of a method of the client, blocking or asyncio."""
    if inspect.isawaitable(result):
        return await result
    return result


def awaiting(body: Callable[P, Coroutine[Any, Any, T]], *, of_unit: bool = False) -> Callable[P, Coroutine[Any, Any, T]]:
    """A body as a method of the asyncio client: our errors are raised under their official names.

    What is called with `txn=`, or is an operation of a unit itself, has to be awaited before the commit, as in our client.
    """
    takes_txn = "txn" in inspect.signature(body).parameters

    @functools.wraps(body)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await body(*args, **kwargs)
        except PulsarError as error:
            raise translated(error) from error

    if not (takes_txn or of_unit):
        return run

    @marked
    @functools.wraps(body)
    def called(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        call = run(*args, **kwargs)
        txn: Any = args[0] if of_unit else kwargs.get("txn", NOT_SAID)
        return noted(call, txn.native() if hasattr(txn, "native") else txn)

    return called


def blocking(body: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """A body as a method of the blocking client: it runs to its end at once. Errors as `awaiting`."""

    @functools.wraps(body)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            body(*args, **kwargs).send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the body returned
        except PulsarError as error:
            raise translated(error) from error
        raise RuntimeError("a method of the blocking client has waited")

    return called
