"""Parts that all handlers over HTTP share: answers, numbers, bodies, and questions to machines as futures."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from aiohttp import web

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.wire.ids import Position

TURN: Final = web.AppKey("turn", Turn)
"""The loop's turns of the server that answers."""

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Routes: TypeAlias = list[tuple[str, str, Handler]]

DONE: Final = 204
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_SHOWN: Final = 40


def failed(status: int, reason: str) -> web.Response:
    """An error in Pulsar's shape."""
    return web.json_response({"reason": reason}, status=status)


def done() -> web.Response:
    """Success with nothing to say."""
    return web.Response(status=DONE)


def number(request: web.Request, name: str) -> int:
    """A whole number of 64 bits in the path or the query. HTTPBadRequest for something else."""
    text = request.match_info.get(name) or request.query.get(name, "")
    return whole_number(text, name)


def whole_number(text: str, what: str) -> int:
    """A whole number of 64 bits in plain digits. HTTPBadRequest for something else."""
    if _NUMBER.fullmatch(text) is None or not -(1 << 63) <= int(text) < 1 << 63:
        raise web.HTTPBadRequest(text=f"{what} {text[:_SHOWN]!r} is not a number of 64 bits")
    return int(text)


async def body_text(request: web.Request) -> str:
    """The body. HTTPBadRequest when it is not text."""
    try:
        return await request.text()
    except (UnicodeDecodeError, LookupError):
        raise web.HTTPBadRequest(text="the body should be text in UTF-8") from None


async def json_body(request: web.Request) -> Any:
    """The value in the body. HTTPBadRequest when it is not JSON."""
    text = await body_text(request)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text=f"the body should be JSON, not {text[:_SHOWN]!r}") from None


def flag(request: web.Request, name: str) -> bool:
    """A boolean of the query, false when it is not there."""
    return request.query.get(name, "").lower() == "true"


def text_of(position: Position) -> str:
    """A position as Pulsar's tools print it."""
    return f"{position[0]}:{position[1]}"
