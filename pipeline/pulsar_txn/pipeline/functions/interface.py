"""Interface that a function file is written with: `Function` and `SerDe`, under their official names."""

from __future__ import annotations

from typing import Any, Final

from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch

_TYPES: Final = (int, float, complex, str)


class Function:
    """A function with a context. What `process` returns goes to the output topic; None sends nothing.

    `process` may be a coroutine function, which the official runtime does not support.
    """

    def process(self, input: Any, context: Any) -> Any:  # noqa: A002 - the official name
        """Called once per message: `input` is what the input's SerDe made of it, `context` a `Context`."""
        raise NotImplementedError(f"{type(self).__name__} has no process(input, context)")


class SerDe:
    """Conversion of values to bytes and back. Each instance has its own object, and calls it for one message at a time."""

    def serialize(self, input: Any) -> bytes:  # noqa: A002 - the official name
        """The payload of a value."""
        raise NotImplementedError(f"{type(self).__name__} has no serialize(input)")

    def deserialize(self, input_bytes: bytes) -> Any:
        """The value of a payload."""
        raise NotImplementedError(f"{type(self).__name__} has no deserialize(input_bytes)")


class IdentitySerDe(SerDe):
    """Bytes as they are; numbers and text as text.

    Reading takes the first that the payload can be: int, float, complex, str, bytes. So `b"42"` is 42, as in the official
    runtime. SchemaMismatch for a value of any other type.
    """

    def serialize(self, input: Any) -> bytes:  # noqa: A002 - the official name
        """UTF-8 of a number or a text; bytes unchanged."""
        if type(input) is bytes:
            return input
        if type(input) in _TYPES:
            return str(input).encode()
        raise SchemaMismatch(
            f"IdentitySerDe cannot serialize {type(input).__name__}", hint="return bytes, text or a number, or name a SerDe"
        )

    def deserialize(self, input_bytes: bytes) -> Any:
        """The first of the types that fits."""
        for kind in _TYPES:
            try:
                return kind(input_bytes.decode())
            except ValueError:
                continue
        return input_bytes


class PickleSerDe(SerDe):
    """Refused: InvalidConfiguration. Unpickling runs code of whoever can write to the topic."""

    def __init__(self) -> None:
        refuse_pickle()


def refuse_pickle() -> None:
    """InvalidConfiguration that says why."""
    raise InvalidConfiguration(
        "PickleSerDe is refused: to unpickle what a topic holds runs code of whoever can write to it",
        hint="write a SerDe of your own, with json for instance",
    )
