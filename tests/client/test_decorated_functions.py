"""`@transactional` for both clients: where the transaction comes in, and whose signature the decorated function has."""

from __future__ import annotations

import inspect

import pytest

from pulsar_txn.client import AsyncClient, AsyncTransaction, Client, Transaction, TransactionState, transactional


class Recorded(list):
    """What the functions were called with."""


@pytest.fixture
def seen():
    return Recorded()


def kinds(seen):
    """The functions of a test, asyncio's: name -> function."""

    @transactional
    async def second(client: AsyncClient, txn: AsyncTransaction, order, *, count=1):
        seen.append((client, txn, order, count))

    @transactional
    async def last(client, order, txn, count=1):
        seen.append((client, txn, order, count))

    @transactional
    async def named(client, order, count=1, *, txn):
        seen.append((client, txn, order, count))

    @transactional
    async def first(txn, client, order, count=1):
        seen.append((client, txn, order, count))

    @transactional
    async def by_place_only(client, txn, order, /, count=1):
        seen.append((client, txn, order, count))

    return {each.__name__: each for each in (second, last, named, first, by_place_only)}


@pytest.mark.parametrize("name", ["second", "last", "named", "first", "by_place_only"])
async def test_the_transaction_comes_in_wherever_the_parameter_is(url, seen, name):
    function = kinds(seen)[name]
    assert inspect.iscoroutinefunction(function)
    async with AsyncClient(url) as client:
        await function(client, "a")
        await function(client, "b", count=2)
        if name != "by_place_only":
            await function(client, order="c")
            await function(client=client, order="d")
    assert [order for _, _, order, _ in seen] == ["a", "b", "c", "d"][: len(seen)]
    assert len(seen) == (2 if name == "by_place_only" else 4)
    assert all(given is client and txn.state is TransactionState.COMMITTED for given, txn, _, _ in seen)
    assert seen[1][3] == 2


async def test_a_method_may_have_the_transaction_after_the_client(url, seen):
    class Service:
        @transactional(attempts=2)
        async def pay(self, client: AsyncClient, txn: AsyncTransaction, amount: int) -> int:
            seen.append(txn)
            return amount

    async with AsyncClient(url) as client:
        assert await Service().pay(client, 5) == 5
        assert await Service().pay(client, amount=6) == 6
    assert [txn.state for txn in seen] == [TransactionState.COMMITTED] * 2


def test_a_plain_function_runs_with_the_blocking_client_by_the_same_decorator(url, seen):
    @transactional
    def transfer(client: Client, txn: Transaction, order: str) -> str:
        seen.append(txn)
        return order

    with Client(url) as client:
        assert transfer(client, "order") == "order"
    assert [txn.state for txn in seen] == [TransactionState.COMMITTED]


async def test_a_plain_function_with_the_asyncio_client_is_told_so(url):
    @transactional
    def transfer(client, txn):
        return txn

    async with AsyncClient(url) as client:
        with pytest.raises(Exception, match=r"async def|coroutine|awaitable"):
            await transfer(client)


async def test_without_a_client_the_error_names_the_argument(url):
    @transactional(client_arg="pulsar")
    async def transfer(order, pulsar, txn):
        del order, pulsar, txn

    with pytest.raises(TypeError, match="'pulsar'"):
        await transfer("order")
