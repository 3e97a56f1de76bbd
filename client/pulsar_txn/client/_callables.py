"""Functions that a program gives us to call: whether they are of the kind that is awaited, or of the other.

And what the client's own functions return to those who write `await` or `async with` before it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, TypeVar

from pulsar_txn.client._validation import validate_call
from pulsar_txn.client.errors import InvalidConfiguration

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=AbstractAsyncContextManager[Any])
P = ParamSpec("P")
T = TypeVar("T")


def check_takes_one(function: object, what: str) -> None:
    """InvalidConfiguration unless it can be called with one argument, as far as that can be told."""
    validate_call(what, function, "a function of one argument")
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
    """Await `function(*args)`; InvalidConfiguration when there is nothing to await."""
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
    return InvalidConfiguration(text, hint=hint, fatal=True)  # no message is to blame, and no other attempt would be better


class Opened(Coroutine[Any, Any, M], Generic[M]):
    """Resource that the client makes and a program closes: `await` gives it, and `async with` closes it as well.

    A coroutine for everybody who takes one.
    """

    def __init__(self, call: Coroutine[Any, Any, M]) -> None:
        self._call = call
        self._made: M | None = None

    def send(self, value: Any, /) -> Any:
        """See `collections.abc.Coroutine`."""
        return self._call.send(value)

    def throw(self, *error: Any) -> Any:
        """See `collections.abc.Coroutine`."""
        return self._call.throw(*error)

    def close(self) -> None:
        """See `collections.abc.Coroutine`."""
        self._call.close()

    def __await__(self) -> Generator[Any, Any, M]:
        return self._call.__await__()

    async def __aenter__(self) -> M:
        self._made = made = await self._call
        await made.__aenter__()
        return made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return None if self._made is None else await self._made.__aexit__(kind, error, traceback)


def opens(function: Callable[P, Coroutine[Any, Any, M]]) -> Callable[P, Opened[M]]:
    """A method whose result may be awaited, or entered with `async with`."""

    @marked
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Opened[M]:
        return Opened(function(*args, **kwargs))

    return call


class _Done(Awaitable[None]):
    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


DONE: Final[Awaitable[None]] = _Done()
"""Result of a call that has nothing to wait for; a program may await it all the same."""
