"""The HTTP side of a server: health, metrics and administration, on one more listener of the same runtime.

aiohttp and prometheus_client take longer to import than the broker takes to start. So the port listens first, at once.
A thread imports them after that, because the broker serves already, and connections that come before wait for them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from pulsar_txn.broker.base.addresses import reachable
from pulsar_txn.broker.base.limits import Limits
from pulsar_txn.broker.base.runtime import Runtime, load_modules
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.net.ports import Ports

if TYPE_CHECKING:
    from aiohttp import web

_logger = logging.getLogger(__name__)

_SLOW_IMPORTS: Final = ("aiohttp.web", "prometheus_client")
_CLOSING_SECONDS: Final = 2.0
_MAX_EARLY_BYTES: Final = 65536


class _Waiting(asyncio.Protocol):
    """A connection that came before aiohttp: what it says is kept for the side that takes it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._said: list[bytes] = []
        self._size = 0
        self._taker: asyncio.Protocol | None = None
        self._aborted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection that is early, or whose side has come between the accepted connection and this call."""
        self._transport = cast("asyncio.Transport", transport)
        if self._aborted:
            self._transport.abort()
        elif self._taker is not None:
            self.hand_over(self._taker)

    def data_received(self, data: bytes) -> None:
        """Keep a little."""
        self._said.append(data)
        self._size += len(data)
        if self._size > _MAX_EARLY_BYTES:
            self.abort()

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Let `protocol` go on with the connection, unless it is gone."""
        self._taker, transport = protocol, self._transport
        if transport is not None and not transport.is_closing():
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            for data in self._said:
                protocol.data_received(data)

    def abort(self) -> None:
        """Abort it: nobody will take it."""
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()


class _Refused(asyncio.Protocol):
    """A connection too many: it is told so, and closed."""

    def __init__(self, reason: str) -> None:
        body = json.dumps({"reason": reason}).encode()
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._answer = f"{head}Connection: close\r\n\r\n".encode() + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say it."""
        chosen = cast("asyncio.Transport", transport)
        chosen.write(self._answer)
        chosen.close()


def _is_ours(malformed: type[Exception], record: logging.LogRecord) -> bool:
    """True if a failure is the broker's: bytes that are not HTTP are answered 400, and do not fill the log."""
    return record.exc_info is None or not isinstance(record.exc_info[1], malformed)


class Served(Protocol):
    """Server that has a side over HTTP: a broker, or another server with the broker's keys for it."""

    @property
    def config(self) -> BrokerConfig:
        """The keys of HTTP."""

    @property
    def limits(self) -> Limits:
        """Limits, which count refused connections."""


MakeApp: TypeAlias = "Callable[[Any], web.Application]"


def _of_broker(broker: Any) -> web.Application:
    from .routes import make_app

    return make_app(broker)


class HttpServer:
    """Serves HTTP for a broker that was started. `start()`, then `url`; at the end `close()`.

    `url_tls`: the one with TLS, empty where there is none; `url` is the same where there is no other.

    `make_app`: of another server, its requests and their handlers; called after the port listens.
    """

    def __init__(self, served: Served, runtime: Runtime, make_app: MakeApp = _of_broker) -> None:
        self.url = ""
        self.url_tls = ""
        self._served = served
        self._make_app = make_app
        self._runtime = runtime
        self._ports: Ports | None = None
        self._waiting: list[_Waiting] = []
        self._runner: web.AppRunner | None = None
        self._loading: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int | None, tls_port: int | None = None) -> None:
        """Listen. Raises CannotListen (an OSError), ConfigError (keys of TLS)."""
        ports = Ports("webServicePort", self._served.config, self._runtime, self._served.limits)
        await ports.open(host, port, tls_port, self._protocol)
        self._ports = ports
        plain, self.url_tls = ports.urls(reachable(host, self._served.config.advertised_address), "http", "https")
        self.url = plain or self.url_tls
        self._loading = asyncio.get_running_loop().create_task(self._load())

    async def close(self) -> None:
        """Accept nothing more, give requests under way a moment. Idempotent."""
        ports, self._ports = self._ports, None
        if ports is None:
            return
        await ports.close()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        for waiting in self._waiting:
            waiting.abort()
        if self._runner is not None:
            await self._runner.cleanup()

    def _protocol(self) -> asyncio.Protocol:
        limits, most = self._served.limits, self._served.config.max_http_server_connections
        server = None if self._runner is None else self._runner.server
        if most and len(self._waiting) + (0 if server is None else len(server.connections)) >= most:
            key = "maxHttpServerConnections"
            limits.note_reached(key)
            return _Refused(f"the HTTP port has {most} connections, as many as {key} allows; retry, or raise that key")
        if server is not None:
            return server()
        waiting = _Waiting()
        self._waiting.append(waiting)
        return waiting

    async def _load(self) -> None:
        try:
            await load_modules(*_SLOW_IMPORTS)
            await self._set_up()
        except Exception:
            _logger.exception("the admin HTTP server failed to start")

    async def _set_up(self) -> None:
        from aiohttp import web
        from aiohttp.http_exceptions import HttpProcessingError

        logger = logging.getLogger(f"{__name__}.requests")
        logger.addFilter(partial(_is_ours, HttpProcessingError))
        runner = web.AppRunner(
            self._make_app(self._served),
            access_log=None,
            logger=logger,
            shutdown_timeout=_CLOSING_SECONDS,
            keepalive_timeout=self._served.config.http_server_idle_timeout / 1000,
            max_line_size=self._served.config.http_max_request_header_size,
            max_field_size=self._served.config.http_max_request_header_size,
        )
        await runner.setup()
        self._runner = runner
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if runner.server is not None:
                each.hand_over(runner.server())
