"""The transaction commands, and those that name a transactional id.

Every answer to a transaction, also an error, carries its ids: clients find their coordinator by them.

TC_CLIENT_CONNECT with a transactional id says who the client is from then on, on this connection. A client that comes without
an epoch is a new instance. It is answered once everything that older instances began has ended, at all participants, so that
what it reads then does not change under it (Kafka's InitProducerId; `docs/adr/0003`).

DESCRIBE_TRANSACTIONAL_ID tells what its coordinator knows of an id (Kafka's DescribeTransactions). CONNECTED announces
`describes_transactional_ids`, without which no client asks. An id belongs to the role that named it: to others than operators
only their own exist. One answer has at most `MAX_TRANSACTIONS` transactions and `_MAX_NAMES` characters of participants, the
first of them, and says how many there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, Final

from pulsar_txn.broker.base.slices import LoopBudget
from pulsar_txn.broker.txn.coordinators import Bound, BoundTransactions, Coordinators
from pulsar_txn.ledger.hosting import Answer
from pulsar_txn.tc.owners import Identity, Owner
from pulsar_txn.tc.requests import Check, EndTxn, PrepareTxn
from pulsar_txn.wire import hot_txn
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.frames import command, decode_command
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId, signed64, unsigned64
from pulsar_txn.wire.topics import InvalidName, TopicName

from .check_groups import HANDLERS as CHECK_HANDLERS
from .check_groups import NO_CHECKS
from .txn_session import Asked, TxnFrameHandler, TxnHandler, TxnSession
from .validation import validate_subscription_name

MAX_PARTICIPANTS: Final = 1000
"""Of one request."""

MAX_TRANSACTIONS: Final = 1000
_MAX_NAMES: Final = 256 * 1024
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
    """NEW_TXN: a repeat means the same transaction (see `OpenedTransactions`). `participants`: what is registered with it."""
    head, timeout_ms, tc_id = hot_txn.decode_new_txn(frame)
    coordinators = session.services.coordinators
    if coordinators is None:
        _no_coordinators(session, head)
        return
    checked = hot_txn.checked_of(frame)
    if checked is not None and not session.services.checks:
        refuse_new_txn(session, frame, ServerError.NotAllowedError, NO_CHECKS)
        return
    asked, opened = (tc_id, head, frame), session.transactions.opened
    txn_id = opened.answered.get(asked)
    if txn_id is not None:
        session.connection.answer(hot_txn.encode_response(hot_txn.NEW_TXN_RESPONSE, hot_txn.with_txn(head, txn_id)))
    elif not opened.waits(asked):
        answer = partial(_answer_new, session, asked)
        who = (session.principal, session.transactions.identity)
        if checked is None:
            coordinators.new_txn(tc_id, timeout_ms, *who, answer, session.incarnation, participants)
        else:
            if checked.abort_on_disconnect:
                answer = partial(_bind, coordinators.bound, session.transactions.bind(), who, answer)
            check = _check_of(checked)
            coordinators.new_txn(tc_id, timeout_ms, *who, answer, session.incarnation, participants, check, checked.nonce)


def _check_of(checked: hot_txn.Checked) -> Check | None:
    if checked.check_group is None:
        return None
    return Check(checked.check_group, checked.check_data, checked.check_after_ms)


def _bind(
    all_bound: BoundTransactions,
    bound: Bound,
    who: Owner,
    answer: Answer,
    value: TxnId | None,
    error: ServerError | None,
    message: str,
) -> None:
    """A transaction is opened that ends with its connection, which may have ended meanwhile."""
    if value is not None:
        all_bound.bind(value, who, bound)
    answer(value, error, message)


def refuse_new_txn(session: TxnSession, frame: bytes, error: ServerError, message: str) -> None:
    """NEW_TXN, of which what it would register is refused: nothing is opened."""
    head, _, tc_id = hot_txn.decode_new_txn(frame)
    session.connection.answer(_refused(hot_txn.NEW_TXN_RESPONSE, hot_txn.with_txn(head, TxnId(tc_id, 0)), error, message))


def _answer_new(session: TxnSession, asked: Asked, value: TxnId | None, error: ServerError | None, message: str) -> None:
    tc_id, head, _ = asked
    whole = hot_txn.with_txn(head, TxnId(tc_id, 0) if value is None else value)
    if error is None:
        size, starts = len(whole), _NEW_STARTS
        data = starts[size] + whole if size < len(starts) else hot_txn.encode_response(hot_txn.NEW_TXN_RESPONSE, whole)
    else:
        data = _refused(hot_txn.NEW_TXN_RESPONSE, whole, error, message)
    for _ in range(session.transactions.opened.settle(asked, value)):
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
    session.transactions.opened.named(txn_id)
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
        coordinators.add(
            txn_id, participants, session.principal, session.transactions.identity, answer, superuser=session.superuser
        )


@lru_cache(4096)
def _participant(named: tuple[str, str | None]) -> Participant:
    """A topic, or a subscription of it, that may take part. InvalidName, Refusal."""
    topic, subscription = named
    name = TopicName.parse(topic)
    if not name.is_persistent:
        raise Refusal(ServerError.NotAllowedError, f"{name}: a non-persistent topic cannot take part in a transaction")
    if subscription is not None:
        validate_subscription_name(subscription)
    return Participant(str(name), subscription)


def on_end_txn(session: TxnSession, frame: bytes) -> None:
    """END_TXN: answered when every participant holds the outcome, of all transactions that it ends together.

    With `answer_at_decision` once the outcome is durable.
    """
    head, txn_id, action, group, abort_others, shown, at_decision, *_ = hot_txn.decode_end_txn(frame)
    coordinators = session.services.coordinators
    if coordinators is None:
        _no_coordinators(session, head)
        return
    session.transactions.opened.named(txn_id)
    size, starts = len(head), _END_STARTS
    done = starts[size] + head if size < len(starts) else hot_txn.encode_response(hot_txn.END_TXN_RESPONSE, head)
    answer = partial(session.connection.respond, done, REFUSED[hot_txn.END_TXN_RESPONSE], head)
    known = _ACTIONS.get(action)
    if known is None:
        answer(None, ServerError.NotAllowedError, f"{action} is no action; 0 commits and 1 aborts")
    elif (shown or at_decision) and not session.services.checks:
        answer(None, ServerError.NotAllowedError, NO_CHECKS)
    elif group or abort_others:
        _end_together(session, txn_id, known, group, answer, abort_others=abort_others, at_decision=at_decision)
    elif shown or at_decision:
        who, may = (session.principal, session.transactions.identity), session.superuser
        coordinators.end_as(EndTxn(answer, txn_id, known, *who, may, prepared_token=shown, at_decision=at_decision))
    else:
        coordinators.end(txn_id, known, session.principal, session.transactions.identity, answer, superuser=session.superuser)


def _end_together(
    session: TxnSession,
    txn_id: TxnId,
    action: TxnAction,
    group: Sequence[int],
    answer: Answer,
    *,
    abort_others: bool,
    at_decision: bool,
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
        who, may = (session.principal, session.transactions.identity), session.superuser
        if at_decision:
            coordinators.end_as(EndTxn(answer, txn_id, action, *who, may, further, abort_others, at_decision=True))
        else:
            coordinators.end_together(txn_id, further, action, *who, answer, abort_others=abort_others, superuser=may)


def on_prepare_txn(session: TxnSession, frame: bytes) -> None:
    """PREPARE_TXN: answered when the transaction waits for its end, durably. Nothing but an end is taken for it then."""
    body = decode_command(frame).prepareTxn
    ids = {"request_id": body.request_id, "txnid_least_bits": body.txnid_least_bits, "txnid_most_bits": body.txnid_most_bits}

    def answer(_value: Any, error: ServerError | None, message: str) -> None:
        told = {} if error is None else {"error": int(error), "message": message}
        session.connection.answer(command("prepareTxnResponse", **ids, **told))

    coordinators = session.services.coordinators
    if coordinators is None or not session.services.checks:
        answer(None, ServerError.NotAllowedError, NO_CHECKS)
        return
    txn_id = TxnId(signed64(body.txnid_most_bits), signed64(body.txnid_least_bits))
    session.transactions.opened.named(txn_id)
    who, may = (session.principal, session.transactions.identity), session.superuser
    coordinators.prepare(PrepareTxn(answer, txn_id, body.token, *who, may))


async def identify(session: TxnSession, body: Any, coordinators: Coordinators) -> dict[str, int]:
    """Bind the connection to a transactional id and its epoch; what the answer says of them.

    Raises Refusal, as `TakeOvers.done` and `TransactionalIds` do; then the connection has no new identity. A repeat over the
    same connection after ServiceNotReady goes on with the epoch of the first attempt.
    """
    name, ids = body.transactional_id, session.services.transactional_ids
    if ids is None:
        text = "transactional ids are not served here; set transactionMetadataStoreProviderClassName=fencing"
        raise Refusal(ServerError.NotAllowedError, text)
    known = session.transactions.identity or session.transactions.taking_over
    if known is not None and known[0] != name:
        raise Refusal(ServerError.NotAllowedError, f"this connection is bound to transactional id {known[0]!r}")
    if body.HasField("transactional_epoch"):
        await _resume(session, (name, body.transactional_epoch), body.tc_id, coordinators)
        return {}
    if session.transactions.taking_over is None:
        epoch, tc_id = await ids.begin(name, len(coordinators))
        session.transactions.take_over((name, epoch))
    else:
        epoch, tc_id = session.transactions.taking_over[1], await ids.coordinator(name, len(coordinators))
    identity = (name, epoch)
    if not coordinators.is_elsewhere(tc_id):  # else the client goes there with its epoch, which begins there
        await _take_over(session, identity, tc_id, coordinators)
    session.transactions.act_as(identity)
    return {"tc_id": tc_id, "transactional_epoch": epoch}


async def _resume(session: TxnSession, identity: Identity, tc_id: int, coordinators: Coordinators) -> None:
    """A client is back with its epoch. Where several processes lead coordinators, the epoch may begin here only now."""
    ids = session.services.transactional_ids
    assert ids is not None  # noqa: S101 - the caller has looked
    await ids.resume(*identity)
    if coordinators.is_shared and tc_id == await ids.coordinator(identity[0], len(coordinators)):
        await _take_over(session, identity, tc_id, coordinators)
    session.transactions.act_as(identity)


async def _take_over(session: TxnSession, identity: Identity, tc_id: int, coordinators: Coordinators) -> None:
    await coordinators.connect(tc_id)
    take_overs = session.services.take_overs
    assert take_overs is not None  # noqa: S101 - there are transactional ids, so there are coordinators
    await take_overs.done(tc_id, session.principal, identity, session.incarnation)


async def on_describe_transactional_id(session: TxnSession, body: Any) -> None:
    """Answered by the id's coordinator; elsewhere, with which one that is. Refusal."""
    coordinators, ids = session.services.coordinators, session.services.transactional_ids
    if coordinators is None or ids is None:
        text = "transactional ids are not served here; set transactionMetadataStoreProviderClassName=fencing"
        raise Refusal(ServerError.NotAllowedError, text)
    owner = (body.owner or None) if body.HasField("owner") else session.principal
    if owner != session.principal and not session.superuser:
        text = "a role sees its own transactional ids; those of another owner are for operators (superUserRoles)"
        raise Refusal(ServerError.AuthorizationError, text)
    told: dict[str, Any] = {"request_id": body.request_id}
    tc_id = await ids.find(body.transactional_id)
    if tc_id is not None:
        told["tc_id"] = tc_id
        if not body.HasField("tc_id") and coordinators.is_elsewhere(tc_id):
            told["elsewhere"] = True
        else:
            told |= await _known(session, coordinators, tc_id, owner, body.transactional_id)
    session.connection.write_command("describeTransactionalIdResponse", **told)


async def _known(session: TxnSession, coordinators: Coordinators, tc_id: int, owner: str | None, name: str) -> dict[str, Any]:
    coordinators.check_here(tc_id)
    host = coordinators.ready(tc_id)
    assert host is not None  # noqa: S101 - it is here
    machine: Any = host.machine
    if not hasattr(machine, "describe"):
        raise Refusal(ServerError.NotAllowedError, "this server's coordinator plug-in does not describe transactional ids")
    info = machine.describe(owner, name, MAX_TRANSACTIONS)
    if info is None:
        return {}
    transactions, left = [], _MAX_NAMES
    async for each in each_unfinished(machine, info, session.services.turn.budget):
        shown, used = _described_participants(session, each, left)
        left -= used
        transactions.append(_shown(each, shown))
    return {
        "epoch": info.epoch,
        "last_used_millis": info.last_used_ms,
        "transaction_count": info.transaction_count,
        "transactions": transactions,
    }


async def each_unfinished(machine: Any, info: Any, budget: LoopBudget) -> AsyncIterator[Any]:
    """The transactions of an id, each as it is when its turn comes; those that have ended meanwhile are passed over."""
    async for least in budget.each(info.unfinished, at_a_time=1):
        found = machine.transaction(least)
        if found is not None:
            yield found


def _shown(info: Any, participants: list[pb.DescribedParticipant]) -> pb.DescribedTransaction:
    return pb.DescribedTransaction(
        txnid_least_bits=unsigned64(info.txn_id.least),
        txnid_most_bits=unsigned64(info.txn_id.most),
        status=int(info.status),
        epoch=info.identity[1],
        start_time_millis=info.start_time_ms,
        timeout_millis=info.timeout_ms,
        modified_millis=info.modified_ms,
        check_group=info.check_group,
        check_count=info.check_count,
        participant_count=len(info.participants),
        participants=participants,
    )


def _described_participants(session: TxnSession, info: Any, left: int) -> tuple[list[pb.DescribedParticipant], int]:
    """The first of them, in at most `left` characters, and how many those are."""
    found: list[pb.DescribedParticipant] = []
    used = 0
    for each in info.participants:
        used += len(each.topic) + len(each.subscription or "")
        if used > left:
            return found, left  # nothing more of later transactions either
        cluster, participant = session.services.cluster_and_participant(each)
        found.append(
            pb.DescribedParticipant(topic=participant.topic, subscription=participant.subscription, cluster=cluster or None)
        )
    return found, used


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
    pb.BaseCommand.PREPARE_TXN: on_prepare_txn,
}

DESCRIBE_HANDLERS: Final[dict[int, TxnHandler]] = {
    pb.BaseCommand.DESCRIBE_TRANSACTIONAL_ID: on_describe_transactional_id,
}

HANDLERS: Final[dict[int, TxnHandler]] = {
    pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST: on_tc_connect,
    **CHECK_HANDLERS,
    **DESCRIBE_HANDLERS,
}
