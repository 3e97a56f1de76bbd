"""`backup` and `restore` as a user has them: a running broker under load, a second folder, and every refusal in a sentence."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from command_line import pulsar_txn
from our_broker import OurBroker

from pulsar_txn.client import AsyncClient
from pulsar_txn.ledger.journal import JournalStore

TOPIC = "numbers"


async def run(*arguments: object):
    """The command, beside the loop of the test."""
    return await asyncio.to_thread(pulsar_txn, *arguments)


class Load:
    """Sends numbers one by one; `confirmed` counts those that were."""

    def __init__(self, producer):
        self.confirmed = 0
        self._producer = producer
        self._more = asyncio.Condition()
        self._task = asyncio.ensure_future(self._run())

    async def _run(self):
        while True:
            await self._producer.send(str(self.confirmed).encode())
            async with self._more:
                self.confirmed += 1
                self._more.notify_all()

    async def grown(self, size):
        """Until that many were confirmed."""
        async with self._more:
            await self._more.wait_for(lambda: self.confirmed >= size)

    async def stop(self):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def read_all(client, topic):
    reader = await client.create_reader(topic)
    found = []
    while await reader.has_message_available():
        found.append((await reader.read_next()).value.decode())
    return found


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[OurBroker]:
    """A broker of the test's own; it is killed at the end."""
    found = OurBroker(data_dir=tmp_path / "data")
    await asyncio.to_thread(found.start)
    yield found
    await asyncio.to_thread(found.kill)


async def test_a_backup_of_a_running_broker_has_all_that_was_confirmed_before_it(broker: OurBroker, tmp_path: Path) -> None:
    target, folder = tmp_path / "backup", tmp_path / "restored"
    async with AsyncClient(broker.service_url) as client:
        load = Load(await client.create_producer(TOPIC))
        other = await client.create_producer("other")
        await load.grown(200)
        async with client.transaction() as txn:
            await other.send(b"committed", txn=txn)
        late = await client.begin_transaction(timeout=3)
        await other.send(b"never", txn=late)
        confirmed = load.confirmed
        done = await run("backup", broker.data_dir, target, "--admin-url", broker.admin_url)
        assert done.returncode == 0, done.stderr
        upto = load.confirmed + 1
        await load.grown(upto + 100)
        await load.stop()
    assert confirmed < upto, "the load went on while the copy was made"
    await asyncio.to_thread(broker.kill)

    done = await run("restore", target, folder)
    assert done.returncode == 0, done.stderr
    checked = await run("check", folder)
    assert checked.returncode == 0, checked.stdout
    again = OurBroker(data_dir=folder)
    await asyncio.to_thread(again.start)
    try:
        async with AsyncClient(again.service_url) as client:
            found = await read_all(client, TOPIC)
            assert found == [str(number) for number in range(len(found))]
            assert confirmed <= len(found) <= upto
            await (await client.create_producer("other")).send(b"later")
            reader = await client.create_reader("other")
            values = [(await reader.read_next()).value for _ in range(2)]
            assert values == [b"committed", b"later"], "the transaction that was open then has timed out"
    finally:
        await asyncio.to_thread(again.kill)


async def test_a_backup_in_use_names_the_broker_that_does_not_answer(broker: OurBroker, tmp_path: Path) -> None:
    done = await run("backup", broker.data_dir, tmp_path / "backup", "--admin-url", "http://127.0.0.1:1")
    assert done.returncode == 69
    assert "is in use, and no broker answers at http://127.0.0.1:1" in done.stderr
    assert not (tmp_path / "backup" / "BACKUP").exists()


async def test_the_broker_of_another_folder_is_no_help(broker: OurBroker, tmp_path: Path) -> None:
    async with JournalStore(tmp_path / "other", segment_bytes=1 << 20):
        done = await run("backup", tmp_path / "other", tmp_path / "backup", "--admin-url", broker.admin_url)
    assert done.returncode == 1
    assert "does not hold the journal that is to be copied" in done.stderr


async def test_a_broker_without_a_folder_has_nothing_to_copy(tmp_path: Path) -> None:
    found = OurBroker(conf={"ledgerProvider": "memory"})
    await asyncio.to_thread(found.start)
    try:
        async with JournalStore(tmp_path / "other", segment_bytes=1 << 20):
            done = await run("backup", tmp_path / "other", tmp_path / "backup", "--admin-url", found.admin_url)
    finally:
        await asyncio.to_thread(found.kill)
    assert done.returncode == 1
    assert "keeps its data in no folder" in done.stderr


async def stopped_store(folder: Path) -> None:
    async with JournalStore(folder, segment_bytes=1 << 20) as store:
        log = await store.open("log")
        for _ in range(10):
            log.append(b"a" * 3000)
        await store.durable()


async def test_a_stopped_broker_needs_no_admin_url_and_every_refusal_is_a_sentence(tmp_path: Path) -> None:
    data, target, folder = tmp_path / "data", tmp_path / "backup", tmp_path / "restored"
    await stopped_store(data)
    assert (await run("backup", tmp_path / "nothing", target)).returncode == 2
    done = await run("backup", data, target)
    assert (done.returncode, "checked; restore it with" in done.stdout) == (0, True)
    done = await run("backup", data, target)
    assert (done.returncode, "is not empty" in done.stderr) == (1, True)

    assert (await run("restore", tmp_path / "nothing", folder)).returncode == 2
    done = await run("restore", data, folder)
    assert (done.returncode, "is no finished backup" in done.stderr) == (1, True)
    done = await run("restore", target, data)
    assert (done.returncode, "--replace moves it aside" in done.stderr) == (1, True)
    done = await run("restore", target, data, "--replace")
    assert (done.returncode, "Replace it? [y/N]" in done.stdout, (data / "replaced-1").exists()) == (1, True, False)
    done = await run("restore", target, data, "--replace", "--yes")
    assert (done.returncode, (data / "replaced-1" / "FORMAT").exists()) == (0, True)
    async with JournalStore(data, segment_bytes=1 << 20) as store:
        assert (await store.open("log", create=False)).next_entry == 10
        done = await run("restore", target, data, "--replace", "--yes")
        assert (done.returncode, "is in use by another process" in done.stderr) == (73, True)

    segment = next(target.glob("segment-*.journal"))
    content = bytearray(segment.read_bytes())
    content[content.index(b"a" * 3000) + 5] ^= 1
    segment.write_bytes(content)
    done = await run("restore", target, folder)
    assert (done.returncode, "is not what was backed up" in done.stderr) == (1, True)
    assert not folder.exists() or not list(folder.iterdir())
    shutil.rmtree(target)
