"""Transactions of the service over HTTP: what is open or ending and where it waits, timelines, clients, and ends by cluster.

Handlers find the service by `SERVICE`. They answer about this instance alone; `instances` asks the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from aiohttp import web

from pulsar_txn.broker.serving import COORDINATED, Routes, limit, own_fields, txn_id_of
from pulsar_txn.tc_service.cluster.participants import decode
from pulsar_txn.tc_service.server.service import CoordinatorService
from pulsar_txn.tc_service.server.timelines import Told, as_json, owner_of, participant_json
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Participant, TxnId, TxnStatus

SERVICE: Final = web.AppKey("service", CoordinatorService)
_BASE = "/admin/v3/transactions"
_MOST_ENDED = 1000
_MOST_LOOKED_FOR = 100
"""Topics of a timeline that are looked for, and how long at most."""
_LOOK_SECONDS = 2.0


async def describe(service: CoordinatorService, info: Any) -> dict[str, Any]:
    """A transaction that is open or ending: in Pulsar's shape, and with its participants by cluster."""
    produced: dict[str, Any] = {}
    acked: dict[str, dict[str, Any]] = {}
    for participant in info.participants:
        if participant.subscription is None:
            produced[participant.topic] = {}
        else:
            acked.setdefault(participant.topic, {})[participant.subscription] = {}
    return {
        "txnId": f"({info.txn_id.most},{info.txn_id.least})",
        "status": info.status.name,
        "openTimestamp": info.start_time_ms,
        "timeoutAt": info.timeout_ms,
        "producedPartitions": produced,
        "ackedPartitions": acked,
        "participants": list(_participants(service, info)),
    } | own_fields(info)


def _participants(service: CoordinatorService, info: Any) -> Iterator[dict[str, Any]]:
    told = _told(service, info.txn_id)
    for each in info.participants:
        cluster, participant = decode(each)
        answer: dict[str, Any] = participant_json((cluster, participant))
        if info.status not in (TxnStatus.OPEN, TxnStatus.PREPARED, TxnStatus.HELD):
            answer |= _end_at(service, info.txn_id, cluster, participant, told.get((cluster, participant)))
        yield answer


def _told(service: CoordinatorService, txn_id: TxnId) -> dict[tuple[str, Participant], Told]:
    history = service.timelines.history(txn_id) or ()
    return {(event.cluster, event.participant): event for event in history if isinstance(event, Told)}


def _end_at(
    service: CoordinatorService, txn_id: TxnId, cluster: str, participant: Participant, told: Told | None
) -> dict[str, Any]:
    """State of the end at one participant, with the last attempt where it is not told yet."""
    if told is not None:
        return {"state": "told", "toldAt": told.at_ms, "attempts": told.attempts}
    driver = service.clusters.driver(cluster)
    if driver is None:
        return {"state": "waits", "lastAnswer": f"the configuration has no cluster {cluster!r} any more"}
    waiting = driver.waiting_end(txn_id, participant)
    if waiting is None:
        return {"state": "waits", "attempts": 0}
    return {
        "state": "waits",
        "waitsMs": waiting.waits_ms,
        "attempts": waiting.attempts,
        "lastAnswer": waiting.answer,
        "detail": waiting.detail,
    }


async def timeline(request: web.Request) -> web.Response:
    """GET: what happened to a transaction, of one that is open or that ended not long ago."""
    txn_id, service = txn_id_of(request), request.app[SERVICE]
    history = service.timelines.history(txn_id)
    if history is None or not request.app[COORDINATED].may_see(request, owner_of(history)):
        raise Refusal(
            ServerError.TransactionNotFound,
            f"nothing is known of the transaction ({txn_id.most},{txn_id.least}): it never was here, or is not among the ended "
            "ones that are remembered (transactionTimelineCount)",
        )
    found = as_json(history)
    await _mark_missing(service, [event for event in found["events"] if event["event"] == "told"])
    return web.json_response(found)


async def _mark_missing(service: CoordinatorService, told: list[dict[str, Any]]) -> None:
    """Stock brokers take the end of a transaction on a topic that is not there, and do nothing."""
    places = list(dict.fromkeys((event["cluster"], event["topic"]) for event in told))[:_MOST_LOOKED_FOR]
    looks = [asyncio.create_task(service.clusters.is_missing(*each)) for each in places]
    if not looks:
        return
    try:
        await asyncio.wait(looks, timeout=_LOOK_SECONDS)
        known = zip(places, looks, strict=True)
        missing = {place for place, look in known if look.done() and look.result()}
    finally:
        for look in looks:
            look.cancel()
    for event in told:
        if (event["cluster"], event["topic"]) in missing:
            event["topicMissing"] = True


async def ends(request: web.Request) -> web.Response:
    """GET: how far the ends are, by cluster, and the topics that do not take theirs."""
    service = request.app[SERVICE]
    found = {}
    for name in service.clusters.names:
        driver = service.clusters.driver(name)
        if driver is not None:
            found[name] = {
                "told": driver.ended,
                "waiting": driver.waiting,
                "oldestWaitsMs": driver.oldest_ms,
                "toRepeat": driver.to_repeat,
                "repeated": driver.repeated,
                "alarms": driver.alarms,
                "heldBack": driver.failing_topics(),
                "answers": {answer.name: count for answer, count in driver.answers.items()},
            }
    return web.json_response(found)


async def ended(request: web.Request) -> web.Response:
    """GET: transactions that ended last, of those that are remembered: their outcomes and participants. The newest first."""
    found = [end for _, timeline in request.app[SERVICE].timelines.by_coordinator() for end in timeline.ends()]
    newest = sorted(found, key=lambda end: -end.at_ms)[: limit(request) or _MOST_ENDED]
    return web.json_response(
        [
            {
                "txnId": f"({end.txn_id.most},{end.txn_id.least})",
                "outcome": "commit" if end.is_commit else "abort",
                "endedAt": end.at_ms,
                "participants": [participant_json(decode(Participant(*each))) for each in end.participants],
            }
            for end in newest
        ]
    )


async def clients(request: web.Request) -> web.Response:
    """GET: the clients that hold lanes: by coordinator, with what they have open, and when their lease would end."""
    service = request.app[SERVICE]
    now_ms, may_see = service.turn.clock.now_ms(), request.app[COORDINATED].may_see
    connected = {(session.principal, session.incarnation) for session in service.sessions}
    held = [(tc_id, each) for tc_id in service.coordinators.here for each in _clients_of(service, tc_id)]
    return web.json_response(
        [
            {
                "coordinator": tc_id,
                "incarnation": each.incarnation,
                "owner": each.principal,
                "lanes": each.lanes,
                "open": each.open_count,
                "leaseEndsInMs": max(0, each.lease_until_ms - now_ms),
                "isConnected": (each.principal, each.incarnation) in connected,
            }
            for tc_id, each in held
            if may_see(request, each.principal)
        ]
    )


def _clients_of(service: CoordinatorService, tc_id: int) -> list[Any]:
    host = service.coordinators.ready(tc_id)
    machine: Any = None if host is None else host.machine
    return [] if machine is None else list(machine.clients())


ROUTES: Routes = [
    ("GET", f"{_BASE}/timeline/{{most}}/{{least}}", timeline),
    ("GET", f"{_BASE}/ends", ends),
    ("GET", f"{_BASE}/ended", ended),
    ("GET", f"{_BASE}/clients", clients),
]
