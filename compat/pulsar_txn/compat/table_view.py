"""The table view with the official methods: payloads by key, and calls for what changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_txn.client import Client
from pulsar_txn.client import TableView as OurTableView
from pulsar_txn.client.errors import AlreadyClosed
from pulsar_txn.client.inside import WorkerThread
from pulsar_txn.compat.exceptions import mapped
from pulsar_txn.compat.schema import PreEncoded, Schema

Callback = Callable[[str, Any], object]


class TableView:
    """The newest value of every key of a topic. Made by `Client.create_table_view`.

    Values are decoded when they are asked for. An empty payload takes its key away like a tombstone, as in the official
    client. Callbacks run one after another on a thread of their own.
    """

    def __init__(self, twin: Client, worker: WorkerThread, topic: str, subscription: str | None, schema: Schema) -> None:
        """Reads all that the topic holds. Raises what subscribing raises."""
        self._worker = worker
        self._topic = topic
        self._subscription = subscription
        self._schema = schema
        self._view: OurTableView[bytes] = twin.create_table_view(
            topic, schema=PreEncoded(schema.schema_info()), read_compacted=True
        )
        self._left: dict[str, bytes] | None = None

    def _payloads(self) -> dict[str, bytes]:
        """What is there now, or was when the view was closed."""
        if self._left is not None:
            return self._left
        return {key: payload for key, payload in self._view.snapshot().items() if payload}

    def get(self, key: str) -> Any:
        """The newest value of a key; None without one."""
        payload = self._view.get(key) if self._left is None else self._left.get(key)
        return self._schema.decode(payload) if payload else None

    def for_each(self, callback: Callback) -> None:
        """Call `callback(key, value)` for what is there now."""
        for key, payload in self._payloads().items():
            callback(key, self._schema.decode(payload))

    @mapped
    def for_each_and_listen(self, callback: Callback) -> None:
        """Call `callback(key, value)` for what is there now, then for every change; returns after the former.

        A key that goes away is told with the value of an empty payload. An exception in a callback is logged.
        """
        told: set[str] | None = set()

        def tell(key: str, payload: bytes | None) -> None:
            if told is not None:
                if not payload and key not in told:
                    return  # an empty payload is no value of what was there before
                told.add(key)
            self._worker.submit(lambda: callback(key, self._schema.decode(payload or b"")))

        self._view.for_each_and_listen(tell)
        told = None
        self._worker.drain()

    @mapped
    def close(self) -> None:
        """Follow the topic no longer; what was read stays. Idempotent."""
        try:
            if self._left is None:
                self._left = self._payloads()
            self._view.close()
        except AlreadyClosed:
            return

    def __len__(self) -> int:
        return len(self._payloads())

    def __str__(self) -> str:
        subscription = "" if self._subscription is None else f", subscription={self._subscription}"
        return f"TableView(topic={self._topic}{subscription})"

    __repr__ = __str__
