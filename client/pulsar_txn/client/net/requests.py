"""The requests of one connection that wait for their answer: by id, with one timer for the nearest deadline."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any, Final, Protocol

from pulsar_txn.client.errors import ConnectionLost, OperationTimeout, PulsarError, RemoteProtocolError
from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.client.net.timer import NearestTimer

logger = logging.getLogger("pulsar_txn.client.connection")

ANSWERS: Final = {
    "partitionMetadata": "partitionMetadataResponse",
    "lookupTopic": "lookupTopicResponse",
    "producer": "producer_success",
    "getLastMessageId": "getLastMessageIdResponse",
    "getSchema": "getSchemaResponse",
    "getOrCreateSchema": "getOrCreateSchemaResponse",
    "getTopicsOfNamespace": "getTopicsOfNamespaceResponse",
    "newTxn": "newTxnResponse",
    "addPartitionToTxn": "addPartitionToTxnResponse",
    "addSubscriptionToTxn": "addSubscriptionToTxnResponse",
    "endTxn": "endTxnResponse",
    "prepareTxn": "prepareTxnResponse",
    "describeTransactionalId": "describeTransactionalIdResponse",
    "watchTopicList": "watchTopicListSuccess",
    "tcClientConnectRequest": "tcClientConnectResponse",
}
"""Request -> the answer that its sender reads; what any other request is answered with is not looked at."""


ANSWERED_AFTER_CLOSE: Final = frozenset({"close_consumer", "seek", "subscribe", "unsubscribe"})
"""Requests of a consumer that a broker answers although it has closed the consumer, maybe because of them."""


class Waiter(Protocol):
    """Waiter for an answer: a future, or what is called in its place, at once and without a turn of the loop."""

    def done(self) -> bool:
        """True if nobody waits any more."""

    def set_result(self, body: Any, /) -> None:
        """The answer came."""

    def set_exception(self, error: PulsarError, /) -> None:
        """Tell that it will not come, or is an error."""


class Requests:
    """A table of requests; each ends with its answer, with an error, or at its deadline."""

    def __init__(self, runtime: Runtime, endpoint: str) -> None:
        self._runtime = runtime
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, tuple[Waiter, float, str, int | None]] = {}
        self._timer = NearestTimer(runtime, self._expire)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def add(self, request_id: int, name: str, seconds: float, consumer_id: int | None = None) -> asyncio.Future[Any]:
        """A future of the answer to a request that is about to leave; `math.inf` seconds wait for ever.

        `consumer_id`: of which consumer it is; see `consumer_closed`.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self.await_by(future, request_id, name, seconds, consumer_id)
        return future

    def await_by(self, waiter: Waiter, request_id: int, name: str, seconds: float, consumer_id: int | None = None) -> None:
        """As `add`, for somebody who waits already."""
        deadline = self._runtime.monotonic() + seconds
        self._waiting[request_id] = (waiter, deadline, name, consumer_id)
        self._timer.set(deadline)

    def lift_deadline(self, request_id: int) -> None:
        """The answer may take as long as it takes."""
        waiter, _, name, consumer_id = self._waiting[request_id]
        self._waiting[request_id] = (waiter, math.inf, name, consumer_id)

    def finish(self, request_id: int, body: Any, error: PulsarError | None, answer: str = "error") -> None:
        """The answer came, of the type `answer`; one that does not fit the request is a RemoteProtocolError."""
        entry = self._waiting.pop(request_id, None)
        if entry is None:
            logger.debug("%s: answer to request %d came too late", self._endpoint, request_id)
            return
        waiter = entry[0]
        if waiter.done():
            return
        expected = ANSWERS.get(entry[2])
        if error is None and expected is not None and answer != expected:
            error = RemoteProtocolError(f"the broker answered {entry[2]} with {answer}", endpoint=self._endpoint)
        if error is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(body)

    def fail_all(self, error: PulsarError) -> None:
        """The connection has ended: nothing will be answered."""
        self._timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for waiter, _, name, _ in waiting.values():
            if not waiter.done():
                waiter.set_exception(self._lost(error, name))

    def consumer_closed(self, consumer_id: int, error: ConnectionLost) -> None:
        """The broker has closed a consumer: it answers nothing of it any more, and has perhaps carried it out.

        Stock brokers drop what comes later, and do not say so.
        """
        closed = [
            request_id
            for request_id, (_, _, name, whose) in self._waiting.items()
            if whose == consumer_id and name not in ANSWERED_AFTER_CLOSE
        ]
        for waiter, _, name, _ in [self._waiting.pop(request_id) for request_id in closed]:
            if not waiter.done():
                waiter.set_exception(self._lost(error, name))

    def _lost(self, error: PulsarError, name: str) -> PulsarError:
        if isinstance(error, ConnectionLost):
            return ConnectionLost(
                f"{error.message}, waiting for the answer to {name}", endpoint=self._endpoint, maybe_processed=True
            )
        return error

    def _expire(self, now: float) -> None:
        due = [request_id for request_id, (_, deadline, _, _) in self._waiting.items() if deadline <= now]
        for waiter, _, name, _ in [self._waiting.pop(request_id) for request_id in due]:
            if not waiter.done():
                waiter.set_exception(
                    OperationTimeout(f"no answer to {name} in time", endpoint=self._endpoint, maybe_processed=True)
                )
        if self._waiting:
            self._timer.set(min(deadline for _, deadline, _, _ in self._waiting.values()))
