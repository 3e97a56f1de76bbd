"""Routes of requests to the service, and to whom it answers."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import Final

from aiohttp import web

from pulsar_txn.broker.serving import (
    COORDINATED,
    COORDINATOR_ROUTES,
    ID_ROUTES,
    TURN,
    BrokerConfig,
    Coordinated,
    Handler,
    Routes,
    Rules,
    abort_transaction,
    asker,
    commit_transaction,
    coordinator_stats,
    describe_id,
    errors,
    failed,
    guard,
    identify_askers,
    list_ids,
    resume_transaction,
    slow_transactions,
    transaction_metadata,
)
from pulsar_txn.tc_service.server.service import CoordinatorService

from . import metrics, transactions
from .instances import OTHERS, OtherInstances, list_open, merged_over_instances, of_query, of_txn, routed_to_leader, stats
from .transactions import SERVICE

_VERSION: Final = f"pulsar-txn {version('pulsar-txn')} coordinator"


def make_app(service: CoordinatorService) -> web.Application:
    """Everything that the service serves over HTTP."""
    config = service.config
    app = web.Application(
        middlewares=[errors, identify_askers(service.authentication, service.turn.clock.now_ms, _rules(config)), guard(config)],
        client_max_size=config.max_http_request_size,
    )
    app[SERVICE] = service
    app[TURN] = service.turn
    others = app[OTHERS] = OtherInstances(service.trusted_by_client)
    app.cleanup_ctx.append(others.run)
    app[COORDINATED] = Coordinated(
        lambda: service.coordinators,
        partial(_url_of, service),
        partial(transactions.describe, service),
        front=lambda: service.front_coordinators,
        is_operator=lambda _: asker().superuser,
        role=lambda _: asker().role,
    )
    for routes in (_ROUTES, metrics.ROUTES, transactions.ROUTES, COORDINATOR_ROUTES, ID_ROUTES):
        for method, path, handler in routes:
            app.router.add_route(method, path, _OF_INSTANCES.get(handler, handler), name=None)
    return app


def _url_of(service: CoordinatorService, tc_id: int) -> str | None:
    found = service.leaders.find(tc_id)
    return None if found is None else found.plain or found.tls


async def _health(request: web.Request) -> web.Response:
    """GET: 200 while this process can go on; 503 when it should be started again."""
    service = request.app[SERVICE]
    if service.storage_failure is not None:
        return failed(503, f"storage failed: {service.storage_failure}; start the coordinator again when the disk is well")
    if (complaint := service.storage_watch.complaint()) is not None:
        return failed(503, f"{complaint}; look at the disk, or at the cluster that has the log")
    return web.Response(text="ok")


async def _ready(request: web.Request) -> web.Response:
    """GET: 200 once each coordinator serves here, or is known to be led by another instance."""
    service = request.app[SERVICE]
    if service.storage_failure is not None or service.storage_watch.complaint() is not None:
        return await _health(request)
    all_of_them = range(len(service.coordinators))
    if not all_of_them:
        return failed(503, "the coordinators are not ready yet; retry")
    recovering = [
        each
        for each in all_of_them
        if service.coordinators.ready(each) is None
        and service.leaders.find(each)
        in (
            None,
            service.leaders.here,
        )
    ]
    if recovering:
        return failed(503, f"coordinators {recovering} do not serve yet; retry")
    return web.Response(text="ok")


async def _version(_: web.Request) -> web.Response:
    return web.Response(text=_VERSION)


def _rules(config: BrokerConfig) -> Rules:
    """Probes give no credentials. Whoever may not see everything may end what is its own."""
    everybody: set[Handler] = {_health, _ready}
    if not config.authenticate_metrics_endpoint:
        everybody.add(metrics.show_metrics)
    own = {_OF_INSTANCES[each] for each in (abort_transaction, commit_transaction, resume_transaction)}
    return Rules(operators={transactions.ends, _OF_INSTANCES[transactions.ended]}, everybody=everybody, own=own)


_OF_INSTANCES: Final[dict[Handler, Handler]] = {
    abort_transaction: routed_to_leader(abort_transaction, of_txn),
    commit_transaction: routed_to_leader(commit_transaction, of_txn),
    resume_transaction: routed_to_leader(resume_transaction, of_txn),
    describe_id: merged_over_instances(describe_id),
    list_ids: merged_over_instances(list_ids),
    transaction_metadata: routed_to_leader(transaction_metadata, of_txn),
    transactions.timeline: routed_to_leader(transactions.timeline, of_txn),
    transactions.clients: merged_over_instances(transactions.clients),
    transactions.ended: merged_over_instances(transactions.ended),
    slow_transactions: routed_to_leader(list_open, of_query),
    coordinator_stats: routed_to_leader(stats, of_query),
}
"""Requests that other instances can answer as well, or alone."""


_ROUTES: Routes = [
    ("GET", "/health", _health),
    ("GET", "/ready", _ready),
    ("GET", "/admin/v2/brokers/health", _health),
    ("GET", "/admin/v2/brokers/ready", _ready),
    ("GET", "/admin/v2/brokers/version", _version),
]
