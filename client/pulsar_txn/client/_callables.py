"""Functions that a program gives us to call: whether they are of the kind that is awaited, or of the other."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pulsar_txn.client._checks import check_call
from pulsar_txn.client.errors import InvalidConfiguration

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def check_takes_one(function: object, what: str) -> None:
    """InvalidConfiguration unless it can be called with one argument, as far as that can be told."""
    check_call(what, function, "a function of one argument")
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]  # it was checked
    except (TypeError, ValueError):
        return  # of some that are written in C it is not known
    try:
        signature.bind(None)
    except TypeError as error:
        raise InvalidConfiguration(f"{what} is called with one argument, and takes {signature}: {error}") from error


def marked(function: F) -> F:
    """A plain function that returns a coroutine, for those that ask whether it is a coroutine function: mocks, for instance."""
    mark: Callable[[F], F] | None = getattr(inspect, "markcoroutinefunction", None)  # newer than Python 3.11
    return function if mark is None else mark(function)


def named_as_public(function: F) -> F:
    """The asynchronous part of a public method: its coroutines have the name of that one, for warnings of Python."""
    function.__qualname__ = function.__qualname__.replace("._", ".")
    return function


async def awaited(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """What `await function(*args)` returns; InvalidConfiguration when there is nothing to await."""
    result: object = function(*args)
    if not inspect.isawaitable(result):
        raise _wrong(f"{function!r} returns {type(result).__name__}, nothing to await", "write it as `async def`")
    return await result  # type: ignore[no-any-return]  # what the function returns


def not_awaitable(result: T, function: object) -> T:
    """The result of a function that is not to be awaited; InvalidConfiguration when it was meant to be."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        hint = "write it as plain `def`, or use the asyncio client"
        raise _wrong(f"{function!r} is asynchronous: nobody would run it here", hint)
    return result


def _wrong(text: str, hint: str) -> InvalidConfiguration:
    error = InvalidConfiguration(text, hint=hint)
    error.fatal = True  # no message is to blame, and no other attempt would be better
    return error
