"""The producer with the official methods."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pulsar_txn.client.errors import AlreadyClosed, InvalidConfiguration, TransactionStateError
from pulsar_txn.client.net.runtime import Condition, Future, Slots, WorkerThread
from pulsar_txn.compat._outgoing import outgoing
from pulsar_txn.compat.enums import Result
from pulsar_txn.compat.exceptions import mapped, result_of
from pulsar_txn.compat.ids import MessageId
from pulsar_txn.compat.messages import Outgoing
from pulsar_txn.compat.schema import Schema

if TYPE_CHECKING:
    from pulsar_txn.client import sync
    from pulsar_txn.wire import ids

Callback = Callable[[Any, Any], object]


class Untold:
    """Sends whose callbacks were not handed on yet."""

    def __init__(self) -> None:
        self._sends: set[object] = set()
        self._changed = Condition()

    def add(self, send: object) -> None:
        """One more."""
        self._sends.add(send)

    def remove(self, send: object) -> None:
        """Its callback was handed on."""
        with self._changed:
            self._sends.discard(send)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait for those that were added before."""
        with self._changed:
            for send in self._sends.copy():
                self._changed.wait_for(functools.partial(self._is_gone, send))

    def _is_gone(self, send: object) -> bool:
        return send not in self._sends


class Producer:
    """Sends values to a topic. Made by `Client.create_producer`.

    Callbacks of `send_async` run one after another on a thread of their own, in the order of the receipts.
    """

    def __init__(
        self,
        twin: sync.Producer[Any],
        schema: Schema,
        worker: WorkerThread,
        *,
        blocks: int = 0,
        initial_sequence_id: int | None = None,
        router: Callable[[Any, int], int] | None = None,
    ) -> None:
        """`blocks`: how many may be in flight before `send_async` blocks; 0: it does not."""
        self._twin = twin
        self._schema = schema
        self._worker = worker
        self._router = router
        self._initial_sequence_id = -1 if initial_sequence_id is None else initial_sequence_id
        self._slots = Slots(blocks) if blocks else None
        self._untold = Untold()

    @mapped
    def topic(self) -> str:
        """The topic's full name."""
        return self._twin.topic

    @mapped
    def producer_name(self) -> str:
        """The name given, or the broker's choice."""
        return self._twin.producer_name

    @mapped
    def last_sequence_id(self) -> int:
        """The highest sequence id that has a receipt; before the first the initial one, else -1."""
        return max(self._twin.last_sequence_id, self._initial_sequence_id)

    @mapped
    def is_connected(self) -> bool:
        """Whether all partitions are connected at this moment."""
        return self._twin.is_connected

    @mapped
    def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Any = None,
    ) -> MessageId:
        """Send one value and wait for its receipt; None is a tombstone. `txn` is one of `client.transaction()`."""
        payload, options = self._message(
            content,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
        )
        return MessageId.wrap(self._twin.send(payload, txn=txn, **options), self._twin.topic)

    @mapped
    def send_async(
        self,
        content: Any,
        callback: Callback | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        *,
        txn: Any = None,
    ) -> None:
        """Queue one value; `callback(result, message_id)` is called on a worker thread once it is stored, or failed.

        With `block_if_queue_full` this waits while `max_pending_messages` are in flight; else the callback gets
        `Result.ProducerQueueIsFull`. An exception in a callback is logged. What fails with `txn` dooms it; one that cannot
        take part at all is refused here.
        """
        payload, options = self._message(
            content,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
        )
        if self._slots is not None:
            self._slots.take()
        try:
            ticket = self._twin.send_nowait(payload, txn=txn, **options)
        except Exception as error:
            if txn is not None:
                if isinstance(error, TransactionStateError | InvalidConfiguration):
                    self._give_back()
                    raise
                txn._inner.inside.doom(error)  # noqa: SLF001 - the asyncio object behind a sync one
            self._finished(callback, None, error)
        else:
            self._untold.add(ticket)
            ticket.add_done_callback(functools.partial(self._on_ticket, callback))

    @mapped
    def flush(self) -> None:
        """Wait until everything sent before has its receipt, or failed, and its callback has returned."""
        try:
            self._twin.flush()
        finally:
            self._drain()

    @mapped
    def close(self) -> None:
        """Wait for what is in flight, and close."""
        try:
            self._twin.close()
        except AlreadyClosed:
            return
        self._drain()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _message(self, content: Any, *rest: Any) -> tuple[bytes | None, dict[str, Any]]:
        payload, options = outgoing(self._schema, content, *rest)
        if self._router is not None:
            options["partition"] = self._route(payload, options)
        return payload, options

    def _route(self, payload: bytes | None, options: dict[str, Any]) -> int | None:
        partitions = self._twin.partitions
        if self._router is None or not partitions:
            return None
        return int(self._router(Outgoing(payload or b"", options), partitions))

    def _on_ticket(self, callback: Callback | None, ticket: Future[ids.MessageId]) -> None:
        error = AlreadyClosed("the producer was closed") if ticket.cancelled() else ticket.exception()
        self._finished(callback, None if error is not None else ticket.result(), error)
        self._untold.remove(ticket)

    def _finished(self, callback: Callback | None, message_id: ids.MessageId | None, error: BaseException | None) -> None:
        self._give_back()
        if callback is None:
            return
        if message_id is None:
            self._worker.submit(callback, result_of(error or AlreadyClosed()), None)
        else:
            self._worker.submit(callback, Result(0), MessageId.wrap(message_id, self._twin.topic))

    def _give_back(self) -> None:
        if self._slots is not None:
            self._slots.give_back()

    def _drain(self) -> None:
        """Wait until the callbacks of everything sent before have returned."""
        self._untold.wait()
        self._worker.drain()
