"""The transaction commands. Every answer echoes the transaction's ids, errors too: clients find their coordinator by them."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, signed64, unsigned64
from pulsar_txn.wire.topics import InvalidName, TopicName

from .coordinators import Coordinators

if TYPE_CHECKING:
    from .connection import Connection, Handler


def _coordinators(connection: Connection) -> Coordinators:
    coordinators = connection.broker.coordinators
    if coordinators is None:
        text = "transactions are not enabled on this broker; set transactionCoordinatorEnabled=true"
        raise Refusal(ServerError.NotAllowedError, text)
    return coordinators


async def on_tc_connect(connection: Connection, body: Any) -> None:
    """TC_CLIENT_CONNECT_REQUEST: answered once the coordinator serves."""
    coordinators = _coordinators(connection)
    try:
        await coordinators.connect(body.tc_id)
    except Refusal as refusal:
        connection.write_command(
            "tcClientConnectResponse", request_id=body.request_id, error=int(refusal.code), message=refusal.message
        )
    else:
        connection.write_command("tcClientConnectResponse", request_id=body.request_id)


def on_new_txn(connection: Connection, body: Any) -> None:
    """NEW_TXN."""
    answer = partial(_answer_new, connection, body.request_id, body.tc_id)
    _coordinators(connection).new_txn(body.tc_id, body.txn_ttl_millis, connection.principal, answer)


def _answer_new(
    connection: Connection, request_id: int, tc_id: int, value: Any, error: ServerError | None, message: str
) -> None:
    if error is None:
        connection.write_command(
            "newTxnResponse", request_id=request_id, txnid_least_bits=value.least, txnid_most_bits=value.most
        )
    else:
        connection.write_command(
            "newTxnResponse", request_id=request_id, txnid_most_bits=tc_id, error=int(error), message=message
        )


def on_add_partition(connection: Connection, body: Any) -> None:
    """ADD_PARTITION_TO_TXN."""
    _add(connection, body, "addPartitionToTxnResponse", [(topic, None) for topic in body.partitions])


def on_add_subscription(connection: Connection, body: Any) -> None:
    """ADD_SUBSCRIPTION_TO_TXN."""
    _add(connection, body, "addSubscriptionToTxnResponse", [(each.topic, each.subscription) for each in body.subscription])


def _add(connection: Connection, body: Any, response: str, named: list[tuple[str, str | None]]) -> None:
    coordinators = _coordinators(connection)
    txn_id = _txn_id(body)
    answer = partial(_answer, connection, response, body.request_id, txn_id)
    participants: list[Participant] = []
    for topic, subscription in named:
        try:
            participants.append(Participant(_participant_name(topic), subscription))
        except InvalidName as error:
            answer(None, ServerError.InvalidTopicName, str(error))
            return
        except Refusal as refusal:
            answer(None, refusal.code, refusal.message)
            return
    coordinators.add(txn_id, tuple(participants), connection.principal, answer)


@lru_cache(4096)
def _participant_name(topic: str) -> str:
    """The full name of a topic that may take part."""
    name = TopicName.parse(topic)
    if not name.is_persistent:
        raise Refusal(ServerError.NotAllowedError, f"{name}: a non-persistent topic cannot take part in a transaction")
    return str(name)


def on_end_txn(connection: Connection, body: Any) -> None:
    """END_TXN: answered when every participant holds the outcome."""
    txn_id = _txn_id(body)
    answer = partial(_answer, connection, "endTxnResponse", body.request_id, txn_id)
    _coordinators(connection).end(txn_id, TxnAction(body.txn_action), connection.principal, answer)


def on_end_txn_on_participant(response: str, connection: Connection, body: Any) -> None:
    """END_TXN_ON_PARTITION and _ON_SUBSCRIPTION: only coordinators may end something at a participant, and all are in here."""
    answer = partial(_answer, connection, response, body.request_id, _txn_id(body))
    answer(None, ServerError.NotAllowedError, "participants are told by their own broker's coordinators only; send END_TXN")


def _txn_id(body: Any) -> TxnId:
    return TxnId(signed64(body.txnid_most_bits), signed64(body.txnid_least_bits))


def _answer(
    connection: Connection,
    response: str,
    request_id: int,
    txn_id: TxnId,
    value: Any,
    error: ServerError | None,
    message: str,
) -> None:
    least, most = unsigned64(txn_id.least), unsigned64(txn_id.most)
    if error is None:
        connection.write_command(response, request_id=request_id, txnid_least_bits=least, txnid_most_bits=most)
        return
    connection.write_command(
        response, request_id=request_id, txnid_least_bits=least, txnid_most_bits=most, error=int(error), message=message
    )


HANDLERS: Final[dict[int, tuple[str, Handler]]] = {
    50: ("newTxn", on_new_txn),
    52: ("addPartitionToTxn", on_add_partition),
    54: ("addSubscriptionToTxn", on_add_subscription),
    56: ("endTxn", on_end_txn),
    58: ("endTxnOnPartition", partial(on_end_txn_on_participant, "endTxnOnPartitionResponse")),
    60: ("endTxnOnSubscription", partial(on_end_txn_on_participant, "endTxnOnSubscriptionResponse")),
    62: ("tcClientConnectRequest", on_tc_connect),
}
