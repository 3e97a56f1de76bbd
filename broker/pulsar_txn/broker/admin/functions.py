"""`/admin/v3/functions`, as far as `pulsar-admin functions` needs it for Python functions.

The names and shapes are Pulsar's. A configuration is checked by the worker that runs it, because the broker does not know
what a function is: what cannot work is in the status of its instances.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import attrs
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from .common import BROKER, Handler, Routes, done, failed, number
from .function_door import functions_of, send_package
from .function_store import FunctionName, FunctionRecord, FunctionStore, Package, stats_of, status_of

_BASE: Final = "/admin/v3/functions"
_ONE: Final = _BASE + "/{tenant}/{namespace}/{function}"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\.(py|zip|whl)")
_CONFIG_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 256 << 10
_MAX_INSTANCES: Final = 100


@attrs.frozen
class _Given:
    """What the parts of a request hold."""

    config: dict[str, Any]
    package: Package | None


# ---- create, update, delete


async def _create(request: web.Request) -> web.Response:
    functions, name = await functions_of(request), _name(request)
    if name in functions.records:
        return failed(400, f"Function {name} already exists")
    given = await _given(request, functions)
    if given.package is None:
        return failed(400, "a function needs a package: the part `data` with a .py, .zip or .whl file")
    try:
        config = _checked(name, given.config)
        await functions.create(name, FunctionRecord(config=config, package=given.package))
    except BaseException:
        await functions.drop_package(given.package.number)
        raise
    return done()


async def _update(request: web.Request) -> web.Response:
    functions, name = await functions_of(request), _name(request)
    functions.get(name)
    given = await _given(request, functions)
    try:
        await functions.change(name, lambda before: _updated(name, before, given))
    except BaseException:
        if given.package is not None:
            await functions.drop_package(given.package.number)
        raise
    return done()


def _updated(name: FunctionName, before: FunctionRecord, given: _Given) -> FunctionRecord:
    config = _checked(name, before.config | given.config)
    return attrs.evolve(before, config=config, package=given.package or before.package, version=before.version + 1)


async def _delete(request: web.Request) -> web.Response:
    await (await functions_of(request)).delete(_name(request))
    return done()


def _name(request: web.Request) -> FunctionName:
    info = request.match_info
    if _NAME.fullmatch(info["function"]) is None:
        raise web.HTTPBadRequest(text="the name of a function has letters, digits, '.', '_' and '-', at most 128")
    return FunctionName(info["tenant"], info["namespace"], info["function"])


def _checked(name: FunctionName, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as it is kept. HTTPBadRequest for what certainly cannot work."""
    for key, value in attrs.asdict(name).items():
        if config.get(key, value) != value:
            raise web.HTTPBadRequest(text=f"{key}: {config[key]!r} is not what the path says, {value!r}")
    if config.get("runtime", "PYTHON") != "PYTHON" or config.get("jar") or config.get("go"):
        raise web.HTTPBadRequest(text="this broker runs Python functions: give py and className")
    if not isinstance(config.get("className"), str):
        raise web.HTTPBadRequest(text="className is missing")
    parallelism = config.get("parallelism", 1)
    if not isinstance(parallelism, int) or not 1 <= parallelism <= _MAX_INSTANCES:
        raise web.HTTPBadRequest(text=f"parallelism must be a whole number from 1 to {_MAX_INSTANCES}")
    return config | attrs.asdict(name)


async def _given(request: web.Request, functions: FunctionStore) -> _Given:
    """The parts of the request, which are not held in memory. HTTPBadRequest."""
    if not request.content_type.startswith("multipart/"):
        raise web.HTTPBadRequest(text="the body should be multipart/form-data with functionConfig and data")
    parts = _Parts(request, functions)
    try:
        await parts.read()
    except BaseException as error:
        if parts.package is not None:
            await functions.drop_package(parts.package.number)
        if isinstance(error, TimeoutError):
            raise web.HTTPRequestTimeout(text="the body did not come in time (httpServerIdleTimeout)") from error
        if isinstance(error, ValueError | HttpProcessingError):
            raise web.HTTPBadRequest(text=f"the body is no multipart/form-data: {error}") from error
        raise
    return _Given({key: value for key, value in (parts.config or {}).items() if value is not None}, parts.package)


class _Parts:
    """Reads the parts of one request."""

    def __init__(self, request: web.Request, functions: FunctionStore) -> None:
        config = request.app[BROKER].config
        self.config: dict[str, Any] | None = None
        self.package: Package | None = None
        self._request = request
        self._functions = functions
        self._most = config.functions_max_package_size_in_mb << 20
        self._seconds = config.http_server_idle_timeout / 1000

    async def read(self) -> None:
        """All parts. HTTPBadRequest, HTTPRequestEntityTooLarge, Refusal; ValueError for what is no multipart."""
        reader = await self._request.multipart()
        while True:
            async with asyncio.timeout(self._seconds):
                part = await reader.next()
            if part is None:
                break
            if not isinstance(part, BodyPartReader):
                raise web.HTTPBadRequest(text="a part is a multipart itself")
            await self._take(part)
        if self.config is None and self.package is None:
            raise web.HTTPBadRequest(text="the part functionConfig is missing")

    async def _take(self, part: BodyPartReader) -> None:
        if part.name == "data" and self.package is None:
            chunks = _chunks(part, self._seconds)
            self.package = await self._functions.put_package(_file_name(part), chunks, self._most)
            return
        text = await _text(part, self._seconds)
        if part.name == "functionConfig":
            self.config = _json(text)
        elif part.name == "url":
            raise web.HTTPBadRequest(text="packages by URL are not fetched; upload the file")


def _file_name(part: BodyPartReader) -> str:
    """A name without a path. HTTPBadRequest for anything else."""
    found = part.filename or ""
    if _FILE.fullmatch(found) is None:
        raise web.HTTPBadRequest(
            text=f"the package {found[:80]!r} should be the name of a .py, .zip or .whl file, without a path"
        )
    return found


async def _chunks(part: BodyPartReader, seconds: float) -> AsyncIterator[bytes]:
    while not part.at_eof():
        async with asyncio.timeout(seconds):
            chunk = await part.read_chunk(_CHUNK_BYTES)
        yield bytes(chunk)


async def _text(part: BodyPartReader, seconds: float) -> bytes:
    found = b""
    async for chunk in _chunks(part, seconds):
        found += chunk
        if len(found) > _CONFIG_BYTES:
            raise web.HTTPRequestEntityTooLarge(_CONFIG_BYTES, len(found))
    return found


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise web.HTTPBadRequest(text="functionConfig should be a JSON object")
    return found


# ---- looking at them


async def _list(request: web.Request) -> web.Response:
    functions, info = await functions_of(request), request.match_info
    there = (each for each in functions.records if (each.tenant, each.namespace) == (info["tenant"], info["namespace"]))
    return web.json_response(sorted(each.name for each in there))


async def _show(request: web.Request) -> web.Response:
    record = (await functions_of(request)).get(_name(request))
    return web.json_response(record.config | {"py": record.package.name, "runtime": "PYTHON"})


async def _status(request: web.Request) -> web.Response:
    functions, name = await functions_of(request), _name(request)
    found = status_of(functions.get(name), functions.reports.get(name, ()), functions.silence)
    if "instance" in request.match_info:
        return web.json_response(_instance(request, found)["status"])
    return web.json_response(found)


async def _stats(request: web.Request) -> web.Response:
    functions, name = await functions_of(request), _name(request)
    found = stats_of(functions.get(name), functions.reports.get(name, ()))
    if "instance" in request.match_info:
        return web.json_response(_instance(request, found)["metrics"])
    return web.json_response(found)


def _instance(request: web.Request, found: dict[str, Any]) -> dict[str, Any]:
    wanted = number(request, "instance")
    for each in found["instances"]:
        if each["instanceId"] == wanted:
            instance: dict[str, Any] = each
            return instance
    raise web.HTTPNotFound(text=f"instance {wanted} is not there, or has not reported yet")


async def _download(request: web.Request) -> web.StreamResponse:
    functions = await functions_of(request)
    return await send_package(request, functions, functions.get(_name(request)))


# ---- starting and stopping


def _changing(change: Callable[[FunctionRecord, int | None], FunctionRecord]) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        functions, name = await functions_of(request), _name(request)
        instance = None
        if "instance" in request.match_info:
            instance = number(request, "instance")
            if not 0 <= instance < functions.get(name).parallelism:
                return failed(400, f"Function {name} has no instance {instance}")
        await functions.change(name, lambda record: change(record, instance))
        return done()

    return handle


def _started(record: FunctionRecord, instance: int | None) -> FunctionRecord:
    if instance is None:
        return attrs.evolve(record, running=True, stopped=())
    everything = set(range(record.parallelism))
    stopped = set(record.stopped) if record.running else everything
    return attrs.evolve(record, running=True, stopped=tuple(sorted(stopped - {instance})))


def _stopped(record: FunctionRecord, instance: int | None) -> FunctionRecord:
    if instance is None:
        return attrs.evolve(record, running=False, stopped=())
    return attrs.evolve(record, stopped=tuple(sorted({*record.stopped, instance})))


def _restarted(record: FunctionRecord, instance: int | None) -> FunctionRecord:
    key = "all" if instance is None else str(instance)
    again = record.restarts | {key: record.restarts.get(key, 0) + 1}
    return attrs.evolve(_started(record, instance), restarts=again)


STREAMED: Final = frozenset[Handler]({_create, _update})
"""Handlers that read the body in parts: it may be larger than maxHttpRequestSize."""

ROUTES: Routes = [
    ("POST", _ONE, _create),
    ("PUT", _ONE, _update),
    ("DELETE", _ONE, _delete),
    ("GET", _BASE + "/{tenant}/{namespace}", _list),
    ("GET", _ONE, _show),
    ("GET", _ONE + "/download", _download),
    ("GET", _ONE + "/status", _status),
    ("GET", _ONE + "/stats", _stats),
    ("GET", _ONE + "/{instance}/status", _status),
    ("GET", _ONE + "/{instance}/stats", _stats),
    *(
        ("POST", path + verb, _changing(change))
        for path in (_ONE, _ONE + "/{instance}")
        for verb, change in (("/start", _started), ("/stop", _stopped), ("/restart", _restarted))
    ),
]
