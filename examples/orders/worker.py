"""Takes requests from a topic, writes orders to the database, and events to another topic: all three in one transaction.

    python examples/orders/worker.py --pulsar-url pulsar://localhost:6650 --database orders.db

Any number of workers may run. What one of them leaves unfinished when it is killed is ended by the others, or by the next one.
The tables are there before it starts; `__main__.py` makes them.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from typing import Any

from points import Points
from store import Store

from pulsar_txn.client import Client, ConsumerType, InitialPosition, TransactionAborted
from pulsar_txn.client.outbox import Outbox

REQUESTS = "order-requests"
EVENTS = "order-events"


class Worker:
    """One process of the service, with its connections."""

    def __init__(self, client: Client, outbox: Outbox, store: Store, arguments: argparse.Namespace) -> None:
        self._outbox = outbox
        self._store = store
        self._points = Points()
        self._batch: int = arguments.batch
        self._connection: Any = store.connect(self._points)
        self._producer = client.create_producer(arguments.prefix + EVENTS)
        self._consumer = client.subscribe(
            arguments.prefix + REQUESTS,
            "workers",
            consumer_type=ConsumerType.SHARED,
            initial_position=InitialPosition.EARLIEST,
        )

    def unit(self) -> int:
        """Some requests, their orders and their events, all of them or nothing. How many they were."""
        with self._outbox.transaction(self._connection, timeout=30, abort_on_disconnect=True) as txn:
            requests = self._consumer.receive_many(self._batch, max_wait=0.5, txn=txn)  # its commit acknowledges them
            if not requests:
                txn.abort()
                return 0
            self._points.reached("received")
            for request in requests:
                order = json.loads(request.data)
                self._store.insert(self._connection, order["id"], order["customer"], order["cents"])
                event = {"order": order["id"], "customer": order["customer"], "cents": order["cents"]}
                self._producer.send_nowait(json.dumps(event).encode(), key=order["customer"], txn=txn)
            self._points.reached("sent")
        self._points.reached("ended")
        return len(requests)


def work(arguments: argparse.Namespace) -> int:
    """Until no request has come for a while. Returns how many orders it has written."""
    store, written, last = Store(arguments.database), 0, time.monotonic()
    with (
        Client(arguments.pulsar_url, coordinator=arguments.coordinator) as client,
        Outbox(client, "orders", store.connect, check_after=1) as outbox,
    ):
        outbox.trim(older_than=60)
        worker = Worker(client, outbox, store, arguments)
        while time.monotonic() - last < arguments.idle:
            try:
                handled = worker.unit()
            except TransactionAborted as error:  # nothing of it has happened, and its requests come again
                print(f"again: {error}", file=sys.stderr)
                continue
            if handled:
                written, last = written + handled, time.monotonic()
    return written


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pulsar-url", required=True)
    parser.add_argument("--database", required=True, help="postgresql://…, or the path of a SQLite file")
    parser.add_argument("--coordinator", help="the URL of `pulsar-txn coordinator`, beside a stock cluster")
    parser.add_argument("--prefix", default="", help="of the names of the topics")
    parser.add_argument("--batch", type=int, default=10, help="requests in one transaction")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds without a request after which it ends")
    return parser.parse_args(words)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    print(work(parsed()), "orders")
