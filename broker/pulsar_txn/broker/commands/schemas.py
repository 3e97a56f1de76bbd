"""GET_SCHEMA and GET_OR_CREATE_SCHEMA."""

from __future__ import annotations

import struct
from typing import Any, Final

from pulsar_txn.broker.catalog.catalog import Schema
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.topics import TopicName

from .session import Handler, Session


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
    pb.BaseCommand.GET_SCHEMA: on_get_schema,
    pb.BaseCommand.GET_OR_CREATE_SCHEMA: on_get_or_create_schema,
}
