"""The admin API of a cluster over HTTP: JSON answers, redirects to the broker that serves a topic, and its credentials."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohttp
from yarl import URL

from pulsar_txn.client.inside import Settings
from pulsar_txn.wire.ids import TxnId
from pulsar_txn.wire.values import value

_TIMEOUT_SECONDS: Final = 30.0
_AT_ONCE: Final = 16
_SHOWN: Final = 300
_MOST_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({302, 307, 308})


class AdminRefused(Exception):  # noqa: N818 - named by what happened
    """Answer of a broker with an HTTP status that is an error; `reason` is its text."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason


class AdminUnreachable(Exception):  # noqa: N818 - named by what happened
    """Failure to get an answer from an admin API."""


@value
class Entry:
    """One answer: headers in lower case, and the body."""

    headers: Mapping[str, str]
    body: bytes


def reason_of(error: aiohttp.ClientError | OSError) -> str:
    """Return why nobody has answered, in the words of the system where it has some."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class AdminApi:
    """Requests to the admin API at one URL, a few at a time."""

    def __init__(self, url: str, settings: Settings, session: aiohttp.ClientSession) -> None:
        self.url = url.rstrip("/")
        self._settings = settings
        self._session = session
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def get(self, path: str) -> Any:
        """The decoded answer; None for an empty one. Raises AdminRefused, AdminUnreachable."""
        entry = await self.read(path)
        try:
            return json.loads(entry.body) if entry.body else None
        except ValueError:
            raise AdminUnreachable(f"what answers at {self.url} is not a Pulsar admin API") from None

    async def read(self, path: str) -> Entry:
        """An answer that is not JSON. Raises as `get`."""
        try:
            async with self._slots:
                return await self._follow(URL(self.url + path, encoded=True))
        except (aiohttp.ClientError, OSError) as error:
            raise AdminUnreachable(f"no admin API answers at {self.url} ({reason_of(error)})") from error

    async def _follow(self, url: URL) -> Entry:
        """The answer of the broker that serves what is asked for: others send us there.

        The library would leave the credentials out at another host, and every broker wants them.
        """
        for _ in range(_MOST_REDIRECTS):
            async with self._session.get(url, headers=await self._credentials(), allow_redirects=False) as answer:
                body = await answer.read()
                location = answer.headers.get("Location")
                if answer.status in _REDIRECTS and location is not None:
                    target = url.join(URL(location, encoded=True))
                    if target.scheme != url.scheme:
                        raise AdminUnreachable(
                            f"the broker at {url.origin()} sends us to {target.origin()}; use that --admin-url"
                        )
                    url = target
                    continue
                if answer.status >= 400:
                    raise AdminRefused(answer.status, _reason(body))
                return Entry({name.lower(): text for name, text in answer.headers.items()}, body)
        raise AdminUnreachable(
            f"{self.url} sent us to other brokers {_MOST_REDIRECTS} times; they do not agree who serves this"
        )

    async def _credentials(self) -> dict[str, str]:
        authentication = self._settings.authentication
        if authentication is None or authentication.method_name not in ("token", "basic"):
            return {}
        data = authentication.data()
        secret = await data if inspect.isawaitable(data) else data
        if authentication.method_name == "basic":
            return {"Authorization": "Basic " + base64.b64encode(secret).decode()}
        return {"Authorization": "Bearer " + secret.decode()}


@contextlib.asynccontextmanager
async def open_admin(url: str, settings: Settings) -> AsyncIterator[AdminApi]:
    """An admin API for the time of the block. ValueError for what is no http(s) URL."""
    scheme = urlsplit(url).scheme
    if scheme not in ("http", "https"):
        raise ValueError(f"{url!r} is not the URL of an admin API: write http://host:8080 or https://host:8443")
    tls: ssl.SSLContext | bool = settings.ssl_context() if scheme == "https" else True
    connector = aiohttp.TCPConnector(ssl=tls)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield AdminApi(url, settings, session)


async def hides(admin: AdminApi, topic: str, txn_id: TxnId) -> bool:
    """True if a topic hides what a transaction has sent. Raises AdminRefused, AdminUnreachable."""
    path = f"/admin/v3/transactions/transactionInBufferStats/{topic_path(topic)}/{txn_id.most}/{txn_id.least}"
    stats = await admin.get(path)
    return bool((stats or {}).get("aborted"))


def topic_path(topic: str) -> str:
    """`tenant/namespace/topic` of a full name, as paths of the admin API have it."""
    tenant, namespace, name = topic.partition("://")[2].split("/", 2)
    return f"{tenant}/{namespace}/{quote(name, safe='')}"


def path_part(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:_SHOWN]
