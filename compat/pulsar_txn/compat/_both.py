"""How one body serves both kinds of client: it awaits what may have to be awaited, and blocking objects never suspend it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.inside import NOT_SAID, marked, noted
from pulsar_txn.compat.exceptions import translated

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
