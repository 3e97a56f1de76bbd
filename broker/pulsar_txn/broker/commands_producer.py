"""PRODUCER and CLOSE_PRODUCER."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.topics import TopicName

from .commands_lookup import check_subscription_name, check_user_topic, pack_schema_version, schema_of
from .producers import AccessMode, Producer
from .topic import Topic

if TYPE_CHECKING:
    from .connection import Connection, Handler


async def on_producer(connection: Connection, body: Any) -> None:
    """PRODUCER: answered once the topic is open and the producer may publish; one that waits is told so first."""
    key = ("producer", body.producer_id)
    task = asyncio.current_task()
    if key in connection.opening or task is None:
        raise Refusal(ServerError.ServiceNotReady, f"producer {body.producer_id} is being created already; retry")
    connection.opening[key] = task
    try:
        await _open(connection, body)
    finally:
        connection.opening.pop(key, None)


async def _open(connection: Connection, body: Any) -> None:
    broker = connection.broker
    name = TopicName.parse(body.topic)
    check_user_topic(name)
    connection.check_room(connection.producers, body.producer_id)
    existing = connection.producers.get(body.producer_id)
    if existing is not None:
        if str(existing.topic.name) != str(name):
            raise Refusal(ServerError.NotAllowedError, f"producer {body.producer_id} is open on {existing.topic.name} already")
        if body.epoch <= existing.epoch:
            _answer(connection, body, existing, ready=True)
            return
        broker.remove_producer(existing)
        connection.forget_producer(existing)
    if body.initial_subscription_name:
        check_subscription_name(body.initial_subscription_name)
    topic = await broker.topic(name)
    if topic.rules.encryption_required and not body.encrypted:
        raise Refusal(ServerError.MetadataError, f"Encryption is required in {name}")
    version = b""
    if body.HasField("schema") and body.schema.type:
        version = pack_schema_version(await broker.catalog.schema_version(name, schema_of(body.schema)))
    if body.initial_subscription_name and isinstance(topic, Topic):
        await topic.subscribe(body.initial_subscription_name, durable=True, initial=topic.log.last_appended)
    producer_name = body.producer_name or broker.catalog.new_producer_name()
    mode = AccessMode(body.producer_access_mode)
    producer = Producer(connection, body.producer_id, producer_name, topic, mode, body.epoch)
    producer.encrypted = body.encrypted

    def ready_later(waiter: Producer) -> None:
        connection.producers[waiter.producer_id] = waiter
        _answer(connection, body, waiter, ready=True, version=version)

    holder = topic.producers.by_name.get(producer_name)
    if holder is not None and holder.owner is not connection:
        await holder.owner.is_alive()
    asked = body.topic_epoch if body.HasField("topic_epoch") else None
    ready = await topic.producers.add(producer, asked, ready_later)
    if connection.closed or not topic.serving:
        broker.remove_producer(producer)
        raise Refusal(ServerError.ServiceNotReady, f"{name} was closed meanwhile; retry")
    if ready:
        connection.producers[body.producer_id] = producer
    _answer(connection, body, producer, ready=ready, version=version)


def _answer(connection: Connection, body: Any, producer: Producer, *, ready: bool, version: bytes = b"") -> None:
    fields: dict[str, Any] = {"topic_epoch": producer.topic_epoch} if producer.topic_epoch is not None else {}
    connection.write_command(
        "producer_success",
        request_id=body.request_id,
        producer_name=producer.name,
        last_sequence_id=producer.topic.sequences.last(producer.name),
        schema_version=version,
        producer_ready=ready,
        **fields,
    )


async def on_close_producer(connection: Connection, body: Any) -> None:
    """CLOSE_PRODUCER, also of one that is still being created."""
    opening = connection.opening.get(("producer", body.producer_id))
    if opening is not None:
        await asyncio.wait([opening])
    producer = connection.producers.get(body.producer_id)
    if producer is not None:
        connection.broker.remove_producer(producer)
        connection.forget_producer(producer)
    connection.write_command("success", request_id=body.request_id)


HANDLERS: Final[dict[int, tuple[str, Handler]]] = {5: ("producer", on_producer), 15: ("close_producer", on_close_producer)}
