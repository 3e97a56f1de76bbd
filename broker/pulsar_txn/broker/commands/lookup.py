"""CONNECT and keep-alive, lookups, lists of topics, schemas."""

from __future__ import annotations

import struct
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from pulsar_txn.broker.catalog.catalog import Schema
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import MalformedFrame, Refusal, ServerError
from pulsar_txn.wire.topics import (
    ASSIGN_TOPIC,
    MAX_SUBSCRIPTION_BYTES,
    InvalidName,
    TopicName,
    check_subscription,
    is_transaction_internal,
)

if TYPE_CHECKING:
    from pulsar_txn.broker.net.connection import Connection, Handler

_PROTOCOL_VERSION: Final = 21
_MAX_VERSION_LENGTH: Final = 256
_SERVER_VERSION: Final = f"pulsar-txn {version('pulsar-txn')}"


def on_connect(connection: Connection, body: Any) -> None:
    """CONNECT: no authentication yet, so everybody is nobody. A second one closes the connection."""
    if connection.connected:
        raise MalformedFrame("CONNECT came a second time")
    connection.know(body.client_version[:_MAX_VERSION_LENGTH])
    connection.write_command(
        "connected",
        server_version=_SERVER_VERSION,
        protocol_version=min(_PROTOCOL_VERSION, body.protocol_version),
        max_message_size=connection.broker.config.max_message_size,
        feature_flags=pb.FeatureFlags(
            supports_topic_watchers=connection.broker.config.enable_broker_side_subscription_pattern_evaluation,
            supports_topic_watcher_reconcile=connection.broker.config.enable_broker_side_subscription_pattern_evaluation,
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_transactional_ids=connection.broker.transactional_ids is not None,
            keeps_transaction_outcomes=connection.broker.config.transaction_outcome_retention_count > 0,
        ),
    )


def on_ping(connection: Connection, body: Any) -> None:
    """PING."""
    connection.write_command("pong")


def on_pong(connection: Connection, body: Any) -> None:
    """PONG: that something was heard is noted already."""


async def on_partitioned_metadata(connection: Connection, body: Any) -> None:
    """PARTITIONED_METADATA: 0 for topics that have no partitions, and for those that are not there."""
    broker = connection.broker
    try:
        name = TopicName.parse(body.topic)
        partitions = await broker.catalog.partitions_or_create(name, may_create=body.metadata_auto_creation_enabled)
    except (Refusal, InvalidName) as error:
        code = error.code if isinstance(error, Refusal) else ServerError.InvalidTopicName
        connection.write_command(
            "partitionMetadataResponse",
            request_id=body.request_id,
            response=pb.CommandPartitionedTopicMetadataResponse.Failed,
            error=int(code),
            message=str(error),
        )
        return
    connection.write_command(
        "partitionMetadataResponse",
        request_id=body.request_id,
        partitions=partitions,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
    )


def on_lookup(connection: Connection, body: Any) -> None:
    """LOOKUP: every topic is here; the client stays on the address that it came by."""
    try:
        TopicName.parse(body.topic)
    except InvalidName as error:
        connection.write_command(
            "lookupTopicResponse",
            request_id=body.request_id,
            response=pb.CommandLookupTopicResponse.Failed,
            error=int(ServerError.InvalidTopicName),
            message=str(error),
        )
        return
    connection.write_command(
        "lookupTopicResponse",
        request_id=body.request_id,
        brokerServiceUrl=connection.broker.service_url,
        response=pb.CommandLookupTopicResponse.Connect,
        authoritative=True,
        proxy_through_service_url=True,
    )


async def on_get_schema(connection: Connection, body: Any) -> None:
    """GET_SCHEMA: the newest, or the version asked for."""
    wanted = unpack_schema_version(body.schema_version) if body.schema_version else None
    async with connection.broker.list_turn(connection):  # a schema may be long
        await _answer_schema(connection, body, wanted)


async def _answer_schema(connection: Connection, body: Any, wanted: int | None) -> None:
    found = await connection.broker.catalog.schema(TopicName.parse(body.topic), wanted)
    if found is None:
        connection.write_command(
            "getSchemaResponse",
            request_id=body.request_id,
            error_code=int(ServerError.TopicNotFound),
            error_message=f"{body.topic} has no schema",
        )
        return
    (kind, name, data, properties), index = found
    pairs = [pb.KeyValue(key=key, value=value) for key, value in properties.items()]
    connection.write_list(
        "getSchemaResponse",
        request_id=body.request_id,
        schema=pb.Schema(name=name, schema_data=data, type=kind, properties=pairs),  # type: ignore[arg-type] # a number of ours
        schema_version=pack_schema_version(index),
    )


async def on_get_or_create_schema(connection: Connection, body: Any) -> None:
    """GET_OR_CREATE_SCHEMA: stored as it is; compatibility is not judged."""
    index = await connection.broker.catalog.schema_version(TopicName.parse(body.topic), schema_of(body.schema))
    connection.write_command("getOrCreateSchemaResponse", request_id=body.request_id, schema_version=pack_schema_version(index))


def schema_of(schema: Any) -> Schema:
    """A Schema message as the catalog keeps it."""
    return schema.type, schema.name, schema.schema_data, {pair.key: pair.value for pair in schema.properties}


def pack_schema_version(index: int) -> bytes:
    """Eight bytes, big endian, as in Pulsar."""
    return struct.pack(">q", index)


def unpack_schema_version(data: bytes) -> int:
    """The inverse. Refusal for other bytes."""
    if len(data) != 8:
        raise Refusal(ServerError.IncompatibleSchema, f"a schema version has eight bytes, not {len(data)}")
    index: int = struct.unpack(">q", data)[0]
    return index


def check_subscription_name(name: str) -> None:
    """Refusal NotAllowedError for what cannot be the name of a subscription."""
    try:
        check_subscription(name)
    except InvalidName as error:
        raise Refusal(ServerError.NotAllowedError, str(error)) from None


def check_client_name(kind: str, name: str) -> None:
    """Refusal NotAllowedError for the name of a producer or consumer that is too long: the broker keeps it in memory."""
    if len(name.encode()) > MAX_SUBSCRIPTION_BYTES:
        text = f"the name of {kind} {name[:80]!r}… has more than {MAX_SUBSCRIPTION_BYTES} bytes; choose a shorter name"
        raise Refusal(ServerError.NotAllowedError, text)


def check_user_topic(name: TopicName) -> None:
    """Refusal NotAllowedError for topics of the transaction machinery, which clients may not create."""
    if is_transaction_internal(str(name)) or str(name.base) == ASSIGN_TOPIC:
        raise Refusal(ServerError.NotAllowedError, f"{name} belongs to the transaction machinery")


HANDLERS: Final[dict[int, tuple[str, Handler]]] = {
    2: ("connect", on_connect),
    18: ("ping", on_ping),
    19: ("pong", on_pong),
    21: ("partitionMetadata", on_partitioned_metadata),
    23: ("lookupTopic", on_lookup),
    34: ("getSchema", on_get_schema),
    39: ("getOrCreateSchema", on_get_or_create_schema),
}
