"""Guard of the HTTP side: the checks before any handler, of who asks and of what comes.

Without authentication everybody who reaches the port may administrate, and with it a browser may have a certificate. A web
page must not be able to: it could ask by a name of its own that leads here (DNS rebinding), or send a form from another
site. So a request names this broker in `Host`, and one with an `Origin` comes from this broker's own pages; there is no CORS.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.wire.topics import check_namespace

from .answers import Handler, failed

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SHOWN: Final = 80


def guard(config: BrokerConfig, streamed: Collection[Handler] = ()) -> Any:  # aiohttp's type of middlewares has no public name
    """The middleware that asks all of it. Handlers in `streamed` read the body themselves, in parts."""
    names = _names(config)
    most, seconds = config.http_max_request_header_size, config.http_server_idle_timeout / 1000

    @web.middleware
    async def check(request: web.Request, handler: Next) -> web.StreamResponse:
        refused = _host_refused(request, names) or _origin_refused(request) or _form_refused(request, most)
        if refused is not None:
            return refused
        info = request.match_info
        if "tenant" in info:  # InvalidName here spares every handler the question
            check_namespace(info["tenant"], info.get("namespace", "default"))
        if info.handler in streamed:
            return await handler(request)
        try:
            async with asyncio.timeout(seconds):
                await request.read()  # handlers find it there
        except TimeoutError:
            return failed(408, f"the body did not come in {seconds:g} s (httpServerIdleTimeout)")
        except web.HTTPRequestEntityTooLarge:
            return failed(413, f"the body has more than {config.max_http_request_size} bytes (maxHttpRequestSize)")
        return await handler(request)

    return check


def _names(config: BrokerConfig) -> frozenset[str]:
    more = [each.strip() for each in config.web_service_allowed_hosts.split(",")]
    return frozenset(each.lower() for each in ("localhost", config.bind_address, config.advertised_address, *more) if each)


def _host_refused(request: web.Request, names: frozenset[str]) -> web.Response | None:
    found = request.headers.getall(hdrs.HOST, [])
    if len(found) > 1:
        return failed(400, "the request has more than one Host header")
    if not found or "*" in names or _is_ours(found[0], names):  # no Host: not from a browser
        return None
    text = f"Host {found[0][:_SHOWN]!r} is not a name of this broker; add it to webServiceAllowedHosts if it is one"
    return failed(403, text)


def _is_ours(host: str, names: frozenset[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name in names or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    """An address in the request was not looked up, so nobody made it lead here."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _origin_refused(request: web.Request) -> web.Response | None:
    if hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers:
        return failed(403, "pages of other sites may not ask this broker (there is no CORS)")
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is None or origin.partition("://")[2].lower() == request.headers.get(hdrs.HOST, "").lower():
        return None
    return failed(403, f"Origin {origin[:_SHOWN]!r} is another site; this broker answers its own host only")


def _form_refused(request: web.Request, most: int) -> web.Response | None:
    size = sum(len(name) + len(value) + 4 for name, value in request.raw_headers) + len(request.raw_path)
    if size > most:
        return failed(431, f"the head of the request has {size} bytes, more than {most} (httpMaxRequestHeaderSize)")
    if _CONTROL.search(request.path) or any(_CONTROL.search(each) for pair in request.query.items() for each in pair):
        return failed(400, "the path or the query holds a control character; choose names without")
    twice = next((name for name in request.query if len(request.query.getall(name)) > 1), None)
    if twice is not None:
        return failed(400, f"the query has {twice[:_SHOWN]!r} more than once; give it once")
    return None
