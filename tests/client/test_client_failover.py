"""Several clusters for one client."""

import asyncio

import pytest
from fake_broker import FakeBroker, fake_client

from pulsar_txn.client.errors import ConnectionLost, InvalidConfiguration
from pulsar_txn.client.options import AutoClusterFailover
from pulsar_txn.client.txn.transactions import core_of

pytestmark = pytest.mark.quick


def clusters(**options):
    given = {"check_interval": 0.02, "failover_delay": 0.05, "switch_back_delay": 0.05} | options
    return AutoClusterFailover(primary="pulsar://a:6650", secondaries=["pulsar://b:6650", "pulsar://c:6650"], **given)


@pytest.fixture
async def three():
    return [FakeBroker(f"{name}:6650") for name in "abc"]


def goes_down(broker):
    broker.refuses = True
    for pipe in broker.pipes:
        pipe.cut()


def payloads(broker):
    return [bytes(body[7][-1:]) for body in broker.all("send")]


async def test_a_client_stays_with_a_primary_that_answers(three):
    primary, second, _ = three
    async with fake_client(*three, url=clusters()) as client:
        producer = await client.create_producer("t")
        await asyncio.sleep(0.2)
        await producer.send(b"1")
        assert client.service_url == "pulsar://a:6650"
    assert payloads(primary) == [b"1"]
    assert second.got == []


async def test_a_producer_goes_on_at_a_secondary_and_comes_back_when_the_primary_does(three):
    primary, second, third = three
    async with fake_client(*three, url=clusters(), operation_timeout=20.0) as client:
        producer = await client.create_producer("t", send_timeout=20)
        await producer.send(b"1")
        second.refuses = True
        goes_down(primary)
        await producer.send(b"2")
        assert client.service_url == "pulsar://c:6650"
        primary.refuses = False
        await third.until(lambda: client.service_url == "pulsar://a:6650", seconds=10)
        await producer.send(b"3")
        assert (await client.create_producer("u")).is_connected
    assert payloads(primary) == [b"1", b"3"]
    assert payloads(third) == [b"2"]


async def test_a_broker_that_is_away_for_less_than_the_delay_moves_nobody(three):
    primary, second, _ = three
    async with fake_client(*three, url=clusters(failover_delay=30.0), operation_timeout=20.0) as client:
        producer = await client.create_producer("t")
        goes_down(primary)
        await asyncio.sleep(0.2)
        primary.refuses = False
        await producer.send(b"1")
        assert client.service_url == "pulsar://a:6650"
    assert second.got == []


async def test_a_primary_that_takes_connections_and_says_nothing_counts_as_gone(three):
    primary, second, _ = three
    async with fake_client(*three, url=clusters(), operation_timeout=20.0, connection_timeout=0.05) as client:
        producer = await client.create_producer("t", send_timeout=20)
        for name in ("connect", "send"):
            primary.on[name] = lambda _pipe, _body: None
        await producer.send(b"1")
        assert client.service_url == "pulsar://b:6650"
    assert payloads(second) == [b"1"]


async def test_without_any_cluster_operations_fail_and_the_next_that_answers_is_taken(three):
    for broker in three:
        broker.refuses = True
    async with fake_client(*three, url=clusters(), operation_timeout=0.3) as client:
        with pytest.raises(ConnectionLost):
            await client.create_producer("t")
        three[2].refuses = False
        await three[2].until(lambda: client.service_url == "pulsar://c:6650", seconds=10)
        await client.create_producer("t")


async def test_a_connection_that_is_made_during_the_move_is_not_used(three):
    primary, second, _ = three
    greeted = asyncio.Event()

    def late(pipe, body):
        greeted.set()
        return

    primary.on["connect"] = late
    async with fake_client(*three, url=clusters(check_interval=60.0), operation_timeout=10.0) as client:
        creating = asyncio.ensure_future(client.create_producer("t"))
        await greeted.wait()
        core_of(client)._move("pulsar://b:6650")
        primary.pipe.send(primary._connect(None, None))
        await creating
    assert primary.all("producer") == []
    assert second.all("producer")


@pytest.mark.parametrize(
    "wrong",
    [
        {"primary": "http://a", "secondaries": ["pulsar://b"]},
        {"primary": "pulsar://a", "secondaries": []},
        {"primary": "pulsar://a", "secondaries": ["b"]},
        {"primary": "pulsar://a", "secondaries": ["pulsar://b"], "check_interval": 0},
        {"primary": "pulsar://a", "secondaries": ["pulsar://b"], "failover_delay": -1},
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidConfiguration):
        AutoClusterFailover(**wrong)
