"""Validation of arguments and options of a program, one for each kind, whose InvalidConfiguration names the argument.

The validators for attrs come after those for a single value. Nothing here is called for every message, except for what a
message is given beside its value.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from pulsar_txn.client.errors import InvalidConfiguration, TransactionStateError, UsageError
from pulsar_txn.wire.topics import InvalidName, check_subscription

E = TypeVar("E", bound=enum.Enum)
Validator: TypeAlias = "Callable[[Any, attrs.Attribute[Any], Any], None]"

LEAST_SECONDS: Final = 0.001
"""Smallest duration of the protocol, which counts in milliseconds."""

A_WAY_TO_AUTHENTICATE: Final = "a way to authenticate, for instance TokenAuthentication(token)"
A_SOURCE_OF_KEYS: Final = "a source of keys, for instance PemKeys"
A_CONSUMER_INTERCEPTOR: Final = "a ConsumerInterceptor"

_TIME: Final = "give seconds or a timedelta"
_SHOWN: Final = 100


def refused(what: str, value: object, needed: str, *, hint: str | None = None) -> InvalidConfiguration:
    """The error for an argument that is not what is needed."""
    shown = ascii(value)
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}…"
    return InvalidConfiguration(f"{what} must be {needed}, not {shown}", hint=hint)


# --- one value --------------------------------------------------------------------------------------------------------


def validate_text(what: str, value: object) -> None:
    """For what goes to the broker as text."""
    if not isinstance(value, str):
        raise refused(what, value, "text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise refused(what, value, "text that UTF-8 can say", hint="it has half of a surrogate pair") from None


def validate_subscription_name(what: str, value: Any) -> None:
    """For the name of a subscription."""
    validate_text(what, value)
    try:
        check_subscription(value)
    except InvalidName as error:
        raise InvalidConfiguration(str(error)) from None


def validate_whole(what: str, value: object, least: int | None = None, most: int | None = None) -> None:
    """For a whole number; integers of other libraries are some as well."""
    needed = "a whole number" if least is None else f"a whole number, at least {least}"
    if most is not None:
        needed += f" and at most {most}"
    if type(value) is not int:
        try:
            value = operator.index(value)  # type: ignore[arg-type]  # that is the question
        except TypeError:
            raise refused(what, value, needed) from None
    if (least is not None and value < least) or (most is not None and value > most):
        raise refused(what, value, needed)


def validate_texts(what: str, value: object) -> None:
    """For a mapping of text to text."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise refused(what, value, "a mapping of text to text")
    for name, text in value.items():
        if not (isinstance(name, str) and isinstance(text, str) and name.isascii() and text.isascii()):
            validate_text(f"a name in {what}", name)
            validate_text(f"{what}[{name!a}]", text)


def validate_call(what: str, value: object, needed: str = "a function") -> None:
    """For what is called."""
    if not callable(value):
        raise refused(what, value, needed)


def validate_flag(what: str, value: object) -> None:
    """For True and False, and what equals one of them."""
    if not isinstance(value, bool) and not (_is_number(value) and value in (0, 1)):
        raise refused(what, value, "True or False")


def validate_path(what: str, value: object) -> None:
    """For the name of a file."""
    if not isinstance(value, str | Path):
        raise refused(what, value, "the path of a file")


def as_seconds(value: float | timedelta) -> float:
    """Seconds of a timedelta; anything else as it is, to be checked."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def number_of_seconds(value: object, what: str) -> float:
    """A time of any length that a program gave, in seconds."""
    seconds: Any = as_seconds(value)  # type: ignore[arg-type]  # that is the question
    if not _is_number(seconds) or math.isnan(seconds):
        raise _no_time(what, value)
    return float(seconds)


def seconds_of(value: object, what: str) -> float:
    """A time that a program gave, in seconds. InvalidConfiguration, naming `what`, for other values and below a millisecond."""
    seconds = number_of_seconds(value, what)
    if not LEAST_SECONDS <= seconds < math.inf:
        raise InvalidConfiguration(f"{what} must be at least a millisecond, not {value!r}", hint=_TIME)
    return seconds


def one_of(kind: type[E], value: object, what: str, *, hint: str | None = None) -> E:
    """Return a member of an enum for itself, for its value, or for its name in small letters. Raises InvalidConfiguration."""
    if isinstance(value, str) and value.islower() and (member := kind.__members__.get(value.upper())) is not None:
        return member
    try:
        return kind(value)
    except ValueError:
        names = f"{', '.join(_names(kind))}, or {', '.join(repr(name.lower()) for name in kind.__members__)}"
        raise refused(what, value, f"one of {names}", hint=hint) from None


def _names(kind: type[enum.Enum]) -> list[str]:
    return [f"{kind.__name__}.{name}" for name in kind.__members__]


def _no_time(what: str, value: object) -> InvalidConfiguration:
    return InvalidConfiguration(f"{what} is no time: {value!a}", hint=_TIME)


def _is_number(value: object) -> bool:
    """True if it can be counted with: numbers of other libraries can as well, and text can not."""
    return hasattr(type(value), "__float__") or hasattr(type(value), "__index__")


def validate_schema(schema: object, what: str = "schema") -> None:
    """For what encodes and decodes, and is no class of such; None is left out."""
    methods = (getattr(schema, name, None) for name in ("encode", "decode"))
    if schema is not None and (isinstance(schema, type) or not all(callable(each) for each in methods)):
        raise refused(what, schema, "a schema", hint="StringSchema() or JsonSchema(), for instance; without one, bytes")


def no_transaction(txn: object) -> UsageError:
    """The error for what was given as `txn` and is no transaction of this kind of client."""
    if hasattr(type(txn), "savepoint"):
        return TransactionStateError(
            "this transaction belongs to a client of the other kind, sync or asyncio",
            hint="use producers and consumers of the client that began it",
        )
    return refused("txn", txn, "a transaction", hint="enter the block with client.transaction() as txn, and give txn")


# --- attrs ------------------------------------------------------------------------------------------------------------


def at_least(least: float) -> Validator:
    """A number."""

    def check(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not _is_number(value):
            raise refused(attribute.name, value, f"a number, at least {least:g}")
        if not value >= least:
            raise InvalidConfiguration(f"{attribute.name} must be at least {least:g}, not {value!r}")

    return check


def number(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Any number."""
    if not _is_number(value):
        raise refused(attribute.name, value, "a number")


def seconds(least: float) -> Validator:
    """Behind `as_seconds`: a time of at least so many seconds."""

    def check(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not _is_number(value):
            raise _no_time(attribute.name, value)
        if not value >= least:
            raise InvalidConfiguration(f"{attribute.name} must be at least {least:g}, not {value!r}", hint=_TIME)

    return check


def above_zero(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Behind `as_seconds`: a time of more than nothing."""
    if not _is_number(value):
        raise _no_time(attribute.name, value)
    if not value > 0:
        raise InvalidConfiguration(f"{attribute.name} must be more than 0, not {value!r}", hint="give it in seconds")


def whole(least: int | None = None, most: int | None = None) -> Validator:
    """A whole number."""

    def check(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        validate_whole(attribute.name, value, least, most)

    return check


def text(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Text that can be sent."""
    validate_text(attribute.name, value)


def texts(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """A mapping of text to text."""
    validate_texts(attribute.name, value)


def flag(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """True or False, or what equals one of them."""
    validate_flag(attribute.name, value)


def instance(kind: type[Any] | tuple[type[Any], ...], needed: str) -> Validator:
    """An object of a class."""

    def check(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, kind):
            raise refused(attribute.name, value, needed)

    return check


def having(*methods: str, needed: str) -> Validator:
    """An object with these methods, and no class of such."""

    def check(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        validate_methods(attribute.name, value, methods, needed)

    return check


def validate_methods(what: str, value: object, methods: Sequence[str], needed: str) -> None:
    """For an object of the program's own."""
    if isinstance(value, type):
        raise refused(what, value, needed)
    if not all(callable(getattr(value, name, None)) for name in methods):  # such as a token, or the bytes of a key
        raise InvalidConfiguration(f"{what} must be {needed}, not a value of type {type(value).__name__}")


def each_having(*methods: str, needed: str) -> Validator:
    """A sequence of objects with these methods."""

    def check(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise refused(attribute.name, value, f"a sequence, each {needed}")
        for each in value:
            validate_methods(f"each of {attribute.name}", each, methods, needed)

    return check
