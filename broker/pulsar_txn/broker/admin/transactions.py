"""Transactions of a broker over HTTP (`/admin/v3/transactions`): its buffers and pending acks, in the shapes of Pulsar 4.2."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from aiohttp import web

from pulsar_txn.broker.broker import Broker
from pulsar_txn.broker.commands.session import AnyTopic
from pulsar_txn.broker.topics.committed_position import committed_position
from pulsar_txn.broker.topics.topic import Topic
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnId
from pulsar_txn.wire.topics import TopicName

from .answers import Routes, body_text, done, failed, flag, number, text_of, whole_number
from .common import BROKER, existing_subscription, opened, persistent_topic
from .coordinators import BASE, Coordinated, coordinator, coordinators_of, own_fields, txn_id_of
from .identity import asker
from .topics import internal_stats

_TOPIC: Final = "{tenant}/{namespace}/{topic}"
_NOT_MORE: Final = "Number of transaction coordinators should be more than the current number of transaction coordinator"


def coordinated(broker: Broker) -> Coordinated:
    """The broker's coordinators."""
    return Coordinated(
        lambda: broker.coordinators,
        lambda _tc_id: broker.service_url or broker.service_url_tls,
        partial(_metadata, broker),
        is_operator=lambda _: asker().superuser,
        role=lambda _: asker().role,
    )


async def coordinator_internal_stats(request: web.Request) -> web.Response:
    """GET: the log of one."""
    host = coordinator(request, number(request, "coordinator"))
    log = next(iter(host.logs.values()))
    stats = {"managedLedgerName": log.name, "managedLedgerInternalStats": internal_stats(log)}
    return web.json_response({"transactionLogStats": stats})


async def grow_coordinators(request: web.Request) -> web.Response:
    """POST, the number in the body: so many coordinators. 406 when that is not more than there are."""
    broker, now = request.app[BROKER], len(coordinators_of(request))
    text = (await body_text(request)).strip().strip('"')
    count = whole_number(text, "the number of coordinators in the body,")
    if count <= now:
        return failed(406, _NOT_MORE)
    await broker.grow_coordinators(count)
    return done()


async def _metadata(broker: Broker, info: Any) -> dict[str, Any]:
    txn_id = info.txn_id
    produced: dict[str, Any] = {}
    acked: dict[str, dict[str, Any]] = {}
    for participant in info.participants:
        topic = await _topic_of(broker, participant.topic)
        found = topic if isinstance(topic, Topic) else None
        if participant.subscription is None:
            produced[participant.topic] = {"aborted": False} if found is None else _in_buffer(found, txn_id)
        else:
            subscription = None if found is None else found.subscriptions.get(participant.subscription)
            of_topic = acked.setdefault(participant.topic, {})
            of_topic[participant.subscription] = {} if subscription is None else _in_pending_ack(subscription, txn_id)
    return {
        "txnId": f"({txn_id.most},{txn_id.least})",
        "status": info.status.name,
        "openTimestamp": info.start_time_ms,
        "timeoutAt": info.timeout_ms,
        "producedPartitions": produced,
        "ackedPartitions": acked,
    } | own_fields(info)


async def _topic_of(broker: Broker, name: str) -> AnyTopic | None:
    """Open a topic, because nobody may have asked for it since a restart.

    One that cannot be opened keeps no other from being shown.
    """
    try:
        return await opened(broker, TopicName.parse(name))
    except Refusal:
        return None


# ---- buffers


async def buffer_stats(request: web.Request) -> web.Response:
    """GET: of one topic."""
    stats = (await persistent_topic(request)).buffer.stats()
    answer: dict[str, Any] = {
        "state": stats.state,
        "maxReadPosition": text_of(stats.max_read_position),
        "ongoingTxnSize": stats.ongoing_txn_size,
        "totalAbortedTransactions": stats.total_aborted_transactions,
        "snapshotType": "Single",
    }
    return web.json_response(_with_marks(request, answer, stats.low_watermarks))


def _with_marks(request: web.Request, answer: dict[str, Any], marks: dict[int, int]) -> dict[str, Any]:
    if flag(request, "lowWaterMarks"):
        answer["lowWaterMarks"] = {str(tc_id): mark for tc_id, mark in marks.items()}
    return answer


async def in_buffer_stats(request: web.Request) -> web.Response:
    """GET: one transaction in a topic's buffer."""
    return web.json_response(_in_buffer(await persistent_topic(request), txn_id_of(request)))


def _in_buffer(topic: Topic, txn_id: TxnId) -> dict[str, Any]:
    first = topic.buffer.first_position(txn_id)
    answer: dict[str, Any] = {} if first is None else {"startPosition": text_of(first)}
    return answer | {"aborted": topic.buffer.is_aborted(txn_id)}


async def buffer_internal_stats(request: web.Request) -> web.Response:
    """GET: 405, after Pulsar's answer for stores that are no ledgers."""
    topic = await persistent_topic(request)
    return failed(405, f"{topic.name}: snapshots of buffers are kept in the broker's store, and not in a topic of their own")


# ---- pending acks


async def pending_ack_stats(request: web.Request) -> web.Response:
    """GET: of one subscription; state None before its first acknowledgement in a transaction."""
    handle = (await existing_subscription(request))[1].pending_ack
    if handle is None:
        return web.json_response(_with_marks(request, {"state": "None", "ongoingTxnSize": 0}, {}))
    stats = handle.stats()
    answer: dict[str, Any] = {"state": stats.state, "ongoingTxnSize": stats.ongoing_txn_size}
    if stats.last_committed_txn is not None:
        answer["lastCommittedTransaction"] = str(stats.last_committed_txn)
    return web.json_response(_with_marks(request, answer, stats.low_watermarks))


async def committed(request: web.Request) -> web.Response:
    """GET (ours): the committed position of one subscription.

    With `requireStable=true` 409, and the transaction, while an open transaction holds acknowledgements of it.
    """
    topic, subscription = await existing_subscription(request)
    found = await committed_position(topic, subscription)
    if found.unstable is not None and flag(request, "requireStable"):
        text = f"transaction {found.unstable} holds acknowledgements of {subscription.name!r} on {topic.name}"
        answer: dict[str, Any] = {"reason": f"{text}; ask again when it has ended", "transaction": str(found.unstable)}
        return web.json_response(answer, status=409)
    answer = {"position": text_of(found.position), "stable": found.unstable is None}
    for name, txn_id in (("lastCommittedTransaction", found.last_committed), ("openTransaction", found.unstable)):
        if txn_id is not None:
            answer[name] = str(txn_id)
    return web.json_response(answer)


async def in_pending_ack_stats(request: web.Request) -> web.Response:
    """GET: the cumulative ack of one transaction, if it has one."""
    return web.json_response(_in_pending_ack((await existing_subscription(request))[1], txn_id_of(request)))


def _in_pending_ack(subscription: Any, txn_id: TxnId) -> dict[str, Any]:
    handle = subscription.pending_ack
    position = None if handle is None else handle.cumulative_position(txn_id)
    return {} if position is None else {"cumulativeAckPosition": text_of(position)}


async def position_stats(request: web.Request) -> web.Response:
    """GET: `PendingAck`, `MarkDelete` or `NotInPendingAck` of one position."""
    _, subscription = await existing_subscription(request)
    position = (number(request, "ledger"), number(request, "entry"))
    batch_index = number(request, "batchIndex") if request.query.get("batchIndex") else -1
    handle = subscription.pending_ack
    if handle is not None:
        state = handle.position_state(position, batch_index)
    else:
        state = "MarkDelete" if subscription.cursor.is_deleted(position) else "NotInPendingAck"
    return web.json_response({"state": state})


async def pending_ack_internal_stats(request: web.Request) -> web.Response:
    """GET: the redo log of one subscription."""
    _, subscription = await existing_subscription(request)
    if subscription.host is None:
        text = f"{subscription.name!r} has no acknowledgements in transactions"
        raise Refusal(ServerError.SubscriptionNotFound, text)
    log = next(iter(subscription.host.logs.values()))
    stats = {"managedLedgerName": log.name, "managedLedgerInternalStats": internal_stats(log)}
    return web.json_response({"pendingAckLogStats": stats})


ROUTES: Routes = [
    ("GET", f"{BASE}/coordinatorInternalStats/{{coordinator}}", coordinator_internal_stats),
    ("POST", f"{BASE}/transactionCoordinator/replicas", grow_coordinators),
    ("GET", f"{BASE}/transactionBufferStats/{_TOPIC}", buffer_stats),
    ("GET", f"{BASE}/transactionBufferInternalStats/{_TOPIC}", buffer_internal_stats),
    ("GET", f"{BASE}/transactionInBufferStats/{_TOPIC}/{{most}}/{{least}}", in_buffer_stats),
    ("GET", f"{BASE}/pendingAckStats/{_TOPIC}/{{subscription}}", pending_ack_stats),
    ("GET", f"{BASE}/committedPosition/{_TOPIC}/{{subscription}}", committed),
    ("GET", f"{BASE}/pendingAckInternalStats/{_TOPIC}/{{subscription}}", pending_ack_internal_stats),
    ("GET", f"{BASE}/transactionInPendingAckStats/{_TOPIC}/{{subscription}}/{{most}}/{{least}}", in_pending_ack_stats),
    ("GET", f"{BASE}/positionStatsInPendingAck/{_TOPIC}/{{subscription}}/{{ledger}}/{{entry}}", position_stats),
]
