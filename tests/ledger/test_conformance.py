"""Every provider passes the public suite."""

import pytest

from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.testing import CHECKS


class MemoryStores:
    """A restart of a memory store is a crash after a clean close: the durable part, in a new store."""

    async def new(self):
        return MemoryStore(high_water_bytes=4 << 20)

    async def reopened(self, store):
        await store.close()
        return store.crash()

    async def crashed(self, store):
        return store.crash()

    async def discard(self, store):
        await store.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_memory_store_keeps_the_promises_of_ledgers(check):
    await check(MemoryStores())
