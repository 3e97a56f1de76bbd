"""`/admin/v3/functions`: calls of a function that runs (trigger), and its state. The worker carries them out."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from aiohttp import web

from .answers import Handler, Routes, done
from .common import BROKER
from .function_questions import QUESTIONS
from .function_store import FunctionName, FunctionStore, status_of
from .function_upload import small_parts
from .function_worker_api import functions_of

_ONE: Final = "/admin/v3/functions/{tenant}/{namespace}/{function}"


def name_of(request: web.Request) -> FunctionName:
    """The function that the path names, which need not exist."""
    info = request.match_info
    return FunctionName(info["tenant"], info["namespace"], info["function"])


async def ask_worker(request: web.Request, functions: FunctionStore, verb: str, name: FunctionName, **more: Any) -> Any:
    """Ask the worker about a function. HTTPServiceUnavailable without a worker; Refusal TopicNotFound."""
    record = functions.get(name)
    if functions.silence is not None:
        raise web.HTTPServiceUnavailable(text=f"{functions.silence}; start the broker with --functions")
    service_url = request.app[BROKER].service_url
    question = {"verb": verb, "fqfn": str(name), "config": record.config, "serviceUrl": service_url}
    return await request.app[QUESTIONS].ask(question | more)


async def _trigger(request: web.Request) -> web.Response:
    functions, name = await functions_of(request), name_of(request)
    status = status_of(functions.get(name), functions.reports.get(name, ()), functions.silence)
    parts = await small_parts(request)
    data = parts.get("dataStream", parts.get("data"))
    if data is None:
        raise web.HTTPBadRequest(text="the part data or dataStream is missing: what the function is to be given")
    if not status["numRunning"]:
        raise web.HTTPConflict(text=f"no instance of {name} runs, so nobody would answer; look at its status")
    topic = parts.get("topic", b"").decode() or None
    found = await ask_worker(request, functions, "trigger", name, topic=topic, data=base64.b64encode(data).decode())
    if found is None:
        return done()
    return web.Response(body=base64.b64decode(found), content_type="text/plain")


async def _query_state(request: web.Request) -> web.Response:
    functions, name = await functions_of(request), name_of(request)
    key = request.match_info["key"]
    found = await ask_worker(request, functions, "querystate", name, key=key)
    return web.json_response(found)


async def _put_state(request: web.Request) -> web.Response:
    functions, name = await functions_of(request), name_of(request)
    functions.get(name)
    key, parts = request.match_info["key"], await small_parts(request)
    try:
        state = json.loads(parts.get("state", b""))
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise web.HTTPBadRequest(
            text="the part state should be a JSON object with key and stringValue, byteValue or numberValue"
        )
    if state.get("key", key) != key:
        raise web.HTTPBadRequest(text=f"the key of the state, {state['key']!r}, is not the one of the path, {key!r}")
    await ask_worker(request, functions, "putstate", name, key=key, state=state)
    return done()


STREAMED: Final = frozenset[Handler]({_trigger, _put_state})
"""Handlers that read the body in parts."""

ROUTES: Routes = [
    ("POST", _ONE + "/trigger", _trigger),
    ("GET", _ONE + "/state/{key}", _query_state),
    ("POST", _ONE + "/state/{key}", _put_state),
]
