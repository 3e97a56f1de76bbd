"""A client whose transactions are at a coordinator beside its cluster: what cannot work is refused, and names stay apart."""

from __future__ import annotations

from typing import Any

import pytest
from fake_broker import FakeBroker, FakeRuntime

from pulsar_txn.client import AsyncClient, AsyncCoordinator, Client, Coordinator, InvalidConfiguration
from pulsar_txn.client.errors import TransactionStateError
from pulsar_txn.client.options import AutoClusterFailover
from pulsar_txn.client.txn.encoding import by_cluster
from pulsar_txn.client.txn.session import ClientIncarnation
from pulsar_txn.client.txn.transactions import core_of, transactions_of

URL, BESIDE = "pulsar://b1:6650", "pulsar://tc:6653"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cluster": "east"}, "also give coordinator="),
        ({"coordinator": BESIDE, "cluster": "ea|st"}, "is no name of a cluster"),
        ({"coordinator": BESIDE, "cluster": 7}, "the name of a cluster"),
        ({"coordinator": "tc:6653"}, "pulsar://"),
        ({"coordinator": 6653}, "the URL of a coordinator"),
    ],
)
async def test_options_that_cannot_work_are_refused_with_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidConfiguration, match=sentence):
        AsyncClient(URL, **options)


async def test_a_client_that_may_move_to_another_cluster_has_no_coordinator_beside_one() -> None:
    clusters = AutoClusterFailover(primary=URL, secondaries=["pulsar://b2:6650"])
    with pytest.raises(InvalidConfiguration, match="cannot move between clusters"):
        AsyncClient(clusters, coordinator=BESIDE)


async def test_a_transactional_id_belongs_to_the_shared_coordinator() -> None:
    async with AsyncCoordinator(BESIDE, transactional_id="app") as coordinator:
        with pytest.raises(InvalidConfiguration, match="belongs to the coordinator"):
            AsyncClient(URL, coordinator=coordinator, transactional_id="app")


async def test_a_shared_coordinator_lives_where_its_clients_do() -> None:
    async with AsyncCoordinator(BESIDE) as coordinator:
        with pytest.raises(InvalidConfiguration, match="make a Coordinator for blocking clients"):
            Client(URL, coordinator=coordinator)  # type: ignore[arg-type]  # what is refused
    with Coordinator(BESIDE) as blocking, pytest.raises(InvalidConfiguration, match="may also share an AsyncCoordinator"):
        AsyncClient(URL, coordinator=blocking)  # type: ignore[arg-type]  # what is refused


def incarnation_of(coordinator: AsyncCoordinator) -> ClientIncarnation:
    incarnation = transactions_of(coordinator).incarnation
    assert incarnation is not None
    return incarnation


async def test_a_coordinator_forgets_a_client_that_is_closed() -> None:
    async with AsyncCoordinator(BESIDE) as coordinator:
        for _ in range(3):
            async with AsyncClient(URL, coordinator=coordinator):
                assert len(incarnation_of(coordinator).members) == 1
        assert not incarnation_of(coordinator).members


async def test_an_option_that_a_coordinator_does_not_have_is_named() -> None:
    options: dict[str, Any] = {"memory_limit": 5}
    with pytest.raises((InvalidConfiguration, TypeError), match="memory_limit"):
        AsyncCoordinator(BESIDE, **options)


def test_topics_go_with_the_cluster_before_them_and_a_bar_in_a_name_is_a_part_of_it() -> None:
    plain, barred = "persistent://public/default/t", "persistent://public/default/a|b"
    named = [(plain, 1), (f"east|{plain}", 2), (f"east|{barred}", 3), (barred, 4), (f"west|{plain}", 5)]
    assert by_cluster(named) == {
        "": [(plain, 1), (barred, 4)],
        "east": [(plain, 2), (barred, 3)],
        "west": [(plain, 5)],
    }


async def test_a_transaction_of_one_coordinator_is_refused_by_clients_of_another() -> None:
    runtime = FakeRuntime({"b1:6650": FakeBroker("b1:6650")})
    async with (
        AsyncClient(URL, runtime=runtime) as own,
        AsyncClient(URL, coordinator=BESIDE, runtime=runtime) as beside,
    ):
        producer = await own.create_producer("t")
        txn = await beside.begin_transaction(eager=False)
        with pytest.raises(TransactionStateError, match="belongs to another client"):
            await producer.send(b"x", txn=txn)


async def test_a_client_has_left_when_all_its_producers_and_consumers_are_closed() -> None:
    """A lane may serve another client only when nothing of this one can arrive any more."""
    async with AsyncCoordinator(BESIDE) as coordinator:
        incarnation = incarnation_of(coordinator)
        client = AsyncClient(URL, coordinator=coordinator)
        resource = object()
        assert incarnation.has_left
        core_of(client).register(core_of(client).next_resource_id(), resource)  # type: ignore[arg-type]  # it is never closed
        assert not incarnation.has_left
