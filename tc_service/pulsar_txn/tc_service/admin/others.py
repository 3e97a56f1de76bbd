"""The HTTP of the other instances of the service: each leads coordinators, and is asked in the name of who asks here.

Only what an instance leads itself is asked of it (`_MARK`), so that no question goes round. A token goes along; a certificate
cannot, and a token that came over TLS does not leave without it.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Final

import aiohttp
import attrs
from aiohttp import hdrs, web
from yarl import URL

from pulsar_txn.broker.serving import Coordinators, asker, failed
from pulsar_txn.tc_service.server.leaders import Address

_MARK: Final = "Pulsar-Txn-Asked-By-Instance"
UNANSWERED: Final = "Pulsar-Txn-Unanswered"
"""The header of an answer that is not whole: once for each instance that is missing, with the reason."""

_TIMEOUT_SECONDS: Final = 20.0
_SHOWN: Final = 300


class Unanswered(Exception):  # noqa: N818 - named by what happened
    """Another instance could not be asked, or has not answered; the text says which, and why."""


@attrs.frozen
class Answer:
    """Answer of another instance."""

    status: int
    content_type: str
    body: bytes

    def passed_on(self) -> web.Response:
        """The same to who asked here."""
        return web.Response(status=self.status, body=self.body, headers={hdrs.CONTENT_TYPE: self.content_type})


def is_for_here(request: web.Request) -> bool:
    """True if another instance asks, which wants nothing that this one does not lead itself."""
    return _MARK in request.headers


class Others:
    """Asks other instances. `run` is a cleanup context of the app. `trust`: a PEM file for https, or the system's."""

    def __init__(self, trust: str | None) -> None:
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """As long as the app serves."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as self._session:
            yield

    def url_of(self, coordinators: Coordinators, tc_id: int) -> str | None:
        """The address of the instance that leads a coordinator elsewhere; None while nobody is known to, or has no HTTP."""
        leader = coordinators.leader(tc_id)
        address = None if leader is None else Address.parse(leader).web
        return None if address is None else address.tls or address.plain

    async def ask(self, request: web.Request, url: str, path: str) -> Answer:
        """Ask what `request` asks, of another instance. Raises Unanswered."""
        assert self._session is not None  # noqa: S101 - the app runs
        credentials = _credentials(request, url)
        try:
            async with self._session.request(
                request.method,
                URL(url + path, encoded=True),
                headers={_MARK: "1", **credentials},
                ssl=self._tls() if url.startswith("https:") else True,
                allow_redirects=False,
            ) as answer:
                return Answer(answer.status, answer.headers.get(hdrs.CONTENT_TYPE, "text/plain"), await answer.read())
        except (aiohttp.ClientError, OSError) as error:  # a timeout is an OSError
            raise Unanswered(f"{url} does not answer ({str(error) or type(error).__name__})") from error

    def _tls(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._trust or None)
        except OSError as error:
            raise Unanswered(f"brokerClientTrustCertsFilePath={self._trust} cannot be used: {error}") from error


def _credentials(request: web.Request, url: str) -> Mapping[str, str]:
    given = request.headers.get(hdrs.AUTHORIZATION)
    if given is None:
        if asker().role is not None:
            raise Unanswered(f"{url} is another instance, and a certificate cannot be passed on to it; ask it directly")
        return {}
    if request.secure and not url.startswith("https:"):
        raise Unanswered(f"{url} has no TLS, and the token came with it; set webServicePortTls there, or ask it directly")
    return {hdrs.AUTHORIZATION: given}


def unanswered(url: str, answer: Answer) -> Unanswered:
    """For a status that is an error."""
    return Unanswered(f"{url} answers {answer.status}: {answer.body.decode(errors='replace')[:_SHOWN]}")


async def or_503(asked: Awaitable[Answer]) -> web.Response:
    """Return what the only instance that knows has answered, or that it did not."""
    try:
        return (await asked).passed_on()
    except Unanswered as reason:
        return failed(503, f"the instance that leads this: {reason}")


OTHERS: Final = web.AppKey("others", Others)
