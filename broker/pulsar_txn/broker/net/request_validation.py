"""Limits of the texts and lists of a request, checked before anything of it is carried out, whatever its kind."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import Message

from pulsar_txn.broker.base.limits import MAX_ACK_IDS
from pulsar_txn.wire.errors import Refusal, ServerError

MAX_TEXT_LENGTH: Final = 65_536
MAX_PROPERTIES: Final = 100
MAX_ITEMS: Final = 1000
_MOST: Final = {"KeyValue": MAX_PROPERTIES, "MessageIdData": MAX_ACK_IDS}
"""Of a repeated field, by the type of its items; else MAX_ITEMS."""
_NAMES: Final = frozenset({"topic", "subscription", "namespace", "initial_subscription_name"})
"""The parsers of these refuse long ones, with a code and a text of their own."""


def validate_request(body: Message) -> None:
    """Refusal NotAllowedError for a body, or a message in it, with a text or a list that is too long."""
    for field, value in body.ListFields():
        if isinstance(value, str):
            if len(value) > MAX_TEXT_LENGTH and field.name not in _NAMES:
                raise _refused(field.name, f"has {len(value)} characters, and {MAX_TEXT_LENGTH} are the most")
        elif isinstance(value, Message):
            validate_request(value)
        elif not isinstance(value, (bytes, int, float)):
            _validate_list(field, value)


def _validate_list(field: Any, values: Any) -> None:
    kind = field.message_type.name if field.message_type is not None else ""
    most = _MOST.get(kind, MAX_ITEMS)
    if len(values) > most:
        raise _refused(field.name, f"has {len(values)} items, and {most} are the most")
    if kind == "KeyValue" and any(len(each.key) + len(each.value) > MAX_TEXT_LENGTH for each in values):
        raise _refused(field.name, f"has a property of more than {MAX_TEXT_LENGTH} characters")


def _refused(name: str, what: str) -> Refusal:
    return Refusal(ServerError.NotAllowedError, f"{name} {what}; send less of it")
