"""Identity of who asks over HTTP, and rights: operators (`superUserRoles`) everything, other roles read, nobody else anything.

Without authentication everybody who reaches the port is an operator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

import attrs
from aiohttp import hdrs, web

from pulsar_txn.broker.net.authentication import Authentication
from pulsar_txn.broker.net.proofs import refused_proxy
from pulsar_txn.wire.errors import Refusal, ServerError

from .answers import Handler, failed
from .guard import Next

_logger = logging.getLogger(__name__)

_BEARER: Final = "bearer"
_WAYS: Final = {"token": "Authorization: Bearer TOKEN", "tls": "a client certificate, over https"}


@attrs.frozen
class Asker:
    """Asker over HTTP: its role (None without authentication), and whether it may administrate (without it everybody)."""

    role: str | None
    superuser: bool

    def sees(self, owner: str | None) -> bool:
        """True if what belongs to `owner` is this asker's business."""
        return self.superuser or (owner is not None and owner == self.role)


NOBODY: Final = Asker(None, superuser=False)
"""Role of a client without credentials."""


def asker_of(
    authentication: Authentication,
    authorization: Sequence[str],
    certificate: Mapping[str, Any] | None,
    now: float,
) -> Asker:
    """Identify the asker. Raises Refusal AuthenticationError, whose text never has the credentials.

    `authorization`: the values of the headers of that name. A token counts before the certificate of the connection. `now`:
    seconds since the epoch; a connection may be older than what it was opened with.
    """
    if not authentication.enabled:
        return Asker(None, superuser=True)
    if len(authorization) > 1:
        raise Refusal(ServerError.AuthenticationError, "the request has more than one Authorization header")
    if authorization:
        scheme, _, token = authorization[0].partition(" ")
        if scheme.lower() != _BEARER or "token" not in authentication.methods:
            known = " or ".join(_WAYS[each] for each in authentication.methods)
            raise Refusal(ServerError.AuthenticationError, f"this kind of Authorization is not known here; send {known}")
        known_as = authentication.authenticate("token", token.strip().encode(errors="replace"), None, now)
    elif certificate and "tls" in authentication.methods:
        known_as = authentication.authenticate("tls", b"", certificate, now)
        if known_as.expires is not None and known_as.expires <= now:
            raise Refusal(ServerError.AuthenticationError, "the client's certificate has expired")
    else:
        known = " or ".join(_WAYS[each] for each in authentication.methods)
        raise Refusal(ServerError.AuthenticationError, f"say who you are: send {known}")
    return Asker(known_as.role, authentication.is_superuser(known_as.role))


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
