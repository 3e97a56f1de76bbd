"""Commands of consumers; of these ACK and FLOW, which travel per message, make no task and no future."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from pulsar_txn.broker.base.limits import MAX_ACK_IDS, MAX_BATCH_SIZE
from pulsar_txn.broker.dispatch.consumers import Consumer
from pulsar_txn.broker.topics.committed_position import committed_position
from pulsar_txn.broker.topics.subscription import EXCLUSIVE, FAILOVER, KIND_NAMES, Subscription
from pulsar_txn.broker.topics.topic import Topic
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.entries import read_header
from pulsar_txn.wire.errors import MalformedFrame, Refusal, ServerError, WireError
from pulsar_txn.wire.hot import decode_ack, decode_flow, encode_ack_response
from pulsar_txn.wire.ids import EARLIEST, Position, TxnId, signed64, unsigned64
from pulsar_txn.wire.topics import TopicName

from .session import AnyTopic, FrameHandler, Handler, Services, Session, foreign_in
from .topics import schema_of
from .validation import validate_client_name, validate_subscription_name, validate_user_topic

_KEY_SHARED_STICKY: Final = 1


async def on_subscribe(session: Session, body: Any) -> None:
    """SUBSCRIBE: answered once the subscription is durable and the consumer has its place."""
    with session.opening_consumer(body.consumer_id):
        await _subscribe(session, body)


async def _subscribe(session: Session, body: Any) -> None:
    name = TopicName.parse(body.topic)
    validate_user_topic(name)
    validate_client_name("consumer", body.consumer_name)
    existing = session.consumers.get(body.consumer_id)
    if existing is not None:
        _check_same(existing, name, body)
    else:
        validate_subscription_name(body.subscription)
        if body.read_compacted and body.subType not in {EXCLUSIVE, FAILOVER}:
            raise Refusal(ServerError.NotAllowedError, "readCompacted only allowed on failover or exclusive subscriptions")
        topic = await _topic(session.services, name, body)
        consumer = await _new_consumer(session, topic, name, body)
        await _join(session, topic, consumer, body)
        session.add_consumer(consumer)
    session.connection.write_command("success", request_id=body.request_id)


def _check_same(existing: Consumer, name: TopicName, body: Any) -> None:
    """A repeat of a SUBSCRIBE that was answered; Refusal NotAllowedError when it is another one."""
    held = existing.subscription
    if (str(existing.topic.name), held.name) != (str(name), body.subscription):
        text = f"consumer {body.consumer_id} is open on {held.name!r} of {existing.topic.name} already"
        raise Refusal(ServerError.NotAllowedError, text)


async def _topic(services: Services, name: TopicName, body: Any) -> AnyTopic:
    """The topic, which takes this subscription and this schema."""
    topic = await services.topic(name, create=body.force_topic_creation)
    makes = body.durable and isinstance(topic, Topic) and body.subscription not in topic.subscriptions
    if makes and not services.config.allow_auto_subscription_creation:
        raise Refusal(ServerError.SubscriptionNotFound, f"Subscription does not exist: {body.subscription!r} of {name}")
    if body.HasField("schema") and body.schema.type:
        await services.catalog.schema_version(name, schema_of(body.schema))
    return topic


async def _new_consumer(session: Session, topic: AnyTopic, name: TopicName, body: Any) -> Consumer:
    compacted = False
    if body.read_compacted and isinstance(topic, Topic):
        await topic.compaction.load()
        compacted = True
    ranges = tuple((each.start, each.end) for each in body.keySharedMeta.hashRanges) if body.HasField("keySharedMeta") else None
    return Consumer(
        session,
        topic,
        body.consumer_id,
        body.consumer_name or session.services.new_consumer_name(),
        priority=body.priority_level,
        partition=name.partition,
        epoch=signed64(body.consumer_epoch) if body.HasField("consumer_epoch") else None,
        key_ranges=ranges,
        read_compacted=compacted,
    )


async def _join(session: Session, topic: AnyTopic, consumer: Consumer, body: Any) -> None:
    """Give the consumer its place in the subscription, which is made when it does not exist."""
    subscription = await topic.subscribe(body.subscription, durable=body.durable, initial=await _initial(topic, body))
    if body.subType == EXCLUSIVE:
        for holder in [each.owner for each in subscription.consumers if each.owner is not session]:
            await holder.is_alive()
    if session.connection.closed or not topic.serving or topic.subscriptions.get(subscription.name) is not subscription:
        raise Refusal(ServerError.ServiceNotReady, f"{topic.name} or its subscription was closed meanwhile; retry")
    sticky = body.HasField("keySharedMeta") and body.keySharedMeta.keySharedMode == _KEY_SHARED_STICKY
    try:
        subscription.add(consumer, body.subType, sticky=sticky)
    except Refusal:
        topic.drop_if_unused(body.subscription)
        raise


async def _initial(topic: Any, body: Any) -> Position:
    """The mark-delete position of a new subscription."""
    if not isinstance(topic, Topic):
        return EARLIEST
    if body.subscription not in topic.subscriptions:
        if body.start_message_rollback_duration_sec:
            since = topic.turn.clock.now_ms() - 1000 * body.start_message_rollback_duration_sec
            return await _before_time(topic, since)
        if not body.durable and body.HasField("start_message_id"):
            return _start_of(topic, body.start_message_id)
    return EARLIEST if body.initialPosition == pb.CommandSubscribe.Earliest else topic.log.last_appended


def _start_of(topic: Topic, message_id: Any) -> Position:
    """Start of a reader: before the entry it names. The client skips what it does not want of it; stock does the same,
    and the official client counts on it to read from a message on, the message included."""
    ledger_id, entry_id = signed64(message_id.ledgerId), signed64(message_id.entryId)
    if entry_id >= 0:
        entry_id -= 1
    return min((ledger_id, entry_id), topic.log.last_appended)


async def _before_time(topic: Topic, since_ms: int) -> Position:
    """The entry before the first one that was published at or after a time."""
    budget = topic.turn.budget
    mark: Position = EARLIEST
    start = topic.log.first
    while start is not None:
        await budget.pause()
        entries = await topic.log.read(start, max_entries=256)
        for position, data in entries:
            if read_header(data).publish_time_ms >= since_ms:
                return mark
            mark = position
        start = topic.log.next_position(entries[-1][0]) if entries else None
    return topic.log.last_appended


def _not_open(consumer_id: int) -> str:
    """Text of a ConsumerNotFound."""
    return f"consumer {consumer_id} is not open on this connection"


def _consumer(session: Session, body: Any) -> Consumer:
    consumer = session.consumers.get(body.consumer_id)
    if consumer is None:
        raise Refusal(ServerError.ConsumerNotFound, _not_open(body.consumer_id))
    return consumer


async def on_close_consumer(session: Session, body: Any) -> None:
    """CLOSE_CONSUMER, also of one that is still being created."""
    opening = session.opening_consumers.get(body.consumer_id)
    if opening is not None:
        await asyncio.wait([opening])
    consumer = session.consumers.get(body.consumer_id)
    if consumer is not None:
        session.forget_consumer(consumer)
        consumer.topic.remove_consumer(consumer)
    session.connection.write_command("success", request_id=body.request_id)


async def on_unsubscribe(session: Session, body: Any) -> None:
    """UNSUBSCRIBE: only the last consumer may, unless it forces."""
    consumer = _consumer(session, body)
    subscription = consumer.subscription
    if len(subscription.consumers) > 1 and not body.force:
        raise Refusal(ServerError.ConsumerBusy, f"subscription {subscription.name!r} has other consumers connected")
    session.forget_consumer(consumer)
    consumer.topic.remove_consumer(consumer)
    await consumer.topic.unsubscribe(subscription)
    session.connection.write_command("success", request_id=body.request_id)


async def on_seek(session: Session, body: Any) -> None:
    """SEEK to a message (it is the next one delivered), or to a time. All consumers are closed and connect again."""
    consumer = _consumer(session, body)
    subscription, topic = consumer.subscription, consumer.topic
    if not isinstance(subscription, Subscription) or not isinstance(topic, Topic):
        raise Refusal(ServerError.NotAllowedError, "a non-persistent topic keeps nothing to seek in")
    if body.HasField("message_id"):
        ledger_id, entry_id = signed64(body.message_id.ledgerId), signed64(body.message_id.entryId)
        mark = (ledger_id, entry_id - 1) if entry_id >= 0 else (ledger_id, entry_id)
        if (ledger_id, entry_id) > topic.log.last_appended:
            mark = topic.log.last_appended
    else:
        mark = await _before_time(topic, signed64(body.message_publish_time))
    subscription.seek(mark, partial(_sought, session, body))


def _sought(session: Session, body: Any, value: Any, error: ServerError | None, message: str) -> None:
    if error is None:
        session.connection.write_command("success", request_id=body.request_id)
    else:
        session.connection.refuse(body, Refusal(error, message))


def on_redeliver(session: Session, body: Any) -> None:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES; there is no answer."""
    consumer = session.consumers.get(body.consumer_id)
    if consumer is None:
        return
    if len(body.message_ids) > MAX_ACK_IDS:
        raise MalformedFrame(f"{len(body.message_ids)} messages are wanted again; {MAX_ACK_IDS} are the most in one request")
    subscription = consumer.subscription
    if body.HasField("consumer_epoch") and subscription.kind in {EXCLUSIVE, FAILOVER}:
        consumer.set_epoch(signed64(body.consumer_epoch))
    ids = body.message_ids
    # Read as they are taken back, in slices: a frame holds hundreds of thousands.
    positions = ((signed64(each.ledgerId), signed64(each.entryId)) for each in ids) if ids else None
    subscription.redeliver(consumer, positions)


async def on_get_last_message_id(session: Session, body: Any) -> None:
    """GET_LAST_MESSAGE_ID: the last message that readers may see; (-1, -1) if absent."""
    consumer = _consumer(session, body)
    subscription, topic = consumer.subscription, consumer.topic
    position, batch_size = await topic.last_message()
    if consumer.read_compacted and isinstance(topic, Topic):
        position, batch_size = await topic.compaction.last_message(position, batch_size)
    mark = subscription.mark_delete
    half_messages = await _half_message_ends(topic) if body.with_halves and isinstance(topic, Topic) else {}
    session.connection.write_command(
        "getLastMessageIdResponse",
        request_id=body.request_id,
        last_message_id=pb.MessageIdData(
            ledgerId=unsigned64(position[0]),
            entryId=unsigned64(position[1]),
            partition=consumer.partition,
            batch_index=batch_size - 1 if batch_size > 0 else -1,
        ),
        consumer_mark_delete_position=_message_id(mark),
        **half_messages,
    )


async def _half_message_ends(topic: Topic) -> dict[str, pb.MessageIdData]:
    """Half messages that wait beside the topic. Those that do not wait any more are durable in the topic when this returns."""
    waiting = topic.buffer.waiting()
    if waiting is None:
        return {}
    await topic.log.flush()
    first = {} if waiting.first is None else {"first_waiting_half": _message_id(waiting.first)}
    return {"last_half": _message_id(waiting.last), **first}


def _message_id(position: Position) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=unsigned64(position[0]), entryId=unsigned64(position[1]))


async def on_get_committed_position(session: Session, body: Any) -> None:
    """GET_COMMITTED_POSITION (ours, ADR 47): where the subscription is for good, and which transaction may move it."""
    consumer = _consumer(session, body)
    subscription, topic = consumer.subscription, consumer.topic
    if not isinstance(subscription, Subscription) or not isinstance(topic, Topic):
        raise Refusal(ServerError.NotAllowedError, "a subscription of a non-persistent topic has no position")
    found = await committed_position(topic, subscription)
    ids = {"last_committed": found.last_committed, "unstable": found.unstable}
    fields = {
        f"{name}_{half}_bits": getattr(txn_id, half) for name, txn_id in ids.items() if txn_id for half in ("most", "least")
    }
    session.connection.write_command(
        "getCommittedPositionResponse",
        request_id=body.request_id,
        position=_message_id(found.position),
        **{name: unsigned64(value) for name, value in fields.items()},
    )


def on_consumer_stats(session: Session, body: Any) -> None:
    """CONSUMER_STATS of one consumer."""
    consumer = _consumer(session, body)
    subscription = consumer.subscription
    session.connection.write_command(
        "consumerStatsResponse",
        request_id=body.request_id,
        consumerName=consumer.name,
        availablePermits=unsigned64(consumer.permits),
        unackedMessages=consumer.unacked_count,
        blockedConsumerOnUnackedMsgs=False,
        type=KIND_NAMES[subscription.kind],
        msgBacklog=max(0, subscription.backlog()),
    )


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.SUBSCRIBE: on_subscribe,
    pb.BaseCommand.UNSUBSCRIBE: on_unsubscribe,
    pb.BaseCommand.CLOSE_CONSUMER: on_close_consumer,
    pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: on_redeliver,
    pb.BaseCommand.CONSUMER_STATS: on_consumer_stats,
    pb.BaseCommand.SEEK: on_seek,
    pb.BaseCommand.GET_LAST_MESSAGE_ID: on_get_last_message_id,
    pb.BaseCommand.GET_COMMITTED_POSITION: on_get_committed_position,
}


def on_flow(session: Session, frame: bytes) -> None:
    """FLOW: permits for a consumer; no answer."""
    consumer_id, permits = decode_flow(frame)
    consumer = session.consumers.get(consumer_id)
    if consumer is not None:
        consumer.grant(permits)
        consumer.subscription.room_changed()


def on_ack(session: Session, frame: bytes) -> None:
    """ACK: answered when it is durable, if the client asked for an answer. ConsumerNotFound: nothing was acknowledged."""
    consumer_id, cumulative, ids, txn_id, request_id, key = decode_ack(frame)
    consumer = session.consumers.get(consumer_id)
    if consumer is None:
        if request_id is not None:
            error, message = ServerError.ConsumerNotFound, _not_open(consumer_id)
            session.connection.write(encode_ack_response(consumer_id, request_id, txn=txn_id, error=error, message=message))
        return
    if len(ids) > MAX_ACK_IDS:
        raise WireError(f"ACK of {len(ids)} messages; {MAX_ACK_IDS} are the most in one")
    if request_id is not None:
        consumer.begin_ack()
        session.connection.begin_request()
    subscription = consumer.subscription
    for each in ids:
        if not 0 <= each[3] <= MAX_BATCH_SIZE:
            raise WireError(f"ACK of a batch with more than {MAX_BATCH_SIZE} messages, or less than none")
    answer = None if request_id is None else partial(_acknowledged, session, consumer, request_id, txn_id)
    if txn_id is None:
        subscription.acknowledge(consumer, ids, answer, cumulative=cumulative)
    elif session.principal is None or (foreign := _foreign(session, consumer, txn_id)) is None:
        subscription.acknowledge_in(consumer, txn_id, ids, answer or _unheard, cumulative=cumulative, key=key)
    elif answer is not None:
        answer(None, foreign.code, foreign.message)


def _foreign(session: Session, consumer: Consumer, txn_id: TxnId) -> Refusal | None:
    return foreign_in(session, txn_id, f"was not told of {consumer.subscription.name} on {consumer.topic.name}")


def _acknowledged(
    session: Session,
    consumer: Consumer,
    request_id: int,
    txn_id: TxnId | None,
    value: Any,  # an Answer's first argument; an acknowledgement has none
    error: ServerError | None,
    message: str,
) -> None:
    if error is None:
        response = encode_ack_response(consumer.consumer_id, request_id, txn=txn_id)
    else:
        response = encode_ack_response(consumer.consumer_id, request_id, txn=txn_id, error=error, message=message)
    if consumer.pending_acks:
        consumer.end_acks(1)
        session.connection.answer(response)
    else:  # the consumer was closed meanwhile, and with it all that it had pending
        session.connection.write(response)


def _unheard(value: Any, error: ServerError | None, message: str) -> None:
    """The answer of a request whose client asked for none."""


FRAMES: Final[dict[int, FrameHandler]] = {
    pb.BaseCommand.ACK: on_ack,
    pb.BaseCommand.FLOW: on_flow,
}
