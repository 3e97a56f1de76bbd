"""What `send` was given, as the arguments of our client's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pulsar_txn.compat._arguments import check, check_optional
from pulsar_txn.compat.schema import Schema


def outgoing(
    schema: Schema,
    content: Any,
    properties: Any,
    partition_key: Any,
    ordering_key: Any,
    sequence_id: Any,
    replication_clusters: Any,
    disable_replication: Any,
    event_timestamp: Any,
    deliver_at: Any,
    deliver_after: Any,
) -> tuple[bytes | None, dict[str, Any]]:
    """The payload (None: a tombstone) and the keywords of our `send`. ValueError for a value of a wrong type."""
    payload = None if content is None else schema.encode(content)
    check_optional(bytes, payload, "data")
    check_optional(dict, properties, "properties")
    check_optional(str, partition_key, "partition_key")
    check_optional(str, ordering_key, "ordering_key")
    check_optional(int, sequence_id, "sequence_id")
    check_optional(list, replication_clusters, "replication_clusters")
    check(bool, disable_replication, "disable_replication")
    check_optional(int, event_timestamp, "event_timestamp")
    check_optional(int, deliver_at, "deliver_at")
    check_optional(timedelta, deliver_after, "deliver_after")
    options: dict[str, Any] = {}
    if properties:
        options["properties"] = properties
    if partition_key:
        options["key"] = partition_key
    if ordering_key:
        options["ordering_key"] = ordering_key.encode()
    if sequence_id is not None:
        options["sequence_id"] = sequence_id
    if event_timestamp:
        options["event_time_ms"] = event_timestamp
    if deliver_at:
        options["deliver_at"] = datetime.fromtimestamp(deliver_at / 1000, UTC)
    elif deliver_after:
        options["deliver_after"] = deliver_after
    if replication_clusters or disable_replication:
        options["replicate_to"] = [] if disable_replication else replication_clusters
    return payload, options
