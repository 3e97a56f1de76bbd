"""Every provider passes the public suite."""

import shutil

import pytest

from pulsar_txn.ledger.journal import JournalStore
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


class JournalStores:
    """A crash abandons the store without a word and opens a copy of its folder, as a new process would find it."""

    def __init__(self, folder):
        self.folder = folder
        self.turn = 0

    def _store(self):
        return JournalStore(self.folder / str(self.turn), segment_bytes=4 << 20)

    async def new(self):
        store = self._store()
        await store.start()
        return store

    async def reopened(self, store):
        await store.close()
        return await self.new()

    async def crashed(self, store):
        old = self.folder / str(self.turn)
        self.turn += 1
        shutil.copytree(old, self.folder / str(self.turn))
        await store.close()
        return await self.new()

    async def discard(self, store):
        await store.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_journal_store_keeps_the_promises_of_ledgers(check, tmp_path):
    await check(JournalStores(tmp_path))
