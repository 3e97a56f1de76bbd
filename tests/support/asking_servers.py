"""Servers that ask check groups, each a process of the test's own: our broker, and our coordinator beside a stock cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

from our_broker import OurBroker
from our_coordinator import OurCoordinator
from targets import Target

from pulsar_txn.client import AsyncClient

QUICK = {
    "transactionCheckAfterInSeconds": "1",
    "transactionCheckIntervalInSeconds": "1",
    "transactionCheckMax": "4",
    "transactionClientLeaseInSeconds": "2",
}

_SENDER = """
import asyncio, os, sys
from pulsar_txn.client import AsyncClient

def work(half):
    print(str(half.txn_id), flush=True)  # it is done
    os.kill(os.getpid(), 9)

async def main():
    url, coordinator, topic, what, group = sys.argv[1:]
    client = AsyncClient(url, **({"coordinator": coordinator} if coordinator else {}))
    if what == "execute":
        half = await client.transactional_producer(topic, group=group, check=lambda question: None)
        await half.send_in_transaction(b"event", key="17", execute=work)
    producer = await client.create_producer(topic)
    if what == "bound":
        txn = await client.begin_transaction(abort_on_disconnect=True, timeout=600)
    elif what == "prepare":
        txn = await client.begin_transaction(timeout=2)
    else:
        txn = await client.begin_transaction(check_group=group, check_data=b"of the dead", timeout=600)
    await producer.send(b"half", txn=txn)
    if what == "prepare":
        print(str(await txn.prepare()), flush=True)
    else:
        print(str(txn.id), flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


class AskingServer:
    """One of them. `service_url` is of the topics."""

    def __init__(self, stock: Target | None) -> None:
        self.process: OurBroker | OurCoordinator
        if stock is None:
            self.process = OurBroker(conf={**QUICK, "numberOfTransactionCoordinators": "2"})
            self.service_url = self.process.service_url
            self.coordinator = ""
        else:
            self.process = OurCoordinator({"stock": stock.service_url}, conf={**QUICK, "numberOfTransactionCoordinators": "2"})
            self.service_url, self.coordinator = stock.service_url, self.process.service_url

    def client(self, **options: Any) -> AsyncClient:
        """A client of it; it comes back quickly after a kill."""
        beside = {"coordinator": self.coordinator} if self.coordinator else {}
        return AsyncClient(self.service_url, max_backoff=0.5, **beside, **options)

    async def kill_and_start(self) -> None:
        """SIGKILL, and the same folder again."""
        await asyncio.to_thread(self.process.restart, hard=True)

    async def of_the_dead(self, topic: str, what: str, group: str = "") -> str:
        """A process that sends in a transaction, is at `what` (`begin`, `execute`, `prepare`, `bound`) and is killed.

        The id of the transaction, or its token.
        """
        command = [sys.executable, "-c", _SENDER, self.service_url, self.coordinator, topic, what, group]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == -9, done.stderr
        return done.stdout.strip()
