"""Protobuf messages from bytes of a stranger: parsed, complete and with readable text, or a typed error.

The parser alone promises less. It returns messages whose required fields are missing, and a string field
that is not UTF-8 comes out as `bytes`, so that the first caller who treats it as text fails far away.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from .errors import MalformedFrame

M = TypeVar("M", bound=Message)

_Texts: TypeAlias = "tuple[tuple[str, bool, _Texts | None], ...]"
"""Per field that is or holds text: name, repeated, and the same for its message type (None: it is text itself)."""

_plans: Final[dict[type[Message], _Texts]] = {}


def parse(message_type: type[M], data: bytes) -> M:
    """The message in `data`; MalformedFrame when it is not one, is incomplete, or holds text that is not UTF-8."""
    message = parse_complete(message_type, data)
    check_text(message)
    return message


def parse_complete(message_type: type[M], data: bytes) -> M:
    """`parse` without the look at texts, for callers who do not read any or look at them by themselves."""
    try:
        message = message_type.FromString(data)
    except DecodeError as error:
        raise MalformedFrame(f"{message_type.__name__} does not parse: {error}") from error
    if not message.IsInitialized():
        raise MalformedFrame(f"{message_type.__name__} lacks required fields")
    return message


def check_text(message: Message) -> None:
    """MalformedFrame when a string field of the message, or of one inside it, is not UTF-8."""
    plan = _plans.get(type(message))
    if plan is None:
        plan = _plans[type(message)] = _plan(cast("Descriptor", message.DESCRIPTOR), ())
    if plan:
        _check(message, plan)


def _plan(descriptor: Descriptor, above: tuple[str, ...]) -> _Texts:
    texts: list[tuple[str, bool, _Texts | None]] = []
    for field in descriptor.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            texts.append((field.name, field.is_repeated, None))
        elif field.message_type is not None and field.message_type.full_name not in above:
            below = _plan(field.message_type, (*above, descriptor.full_name, field.message_type.full_name))
            if below:
                texts.append((field.name, field.is_repeated, below))
    return tuple(texts)


def _check(message: Message, plan: _Texts) -> None:
    for name, repeated, below in plan:
        if below is None:
            value = getattr(message, name)
            if not (all(isinstance(item, str) for item in value) if repeated else isinstance(value, str)):
                raise MalformedFrame(f"{message.DESCRIPTOR.name}.{name} is not UTF-8 text")
        elif repeated:
            for item in getattr(message, name):
                _check(item, below)
        elif message.HasField(name):
            _check(getattr(message, name), below)
