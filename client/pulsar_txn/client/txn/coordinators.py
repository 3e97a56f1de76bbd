"""The transaction coordinators of a cluster, as a client sees them: who they are, where they are, and requests to them.

Coordinator i belongs to whoever serves partition i of the assign topic; a session with it starts with
TC_CLIENT_CONNECT and is kept up like a producer's. New transactions go round robin over the coordinators that are
connected. A request whose connection breaks is sent again after the reconnect, and so may be carried out twice: whatever
error it ends with then says `maybe_processed`.

`CoordinatorDirectory` is the door for another way of discovery (Pulsar 5's assignment watch).
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from pulsar_txn.client.errors import (
    AlreadyClosed,
    ConnectionLost,
    CoordinatorUnavailable,
    InvalidTransactionStatus,
    NotAllowedError,
    OperationTimeout,
    PulsarError,
    ServiceNotReady,
    TopicNotFound,
    TransactionFenced,
    TransactionsDisabled,
)
from pulsar_txn.client.net.attachment import Attachment
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.pauses import Backoff
from pulsar_txn.client.txn.stats import RequestTally
from pulsar_txn.client.txn.transactional_id import TransactionalId
from pulsar_txn.wire import hot_txn
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnAction, TxnId
from pulsar_txn.wire.topics import ASSIGN_TOPIC, partition_name

logger = logging.getLogger("pulsar_txn.client.coordinators")

HANDSHAKE_VERSION: Final = 19
"""The protocol version that has TC_CLIENT_CONNECT; older brokers load their coordinators by themselves."""

_RETRY: Final = (CoordinatorUnavailable, ServiceNotReady, ConnectionLost)


class CoordinatorDirectory(Protocol):
    """Which coordinators there are."""

    async def topics(self) -> list[str]:
        """One name per coordinator, in the order of their ids, that a lookup resolves to its broker.

        Raises TransactionsDisabled if absent.
        """
        ...


class AssignTopicDirectory:
    """Discovery by the partitions of the assign topic, as brokers up to 4.x have it."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def topics(self) -> list[str]:
        """The partitions of the assign topic."""
        try:
            count = await self._core.retrying(
                lambda: self._core.lookup.partitions(ASSIGN_TOPIC, create=False), "looking up the transaction coordinators"
            )
        except TopicNotFound:
            count = 0
        if not count:
            raise TransactionsDisabled("the cluster has no transaction coordinator")
        return [partition_name(ASSIGN_TOPIC, index) for index in range(count)]


class CoordinatorSession:
    """The session with one coordinator."""

    def __init__(self, core: Core, coordinator_id: int, topic: str, identity: TransactionalId | None = None) -> None:
        self.coordinator_id = coordinator_id
        self._core = core
        self._identity = identity
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
    def is_connected(self) -> bool:
        """Whether requests can leave at once."""
        return self._connection is not None

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
        if connection.protocol_version >= HANDSHAKE_VERSION:
            try:
                await connection.request(
                    "tcClientConnectRequest", self._core.next_request_id(), tc_id=self.coordinator_id, **identity
                )
            except NotAllowedError as error:
                refused = TransactionFenced if identity else TransactionsDisabled
                raise refused(error.message, endpoint=connection.endpoint) from error
        if connection.closed:
            raise ConnectionLost("the connection broke during the handshake", endpoint=connection.endpoint)
        self._connection = connection
        self._wake()

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
    ) -> Any:
        """Ask the coordinator, over reconnects, until there is an answer or `timeout` seconds are over.

        `encode(request_id)` is the frame of the request, `name` for the text of errors. The answer is the transaction's
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
                if isinstance(error, CoordinatorUnavailable) and self._connection is connection:
                    self._attachment.detach(error)
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


class TransactionCoordinators:
    """All coordinators of the cluster. Looked up at the first transaction; `requests` are those of the protocol."""

    def __init__(self, core: Core, directory: CoordinatorDirectory | None = None) -> None:
        self._core = core
        self._directory = directory or AssignTopicDirectory(core)
        self._sessions: list[CoordinatorSession] = []
        self._starting: asyncio.Task[None] | None = None
        self._left: PulsarError | None = None
        self._next = 0
        self._order = core.next_resource_id()
        name = core.settings.transactional_id
        self._identity = None if name is None else TransactionalId(name)

    async def start(self) -> None:
        """Look the coordinators up and connect to all; returns once the first is connected. Called by `new_txn`.

        Raises TransactionsDisabled, ConnectionLost, OperationTimeout, CoordinatorUnavailable; the next call tries again.
        If cancelled, the work goes on for others that wait for it.
        """
        if self._left is not None:
            raise copy.copy(self._left)
        if self._sessions:
            return
        self._core.check_open()
        if self._starting is None or (self._starting.done() and not self._sessions):
            self._starting = asyncio.get_running_loop().create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        topics = await self._directory.topics()
        sessions = [CoordinatorSession(self._core, index, topic, self._identity) for index, topic in enumerate(topics)]
        starts = [self._core.spawn(session.start()) for session in sessions]
        failure = await self._first_start(starts)
        if failure is None and self._identity is not None:
            try:
                await self._take_over(sessions, self._identity)
            except PulsarError as error:
                failure = error
        failure = failure if self._left is None else copy.copy(self._left)
        if failure is not None:
            for session in sessions:
                session.close()
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            raise failure
        for session, start in zip(sessions, starts, strict=True):
            start.add_done_callback(lambda done, session=session: _note_failed_start(session, done))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        self._sessions = sessions
        self._core.register(self._order, self)

    async def _first_start(self, starts: list[asyncio.Task[None]]) -> PulsarError | None:
        """Wait until one of the sessions is there; what stood in the way when none is."""
        failure: PulsarError | None = None
        for first in asyncio.as_completed(starts):
            try:
                await first
            except asyncio.CancelledError:
                if not self._core.closed:
                    raise
                return AlreadyClosed("the client was closed while it looked for the transaction coordinators")
            except PulsarError as error:
                failure = error
                if isinstance(error, TransactionsDisabled):
                    break
            else:
                return None
        return failure

    async def _take_over(self, sessions: list[CoordinatorSession], identity: TransactionalId) -> None:
        """Get an epoch above all before it. An answer that is lost costs an epoch and nothing else."""
        asked = next((session for session in sessions if session.is_connected), sessions[0])
        identity.took_over(await asked.introduce({"transactional_id": identity.name}))
        serving = sessions[identity.coordinator]
        if serving is not asked:  # maybe over another connection, which does not know yet who we are
            await serving.introduce(identity.fields())

    async def close(self) -> None:
        """End all sessions; open transactions are left to their timeout. Idempotent."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        for session in self._sessions:
            session.close()
        self._core.unregister(self._order)

    def leave(self, error: PulsarError) -> None:
        """The client goes to another cluster: whatever is asked of these from now on fails with `error`."""
        self._left = error
        for session in self._sessions:
            session.close(error)
        self._core.unregister(self._order)

    @property
    def count(self) -> int:
        """How many coordinators there are; 0 before the first transaction."""
        return len(self._sessions)

    def endpoint(self, coordinator_id: int) -> str | None:
        """Where a coordinator is served, while connected to it."""
        return self._sessions[coordinator_id].endpoint if 0 <= coordinator_id < len(self._sessions) else None

    # --- requests -----------------------------------------------------------------------------------------------------

    async def new_txn(self, timeout_ms: int, *, timeout: float | None = None, tally: RequestTally | None = None) -> TxnId:
        """Open a transaction at the next coordinator that is connected; the coordinator aborts it after `timeout_ms`.

        When an answer was lost the request goes out again; the transaction that nobody knows then ends by its timeout.
        Raises TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout, BrokerError.
        """
        if not self._sessions:
            await self.start()
        session = self._pick()
        coordinator_id = session.coordinator_id
        try:
            txn_id: TxnId = await session.request(
                "newTxn", lambda number: hot_txn.encode_new_txn(number, timeout_ms, coordinator_id), None, timeout, tally
            )
        except NotAllowedError as error:
            raise TransactionsDisabled(error.message, endpoint=error.endpoint) from error
        return txn_id

    async def add_partitions(
        self, txn_id: TxnId, topics: Iterable[str], *, timeout: float | None = None, tally: RequestTally | None = None
    ) -> None:
        """ADD_PARTITION_TO_TXN: the partitions' full names. Idempotent. Raises the answer's error; see `request`."""
        session = await self._session(txn_id)
        names = list(topics)
        await session.request(
            "addPartitionToTxn", lambda number: hot_txn.encode_add_partitions(number, txn_id, names), txn_id, timeout, tally
        )

    async def add_subscriptions(
        self,
        txn_id: TxnId,
        subscriptions: Iterable[tuple[str, str]],
        *,
        timeout: float | None = None,
        tally: RequestTally | None = None,
    ) -> None:
        """ADD_SUBSCRIPTION_TO_TXN: pairs of a partition's full name and a subscription. Idempotent."""
        session = await self._session(txn_id)
        pairs = list(subscriptions)
        await session.request(
            "addSubscriptionToTxn",
            lambda number: hot_txn.encode_add_subscriptions(number, txn_id, pairs),
            txn_id,
            timeout,
            tally,
        )

    async def end_txn(
        self, txn_id: TxnId, action: TxnAction, *, timeout: float | None = None, tally: RequestTally | None = None
    ) -> None:
        """END_TXN. Raises InvalidTransactionStatus, TransactionNotFound and the others of `CoordinatorSession.request`.

        `maybe_processed` on the error tells whether an earlier attempt may have ended the transaction.
        """
        session = await self._session(txn_id)
        await session.request("endTxn", lambda number: hot_txn.encode_end_txn(number, txn_id, action), txn_id, timeout, tally)

    def _pick(self) -> CoordinatorSession:
        """Round robin over the connected sessions; when none is, over all. A transactional id stays at its coordinator."""
        if self._identity is not None:
            return self._sessions[self._identity.coordinator]
        count = len(self._sessions)
        for step in range(count):
            session = self._sessions[(self._next + step) % count]
            if session.is_connected:
                self._next = (self._next + step + 1) % count
                return session
        self._next = (self._next + 1) % count
        return self._sessions[self._next]

    async def _session(self, txn_id: TxnId) -> CoordinatorSession:
        if not self._sessions:
            await self.start()
        if txn_id.most >= len(self._sessions):
            await self._grow()
        if not 0 <= txn_id.most < len(self._sessions):
            raise CoordinatorUnavailable(
                f"there is no coordinator {txn_id.most}: the cluster has {len(self._sessions)}",
                txn_id=txn_id,
                hint="is this transaction of another cluster?",
            )
        return self._sessions[txn_id.most]

    async def _grow(self) -> None:
        """Look for coordinators that were added since; they take part in the round robin from now on."""
        topics = await self._directory.topics()
        for index in range(len(self._sessions), len(topics)):
            session = CoordinatorSession(self._core, index, topics[index], self._identity)
            self._sessions.append(session)
            session.retry_later()


def _unavailable(failure: PulsarError) -> PulsarError:
    """What is raised when it was not served for as long as there was time."""
    if not isinstance(failure, ServiceNotReady):
        return failure
    return CoordinatorUnavailable(
        failure.message, txn_id=failure.txn_id, endpoint=failure.endpoint, maybe_processed=failure.maybe_processed
    )


def _note_failed_start(session: CoordinatorSession, start: asyncio.Task[Any]) -> None:
    """A coordinator that could not be reached while another could: keep trying, so that it can serve later."""
    if not start.cancelled() and (error := start.exception()) is not None:
        logger.warning("coordinator %d: %s", session.coordinator_id, error)
        session.retry_later()
