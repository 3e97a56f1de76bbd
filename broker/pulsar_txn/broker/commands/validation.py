"""Names that clients give: what may not be one is refused before anything is done."""

from __future__ import annotations

from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.topics import (
    ASSIGN_TOPIC,
    MAX_SUBSCRIPTION_BYTES,
    InvalidName,
    TopicName,
    check_subscription,
    is_transaction_internal,
)


def validate_subscription_name(name: str) -> None:
    """Refusal NotAllowedError for what cannot be the name of a subscription."""
    try:
        check_subscription(name)
    except InvalidName as error:
        raise Refusal(ServerError.NotAllowedError, str(error)) from None


def validate_client_name(kind: str, name: str) -> None:
    """Refusal NotAllowedError for the name of a producer or consumer that is too long: the broker keeps it in memory."""
    if len(name.encode()) > MAX_SUBSCRIPTION_BYTES:
        text = f"the name of {kind} {name[:80]!r}… has more than {MAX_SUBSCRIPTION_BYTES} bytes; choose a shorter name"
        raise Refusal(ServerError.NotAllowedError, text)


def validate_user_topic(name: TopicName) -> None:
    """Refusal NotAllowedError for topics of the transaction machinery, which clients may not create."""
    if is_transaction_internal(str(name)) or str(name.base) == ASSIGN_TOPIC:
        raise Refusal(ServerError.NotAllowedError, f"{name} belongs to the transaction machinery")
