"""`/admin/v3/functions`, as far as `pulsar-admin functions` needs it for Python functions.

The names and shapes are Pulsar's. A configuration is checked by the worker that runs it, because the broker does not know
what a function is: what cannot work is in the status of its instances.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import attrs
from aiohttp import web

from .answers import Handler, Routes, done, failed, number
from .function_calls import ask_worker
from .function_store import FunctionName, FunctionRecord, FunctionStore, stats_of, status_of
from .function_upload import Given, given
from .function_worker_api import functions_of, send_package

_BASE: Final = "/admin/v3/functions"
_ONE: Final = _BASE + "/{tenant}/{namespace}/{function}"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_INSTANCES: Final = 100


# ---- create, update, delete


async def _create(request: web.Request) -> web.Response:
    functions, name = await functions_of(request), _name(request)
    if name in functions.records:
        return failed(400, f"Function {name} already exists")
    told = await given(request, functions)
    if told.package is None:
        return failed(400, "a function needs a package: the part `data` with a .py, .zip or .whl file")
    try:
        config = _checked(name, told.config)
        await functions.create(name, FunctionRecord(config=config, package=told.package))
    except BaseException:
        await functions.drop_package(told.package.number)
        raise
    return done()


async def _update(request: web.Request) -> web.Response:
    functions, name = await functions_of(request), _name(request)
    functions.get(name)
    told = await given(request, functions)
    try:
        await functions.change(name, lambda before: _updated(name, before, told))
    except BaseException:
        if told.package is not None:
            await functions.drop_package(told.package.number)
        raise
    return done()


def _updated(name: FunctionName, before: FunctionRecord, told: Given) -> FunctionRecord:
    config = _checked(name, before.config | told.config)
    return attrs.evolve(before, config=config, package=told.package or before.package, version=before.version + 1)


async def _delete(request: web.Request) -> web.Response:
    functions, name = await functions_of(request), _name(request)
    if functions.get(name).config.get("cleanupSubscription") is not True:
        await functions.delete(name)
        return done()
    await functions.change(name, lambda record: _stopped(record, None))  # so that no instance subscribes again
    left = await _left_subscription(request, functions, name)
    await functions.delete(name)
    return done() if left is None else failed(500, f"Function {name} is deleted; its subscription stays: {left}")


async def _left_subscription(request: web.Request, functions: FunctionStore, name: FunctionName) -> str | None:
    """Remove the subscription; why it is still there, if so."""
    try:
        await ask_worker(request, functions, "unsubscribe", name)
    except web.HTTPException as error:
        return error.text
    return None


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


async def _builtins(request: web.Request) -> web.Response:
    await functions_of(request)
    return web.json_response([])


async def _reload(request: web.Request) -> web.Response:
    await functions_of(request)
    return done()


async def _no_paths(_: web.Request) -> web.Response:
    text = "this broker keeps a package with its function: `functions create` uploads it, `functions download --name` reads it"
    return failed(501, text)


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
    ("GET", _BASE + "/builtins", _builtins),
    ("POST", _BASE + "/builtins/reload", _reload),
    ("POST", _BASE + "/upload", _no_paths),
    ("GET", _BASE + "/download", _no_paths),
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
