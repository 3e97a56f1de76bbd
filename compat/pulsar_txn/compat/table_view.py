"""The table view with the official methods: payloads by key, and calls for what changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_txn.client import client as asyncio_client
from pulsar_txn.client import sync
from pulsar_txn.client.errors import AlreadyClosed
from pulsar_txn.client.net.runtime import WorkerThread
from pulsar_txn.client.receive import table_view
from pulsar_txn.client.receive.message import Message
from pulsar_txn.compat.exceptions import mapped
from pulsar_txn.compat.schema import PreEncoded, Schema

Callback = Callable[[str, Any], object]


class _Payloads(table_view.AsyncTableView[bytes]):
    """Payloads as they are; as there, an empty one takes its key away like a tombstone. Changes are told on the loop."""

    listeners: tuple[Callable[[str, bytes], None], ...] = ()

    def _apply(self, messages: list[Message[bytes]], values: list[Any]) -> None:
        super()._apply(messages, values)
        for message in messages:
            if message.key is None:
                continue
            if not message.data and self._values.get(message.key) == b"":
                del self._values[message.key]
            for listener in self.listeners:
                listener(message.key, message.data)

    async def listen(self, listener: Callable[[str, bytes], None]) -> None:
        """Call it for what is there now, then for every change, with an empty payload when the key goes away."""
        for key, payload in self._values.items():
            listener(key, payload)
        self.listeners += (listener,)


class TableView:
    """The newest value of every key of a topic. Made by `Client.create_table_view`.

    Values are decoded when they are asked for. Callbacks run one after another on a thread of their own.
    """

    def __init__(self, twin: sync.Client, worker: WorkerThread, topic: str, subscription: str | None, schema: Schema) -> None:
        """Reads all that the topic holds. Raises what subscribing raises."""
        self._loop = twin._loop  # noqa: SLF001 - the twin's loop is ours, too
        self._worker = worker
        self._topic = topic
        self._subscription = subscription
        self._schema = schema
        client = twin._inner  # noqa: SLF001 - the asyncio object behind a sync one
        self._view = self._loop.run(lambda: _opened(client, topic, schema))

    def get(self, key: str) -> Any:
        """The newest value of a key; None without one."""
        payload = self._view._values.get(key)  # noqa: SLF001 - its other half
        return None if payload is None else self._schema.decode(payload)

    def for_each(self, callback: Callback) -> None:
        """Call `callback(key, value)` for what is there now."""
        for key, payload in self._view._values.copy().items():  # noqa: SLF001 - as above
            callback(key, self._schema.decode(payload))

    @mapped
    def for_each_and_listen(self, callback: Callback) -> None:
        """Call `callback(key, value)` for what is there now, then for every change; returns after the former.

        A key that goes away is told with the value of an empty payload. An exception in a callback is logged.
        """

        def tell(key: str, payload: bytes) -> None:
            self._worker.submit(lambda: callback(key, self._schema.decode(payload)))

        self._loop.run(lambda: self._view.listen(tell))
        self._worker.drain()

    @mapped
    def close(self) -> None:
        """Follow the topic no longer; what was read stays. Idempotent."""
        try:
            self._loop.run(self._view.close)
        except AlreadyClosed:
            return

    def __len__(self) -> int:
        return len(self._view)

    def __str__(self) -> str:
        subscription = "" if self._subscription is None else f", subscription={self._subscription}"
        return f"TableView(topic={self._topic}{subscription})"

    __repr__ = __str__


async def _opened(client: asyncio_client.AsyncClient, topic: str, schema: Schema) -> _Payloads:
    reader = await client.create_reader(topic, schema=PreEncoded(schema.schema_info()), read_compacted=True)
    view = _Payloads(client._core, reader)  # noqa: SLF001 - as above
    await view._start()  # noqa: SLF001 - as above
    return view
