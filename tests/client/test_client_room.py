"""Whoever waits for room in a producer's bounds is woken when there is some, whatever those before it did with their turn."""

import asyncio

import pytest
from fake_broker import SILENCE, fake_client
from insides import budget_of, partitions_of
from keeping import kept_by

from pulsar_txn.client import AccessMode
from pulsar_txn.client.errors import AlreadyClosed, SchemaMismatch
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.wire import hot


class Held:
    """A producer with room for one message, which is in it; `let_go` brings its receipt, and all others come at once."""

    def __init__(self, broker, client):
        self.broker = broker
        self.client = client

    async def __aenter__(self):
        first = []

        def keep(pipe, body):
            first.append((pipe, body))
            del self.broker.on["send"]
            return SILENCE

        self.broker.on["send"] = keep
        self.producer = await self.client.create_producer("t", max_pending_messages=1, batching=False)
        self.ticket = self.producer.send_nowait(b"first")
        await self.broker.until(lambda: first)
        ((self._pipe, self._body),) = first
        return self

    async def __aexit__(self, *_):
        await self.producer.close()

    def let_go(self):
        self._pipe.send(hot.encode_send_receipt(self._body[0], self._body[1], 1, 0))


@pytest.fixture
async def client(broker):
    async with fake_client(broker) as client:
        yield client


@pytest.fixture
async def held(broker, client):
    async with Held(broker, client) as held:
        yield held


async def refused(held):
    with pytest.raises(SchemaMismatch):
        await held.producer.send("no bytes")


async def only_looks(held):
    await held.producer.wait_for_room()


async def cancelled(held):
    waiting = asyncio.create_task(held.producer.send(b"never"))
    await asyncio.sleep(0.001)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def cancelled_when_woken(held):
    waiting = asyncio.create_task(held.producer.send(b"never"))
    await held.ticket  # which wakes it as well
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("before", [refused, only_looks, cancelled, cancelled_when_woken])
async def test_who_takes_no_room_leaves_it_to_the_next(held, before):
    """The turn was gone, and the next waited for ever although nothing was in flight."""
    first = asyncio.create_task(before(held))
    await asyncio.sleep(0)
    others = [asyncio.create_task(held.producer.send(b"%d" % number)) for number in range(3)]
    await asyncio.sleep(0.01)
    held.let_go()
    async with asyncio.timeout(5):
        await asyncio.gather(first, *others)
    assert held.producer.stats().in_flight_messages == 0
    assert kept_by(budget_of(held.producer)) == 0


async def test_waiters_that_were_cancelled_are_forgotten(held):
    for _ in range(20):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await held.producer.send(b"never")
    assert kept_by(budget_of(held.producer)) == 0
    held.let_go()
    await held.ticket


# --- failures that are there to stay --------------------------------------------------------------------------------


def frames_of(error):
    trace, count = error.__traceback__, 0
    while trace is not None:
        trace, count = trace.tb_next, count + 1
    return count


@pytest.mark.parametrize("kind", ["producer", "consumer"])
async def test_a_failure_that_is_raised_again_and_again_does_not_grow(broker, client, kind):
    """Each raise had made the one exception's traceback longer, and that kept the frames with their payloads."""
    resource = await (client.create_producer("t") if kind == "producer" else client.subscribe("t", "s"))
    (part,) = partitions_of(resource) if kind == "producer" else reception_of(resource).partitions.all
    (part._give_up if kind == "producer" else part._fail)(AlreadyClosed("for good"))
    counts = set()
    for _ in range(10):
        with pytest.raises(AlreadyClosed) as caught:
            await (resource.send(b"x") if kind == "producer" else resource.receive(1))
        counts.add(frames_of(caught.value))
    assert len(counts) == 1


async def test_what_cannot_be_encoded_fails_the_send_and_not_only_the_log(client):
    """Its future was never done, and `flush` was content."""
    producer = await client.create_producer("t", access_mode=AccessMode.SHARED)
    partitions_of(producer)[0]._sealer._lone = object()
    ticket = producer.send_nowait(b"a")
    async with asyncio.timeout(5):
        with pytest.raises(Exception, match="cannot be encoded"):
            await ticket
    assert producer.stats().in_flight_messages == 0


class Odd:
    """A schema of a program's own."""

    info = None

    def __init__(self, made):
        self._made = made

    def encode(self, value):
        return self._made

    def decode(self, payload):
        return payload


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("more", [{}, {"key": "k"}])
@pytest.mark.parametrize("made", [bytearray(b"x"), memoryview(b"x"), "x", 5, ["x"]])
async def test_a_schema_that_makes_no_bytes_is_told_so(broker, client, made, more, batching):
    producer = await client.create_producer("t", schema=Odd(made), batching=batching)
    if isinstance(made, (bytearray, memoryview)):
        await producer.send("value", **more)
    else:
        with pytest.raises(SchemaMismatch):
            await producer.send("value", **more)
    assert producer.stats().in_flight_messages == 0
