"""Routes of requests to a broker.

Paths and shapes are those of Pulsar's admin API, as far as official tools need them here. `identity` finds out who asks and
what they may, and `guard` keeps the pages of other sites away.
"""

from __future__ import annotations

from importlib.metadata import version

from aiohttp import web

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.broker import Broker
from pulsar_txn.wire.topics import TopicName

from . import (
    backup,
    entries,
    function_calls,
    function_questions,
    function_worker_api,
    functions,
    metrics,
    namespaces,
    topics,
    transactions,
)
from .answers import TURN, Handler, failed
from .common import BROKER
from .coordinators import COORDINATED, COORDINATOR_ROUTES, abort_transaction, commit_transaction, resume_transaction
from .errors import errors
from .guard import guard
from .identity import Rules, identify_askers
from .transactional_ids import ID_ROUTES

_VERSION = version("pulsar-txn")


def make_app(broker: Broker) -> web.Application:
    """Everything that a broker serves over HTTP."""
    config = broker.config
    app = web.Application(
        middlewares=[
            errors,
            identify_askers(broker.authentication, broker.clock.now_ms, _rules(config)),
            guard(config, functions.STREAMED | function_calls.STREAMED),
        ],
        client_max_size=config.max_http_request_size,
    )
    app[BROKER] = broker
    app[TURN] = broker.turn
    app[COORDINATED] = transactions.coordinated(broker)
    function_worker_api.prepare(app)
    modules = (
        metrics,
        backup,
        namespaces,
        topics,
        entries,
        transactions,
        function_worker_api,
        function_questions,
        function_calls,
        functions,
    )
    for routes in (_ROUTES, COORDINATOR_ROUTES, ID_ROUTES, *(module.ROUTES for module in modules)):
        for method, path, handler in routes:
            app.router.add_route(method, path, handler, name=None)
    return app


def _rules(config: BrokerConfig) -> Rules:
    everybody: set[Handler] = {_health}
    if not config.authenticate_metrics_endpoint:
        everybody.add(metrics.show_metrics)
    of_functions = (functions, function_calls, function_worker_api, function_questions)
    return Rules(
        operators={handler for module in of_functions for _, _, handler in module.ROUTES},
        everybody=everybody,
        own={abort_transaction, commit_transaction, resume_transaction},
    )


async def _health(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    if broker.storage_failure is not None:
        return failed(503, f"storage failed: {broker.storage_failure}; start the broker again when the disk is well")
    if broker.store.disk_full:
        text = "the disk is full: new messages and transactions are refused, acknowledgements and ends go on"
        return failed(503, f"{text}; make room, and they are taken again")
    if (complaint := broker.storage_watch.complaint()) is not None:
        return failed(503, f"{complaint}; look at the disk")
    return web.Response(text="ok")


async def _version(_: web.Request) -> web.Response:
    return web.Response(text=_VERSION)


async def _brokers(request: web.Request) -> web.Response:
    return web.json_response([_address(request)])


async def _cluster(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    if request.match_info["cluster"] != broker.config.cluster_name:
        return failed(404, f"there is no cluster {request.match_info['cluster']}")
    urls = {"brokerServiceUrl": broker.service_url, "brokerServiceUrlTls": broker.service_url_tls}
    return web.json_response({"serviceUrl": _url(request)} | {key: url for key, url in urls.items() if url})


async def _clusters(request: web.Request) -> web.Response:
    return web.json_response([request.app[BROKER].config.cluster_name])


async def _leader(request: web.Request) -> web.Response:
    return web.json_response({"serviceUrl": _url(request)})


async def _lookup(request: web.Request) -> web.Response:
    info = request.match_info
    name = TopicName.parse(f"{info['domain']}://{info['tenant']}/{info['namespace']}/{info['topic']}")
    broker = request.app[BROKER]
    secured = {"brokerUrlTls": broker.service_url_tls} if broker.service_url_tls else {}
    native = broker.service_url or broker.service_url_tls
    found = {"brokerUrl": broker.service_url, "httpUrl": _url(request), "nativeUrl": native, "topic": str(name)}
    return web.json_response(found | secured)


def _url(request: web.Request) -> str:
    return f"{request.scheme}://{_address(request)}"


def _address(request: web.Request) -> str:
    return request.host


_ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/admin/v2/brokers/health", _health),
    ("GET", "/admin/v2/brokers/ready", _health),
    ("GET", "/admin/v2/brokers/version", _version),
    ("GET", "/admin/v2/brokers/leaderBroker", _leader),
    ("GET", "/admin/v2/brokers", _brokers),
    ("GET", "/admin/v2/brokers/{cluster}", _brokers),
    ("GET", "/admin/v2/clusters", _clusters),
    ("GET", "/admin/v2/clusters/{cluster}", _cluster),
    ("GET", "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}", _lookup),
]
