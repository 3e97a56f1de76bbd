"""The blocking producer with the official methods."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pulsar_txn.client.errors import AlreadyClosed, InvalidConfiguration, TransactionStateError
from pulsar_txn.client.inside import NOT_SAID, Condition, Future, Slots, WorkerThread
from pulsar_txn.compat import _producing
from pulsar_txn.compat._arguments import blocking
from pulsar_txn.compat.enums import Result
from pulsar_txn.compat.exceptions import mapped, result_of
from pulsar_txn.compat.messages import MessageId
from pulsar_txn.compat.schema import Schema
from pulsar_txn.compat.transactions import Unit

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


class Producer(_producing.Producing):
    """Sends values to a topic. Made by `Client.create_producer`.

    Callbacks of `send_async` run one after another on a thread of their own, in the order of the receipts.
    """

    def __init__(
        self,
        own: Any,
        schema: Schema,
        initial_sequence_id: int | None,
        router: Callable[[Any, int], int] | None,
        worker: WorkerThread,
        blocks: int,
    ) -> None:
        """`blocks`: how many may be in flight before `send_async` blocks; 0: it does not."""
        super().__init__(own, schema, initial_sequence_id, router)
        self._worker = worker
        self._slots = Slots(blocks) if blocks else None
        self._untold = Untold()

    send = blocking(_producing.send)

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
        txn: Unit | None = NOT_SAID,
    ) -> None:
        """Queue one value; `callback(result, message_id)` is called on a worker thread once it is stored, or failed.

        With `block_if_queue_full` this waits while `max_pending_messages` are in flight; else the callback gets
        `Result.ProducerQueueIsFull`. An exception in a callback is logged. A send with `txn` that fails dooms it. A
        transaction that the message cannot be part of is refused here.
        """
        payload, options = self.outgoing(
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
            txn,
        )
        if self._slots is not None:
            self._slots.take()
        try:
            ticket = self._ours.send_nowait(payload, **options)
        except Exception as error:
            if isinstance(txn, Unit):
                if isinstance(error, TransactionStateError | InvalidConfiguration):
                    self._give_back()
                    raise
                txn.refuse(error)
            self._finished(callback, None, error)
        else:
            self._untold.add(ticket)
            ticket.add_done_callback(functools.partial(self._on_ticket, callback))

    @mapped
    def flush(self) -> None:
        """Wait until everything sent before has its receipt, or failed, and its callback has returned."""
        try:
            self._ours.flush()
        finally:
            self._drain()

    @mapped
    def close(self) -> None:
        """Wait for what is in flight, and close."""
        try:
            self._ours.close()
        except AlreadyClosed:
            return
        self._drain()

    def _on_ticket(self, callback: Callback | None, ticket: Future[Any]) -> None:
        error = AlreadyClosed("the producer was closed") if ticket.cancelled() else ticket.exception()
        self._finished(callback, None if error is not None else ticket.result(), error)
        self._untold.remove(ticket)

    def _finished(self, callback: Callback | None, message_id: Any, error: BaseException | None) -> None:
        self._give_back()
        if callback is None:
            return
        if message_id is None:
            self._worker.submit(callback, result_of(error or AlreadyClosed()), None)
        else:
            self._worker.submit(callback, Result(0), MessageId.wrap(message_id, self._ours.topic))

    def _give_back(self) -> None:
        if self._slots is not None:
            self._slots.give_back()

    def _drain(self) -> None:
        """Wait until the callbacks of everything sent before have returned."""
        self._untold.wait()
        self._worker.drain()
