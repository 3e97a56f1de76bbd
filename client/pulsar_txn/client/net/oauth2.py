"""OAuth 2.0 client credentials (RFC 6749 §4.4): the identity provider is asked for a token, the broker sees the token.

The HTTP is aiohttp's, from the extra `oauth2`. The token endpoint is found by OpenID discovery at the issuer, as
Pulsar's own clients do.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

from pulsar_txn.client._validation import number_of_seconds
from pulsar_txn.client.errors import AuthenticationError, InvalidConfiguration
from pulsar_txn.client.net.runtime import JsonHttp, monotonic_seconds
from pulsar_txn.wire.secret_text import Secret, secret

_DISCOVERY: Final = "/.well-known/openid-configuration"
_SHARE_OF_LIFE: Final = 0.9
"""A token is replaced when this share of its life is over, so that no connection starts with a dying one."""

_UNTOLD_LIFE: Final = 0.0
"""Seconds that a token without `expires_in` is used again: none, each connection gets its own."""


class OAuth2Authentication:
    """Client credentials of an identity provider. Tokens are kept until nine tenths of their life are over.

    `issuer_url` is where discovery starts; `token_url` names the token endpoint itself and makes discovery needless.
    `timeout` is seconds per HTTP request. `tls_context` is for the provider, not for the broker. For clients of one event
    loop. The secret is left out of `repr`. InvalidConfiguration without the extra `oauth2`.
    """

    method_name = "token"

    def __init__(
        self,
        issuer_url: str = "",
        *,
        client_id: str,
        client_secret: str | Secret,
        audience: str | None = None,
        scope: str | None = None,
        token_url: str | None = None,
        timeout: float | timedelta = 10.0,
        tls_context: ssl.SSLContext | None = None,
    ) -> None:
        if not issuer_url and not token_url:
            raise InvalidConfiguration("OAuth 2.0 needs issuer_url or token_url")
        if any("@" in urlsplit(each or "").netloc for each in (issuer_url, token_url)):
            hint = "give client_id= and client_secret="
            raise InvalidConfiguration("the URL of an identity provider must not have a user or a password in it", hint=hint)
        self._secret = secret(client_secret)
        form = {"grant_type": "client_credentials", "client_id": client_id}
        self._form = form | ({"audience": audience} if audience else {}) | ({"scope": scope} if scope else {})
        self._issuer_url = issuer_url
        self._token_url = token_url
        self._http = JsonHttp(timeout=number_of_seconds(timeout, "timeout"), tls_context=tls_context)
        self._token = Secret("")
        self._good_until = 0.0
        self._lock = asyncio.Lock()

    @classmethod
    def from_key_file(
        cls, key_file: str | Path, *, issuer_url: str = "", audience: str | None = None, scope: str | None = None
    ) -> Self:
        """Credentials from a JSON file of Pulsar's form, with `client_id`, `client_secret` and perhaps `issuer_url`.

        `key_file` is a path, `file:///path`, or `data:application/json;base64,…`. InvalidConfiguration when it cannot be
        read.
        """
        try:
            document = json.loads(_key_file(str(key_file)))
            kind = document.get("type", "client_credentials")
            client_id, client_secret = document["client_id"], document["client_secret"]
        except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no JSON with client_id and client_secret"
            raise InvalidConfiguration(f"the OAuth 2.0 key file cannot be read: {reason}") from None
        if kind != "client_credentials":
            raise InvalidConfiguration(f"the OAuth 2.0 key file is for {kind!r}, not client_credentials")
        issuer_url = issuer_url or document.get("issuer_url", "")
        return cls(issuer_url, client_id=client_id, client_secret=client_secret, audience=audience, scope=scope)

    def __repr__(self) -> str:
        return f"<OAuth2Authentication {self._form['client_id']} at {self._issuer_url or self._token_url}>"

    async def data(self) -> bytes:
        """The current token. AuthenticationError when the provider refuses (retriable when it cannot be reached)."""
        async with self._lock:
            if not self._token or monotonic_seconds() >= self._good_until:
                await self._renew()
            return self._token.reveal().encode()

    async def _renew(self) -> None:
        if self._token_url is None:
            url = self._issuer_url.rstrip("/") + _DISCOVERY
            self._token_url = str(_field(await self._ask("GET", url), "token_endpoint", url))
        asked_at = monotonic_seconds()
        answer = await self._ask("POST", self._token_url, self._form | {"client_secret": self._secret.reveal()})
        self._token = Secret(str(_field(answer, "access_token", self._token_url)))
        try:
            life = float(answer.get("expires_in", _UNTOLD_LIFE))
        except (TypeError, ValueError):
            life = _UNTOLD_LIFE
        self._good_until = asked_at + life * _SHARE_OF_LIFE

    async def _ask(self, method: str, url: str, form: dict[str, str] | None = None) -> dict[str, Any]:
        try:
            status, body = await self._http.request(method, url, form)
        except (OSError, ValueError) as error:
            text = f"the identity provider at {url} could not be asked: {error}"
            raise AuthenticationError(text, retriable=True, fatal=False) from error
        if status == 200 and isinstance(body, dict):
            return body
        reason = body.get("error_description") or body.get("error") if isinstance(body, dict) else None
        text = f"the identity provider at {url} answered {status}: {reason or 'no reason given'}"
        retriable = status >= 500 or status == 429
        raise AuthenticationError(text, retriable=retriable, fatal=not retriable)


def _field(answer: dict[str, Any], name: str, url: str) -> Any:
    if not answer.get(name):
        raise AuthenticationError(f"the identity provider's answer at {url} has no {name}")
    return answer[name]


def _key_file(source: str) -> bytes:
    if source.startswith("data:"):
        kind, comma, data = source.partition(",")
        if not comma:
            raise ValueError("a data URL needs a comma")
        try:
            return base64.b64decode(data, validate=True) if kind.endswith(";base64") else unquote(data).encode()
        except binascii.Error as error:
            raise ValueError(f"not base64: {error}") from error
    path = source.removeprefix("file://") if source.startswith("file://") else source.removeprefix("file:")
    return Path(path).read_bytes()
