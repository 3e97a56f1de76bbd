"""A client lives on one event loop: a call from another one, or from another thread, is a typed error that says so."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

from pulsar_txn.client import LATEST_ID, AsyncClient, Client
from pulsar_txn.client.errors import WrongEventLoop

CALLS = {
    "create_producer": lambda made: made.client.create_producer("t"),
    "subscribe": lambda made: made.client.subscribe("t", "s"),
    "create_reader": lambda made: made.client.create_reader("t"),
    "create_table_view": lambda made: made.client.create_table_view("t"),
    "get_topic_partitions": lambda made: made.client.get_topic_partitions("t"),
    "transaction": lambda made: made.client.transaction(),
    "begin_transaction": lambda made: made.client.begin_transaction(),
    "run_transaction": lambda made: made.client.run_transaction(lambda txn: None),
    "close": lambda made: made.client.close(),
    "send": lambda made: made.producer.send(b"x"),
    "send_nowait": lambda made: made.producer.send_nowait(b"x"),
    "wait_for_room": lambda made: made.producer.wait_for_room(),
    "flush": lambda made: made.producer.flush(),
    "receive": lambda made: made.consumer.receive(0.01),
    "receive_many": lambda made: made.consumer.receive_many(5, max_wait=0.01),
    "receive_nowait": lambda made: made.consumer.receive_nowait(),
    "acknowledge": lambda made: made.consumer.acknowledge(made.message),
    "acknowledge_cumulative": lambda made: made.consumer.acknowledge_cumulative(made.message),
    "negative_acknowledge": lambda made: made.consumer.negative_acknowledge(made.message),
    "seek": lambda made: made.consumer.seek(made.message.message_id),
    "close of a consumer": lambda made: made.consumer.close(),
    "read_next": lambda made: made.reader.read_next(0.01),
    "close of a reader": lambda made: made.reader.close(),
    "commit": lambda made: made.txn.commit(),
    "abort": lambda made: made.txn.abort(),
    "resolve": lambda made: made.txn.resolve(),
    "wait_closed": lambda made: made.txn.wait_closed(),
    "close of a producer": lambda made: made.producer.close(),
}


class Made:
    """A client with what it makes, on the loop that runs."""

    async def make(self, url):
        self.client = AsyncClient(url)
        self.producer = await self.client.create_producer("t")
        self.consumer = await self.client.subscribe("t", "s")
        self.reader = await self.client.create_reader("t", LATEST_ID)
        await self.producer.send(b"before")
        self.message = await self.consumer.receive(5)
        await self.reader.read_next(5)
        self.txn = self.client.attach_transaction("(0,1)")
        return self

    async def call(self, name):
        result = CALLS[name](self)
        return await result if inspect.isawaitable(result) else result


@pytest.mark.parametrize("name", CALLS)
def test_in_a_second_asyncio_run_the_error_says_so_and_what_to_do(url, name):
    with asyncio.Runner() as first:
        made = first.run(Made().make(url))
        with pytest.raises(WrongEventLoop, match="this client lives on another event loop") as caught:
            asyncio.run(made.call(name))
        assert "asyncio.run() that uses it" in str(caught.value)
        first.run(made.client.close())


@pytest.mark.parametrize("name", CALLS)
def test_after_the_end_of_its_loop_the_error_says_so_and_what_to_do(url, name):
    made = asyncio.run(Made().make(url))
    with pytest.raises(WrongEventLoop, match="an event loop that has ended") as caught:
        asyncio.run(made.call(name))
    assert "asyncio.run() that uses it" in str(caught.value)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("with_a_loop", [True, False])
async def test_from_a_foreign_thread_the_error_names_both_threads(url, name, with_a_loop):
    made = await Made().make(url)
    raised = []

    def call():
        with pytest.raises(WrongEventLoop) as caught:
            if with_a_loop:
                asyncio.run(made.call(name))
            else:
                result = CALLS[name](made)
                if inspect.isawaitable(result):
                    next(iter(result.__await__()))  # as far as it gets without a loop
        raised.append(str(caught.value))

    thread = threading.Thread(target=call, name="elsewhere")
    thread.start()
    await asyncio.to_thread(thread.join)
    await made.client.close()
    assert "'elsewhere'" in raised[0]
    assert repr(threading.current_thread().name) in raised[0]
    assert "blocking Client" in raised[0]


async def test_a_client_may_be_made_before_its_loop_runs(url):
    client = await asyncio.to_thread(AsyncClient, url)
    await client.create_producer("t")
    await client.close()


def test_threads_share_a_blocking_client(url):
    with Client(url) as client:
        producers = []
        threads = [threading.Thread(target=lambda: producers.append(client.create_producer("t"))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({producer.send(b"x") for producer in producers}) == 4
