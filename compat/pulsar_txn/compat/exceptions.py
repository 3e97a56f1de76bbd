"""Exceptions with the official names, flat under PulsarException; each has the code `.result`.

What is raised is of the official name's class *and* of our client's: `except pulsar.Timeout`, `except TimeoutError` and
`except pulsar_txn.client.OperationTimeout` all catch it, and `.hint`, `.retriable` and the rest of our errors are there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Final, ParamSpec, TypeVar

from pulsar_txn.client import errors as ours
from pulsar_txn.compat.enums import RESULT_NAMES, Result

P = ParamSpec("P")
T = TypeVar("T")


class PulsarException(Exception):  # noqa: N818 - the official name
    """Base of all that is raised here on purpose, except ValueError for arguments of a wrong type."""

    result: ClassVar[Any] = Result(1)

    def error(self) -> Any:
        """The same code; `pulsar.asyncio` has it as a method."""
        return self.result


def _class_of(name: str) -> type[PulsarException]:
    return type(name, (PulsarException,), {"result": Result[name], "__doc__": f"Result.{name}", "__module__": __name__})


BY_NAME: Final[dict[str, type[PulsarException]]] = {name: _class_of(name) for name in RESULT_NAMES[1:]}
globals().update(BY_NAME)

OperationNotSupported: Final = BY_NAME["OperationNotSupported"]

_NAME_OF: Final[tuple[tuple[type[ours.PulsarError], str], ...]] = (
    (ours.MessageTooLarge, "MessageTooBig"),
    (ours.InvalidTopicName, "InvalidTopicName"),
    (ours.InvalidConfiguration, "InvalidConfiguration"),
    (ours.AlreadyClosed, "AlreadyClosed"),
    (ours.SchemaMismatch, "InvalidMessage"),
    (ours.ConnectionLost, "ConnectError"),
    (ours.OperationTimeout, "Timeout"),
    (ours.MemoryBufferIsFull, "MemoryBufferIsFull"),
    (ours.ProducerQueueFull, "ProducerQueueIsFull"),
    (ours.MetadataError, "BrokerMetadataError"),
    (ours.PersistenceError, "BrokerPersistenceError"),
    (ours.ServiceNotReady, "ServiceUnitNotReady"),
    (ours.TooManyRequests, "TooManyLookupRequestException"),
    (ours.TopicTerminatedError, "TopicTerminated"),
    (ours.TransactionTimedOut, "Timeout"),
    (ours.CoordinatorUnavailable, "TransactionCoordinatorNotFoundError"),
    (ours.TransactionsDisabled, "TransactionCoordinatorNotFoundError"),
    (ours.InvalidTransactionStatus, "InvalidTxnStatusError"),
    (ours.RemoteProtocolError, "ConnectError"),
)


def name_of(error: ours.PulsarError) -> str:
    """The official name of one of our errors: our class's own where it has the same, or what comes nearest."""
    if type(error).__name__ in BY_NAME:
        return type(error).__name__
    return next((name for cls, name in _NAME_OF if isinstance(error, cls)), "UnknownError")


_BOTH: Final[dict[type[ours.PulsarError], type[PulsarException]]] = {}


def _both(cls: type[ours.PulsarError], name: str) -> type[PulsarException]:
    official = BY_NAME[name]
    parts = {"__module__": __name__, "__doc__": official.__doc__, "__reduce__": _reduced}
    return type(name, (official, cls), parts)


def _reduced(error: Any) -> tuple[Any, ...]:
    return (translated, (error.__cause__,)) if error.__cause__ is not None else (type(error).__mro__[1], error.args)


def translated(error: ours.PulsarError) -> PulsarException:
    """The same error under its official name; an error that has one already is returned as it is."""
    if isinstance(error, PulsarException):
        return error
    cls = _BOTH.get(type(error))
    if cls is None:
        cls = _BOTH[type(error)] = _both(type(error), name_of(error))
    copy = cls.__new__(cls, *error.args)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error
    return copy


def mapped(function: Callable[P, T]) -> Callable[P, T]:
    """Have a method raise our errors under their official names."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ours.PulsarError as error:
            raise translated(error) from error

    return called


def result_of(error: BaseException) -> Any:
    """The Result that a callback is told for a failure."""
    if isinstance(error, PulsarException):
        return error.result
    return Result[name_of(error)] if isinstance(error, ours.PulsarError) else Result(1)


def not_supported(what: str, instead: str) -> PulsarException:
    """An error to raise for what is not here."""
    return OperationNotSupported(f"{what} is not supported by pulsar_txn.compat: {instead}")


__all__ = ["PulsarException", *BY_NAME]
