"""What a functions worker tells its broker, and how often."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from pulsar_txn.pipeline.functions.worker import worker


class BrokerApi:
    """A broker that notes what it is told, and may be away."""

    def __init__(self):
        self.told = []
        self.away = False
        self.revisions = asyncio.Queue()

    async def report(self, fqfn, reports):
        if self.away:
            raise aiohttp.ClientConnectionError("away")
        self.told.append((fqfn, reports))

    async def assignments(self, _after):
        return {"revision": await self.revisions.get(), "functions": [], "serviceUrl": "pulsar://nowhere"}


class Supervisor:
    """Instances whose reports the test sets; `looked` counts how often they were asked for."""

    def __init__(self):
        self.now = {}
        self.looked = 0

    def reports(self, _worker):
        self.looked += 1
        return dict(self.now)

    def want(self, _specs, _url):
        pass


async def test_only_what_has_changed_is_reported_and_all_of_it_to_a_broker_that_was_started_again(monkeypatch):
    monkeypatch.setattr(worker, "REPORT_SECONDS", 0)
    broker_api, supervisor, said = BrokerApi(), Supervisor(), {}

    async def told():
        """What is told in two whole rounds."""
        looked = supervisor.looked
        async with asyncio.timeout(10):
            while supervisor.looked < looked + 3:  # noqa: ASYNC110 - the rounds are the worker's
                await asyncio.sleep(0)
        found, broker_api.told = broker_api.told, []
        return found

    tasks = [
        asyncio.create_task(worker._report(broker_api, supervisor, "w", said)),
        asyncio.create_task(worker._follow(broker_api, supervisor, asyncio.Event(), said)),
    ]
    broker_api.revisions.put_nowait("one.1")
    assert await told() == []
    supervisor.now = {"t/n/f": [1], "t/n/g": [1]}
    assert sorted(await told()) == [("t/n/f", [1]), ("t/n/g", [1])]
    assert await told() == []
    supervisor.now = {"t/n/f": [2]}
    assert await told() == [("t/n/f", [2])]
    supervisor.now = {"t/n/f": [2], "t/n/g": [1]}
    assert await told() == [("t/n/g", [1])]
    broker_api.revisions.put_nowait("one.2")
    assert await told() == []
    broker_api.revisions.put_nowait("two.1")
    assert len(await told()) == 2
    broker_api.away = True
    supervisor.now = {"t/n/f": [3]}
    assert await told() == []
    broker_api.away = False
    assert await told() == [("t/n/f", [3])]
    for task in tasks:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
