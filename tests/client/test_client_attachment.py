"""What a producer, consumer or coordinator session outlives once it was there."""

import asyncio

import pytest
from fake_broker import fake_client

from pulsar_txn.client.errors import AuthenticationError, AuthorizationError, TopicTerminatedError
from pulsar_txn.wire.frames import command


def refuse(broker, name, code, text):
    broker.on[name] = lambda _pipe, body: command(
        "error", request_id=getattr(body, "request_id", 2**64 - 1), error=code, message=text
    )


async def test_credentials_that_are_being_replaced_end_nothing_that_was_there(broker):
    """Named after a fault: one refusal at a reconnect ended the producer, and every later transaction of the client."""
    async with fake_client(broker, operation_timeout=5) as client:
        producer = await client.create_producer("t")
        async with client.transaction() as txn:
            await producer.send(b"1", txn=txn)
        refuse(broker, "connect", 3, "token expired")
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("connect")) >= 3)
        del broker.on["connect"]
        async with client.transaction() as txn:
            await producer.send(b"2", txn=txn)
    assert len(broker.all("send")) == 2


async def test_credentials_that_are_wrong_from_the_beginning_are_said_at_once(broker):
    refuse(broker, "connect", 3, "who are you")
    async with fake_client(broker) as client:
        with pytest.raises(AuthenticationError, match="who are you"):
            await client.create_producer("t")


async def test_a_topic_that_is_gone_for_a_moment_ends_no_producer(broker):
    async with fake_client(broker, operation_timeout=5) as client:
        producer = await client.create_producer("t")
        refuse(broker, "producer", 11, "no such topic")
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("producer")) >= 3)
        del broker.on["producer"]
        await asyncio.wait_for(producer.send(b"x"), 2)


@pytest.mark.parametrize(("code", "error"), [(4, AuthorizationError), (15, TopicTerminatedError)])
async def test_what_does_not_mend_itself_ends_a_producer_that_was_there(broker, code, error):
    async with fake_client(broker, operation_timeout=5) as client:
        producer = await client.create_producer("t")
        refuse(broker, "producer", code, "no more")
        broker.pipe.cut()
        with pytest.raises(error):
            await producer.send(b"x")
