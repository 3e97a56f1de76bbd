"""Catalog of what there is: topics, partition counts, schemas, topic epochs, producer names; all in the metadata store.

Paths are Pulsar's own, so that another provider of the store may be shared with a Pulsar cluster's tools.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

import attrs

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.base.slices import LoopBudget
from pulsar_txn.ledger.protocols import LogStore, VersionConflict, Versioned
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.topics import ASSIGN_TOPIC, TopicName, is_transaction_internal, pending_ack_topic, why_reserved

from .index import TopicIndex
from .lists import TopicLists

Schema: TypeAlias = tuple[int, str, bytes, dict[str, str]]
"""`(type number, name, schema data, properties)`."""

_PARTITIONED: Final = "/admin/partitioned-topics"
_MAX_PARTITIONS: Final = 10_000
_MAX_SCHEMAS: Final = 1000
_MAX_SCHEMA_BYTES: Final = 1 << 20
"""Of all versions of a topic, which are one value in the metadata store."""
_MAX_COORDINATORS: Final = 1024


def log_name(topic: TopicName) -> str:
    """The log of a topic: Pulsar's managed-ledger name."""
    return f"{topic.tenant}/{topic.namespace}/{topic.domain}/{quote(topic.name, safe='')}"


def role_log_name(topic: TopicName, role: str) -> str:
    """A log that a transaction buffer has beside the topic; outside the names of topics."""
    return f"{topic.tenant}/{topic.namespace}/transaction-buffer/{quote(topic.name, safe='')}-{role}"


def pending_ack_log_name(topic: TopicName, subscription: str) -> str:
    """The redo log of a subscription's pending acks, named after its topic as in Pulsar."""
    return log_name(attrs.evolve(topic, name=pending_ack_topic(topic.name, subscription)))


class Catalog:
    """Questions and changes; whatever returns from a change is durable. `lists`: who watches the names of topics."""

    def __init__(self, store: LogStore, config: BrokerConfig, lists: TopicLists) -> None:
        self._store = store
        self._metadata = store.metadata
        self._config = config
        self._names = 0
        self._boot = ""
        self.coordinators = 0  # 0 when transactions are off
        self.index = TopicIndex(lists)

    async def start(self, budget: LoopBudget) -> None:
        """Learn what there is. One durable number per start makes the names of producers unique for ever."""
        await self.index.load(self._store.names(), budget)
        await self._load_partitioned(budget)
        boot = await self._metadata.increment("/counters/producer-name")
        self._boot = f"{self._config.cluster_name}-{boot}"
        if self._config.transaction_coordinator_enabled:
            grown = _partitions_of(await self._metadata.get(_COORDINATORS))
            self.coordinators = max(grown, self._config.number_of_transaction_coordinators)

    def new_producer_name(self) -> str:
        """A name that no producer ever had."""
        self._names += 1
        return f"{self._boot}-{self._names - 1}"

    # ---- topics

    def exists(self, topic: TopicName) -> bool:
        """True if a persistent topic (or one partition) is there."""
        return self._store.exists(log_name(topic))

    async def partitions(self, topic: TopicName) -> int:
        """The partition count of a partitioned topic, 0 for all others."""
        if str(topic) == ASSIGN_TOPIC:
            return self.coordinators
        return _partitions_of(await self._metadata.get(_partitioned_path(topic)))

    async def partitions_or_create(self, topic: TopicName, *, may_create: bool) -> int:
        """As `partitions`; a topic that is not there becomes a partitioned one when the configuration says so."""
        count = await self.partitions(topic)
        config = self._config
        partitioned = config.allow_auto_topic_creation and config.allow_auto_topic_creation_type == "partitioned"
        if count or not may_create or not partitioned or topic.partition >= 0 or self.exists(topic):
            return count
        if is_transaction_internal(str(topic)) or why_reserved(topic) is not None:
            return 0
        try:
            await self.create_partitioned(topic, config.default_num_partitions)
        except Refusal:  # somebody else was faster
            return await self.partitions(topic)
        return config.default_num_partitions

    async def create_partitioned(self, topic: TopicName, partitions: int) -> None:
        """Make a partitioned topic. Refusal NotAllowedError when there is one, or the count makes no sense."""
        if not 1 <= partitions <= _MAX_PARTITIONS:
            raise Refusal(ServerError.NotAllowedError, f"{partitions} partitions: give a number from 1 to {_MAX_PARTITIONS}")
        if self.exists(topic):
            raise Refusal(ServerError.NotAllowedError, f"{topic} is there already, without partitions")
        if (reason := why_reserved(topic)) is not None:
            raise Refusal(ServerError.NotAllowedError, reason)
        data = json.dumps({"partitions": partitions}).encode()
        try:
            await self._metadata.put(_partitioned_path(topic), data, expected_version=-1)
        except VersionConflict:
            raise Refusal(ServerError.NotAllowedError, f"{topic} is there already") from None
        self.index.partitions_set(topic, partitions)

    async def grow_partitioned(self, topic: TopicName, partitions: int) -> int:
        """So many partitions from now on; returns how many there were.

        Refusal NotAllowedError: not a partitioned topic, or changed just now. ValueError: fewer than now, or too many.
        """
        path = _partitioned_path(topic)
        stored = await self._metadata.get(path)
        if stored is None:
            raise Refusal(ServerError.NotAllowedError, f"Topic {topic} is not the partitioned topic.")
        now = _partitions_of(stored)
        if partitions < now:
            raise ValueError(f"Desired partitions {partitions} can't be less than the current partitions {now}.")
        if partitions > _MAX_PARTITIONS:
            raise ValueError(f"{partitions} partitions: {_MAX_PARTITIONS} are the most")
        if partitions > now:
            data = json.dumps({"partitions": partitions}).encode()
            try:
                await self._metadata.put(path, data, expected_version=stored.version)
            except VersionConflict:
                raise Refusal(ServerError.NotAllowedError, f"{topic} was changed just now") from None
            self.index.partitions_set(topic, partitions)
        return now

    async def delete_partitioned(self, topic: TopicName) -> None:
        """Forget that a topic is partitioned; the caller deletes its partitions."""
        await self._metadata.delete(_partitioned_path(topic))
        self.index.partitions_removed(topic)

    async def grow_coordinators(self, count: int) -> None:
        """So many coordinators from now on, also after a restart. Refusal NotAllowedError when that is not more than now."""
        stored = await self._metadata.get(_COORDINATORS)
        now = max(self.coordinators, _partitions_of(stored))  # what is stored may not be durable yet
        if not now < count <= _MAX_COORDINATORS:
            text = f"there are {now} transaction coordinators, and there may be {_MAX_COORDINATORS} at most"
            raise Refusal(ServerError.NotAllowedError, text)
        version = -1 if stored is None else stored.version
        try:
            await self._metadata.put(_COORDINATORS, json.dumps({"partitions": count}).encode(), expected_version=version)
        except VersionConflict:
            raise Refusal(ServerError.NotAllowedError, "the number of coordinators was changed just now") from None
        self.coordinators = max(self.coordinators, count)

    async def _load_partitioned(self, budget: LoopBudget) -> None:
        for tenant in await self._metadata.children(_PARTITIONED):
            for namespace in await self._metadata.children(f"{_PARTITIONED}/{tenant}"):
                names = await self._metadata.children(f"{_PARTITIONED}/{tenant}/{namespace}/persistent")
                async for name in budget.each(names):
                    topic = TopicName("persistent", tenant, namespace, unquote(name))
                    self.index.partitions_set(topic, await self.partitions(topic))

    # ---- epochs

    async def topic_epoch(self, topic: TopicName) -> int:
        """The newest epoch of exclusive producers, -1 before the first."""
        value = await self._metadata.get(_epoch_path(topic))
        return -1 if value is None else int(json.loads(value.data)["topicEpoch"])

    async def set_topic_epoch(self, topic: TopicName, epoch: int) -> None:
        """Durable when it returns."""
        await self._metadata.put(_epoch_path(topic), json.dumps({"topicEpoch": epoch}).encode())

    # ---- schemas

    async def schema(self, topic: TopicName, version: int | None = None) -> tuple[Schema, int] | None:
        """A schema and its version number (the newest without `version`), None if absent."""
        schemas = await self._schemas(topic)
        index = len(schemas) - 1 if version is None else version
        return (_from_json(schemas[index]), index) if 0 <= index < len(schemas) else None

    async def schema_version(self, topic: TopicName, schema: Schema) -> int:
        """The version number of a schema, which is stored if it is new. Compatibility is not judged."""
        entry = _to_json(schema)
        while True:
            stored = await self._metadata.get(_schema_path(topic))
            schemas: list[Any] = [] if stored is None else json.loads(stored.data)
            if entry in schemas:
                return schemas.index(entry)
            if len(schemas) >= _MAX_SCHEMAS:
                text = f"{topic.base} has {_MAX_SCHEMAS} versions of its schema, as many as may be; use one of those"
                raise Refusal(ServerError.NotAllowedError, text)
            data = json.dumps([*schemas, entry]).encode()
            if len(data) > _MAX_SCHEMA_BYTES:
                text = (
                    f"the schemas of {topic.base} would have {len(data)} bytes, more than the {_MAX_SCHEMA_BYTES} that they may"
                )
                raise Refusal(ServerError.NotAllowedError, f"{text}; use a smaller one, or another topic")
            try:
                await self._metadata.put(_schema_path(topic), data, expected_version=-1 if stored is None else stored.version)
            except VersionConflict:
                continue
            return len(schemas)

    async def delete_schemas(self, tenant: str, namespace: str, budget: LoopBudget) -> None:
        """Forget the schemas of a namespace; durable when this returns."""
        paths = [
            f"/schemas/{tenant}/{namespace}/{name}" for name in await self._metadata.children(f"/schemas/{tenant}/{namespace}")
        ]
        await budget.for_all(paths, self._metadata.delete)

    async def _schemas(self, topic: TopicName) -> list[Any]:
        stored = await self._metadata.get(_schema_path(topic))
        return [] if stored is None else json.loads(stored.data)


def _partitions_of(stored: Versioned | None) -> int:
    return 0 if stored is None else int(json.loads(stored.data)["partitions"])


def _partitioned_path(topic: TopicName) -> str:
    return f"{_PARTITIONED}/{topic.tenant}/{topic.namespace}/{topic.domain}/{quote(topic.name, safe='')}"


_COORDINATORS: Final = _partitioned_path(TopicName.parse(ASSIGN_TOPIC))


def _epoch_path(topic: TopicName) -> str:
    return f"/managed-ledgers/{log_name(topic)}"


def _schema_path(topic: TopicName) -> str:
    return f"/schemas/{topic.tenant}/{topic.namespace}/{quote(topic.base.name, safe='')}"


def _to_json(schema: Schema) -> dict[str, Any]:
    kind, name, data, properties = schema
    return {"type": kind, "name": name, "data": base64.b64encode(data).decode(), "properties": properties}


def _from_json(entry: dict[str, Any]) -> Schema:
    return entry["type"], entry["name"], base64.b64decode(entry["data"]), entry["properties"]
