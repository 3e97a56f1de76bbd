"""The session with one transaction coordinator, which is kept up like a producer's, and requests to it over reconnects.

It starts with TC_CLIENT_CONNECT. A request whose connection breaks is sent again after the reconnect, and so may be carried
out twice: whatever error it ends with then says `maybe_processed`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable
from typing import Any, Final

from pulsar_txn.client.errors import (
    AlreadyClosed,
    ConnectionLost,
    CoordinatorUnavailable,
    InvalidTransactionStatus,
    NotAllowedError,
    OperationTimeout,
    PulsarError,
    ServiceNotReady,
    TransactionFenced,
    TransactionsDisabled,
)
from pulsar_txn.client.net.attachment import Attachment
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.pauses import Backoff
from pulsar_txn.client.txn.diagnosis import TRANSACTIONS_OFF
from pulsar_txn.client.txn.guest import Guest
from pulsar_txn.client.txn.stats import RequestTally
from pulsar_txn.client.txn.transactional_id import TransactionalId
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnId

logger = logging.getLogger("pulsar_txn.client.coordinators")

HANDSHAKE_VERSION: Final = 19
"""The protocol version that has TC_CLIENT_CONNECT; older brokers load their coordinators by themselves."""

_RETRY: Final = (CoordinatorUnavailable, ServiceNotReady, ConnectionLost)


class CoordinatorSession:
    """The session with one coordinator."""

    def __init__(
        self,
        core: Core,
        coordinator_id: int,
        topic: str,
        identity: TransactionalId | None = None,
        guest: Guest | None = None,
        on_connected: Callable[[CoordinatorSession], object] = lambda _session: None,
    ) -> None:
        self.coordinator_id = coordinator_id
        self._on_connected = on_connected
        self._core = core
        self._identity = identity
        self._guest = guest
        self._connection: Connection | None = None
        self._failure: PulsarError | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._attachment = Attachment(
            core,
            core.next_resource_id(),
            topic,
            open_on=self._open_on,
            on_lost=self._on_lost,
            on_failed=self._on_failed,
        )

    @property
    def connection(self) -> Connection | None:
        """That to its broker, while it is there."""
        return self._connection

    @property
    def is_connected(self) -> bool:
        """True if requests can leave at once."""
        return self._connection is not None

    @property
    def ends_groups(self) -> bool:
        """True if the broker, while connected, ends several transactions by one record."""
        return self._connection is not None and self._connection.features.supports_group_end

    @property
    def endpoint(self) -> str | None:
        """`host:port` of the coordinator's broker while connected."""
        return None if self._connection is None else self._connection.endpoint

    async def start(self) -> None:
        """Connect; raises TransactionsDisabled, or what stood in the way once the operation timeout is over."""
        await self._attachment.start()

    def retry_later(self) -> None:
        """The first attempt failed: go on trying in the background."""
        self._attachment.keep_trying()

    def close(self, error: PulsarError | None = None) -> None:
        """End the session; requests that wait for it fail with `error` (AlreadyClosed without one)."""
        self._attachment.close()
        self._connection = None
        self._on_failed(error or AlreadyClosed("the client is closed"))

    async def _open_on(self, connection: Connection) -> None:
        identity: dict[str, Any] = {}
        if self._identity is not None:
            self._identity.check(connection)
            identity = self._identity.fields()
        if self._guest is not None:
            self._guest.check(connection)
            identity |= self._guest.fields()
        if connection.protocol_version >= HANDSHAKE_VERSION:
            try:
                await connection.request(
                    "tcClientConnectRequest", self._core.next_request_id(), tc_id=self.coordinator_id, **identity
                )
            except NotAllowedError as error:
                if self._identity is not None:
                    raise TransactionFenced(error.message, endpoint=connection.endpoint) from error
                hint = TRANSACTIONS_OFF if self._guest is None else None
                raise TransactionsDisabled(error.message, endpoint=connection.endpoint, hint=hint) from error
        if connection.closed:
            raise ConnectionLost("the connection broke during the handshake", endpoint=connection.endpoint)
        self._connection = connection
        self._wake()
        self._on_connected(self)

    def leave(self, connection: Connection, error: PulsarError) -> None:
        """The coordinator is not served there any more: look for its broker again. No effect when that is known."""
        if self._connection is connection:
            self._attachment.detach(error)

    def _on_lost(self, error: PulsarError) -> None:
        logger.info("coordinator %d: %s", self.coordinator_id, error)
        self._connection = None

    def _on_failed(self, error: PulsarError) -> None:
        self._connection = None
        self._failure = self._failure or error
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def introduce(self, identity: dict[str, Any]) -> Any:
        """TC_CLIENT_CONNECT with fields of a transactional id; its answer. Raises as `request`."""
        name = "tcClientConnectRequest"
        return await self.request(
            name, lambda number: command(name, request_id=number, tc_id=self.coordinator_id, **identity), None, None
        )

    async def request(
        self,
        name: str,
        encode: Callable[[int], bytes],
        txn_id: TxnId | None,
        timeout: float | None,
        tally: RequestTally | None = None,
        check: Callable[[Connection], None] | None = None,
    ) -> Any:
        """Ask the coordinator, over reconnects, until there is an answer or `timeout` seconds are over.

        `encode(request_id)` is the frame of the request, `name` for the text of errors. `check` is asked whether the broker
        understands it, before each attempt, since a reconnect may lead to another broker. The answer is the transaction's
        id where `hot_txn` decodes it, else its message.
        Raises the answer's typed error; OperationTimeout, ConnectionLost, CoordinatorUnavailable or ServiceNotReady when
        the timeout (the operation timeout by default) came first. `maybe_processed` is set on any error after a first
        attempt whose answer was lost.
        If cancelled, a request that has left may still be carried out.
        """
        request_id = self._core.next_request_id()
        backoff: Backoff | None = None
        left = self._core.settings.operation_timeout if timeout is None else timeout
        deadline = self._core.runtime.monotonic() + left
        lost_answer = False
        failure: PulsarError | None = None
        while True:
            connection = self._connection or await self._connected(left, name, failure, txn_id, lost_answer=lost_answer)
            if check is not None:
                check(connection)
            try:
                if tally is not None:
                    tally.endpoint = connection.endpoint
                    tally.retries += failure is not None
                    tally.sent += 1
                return await connection.request_frames(name, request_id, [encode(request_id)], timeout=left)
            except PulsarError as error:
                lost_answer = lost_answer or error.maybe_processed
                if isinstance(error, (InvalidTransactionStatus, TransactionFenced)):
                    error.definite = connection.features.keeps_transaction_outcomes
                error.maybe_processed = lost_answer
                error.txn_id = error.txn_id or txn_id
                if not isinstance(error, _RETRY):
                    raise
                failure = error
                if isinstance(error, CoordinatorUnavailable):
                    self.leave(connection, error)
            backoff = backoff or self._core.backoff()
            pause = backoff.next()
            if self._core.runtime.monotonic() + pause >= deadline:
                raise _unavailable(failure)
            await self._core.rest(pause)
            left = deadline - self._core.runtime.monotonic()

    async def _connected(
        self, left: float, name: str, failure: PulsarError | None, txn_id: TxnId | None, *, lost_answer: bool
    ) -> Connection:
        """The session's connection; waits until there is one."""
        try:
            async with asyncio.timeout(max(left, 0)):
                return await self._reconnected()
        except PulsarError as error:
            told = copy.copy(error)  # the session's end is one and the same for all its requests
            told.maybe_processed, told.txn_id = lost_answer, error.txn_id or txn_id
            raise told from error
        except TimeoutError:
            if failure is not None:
                raise _unavailable(failure) from None
            text = f"coordinator {self.coordinator_id} was not reached in time for {name}"
            raise OperationTimeout(text, txn_id=txn_id) from None

    async def _reconnected(self) -> Connection:
        while True:
            if self._failure is not None:
                raise self._failure.with_traceback(None)  # else it grows with each
            if self._connection is not None:
                return self._connection
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


def _unavailable(failure: PulsarError) -> PulsarError:
    """The error of a coordinator that was not served for as long as there was time."""
    if not isinstance(failure, ServiceNotReady):
        return failure
    return CoordinatorUnavailable(
        failure.message, txn_id=failure.txn_id, endpoint=failure.endpoint, maybe_processed=failure.maybe_processed
    )
