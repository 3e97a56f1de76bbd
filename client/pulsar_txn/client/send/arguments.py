"""Arguments of a send beside its value, checked before the message is queued: a batch is encoded later, as a whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from pulsar_txn.client._validation import refused, validate_text, validate_texts
from pulsar_txn.client.send.batching import Alone

_NO_OTHER_CLUSTER: Final = "__local__"
"""Pulsar's word in `replicate_to` for a message that is not replicated."""

_MAX_LONG: Final = 2**63 - 1
_MAX_SECONDS: Final = 2**50


def check(key: Any, ordering_key: Any, properties: Any, event_time_ms: Any, sequence_id: Any) -> None:
    """InvalidConfiguration, naming the argument, when one of them cannot be sent."""
    if key is not None:
        validate_text("key", key)
    if ordering_key is not None and not isinstance(ordering_key, bytes):
        raise refused("ordering_key", ordering_key, "bytes", hint="encode it")
    if properties is not None:
        validate_texts("properties", properties)
    if event_time_ms is not None:
        _check_number("event_time_ms", event_time_ms)
    if sequence_id is not None:
        _check_number("sequence_id", sequence_id)


def alone(
    deliver_at: datetime | None, deliver_after: float | timedelta | None, replicate_to: Sequence[str] | None, now_ms: int
) -> Alone:
    """Return the reason for which a message shares no batch. Raises InvalidConfiguration, which names the argument."""
    due = None
    if deliver_at is not None or deliver_after is not None:
        due = _deliver_at_ms(deliver_at, deliver_after, now_ms)
    if replicate_to is None:
        return Alone(due)
    if isinstance(replicate_to, str | bytes) or not isinstance(replicate_to, Collection):
        raise refused("replicate_to", replicate_to, "a sequence of names of clusters", hint="write ['eu'] for one")
    for name in replicate_to:
        validate_text("a cluster of replicate_to", name)
    return Alone(due, tuple(replicate_to) or (_NO_OTHER_CLUSTER,))


def _deliver_at_ms(deliver_at: datetime | None, deliver_after: float | timedelta | None, now_ms: int) -> int:
    if deliver_at is not None:
        if not isinstance(deliver_at, datetime):
            raise refused("deliver_at", deliver_at, "a datetime", hint="deliver_after takes seconds")
        if deliver_at.utcoffset() is None:
            raise refused("deliver_at", deliver_at, "a datetime with a time zone", hint="datetime.now(UTC) has one")
        return int(deliver_at.timestamp() * 1000)
    seconds = deliver_after.total_seconds() if isinstance(deliver_after, timedelta) else deliver_after or 0.0
    if not isinstance(seconds, int | float) or not abs(seconds) < _MAX_SECONDS:
        raise refused("deliver_after", deliver_after, "seconds or a timedelta")
    return now_ms + int(seconds * 1000)


def _check_number(what: str, value: Any) -> None:
    if not isinstance(value, int) or not 0 <= value <= _MAX_LONG:
        raise refused(what, value, "a whole number, 0 or more, of at most 63 bits")
