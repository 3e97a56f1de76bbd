"""Limits of a role: one client application, however many processes it has, leaves room for the others."""

from __future__ import annotations

from typing import Any

import pytest
from credentials import TOKENS, Speaker, token
from raw_client import FULL, RawClient, Refused

from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import unsigned64


class GuardedClient(Speaker, RawClient):
    """With credentials."""


def of(bench: Any, role: str) -> GuardedClient:
    return GuardedClient(bench.broker, token(role))


async def test_a_role_has_so_many_connections_and_others_come_in(benches: Any) -> None:
    bench = await benches(**TOKENS, max_connections_per_role=2, super_user_roles="root").start()
    clients = [of(bench, "ann") for _ in range(3)]
    for each in clients[:2]:
        await each.until(lambda each=each: each.events)
        assert each.events[0][0] == "connected"
    await clients[2].until(lambda: clients[2].pipe.closed)
    (body,) = clients[2]._answers[unsigned64(-1)]
    assert body.error == ServerError.NotAllowedError
    assert "role 'ann' has 2 connections, as many as maxConnectionsPerRole allows" in body.message
    assert bench.broker.limits.reached["maxConnectionsPerRole"] == 1
    clients[2].connection.connection_lost(None)
    for role in ("bob", "root", "root", "root"):
        other = of(bench, role)
        await other.until(lambda other=other: other.events)
        assert other.events[0][0] == "connected", "operators come in, whatever others do"
    clients[0].drop()
    again = of(bench, "ann")
    await again.until(lambda: again.events)
    assert again.events[0][0] == "connected"
    again.drop()
    clients[1].drop()
    assert "ann" not in bench.broker.limits._of_role


async def test_a_client_that_shows_fresh_credentials_is_counted_once(benches: Any) -> None:
    bench = await benches(**TOKENS, max_connections_per_role=1).start()
    one = of(bench, "ann")
    await one.until(lambda: one.events)
    bench.broker.limits.enter_role("ann", one.connection.session)
    one.drop()
    assert bench.broker.limits._of_role == {}


@pytest.mark.parametrize("kind", ["Producers", "Consumers"])
async def test_a_role_has_so_many_producers_and_consumers_over_all_its_connections(benches: Any, kind: str) -> None:
    bench = await benches(**TOKENS, **{f"max_{kind.lower()}_per_role": 3}, super_user_roles="root").start()

    async def make(one: GuardedClient, number: int) -> None:
        if kind == "Producers":
            await one.request("producer", topic=f"{FULL}t{number}", producer_id=number)
        else:
            await one.request("subscribe", topic=f"{FULL}t{number}", subscription="s", consumer_id=number, subType=1)

    async def close(one: GuardedClient, number: int) -> None:
        names = {"Producers": ("close_producer", "producer_id"), "Consumers": ("close_consumer", "consumer_id")}[kind]
        await one.request(names[0], **{names[1]: number})

    first, second, other, root = (of(bench, role) for role in ("ann", "ann", "bob", "root"))
    for number in range(2):
        await make(first, number)
    await make(second, 2)
    for one in (first, second):
        with pytest.raises(Refused, match=f"max{kind}PerRole") as refused:
            await make(one, 7)
        assert refused.value.code == ServerError.TooManyRequests
    for number in range(3):
        await make(other, number)
    for number in range(5):
        await make(root, number)
    for _ in range(20):
        await close(first, 1)
        await make(first, 1)
    second.drop()
    await make(first, 7)
    assert bench.broker.limits.reached[f"max{kind}PerRole"] == 2


async def test_without_authentication_nobody_has_a_role_to_be_limited(benches: Any) -> None:
    limits = {"max_connections_per_role": 1, "max_producers_per_role": 1, "max_consumers_per_role": 1}
    bench = await benches(**limits).start()
    for _ in range(3):
        one = RawClient(bench.broker)
        await one.request("producer", topic=f"{FULL}t", producer_id=1)
    assert bench.broker.limits.reached == {}
