"""The transaction commands.

Every answer, also an error, carries the ids of the transaction: clients find their coordinator by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, Final

from pulsar_txn.broker.txn.host import Answer
from pulsar_txn.wire import hot_txn
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId
from pulsar_txn.wire.topics import InvalidName, TopicName

from .checks import check_subscription_name
from .coordinating import TxnFrameHandler, TxnHandler, TxnSession
from .identities import identify
from .opened import Asked

MAX_PARTICIPANTS: Final = 1000
"""Of one request."""

_MAX_GROUP: Final = 10_000
_ACTIONS: Final = {int(action): action for action in TxnAction}


def _no_coordinators(session: TxnSession, head: bytes) -> None:
    """Answer a request that `Connection` counts where transactions are switched off."""
    session.connection.answer(_switched_off(hot_txn.request_id_of(head)))


def _switched_off(request_id: int) -> bytes:
    text = "transactions are not enabled on this broker; set transactionCoordinatorEnabled=true"
    return command("error", request_id=request_id, error=int(ServerError.NotAllowedError), message=text)


async def on_tc_connect(session: TxnSession, body: Any) -> None:
    """TC_CLIENT_CONNECT_REQUEST: answered once the coordinator serves; see `identify` for who names a transactional id."""
    coordinators = session.services.coordinators
    if coordinators is None:
        session.connection.write(_switched_off(body.request_id))
        return
    told: dict[str, int] = {}
    try:
        await coordinators.connect(body.tc_id)
        if body.HasField("transactional_id"):
            told = await identify(session, body, coordinators)
    except Refusal as refusal:
        told = {"error": int(refusal.code)}
        session.connection.write_command("tcClientConnectResponse", request_id=body.request_id, message=refusal.message, **told)
    else:
        session.connection.write_command("tcClientConnectResponse", request_id=body.request_id, **told)


def on_new_txn(session: TxnSession, frame: bytes, participants: tuple[Participant, ...] = ()) -> None:
    """NEW_TXN: a repeat of a request that is answered already means the same transaction. `participants`: with it."""
    head, timeout_ms, tc_id = hot_txn.decode_new_txn(frame)
    coordinators = session.services.coordinators
    if coordinators is None:
        _no_coordinators(session, head)
        return
    asked, opened = (tc_id, head), session.opened
    txn_id = opened.answered.get(asked)
    if txn_id is not None:
        session.connection.answer(hot_txn.encode_response(hot_txn.NEW_TXN_RESPONSE, hot_txn.with_txn(head, txn_id)))
    elif not opened.waits(asked):
        answer = partial(_answer_new, session, asked)
        who = (session.principal, session.identity)
        coordinators.new_txn(tc_id, timeout_ms, *who, answer, session.incarnation, participants)


def refuse_new_txn(session: TxnSession, frame: bytes, error: ServerError, message: str) -> None:
    """NEW_TXN, of which what it would register is refused: nothing is opened."""
    head, _, tc_id = hot_txn.decode_new_txn(frame)
    session.connection.answer(_refused(hot_txn.NEW_TXN_RESPONSE, hot_txn.with_txn(head, TxnId(tc_id, 0)), error, message))


def _answer_new(session: TxnSession, asked: Asked, value: TxnId | None, error: ServerError | None, message: str) -> None:
    tc_id, head = asked
    whole = hot_txn.with_txn(head, TxnId(tc_id, 0) if value is None else value)
    if error is None:
        size, starts = len(whole), _NEW_STARTS
        data = starts[size] + whole if size < len(starts) else hot_txn.encode_response(hot_txn.NEW_TXN_RESPONSE, whole)
    else:
        data = _refused(hot_txn.NEW_TXN_RESPONSE, whole, error, message)
    for _ in range(session.opened.settle(asked, value)):
        session.connection.answer(data)


def on_add_partition(session: TxnSession, frame: bytes) -> None:
    """ADD_PARTITION_TO_TXN."""
    head, txn_id, topics = hot_txn.decode_add_partitions(frame)
    _add(session, head, txn_id, hot_txn.ADD_PARTITION_TO_TXN_RESPONSE, [*zip(topics, repeat(None))])


def on_add_subscription(session: TxnSession, frame: bytes) -> None:
    """ADD_SUBSCRIPTION_TO_TXN."""
    head, txn_id, subscriptions = hot_txn.decode_add_subscriptions(frame)
    _add(session, head, txn_id, hot_txn.ADD_SUBSCRIPTION_TO_TXN_RESPONSE, subscriptions)


def _add(session: TxnSession, head: bytes, txn_id: TxnId, response: int, named: Sequence[tuple[str, str | None]]) -> None:
    coordinators = session.services.coordinators
    if coordinators is None:
        _no_coordinators(session, head)
        return
    size, starts = len(head), hot_txn.STARTS[response]
    done = starts[size] + head if size < len(starts) else hot_txn.encode_response(response, head)
    answer = partial(session.connection.respond, done, REFUSED[response], head)
    if len(named) > MAX_PARTICIPANTS:
        text = f"{len(named)} participants in one request; {MAX_PARTICIPANTS} are the most, send several"
        answer(None, ServerError.NotAllowedError, text)
        return
    try:
        participants = tuple(map(_participant, named))
    except InvalidName as error:
        answer(None, ServerError.InvalidTopicName, str(error))
    except Refusal as refusal:
        answer(None, refusal.code, refusal.message)
    else:
        coordinators.add(txn_id, participants, session.principal, session.identity, answer, superuser=session.superuser)


@lru_cache(4096)
def _participant(named: tuple[str, str | None]) -> Participant:
    """A topic, or a subscription of it, that may take part. InvalidName, Refusal."""
    topic, subscription = named
    name = TopicName.parse(topic)
    if not name.is_persistent:
        raise Refusal(ServerError.NotAllowedError, f"{name}: a non-persistent topic cannot take part in a transaction")
    if subscription is not None:
        check_subscription_name(subscription)
    return Participant(str(name), subscription)


def on_end_txn(session: TxnSession, frame: bytes) -> None:
    """END_TXN: answered when every participant holds the outcome, of all transactions that it ends together."""
    head, txn_id, action, group, abort_others, *_ = hot_txn.decode_end_txn(frame)
    coordinators = session.services.coordinators
    if coordinators is None:
        _no_coordinators(session, head)
        return
    size, starts = len(head), _END_STARTS
    done = starts[size] + head if size < len(starts) else hot_txn.encode_response(hot_txn.END_TXN_RESPONSE, head)
    answer = partial(session.connection.respond, done, REFUSED[hot_txn.END_TXN_RESPONSE], head)
    known = _ACTIONS.get(action)
    if known is None:
        answer(None, ServerError.NotAllowedError, f"{action} is no action; 0 commits and 1 aborts")
    elif group or abort_others:
        _end_together(session, txn_id, known, group, answer, abort_others=abort_others)
    else:
        coordinators.end(txn_id, known, session.principal, session.identity, answer, superuser=session.superuser)


def _end_together(
    session: TxnSession, txn_id: TxnId, action: TxnAction, group: Sequence[int], answer: Answer, *, abort_others: bool
) -> None:
    coordinators = session.services.coordinators
    assert coordinators is not None  # noqa: S101 - the caller has looked
    if not session.services.ends_groups:
        text = "this broker's coordinator plug-in ends no groups; set transactionMetadataStoreProviderClassName=fencing"
        answer(None, ServerError.NotAllowedError, text)
    elif len(group) > _MAX_GROUP:
        text = f"{len(group)} transactions in one END_TXN; {_MAX_GROUP} are the most"
        answer(None, ServerError.NotAllowedError, text)
    else:
        further = tuple([coordinators.member(txn_id, least) for least in group])
        who, may = (session.principal, session.identity), session.superuser
        coordinators.end_together(txn_id, further, action, *who, answer, abort_others=abort_others, superuser=may)


def _refused(response: int, head: bytes, error: ServerError, message: str) -> bytes:
    return hot_txn.encode_response(response, head, error=int(error), message=message)


REFUSED: Final = {response: partial(_refused, response) for response in hot_txn.RESPONSES}
_NEW_STARTS: Final = hot_txn.STARTS[hot_txn.NEW_TXN_RESPONSE]
_END_STARTS: Final = hot_txn.STARTS[hot_txn.END_TXN_RESPONSE]

REQUESTS: Final[dict[int, TxnFrameHandler]] = {
    hot_txn.NEW_TXN: on_new_txn,
    hot_txn.ADD_PARTITION_TO_TXN: on_add_partition,
    hot_txn.ADD_SUBSCRIPTION_TO_TXN: on_add_subscription,
    hot_txn.END_TXN: on_end_txn,
}

HANDLERS: Final[dict[int, TxnHandler]] = {
    pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST: on_tc_connect,
}
