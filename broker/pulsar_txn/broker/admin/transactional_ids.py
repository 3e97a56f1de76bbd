"""Transactional ids over HTTP (`/admin/v3/transactions/transactionalIds`): the newest epoch of each, and what is left of it.

Pulsar has no transactional ids, so the shapes are ours. An id belongs to a role: to others than operators only their own exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from pulsar_txn.broker.commands.txn import MAX_TRANSACTIONS, each_unfinished
from pulsar_txn.broker.txn.coordinators import Coordinators

from .answers import TURN, Routes
from .coordinators import BASE, COORDINATED, coordinators_of
from .lists import limit


async def describe_id(request: web.Request) -> web.Response:
    """GET: an array with what is known of one id, empty for nothing. `owner`: of which role, if not of the one that asks.

    The oldest of its transactions are shown, `limit` or a thousand of them; `transactionCount` is of all.
    """
    name, coordinators = request.match_info["name"], coordinators_of(request)
    most = limit(request) or MAX_TRANSACTIONS
    asks = request.app[COORDINATED].role(request)
    owners = [request.query["owner"]] if "owner" in request.query else dict.fromkeys((None, asks))
    found = [
        await _shown(request, tc_id, machine, info)
        for tc_id, machine in _machines(coordinators)
        for owner in owners
        if (info := machine.describe(owner, name, most)) is not None and request.app[COORDINATED].may_see(request, owner)
    ]
    return web.json_response(found)


async def list_ids(request: web.Request) -> web.Response:
    """GET: the ids of the coordinators that are here, with their epochs; `limit` asks for so many."""
    budget, may_see, most = request.app[TURN].budget, request.app[COORDINATED].may_see, limit(request)
    found: list[dict[str, Any]] = []
    for tc_id, machine in _machines(coordinators_of(request)):
        async for info in budget.each(machine.ids()):
            if len(found) != most and may_see(request, info.principal):
                found.append(_head(tc_id, info) | {"transactions": info.transaction_count})
    return web.json_response(found)


def _machines(coordinators: Coordinators) -> Iterator[tuple[int, Any]]:
    """Those that serve here, and know transactional ids."""
    for tc_id in coordinators.here:
        host = coordinators.ready(tc_id)
        if host is not None and hasattr(host.machine, "describe"):
            yield tc_id, host.machine


def _head(tc_id: int, info: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "transactionalId": info.transactional_id,
        "epoch": info.epoch,
        "coordinator": tc_id,
        "lastUsedAt": info.last_used_ms,
    }
    return answer if info.principal is None else answer | {"owner": info.principal}


async def _shown(request: web.Request, tc_id: int, machine: Any, info: Any) -> dict[str, Any]:
    describe, budget = request.app[COORDINATED].describe, request.app[TURN].budget
    shown = [await describe(each) async for each in each_unfinished(machine, info, budget)]
    return _head(tc_id, info) | {"transactionCount": info.transaction_count, "transactions": shown}


ID_ROUTES: Routes = [
    ("GET", f"{BASE}/transactionalIds", list_ids),
    ("GET", f"{BASE}/transactionalIds/{{name:.+}}", describe_id),
]
