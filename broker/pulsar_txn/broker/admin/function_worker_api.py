"""API for the functions worker: what is to run, the packages, and what the worker reports. Ours: Pulsar has no such paths.

The broker does not know what a function is. The worker that asked last is the one that runs them: an older one is told so,
and ends.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
from aiohttp import web

from .answers import Routes, done, failed, json_body, number
from .common import BROKER
from .function_questions import QUESTIONS, WORKER, Questions, check_worker
from .function_store import FunctionName, FunctionRecord, FunctionStore

FUNCTIONS: Final = web.AppKey("functions", FunctionStore)
_WAIT_SECONDS: Final = 10.0
_BASE: Final = "/admin/pulsar-txn/v1/functions"


async def functions_of(request: web.Request) -> FunctionStore:
    """The functions of this broker. HTTPConflict where they are not enabled."""
    if not request.app[BROKER].config.functions_worker_enabled:
        raise web.HTTPConflict(
            text="functions are not enabled here; start the broker with `pulsar-txn standalone --functions` "
            "(functionsWorkerEnabled=true)"
        )
    found = request.app[FUNCTIONS]
    await found.start()
    return found


def prepare(app: web.Application) -> None:
    """Give an application its functions."""
    broker = app[BROKER]
    app[FUNCTIONS] = FunctionStore(broker.store, broker.turn.runtime)
    app[WORKER] = {"id": ""}
    app[QUESTIONS] = Questions()


async def _assignments(request: web.Request) -> web.Response:
    functions = await functions_of(request)
    worker, after = request.query.get("worker", ""), request.query.get("after", "")
    current = request.app[WORKER]
    if not worker:
        return failed(400, "say who asks: worker=ID")
    if after and current["id"] not in ("", worker):
        return failed(409, "another functions worker has taken over; this one must end")
    current["id"] = worker
    functions.hear()
    await functions.changes.wait_beyond(after, _WAIT_SECONDS)
    return web.json_response(
        {
            "revision": functions.changes.revision,
            "serviceUrl": request.app[BROKER].service_url,
            "functions": [_told(name, record) for name, record in sorted(functions.records.items(), key=_by_name)],
        }
    )


def _by_name(item: tuple[FunctionName, FunctionRecord]) -> FunctionName:
    return item[0]


def _told(name: FunctionName, record: FunctionRecord) -> dict[str, Any]:
    return attrs.asdict(name) | {"record": attrs.asdict(record)}


async def _package(request: web.Request) -> web.StreamResponse:
    functions = await functions_of(request)
    wanted = number(request, "package")
    record = next((each for each in functions.records.values() if each.package.number == wanted), None)
    if record is None:
        return failed(404, f"there is no package {wanted}")
    return await send_package(request, functions, record)


async def send_package(request: web.Request, functions: FunctionStore, record: FunctionRecord) -> web.StreamResponse:
    """The bytes of a package, as an answer."""
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    response.content_length = record.package.size
    await response.prepare(request)
    async for part in functions.package(record.package.number):
        await response.write(part)
    await response.write_eof()
    return response


async def _report(request: web.Request) -> web.Response:
    functions, info = await functions_of(request), request.match_info
    check_worker(request)
    functions.hear()
    reports = await json_body(request)
    if not isinstance(reports, list) or not all(_is_report(each) for each in reports):
        return failed(400, "the body should be a list of {instanceId, status, metrics}")
    name = FunctionName(info["tenant"], info["namespace"], info["function"])
    if name in functions.records:
        functions.reports[name] = reports
    return done()


def _is_report(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("instanceId"), int)
        and isinstance(value.get("status"), dict)
        and isinstance(value.get("metrics"), dict)
    )


ROUTES: Routes = [
    ("GET", _BASE + "/assignments", _assignments),
    ("GET", _BASE + "/packages/{package}", _package),
    ("PUT", _BASE + "/reports/{tenant}/{namespace}/{function}", _report),
]
