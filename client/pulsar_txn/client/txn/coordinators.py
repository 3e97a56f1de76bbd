"""The transaction coordinators of a cluster, and the requests that transactions make of them.

Coordinator i belongs to the broker that serves partition i of the assign topic. New transactions go round robin over the
coordinators that are connected; all other requests go to the coordinator that the transaction's id names.

Brokers up to 4.x tell by the partitions of the assign topic which coordinators there are; Pulsar 5 has a watch for it, for
which `CoordinatorDirectory` is the place.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from pulsar_txn.client.errors import (
    AlreadyClosed,
    AuthorizationError,
    CoordinatorUnavailable,
    InvalidConfiguration,
    NotAllowedError,
    ProducerFenced,
    PulsarError,
    TopicNotFound,
    TransactionsDisabled,
)
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.retries import count_partitions
from pulsar_txn.client.state.prepared import PreparedToken
from pulsar_txn.client.txn.check_groups import CheckGroups
from pulsar_txn.client.txn.encoding import (
    EndTxnFrame,
    Named,
    NewTxnFrame,
    by_cluster,
    check_checks,
    check_prepares,
    encode_partitions,
    encode_prepare,
    encode_subscriptions,
)
from pulsar_txn.client.txn.session import (
    DESCRIBE_TRANSACTIONAL_ID,
    GOODBYE_SECONDS,
    NO_ASSIGN_TOPIC,
    ClientIncarnation,
    CoordinatorSession,
    Epoch,
    RequestTally,
    TransactionalId,
    TransactionalIdInfo,
    check_describes,
    describe_encoder,
    explained,
    info_of,
)
from pulsar_txn.wire.hot_txn import Checked
from pulsar_txn.wire.ids import TxnAction, TxnId, coordinator_of
from pulsar_txn.wire.topics import ASSIGN_TOPIC, TopicName, partition_name


class CoordinatorDirectory(Protocol):
    """Source of the coordinators that there are."""

    async def topics(self) -> list[str]:
        """One name per coordinator, in the order of their ids, that a lookup resolves to its broker.

        Raises TransactionsDisabled if there is no coordinator.
        """
        ...


class AssignTopicDirectory:
    """Discovery by the partitions of the assign topic, as brokers up to 4.x have it."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def topics(self) -> list[str]:
        """The partitions of the assign topic."""
        try:
            count = await count_partitions(self._core, TopicName.parse(ASSIGN_TOPIC), create=False)
        except TopicNotFound:
            count = 0
        except AuthorizationError as error:
            raise explained(error) from None
        if not count:
            raise TransactionsDisabled("the cluster has no transaction coordinator", hint=NO_ASSIGN_TOPIC)
        return [partition_name(ASSIGN_TOPIC, index) for index in range(count)]


logger = logging.getLogger("pulsar_txn.client.coordinators")

NONCE_BYTES: Final = 16
"""Random ones, of each NEW_TXN: the coordinator takes two with the same for one request."""


class TransactionCoordinators:
    """All coordinators of the cluster. Looked up at the first transaction; `requests` are those of the protocol.

    `incarnation`: how the client is known to coordinators that are beside their clusters.
    """

    def __init__(
        self,
        core: Core,
        directory: CoordinatorDirectory | None = None,
        incarnation: ClientIncarnation | None = None,
        groups: CheckGroups | None = None,
    ) -> None:
        self._core = core
        self._incarnation = incarnation
        self._groups = groups or CheckGroups(core, lambda: self)
        self._directory = directory or AssignTopicDirectory(core)
        self._sessions: list[CoordinatorSession] = []
        self._starting: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[bool] | None = None
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
        sessions = [self._session_with(index, topic) for index, topic in enumerate(topics)]
        starts = [self._core.spawn(session.start()) for session in sessions]
        failure = await self._first_start(starts)
        if failure is None and self._identity is not None and self._identity.epoch is None:
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
            raise explained(failure)
        for session, start in zip(sessions, starts, strict=True):
            start.add_done_callback(lambda done, session=session: _note_failed_start(session, done))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        self._sessions = sessions
        self._core.register(self._order, self)

    def _session_with(self, index: int, topic: str) -> CoordinatorSession:
        return CoordinatorSession(self._core, index, topic, self._identity, self._incarnation, self._groups.connected)

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

    async def take_over(self) -> Epoch:
        """A new epoch of the client's transactional id, above all before it. Raises as `start`, and as requests do.

        Older epochs are fenced by the first transaction of this one.
        """
        identity = self._needed_identity()
        if not self._sessions:
            identity.forget_epoch()
            await self.start()
        else:
            await self._take_over(self._sessions, identity)
        assert identity.epoch is not None  # noqa: S101 - that is what taking over gives
        return Epoch(identity.name, identity.epoch, identity.coordinator, self._sessions[identity.coordinator].ends_groups)

    async def taken_over(self) -> int:
        """The epoch of the client's transactional id, which is taken over unless it was. Raises as `take_over`."""
        identity = self._needed_identity()
        if identity.epoch is None or not self._sessions:
            await self.start()
        assert identity.epoch is not None  # noqa: S101 - starting takes over
        return identity.epoch

    async def end_groups(self) -> bool:
        """True if a coordinator can end several transactions by one record. Raises as `start`."""
        await self.start()
        return any(session.ends_groups for session in self._sessions)

    async def act_as(self, epoch: Epoch) -> None:
        """Be the instance that another process made by `take_over`. Raises as requests do."""
        identity = self._needed_identity()
        if epoch.name != identity.name:
            raise InvalidConfiguration(f"the client is {identity.name!r}, and the epoch is one of {epoch.name!r}")
        if identity.epoch == epoch.number and self._sessions:
            return
        identity.act_as(epoch)
        if self._sessions:
            await self._sessions[identity.coordinator].introduce(identity.fields())

    def _needed_identity(self) -> TransactionalId:
        if self._identity is None:
            raise InvalidConfiguration("the client has no transactional id", hint="make it with transactional_id=")
        return self._identity

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
        if self._incarnation is not None and self._incarnation.has_left:
            await self._say_goodbye(self._incarnation)
        for session in self._sessions:
            session.close()
        self._core.unregister(self._order)

    async def _say_goodbye(self, incarnation: ClientIncarnation) -> None:
        goodbyes = [session.introduce(incarnation.goodbye()) for session in self._sessions if session.is_connected]
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                answers = await asyncio.gather(*goodbyes, return_exceptions=True)
        except TimeoutError:
            answers = [TimeoutError()]
        if any(isinstance(answer, Exception) for answer in answers):
            logger.info("not every coordinator has heard the goodbye of this client; its lease will end")

    def leave(self, error: PulsarError) -> None:
        """The client goes to another cluster: whatever is asked of these from now on fails with `error`."""
        self._left = error
        for session in self._sessions:
            session.close(error)
        self._core.unregister(self._order)

    @property
    def sessions(self) -> Sequence[CoordinatorSession]:
        """Those with all coordinators that are known, in the order of their ids."""
        return self._sessions

    @property
    def count(self) -> int:
        """The number of coordinators; 0 before the first transaction."""
        return len(self._sessions)

    def endpoint(self, coordinator_id: int) -> str | None:
        """The address where a coordinator is served, while connected to it."""
        return self._sessions[coordinator_id].endpoint if 0 <= coordinator_id < len(self._sessions) else None

    # --- requests -----------------------------------------------------------------------------------------------------

    @property
    def registers_first(self) -> bool:
        """True if `new_txn` takes `first`: coordinators beside clusters do."""
        return self._incarnation is not None

    async def new_txn(
        self,
        timeout_ms: int,
        *,
        timeout: float | None = None,
        tally: RequestTally | None = None,
        first: Sequence[Named] = (),
        checked: Checked | None = None,
    ) -> TxnId:
        """Open a transaction at the next coordinator that is connected; the coordinator aborts it after `timeout_ms`.

        `first` is registered with it. `checked`: its check group, and what else a coordinator of ours can do.

        When an answer was lost the request goes out again. It has a nonce, so that a coordinator of ours opens one
        transaction; at a stock one, the transaction that nobody knows then ends by its timeout.
        Raises FeatureUnsupported, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout, BrokerError.
        """
        if not self._sessions:
            await self.start()
        session = self._pick()
        nonce = self._core.runtime.secret(NONCE_BYTES)
        frame = NewTxnFrame(timeout_ms, session.coordinator_id, first, checked, nonce)
        txn_id: TxnId = await session.request("newTxn", frame.encode, None, timeout, tally, frame.suit)
        return txn_id

    async def add_partitions(
        self, txn_id: TxnId, topics: Iterable[str], *, timeout: float | None = None, tally: RequestTally | None = None
    ) -> None:
        """ADD_PARTITION_TO_TXN: the partitions' full names. Idempotent. Raises the answer's error; see `request`."""
        session = await self._session(txn_id)
        named = [(topic, None) for topic in topics]
        for cluster, names in (by_cluster(named) if self._incarnation is not None else {"": named}).items():
            encode = partial(encode_partitions, txn_id, names, cluster)
            await session.request("addPartitionToTxn", encode, txn_id, timeout, tally)

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
        named = list(subscriptions)
        for cluster, pairs in (by_cluster(named) if self._incarnation is not None else {"": named}).items():
            encode = partial(encode_subscriptions, txn_id, pairs, cluster)
            await session.request("addSubscriptionToTxn", encode, txn_id, timeout, tally)

    async def end_txn(
        self,
        txn_id: TxnId,
        action: TxnAction,
        *,
        timeout: float | None = None,
        tally: RequestTally | None = None,
        group: Sequence[TxnId] = (),
        abort_others: bool = False,
        prepared: PreparedToken | None = None,
        at_decision: bool = False,
        all_answered: bool = False,
    ) -> None:
        """END_TXN. Raises InvalidTransactionStatus, TransactionNotFound and the others of `CoordinatorSession.request`.

        `group`: further transactions of the same coordinator, which end with it or are not changed. `abort_others`: all else
        that the transactional id has open is aborted. InvalidConfiguration when the broker does not know that.
        `prepared`: shows the right to end a prepared transaction. `at_decision`: the answer need not wait for participants,
        where the coordinator can do that (`needs_checks` says whether). `all_answered` is said to coordinators beside clusters.
        `maybe_processed` on the error tells whether an earlier attempt may have ended the transaction.
        """
        session = await self._session(txn_id)
        frame = EndTxnFrame(
            txn_id,
            action,
            group,
            abort_others=abort_others,
            prepared=prepared,
            at_decision=at_decision,
            all_answered=all_answered and self._incarnation is not None,
        )
        await session.request("endTxn", frame.encode, txn_id, timeout, tally, None if frame.is_plain else frame.suit)

    async def prepare_txn(
        self, token: PreparedToken, *, timeout: float | None = None, tally: RequestTally | None = None
    ) -> None:
        """PREPARE_TXN; a repeat with the same token has no effect. Raises FeatureUnsupported, and as `end_txn`."""
        session = await self._session(token.txn_id)
        encode = partial(encode_prepare, token)
        await session.request("prepareTxn", encode, token.txn_id, timeout, tally, check_prepares)

    async def describe(self, name: str, owner: str | None) -> TransactionalIdInfo | None:
        """DESCRIBE_TRANSACTIONAL_ID, of the coordinator that has the id. Raises FeatureUnsupported, and as requests do."""
        if not self._sessions:
            await self.start()
        session = next((each for each in self._sessions if each.is_connected), self._sessions[0])
        answer = await session.request(
            DESCRIBE_TRANSACTIONAL_ID, describe_encoder(name, owner), None, None, None, check_describes
        )
        if answer.elsewhere:
            there = await self._of(answer.tc_id, None)
            encode = describe_encoder(name, owner, answer.tc_id)
            answer = await there.request(DESCRIBE_TRANSACTIONAL_ID, encode, None, None, None, check_describes)
        return info_of(name, answer)

    @property
    def may_be_fenced(self) -> bool:
        """True if the client has a transactional id."""
        return self._identity is not None

    async def why_refused(self, error: NotAllowedError) -> PulsarError:
        """ProducerFenced when a newer instance of the transactional id is known to have begun, else `error`. Never raises.

        Stock brokers do not know instances: they say only that the transaction has ended, as they do after its timeout. So
        the coordinator is asked, once for all sends that are refused meanwhile.
        """
        identity = self._identity
        if identity is None:
            return error
        if self._asking is None or self._asking.done():
            self._asking = self._core.spawn(self._has_successor(identity))
        if not await asyncio.shield(self._asking):
            return error
        text = f"transactional id {identity.name!r} was taken over by a newer instance, and a broker refused the send"
        fenced = ProducerFenced(f"{text}: {error.message}", txn_id=error.txn_id, endpoint=error.endpoint)
        fenced.__cause__ = error
        return fenced

    async def _has_successor(self, identity: TransactionalId) -> bool:
        try:
            info = await self.describe(identity.name, None)
        except ProducerFenced:
            return True
        except PulsarError as error:
            logger.info("whether transactional id %r was taken over is not known: %s", identity.name, error)
            return False
        return info is not None and identity.epoch is not None and info.epoch > identity.epoch

    async def needs_checks(self, txn_id: TxnId, what: str) -> None:
        """FeatureUnsupported when the transaction's coordinator is known to lack checks and prepare. Raises as `start`."""
        session = await self._session(txn_id)
        if session.connection is not None:
            check_checks(session.connection, what)

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
        return await self._of(coordinator_of(txn_id.most), txn_id)

    async def _of(self, number: int, txn_id: TxnId | None) -> CoordinatorSession:
        if number >= len(self._sessions):
            await self.grow()
        if not 0 <= number < len(self._sessions):
            raise CoordinatorUnavailable(
                f"there is no coordinator {number}: the cluster has {len(self._sessions)}",
                txn_id=txn_id,
                hint="is this transaction of another cluster?",
            )
        return self._sessions[number]

    async def grow(self) -> None:
        """Look for coordinators that were added since; they take part in the round robin from now on."""
        topics = await self._directory.topics()
        for index in range(len(self._sessions), len(topics)):
            session = self._session_with(index, topics[index])
            self._sessions.append(session)
            session.retry_later()


def _note_failed_start(session: CoordinatorSession, start: asyncio.Task[Any]) -> None:
    """A coordinator that could not be reached while another could: keep trying, so that it can serve later."""
    if not start.cancelled() and (error := start.exception()) is not None:
        logger.warning("coordinator %d cannot be reached and is tried again: %s", session.coordinator_id, error)
        session.retry_later()
