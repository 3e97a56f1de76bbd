"""SEND, ACK and FLOW: the commands that travel per message. None of them makes a task or a future."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from pulsar_txn.broker.base.limits import MAX_ACK_IDS, MAX_BATCH_SIZE
from pulsar_txn.broker.dispatch.consumers import Consumer
from pulsar_txn.broker.net.intake import SENDS
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import Refusal, ServerError, WireError
from pulsar_txn.wire.hot import decode_ack, decode_flow, decode_send, encode_ack_response
from pulsar_txn.wire.ids import TxnId

from .checks import not_open
from .owners import foreign_in
from .session import FrameHandler, Session


def on_send(session: Session, frame: bytes) -> None:
    """SEND: the topic answers through the producer's owner, in order."""
    producer_id, sequence_id, _, txn_id, highest, is_chunk, _, entry = decode_send(frame)
    producer = session.producers.get(producer_id)
    if producer is None:
        if producer_id not in session.closed_producers:  # closed a moment ago: its last sends are dropped
            raise WireError(f"SEND for producer {producer_id}, which is not open on this connection")
        return
    producer.pending += 1
    session.pending_sends += 1
    if session.pending_sends == session.max_pending_sends:
        session.connection.hold(SENDS, hold=True)
    if txn_id is not None and session.principal is not None:
        foreign = foreign_in(session, txn_id, f"{producer.topic.name} is not registered in it")
        if foreign is not None:
            session.producer_refused(producer, sequence_id, foreign.code, foreign.message)
            return
    producer.topic.publish(producer, sequence_id, highest, is_chunk, txn_id, entry)


def on_flow(session: Session, frame: bytes) -> None:
    """FLOW: permits for a consumer; no answer."""
    consumer_id, permits = decode_flow(frame)
    consumer = session.consumers.get(consumer_id)
    if consumer is not None:
        consumer.permits += permits
        consumer.subscription.dispatcher.wake()


def on_ack(session: Session, frame: bytes) -> None:
    """ACK: answered when it is durable, if the client asked for an answer. ConsumerNotFound: nothing was acknowledged."""
    consumer_id, cumulative, ids, txn_id, request_id, key = decode_ack(frame)
    consumer = session.consumers.get(consumer_id)
    if consumer is None:
        if request_id is not None:
            error, message = ServerError.ConsumerNotFound, not_open(consumer_id)
            session.connection.write(encode_ack_response(consumer_id, request_id, txn=txn_id, error=error, message=message))
        return
    if len(ids) > MAX_ACK_IDS:
        raise WireError(f"ACK of {len(ids)} messages; {MAX_ACK_IDS} are the most in one")
    if request_id is not None:
        consumer.pending_acks += 1
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
    subscription = consumer.subscription
    return foreign_in(session, txn_id, f"was not told of {subscription.name} on {subscription.topic.name}")


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
        consumer.pending_acks -= 1
        session.connection.answer(response)
    else:  # the consumer was closed meanwhile, and with it all that it had pending
        session.connection.write(response)


def _unheard(value: Any, error: ServerError | None, message: str) -> None:
    """The answer of a request whose client asked for none."""


FRAMES: Final[dict[int, FrameHandler]] = {
    pb.BaseCommand.SEND: on_send,
    pb.BaseCommand.ACK: on_ack,
    pb.BaseCommand.FLOW: on_flow,
}
