"""Methods of producers of both kinds: official arguments become those of our `send`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from pulsar_txn.client.inside import NOT_SAID
from pulsar_txn.compat._arguments import check_optional, done
from pulsar_txn.compat.exceptions import mapped
from pulsar_txn.compat.messages import MessageId, Outgoing
from pulsar_txn.compat.schema import Schema
from pulsar_txn.compat.transactions import native


class Producing:
    """A producer of the client, blocking or asyncio, under the official names."""

    def __init__(
        self, own: Any, schema: Schema, initial_sequence_id: int | None, router: Callable[[Any, int], int] | None
    ) -> None:
        self._ours = own
        self._schema = schema
        self._router = router
        self._initial_sequence_id = -1 if initial_sequence_id is None else initial_sequence_id

    @mapped
    def topic(self) -> str:
        """The topic's full name."""
        return self._ours.topic  # type: ignore[no-any-return]  # either kind's

    @mapped
    def producer_name(self) -> str:
        """The name given, or the broker's choice."""
        return self._ours.producer_name  # type: ignore[no-any-return]  # either kind's

    @mapped
    def last_sequence_id(self) -> int:
        """The highest sequence id that has a receipt; before the first the initial one, else -1."""
        last: int = self._ours.last_sequence_id
        return max(last, self._initial_sequence_id)

    @mapped
    def is_connected(self) -> bool:
        """True while all partitions are connected."""
        return self._ours.is_connected  # type: ignore[no-any-return]  # either kind's

    def outgoing(
        self,
        content: Any,
        properties: dict[str, str] | None,
        partition_key: str | None,
        ordering_key: str | None,
        sequence_id: int | None,
        replication_clusters: list[str] | None,
        disable_replication: bool | None,
        event_timestamp: int | None,
        deliver_at: int | None,
        deliver_after: timedelta | None,
        txn: Any,
    ) -> tuple[bytes | None, dict[str, Any]]:
        """The payload (None: a tombstone) and the keywords of our `send`. ValueError for a value of a wrong type."""
        payload = None if content is None else self._schema.encode(content)
        check_optional(bytes, payload, "data")
        check_optional(dict, properties, "properties")
        check_optional(str, partition_key, "partition_key")
        check_optional(str, ordering_key, "ordering_key")
        check_optional(int, sequence_id, "sequence_id")
        check_optional(list, replication_clusters, "replication_clusters")
        check_optional(bool, disable_replication, "disable_replication")
        check_optional(int, event_timestamp, "event_timestamp")
        check_optional(int, deliver_at, "deliver_at")
        check_optional(timedelta, deliver_after, "deliver_after")
        options: dict[str, Any] = {"txn": native(txn)}
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
        if self._router is not None and self._ours.partitions:
            options["partition"] = int(self._router(Outgoing(payload or b"", options), self._ours.partitions))
        return payload, options


async def send(
    self: Producing,
    content: Any,
    properties: dict[str, str] | None = None,
    partition_key: str | None = None,
    ordering_key: str | None = None,
    sequence_id: int | None = None,
    replication_clusters: list[str] | None = None,
    disable_replication: bool | None = None,
    event_timestamp: int | None = None,
    deliver_at: int | None = None,
    deliver_after: timedelta | None = None,
    *,
    txn: Any = NOT_SAID,
) -> MessageId:
    """Send one value and wait for its receipt; None is a tombstone. `txn` is one of `client.transaction()`.

    If the asyncio client's is cancelled, the message may be sent all the same.
    """
    payload, options = self.outgoing(
        content,
        properties,
        partition_key,
        ordering_key,
        sequence_id,
        replication_clusters,
        disable_replication,
        event_timestamp,
        deliver_at,
        deliver_after,
        txn,
    )
    return MessageId.wrap(await done(self._ours.send(payload, **options)), self._ours.topic)
