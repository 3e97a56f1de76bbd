"""Which request goes where, and how an error becomes an answer: `{"reason": …}` with Pulsar's status codes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from aiohttp import web

from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.topics import InvalidName

from .broker import Broker

_logger = logging.getLogger(__name__)

BROKER: Final = web.AppKey("broker", Broker)

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

_STATUS: Final = {
    ServerError.TopicNotFound: 404,
    ServerError.SubscriptionNotFound: 404,
    ServerError.TransactionNotFound: 404,
    ServerError.TransactionCoordinatorNotFound: 404,
    ServerError.NotAllowedError: 409,
    ServerError.ServiceNotReady: 503,
    ServerError.InvalidTopicName: 412,
}


def failed(status: int, reason: str) -> web.Response:
    """An error in Pulsar's shape."""
    return web.json_response({"reason": reason}, status=status)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refusal as refusal:
        return failed(_STATUS.get(refusal.code, 500), refusal.message)
    except InvalidName as error:
        return failed(412, str(error))
    except LedgerError as error:
        return failed(503, f"{error}; retry")
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return failed(error.status, f"{request.method} {request.path}: {error.reason}")
    except Exception as error:
        _logger.exception("%s %s failed", request.method, request.path)
        return failed(500, f"{type(error).__name__}: {error}")


def make_app(broker: Broker) -> web.Application:
    """Everything that a broker serves over HTTP."""
    app = web.Application(middlewares=[_errors])
    app[BROKER] = broker
    app.router.add_get("/admin/v2/brokers/health", _health)
    return app


async def _health(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    if broker.storage_failure is not None:
        return failed(503, f"storage failed: {broker.storage_failure}")
    return web.Response(text="ok")
