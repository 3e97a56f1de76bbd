"""Arguments of a consistent reader, and their validation before it is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import attrs

from pulsar_txn.client._options import options_of
from pulsar_txn.client._validation import refused, seconds_of, validate_whole
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.consistent.planner import Limits
from pulsar_txn.client.receive.consistent.position import CutPosition
from pulsar_txn.client.receive.consistent.reader import AsyncConsistentReader
from pulsar_txn.client.receive.consistent.reading import ConsistentReading
from pulsar_txn.client.receive.consistent.start_positions import StartPositions
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.schema.base import Schema
from pulsar_txn.wire.ids import MessageId
from pulsar_txn.wire.topics import TopicName

_NOT_HERE: Final = {
    "read_compacted": "a compacted topic has lost parts of transactions; a consistent reader reads all messages",
    "auto_update_partitions": "new partitions are looked for when a transaction may have messages in one",
    "durable": "a reader's subscription goes with it",
    "consumer_name": "leave it out",
    "start_message_id": "give start=",
    "start_message_id_inclusive": "give start=",
}
"""Options of readers and consumers that have no place here, and why."""


def _whole(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    validate_whole(attribute.name, value, 1)


@attrs.frozen(kw_only=True)
class Bounds:
    """Bounds of what a consistent reader keeps, and of how often it asks; see `Client.consistent_reader`."""

    max_ahead: int = attrs.field(validator=_whole)
    max_cut_messages: int = attrs.field(validator=_whole)
    max_cut_bytes: int = attrs.field(validator=_whole)
    check_interval: float | timedelta


async def open_consistent_reader(
    core: Core,
    topics: Sequence[TopicName],
    start: MessageId | CutPosition,
    schema: Schema[Any],
    options: Mapping[str, Any],
    bounds: Bounds,
) -> AsyncConsistentReader[Any]:
    """Check everything, and begin to read. Raises as `Client.consistent_reader`."""
    core.check_open()
    if not topics:
        raise InvalidConfiguration("no topic to read")
    if not isinstance(start, MessageId | CutPosition):
        raise refused("start", start, "EARLIEST_ID, LATEST_ID or the position of a cut")
    for name, why in _NOT_HERE.items():
        if options.get(name):
            raise InvalidConfiguration(f"a consistent reader takes no {name}", hint=why)
    chosen = options_of(ConsumerOptions, {**options, "durable": False, "auto_update_partitions": 0}, "consistent_reader")
    if not chosen.consumer_type.is_single:
        raise InvalidConfiguration("a consistent reader keeps the order, and is alone", hint="leave out consumer_type")
    limits = Limits(bounds.max_ahead, bounds.max_cut_messages, bounds.max_cut_bytes)
    start_positions = StartPositions(core, list(dict.fromkeys(topics)), start)
    interval = seconds_of(bounds.check_interval, "check_interval")
    reading: ConsistentReading[Any] = ConsistentReading(core, start_positions, schema, chosen, limits, interval)
    reader: AsyncConsistentReader[Any] = AsyncConsistentReader(reading)
    await reading.start(reader)
    return reader
