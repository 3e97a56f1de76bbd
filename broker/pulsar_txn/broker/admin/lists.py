"""Lists over HTTP, built and sent in slices however long they are.

Pulsar's lists come whole. Beyond Pulsar, `limit=N` asks for the first N names and `after=NAME` for those after a name, so
that a tool can read a very long list in pages; the order is that of the names.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Final

from aiohttp import web
from multidict import CIMultiDict

from pulsar_txn.broker.base.slices import LoopBudget
from pulsar_txn.broker.base.sorted_names import Pieces

from .answers import TURN, number

_WHOLE_BYTES: Final = 1 << 20
"""Up to this an answer is sent at once, with its length; longer ones in chunks."""


def after(request: web.Request) -> str:
    """The list begins after this name; empty for the whole list."""
    return request.query.get("after", "")


def limit(request: web.Request) -> int | None:
    """The limit of the query; None for all. HTTPBadRequest for a text that is no number, or less than one."""
    if "limit" not in request.query:
        return None
    asked = number(request, "limit")
    if asked < 1:
        raise web.HTTPBadRequest(text=f"limit {asked} is less than 1")
    return asked


async def names_response(request: web.Request, pieces: Pieces) -> web.StreamResponse:
    """A JSON array of names."""
    most, budget = limit(request), request.app[TURN].budget
    return await chunked_response(request, _array(pieces, most, budget))


async def object_response(
    request: web.Request, items: AsyncIterator[tuple[str, Any]], headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """A JSON object of items that come one after the other. `headers`: more of the answer."""
    return await chunked_response(request, _object(items), headers=headers)


async def value_response(request: web.Request, value: dict[str, Any]) -> web.StreamResponse:
    """A JSON object that may hold very many others."""
    return await chunked_response(request, request.app[TURN].budget.each(_dumped(value)))


async def chunked_response(
    request: web.Request,
    parts: AsyncIterator[str],
    content_type: str = "application/json; charset=utf-8",
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """An answer of text in parts. `headers`: more of it than its type."""
    all_headers = CIMultiDict(headers or {})
    all_headers["Content-Type"] = content_type
    collected, size = list[bytes](), 0
    response: web.StreamResponse | None = None
    async for part in parts:
        collected.append(part.encode())
        size += len(collected[-1])
        if size >= _WHOLE_BYTES:
            if response is None:
                response = web.StreamResponse(headers=all_headers)
                await response.prepare(request)
            await response.write(b"".join(collected))
            collected, size = [], 0
    if response is None:
        return web.Response(body=b"".join(collected), headers=all_headers)
    await response.write(b"".join(collected))
    await response.write_eof()
    return response


def _dumped(value: Any) -> Iterator[str]:
    """The parts of its JSON text: one of each value that is no object and no array."""
    if isinstance(value, dict):
        before = "{"
        for key, each in value.items():
            yield f"{before}{json.dumps(key)}: "
            yield from _dumped(each)
            before = ", "
        yield "{}" if before == "{" else "}"
    elif isinstance(value, list):
        before = "["
        for each in value:
            yield before
            yield from _dumped(each)
            before = ", "
        yield "[]" if before == "[" else "]"
    else:
        yield json.dumps(value)


async def _array(pieces: Pieces, most: int | None, budget: LoopBudget) -> AsyncIterator[str]:
    left = most
    opened = "["
    async for piece in budget.each(pieces, at_a_time=1):
        some = piece if left is None else piece[:left]
        if some:
            yield opened + _joined(some)
            opened = ", "
        if left is not None:
            left -= len(some)
            if not left:
                break
    yield "[]" if opened == "[" else "]"


async def _object(items: AsyncIterator[tuple[str, Any]]) -> AsyncIterator[str]:
    opened = "{"
    async for key, value in items:
        yield f"{opened}{json.dumps(key)}: {json.dumps(value)}"
        opened = ", "
    yield "{}" if opened == "{" else "}"


def _joined(names: Iterable[str]) -> str:
    return json.dumps(list(names))[1:-1]
