"""The cluster's HTTP interface (the option `admin.url`), as far as source and sink ask it. The login is the client's."""

from __future__ import annotations

import asyncio
import base64
import http.client
import inspect
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

from pulsar_txn.client import PulsarError, TlsAuthentication
from pulsar_txn.pipeline.spark.connecting import authentication_of_options
from pulsar_txn.pipeline.spark.options import Options

_SECONDS: Final = 5.0
_NOT_FOUND: Final = 404
_MAX_BYTES: Final = 64 * 1024 * 1024
_SCHEMES: Final = {"token": "Bearer", "basic": "Basic"}


class Admin:
    """Asks with GET. Every method raises OSError or ValueError when there is no usable answer. Use it on the client's loop."""

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
