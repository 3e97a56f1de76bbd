"""`@transactional`: each call of a function runs in a transaction of the client that it is given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from pulsar_txn.client._options import check_known
from pulsar_txn.client.client import AsyncClient
from pulsar_txn.client.sync import Client, Transaction
from pulsar_txn.client.txn.attempts import Pauses
from pulsar_txn.client.txn.transaction import AsyncTransaction

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class RunOptionsDict(TypedDict, total=False):
    """The options of `run_transaction` for type checkers and editors."""

    attempts: int
    timeout: float | timedelta
    name: str | None
    backoff: Pauses | None
    retry_unknown: bool
    ambient: bool


class Decorator(Protocol):
    """What `transactional(…)` with options returns."""

    @overload
    def __call__(
        self, work: Callable[Concatenate[AsyncClient, AsyncTransaction, P], Awaitable[T]], /
    ) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]: ...

    @overload
    def __call__(
        self, work: Callable[Concatenate[S, AsyncClient, AsyncTransaction, P], Awaitable[T]], /
    ) -> Callable[Concatenate[S, AsyncClient, P], Coroutine[Any, Any, T]]: ...

    @overload
    def __call__(self, work: Callable[Concatenate[Client, Transaction, P], T], /) -> Callable[Concatenate[Client, P], T]: ...

    @overload
    def __call__(
        self, work: Callable[Concatenate[S, Client, Transaction, P], T], /
    ) -> Callable[Concatenate[S, Client, P], T]: ...

    @overload
    def __call__(self, work: Callable[..., T], /) -> Callable[..., T]: ...


@overload
def transactional(
    work: Callable[Concatenate[AsyncClient, AsyncTransaction, P], Awaitable[T]], /
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]: ...


@overload
def transactional(
    work: Callable[Concatenate[S, AsyncClient, AsyncTransaction, P], Awaitable[T]], /
) -> Callable[Concatenate[S, AsyncClient, P], Coroutine[Any, Any, T]]: ...


@overload
def transactional(work: Callable[Concatenate[Client, Transaction, P], T], /) -> Callable[Concatenate[Client, P], T]: ...


@overload
def transactional(work: Callable[Concatenate[S, Client, Transaction, P], T], /) -> Callable[Concatenate[S, Client, P], T]: ...


@overload
def transactional(work: Callable[..., T], /) -> Callable[..., T]: ...


@overload
def transactional(*, client_arg: str = "client", **options: Unpack[RunOptionsDict]) -> Decorator: ...


def transactional(
    work: Callable[..., Any] | None = None, /, *, client_arg: str = "client", **options: Unpack[RunOptionsDict]
) -> Any:
    """Decorate a function so that each call runs in a transaction of the client that it is given.

        @transactional
        async def transfer(client: AsyncClient, txn: AsyncTransaction, order: str) -> None: ...

        await transfer(client, "order 5")  # the transaction comes in by itself

    `def` with a blocking `Client` works the same way. With `txn` right after the client, type checkers know the arguments of
    the decorated function; it may also come last, or by name only. The client is the argument of the parameter
    `client_arg`, wherever it is, as in `async def pay(self, client, txn)`, or else the first argument.
    `options` are those of `run_transaction`.
    """
    check_known("transactional", options, RunOptionsDict.__annotations__)
    if work is None:
        return functools.partial(_decorated, client_arg, options)
    return _decorated(client_arg, options, work)


def _decorated(client_arg: str, options: RunOptionsDict, work: Callable[..., Any]) -> Callable[..., Any]:
    place = _place_of(work, "txn")

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def unit(txn: object) -> Any:
            if place is None or place > len(args):
                return work(*args, **kwargs, txn=txn)
            return work(*args[:place], txn, *args[place:], **kwargs)

        return _client_of(work, client_arg, args, kwargs).run_transaction(unit, **options)

    @functools.wraps(work)
    async def asynchronous(*args: Any, **kwargs: Any) -> Any:
        return await run(args, kwargs)

    @functools.wraps(work)
    def blocking(*args: Any, **kwargs: Any) -> Any:
        return run(args, kwargs)

    return asynchronous if inspect.iscoroutinefunction(work) else blocking


def _place_of(function: Callable[..., Any], name: str) -> int | None:
    """The place of a parameter among those that can be given by place; None when it has none."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in inspect.signature(function).parameters.values() if each.kind in by_place]
    return names.index(name) if name in names else None


def _client_of(function: Callable[..., Any], client_arg: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The client among the arguments of a decorated function. TypeError when it is not there."""
    if client_arg in kwargs:
        return kwargs[client_arg]
    place, unit = _place_of(function, client_arg) or 0, _place_of(function, "txn")
    if unit is not None and unit < place:
        place -= 1  # the transaction is not among the arguments
    if place >= len(args):
        raise TypeError(f"{function.__qualname__}() needs the client as its argument {client_arg!r}")
    return args[place]
