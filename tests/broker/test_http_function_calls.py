"""What users ask of a function that runs goes to the functions worker, and its answers come back; the worker is the test."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from pulsar_txn.broker.admin import function_questions
from pulsar_txn.broker.admin.routes import make_app

F = "/admin/v3/functions/public/default/f"
WORKER_API = "/admin/pulsar-txn/v1/functions"
CONFIG = {"className": "f.F", "inputs": ["in"], "output": "out"}
REPORT = [{"instanceId": 0, "status": {"running": True}, "metrics": {}}]


class Asking:
    """HTTP of a broker, and the worker's half of the questions."""

    def __init__(self, client):
        self._client = client

    async def __call__(self, method, path, **options):
        async with self._client.request(method, path, **options) as answer:
            data = await answer.read()
            return answer.status, json.loads(data) if answer.content_type == "application/json" else data

    async def create(self, **config):
        form = aiohttp.FormData()
        form.add_field("data", b"class F: pass", filename="f.py")
        form.add_field("functionConfig", json.dumps(CONFIG | config))
        assert await self("POST", F, data=form) == (204, b"")

    async def be_worker(self):
        assert (await self("GET", f"{WORKER_API}/assignments?worker=w"))[0] == 200
        assert (await self("PUT", f"{WORKER_API}/reports/public/default/f?worker=w", data=json.dumps(REPORT)))[0] == 204

    async def answered(self, asked, **answer):
        """What a user's request gets when the worker answers so; and the question."""
        asking = asyncio.ensure_future(asked)
        _, (question,) = await self("GET", f"{WORKER_API}/questions?worker=w")
        assert (await self("PUT", f"{WORKER_API}/answers/{question['number']}?worker=w", data=json.dumps(answer)))[0] == 204
        return await asking, question


@asynccontextmanager
async def http(bench):
    async with TestClient(TestServer(make_app(bench.broker))) as client:
        yield Asking(client)


@pytest.fixture
async def ask(benches):
    async with http(await benches(functions_worker_enabled=True).start()) as asking:
        yield asking


def form(**parts):
    made = aiohttp.FormData()
    for name, value in parts.items():
        made.add_field(name, value, filename="x" if name == "dataStream" else None, content_type="text/plain")
    return made


async def test_a_triggered_message_is_the_workers_question_and_its_answer_the_output(ask):
    await ask.create()
    await ask.be_worker()
    value = base64.b64encode(b"\xff!").decode()
    answer, question = await ask.answered(ask("POST", f"{F}/trigger", data=form(data="a", topic="in")), value=value)
    assert answer == (200, b"\xff!")
    assert (question["verb"], question["fqfn"], question["topic"]) == ("trigger", "public/default/f", "in")
    assert base64.b64decode(question["data"]) == b"a"
    assert question["config"]["output"] == "out"
    data = bytes(range(256)) * 300
    answer, question = await ask.answered(ask("POST", f"{F}/trigger", data=form(dataStream=data)), value=None)
    assert answer == (204, b"")
    assert (base64.b64decode(question["data"]), question["topic"]) == (data, None)


async def test_a_refusal_of_the_worker_keeps_its_status_and_its_sentence(ask):
    await ask.create()
    await ask.be_worker()
    for status, expected in ((408, 408), (200, 500), ("x", 500), (None, 500)):
        answer, _ = await ask.answered(ask("POST", f"{F}/trigger", data=form(data="a")), status=status, reason="no output")
        assert (answer[0], answer[1]["reason"].endswith(": no output")) == (expected, True)


async def test_a_function_that_does_not_run_is_not_triggered(ask):
    assert (await ask("POST", f"{F}/trigger", data=form(data="a")))[0] == 404
    await ask.create()
    status, answer = await ask("POST", f"{F}/trigger", data=form(data="a"))
    assert (status, "no instance of public/default/f runs" in answer["reason"]) == (409, True)
    await ask.be_worker()
    assert (await ask("POST", f"{F}/stop"))[0] == 204
    assert (await ask("POST", f"{F}/trigger", data=form(data="a")))[0] == 409


async def test_a_key_of_the_state_is_asked_for_and_put(ask):
    await ask.create()
    await ask.be_worker()
    found = {"key": "a/b %", "numberValue": 2, "version": 7}
    answer, question = await ask.answered(ask("GET", f"{F}/state/a%2Fb%20%25"), value=found)
    assert (answer, question["verb"], question["key"]) == ((200, found), "querystate", "a/b %")
    state = {"key": "k", "stringValue": "v"}
    answer, question = await ask.answered(ask("POST", f"{F}/state/k", data=form(state=json.dumps(state))), value=None)
    assert (answer, question["verb"], question["state"]) == ((204, b""), "putstate", state)


@pytest.mark.parametrize(
    ("path", "data", "status", "said"),
    [
        ("trigger", form(topic="in"), 400, "data or dataStream is missing"),
        ("trigger", b"a", 400, "multipart/form-data"),
        ("state/k", form(state="{"), 400, "JSON object"),
        ("state/k", form(state="[" * 100_000), 400, "JSON object"),
        ("state/k", form(state="[]"), 400, "JSON object"),
        ("state/k", form(), 400, "multipart"),
        ("state/k", form(state='{"key": "other", "stringValue": "v"}'), 400, "not the one of the path"),
        ("trigger", form(data="x" * (6 << 20)), 413, ""),
    ],
    ids=range(8),
)
async def test_what_is_no_call_is_refused_and_never_asked(ask, path, data, status, said):
    await ask.create()
    await ask.be_worker()
    found = await ask("POST", f"{F}/{path}", data=data)
    assert (found[0], said in found[1]["reason"]) == (status, True)


async def test_without_a_worker_a_call_is_refused_at_once(ask):
    await ask.create()
    status, answer = await ask("GET", f"{F}/state/k")
    assert (status, "no functions worker is connected" in answer["reason"]) == (503, True)


async def test_a_question_that_nobody_answers_ends_with_a_sentence_and_is_forgotten(ask, monkeypatch):
    monkeypatch.setattr(function_questions, "_ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(function_questions, "WAIT_SECONDS", 0.01)
    await ask.create()
    await ask.be_worker()
    status, answer = await ask("GET", f"{F}/state/k")
    assert (status, "did not answer" in answer["reason"]) == (504, True)
    assert await ask("GET", f"{WORKER_API}/questions?worker=w") == (200, [])
    assert await ask("PUT", f"{WORKER_API}/answers/1?worker=w", data='{"value": 1}') == (204, b"")


async def test_a_question_is_handed_once_and_answers_come_in_any_order(ask):
    await ask.create()
    await ask.be_worker()
    asking = [asyncio.ensure_future(ask("GET", f"{F}/state/a"))]
    _, (first,) = await ask("GET", f"{WORKER_API}/questions?worker=w")
    asking.append(asyncio.ensure_future(ask("GET", f"{F}/state/b")))
    _, (second,) = await ask("GET", f"{WORKER_API}/questions?worker=w")
    assert (first["key"], second["key"]) == ("a", "b")
    for question in (second, first):
        value = json.dumps({"value": question["key"]})
        assert (await ask("PUT", f"{WORKER_API}/answers/{question['number']}?worker=w", data=value))[0] == 204
    assert [await each for each in asking] == [(200, "a"), (200, "b")]


async def test_another_worker_gets_no_questions_and_gives_no_answers(ask):
    await ask.be_worker()
    assert (await ask("GET", f"{WORKER_API}/questions?worker=other"))[0] == 409
    assert (await ask("PUT", f"{WORKER_API}/answers/1?worker=other", data="{}"))[0] == 409
    assert (await ask("PUT", f"{WORKER_API}/answers/1?worker=w", data="[]"))[0] == 400


async def test_a_worker_of_a_broker_that_was_just_started_is_not_told_that_another_one_took_over(ask):
    assert (await ask("PUT", f"{WORKER_API}/reports/public/default/f?worker=w", data=json.dumps(REPORT)))[0] == 204


async def test_a_function_is_deleted_after_its_subscription_when_that_was_asked_for(ask):
    await ask.create(cleanupSubscription=True)
    await ask.be_worker()
    deleting = asyncio.ensure_future(ask("DELETE", F))
    _, (question,) = await ask("GET", f"{WORKER_API}/questions?worker=w")
    assert question["verb"] == "unsubscribe"
    _, told = await ask("GET", f"{WORKER_API}/assignments?worker=w")
    assert told["functions"][0]["record"]["running"] is False
    await ask("PUT", f"{WORKER_API}/answers/{question['number']}?worker=w", data='{"value": null}')
    assert await deleting == (204, b"")
    assert (await ask("GET", F))[0] == 404


async def test_a_function_whose_subscription_cannot_be_removed_is_deleted_and_that_is_said(ask):
    await ask.create(cleanupSubscription=True)
    status, answer = await ask("DELETE", F)
    assert status == 500
    assert answer["reason"].startswith("Function public/default/f is deleted; its subscription stays: no functions worker")
    assert (await ask("GET", F))[0] == 404


async def test_verbs_that_mean_nothing_here_answer_with_a_sentence(ask):
    assert await ask("GET", "/admin/v3/functions/builtins") == (200, [])
    assert await ask("POST", "/admin/v3/functions/builtins/reload") == (204, b"")
    for method, path in (("POST", "upload"), ("GET", "download?path=a")):
        status, answer = await ask(method, f"/admin/v3/functions/{path}")
        assert (status, "functions create" in answer["reason"]) == (501, True)


async def test_a_package_of_the_brokers_machine_is_kept_as_an_uploaded_one(ask, tmp_path):
    (tmp_path / "f.py").write_bytes(b"class F: pass")
    made = form(functionConfig=json.dumps(CONFIG), url=(tmp_path / "f.py").as_uri())
    assert await ask("POST", F, data=made) == (204, b"")
    (tmp_path / "f.py").unlink()
    assert await ask("GET", f"{F}/download") == (200, b"class F: pass")
    assert (await ask("GET", F))[1]["py"] == "f.py"


async def test_the_last_minute_of_a_function_is_that_of_its_instances(ask):
    await ask.create(parallelism=2)
    await ask.be_worker()
    minutes = [{"receivedTotal": 2, "userExceptionsTotal": 1, "avgProcessLatency": 3.0}, {"receivedTotal": 4}]
    reports = [{"instanceId": n, "status": {}, "metrics": {"1min": each}} for n, each in enumerate(minutes)]
    await ask("PUT", f"{WORKER_API}/reports/public/default/f?worker=w", data=json.dumps(reports))
    found = (await ask("GET", f"{F}/stats"))[1]["1min"]
    assert (found["receivedTotal"], found["userExceptionsTotal"], found["avgProcessLatency"]) == (6, 1, 1.0)
