"""Answers of errors: `{"reason": …}` with Pulsar's status codes."""

from __future__ import annotations

import logging
from typing import Final

from aiohttp import web

from pulsar_txn.ledger.protocols import EntryTooLarge, LedgerError, NameRefused
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.topics import InvalidName

from .answers import failed
from .guard import Next

_logger = logging.getLogger(__name__)

_STATUS: Final = {
    ServerError.TopicNotFound: 404,
    ServerError.SubscriptionNotFound: 404,
    ServerError.TransactionNotFound: 404,
    ServerError.TransactionCoordinatorNotFound: 404,
    ServerError.NotAllowedError: 409,
    ServerError.InvalidTxnStatus: 409,
    ServerError.ConsumerBusy: 412,
    ServerError.InvalidTopicName: 412,
    ServerError.TooManyRequests: 429,
    ServerError.ServiceNotReady: 503,
    ServerError.PersistenceError: 503,
    ServerError.UnknownError: 500,
}
_OTHER: Final = 409


@web.middleware
async def errors(request: web.Request, handler: Next) -> web.StreamResponse:
    """The middleware around all others."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return failed(_STATUS.get(refusal.code, _OTHER), refusal.message)
    except InvalidName as error:
        return failed(412, str(error))
    except (EntryTooLarge, NameRefused) as error:
        return failed(412, str(error))
    except LedgerError as error:
        return failed(503, f"{error}; retry")
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return failed(error.status, f"{request.method} {request.path}: {error.text or error.reason}")
    except Exception as error:
        _logger.exception("%s %s failed", request.method, request.path)
        return failed(500, f"{type(error).__name__}: {error}")
