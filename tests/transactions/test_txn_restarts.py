"""A server that is ended and started again knows what was decided, and what was not.

Ours is killed. Stock is stopped, and asked for ids only: after a restart its topics may take minutes to recover their
buffers, and after a kill they may wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import stock_install
import targets
from our_broker import OurBroker
from stock_pulsar import StockPulsar
from transactions import data_of, eventually_visible, stays_silent

from pulsar_txn.client import AsyncClient, InitialPosition, TransactionState

VERSION = "4.2.4"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(params=["ours", pytest.param(f"stock-{VERSION}", marks=[pytest.mark.stock, pytest.mark.slow])])
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OurBroker | StockPulsar]:
    """A server of this test alone."""
    if request.param != "ours" and (reason := stock_install.missing_tools()):
        targets.lacking("pulsar", reason)
    with OurBroker(data_dir=tmp_path) if request.param == "ours" else StockPulsar(VERSION, data_dir=tmp_path) as server:
        yield server


@pytest.mark.seed_rows("D47")
@pytest.mark.parametrize("own_server", ["ours"], indirect=True)
async def test_open_committed_and_aborted_transactions_are_what_they_were_before_the_restart(
    own_server: OurBroker | StockPulsar, topic: str
) -> None:
    async with AsyncClient(own_server.service_url, operation_timeout=120) as client:
        source = await client.create_producer(f"{topic}-in", batching=False)
        for number in range(4):
            await source.send(b"%d" % number)
        consumer = await client.subscribe(f"{topic}-in", "s", initial_position=InitialPosition.EARLIEST)
        producer = await client.create_producer(topic, batching=False, send_timeout=120)
        messages = [await consumer.receive(timeout=20) for _ in range(4)]

        committed = await client.begin_transaction(timeout=300)
        await producer.send(b"committed", txn=committed)
        await consumer.acknowledge(messages[0], txn=committed)
        await committed.commit()
        aborted = await client.begin_transaction(timeout=300)
        await producer.send(b"aborted", txn=aborted)
        await aborted.abort()
        kept = await client.begin_transaction(timeout=300)
        await producer.send(b"kept", txn=kept)
        await consumer.acknowledge(messages[1], txn=kept)
        dropped = await client.begin_transaction(timeout=300)
        await producer.send(b"dropped", txn=dropped)
        await consumer.acknowledge(messages[2], txn=dropped)

        own_server.restart(hard=isinstance(own_server, OurBroker))

        await producer.send(b"after")
        assert await eventually_visible(client, topic, [b"committed"])
        await kept.commit()
        await dropped.abort()
        assert kept.state is TransactionState.COMMITTED
        assert await eventually_visible(client, topic, [b"committed", b"kept", b"after"])
        await consumer.close()
        successor = await client.subscribe(f"{topic}-in", "s")
        assert await data_of(successor, 2) == [b"2", b"3"]
        assert await stays_silent(successor)


async def test_ids_go_on_behind_those_given_before_the_restart(own_server: OurBroker | StockPulsar) -> None:
    given = set()
    async with AsyncClient(own_server.service_url, operation_timeout=120) as client:
        for round_ in range(2):
            for _ in range(5):
                txn = await client.begin_transaction()
                assert txn.id not in given
                given.add(txn.id)
                await txn.abort()
            if round_ == 0:
                own_server.restart(hard=isinstance(own_server, OurBroker))
