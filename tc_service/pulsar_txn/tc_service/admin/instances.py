"""Requests about all coordinators of the service, or one, at whatever instance: this one asks those that lead the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final, TypeAlias

from aiohttp import web
from multidict import CIMultiDict

from pulsar_txn.broker.serving import (
    COORDINATED,
    Coordinators,
    Handler,
    all_for,
    coordinator_stats,
    coordinators_of,
    limit,
    listed,
    object_response,
    place_of,
    slow_transactions,
    txn_id_of,
)
from pulsar_txn.wire.ids import coordinator_of

from .others import OTHERS, UNANSWERED, Others, Unanswered, is_for_here, or_503, unanswered

_PAGE: Final = 1000
_Items: TypeAlias = AsyncIterator[tuple[str, Any]]


def led(handler: Handler, which: Callable[[web.Request], tuple[Coordinators, int] | None]) -> Handler:
    """The handler of what one coordinator knows: the instance that leads it is asked. `which`: None for all of them."""

    async def ask(request: web.Request) -> web.StreamResponse:
        found = None if is_for_here(request) else which(request)
        if found is None or not _is_led_elsewhere(*found):
            return await handler(request)
        others = request.app[OTHERS]
        url = others.url_of(*found)
        if url is None:
            text = (
                f"coordinator {found[1]} is led by another instance, or by none at this moment: no HTTP of it is known; retry"
            )
            raise web.HTTPServiceUnavailable(text=text)
        return await or_503(others.ask(request, url, request.raw_path))

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


class _Asked:
    """The instances that lead something elsewhere: those that have answered so far, and why others have not."""

    def __init__(self, request: web.Request) -> None:
        self.missing = list[str]()
        self._request = request
        self._others: Others = request.app[OTHERS]
        self.urls = [] if is_for_here(request) else self._urls()

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
            raise Unanswered(f"{url} answers what is not JSON") from None

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
        """Those of an answer in which some are missing."""
        return CIMultiDict((UNANSWERED, " ".join(each.split())) for each in self.missing)


async def list_open(request: web.Request) -> web.StreamResponse:
    """GET: `slow_transactions` of all instances, in one order. The first page of each is there before the answer begins."""
    if is_for_here(request) or "coordinatorId" in request.query:
        return await slow_transactions(request)
    asked, place = _Asked(request), partial(place_of, request)
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


async def _listed_at(request: web.Request, asked: _Asked, url: str, page: dict[str, Any]) -> _Items:
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
    asked = _Asked(request)
    if "coordinatorId" in request.query or not (asked.urls or asked.missing):
        return await coordinator_stats(request)
    found: dict[str, Any] = {}
    answers = (json.loads(_text(await coordinator_stats(request))), *(await asked.all(request.path)).values())
    for answer in answers:
        found |= {tc_id: each for tc_id, each in answer.items() if each["state"] == "Ready" or tc_id not in found}
    return asked.note(web.json_response(found))


def of_all(handler: Handler) -> Handler:
    """The handler of a JSON array: of this instance, and of all others."""

    async def ask(request: web.Request) -> web.StreamResponse:
        asked = _Asked(request)
        found = json.loads(_text(await handler(request)))
        for each in (await asked.all(request.raw_path)).values():
            found += each
        return asked.note(web.json_response(found))

    return ask


def _text(response: web.StreamResponse) -> str:
    assert isinstance(response, web.Response)  # noqa: S101 - these handlers answer at once
    return response.text or ""
