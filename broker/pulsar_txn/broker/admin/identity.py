"""Identity of who asks over HTTP, and rights: operators (`superUserRoles`) everything, other roles read, nobody else anything.

Without authentication everybody who reaches the port is an operator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextvars import ContextVar
from typing import Any, Final

import attrs
from aiohttp import hdrs, web

from pulsar_txn.broker.net.authentication import Authentication
from pulsar_txn.broker.net.http_authentication import NOBODY, Asker, asker_of
from pulsar_txn.broker.net.proofs import refused_proxy
from pulsar_txn.wire.errors import Refusal

from .answers import Handler, failed
from .guard import Next

_logger = logging.getLogger(__name__)

_ASKER: Final[ContextVar[Asker]] = ContextVar("asker", default=NOBODY)
"""Of the request that this task handles."""
_READS: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
_OF_PROXIES: Final = ("X-Original-Principal", "X-Original-Auth-Data")


@attrs.frozen
class Rules:
    """Handlers that are not as others: for an operator's eyes alone, open to everybody, or for each role's own things.

    A handler in `own` may change something, and looks itself (`asker`) whose it is.
    """

    operators: Collection[Handler] = ()
    everybody: Collection[Handler] = ()
    own: Collection[Handler] = ()

    def needs_operator(self, request: web.Request) -> bool:
        """True if this request is for operators."""
        handler = request.match_info.handler
        return handler in self.operators or (request.method not in _READS and handler not in self.own)


def identify_askers(authentication: Authentication, now_ms: Callable[[], int], rules: Rules) -> Any:  # as in `guard`
    """The middleware that answers 401 and 403, before anything of a body is read."""

    @web.middleware
    async def check(request: web.Request, handler: Next) -> web.StreamResponse:
        if request.match_info.handler in rules.everybody:
            _ASKER.set(NOBODY if authentication.enabled else Asker(None, superuser=True))
            return await handler(request)
        try:
            known = _asker(authentication, request, now_ms() / 1000)
        except Refusal as refusal:
            _logger.info("%s %s from %s is refused: %s", request.method, request.path, request.remote, refusal.message)
            return _unknown(authentication, refusal.message)
        _ASKER.set(known)
        if not known.superuser and rules.needs_operator(request):
            text = "this is for operators: the role of your credentials is not in superUserRoles"
            return failed(403, text)
        return await handler(request)

    return check


def asker() -> Asker:
    """The asker of the request that this task handles."""
    return _ASKER.get()


def _asker(authentication: Authentication, request: web.Request, now: float) -> Asker:
    if authentication.enabled and any(each in request.headers for each in _OF_PROXIES):
        raise refused_proxy()
    transport = request.transport
    certificate = None if transport is None else transport.get_extra_info("peercert")
    return asker_of(authentication, request.headers.getall(hdrs.AUTHORIZATION, []), certificate, now)


def _unknown(authentication: Authentication, reason: str) -> web.Response:
    answer = failed(401, reason)
    if "token" in authentication.methods:
        answer.headers[hdrs.WWW_AUTHENTICATE] = 'Bearer realm="pulsar"'
    return answer
