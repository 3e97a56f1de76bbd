"""Connections of source and sink: the client made of their options, its event loop, and the admin API.

Spark calls data sources from plain threads of processes that it forks, keeps and re-uses. One event loop per process, in a
thread, keeps connections alive between the calls. Everything is keyed by the process id, because clients of a parent process
are useless in its fork.

Spark keeps a job's properties (its group, its description, the query) with the thread that starts it. So a job is started by
the thread in which the program called, while the loop in the background waits for it.

`Admin` asks the cluster's HTTP interface (the option `admin.url`) with the credentials of the client.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import inspect
import json
import os
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import attrs

from pulsar_txn.client import AsyncClient, PulsarError, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.authentication import Authentication, OAuth2Authentication
from pulsar_txn.client.inside import Secret
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import AUTH_PARAMS, AUTH_PLUGIN, Options, authentication_of

_MAX_BACKOFF_SECONDS: Final = 1.0
_OF_THE_CONNECTION: Final = ("service_url", "operation_timeout_ms", "client_options")
_PREFIXES: Final = ("token", "tls_", "oauth2_")
_NAMES: Final = tuple(
    field.name for field in attrs.fields(Options) if field.name in _OF_THE_CONNECTION or field.name.startswith(_PREFIXES)
)


def connection_of(options: Options) -> tuple[Any, ...]:
    """Options that two queries must have in common to share a client."""
    return tuple(getattr(options, name) for name in _NAMES)


def make_client(options: Options, transactional_id: str | None = None) -> AsyncClient:
    """A client of the cluster. Call it in the loop that the client is for. OptionError, InvalidConfiguration."""
    given = {name: value for name, value in options.client_options if name not in (AUTH_PLUGIN, AUTH_PARAMS)}
    arguments: dict[str, Any] = {
        "operation_timeout": options.operation_timeout_ms / 1000,
        "max_backoff": _MAX_BACKOFF_SECONDS,
        "transactional_id": transactional_id,
        "tls_trust_certs_file": options.tls_trust_certs_file,
        "tls_certificate_file": options.tls_certificate_file,
        "tls_key_file": options.tls_key_file,
        "tls_validate_hostname": options.tls_validate_hostname,
        "tls_allow_insecure_connection": options.tls_allow_insecure_connection,
    }
    return AsyncClient(options.service_url, authentication=authentication_of_options(options), **(arguments | given))


def authentication_of_options(options: Options) -> Authentication | None:
    """The one way to say who we are that the options name. OptionError when they name several."""
    authentication = _authentication(options)
    given = dict(options.client_options)
    plugin = given.get(AUTH_PLUGIN)
    if plugin is None:
        return authentication
    if authentication is not None:
        raise OptionError("both pulsar.client.authPluginClassName and an option of ours say who this is: leave one out")
    return authentication_of(plugin, given.get(AUTH_PARAMS, Secret("")))


def _authentication(options: Options) -> Authentication | None:
    """The one of our own options; a token's file is read again for every connection."""
    ways: dict[str, Authentication] = {}
    if options.token is not None:
        ways["token"] = TokenAuthentication(options.token)
    if options.token_file is not None:
        ways["tokenFile"] = TokenAuthentication.from_file(options.token_file)
    if options.oauth2_key_file is not None:
        ways["oauth2KeyFile"] = OAuth2Authentication.from_key_file(
            options.oauth2_key_file.reveal(),
            issuer_url=options.oauth2_issuer_url or "",
            audience=options.oauth2_audience,
            scope=options.oauth2_scope,
        )
    if len(ways) > 1:
        raise OptionError(f"{' and '.join(ways)} all say who this is: give one of them")
    if not ways and options.tls_certificate_file is not None:
        ways["tlsCertificateFile"] = TlsAuthentication(options.tls_certificate_file, options.tls_key_file)
    return next(iter(ways.values()), None)


T = TypeVar("T")

_by_pid: dict[int, Background] = {}
_lock = threading.Lock()


class Background:
    """The loop and the clients of this process; get it from `background()`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._clients: dict[tuple[Any, ...], AsyncClient] = {}
        threading.Thread(target=self._loop.run_forever, name="pulsar-txn", daemon=True).start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result or error. When this is interrupted, it is cancelled."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def client(self, options: Options, transactional_id: str | None = None) -> AsyncClient:
        """The client of a cluster, made at its first use; another one for each transactional id. Call it on the loop."""
        key = (*connection_of(options), transactional_id)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = make_client(options, transactional_id)
        return client

    def client_of(self, options: Options) -> AsyncClient:
        """The same from another thread, which waits for the loop only when the client must be made."""
        found = self._clients.get((*connection_of(options), None))
        return self.run(self.client(options)) if found is None else found

    async def close_client(self, options: Options, transactional_id: str) -> None:
        """Close the client of a transactional id that nobody uses any more. Call it on the loop."""
        client = self._clients.pop((*connection_of(options), transactional_id), None)
        if client is not None:
            await client.close()

    async def close_clients(self) -> None:
        """Close the clients, which else last as long as the process; the next use makes new ones. Call it on the loop."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()


def background() -> Background:
    """The one of this process."""
    with _lock:
        found = _by_pid.get(os.getpid())
        if found is None:
            _by_pid.clear()
            found = _by_pid[os.getpid()] = Background()
        return found


_SECONDS: Final = 5.0
_NOT_FOUND: Final = 404
_MAX_BYTES: Final = 64 * 1024 * 1024
_SCHEMES: Final = {"token": "Bearer", "basic": "Basic"}


class Admin:
    """Admin API of the cluster, asked with GET on the client's loop. OSError or ValueError when there is no usable answer."""

    def __init__(self, options: Options) -> None:
        """`options.admin_url` is set."""
        self.url = (options.admin_url or "").rstrip("/")
        self._options = options
        self._login = authentication_of_options(options)
        self._context: ssl.SSLContext | None = None

    async def get(self, path: str) -> Any:
        """The answer as JSON; None for an empty one, and for what is not there."""
        found = await self._ask(path)
        return json.loads(found[1]) if found is not None and found[1] else None

    async def headers(self, path: str) -> Mapping[str, str] | None:
        """Only the headers of an answer; None for what is not there."""
        found = await self._ask(path, most=0)
        return None if found is None else found[0]

    async def _ask(self, path: str, most: int = _MAX_BYTES) -> tuple[Mapping[str, str], bytes] | None:
        login = await self._authorization()
        return await asyncio.to_thread(self._open, path, login, most)

    async def _authorization(self) -> str | None:
        scheme = None if self._login is None else _SCHEMES.get(self._login.method_name)
        if self._login is None or scheme is None:
            return None
        try:
            data = self._login.data()
            data = await data if inspect.isawaitable(data) else data
        except PulsarError as error:
            raise OSError(f"there is no login: {error}") from error
        return f"{scheme} {base64.b64encode(data).decode() if scheme == 'Basic' else data.decode()}"

    def _open(self, path: str, login: str | None, most: int) -> tuple[Mapping[str, str], bytes] | None:
        request = urllib.request.Request(self.url + urllib.parse.quote(path))  # noqa: S310  # the user's URL
        if login is not None:
            request.add_header("Authorization", login)
        context = self._tls() if request.type == "https" else None
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS, context=context) as answer:  # noqa: S310  # the user's URL
                return dict(answer.headers), answer.read(most)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _NOT_FOUND:
                    return None
                raise
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from error

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            given = self._options
            context = ssl.create_default_context(cafile=given.tls_trust_certs_file)
            certificate, key = given.tls_certificate_file, given.tls_key_file
            if isinstance(self._login, TlsAuthentication) and self._login.certificate_file is not None:
                certificate, key = str(self._login.certificate_file), str(self._login.key_file)
            if certificate is not None:
                context.load_cert_chain(certificate, key)
            if not given.tls_validate_hostname or given.tls_allow_insecure_connection:
                context.check_hostname = False
            if given.tls_allow_insecure_connection:
                context.verify_mode = ssl.CERT_NONE
            self._context = context
        return self._context
