"""What operators see of prepared transactions, checks and transactional ids, and what they may do about them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from check_client import COMMIT, KNOWS_CHECKS, UNKNOWN, CheckClient, txn_of
from click.testing import CliRunner
from credentials import TOKENS, Speaker, token
from manual_runtime import ManualRuntime
from raw_client import FULL

from pulsar_txn.broker.admin.routes import make_app
from pulsar_txn.broker.cli import transactions
from pulsar_txn.broker.cli.exits import Ending
from pulsar_txn.wire.ids import TxnId, TxnStatus

BASE = "/admin/v3/transactions"
TOPIC = FULL + "orders"


class GuardedClient(Speaker, CheckClient):
    """With credentials."""


@pytest.fixture
async def bench(benches: Any) -> Any:
    bench = benches()
    bench.runtime = ManualRuntime()
    return await bench.start()


def status(bench: Any, txn: TxnId) -> TxnStatus | None:
    return bench.broker.coordinators.ready(txn.most).coordinator.status(txn)  # type: ignore[no-any-return]


@pytest.fixture
async def url(bench: Any) -> AsyncIterator[str]:
    async with TestServer(make_app(bench.broker)) as server:
        yield str(server.make_url("")).rstrip("/")


async def ran(url: str, *arguments: str, says: str = "") -> tuple[int, str]:
    """Exit code and output of `pulsar-txn transactions …`; `says` is typed."""

    def run() -> tuple[int, str]:
        result = CliRunner().invoke(transactions.command, ["--admin-url", url, *arguments], input=says)
        if isinstance(result.exception, Ending):
            return result.exception.code, result.exception.sentence
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    return await asyncio.to_thread(run)


async def test_prepared_ones_are_listed_shown_and_ended_by_an_operator_who_is_asked_first(bench: Any, url: str) -> None:
    one = CheckClient(bench.broker)
    await one.join()
    left_open, first, second = await one.begin(), await one.begin(), await one.begin(None)
    await one.add_topics(first, TOPIC)
    for txn in (first, second):
        await one.prepare(txn)
    await bench.runtime.advance(40)
    await one.begins(first)
    one.drop()
    code, text = await ran(url, "list", "--prepared")
    lines = text.splitlines()
    assert code == 0
    assert [line.split("\t")[0] for line in lines] == [f"({txn.most},{txn.least})" for txn in (first, second)]
    assert "waits for its end" in lines[0]
    assert "check group g, 1 questions begun" in lines[0]
    assert "check group" not in lines[1]
    assert len((await ran(url, "list"))[1].splitlines()) == 3
    shown = json.loads((await ran(url, "show", f"{first.most}:{first.least}"))[1])
    assert (shown["status"], shown["prepared"], shown["checkGroup"]) == ("PREPARED", True, "g")
    assert shown["checkCount"] > 0
    assert shown["modifiedAt"] >= shown["openTimestamp"]
    assert list(shown["producedPartitions"]) == [TOPIC]
    code, text = await ran(url, "commit", f"{first.most}:{first.least}", says="n\n")
    assert (code, status(bench, first)) == (1, TxnStatus.PREPARED)
    assert "is left as it is" in text
    code, text = await ran(url, "commit", f"{first.most}:{first.least}", says="y\n")
    assert code == 0
    assert f"({first.most},{first.least}) is committed" in text
    assert (await ran(url, "abort", "--yes", f"{second.most}:{second.least}"))[0] == 0
    assert (status(bench, first), status(bench, second)) == (TxnStatus.COMMITTED, TxnStatus.ABORTED)
    code, text = await ran(url, "commit", "--yes", f"{left_open.most}:{left_open.least}")
    assert (code, status(bench, left_open)) == (1, TxnStatus.OPEN)
    assert "only prepared and parked ones are committed" in text
    assert (await ran(url, "commit", "--yes", "0:4711"))[0] == 1


@pytest.mark.seed_rows("B18", "E07", "E08")
@pytest.mark.parametrize("crashes", [False, True], ids=["live", "recovered"])
async def test_a_transactional_id_is_described_with_its_epoch_and_what_its_instances_have_open(
    bench: Any, admin: Any, crashes: bool
) -> None:
    name = "orders/7 é"
    one, two = CheckClient(bench.broker), CheckClient(bench.broker)
    answer = await one.request("tcClientConnectRequest", tc_id=0, transactional_id=name)
    tc_id = answer.tc_id
    prepared = await one.begin(None, tc_id)
    await one.prepare(prepared)
    epoch = (await two.request("tcClientConnectRequest", tc_id=0, transactional_id=name)).transactional_epoch
    await bench.runtime.advance(1)
    txn = await two.begin(None, tc_id, timeout_ms=50_000)
    await two.add_topics(txn, TOPIC)
    if crashes:
        await bench.crash()
        await bench.broker.coordinators.wait_ready()
    async with TestServer(make_app(bench.broker)) as server:
        url = str(server.make_url("")).rstrip("/")
        code, text = await ran(url, "describe", name)
        assert code == 0
        (found,) = json.loads(text)
        assert (found["transactionalId"], found["epoch"], found["coordinator"]) == (name, epoch, tc_id)
        assert found["lastUsedAt"] > 0
        first, second = found["transactions"]
        assert (first["txnId"], first["status"], first["epoch"]) == (f"({tc_id},{prepared.least})", "PREPARED", epoch - 1)
        assert (second["status"], second["epoch"], second["timeoutAt"]) == ("OPEN", epoch, 50_000)
        assert list(second["producedPartitions"]) == [TOPIC]
        assert second["modifiedAt"] >= second["openTimestamp"] > first["openTimestamp"]
        code, text = await ran(url, "describe", "nobody")
        assert code == 1
        assert "nothing is known of transactional id 'nobody'" in text


async def test_ids_are_listed_and_a_role_sees_its_own(benches: Any) -> None:
    bench = await benches(**TOKENS, super_user_roles="root").start()
    for role in ("ann", "bob"):
        one = GuardedClient(bench.broker, token(role), feature_flags=KNOWS_CHECKS)
        await one.request("tcClientConnectRequest", tc_id=0, transactional_id="app")
    async with TestClient(TestServer(make_app(bench.broker))) as http:

        async def get(path: str, role: str) -> Any:
            answer = await http.get(BASE + path, headers={"Authorization": f"Bearer {token(role)}"})
            return await answer.json()

        assert {each["owner"] for each in await get("/transactionalIds", "root")} == {"ann", "bob"}
        assert len(await get("/transactionalIds?limit=1", "root")) == 1
        assert [each["owner"] for each in await get("/transactionalIds", "bob")] == ["bob"]
        assert [each["owner"] for each in await get("/transactionalIds/app", "ann")] == ["ann"]
        assert await get("/transactionalIds/app?owner=ann", "bob") == []
        assert [each["owner"] for each in await get("/transactionalIds/app?owner=ann", "root")] == ["ann"]
        assert await get("/transactionalIds/app", "root") == []


async def test_a_role_commits_over_http_what_it_prepared_and_nothing_else(benches: Any) -> None:
    bench = await benches(**TOKENS, super_user_roles="root").start()
    ann = GuardedClient(bench.broker, token("ann"), feature_flags=KNOWS_CHECKS)
    txn = await ann.begin(None)
    await ann.prepare(txn)
    async with TestClient(TestServer(make_app(bench.broker))) as http:
        path = f"{BASE}/commitTransaction/{txn.most}/{txn.least}"
        codes = [(await http.post(path, headers={"Authorization": f"Bearer {token(role)}"})).status for role in ("bob", "ann")]
    assert codes == [404, 204]
    assert status(bench, txn) is TxnStatus.COMMITTED


async def test_metrics_count_questions_answers_and_what_waits(bench: Any, admin: Any) -> None:
    one = CheckClient(bench.broker)
    await one.join()
    txns = [await one.begin() for _ in range(3)]
    await one.prepare(await one.begin(None))
    await bench.runtime.advance(7)
    await one.says(txns[0], COMMIT)
    one.say(TxnId(0, 4711), COMMIT)
    for _ in range(25):
        for question in one.take():
            if txn_of(question) != txns[0]:
                await one.says(txn_of(question), UNKNOWN)
        await bench.runtime.advance(30.1)
    _, text = await admin("GET", "/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")

    def of(name: str, **labels: str) -> float:
        inside = ",".join(f'{key}="{value}"' for key, value in sorted({"cluster": "standalone", **labels}.items()))
        return float(values[f"pulsar_txn_coordinator_{name}{{{inside}}}"])

    assert of("checks_asked_total", coordinator_id="0") == 1 + 2 * 15
    assert of("checks_begun_total", coordinator_id="0") == 1 + 2 * 15
    assert of("checks_unanswered_total", coordinator_id="0") == 2
    assert of("checks_decided_total", coordinator_id="0", outcome="parked", cause="unanswered") == 2
    assert of("prepared", coordinator_id="0") == 1
    assert of("prepared_oldest_seconds", coordinator_id="0") == pytest.approx(760, abs=2)
    assert of("parked", coordinator_id="0") == 2
    assert 250 < of("parked_oldest_seconds", coordinator_id="0") < 350
    assert [of("checks_answered_total", outcome=each) for each in ("commit", "abort", "unknown", "refused")] == [1, 0, 30, 1]
    assert of("check_group_members") == 1
    assert float(values['pulsar_txn_timeout_total{cluster="standalone",coordinator_id="0"}']) == 0


async def parked(bench: Any, one: CheckClient, count: int) -> list[TxnId]:
    """Transactions of whose outcome nobody knew."""
    txns = [await one.begin() for _ in range(count)]
    await one.join()
    for _ in range(17):
        await bench.runtime.advance(30.1)
        for question in one.take():
            await one.says(txn_of(question), UNKNOWN)
    assert all(machine_of(bench).transaction(txn.least).parked_ms for txn in txns)
    return txns


def machine_of(bench: Any) -> Any:
    return bench.broker.coordinators.ready(0).coordinator


async def test_parked_ones_are_listed_committed_aborted_and_resumed_by_an_operator(bench: Any, admin: Any, url: str) -> None:
    one = CheckClient(bench.broker)
    committed, aborted, resumed = await parked(bench, one, 3)
    still_open = await one.begin(None)
    _, found = await admin("GET", f"{BASE}/slowTransactions/0?parked=true")
    assert list(found) == [f"({each.most},{each.least})" for each in (committed, aborted, resumed)]
    shown = found[f"({committed.most},{committed.least})"]
    assert (shown["status"], shown["parked"], shown["checkCount"]) == ("OPEN", True, 15)
    assert shown["parkedAt"] > shown["openTimestamp"]
    lines = (await ran(url, "list", "--parked"))[1].splitlines()
    assert len(lines) == 3
    assert "waits for an operator" in lines[0]
    for words, txn in ((("commit", "--yes"), committed), (("abort", "--yes"), aborted), (("resume",), resumed)):
        code, text = await ran(url, *words, f"{txn.most}:{txn.least}")
        assert (code, f"({txn.most},{txn.least}) is {words[0].rstrip('e')}" in text) == (0, True)
    assert (status(bench, committed), status(bench, aborted)) == (TxnStatus.COMMITTED, TxnStatus.ABORTED)
    await bench.runtime.advance(1)
    (question,) = one.take()
    assert (txn_of(question), question.check_count) == (resumed, 1)
    assert [(told[0], told[1]) for told in one.decided[-2:]] == [(committed, 0), (aborted, 1)], "what the operator decided"
    for txn in (resumed, still_open):
        code, body = await admin("POST", f"{BASE}/resumeTransaction/{txn.most}/{txn.least}")
        assert code == 409
        assert "is not parked" in body["reason"]
    code, _ = await admin("POST", f"{BASE}/resumeTransaction/0/4711")
    assert code == 404
    assert (await ran(url, "list", "--parked"))[1].strip() == "no transaction is parked"
    assert (await ran(url, "resume", "0:4711"))[0] == 1


async def test_one_that_waits_among_very_many_that_have_ended_is_listed_in_its_place(bench: Any, admin: Any) -> None:
    one = CheckClient(bench.broker)
    first = await one.begin(None)
    await one.prepare(first)
    for _ in range(100):
        await one.end(await one.begin(None))
    last = await one.begin(None)
    expected = [f"({each.most},{each.least})" for each in (first, last)]
    assert last.least == 101
    _, found = await admin("GET", f"{BASE}/slowTransactions/0")
    assert list(found) == expected
    _, found = await admin("GET", f"{BASE}/slowTransactions/0?after={expected[0]}")
    assert list(found) == expected[1:]
