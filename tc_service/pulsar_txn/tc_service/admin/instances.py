"""Requests about all coordinators of the service, or one, at whatever instance: this one asks those that lead the others.

Each instance leads coordinators, and is asked in the name of who asks here. Only what an instance leads itself is asked of it
(`_MARK`), so that no question goes round. A token goes along; a certificate cannot, and a token that came over TLS does not
leave without it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import aiohttp
import attrs
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from pulsar_txn.broker.serving import (
    COORDINATED,
    Coordinators,
    Handler,
    all_for,
    asker,
    coordinator_stats,
    coordinators_of,
    failed,
    limit,
    listed,
    object_response,
    slow_transactions,
    sort_key_of,
    txn_id_of,
)
from pulsar_txn.tc_service.cluster.admin import reason_of
from pulsar_txn.tc_service.server.leaders import Address
from pulsar_txn.wire.ids import coordinator_of

_MARK: Final = "Pulsar-Txn-Asked-By-Instance"
UNANSWERED: Final = "Pulsar-Txn-Unanswered"
"""The header of an answer that is not whole: once for each instance that is missing, with the reason."""

_TIMEOUT_SECONDS: Final = 20.0
_SHOWN: Final = 300
_PAGE: Final = 1000
_Items: TypeAlias = AsyncIterator[tuple[str, Any]]


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


def is_from_other_instance(request: web.Request) -> bool:
    """True if another instance asks, which wants nothing that this one does not lead itself."""
    return _MARK in request.headers


class OtherInstances:
    """Asks other instances. `run` is a cleanup context of the app. `trust`: a PEM file for https, or the system's."""

    def __init__(self, trust: str | None) -> None:
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """Keep the session as long as the app serves."""
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
            raise Unanswered(f"{url} does not answer ({reason_of(error)})") from error

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
    """Report a status that is an error."""
    return Unanswered(f"{url} answers {answer.status}: {answer.body.decode(errors='replace')[:_SHOWN]}")


async def response_or_503(asked: Awaitable[Answer]) -> web.Response:
    """Pass on the answer of the only instance that knows; 503 if it has not answered."""
    try:
        return (await asked).passed_on()
    except Unanswered as reason:
        return failed(503, f"the instance that leads this: {reason}")


OTHERS: Final = web.AppKey("others", OtherInstances)


def routed_to_leader(handler: Handler, which: Callable[[web.Request], tuple[Coordinators, int] | None]) -> Handler:
    """The handler of what one coordinator knows: the instance that leads it is asked. `which`: None for all of them."""

    async def ask(request: web.Request) -> web.StreamResponse:
        found = None if is_from_other_instance(request) else which(request)
        if found is None or not _is_led_elsewhere(*found):
            return await handler(request)
        others = request.app[OTHERS]
        url = others.url_of(*found)
        if url is None:
            text = (
                f"coordinator {found[1]} is led by another instance, or by none at this moment: no HTTP of it is known; retry"
            )
            raise web.HTTPServiceUnavailable(text=text)
        return await response_or_503(others.ask(request, url, request.raw_path))

    return ask


def _is_led_elsewhere(coordinators: Coordinators, tc_id: int) -> bool:
    return 0 <= tc_id < len(coordinators) and coordinators.is_elsewhere(tc_id)


def of_txn(request: web.Request) -> tuple[Coordinators, int]:
    """The coordinator of the transaction in the path."""
    txn_id = txn_id_of(request)
    return all_for(request, txn_id), coordinator_of(txn_id.most)


def of_query(request: web.Request) -> tuple[Coordinators, int] | None:
    """The coordinator that the query names."""
    text = request.query.get("coordinatorId", "")
    return (coordinators_of(request), int(text)) if text.isdecimal() else None


# ---- of all instances


class _OtherAnswers:
    """The instances that lead something elsewhere: those that have answered so far, and why others have not."""

    def __init__(self, request: web.Request) -> None:
        self.missing = list[str]()
        self._request = request
        self._others: OtherInstances = request.app[OTHERS]
        self.urls = [] if is_from_other_instance(request) else self._urls()

    def _urls(self) -> list[str]:
        found = dict[str, None]()
        nowhere = list[str]()
        of_front = self._request.app[COORDINATED].front()
        for what, coordinators in (("coordinator", coordinators_of(self._request)), ("coordinator of the front", of_front)):
            for tc_id in range(0 if coordinators is None else len(coordinators)):
                if coordinators is None or not coordinators.is_elsewhere(tc_id):
                    continue
                url = self._others.url_of(coordinators, tc_id)
                if url is None:
                    nowhere.append(f"{what} {tc_id}")
                else:
                    found[url] = None
        if nowhere:
            self.missing.append(f"no HTTP is known of an instance that leads {', '.join(nowhere)}")
        return list(found)

    async def get(self, url: str, path: str) -> Any:
        """One answer, decoded. Raises Unanswered."""
        answer = await self._others.ask(self._request, url, path)
        if answer.status != 200:
            raise unanswered(url, answer)
        try:
            return json.loads(answer.body)
        except ValueError:
            raise Unanswered(f"{url} answered, but not with JSON") from None

    async def all(self, path: str) -> dict[str, Any]:
        """The answers of those that have one, by URL; the others are among the missing then."""
        results = await asyncio.gather(*(self.get(url, path) for url in self.urls), return_exceptions=True)
        answered = {}
        for url, result in zip(self.urls, results, strict=True):
            if isinstance(result, Unanswered):
                self.missing.append(str(result))
            elif isinstance(result, BaseException):
                raise result
            else:
                answered[url] = result
        return answered

    def note(self, response: web.StreamResponse) -> web.StreamResponse:
        """The answer, which names those that are missing."""
        response.headers.extend(self.headers())
        return response

    def headers(self) -> CIMultiDict[str]:
        """Headers of an answer in which some instances are missing."""
        return CIMultiDict((UNANSWERED, " ".join(each.split())) for each in self.missing)


async def list_open(request: web.Request) -> web.StreamResponse:
    """GET: `slow_transactions` of all instances, in one order. The first page of each is there before the answer begins."""
    if is_from_other_instance(request) or "coordinatorId" in request.query:
        return await slow_transactions(request)
    asked, place = _OtherAnswers(request), partial(sort_key_of, request)
    of_here = listed(request)
    firsts = await asked.all(_page(request, request.query.get("after", "")))
    rest = [_listed_at(request, asked, url, first) for url, first in firsts.items()]
    found = _cut(_merged([of_here, *rest], lambda item: place(item[0])), limit(request))
    return await object_response(request, found, asked.headers())


def _page(request: web.Request, after: str) -> str:
    start = f"&after={after}" if after else ""
    for kind in ("prepared", "parked", "held"):
        if request.query.get(kind, "").lower() == "true":
            start += f"&{kind}=true"
    return f"{request.path}?limit={_size(request)}{start}"


def _size(request: web.Request) -> int:
    return min(limit(request) or _PAGE, _PAGE)


async def _listed_at(request: web.Request, asked: _OtherAnswers, url: str, page: dict[str, Any]) -> _Items:
    """All of another instance, page by page. An instance that goes away in between breaks the list off."""
    may_see = request.app[COORDINATED].may_see
    while page:
        for txn_id, txn in page.items():
            if may_see(request, txn.get("owner")):
                yield txn_id, txn
        if len(page) < _size(request):
            return
        try:
            page = await asked.get(url, _page(request, list(page)[-1]))
        except Unanswered as reason:
            raise web.HTTPServiceUnavailable(text=f"the list is not whole: {reason}") from reason


async def _merged(parts: list[_Items], place: Callable[[tuple[str, Any]], Any]) -> _Items:
    """Ordered parts as one. What moves from one instance to another meanwhile is there once."""
    heads = [(item, part) for part in parts if (item := await anext(part, None)) is not None]
    before: str | None = None
    while heads:
        at = min(range(len(heads)), key=lambda each: place(heads[each][0]))
        item, part = heads[at]
        if item[0] != before:
            yield item
        before = item[0]
        following = await anext(part, None)
        if following is None:
            del heads[at]
        else:
            heads[at] = (following, part)


async def _cut(items: _Items, most: int | None) -> _Items:
    left = most
    async for item in items:
        yield item
        if left is not None:
            left -= 1
            if not left:
                return


async def stats(request: web.Request) -> web.StreamResponse:
    """GET: `coordinator_stats` of all instances, or of the one that leads `coordinatorId`."""
    asked = _OtherAnswers(request)
    if "coordinatorId" in request.query or not (asked.urls or asked.missing):
        return await coordinator_stats(request)
    found: dict[str, Any] = {}
    answers = (json.loads(_text(await coordinator_stats(request))), *(await asked.all(request.path)).values())
    for answer in answers:
        found |= {tc_id: each for tc_id, each in answer.items() if each["state"] == "Ready" or tc_id not in found}
    return asked.note(web.json_response(found))


def merged_over_instances(handler: Handler) -> Handler:
    """The handler of a JSON array: of this instance, and of all others."""

    async def ask(request: web.Request) -> web.StreamResponse:
        asked = _OtherAnswers(request)
        found = json.loads(_text(await handler(request)))
        for each in (await asked.all(request.raw_path)).values():
            found += each
        return asked.note(web.json_response(found))

    return ask


def _text(response: web.StreamResponse) -> str:
    assert isinstance(response, web.Response)  # noqa: S101 - these handlers answer at once
    return response.text or ""
