"""Schemas that the messages of one topic were written with: versions, fetched once each, before a message is handed out.

`Message.value` cannot wait, so the waiting is here: an entry of a version that is not known yet is held back, with
everything after it, until GET_SCHEMA is answered. Held entries keep their permits, and are dropped with the queue.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from pulsar_txn.client.errors import PulsarError, SchemaMismatch
from pulsar_txn.client.net.attachment import Attachment
from pulsar_txn.client.net.retries import Retries
from pulsar_txn.client.schema.base import Schema, SchemaInfo, WrittenSchema
from pulsar_txn.wire.ids import Position

if TYPE_CHECKING:
    from pulsar_txn.client.receive.message import Entry

logger = logging.getLogger("pulsar_txn.client.consumer")

T = TypeVar("T")
Held: TypeAlias = "tuple[Entry, Sequence[Any], int]"


class WriterSchemas(Generic[T]):
    """The schema versions of one topic, for one of its consumers. `release(entry, rows, live)` takes what may be handed out."""

    def __init__(
        self, attachment: Attachment, schema: WrittenSchema[T], release: Callable[[Entry, Sequence[Any], int], None]
    ) -> None:
        self._attachment = attachment
        self._core = attachment.core
        self._topic = attachment.topic
        self._schema = schema
        self._release = release
        self._known: dict[bytes, SchemaInfo | PulsarError] = {b"": SchemaInfo(0)}
        self._asked: set[bytes] = set()
        self._held: deque[Held] = deque()

    def holds(self, entry: Entry, rows: Sequence[Any], live: int) -> bool:
        """True if the entry has to wait; then it is released in its turn."""
        version = entry.metadata.schema_version
        if not self._held and version in self._known:
            return False
        self._held.append((entry, rows, live))
        if version not in self._known and version not in self._asked:
            self._asked.add(version)
            self._core.spawn(self._learn(version))
        return True

    @property
    def positions(self) -> set[Position]:
        """The entries that wait for a schema."""
        return {entry.position for entry, _, _ in self._held}

    def drop(self) -> int:
        """Forget what is held; how many permits that were."""
        held, self._held = self._held, deque()
        return sum(len(rows) for _, rows, _ in held)

    def decode(self, payload: bytes, version: bytes, schema: Schema[T]) -> T:
        """The value of a payload of this version; SchemaMismatch when the version cannot be had."""
        writer = self.writer(version)
        return schema.decode(payload) if writer is None else self._schema.decode_written(payload, writer)

    def writer(self, version: bytes) -> SchemaInfo | None:
        """The schema of this version, None for the empty one; SchemaMismatch when it cannot be had."""
        known = self._known[version]
        if not version:
            return None
        if isinstance(known, PulsarError):
            raise SchemaMismatch(f"schema version {version.hex()} of {self._topic} cannot be had: {known}") from known
        return known

    async def _learn(self, version: bytes) -> None:
        what = f"asking for schema version {version.hex()} of {self._topic}"
        try:
            retries = Retries(self._core, what, math.inf)
            while version not in self._known:
                async with retries:
                    self._known[version] = await self._ask(version)
        except PulsarError as error:
            logger.warning("%s: %s", what, error)
            self._known[version] = error
        self._asked.discard(version)
        while self._held and self._held[0][0].metadata.schema_version in self._known:
            self._release(*self._held.popleft())

    async def _ask(self, version: bytes) -> SchemaInfo:
        connection = await self._attachment.connected("asking for a schema")
        request_id = self._core.next_request_id()
        answer = await connection.request("getSchema", request_id, topic=self._topic, schema_version=version)
        return SchemaInfo.of(answer.schema)
