"""Lookup: redirects, proxies, several hosts, partitions."""

import pytest
from fake_broker import SILENCE, FakeBroker, fake_client

from pulsar_txn.client import ConnectionLost
from pulsar_txn.client.errors import RemoteProtocolError, ServiceNotReady, TopicNotFound
from pulsar_txn.wire.frames import command

pytestmark = pytest.mark.quick


def answer(url, response=1, **fields):
    return lambda _pipe, body: command(
        "lookupTopicResponse", request_id=body.request_id, brokerServiceUrl=url, response=response, **fields
    )


async def test_redirects_are_followed_and_carry_authoritative():
    first, second = FakeBroker("one:6650"), FakeBroker("two:6650")
    first.on["lookupTopic"] = answer("pulsar://two:6650", response=0, authoritative=True)
    async with fake_client(first, second) as client:
        await client.create_producer("t")
    assert second.all("lookupTopic")[0].authoritative
    assert second.all("producer")
    assert not first.all("producer")


async def test_endless_redirects_end_in_a_typed_error():
    broker = FakeBroker()
    broker.on["lookupTopic"] = answer("pulsar://broker:6650", response=0)
    async with fake_client(broker, max_lookup_redirects=3) as client:
        with pytest.raises(RemoteProtocolError, match="more than 3 times"):
            await client.create_producer("t")
    assert len(broker.all("lookupTopic")) == 4


async def test_a_topic_behind_a_proxy_is_reached_through_it():
    proxy = FakeBroker("proxy:6650")
    proxy.on["lookupTopic"] = answer("pulsar://inner:6650", proxy_through_service_url=True)
    async with fake_client(proxy) as client:
        await client.create_producer("t")
    assert [connect.proxy_to_broker_url for connect in proxy.all("connect")] == ["", "inner:6650"]


async def test_the_second_host_of_the_url_is_asked_when_the_first_is_down():
    up = FakeBroker("up:6650")
    async with fake_client(up, url="pulsar://down:6650,up:6650") as client:
        assert await client.get_topic_partitions("t") == ["persistent://public/default/t"]


async def test_when_no_host_answers_the_first_error_is_told():
    broker = FakeBroker()
    async with fake_client(broker, url="pulsar://down:1,down:2", operation_timeout=0.1) as client:
        with pytest.raises(ConnectionLost, match="down:1"):
            await client.get_topic_partitions("t")


async def test_partitions_have_their_names():
    broker = FakeBroker()
    broker.partitions["persistent://public/default/t"] = 2
    async with fake_client(broker) as client:
        names = await client.get_topic_partitions("t")
    assert names == [f"persistent://public/default/t-partition-{index}" for index in range(2)]


async def test_a_partition_named_by_the_program_is_not_asked_for_partitions():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        producer = await client.create_producer("t-partition-1")
        assert (await producer.send(b"x")).partition == 1
    assert not broker.all("partitionMetadata")


async def test_a_missing_topic_is_said_at_once():
    broker = FakeBroker()
    broker.on["partitionMetadata"] = lambda _pipe, body: command(
        "partitionMetadataResponse", request_id=body.request_id, response=1, error=11, message="no such topic"
    )
    async with fake_client(broker) as client:
        with pytest.raises(TopicNotFound, match="no such topic"):
            await client.create_producer("t")
    assert len(broker.all("partitionMetadata")) == 1


async def test_a_broker_that_is_not_ready_is_asked_again_until_the_operation_timeout():
    broker = FakeBroker()
    broker.on["lookupTopic"] = lambda _pipe, body: command(
        "lookupTopicResponse", request_id=body.request_id, response=2, error=6, message="loading"
    )
    async with fake_client(broker, operation_timeout=0.1) as client:
        with pytest.raises(ServiceNotReady, match="loading") as caught:
            await client.create_producer("t")
    assert len(broker.all("lookupTopic")) > 2
    assert "given up" in caught.value.__notes__[0]


@pytest.mark.parametrize("how", ["silent", "not ready"])
async def test_a_first_host_that_is_there_and_of_no_use_does_not_stop_the_client(how):
    """Only a connection that failed made the client ask the next host of the URL."""
    first, second = FakeBroker("one:6650"), FakeBroker("two:6650")
    not_ready = {"response": 2, "error": 6, "message": "loading"}
    for name, reply in (("lookupTopic", "lookupTopicResponse"), ("partitionMetadata", "partitionMetadataResponse")):
        first.on[name] = lambda _pipe, body, reply=reply: (
            SILENCE if how == "silent" else command(reply, request_id=body.request_id, **not_ready)
        )
    async with fake_client(first, second, url="pulsar://one:6650,two:6650", operation_timeout=0.6) as client:
        producer = await client.create_producer("t")
        await producer.send(b"x")
    assert second.all("send")
