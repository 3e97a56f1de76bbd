"""Doctor and ends on clusters that are not as they should be: roles that may not, and coordinators that are missing."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from pathlib import Path

import jwt
import pytest
from click.testing import CliRunner
from late_writes import Zombie
from official_reading import read_officially
from stock_pulsar import StockPulsar

from pulsar_txn.broker.cli.group import group
from pulsar_txn.client import AsyncClient, TokenAuthentication
from pulsar_txn.client.errors import AuthorizationError, TransactionsDisabled
from pulsar_txn.client.inside import AsyncioRuntime, Settings
from pulsar_txn.tc_service.cluster.attempts import BrokerAttempts
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.tc_service.cluster.participants import ClusterRefused, verify_cluster
from pulsar_txn.wire.ids import TxnId

pytestmark = [pytest.mark.soak, pytest.mark.stock, pytest.mark.timeout(400)]

KEY = b"k" * 32
TOPIC = "persistent://public/default/t"


def token(name: str) -> str:
    return jwt.encode({"sub": name}, KEY, "HS256")


WITH_ROLES = {
    "authenticationEnabled": "true",
    "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
    "tokenSecretKey": f"data:;base64,{base64.b64encode(KEY).decode()}",
    "authorizationEnabled": "true",
    "anonymousUserRole": "anonymous",
    "superUserRoles": "admin,anonymous",
    "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "brokerClientAuthenticationParameters": f"token:{token('admin')}",
}


def ask(server: StockPulsar, method: str, path: str, body: object = None) -> None:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.admin_url + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30):
        pass


async def doctor(server: StockPulsar, *options: str) -> tuple[int, str]:
    place = ["doctor", "--cluster", server.service_url, "--admin-url", server.admin_url, "--older-than", "0"]
    done = await asyncio.to_thread(CliRunner().invoke, group, [*place, *options])
    return done.exit_code, done.output


async def test_only_a_superuser_ends_transactions_and_the_others_are_told_what_to_configure(tmp_path: Path) -> None:
    for name in ("admin", "app"):
        (tmp_path / name).write_text(token(name))
    server = await asyncio.to_thread(StockPulsar("4.2.4", conf=WITH_ROLES).start)
    brokers = {
        name: Brokers("east", server.service_url, Settings(authentication=TokenAuthentication(token(name))), AsyncioRuntime())
        for name in ("admin", "app")
    }
    try:
        await asyncio.to_thread(
            ask, server, "POST", "/admin/v2/namespaces/public/default/permissions/app", ["produce", "consume"]
        )
        await verify_cluster(brokers["admin"], BrokerAttempts(brokers["admin"]))
        with pytest.raises(ClusterRefused, match="superUserRoles"):
            await verify_cluster(brokers["app"], BrokerAttempts(brokers["app"]))
        async with AsyncClient(server.service_url, authentication=TokenAuthentication(token("app"))) as client:
            producer = await client.create_producer(TOPIC)
            with pytest.raises(AuthorizationError, match="grant-permission pulsar/system"):
                await client.begin_transaction()
            await producer.send(b"before")
            await Zombie(brokers["app"]).send(TOPIC, b"orphan", TxnId(77, 5))
            await producer.send(b"after")
        code, said = await doctor(server, "--auth-token-file", str(tmp_path / "app"), "--topic", TOPIC)
        assert code == 1
        assert "use a role that may administrate" in said
        code, said = await doctor(
            server, "--auth-token-file", str(tmp_path / "admin"), "--topic", TOPIC, "--cure", "--yes", "--abort-unknown"
        )
        assert code == 0, said
        async with AsyncClient(server.service_url, authentication=TokenAuthentication(token("app"))) as client:
            reader = await client.create_reader(TOPIC)
            assert [(await reader.read_next(timeout=10)).data for _ in range(2)] == [b"before", b"after"]
    finally:
        for each in brokers.values():
            await each.close()
        await asyncio.to_thread(server.stop)


@pytest.mark.parametrize("version", ["4.0.8", "4.2.4"])
async def test_coordinators_that_are_missing_are_named_by_doctor_and_by_the_client_in_the_same_words(version: str) -> None:
    server = await asyncio.to_thread(StockPulsar(version).start)
    try:
        await a_lost_log_leaves_a_transaction_that_doctor_aborts(server)
        assign = "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions?force=true"
        await asyncio.to_thread(ask, server, "DELETE", assign)
        await said_by_both(server, "no transaction coordinator", "initialize-transaction-coordinator-metadata")
    finally:
        await asyncio.to_thread(server.stop)
    server = await asyncio.to_thread(StockPulsar(version, conf={"transactionCoordinatorEnabled": "false"}).start)
    try:
        await said_by_both(server, "no transaction", "transactionCoordinatorEnabled=true")
        brokers = Brokers("east", server.service_url, Settings(), AsyncioRuntime())
        with pytest.raises(ClusterRefused, match="transactionCoordinatorEnabled=true"):
            await verify_cluster(brokers, BrokerAttempts(brokers))
        await brokers.close()
    finally:
        await asyncio.to_thread(server.stop)


async def a_lost_log_leaves_a_transaction_that_doctor_aborts(server: StockPulsar) -> None:
    async with AsyncClient(server.service_url) as client:
        producer = await client.create_producer(TOPIC)
        await producer.send(b"before")
        txn = await client.begin_transaction(timeout=600)
        await producer.send(b"inside", txn=txn)
        await producer.send(b"after")
        await asyncio.to_thread(ask, server, "DELETE", "/admin/v2/persistent/pulsar/system/__transaction_log_0?force=true")
        await asyncio.to_thread(server.restart, hard=True)
        async with AsyncClient(server.service_url) as other, other.transaction() as again:
            await (await other.create_producer(f"{TOPIC}-other")).send(b"the coordinator begins from nothing", txn=again)
        code, said = await doctor(server, "--topic", TOPIC)
        assert code == 1
        assert f"the transaction {txn.id}, not known to any coordinator" in said
        code, said = await doctor(server, "--topic", TOPIC, "--cure", "--yes", "--abort-unknown")
        assert code == 0, said
        assert await asyncio.to_thread(read_officially, server.service_url, TOPIC, 2) == [b"before", b"after"]


async def said_by_both(server: StockPulsar, *words: str) -> None:
    code, said = await doctor(server)
    assert code == 1
    async with AsyncClient(server.service_url) as client:
        with pytest.raises(TransactionsDisabled) as caught:
            await client.begin_transaction()
    for each in words:
        assert each in said
        assert each in str(caught.value)
    await asyncio.to_thread(read_nothing, server.service_url)


def read_nothing(service_url: str) -> None:
    """The official client is still served."""
    assert read_officially(service_url, f"{TOPIC}-empty", 0) == []
