"""Commands of producers: PRODUCER, CLOSE_PRODUCER, and SEND, which makes no task and no future."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from pulsar_txn.broker.topics.producers import AccessMode, Producer
from pulsar_txn.broker.topics.topic import Topic
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.hot import decode_send
from pulsar_txn.wire.ids import EARLIEST
from pulsar_txn.wire.producer_properties import REFUSE_GAPS
from pulsar_txn.wire.topics import TopicName

from .session import AnyTopic, FrameHandler, Handler, Services, Session, foreign_in
from .topics import pack_schema_version, schema_of
from .validation import validate_client_name, validate_subscription_name, validate_user_topic


async def on_producer(session: Session, body: Any) -> None:
    """PRODUCER: answered once the topic is open and the producer may publish; one that waits is told so first."""
    with session.opening_producer(body.producer_id):
        await _open(session, body)


async def _open(session: Session, body: Any) -> None:
    services = session.services
    name = TopicName.parse(body.topic)
    validate_user_topic(name)
    validate_client_name("producer", body.producer_name)
    _end_turn(session, body.producer_id, "was asked for again")  # it waits as the last one, and under the new request
    existing = session.producers.get(body.producer_id)
    if existing is not None:
        if str(existing.topic.name) != str(name):
            raise Refusal(ServerError.NotAllowedError, f"producer {body.producer_id} is open on {existing.topic.name} already")
        if body.epoch <= existing.epoch:
            _answer(session, body, existing, ready=True)
            return
        services.remove_producer(existing)
        session.forget_producer(existing)
    if body.initial_subscription_name:
        validate_subscription_name(body.initial_subscription_name)
    topic, version = await _topic(services, name, body)
    producer_name = body.producer_name or services.catalog.new_producer_name()
    mode = AccessMode(body.producer_access_mode)
    refuses_gaps = _refuses_gaps(topic, body)
    producer = Producer(
        session, body.producer_id, producer_name, topic, mode, body.epoch, encrypted=body.encrypted, refuses_gaps=refuses_gaps
    )
    await _join(session, topic, producer, version, body)


def _refuses_gaps(topic: AnyTopic, body: Any) -> bool:
    """True if the producer asks for sequence ids without gaps. Refusal NotAllowedError where nobody keeps them."""
    if not any(each.key == REFUSE_GAPS and each.value.lower() == "true" for each in body.metadata):
        return False
    if not isinstance(topic, Topic) or not topic.deduplicates:
        text = f"{topic.name} keeps no sequence ids, so {REFUSE_GAPS} cannot be done"
        raise Refusal(ServerError.NotAllowedError, f"{text}; set brokerDeduplicationEnabled=true, or leave the property out")
    return True


async def _topic(services: Services, name: TopicName, body: Any) -> tuple[AnyTopic, bytes]:
    """The topic, which takes this producer's schema and has its initial subscription; and the version of the schema."""
    topic = await services.topic(name)
    if topic.rules.encryption_required and not body.encrypted:
        raise Refusal(ServerError.MetadataError, f"Encryption is required in {name}")
    version = b""
    if body.HasField("schema") and body.schema.type:
        version = pack_schema_version(await services.catalog.schema_version(name, schema_of(body.schema)))
    if body.initial_subscription_name and isinstance(topic, Topic):
        await topic.subscribe(body.initial_subscription_name, durable=True, initial=EARLIEST)
    return topic, version


async def _join(session: Session, topic: AnyTopic, producer: Producer, version: bytes, body: Any) -> None:
    """Let the producer publish, or wait for the topic, and answer."""
    holder = topic.producers.by_name.get(producer.name)
    if holder is not None and holder.owner is not session:
        await holder.owner.is_alive()
    asked = body.topic_epoch if body.HasField("topic_epoch") else None
    try:
        ready = await topic.producers.add(producer, asked, partial(_end_wait, session, body, producer, version))
        _check_open(session, topic)
    except BaseException:  # the client may be gone as well: then this task is cancelled
        session.services.remove_producer(producer)
        raise
    if ready:
        session.add_producer(producer)
    else:
        session.add_waiting(producer, body)
    _answer(session, body, producer, ready=ready, version=version)


def _check_open(session: Session, topic: AnyTopic) -> None:
    if session.connection.closed or not topic.serving:
        raise Refusal(ServerError.ServiceNotReady, f"{topic.name} was closed meanwhile; retry")


def _end_wait(session: Session, body: Any, producer: Producer, version: bytes, refusal: Refusal | None) -> None:
    """Tell a producer that waited for the topic that it has it, or why it never will."""
    waiter, _ = session.waiting_producers.get(producer.producer_id, (None, None))
    if waiter is not producer:
        return  # it was closed, or asked for again
    session.take_waiting(producer.producer_id)
    if refusal is not None:
        session.connection.refuse(body, refusal)
        return
    session.add_producer(producer)
    _answer(session, body, producer, ready=True, version=version)


def _answer(session: Session, body: Any, producer: Producer, *, ready: bool, version: bytes = b"") -> None:
    fields: dict[str, Any] = {"topic_epoch": producer.topic_epoch} if producer.topic_epoch is not None else {}
    session.connection.write_command(
        "producer_success",
        request_id=body.request_id,
        producer_name=producer.name,
        last_sequence_id=producer.topic.last_sequence_id(producer.name),
        schema_version=version,
        producer_ready=ready,
        refuses_gaps=producer.refuses_gaps,
        **fields,
    )


async def on_close_producer(session: Session, body: Any) -> None:
    """CLOSE_PRODUCER, also of one that is still being created."""
    opening = session.opening_producers.get(body.producer_id)
    if opening is not None:
        await asyncio.wait([opening])
    producer = session.producers.get(body.producer_id)
    if producer is not None:
        session.services.remove_producer(producer)
        session.forget_producer(producer)
    _end_turn(session, body.producer_id, "was closed")
    session.connection.write_command("success", request_id=body.request_id)


def _end_turn(session: Session, producer_id: int, why: str) -> None:
    """A producer that waits for its topic does not wait any more, and its request is answered."""
    waiting = session.take_waiting(producer_id)
    if waiting is not None:
        waiter, asked = waiting
        session.services.remove_producer(waiter)
        session.connection.refuse(asked, Refusal(ServerError.ServiceNotReady, f"the producer {why} before its turn came"))


def on_send(session: Session, frame: bytes) -> None:
    """SEND: the topic answers through the producer's owner, in order."""
    producer_id, sequence_id, _, txn_id, highest, is_chunk, _, entry = decode_send(frame)
    producer = session.producers.get(producer_id)
    if producer is None:
        if producer_id not in session.closed_producers:  # closed a moment ago: its last sends are dropped
            raise WireError(f"SEND for producer {producer_id}, which is not open on this connection")
        return
    session.begin_send(producer)
    if txn_id is not None and session.principal is not None:
        foreign = foreign_in(session, txn_id, f"{producer.topic.name} is not registered in it")
        if foreign is not None:
            session.producer_refused(producer, sequence_id, foreign.code, foreign.message)
            return
    producer.topic.publish(producer, sequence_id, highest, is_chunk, txn_id, entry)


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.PRODUCER: on_producer,
    pb.BaseCommand.CLOSE_PRODUCER: on_close_producer,
}

FRAMES: Final[dict[int, FrameHandler]] = {
    pb.BaseCommand.SEND: on_send,
}
