"""Reading the values of a function's configuration: each reader takes a key and its value, and names the key in its error."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from pulsar_txn.client.errors import InvalidConfiguration

T = TypeVar("T")
Read: TypeAlias = Callable[[str, Any], Any]

IGNORED: Final = {
    "resources": "a process has what its machine gives it",
    "runtimeFlags": "there is no process to start with them",
    "customRuntimeOptions": "there is no other runtime to hand them to",
    "cleanupSubscription": "the subscription stays; a run is not the function's deletion",
    "exposePulsarAdminClientEnabled": "there is no administration client in a context",
}
"""Official keys that are accepted with a warning, and why they do nothing."""

REFUSED: Final = {
    "jar": "this runs Python: py",
    "go": "this runs Python: py",
    "functionType": "built-in functions are Java's: give className and py",
    "customSchemaOutputs": "give outputSchemaType",
    "autoAck": "leave it out; instead of autoAck: false there is processingGuarantees: MANUAL",
    "batchBuilder": "it belongs into producerConfig",
    "skipToLatest": "subscriptionPosition: LATEST for a new subscription; for an old one, `pulsar-admin topics clear-backlog`",
}
"""Official keys that would change what the function does, and what to do instead."""

SAYS_NOTHING: Final = (("autoAck", True), ("skipToLatest", False))
"""Official keys with the values that official tools send when nobody asked for something else."""


def text(key: str, value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InvalidConfiguration(f"{key} must be a text, not {value!r}")
    return value


def texts(key: str, value: Any) -> tuple[str, ...]:
    """A list of texts; a single text becomes a list."""
    those = [value] if isinstance(value, str) else value
    if not isinstance(those, (list, tuple)):
        raise InvalidConfiguration(f"{key} must be a list of texts, not {value!r}")
    return tuple(text(key, each) for each in those)


def boolean(key: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InvalidConfiguration(f"{key} must be true or false, not {value!r}")
    return value


def whole(least: int) -> Callable[[str, Any], int]:
    """A whole number from `least` on."""

    def read(key: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidConfiguration(f"{key} must be a whole number, at least {least}, not {value!r}")
        return value

    return read


milliseconds: Final = whole(1)


def choice(among: Mapping[str, T]) -> Callable[[str, Any], T]:
    """One of these names, in any case."""

    def read(key: str, value: Any) -> T:
        # YAML 1.1 reads OFF as false: the text of the file says what was meant.
        name = {False: "OFF", True: "ON"}[value] if isinstance(value, bool) else str(value).upper()
        if name not in among:
            raise InvalidConfiguration(f"{key} must be one of {', '.join(among)}, not {value!r}")
        return among[name]

    return read


def mapping(read: Read | None = None) -> Callable[[str, Any], dict[str, Any]]:
    """A mapping; its values by `read`."""

    def read_all(key: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise InvalidConfiguration(f"{key} must be a mapping, not a value of type {type(value).__name__}")
        return {str(name): each if read is None else read(f"{key}.{name}", each) for name, each in value.items()}

    return read_all


def section(cls: Callable[..., T], key: str, value: Any, keys: Mapping[str, tuple[str, Read]]) -> T:
    """A mapping with known keys, as an object of `cls`."""
    given = {name: each for name, each in mapping()(key, value).items() if each is not None}
    refuse_unknown(f"{key}.", given, keys)
    return cls(**{keys[name][0]: keys[name][1](f"{key}.{name}", each) for name, each in given.items()})


def refuse_unknown(where: str, given: Iterable[str], known: Mapping[str, object]) -> None:
    """InvalidConfiguration for a key that is not known, with the one that may be meant."""
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f"do you mean {where}{near[0]}?" if near else f"known are {', '.join(sorted(known))}"
            raise InvalidConfiguration(f"{where}{key} is no key of a function's configuration", hint=hint)
