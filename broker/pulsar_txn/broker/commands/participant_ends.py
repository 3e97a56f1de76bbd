"""END_TXN_ON_PARTITION and _ON_SUBSCRIPTION: a coordinator beside this broker ends its transactions at our topics.

Only ids with a lane (`LANE_BIT`) are such a coordinator's. What our own coordinators gave out ends by their logs alone,
whoever asks. As on stock Pulsar a role has to be a superuser's, and a participant that is not there has nothing to end:
that is done.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from pulsar_txn.broker.txn.participants import is_external
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId, signed64
from pulsar_txn.wire.topics import InvalidName, TopicName

from .session import Handler, Session

_GONE: Final = frozenset({ServerError.TopicNotFound, ServerError.SubscriptionNotFound})


def on_end_on_partition(session: Session, body: Any) -> None:
    """END_TXN_ON_PARTITION."""
    _end(session, "endTxnOnPartitionResponse", body, body.topic, None)


def on_end_on_subscription(session: Session, body: Any) -> None:
    """END_TXN_ON_SUBSCRIPTION."""
    _end(session, "endTxnOnSubscriptionResponse", body, body.subscription.topic, body.subscription.subscription)


def _end(session: Session, response: str, body: Any, topic: str, subscription: str | None) -> None:
    """Answered when the outcome is durable at the participant."""
    answer = partial(_answer, session, response, body)
    try:
        txn_id, action, name = _asked(session, body, topic)
    except Refusal as refusal:
        answer(None, refusal.code, refusal.message)
        return
    low_watermark = -1
    if body.HasField("txnid_least_bits_of_low_watermark"):
        low_watermark = signed64(body.txnid_least_bits_of_low_watermark)
    if subscription is None:
        session.services.end_on_partition(name, txn_id, action, low_watermark, answer)
    else:
        session.services.end_on_subscription(name, subscription, txn_id, action, low_watermark, answer)


def _asked(session: Session, body: Any, topic: str) -> tuple[TxnId, TxnAction, str]:
    """The transaction to end, its outcome, and the topic. Raises Refusal."""
    services = session.services
    if not services.config.external_transaction_coordinators_enabled:
        text = "participants are told by this broker's own coordinators only; set externalTransactionCoordinatorsEnabled=true"
        raise Refusal(ServerError.NotAllowedError, text)
    if services.authentication.enabled and not session.superuser:
        text = "only a role in superUserRoles may end a transaction at a participant"
        raise Refusal(ServerError.TransactionNotFound, text)  # the code of stock brokers
    if not body.HasField("txn_action"):  # a number that is none reads as none; without this it would commit
        raise Refusal(ServerError.NotAllowedError, "the end names no action that is known; 0 commits and 1 aborts")
    try:
        name = TopicName.parse(topic)
    except InvalidName as error:
        raise Refusal(ServerError.InvalidTopicName, str(error)) from None
    if not name.is_persistent or not services.catalog.exists(name):
        raise Refusal(ServerError.TopicNotFound, f"{name} does not exist")
    txn_id = TxnId(signed64(body.txnid_most_bits), signed64(body.txnid_least_bits))
    if not is_external(txn_id):
        text = f"{txn_id} is of a coordinator of this broker, which alone ends it here; send END_TXN"
        raise Refusal(ServerError.NotAllowedError, text)
    return txn_id, TxnAction(body.txn_action), str(name)


def _answer(session: Session, response: str, body: Any, _value: Any, error: ServerError | None, message: str) -> None:
    refused = {} if error is None or error in _GONE else {"error": int(error), "message": message}
    session.connection.write_command(
        response,
        request_id=body.request_id,
        txnid_least_bits=body.txnid_least_bits,
        txnid_most_bits=body.txnid_most_bits,
        **refused,
    )


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.END_TXN_ON_PARTITION: on_end_on_partition,
    pb.BaseCommand.END_TXN_ON_SUBSCRIPTION: on_end_on_subscription,
}
