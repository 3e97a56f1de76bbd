"""The session with one transaction coordinator, requests to it over reconnects, and the client as it sees it.

The session starts with TC_CLIENT_CONNECT and is kept up like a producer's. A request whose connection breaks is sent again
after the reconnect, and so may be carried out twice: whatever error it ends with then says `maybe_processed`.

A coordinator beside clusters (`pulsar-txn coordinator`) tells clients by their incarnation, and a coordinator that fences by
transactional id and epoch. Both go over the wire as fields of our own in TC_CLIENT_CONNECT, after a feature flag of CONNECTED
(`docs/adr/0003`).
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final

import attrs

from pulsar_txn.client.errors import (
    AlreadyClosed,
    AuthorizationError,
    ConnectionLost,
    CoordinatorUnavailable,
    FeatureUnsupported,
    InvalidConfiguration,
    InvalidTransactionStatus,
    NotAllowedError,
    OperationTimeout,
    PulsarError,
    ServiceNotReady,
    TransactionalIdUnsupported,
    TransactionFenced,
    TransactionsDisabled,
)
from pulsar_txn.client.net.attachment import Attachment
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.pauses import Backoff
from pulsar_txn.client.net.retries import Retries
from pulsar_txn.client.net.runtime import Runtime
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import Participant, TxnId, TxnStatus, signed64

NO_ASSIGN_TOPIC: Final = (
    "set transactionCoordinatorEnabled=true on every broker, and make the coordinators once: bin/pulsar "
    "initialize-transaction-coordinator-metadata -cs <metadata store> -c <cluster> --initial-num-transaction-coordinators 16. "
    "`pulsar-txn doctor --cluster <URL>` says which of the two is missing"
)
TRANSACTIONS_OFF: Final = (
    "set transactionCoordinatorEnabled=true in broker.conf (standalone.conf) on every broker, and restart them one by one"
)
NO_GRANT: Final = (
    "transactions need a grant on the namespace of the coordinators as well: pulsar-admin namespaces grant-permission "
    "pulsar/system --role <role> --actions produce,consume"
)
NOT_LOADED: Final = (
    "the coordinator is not loaded at the broker that it belongs to (apache/pulsar#20851); `pulsar-txn doctor --cluster <URL>` "
    "says which and what to do"
)


def explained(error: PulsarError) -> PulsarError:
    """The error that kept a client from the coordinators, with what to do as its hint."""
    if isinstance(error, CoordinatorUnavailable):
        return error.with_details(hint=NOT_LOADED)
    return error.with_details(hint=NO_GRANT) if isinstance(error, AuthorizationError) else error


GOODBYE_SECONDS: Final = 1.0
"""Time that closing a client waits for the coordinators' answers. Without a goodbye they do when its lease is over."""


class ClientIncarnation:
    """One incarnation of a client, by which a coordinator tells it from every other one, over all its connections."""

    def __init__(self, runtime: Runtime) -> None:
        self.incarnation = f"{int(runtime.random() * 2**52):013x}{int(runtime.random() * 2**52):013x}"
        self.members: set[Core] = set()
        """Cores of the clients whose producers and consumers take part in its transactions."""
        self._left_open = False

    def add_member(self, core: Core) -> None:
        """Let producers and consumers of a client take part."""
        self.members.add(core)

    def remove_member(self, core: Core) -> None:
        """Note that a client is closed, so that nothing more comes from it."""
        self.members.discard(core)

    def leaves_open(self) -> None:
        """Note that a transaction was left open for the check of its group."""
        self._left_open = True

    @property
    def has_left(self) -> bool:
        """True if nothing more of its transactions can arrive anywhere, and none was left to its group."""
        return not self._left_open and not any(core.resources() for core in self.members)

    def check(self, connection: Connection) -> None:
        """InvalidConfiguration where a broker answers, which would end transactions at its own topics only."""
        if not connection.features.supports_clusters:
            raise InvalidConfiguration(
                f"{connection.server_version} at {connection.endpoint} is no coordinator beside clusters",
                hint="give coordinator= the address of `pulsar-txn coordinator`, or leave it out: brokers have their own",
            )

    def fields(self) -> dict[str, Any]:
        """Of TC_CLIENT_CONNECT."""
        return {"incarnation": self.incarnation}

    def goodbye(self) -> dict[str, Any]:
        """The same, when it ends: another client may have its lanes."""
        return {"incarnation": self.incarnation, "goodbye": True}


@attrs.frozen
class Epoch:
    """One start of a transactional id: what another process needs to act as the same instance. Can be pickled.

    `ends_groups`: whether the coordinator ends several transactions by one record (`docs/adr/0023`).
    """

    name: str
    number: int
    coordinator_id: int
    ends_groups: bool


class TransactionalId:
    """One for each client that has one; shared by its sessions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch: int | None = None
        self.coordinator = 0

    def check(self, connection: Connection) -> None:
        """Raise TransactionalIdUnsupported where nobody would fence."""
        if not connection.features.supports_transactional_ids:
            text = f"{connection.server_version} knows no transactional ids, so nothing would fence {self.name!r}"
            raise TransactionalIdUnsupported(text, endpoint=connection.endpoint)

    def took_over(self, answer: Any) -> None:
        """TC_CLIENT_CONNECT_RESPONSE to the first request that names the id."""
        self.epoch = answer.transactional_epoch
        self.coordinator = answer.tc_id

    def forget_epoch(self) -> None:
        """Take over again with the next session."""
        self.epoch = None

    def act_as(self, epoch: Epoch) -> None:
        """Be the instance that got this epoch in another process."""
        self.epoch = epoch.number
        self.coordinator = epoch.coordinator_id

    def fields(self) -> dict[str, Any]:
        """The fields of a request that carry the epoch; empty without an epoch."""
        return {} if self.epoch is None else {"transactional_id": self.name, "transactional_epoch": self.epoch}


DESCRIBE_TRANSACTIONAL_ID = "describeTransactionalId"


@attrs.frozen
class DescribedTransaction:
    """A transaction of a transactional id that is open, prepared or being ended.

    `epoch`: of the instance that began it. Times are milliseconds, those of an instant since 1970: `start_time_ms`, and
    `modified_ms`, when its status changed last or a participant was registered. `timeout_ms` counts from the start.
    `participants`: topic partitions and subscriptions, the first of `participant_count`. `clusters` has the cluster of each
    of them beside clusters, and is empty elsewhere. `check_group`: who is asked for its outcome; `check_count`: how often.
    """

    txn_id: TxnId
    status: TxnStatus
    epoch: int
    start_time_ms: int
    timeout_ms: int
    modified_ms: int
    participants: tuple[Participant, ...]
    participant_count: int
    clusters: tuple[str, ...] = ()
    check_group: str | None = None
    check_count: int = 0


@attrs.frozen
class TransactionalIdInfo:
    """A transactional id at a moment.

    `epoch`: the newest one. `last_used_ms`: when that was last used, milliseconds since 1970. `transactions`: what of all
    epochs has not ended, oldest first: the first 1,000 of `transaction_count`.
    """

    transactional_id: str
    coordinator_id: int
    epoch: int
    last_used_ms: int
    transactions: tuple[DescribedTransaction, ...]
    transaction_count: int


def describe_encoder(name: str, owner: str | None, tc_id: int | None = None) -> partial[bytes]:
    """DESCRIBE_TRANSACTIONAL_ID, which the number of a request is handed to. `tc_id`: which coordinator is asked."""
    further: dict[str, Any] = {} if owner is None else {"owner": owner}
    if tc_id is not None:
        further["tc_id"] = tc_id
    return partial(_encode, {"transactional_id": name} | further)


def _encode(fields: dict[str, Any], number: int) -> bytes:
    return command(DESCRIBE_TRANSACTIONAL_ID, request_id=number, **fields)


def check_describes(connection: Connection) -> None:
    """FeatureUnsupported unless the peer knows the request."""
    if not connection.features.describes_transactional_ids:
        text = f"{connection.server_version} does not describe transactional ids"
        raise FeatureUnsupported(text, endpoint=connection.endpoint)


def info_of(name: str, answer: Any) -> TransactionalIdInfo | None:
    """Read the answer; None when nothing is known of the id."""
    if not answer.HasField("epoch"):
        return None
    transactions = tuple(map(_transaction, answer.transactions))
    return TransactionalIdInfo(
        name, answer.tc_id, answer.epoch, answer.last_used_millis, transactions, answer.transaction_count
    )


def _transaction(body: Any) -> DescribedTransaction:
    places = body.participants
    return DescribedTransaction(
        TxnId(signed64(body.txnid_most_bits), signed64(body.txnid_least_bits)),
        TxnStatus(body.status),
        body.epoch,
        body.start_time_millis,
        body.timeout_millis,
        body.modified_millis,
        tuple(Participant(each.topic, each.subscription if each.HasField("subscription") else None) for each in places),
        body.participant_count,
        tuple(each.cluster for each in places) if any(each.HasField("cluster") for each in places) else (),
        body.check_group if body.HasField("check_group") else None,
        body.check_count,
    )


logger = logging.getLogger("pulsar_txn.client.coordinators")

HANDSHAKE_VERSION: Final = 19
"""The protocol version that has TC_CLIENT_CONNECT; older brokers load their coordinators by themselves."""

_RETRY: Final = (CoordinatorUnavailable, ServiceNotReady, ConnectionLost)


class RequestTally:
    """Counters of one transaction's requests to its coordinator."""

    __slots__ = ("endpoint", "retries", "sent")

    def __init__(self) -> None:
        self.sent = 0
        """Requests that left, or may have."""
        self.retries = 0
        self.endpoint: str | None = None


class CoordinatorSession:
    """The session with one coordinator."""

    def __init__(
        self,
        core: Core,
        coordinator_id: int,
        topic: str,
        identity: TransactionalId | None = None,
        incarnation: ClientIncarnation | None = None,
        on_connected: Callable[[CoordinatorSession], object] = lambda _session: None,
    ) -> None:
        self.coordinator_id = coordinator_id
        self._on_connected = on_connected
        self._core = core
        self._identity = identity
        self._incarnation = incarnation
        self._attachment = Attachment(core, topic, self)

    @property
    def connection(self) -> Connection | None:
        """That to its broker, while it is there."""
        return self._attachment.connection

    @property
    def is_connected(self) -> bool:
        """True if requests can leave at once."""
        return self._attachment.connection is not None

    @property
    def ends_groups(self) -> bool:
        """True if the broker, while connected, ends several transactions by one record."""
        connection = self._attachment.connection
        return connection is not None and connection.features.supports_group_end

    @property
    def endpoint(self) -> str | None:
        """`host:port` of the coordinator's broker while connected."""
        connection = self._attachment.connection
        return None if connection is None else connection.endpoint

    async def start(self) -> None:
        """Connect; raises TransactionsDisabled, or what stood in the way once the operation timeout is over."""
        await self._attach(Retries(self._core, f"opening {self._attachment.topic}"))

    def retry_later(self) -> None:
        """The first attempt failed: go on trying in the background."""
        self._attachment.run(self._attach_again())

    def close(self, error: PulsarError | None = None) -> None:
        """End the session; requests that wait for it fail with `error` (AlreadyClosed without one)."""
        self._attachment.close(error or AlreadyClosed("the client is closed"))

    async def _attach(self, attempts: AbstractAsyncContextManager[None, bool]) -> None:
        while self._attachment.is_wanted:
            async with attempts:
                async with self._attachment.opening() as connection:
                    await self._introduce(connection)
                if self._attachment.connection is connection:
                    self._on_connected(self)
                return

    async def _attach_again(self) -> None:
        try:
            await self._attach(self._attachment.attempts())
        except PulsarError as error:
            self._attachment.fail(error)

    async def _introduce(self, connection: Connection) -> None:
        identity: dict[str, Any] = {}
        if self._identity is not None:
            self._identity.check(connection)
            identity = self._identity.fields()
        if self._incarnation is not None:
            self._incarnation.check(connection)
            identity |= self._incarnation.fields()
        if connection.protocol_version >= HANDSHAKE_VERSION:
            try:
                await connection.request(
                    "tcClientConnectRequest", self._core.next_request_id(), tc_id=self.coordinator_id, **identity
                )
            except NotAllowedError as error:
                if self._identity is not None:
                    raise TransactionFenced(error.message, endpoint=connection.endpoint) from error
                hint = TRANSACTIONS_OFF if self._incarnation is None else None
                raise TransactionsDisabled(error.message, endpoint=connection.endpoint, hint=hint) from error

    def leave(self, connection: Connection, error: PulsarError) -> None:
        """The coordinator is not served there any more: look for its broker again. No effect when that is known."""
        if self._attachment.connection is connection and self._attachment.leave():
            self._lost(error)

    def on_connection_lost(self, connection: Connection, error: PulsarError) -> None:
        """The connection has ended."""
        if self._attachment.lost(connection):
            self._lost(error)

    def _lost(self, error: PulsarError) -> None:
        logger.info("coordinator %d cannot be reached and is tried again: %s", self.coordinator_id, error)
        self._attachment.run(self._attach_again())

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
            connection = self._attachment.connection or await self._connected(
                left, name, failure, txn_id, lost_answer=lost_answer
            )
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
                error.with_details(txn_id=txn_id, maybe_processed=lost_answer)
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
                return await self._attachment.attached(f"coordinator {self.coordinator_id}")
        except PulsarError as error:
            # A copy, because the session's end is one and the same error for all its requests.
            raise copy.copy(error).with_details(txn_id=txn_id, maybe_processed=lost_answer) from error
        except TimeoutError:
            if failure is not None:
                raise _unavailable(failure) from None
            text = f"coordinator {self.coordinator_id} was not reached in time for {name}"
            raise OperationTimeout(text, txn_id=txn_id) from None


def _unavailable(failure: PulsarError) -> PulsarError:
    """The error of a coordinator that was not served for as long as there was time."""
    if not isinstance(failure, ServiceNotReady):
        return failure
    return CoordinatorUnavailable(
        failure.message, txn_id=failure.txn_id, endpoint=failure.endpoint, maybe_processed=failure.maybe_processed
    )
