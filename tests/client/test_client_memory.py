"""The bound on what all producers of a client have in flight (`memory_limit`), and the client's description."""

import asyncio
import gc

import pytest
from fake_broker import SILENCE, fake_client
from hypothesis import given
from hypothesis import strategies as st
from keeping import kept_by

from pulsar_txn import compat
from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient, sync
from pulsar_txn.client.errors import AlreadyClosed, InvalidConfiguration, MemoryBufferIsFull, ProducerQueueFull
from pulsar_txn.client.send.budget import LimitedBudget, MemoryLimit
from pulsar_txn.client.txn.transactions import core_of

pytestmark = pytest.mark.quick


def answer(broker, count):
    """Receipts for the oldest SENDs that have none; from now on every SEND gets its own."""
    del broker.on["send"]
    for body in broker.all("send")[:count]:
        broker.pipe.send(broker._send(broker.pipe, body))


# --- the rule -------------------------------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 60)), max_size=80)


@given(STEPS)
def test_a_budget_is_full_by_its_own_bounds_or_by_those_of_all(steps):
    """The model: sums; the common bound opens again when an eighth of it is free."""
    memory = MemoryLimit(100)
    budgets = [LimitedBudget(3, 80, memory) for _ in range(3)]
    held, closed = [[], [], []], False
    for index, takes, size in steps:
        if takes and not budgets[index].full:
            held[index].append(size)
            budgets[index].take(1, size)
        elif not takes and held[index]:
            size = held[index].pop()
            budgets[index].give_back(1, size)
        used = sum(map(sum, held))
        closed = used >= 100 or (closed and used > 88)
        assert (memory.used, memory.full) == (used, closed)
        for budget, sizes in zip(budgets, held, strict=True):
            assert budget.full == (closed or len(sizes) >= 3 or sum(sizes) >= 80)
            assert budget.has_room(1, 10) == (not closed and used + 10 < 100 and len(sizes) + 1 < 3 and sum(sizes) + 10 < 80)


def test_a_producer_that_is_gone_leaves_nothing_at_the_bound():
    memory = MemoryLimit(100)
    budget = LimitedBudget(3, 80, memory)
    assert kept_by(memory) == 1
    del budget
    gc.collect()
    assert kept_by(memory) == 0


# --- producers ------------------------------------------------------------------------------------------------------


async def test_the_producers_of_a_client_share_the_bound(broker):
    broker.on["send"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, memory_limit=1000) as client:
        first, second = [await client.create_producer(topic, batching=False) for topic in ("a", "b")]
        tickets = [first.send_nowait(bytes(600)), second.send_nowait(bytes(600))]
        for producer in (first, second, await client.create_producer("c")):
            with pytest.raises(MemoryBufferIsFull, match=r"1200 bytes of all producers .* memory_limit is 1000"):
                producer.send_nowait(b"x")
        waiting = asyncio.create_task(second.send(b"y"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        answer(broker, 2)
        await asyncio.gather(*tickets, waiting)
        assert (await first.send(b"z")).ledger_id == 1


async def test_a_producers_own_bound_is_told_from_the_clients(broker):
    broker.on["send"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, memory_limit=1000) as client:
        producer = await client.create_producer("t", max_pending_messages=1, block_if_full=False)
        ticket = producer.send_nowait(b"x")
        with pytest.raises(ProducerQueueFull, match="1 messages with 1 bytes are in flight to") as raised:
            await producer.send(b"y")
        assert not isinstance(raised.value, MemoryBufferIsFull)
        answer(broker, 1)
        await ticket


async def test_a_message_larger_than_the_bound_goes_when_nothing_else_is_in_flight(broker):
    async with fake_client(broker, memory_limit=10) as client:
        producer = await client.create_producer("t")
        await asyncio.gather(*(producer.send(bytes(100)) for _ in range(5)))
    assert len(broker.all("send")) == 5


async def test_what_fails_or_is_closed_makes_room(broker):
    async with fake_client(broker, memory_limit=100, operation_timeout=0.05) as client:
        first, second = [await client.create_producer(topic) for topic in ("a", "b")]
        silent = broker.all("producer")[0].producer_id
        broker.on["send"] = lambda pipe, body: SILENCE if body[0] == silent else broker._send(pipe, body)
        lost = first.send_nowait(bytes(200))
        waiting = asyncio.create_task(second.send(b"x"))
        await first.close()
        assert isinstance(lost.exception(), AlreadyClosed)
        await waiting
        assert core_of(client).memory.used == 0


async def test_a_closed_producer_lets_go_of_those_that_wait_for_the_common_bound(broker):
    broker.on["send"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, memory_limit=100, operation_timeout=0.05) as client:
        first, second = [await client.create_producer(topic) for topic in ("a", "b")]
        first.send_nowait(bytes(200))
        waiting = asyncio.create_task(second.send(b"x"))
        await asyncio.sleep(0)
        await second.close()
        with pytest.raises(AlreadyClosed):
            await waiting


async def test_thousands_that_wait_are_all_sent_and_the_bound_holds():
    async with Standalone(None) as server, AsyncClient(server.service_url, memory_limit=10_000) as client:
        producers = [await client.create_producer(f"t-{number}") for number in range(3)]
        memory, most = core_of(client).memory, 0
        take = memory.take

        def watched(size):
            nonlocal most
            take(size)
            most = max(most, memory.used)

        memory.take = watched
        ids = await asyncio.gather(*(producers[number % 3].send(bytes(100)) for number in range(3000)))
        assert len(ids) == 3000
        assert 10_000 <= most < 10_100
        assert memory.used == 0


# --- the blocking client, compat ----------------------------------------------------------------------------------------


def test_the_bound_holds_for_the_sync_client(url):
    with sync.Client(url, memory_limit=20_000) as client:
        producers = [client.create_producer(topic, batching_max_delay=0.05) for topic in ("a", "b")]
        tickets, refused = [], 0
        while refused < 20:
            try:
                tickets.append(producers[len(tickets) % 2].send_nowait(bytes(1000)))
            except MemoryBufferIsFull:
                refused += 1
                producers[0].send(b"waits for room")
        for producer in producers:
            producer.flush()
        assert all(ticket.done() and ticket.exception() is None for ticket in tickets)


def test_compat_has_the_official_name_for_it():
    translated = compat.exceptions.translated(MemoryBufferIsFull("full"))
    assert isinstance(translated, compat.MemoryBufferIsFull)


# --- options --------------------------------------------------------------------------------------------------------


async def test_the_description_is_said_to_the_broker(broker):
    async with fake_client(broker, description="billing, eu-1") as client:
        await client.create_producer("t")
    (connect,) = broker.all("connect")
    assert connect.client_version.startswith("pulsar-txn-python-")
    assert connect.client_version.endswith("-billing, eu-1")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("memory_limit", -1),
        ("memory_limit", 1.5),
        ("memory_limit", "1 MiB"),
        ("description", "x" * 65),
        ("sni_proxy_url", "pulsar://proxy:4443"),
        ("sni_proxy_url", "pulsar+ssl://a:1,b:2"),
        ("sni_proxy_url", "proxy"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(option, value):
    with pytest.raises(InvalidConfiguration, match=option.removesuffix("_url") if "sni" not in option else "URL"):
        AsyncClient("pulsar+ssl://localhost:6651", **{option: value})
