"""Transactions over HTTP (`/admin/v3/transactions`), in the shapes of Pulsar 4.2; 404 with a sentence where that has 500."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final

from aiohttp import web

from pulsar_txn.broker.broker import Broker
from pulsar_txn.broker.commands.services import AnyTopic
from pulsar_txn.broker.topics.topic import Topic
from pulsar_txn.broker.txn.coordinators import CoordinatorHost, Coordinators
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId
from pulsar_txn.wire.topics import TopicName

from .common import (
    BROKER,
    Routes,
    asked,
    body_text,
    done,
    existing_subscription,
    failed,
    flag,
    number,
    opened,
    persistent_topic,
    text_of,
    whole_number,
)
from .lists import after, limit, object_response
from .topics import internal_stats

_TXN: Final = re.compile(r"\(([0-9]{1,9}),([0-9]{1,18})\)")
_BASE = "/admin/v3/transactions"
_TOPIC = "{tenant}/{namespace}/{topic}"
_NOT_MORE = "Number of transaction coordinators should be more than the current number of transaction coordinator"


def _coordinators(request: web.Request) -> Coordinators:
    coordinators = request.app[BROKER].coordinators
    if coordinators is None:
        text = "transactions are not enabled on this broker; set transactionCoordinatorEnabled=true"
        raise web.HTTPServiceUnavailable(text=text)
    return coordinators


def _coordinator(request: web.Request, tc_id: int) -> CoordinatorHost:
    coordinators = _coordinators(request)
    if not 0 <= tc_id < len(coordinators):
        text = f"Transaction coordinator not found! coordinator id : {tc_id}"
        raise Refusal(ServerError.TransactionCoordinatorNotFound, text)
    host = coordinators.ready(tc_id)
    if host is None:
        raise web.HTTPServiceUnavailable(text=f"coordinator {tc_id} is recovering; retry")
    return host


def _txn_id(request: web.Request) -> TxnId:
    return TxnId(number(request, "most"), number(request, "least"))


# ---- coordinators


async def list_coordinators(request: web.Request) -> web.Response:
    """GET: ids and where they are."""
    url = request.app[BROKER].service_url
    return web.json_response([{"id": tc_id, "brokerServiceUrl": url} for tc_id in range(len(_coordinators(request)))])


async def coordinator_stats(request: web.Request) -> web.Response:
    """GET: of one (`coordinatorId`), or of all by id."""
    coordinators = _coordinators(request)
    if "coordinatorId" in request.query:
        return web.json_response(_stats(_coordinator(request, number(request, "coordinatorId"))))
    return web.json_response({str(tc_id): _stats(coordinators.ready(tc_id)) for tc_id in range(len(coordinators))})


def _stats(host: CoordinatorHost | None) -> dict[str, Any]:
    if host is None:
        return {"state": "Initializing", "ongoingTxnSize": 0}
    machine: Any = host.machine
    ongoing = machine.active_count
    return {
        "state": "Ready",
        "leastSigBits": machine.next_local_txn_id - 1,
        "lowWaterMark": machine.low_watermark if ongoing or not machine.next_local_txn_id else 0,
        "ongoingTxnSize": ongoing,
    }


async def coordinator_internal_stats(request: web.Request) -> web.Response:
    """GET: the log of one."""
    host = _coordinator(request, number(request, "coordinator"))
    log = next(iter(host.logs.values()))
    stats = {"managedLedgerName": log.name, "managedLedgerInternalStats": internal_stats(log)}
    return web.json_response({"transactionLogStats": stats})


async def grow_coordinators(request: web.Request) -> web.Response:
    """POST, the number in the body: so many coordinators. 406 when that is not more than there are."""
    broker, now = request.app[BROKER], len(_coordinators(request))
    text = (await body_text(request)).strip().strip('"')
    count = whole_number(text, "the number of coordinators in the body,")
    if count <= now:
        return failed(406, _NOT_MORE)
    await broker.grow_coordinators(count)
    return done()


# ---- transactions


async def transaction_metadata(request: web.Request) -> web.Response:
    """GET: one that is open or ending."""
    txn_id = _txn_id(request)
    machine: Any = _coordinator(request, txn_id.most).machine
    info = machine.transaction(txn_id.least)
    if info is None:
        text = f"transaction ({txn_id.most},{txn_id.least}) is not open: it never was, or has ended"
        raise Refusal(ServerError.TransactionNotFound, text)
    return web.json_response(await _metadata(request.app[BROKER], info))


async def slow_transactions(request: web.Request) -> web.StreamResponse:
    """GET: those that are at least `timeout` milliseconds old, of one coordinator (`coordinatorId`) or of all.

    By coordinator and number. Beyond Pulsar, `limit` asks for so many, and `after` for those after one: `after=(0,17)`.
    """
    broker, coordinators = request.app[BROKER], _coordinators(request)
    ids = [number(request, "coordinatorId")] if "coordinatorId" in request.query else range(len(coordinators))
    opened_until_ms = broker.clock.now_ms() - number(request, "timeout")
    machines = [(tc_id, _coordinator(request, tc_id).machine) for tc_id in ids]
    found = _open_transactions(broker, machines, _after_txn(request), opened_until_ms)
    return await object_response(request, _described(broker, found, limit(request)))


def _after_txn(request: web.Request) -> tuple[int, int]:
    """The list begins after this transaction. HTTPBadRequest."""
    text = after(request)
    if not text:
        return -1, -1
    found = _TXN.fullmatch(text)
    if found is None:
        raise web.HTTPBadRequest(text=f"after {text[:40]!r} is not the id of a transaction: write (coordinator,number)")
    return int(found[1]), int(found[2])


async def _open_transactions(
    broker: Broker, machines: list[tuple[int, Any]], after_id: tuple[int, int], opened_until_ms: int
) -> AsyncIterator[Any]:
    """In slices; what is opened meanwhile may be missing, what ends meanwhile may be there."""
    for tc_id, machine in machines:
        first = machine.low_watermark + 1
        if tc_id <= after_id[0]:
            first = max(first, after_id[1] + 1) if tc_id == after_id[0] else machine.next_local_txn_id
        async for least in broker.turn.budget.each(range(first, machine.next_local_txn_id)):
            info = machine.transaction(least)
            if info is not None and info.start_time_ms <= opened_until_ms:
                yield info


async def _described(broker: Broker, infos: AsyncIterator[Any], most: int | None) -> AsyncIterator[tuple[str, Any]]:
    left = most
    async for info in infos:
        yield f"({info.txn_id.most},{info.txn_id.least})", await _metadata(broker, info)
        if left is not None:
            left -= 1
            if not left:
                return


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
    answer = {
        "txnId": f"({txn_id.most},{txn_id.least})",
        "status": info.status.name,
        "openTimestamp": info.start_time_ms,
        "timeoutAt": info.timeout_ms,
        "producedPartitions": produced,
        "ackedPartitions": acked,
    }
    return answer if info.principal is None else answer | {"owner": info.principal}


async def _topic_of(broker: Broker, name: str) -> AnyTopic | None:
    """Nobody may have asked for it since a restart. One that cannot be opened keeps no other from being shown."""
    try:
        return await opened(broker, TopicName.parse(name))
    except Refusal:
        return None


async def abort_transaction(request: web.Request) -> web.Response:
    """POST: abort a transaction of any client; answered when every participant holds the outcome."""
    txn_id = _txn_id(request)
    _coordinator(request, txn_id.most)
    await asked(lambda answer: _coordinators(request).end(txn_id, TxnAction.ABORT, None, None, answer, superuser=True))
    return done()


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
    return web.json_response(_in_buffer(await persistent_topic(request), _txn_id(request)))


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
    handle = (await existing_subscription(request)).pending_ack
    if handle is None:
        return web.json_response(_with_marks(request, {"state": "None", "ongoingTxnSize": 0}, {}))
    stats = handle.stats()
    return web.json_response(
        _with_marks(request, {"state": stats.state, "ongoingTxnSize": stats.ongoing_txn_size}, stats.low_watermarks)
    )


async def in_pending_ack_stats(request: web.Request) -> web.Response:
    """GET: the cumulative ack of one transaction, if it has one."""
    return web.json_response(_in_pending_ack(await existing_subscription(request), _txn_id(request)))


def _in_pending_ack(subscription: Any, txn_id: TxnId) -> dict[str, Any]:
    handle = subscription.pending_ack
    position = None if handle is None else handle.cumulative_position(txn_id)
    return {} if position is None else {"cumulativeAckPosition": text_of(position)}


async def position_stats(request: web.Request) -> web.Response:
    """GET: `PendingAck`, `MarkDelete` or `NotInPendingAck` of one position."""
    subscription = await existing_subscription(request)
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
    subscription = await existing_subscription(request)
    if subscription.host is None:
        text = f"{subscription.name!r} has no acknowledgements in transactions"
        raise Refusal(ServerError.SubscriptionNotFound, text)
    log = next(iter(subscription.host.logs.values()))
    stats = {"managedLedgerName": log.name, "managedLedgerInternalStats": internal_stats(log)}
    return web.json_response({"pendingAckLogStats": stats})


ROUTES: Routes = [
    ("GET", f"{_BASE}/coordinators", list_coordinators),
    ("GET", f"{_BASE}/coordinatorStats", coordinator_stats),
    ("GET", f"{_BASE}/coordinatorInternalStats/{{coordinator}}", coordinator_internal_stats),
    ("POST", f"{_BASE}/transactionCoordinator/replicas", grow_coordinators),
    ("GET", f"{_BASE}/transactionMetadata/{{most}}/{{least}}", transaction_metadata),
    ("GET", f"{_BASE}/slowTransactions/{{timeout}}", slow_transactions),
    ("POST", f"{_BASE}/abortTransaction/{{most}}/{{least}}", abort_transaction),
    ("GET", f"{_BASE}/transactionBufferStats/{_TOPIC}", buffer_stats),
    ("GET", f"{_BASE}/transactionBufferInternalStats/{_TOPIC}", buffer_internal_stats),
    ("GET", f"{_BASE}/transactionInBufferStats/{_TOPIC}/{{most}}/{{least}}", in_buffer_stats),
    ("GET", f"{_BASE}/pendingAckStats/{_TOPIC}/{{subscription}}", pending_ack_stats),
    ("GET", f"{_BASE}/pendingAckInternalStats/{_TOPIC}/{{subscription}}", pending_ack_internal_stats),
    ("GET", f"{_BASE}/transactionInPendingAckStats/{_TOPIC}/{{subscription}}/{{most}}/{{least}}", in_pending_ack_stats),
    ("GET", f"{_BASE}/positionStatsInPendingAck/{_TOPIC}/{{subscription}}/{{ledger}}/{{entry}}", position_stats),
]
