"""Several instances over HTTP: whichever is asked knows what each of them leads, and says whom it could not ask."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer
from check_client import CheckClient
from command_line import pulsar_txn
from coordinator_bench import ScriptedCluster
from credentials import TOKENS, Papers, Speaker, token
from leased_store import LeasedStore, SharedLogs
from raw_client import FULL

from pulsar_txn.broker.admin.server import HttpServer
from pulsar_txn.broker.serving import AsyncioRuntime
from pulsar_txn.tc_service.admin import instances
from pulsar_txn.tc_service.admin.routes import make_app
from pulsar_txn.tc_service.config import CoordinatorConfig
from pulsar_txn.tc_service.server.clusters import Clusters, agree_on_count
from pulsar_txn.tc_service.server.leaders import Address
from pulsar_txn.tc_service.server.service import CoordinatorService
from pulsar_txn.wire.ids import TxnId

BASE = "/admin/v3/transactions"
COORDINATORS = 4


class Instance:
    """One that listens over HTTP; its clients are connected straight to it."""

    def __init__(self, logs: SharedLogs, config: CoordinatorConfig) -> None:
        self.store = LeasedStore(logs)
        self.cluster = ScriptedCluster()
        self.service = CoordinatorService(config, self.store, Clusters({"east": self.cluster}), AsyncioRuntime())
        self.server = TestServer(make_app(self.service))
        self.http: TestClient[Any, Any] = TestClient(self.server)
        self.url = ""

    async def start(self) -> None:
        await self.http.start_server()
        count = await agree_on_count(self.store, COORDINATORS)
        self.service.service_url = f"pulsar://instance-{self.server.port}:1"
        self.url = str(self.server.make_url("")).rstrip("/")
        await self.service.start(count, web=Address(self.url))

    @property
    def leads(self) -> list[int]:
        return self.service.coordinators.here

    async def ask(self, path: str, method: str = "GET", role: str | None = None) -> tuple[int, Any, list[str]]:
        """Status, body, and the instances that did not answer it."""
        headers: Mapping[str, str] = {} if role is None else {"Authorization": f"Bearer {token(role)}"}
        async with self.http.request(method, BASE + path, headers=headers) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None, answer.headers.getall("Pulsar-Txn-Unanswered", [])

    async def begin(self, tc_id: int, role: str = "") -> TxnId:
        client = Speaker(self.service, token(role) if role else b"")
        begun = await client.request("newTxn", tc_id=tc_id, txn_ttl_millis=60_000)
        txn = TxnId(begun.txnid_most_bits, begun.txnid_least_bits)
        await client.add_topics(txn, FULL + "out")
        return txn


async def until(condition: Any) -> None:
    async with asyncio.timeout(40):
        while not condition():  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.01)


@pytest.fixture
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Instance, Instance]]:
    """The first leads coordinators 0 and 2, the second 1 and 3. The test's parameter: more keys."""
    logs, config = SharedLogs(), CoordinatorConfig(**getattr(request, "param", {}))
    first, second = Instance(logs, config), Instance(logs, config)
    await first.start()
    await until(lambda: len(first.leads) == COORDINATORS)
    await second.start()
    for tc_id in (1, 3):
        first.store.lose(f"_{tc_id}")
    await until(lambda: (first.leads, second.leads) == ([0, 2], [1, 3]))
    yield first, second
    for each in (first, second):
        await each.service.close()
        await each.http.close()


def named(txn: TxnId) -> str:
    return f"({txn.most},{txn.least})"


def path(txn: TxnId) -> str:
    return f"{txn.most}/{txn.least}"


async def begin_everywhere(pair: tuple[Instance, Instance], role: str = "") -> list[TxnId]:
    return [await pair[tc_id % 2].begin(tc_id, role) for tc_id in range(COORDINATORS) for _ in range(2)]


async def test_whichever_is_asked_lists_the_transactions_of_all_in_one_order(pair: tuple[Instance, Instance]) -> None:
    txns = await begin_everywhere(pair)
    names = [named(each) for each in txns]
    for each in pair:
        status, found, missing = await each.ask("/slowTransactions/0")
        assert (status, list(found), missing) == (200, names, [])
        assert list((await each.ask("/slowTransactions/0?limit=3"))[1]) == names[:3]
        assert list((await each.ask(f"/slowTransactions/0?limit=3&after={names[2]}"))[1]) == names[3:6]
        assert list((await each.ask(f"/slowTransactions/0?after={names[-2]}"))[1]) == names[-1:]
        for tc_id in range(COORDINATORS):
            assert list((await each.ask(f"/slowTransactions/0?coordinatorId={tc_id}"))[1]) == names[2 * tc_id : 2 * tc_id + 2]
        assert (await each.ask("/slowTransactions/60000"))[1] == {}
        assert (await each.ask("/slowTransactions/0?after=x"))[0] == 400


async def test_a_list_is_read_in_pages_and_misses_nothing(
    pair: tuple[Instance, Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "_PAGE", 1)
    names = [named(each) for each in await begin_everywhere(pair)]
    for each in pair:
        assert list((await each.ask("/slowTransactions/0"))[1]) == names


async def test_one_is_shown_told_and_aborted_at_whichever(pair: tuple[Instance, Instance]) -> None:
    first, second = pair
    txn = await second.begin(3)
    assert (await first.ask(f"/transactionMetadata/{path(txn)}"))[1]["status"] == "OPEN"
    assert (await first.ask(f"/timeline/{path(txn)}"))[1]["state"] == "OPEN"
    assert (await first.ask(f"/abortTransaction/{path(txn)}", "POST"))[0] == 204
    assert [each.action.name for each in second.cluster.told] == ["ABORT"]
    assert first.cluster.told == []
    assert (await first.ask(f"/timeline/{path(txn)}"))[1]["state"] == "ABORTED"
    status, body, _ = await first.ask(f"/transactionMetadata/{path(txn)}")
    assert (status, "is not open" in body["reason"]) == (404, True)


async def test_stats_are_those_of_all(pair: tuple[Instance, Instance]) -> None:
    await begin_everywhere(pair)
    for each in pair:
        _, stats, missing = await each.ask("/coordinatorStats")
        assert ({name: (one["state"], one["ongoingTxnSize"]) for name, one in stats.items()}, missing) == (
            {str(tc_id): ("Ready", 2) for tc_id in range(COORDINATORS)},
            [],
        )
        assert (await each.ask("/coordinatorStats?coordinatorId=3"))[1]["ongoingTxnSize"] == 2


async def test_clients_are_those_of_all(pair: tuple[Instance, Instance]) -> None:
    for tc_id, each in enumerate(pair):
        client = Speaker(each.service)
        await client.request("tcClientConnectRequest", tc_id=tc_id, incarnation=f"life-{tc_id}")
        await client.new_txn(tc_id)
    for each in pair:
        _, found, missing = await each.ask("/clients")
        assert ({one["incarnation"]: one["open"] for one in found}, missing) == ({"life-0": 1, "life-1": 1}, [])


async def test_an_instance_that_does_not_answer_is_named_and_the_rest_is_there(pair: tuple[Instance, Instance]) -> None:
    first, second = pair
    txns = await begin_everywhere(pair)
    await second.http.close()
    status, found, missing = await first.ask("/slowTransactions/0")
    assert (status, list(found)) == (200, [named(each) for each in (*txns[0:2], *txns[4:6])])
    assert len(missing) == 1
    assert missing[0].startswith(f"{second.url} does not answer")
    status, body, _ = await first.ask(f"/transactionMetadata/{path(txns[-1])}")
    assert (status, second.url in body["reason"]) == (503, True)
    done = await asyncio.to_thread(pulsar_txn, "transactions", "--admin-url", first.url, "list")
    assert (done.returncode, len(done.stdout.splitlines())) == (69, 4)
    assert f"the list is not whole: {second.url} does not answer" in done.stderr


async def test_an_instance_without_http_is_named_by_what_it_leads(pair: tuple[Instance, Instance]) -> None:
    first, second = pair
    txn = await second.begin(1)
    assert second.store.advertised.endswith(f" web={second.url}")
    for each in first.store.cluster.logs.values():  # what the second one said of itself
        if (each.claim or "").startswith(second.service.service_url):
            each.claim = second.service.service_url
    _, found, missing = await first.ask("/slowTransactions/0")
    assert (found, missing) == ({}, ["no HTTP is known of an instance that leads coordinator 1, coordinator 3"])
    status, body, _ = await first.ask(f"/abortTransaction/{path(txn)}", "POST")
    assert (status, "no HTTP of it is known" in body["reason"]) == (503, True)


@pytest.mark.parametrize("pair", [TOKENS | {"super_user_roles": "root"}], indirect=True)
async def test_a_role_sees_and_aborts_its_own_at_other_instances_too(pair: tuple[Instance, Instance]) -> None:
    first, second = pair
    txn = await second.begin(3, "ann")
    for role, names in (("ann", [named(txn)]), ("bob", []), ("root", [named(txn)])):
        _, found, missing = await first.ask("/slowTransactions/0", role=role)
        assert (list(found), missing) == (names, [])
    for what in ("transactionMetadata", "timeline"):
        assert [(await first.ask(f"/{what}/{path(txn)}", role=role))[0] for role in ("ann", "bob", "root")] == [200, 404, 200]
    assert [(await first.ask(f"/abortTransaction/{path(txn)}", "POST", role))[0] for role in (None, "bob")] == [401, 404]
    assert second.cluster.told == []
    assert (await first.ask(f"/abortTransaction/{path(txn)}", "POST", "ann"))[0] == 204
    assert len(second.cluster.told) == 1


async def test_a_token_that_came_over_tls_does_not_leave_without_it(tmp_path: Path) -> None:
    """The other instance has HTTP without TLS, then with it."""
    papers = Papers(tmp_path)
    keys = TOKENS | papers.keys | {"super_user_roles": "root", "broker_client_trust_certs_file_path": str(papers.trust)}
    logs, config = SharedLogs(), CoordinatorConfig(**keys)
    first, second = Instance(logs, config), Instance(logs, config)
    servers = [HttpServer(each.service, AsyncioRuntime(), make_app) for each in (first, second)]
    for server in servers:
        await server.start("127.0.0.1", 0, 0)
    await first.service.start(await agree_on_count(first.store, 2), web=Address(servers[0].url))
    await until(lambda: len(first.leads) == 2)
    await second.service.start(2, web=Address(servers[1].url))
    asked = {"url": servers[1].url_tls + BASE + "/slowTransactions/0", "trust": papers.trust}
    assert await https(**asked) == [
        f"{servers[0].url} has no TLS, and the token came with it; set webServicePortTls there, or ask it directly"
    ]
    for each in logs.logs.values():
        if each.claim is not None:
            each.claim = f"{first.service.service_url} web={servers[0].url} web={servers[0].url_tls}"
    assert await https(**asked) == []
    for server, each in zip(servers, (first, second), strict=True):
        await server.close()
        await each.service.close()


async def https(url: str, trust: Path) -> list[str]:
    headers = {"Authorization": f"Bearer {token('root')}"}
    async with (
        ClientSession() as session,
        session.get(url, headers=headers, ssl=ssl.create_default_context(cafile=trust)) as answer,
    ):
        assert (answer.status, await answer.json()) == (200, {})
        return answer.headers.getall("Pulsar-Txn-Unanswered", [])


@pytest.mark.parametrize(
    "address",
    [
        Address("pulsar://a:1"),
        Address("pulsar://a:1", "pulsar+ssl://a:2", Address("pulsar://a:3"), Address("http://a:4", "https://a:5")),
        Address("", "pulsar+ssl://a:2", None, Address("", "https://a:5")),
        Address("pulsar://a:1", "", Address("", "pulsar+ssl://a:3"), None),
    ],
)
def test_what_an_instance_says_of_itself_is_read_as_it_was_meant(address: Address) -> None:
    assert Address.parse(address.advertised) == address


async def test_prepared_ones_and_transactional_ids_are_known_to_whichever_is_asked(
    pair: tuple[Instance, Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "_PAGE", 1)
    await begin_everywhere(pair)
    prepared = []
    for tc_id in range(COORDINATORS):
        one = CheckClient(pair[tc_id % 2].service)  # type: ignore[arg-type]  # it wants connections, and nothing else of a broker
        prepared.append(await one.begin(None, tc_id))
        await one.prepare(prepared[-1])
    for each in pair:
        status, found, missing = await each.ask("/slowTransactions/0?prepared=true")
        assert (status, list(found), missing) == (200, [named(txn) for txn in prepared], [])
    first, second = pair
    assert (await first.ask(f"/commitTransaction/{path(prepared[1])}", "POST"))[0] == 204
    assert (await second.ask(f"/abortTransaction/{path(prepared[0])}", "POST"))[0] == 204
    assert list((await first.ask("/slowTransactions/0?prepared=true"))[1]) == [named(txn) for txn in prepared[2:]]
    assert [effect.action.name for effect in second.cluster.told] == []
    epochs = set()
    for number in range(8):
        client = Speaker(first.service)
        answer = await client.request("tcClientConnectRequest", tc_id=0, transactional_id=f"app-{number}")
        home = pair[answer.tc_id % 2]
        again = Speaker(home.service)
        fields = {"transactional_id": f"app-{number}", "transactional_epoch": answer.transactional_epoch}
        await again.request("tcClientConnectRequest", tc_id=answer.tc_id, **fields)
        for each in pair:
            (found,) = (await each.ask(f"/transactionalIds/app-{number}"))[1]
            assert (found["epoch"], found["coordinator"]) == (answer.transactional_epoch, answer.tc_id)
            epochs.add((number, found["epoch"]))
    assert len(epochs) == 8
    assert len((await second.ask("/transactionalIds"))[1]) == 8
