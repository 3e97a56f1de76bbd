"""Questions about topics: partitions, lookup, the topics of a namespace and their changes, and schemas.

Every topic is served here, so a lookup never sends a client elsewhere. Compatibility of schemas is not judged.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from pulsar_txn.broker.base.sorted_names import Pieces, count_of
from pulsar_txn.broker.catalog.catalog import Schema
from pulsar_txn.broker.catalog.lists import Matches, hash_of_pieces, matching, pattern_of
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.topics import InvalidName, TopicName, check_namespace

from .session import Handler, Services, Session


async def on_partitioned_metadata(session: Session, body: Any) -> None:
    """PARTITIONED_METADATA: 0 for topics that have no partitions, and for those that are not there."""
    services = session.services
    try:
        name = TopicName.parse(body.topic)
        partitions = await services.catalog.partitions_or_create(name, may_create=body.metadata_auto_creation_enabled)
    except (Refusal, InvalidName) as error:
        code = error.code if isinstance(error, Refusal) else ServerError.InvalidTopicName
        session.connection.write_command(
            "partitionMetadataResponse",
            request_id=body.request_id,
            response=pb.CommandPartitionedTopicMetadataResponse.Failed,
            error=int(code),
            message=str(error),
        )
        return
    session.connection.write_command(
        "partitionMetadataResponse",
        request_id=body.request_id,
        partitions=partitions,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
    )


def on_lookup(session: Session, body: Any) -> None:
    """LOOKUP: every topic is here; the client stays on the address that it came by."""
    try:
        TopicName.parse(body.topic)
    except InvalidName as error:
        session.connection.write_command(
            "lookupTopicResponse",
            request_id=body.request_id,
            response=pb.CommandLookupTopicResponse.Failed,
            error=int(ServerError.InvalidTopicName),
            message=str(error),
        )
        return
    session.connection.write_command(
        "lookupTopicResponse",
        request_id=body.request_id,
        brokerServiceUrl=session.services.service_url,
        brokerServiceUrlTls=session.services.service_url_tls,
        response=pb.CommandLookupTopicResponse.Connect,
        authoritative=True,
        proxy_through_service_url=True,
    )


_BYTES_PER_NAME: Final = 4  # its tag and its length


def _namespace(text: str) -> tuple[str, str]:
    """Tenant and namespace. InvalidName."""
    tenant, _, namespace = text.partition("/")
    check_namespace(tenant, namespace)
    return tenant, namespace


def _pattern(services: Services, text: str) -> Matches:
    return pattern_of(text, services.config.subscription_pattern_max_length)


def _matches_or_none(services: Services, text: str) -> Matches | None:
    """None when the client has to look for itself: no pattern, or none that is matched here."""
    if not text or not services.config.enable_broker_side_subscription_pattern_evaluation:
        return None
    try:
        return _pattern(services, text)
    except Refusal:
        return None


async def on_get_topics(session: Session, body: Any) -> None:
    """GET_TOPICS_OF_NAMESPACE: partitions one by one; with a pattern what matches, with the hash of a list only a new one."""
    async with session.services.list_turn(session.connection):
        await _answer_topics(session, body, *_namespace(body.namespace))


async def _answer_topics(session: Session, body: Any, tenant: str, namespace: str) -> None:
    services, budget = session.services, session.services.turn.budget
    pieces: Pieces = ()
    if body.mode != pb.CommandGetTopicsOfNamespace.PERSISTENT:
        pieces = await services.non_persistent_topics(tenant, namespace)
    if body.mode != pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
        pieces += services.catalog.index.topics_and_partitions(tenant, namespace)
    matches = _matches_or_none(services, body.topics_pattern)
    if matches is not None:
        pieces = await matching(pieces, matches, budget)
    topics_hash = await hash_of_pieces(pieces, budget)
    changed = topics_hash != body.topics_hash
    topics = _fitting(services, pieces, body.namespace) if changed else []
    await budget.pause()
    session.connection.write_list(
        "getTopicsOfNamespaceResponse",
        request_id=body.request_id,
        topics=topics,
        filtered=matches is not None,
        topics_hash=topics_hash,
        changed=changed,
    )


def _fitting(services: Services, pieces: Pieces, namespace: str) -> list[str]:
    """All names in one list. Refusal NotAllowedError when no client would take a frame with so many."""
    most = services.config.max_message_size
    size = sum(len("".join(piece)) + _BYTES_PER_NAME * len(piece) for piece in pieces)
    if size > most:
        text = f"the names of {count_of(pieces)} topics of {namespace} have {size} bytes, more than the {most} of one answer"
        raise Refusal(
            ServerError.NotAllowedError, f"{text}; ask with a pattern that fewer match, or list them over HTTP in pages"
        )
    return [name for piece in pieces for name in piece]


async def on_watch_topic_list(session: Session, body: Any) -> None:
    """WATCH_TOPIC_LIST: the topics that match now, unless the client has that list already; changes follow."""
    services, lists = session.services, session.services.topic_lists
    if not services.config.enable_broker_side_subscription_pattern_evaluation:
        raise Refusal(ServerError.NotAllowedError, "Unable to create topic list watcher: topic list watching is disabled.")
    tenant, namespace = _namespace(body.namespace)
    matches = _pattern(services, body.topics_pattern)
    async with services.list_turn(session.connection):
        topics_now = services.catalog.index.topics_and_partitions(tenant, namespace)
        watcher = await lists.watch(session.connection, body.watcher_id, (tenant, namespace), matches, topics_now)
        pieces = watcher.topics.pieces()
        topics_hash = await hash_of_pieces(pieces, services.turn.budget)
        try:
            topics = [] if topics_hash == body.topics_hash else _fitting(services, pieces, body.namespace)
        except Refusal:
            lists.close(session.connection, body.watcher_id)
            raise
        session.connection.write_list(
            "watchTopicListSuccess",
            request_id=body.request_id,
            watcher_id=body.watcher_id,
            topic=topics,
            topics_hash=topics_hash,
        )
        lists.serve(watcher)


def on_watch_topic_list_close(session: Session, body: Any) -> None:
    """WATCH_TOPIC_LIST_CLOSE: also of a watcher that is not there."""
    session.services.topic_lists.close(session.connection, body.watcher_id)
    session.connection.write_command("success", request_id=body.request_id)


async def on_get_schema(session: Session, body: Any) -> None:
    """GET_SCHEMA: the newest, or the version asked for."""
    wanted = unpack_schema_version(body.schema_version) if body.schema_version else None
    async with session.services.list_turn(session.connection):  # a schema may be long
        await _answer_schema(session, body, wanted)


async def _answer_schema(session: Session, body: Any, wanted: int | None) -> None:
    found = await session.services.catalog.schema(TopicName.parse(body.topic), wanted)
    if found is None:
        session.connection.write_command(
            "getSchemaResponse",
            request_id=body.request_id,
            error_code=int(ServerError.TopicNotFound),
            error_message=f"{body.topic} has no schema",
        )
        return
    (kind, name, data, properties), index = found
    pairs = [pb.KeyValue(key=key, value=value) for key, value in properties.items()]
    session.connection.write_list(
        "getSchemaResponse",
        request_id=body.request_id,
        schema=pb.Schema(name=name, schema_data=data, type=kind, properties=pairs),  # type: ignore[arg-type] # a number of ours
        schema_version=pack_schema_version(index),
    )


async def on_get_or_create_schema(session: Session, body: Any) -> None:
    """GET_OR_CREATE_SCHEMA: stored as it is; compatibility is not judged."""
    index = await session.services.catalog.schema_version(TopicName.parse(body.topic), schema_of(body.schema))
    session.connection.write_command(
        "getOrCreateSchemaResponse", request_id=body.request_id, schema_version=pack_schema_version(index)
    )


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


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.PARTITIONED_METADATA: on_partitioned_metadata,
    pb.BaseCommand.LOOKUP: on_lookup,
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE: on_get_topics,
    pb.BaseCommand.WATCH_TOPIC_LIST: on_watch_topic_list,
    pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE: on_watch_topic_list_close,
    pb.BaseCommand.GET_SCHEMA: on_get_schema,
    pb.BaseCommand.GET_OR_CREATE_SCHEMA: on_get_or_create_schema,
}
