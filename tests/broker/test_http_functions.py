"""`/admin/v3/functions` and the worker's API: what is kept, what is refused, and what survives a crash."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from pulsar_txn.broker.admin.routes import make_app

BASE = "/admin/v3/functions/public/default"
WORKER_API = "/admin/pulsar-txn/v1/functions"
CONFIG = {"className": "f.F", "inputs": ["in"], "parallelism": 2, "runtime": "PYTHON", "jar": None}


@asynccontextmanager
async def http(bench):
    async with TestClient(TestServer(make_app(bench.broker))) as client:

        async def ask(method, path, **options):
            async with client.request(method, path, **options) as answer:
                data = await answer.read()
                return answer.status, json.loads(data) if answer.content_type == "application/json" else data

        yield ask


@pytest.fixture
async def enabled(benches):
    return await benches(functions_worker_enabled=True, functions_max_package_size_in_mb=1).start()


@pytest.fixture
async def ask(enabled):
    async with http(enabled) as asking:
        yield asking


def upload(config=CONFIG, data=b"class F: pass", filename="f.py", **more):
    form = aiohttp.FormData()
    if data is not None:
        form.add_field("data", data, filename=filename, content_type="application/octet-stream")
    if config is not None:
        form.add_field("functionConfig", config if isinstance(config, str) else json.dumps(config), content_type="text/plain")
    for name, value in more.items():
        form.add_field(name, value, content_type="text/plain")
    return form


async def test_a_function_is_created_shown_listed_updated_and_deleted(ask):
    assert await ask("POST", f"{BASE}/f", data=upload()) == (204, b"")
    assert await ask("GET", BASE) == (200, ["f"])
    status, shown = await ask("GET", f"{BASE}/f")
    assert (status, shown["className"], shown["py"], shown["name"]) == (200, "f.F", "f.py", "f")
    assert await ask("GET", f"{BASE}/f/download") == (200, b"class F: pass")
    assert (await ask("POST", f"{BASE}/f", data=upload()))[0] == 400
    assert (await ask("PUT", f"{BASE}/f", data=upload({"parallelism": 3}, None)))[0] == 204
    _, shown = await ask("GET", f"{BASE}/f")
    assert (shown["parallelism"], shown["inputs"]) == (3, ["in"])
    assert (await ask("PUT", f"{BASE}/f", data=upload({}, b"2", "g.py")))[0] == 204
    assert await ask("GET", f"{BASE}/f/download") == (200, b"2")
    assert await ask("DELETE", f"{BASE}/f") == (204, b"")
    assert (await ask("GET", f"{BASE}/f"))[0] == 404
    assert (await ask("DELETE", f"{BASE}/f"))[0] == 404
    assert (await ask("PUT", f"{BASE}/f", data=upload()))[0] == 404
    assert await ask("GET", BASE) == (200, [])


async def test_functions_are_refused_where_nobody_enabled_them(benches):
    async with http(await benches().start()) as ask:
        for method, path in (("POST", f"{BASE}/f"), ("GET", BASE), ("GET", f"{WORKER_API}/assignments?worker=w")):
            status, answer = await ask(method, path)
            assert status == 409
            assert "functionsWorkerEnabled" in answer["reason"]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (upload(None), "className is missing"),
        (upload("{"), "JSON object"),
        (upload("[]"), "JSON object"),
        (upload("[" * 100_000), "JSON object"),
        (upload(data=None), "package"),
        (upload({"inputs": ["a"]}), "className"),
        (upload(CONFIG | {"runtime": "JAVA"}), "runs Python"),
        (upload(CONFIG | {"name": "other"}), "not what the path says"),
        (upload(CONFIG | {"tenant": "other"}), "not what the path says"),
        (upload(CONFIG | {"parallelism": 0}), "parallelism"),
        (upload(CONFIG | {"parallelism": 10**9}), "parallelism"),
        (upload(CONFIG | {"parallelism": "2"}), "parallelism"),
        (upload(filename="../f.py"), "without a path"),
        (upload(filename="/etc/f.py"), "without a path"),
        (upload(filename="a\\b.py"), "without a path"),
        (upload(filename=".f.py"), "without a path"),
        (upload(filename="f.jar"), ".py, .zip or .whl"),
        (upload(filename=f"{'f' * 300}.py"), "without a path"),
        (upload(data=None, url="http://example.com/f.py"), "by URL"),
        (upload(data=None, url="function://public/default/f@1"), "by URL"),
        (upload(data=None, url="file://elsewhere/f.py"), "by URL"),
        (upload(data=None, url="file:///nowhere/f.py"), "no file on the broker's machine"),
        (upload(data=None, url="file:///dev/zero"), "no file on the broker's machine"),
        (upload(data=None, url="file:f.py"), "no file on the broker's machine"),
        (upload(data=None, url="file:///etc/hostname"), ".py, .zip or .whl"),
        (upload(data=None, url="file:///a%00b.py"), "no file on the broker's machine"),
        (upload(data=None, url="http://[::1"), "no URL"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_is_refused_with_a_sentence_and_leaves_nothing(ask, enabled, form, said):
    status, answer = await ask("POST", f"{BASE}/f", data=form)
    assert status == 400
    assert said in answer["reason"]
    assert await ask("GET", BASE) == (200, [])
    assert enabled.store.names("functions/") == []


async def test_a_body_that_is_no_multipart_is_refused(ask, enabled):
    assert (await ask("POST", f"{BASE}/f", data=b"{}"))[0] == 400
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert (await ask("POST", f"{BASE}/f", data=b"rubbish", headers=headers))[0] == 400
    assert (await ask("POST", f"{BASE}/f", data=b"--x\r\nbroken", headers=headers))[0] == 400
    assert enabled.store.names("functions/") == []


@pytest.mark.parametrize("name", ["..", "a b", "%2e%2e", "a%2Fb", "-", "x" * 200])
async def test_a_name_that_is_a_path_or_worse_is_refused(ask, name):
    assert (await ask("POST", f"{BASE}/{name}", data=upload()))[0] in (400, 404, 405)
    assert await ask("GET", BASE) == (200, [])


async def test_a_package_beyond_the_limit_is_refused_and_one_at_the_limit_is_kept(ask, enabled):
    status, answer = await ask("POST", f"{BASE}/f", data=upload(data=b"x" * ((1 << 20) + 1)))
    assert (status, "functionsMaxPackageSizeInMB" in answer["reason"]) == (409, True)
    assert enabled.store.names("functions/") == []
    data = bytes(range(256)) * (1 << 12)
    assert (await ask("POST", f"{BASE}/f", data=upload(data=data)))[0] == 204
    assert (await ask("GET", f"{BASE}/f/download"))[1] == data


async def test_a_web_page_of_another_site_cannot_create_a_function(ask):
    status, _ = await ask("POST", f"{BASE}/f", data=upload(), headers={"Origin": "http://evil.example"})
    assert status == 403
    assert await ask("GET", BASE) == (200, [])


async def test_functions_and_packages_survive_a_crash_and_an_upload_that_was_cut_off_is_removed(enabled):
    async with http(enabled) as ask:
        assert (await ask("POST", f"{BASE}/f", data=upload()))[0] == 204
        assert (await ask("POST", f"{BASE}/f/1/stop"))[0] == 204
    log = await enabled.store.open("functions/packages/999")
    log.append(b"half")
    await log.flush()
    await enabled.crash()
    async with http(enabled) as ask:
        assert await ask("GET", BASE) == (200, ["f"])
        assert await ask("GET", f"{BASE}/f/download") == (200, b"class F: pass")
        _, told = await ask("GET", f"{WORKER_API}/assignments?worker=w")
        assert told["functions"][0]["record"]["stopped"] == [1]
    assert len(enabled.store.names("functions/")) == 1


async def test_a_worker_hears_of_changes_and_its_reports_are_the_status(ask):
    _, first = await ask("GET", f"{WORKER_API}/assignments?worker=w")
    waiting = asyncio.create_task(ask("GET", f"{WORKER_API}/assignments?worker=w&after={first['revision']}"))
    await ask("POST", f"{BASE}/f", data=upload())
    _, told = await waiting
    assert [each["name"] for each in told["functions"]] == ["f"]
    number = told["functions"][0]["record"]["package"]["number"]
    assert await ask("GET", f"{WORKER_API}/packages/{number}") == (200, b"class F: pass")
    _, status = await ask("GET", f"{BASE}/f/status")
    assert (status["numInstances"], status["numRunning"]) == (2, 0)
    reports = [
        {
            "instanceId": index,
            "status": {"running": True, "numReceived": 3},
            "metrics": {"receivedTotal": 3 + index, "avgProcessLatency": 2.0, "lastInvocation": index},
        }
        for index in range(2)
    ]
    assert (await ask("PUT", f"{WORKER_API}/reports/public/default/f?worker=w", data=json.dumps(reports)))[0] == 204
    _, status = await ask("GET", f"{BASE}/f/status")
    assert (status["numRunning"], status["instances"][1]["status"]["numReceived"]) == (2, 3)
    assert (await ask("GET", f"{BASE}/f/1/status"))[1]["running"] is True
    _, stats = await ask("GET", f"{BASE}/f/stats")
    assert (stats["receivedTotal"], stats["avgProcessLatency"], stats["lastInvocation"]) == (7, 2.0, 1)
    assert (await ask("GET", f"{BASE}/f/0/stats"))[1]["receivedTotal"] == 3
    await ask("POST", f"{BASE}/f/0/stop")
    assert (await ask("GET", f"{BASE}/f/status"))[1]["numRunning"] == 1
    await ask("POST", f"{BASE}/f/stop")
    assert (await ask("GET", f"{BASE}/f/status"))[1]["numRunning"] == 0


async def test_an_older_worker_is_told_that_another_one_has_taken_over(ask):
    _, first = await ask("GET", f"{WORKER_API}/assignments?worker=old")
    assert (await ask("GET", f"{WORKER_API}/assignments?worker=new"))[0] == 200
    assert (await ask("GET", f"{WORKER_API}/assignments?worker=old&after={first['revision']}"))[0] == 409
    assert (await ask("PUT", f"{WORKER_API}/reports/public/default/f?worker=old", data="[]"))[0] == 409


async def test_a_worker_finds_its_broker_again_after_a_restart(enabled):
    async with http(enabled) as ask:
        _, first = await ask("GET", f"{WORKER_API}/assignments?worker=w")
    await enabled.restart()
    async with http(enabled) as ask:
        status, told = await ask("GET", f"{WORKER_API}/assignments?worker=w&after={first['revision']}")
        assert status == 200
        assert told["revision"] != first["revision"]


@pytest.mark.parametrize("body", ["{}", "[1]", '[{"instanceId": "0", "status": {}, "metrics": {}}]', "no"])
async def test_a_report_of_another_shape_is_refused(ask, body):
    await ask("GET", f"{WORKER_API}/assignments?worker=w")
    assert (await ask("PUT", f"{WORKER_API}/reports/public/default/f?worker=w", data=body))[0] == 400


async def test_instances_are_started_stopped_and_restarted_alone(ask):
    async def record():
        return (await ask("GET", f"{WORKER_API}/assignments?worker=w"))[1]["functions"][0]["record"]

    await ask("POST", f"{BASE}/f", data=upload())
    for path, running, stopped in (
        ("/stop", False, []),
        ("/1/start", True, [0]),
        ("/start", True, []),
        ("/0/stop", True, [0]),
        ("/restart", True, []),
    ):
        assert (await ask("POST", f"{BASE}/f{path}"))[0] == 204
        found = await record()
        assert (found["running"], found["stopped"]) == (running, stopped), path
    await ask("POST", f"{BASE}/f/1/restart")
    assert (await record())["restarts"] == {"all": 1, "1": 1}
    assert (await ask("POST", f"{BASE}/f/2/start"))[0] == 400
