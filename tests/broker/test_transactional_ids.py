"""Transactional ids over the wire: a newer instance ends what an older one left open, and the older one learns it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction

TOPIC = FULL + "orders"


async def instance(bench: Any, name: str = "app") -> tuple[RawClient, int, int]:
    """A client that took an id over; its epoch and its coordinator."""
    client = bench.client()
    answer = await client.request("tcClientConnectRequest", tc_id=0, transactional_id=name)
    return client, answer.transactional_epoch, answer.tc_id


async def resumed(bench: Any, epoch: int, name: str = "app") -> RawClient:
    """A client that comes back with what it was given."""
    client = bench.client()
    await client.request("tcClientConnectRequest", tc_id=0, transactional_id=name, transactional_epoch=epoch)
    return client


async def offered(client: RawClient) -> bool:
    """What CONNECTED said of transactional ids."""
    await client.until(lambda: client.events, "CONNECTED")
    ((field, connected),) = client.events
    assert field == "connected"
    return bool(connected.feature_flags.supports_transactional_ids)


@pytest.fixture
async def bench(benches: Callable[..., Any]) -> Any:
    return await benches().start()


@pytest.mark.seed_rows("B05", "B22", "E03")
async def test_a_successor_fences_its_predecessor(bench: Any) -> None:
    old, old_epoch, tc_id = await instance(bench)
    await old.producer(TOPIC)
    txn = await old.new_txn(tc_id)
    await old.add_topics(txn, TOPIC)
    old.send(b"of the zombie", txn=txn)
    await old.until(lambda: old.receipts, "the receipt")
    new, new_epoch, same = await instance(bench)
    assert (new_epoch > old_epoch, same) == (True, tc_id)
    await new.new_txn(tc_id)
    for request in (old.add_topics(txn, TOPIC), old.end(txn), old.new_txn(tc_id)):
        with pytest.raises(Refused) as refused:
            await request
        assert refused.value.code == ServerError.ProducerFenced
    await old.abort(txn)


@pytest.mark.seed_rows("B03", "B17", "E02", "E15")
@pytest.mark.parametrize("how", ["crash", "restart"])
async def test_epochs_and_coordinators_outlive_the_broker(bench: Any, how: str) -> None:
    _, first, tc_id = await instance(bench)
    _, _, other = await instance(bench, "other")
    await getattr(bench, how)()
    _, second, same = await instance(bench)
    assert second > first
    assert same == tc_id
    assert (await instance(bench, "other"))[2] == other


@pytest.mark.seed_rows("B23")
async def test_a_client_that_comes_back_keeps_its_epoch_and_what_it_has_open(bench: Any) -> None:
    client, epoch, tc_id = await instance(bench)
    txn = await client.new_txn(tc_id)
    await bench.crash()
    again = await resumed(bench, epoch)
    await again.end(txn)


@pytest.mark.seed_rows("E09")
async def test_an_epoch_that_was_never_given_is_not_taken(bench: Any) -> None:
    _, epoch, _ = await instance(bench)
    for wrong in (epoch + 100, -1):
        with pytest.raises(Refused) as refused:
            await resumed(bench, wrong)
        assert refused.value.code == ServerError.NotAllowedError


@pytest.mark.parametrize("name", ["", "   ", "x" * 1025])
async def test_an_id_must_say_something_and_not_too_much(bench: Any, name: str) -> None:
    with pytest.raises(Refused, match="1 to 1024 bytes"):
        await instance(bench, name)


@pytest.mark.seed_rows("B23")
async def test_a_connection_has_one_id(bench: Any) -> None:
    client, _, _ = await instance(bench)
    with pytest.raises(Refused, match="bound to transactional id 'app'"):
        await client.request("tcClientConnectRequest", tc_id=0, transactional_id="other")


@pytest.mark.seed_rows("B17")
async def test_ids_stay_at_their_coordinator_when_others_are_added(bench: Any) -> None:
    before = [(await instance(bench, f"app-{number}"))[2] for number in range(8)]
    assert set(before) == {0, 1}, "eight ids are spread over both"
    await bench.broker.grow_coordinators(9)
    assert [(await instance(bench, f"app-{number}"))[2] for number in range(8)] == before


async def test_a_broker_with_plain_coordinators_says_that_it_has_no_transactional_ids(benches: Callable[..., Any]) -> None:
    bench = await benches(transaction_metadata_store_provider_class_name="log").start()
    client = bench.client()
    assert not await offered(client)
    with pytest.raises(Refused, match="ProviderClassName=fencing"):
        await client.request("tcClientConnectRequest", tc_id=0, transactional_id="app")


@pytest.mark.seed_rows("E10")
async def test_one_without_an_id_is_never_fenced(bench: Any) -> None:
    plain = bench.client()
    assert await offered(plain)
    txn = await plain.new_txn(0)
    _, _, tc_id = await instance(bench)
    successor, _, _ = await instance(bench)
    await successor.new_txn(tc_id)
    await plain.end(txn, TxnAction.COMMIT)


async def test_when_all_epochs_are_given_a_new_instance_is_refused_and_the_last_one_goes_on(bench: Any) -> None:
    bench.store.metadata.counters["/counters/transactional-epoch"] = (1 << 63) - 1
    last, epoch, tc_id = await instance(bench)
    assert epoch == (1 << 63) - 1
    with pytest.raises(Refused, match="no epoch is left") as refused:
        await instance(bench)
    assert refused.value.code == ServerError.NotAllowedError
    await last.end(await last.new_txn(tc_id))
    await resumed(bench, epoch)
