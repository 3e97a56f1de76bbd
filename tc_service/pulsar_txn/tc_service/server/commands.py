"""The commands of the coordinator's clients: CONNECT, the search for the coordinators, and registrations.

END_TXN is carried out as in the broker, and so is NEW_TXN, unless a client says with it what the transaction writes to first:
both come in one request, and in one sync of the log.

Each client has a `Session`, and its connection is its sign of life. While it has one, its leases at the coordinators are
renewed for it; when it has none for the time of a lease, the coordinators abort what it has open and never use its lanes
again. Nothing here decides an outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from pulsar_txn.broker.serving import (
    CHECK_HANDLERS,
    DESCRIBE_HANDLERS,
    MAX_PARTICIPANTS,
    REFUSALS,
    Answer,
    Answering,
    Authentication,
    BrokerConfig,
    ClientTransactions,
    CoordinatorHost,
    Coordinators,
    Introduction,
    Limits,
    TakeOvers,
    TransactionalIds,
    Turn,
    asked,
    identify,
    on_end_txn,
    on_new_txn,
    on_prepare_txn,
    refuse_new_txn,
)
from pulsar_txn.tc.requests import Renew
from pulsar_txn.tc_service.cluster.participants import ParticipantRefused, normalise
from pulsar_txn.wire import hot_txn
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import MalformedFrame, Refusal, ServerError
from pulsar_txn.wire.hot_tails import FirstParticipant
from pulsar_txn.wire.ids import Participant, TxnId
from pulsar_txn.wire.topics import ASSIGN_TOPIC, InvalidName, TopicName

from .clusters import Clusters, of_cluster
from .leaders import Leaders

if TYPE_CHECKING:
    pass

_Wanted: TypeAlias = dict[str, list[Participant]]
"""Participants by cluster."""
_PROTOCOL_VERSION: Final = 21
_MAX_VERSION_LENGTH: Final = 256
_SERVER_VERSION: Final = f"pulsar-txn {version('pulsar-txn')} coordinator"
_NO_TOPICS: Final = (
    "this is a transaction coordinator, which has no topics; give the client the service URL of its cluster, and this address "
    "as coordinator="
)


class Services(Protocol):
    """Services that the commands ask of the server."""

    coordinators: Coordinators
    transactional_ids: TransactionalIds | None
    take_overs: TakeOvers | None
    config: BrokerConfig
    turn: Turn
    clusters: Clusters
    leaders: Leaders
    service_url: str
    service_url_tls: str
    authentication: Authentication
    limits: Limits
    sessions: Sessions

    @property
    def ends_groups(self) -> bool:
        """True if the coordinators end several transactions by one record."""

    @property
    def checks(self) -> bool:
        """True if the coordinators ask check groups."""

    def cluster_and_participant(self, participant: Participant) -> tuple[str, Participant]:
        """A participant as its cluster knows it, and that cluster."""


Handler: TypeAlias = "Callable[[Session, Any], Coroutine[Any, Any, None] | None]"


FrameHandler: TypeAlias = "Callable[[Session, bytes], None]"


class Session:
    """The state of one client.

    `principal`: who it is, None without authentication, and whether that is an operator: `superuser`. `incarnation`: its
    name for this run of its process.
    """

    is_busy = False

    def __init__(
        self,
        services: Services,
        connection: Answering,
    ) -> None:
        self.services = services
        self.connection = connection
        self.commands: Mapping[int, Handler] = COMMANDS
        self.frames: Mapping[int, Callable[[bytes], None]] = {}
        self.requests = {kind: partial(handler, self) for kind, handler in REQUESTS.items()}
        urls = services.service_url, services.service_url_tls
        self.introduction = Introduction(services.authentication, connection, services.turn, urls, services.limits)
        self.principal: str | None = None
        self.superuser = False
        self.incarnation: str | None = None
        self.coordinators: set[int] = set()
        """Coordinators that it has connected to."""
        self.answers_checks = False
        self.transactions = ClientTransactions()
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, task: asyncio.Task[None]) -> None:
        """A request that takes longer: it ends with the client."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def writable_changed(self, *, writable: bool) -> None:
        """Note that the client reads what it is sent, or does not."""
        if self.transactions.member is not None:
            self.services.coordinators.check_groups.writable_changed(self.transactions.member)

    def ended(self) -> None:
        """This connection is gone. The client's transactions stay open until its lease, or their timeout, is over.

        Those that it opened to end with its connection are aborted.
        """
        self.transactions.leave(self.services.coordinators)
        self.services.limits.leave_role(self.principal, self)
        self.services.sessions.discard(self)
        self.introduction.ended()
        for task in self._tasks:
            task.cancel()
        self.requests.clear()  # no circle is left: a connection that ends is freed at once


class Sessions:
    """The sessions of clients that have connected to a coordinator."""

    def __init__(self) -> None:
        self._all: set[Session] = set()

    def __iter__(self) -> Iterator[Session]:
        return iter(self._all)

    def add(self, session: Session) -> None:
        """Keep one that has connected to a coordinator."""
        self._all.add(session)

    def discard(self, session: Session) -> None:
        """Forget one whose connection is gone."""
        self._all.discard(session)

    def renew(self, serving: Mapping[int, CoordinatorHost]) -> None:
        """Renew the leases of the clients, because they are connected."""
        alive = {
            (tc_id, session.principal, session.incarnation)
            for session in self._all
            if session.incarnation is not None
            for tc_id in session.coordinators
        }
        for tc_id, principal, incarnation in alive:
            host = serving.get(tc_id)
            if host is not None:
                host.submit_timed(Renew(_not_needed, incarnation, principal), reserve=True)


def _not_needed(_value: Any, _error: ServerError | None, _message: str) -> None:
    """A client that was believed gone hears of it when it goes on."""


def on_new(session: Session, frame: bytes) -> None:
    """NEW_TXN, with what it writes to first: nothing is opened when one of these cannot take part."""
    first = hot_txn.first_participants_of(frame)
    if not first:
        on_new_txn(session, frame)
        return
    try:
        wanted = _wanted(session.services.clusters, first)
    except Refusal as refusal:
        refuse_new_txn(session, frame, refusal.code, refusal.message)
        return
    if all(session.services.clusters.is_verified(*each) for each in wanted.items()):
        on_new_txn(session, frame, _encoded(wanted))
    else:
        session.keep(asyncio.get_running_loop().create_task(_check_first(session, frame, wanted)))


def _wanted(clusters: Clusters, first: Sequence[FirstParticipant]) -> _Wanted:
    if len(first) > MAX_PARTICIPANTS:
        raise too_many(len(first))
    found: _Wanted = {}
    for topic, subscription, cluster in first:
        try:
            participant = normalise(topic, subscription)
        except ParticipantRefused as refused:
            raise Refusal(ServerError.NotAllowedError, str(refused)) from None
        found.setdefault(clusters.named(cluster), []).append(participant)
    return found


def _encoded(wanted: _Wanted) -> tuple[Participant, ...]:
    return tuple(chain.from_iterable(of_cluster(cluster, each) for cluster, each in wanted.items()))


async def _check_first(session: Session, frame: bytes, wanted: _Wanted) -> None:
    """Ask the clusters whether the participants are there, and open the transaction. Always answers."""
    for cluster, participants in wanted.items():
        refusal = await refusal_of(session.services.clusters, cluster, participants)
        if refusal is not None:
            refuse_new_txn(session, frame, refusal.code, refusal.message)
            return
    on_new_txn(session, frame, _encoded(wanted))


async def refusal_of(clusters: Clusters, cluster: str, participants: Sequence[Participant]) -> Refusal | None:
    """Refusal for a participant that cannot take part, or could not be asked about; None when all can."""
    try:
        await clusters.verify(cluster, participants)
    except Refusal as refusal:
        return refusal
    except Exception as error:  # noqa: BLE001 - the client gets it, and may try again
        return Refusal(ServerError.ServiceNotReady, f"cluster {cluster} could not be asked: {error}; retry")
    return None


def too_many(count: int) -> Refusal:
    """Refusal of a request that names too many participants."""
    text = f"{count} participants in one request; {MAX_PARTICIPANTS} are the most, send several"
    return Refusal(ServerError.NotAllowedError, text)


def on_connect(session: Session, body: Any) -> None:
    """CONNECT: who the client is. A second one closes the connection, and so does one that is refused."""
    if session.connection.connected:
        raise MalformedFrame("CONNECT came a second time")
    if not session.introduction.let_in(session, body):
        return
    session.answers_checks = body.feature_flags.supports_checks
    session.connection.know(body.client_version[:_MAX_VERSION_LENGTH])
    session.connection.write_command(
        "connected",
        server_version=_SERVER_VERSION,
        protocol_version=min(_PROTOCOL_VERSION, body.protocol_version),
        max_message_size=session.services.config.max_message_size,
        feature_flags=pb.FeatureFlags(
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_transactional_ids=session.services.transactional_ids is not None,
            keeps_transaction_outcomes=session.services.config.transaction_outcome_retention_count > 0,
            supports_group_end=session.services.ends_groups,
            supports_clusters=True,
            supports_checks=session.services.checks,
            describes_transactional_ids=session.services.transactional_ids is not None,
        ),
    )


def on_auth_response(session: Session, body: Any) -> None:
    """AUTH_RESPONSE: fresh credentials, which the client was asked for."""
    session.introduction.renew(body)


def on_ping(session: Session, _body: Any) -> None:
    """PING."""
    session.connection.write_command("pong")


def on_pong(_session: Session, _body: Any) -> None:
    """PONG: that something was heard is noted already."""


def on_partitioned_metadata(session: Session, body: Any) -> None:
    """PARTITIONED_METADATA: the assign topic has a partition for each coordinator; there is no other topic."""
    answer = partial(session.connection.write_command, "partitionMetadataResponse", request_id=body.request_id)
    failed = pb.CommandPartitionedTopicMetadataResponse.Failed
    count = len(session.services.coordinators)
    if body.topic != ASSIGN_TOPIC:
        answer(response=failed, error=int(ServerError.NotAllowedError), message=_NO_TOPICS)
    elif not count:
        answer(response=failed, error=int(ServerError.ServiceNotReady), message="this coordinator is starting; retry")
    else:
        answer(partitions=count, response=pb.CommandPartitionedTopicMetadataResponse.Success)


def on_lookup(session: Session, body: Any) -> None:
    """LOOKUP: where a coordinator is. One instance has all of them, and the client stays on the address that it came by."""
    answer = partial(session.connection.write_command, "lookupTopicResponse", request_id=body.request_id)
    failed = pb.CommandLookupTopicResponse.Failed
    tc_id = assign_partition(body.topic)
    if tc_id is None:
        answer(response=failed, error=int(ServerError.NotAllowedError), message=_NO_TOPICS)
        return
    leaders = session.services.leaders
    leader = leaders.find(tc_id)
    if leader is None:
        text = f"no instance is known to lead coordinator {tc_id} at this moment; retry"
        answer(response=failed, error=int(ServerError.ServiceNotReady), message=text)
    else:
        answer(
            brokerServiceUrl=leader.plain,
            brokerServiceUrlTls=leader.tls,
            response=pb.CommandLookupTopicResponse.Connect,
            authoritative=True,
            proxy_through_service_url=not leaders.is_shared,
        )


def assign_partition(topic: str) -> int | None:
    """The coordinator that a partition of the assign topic stands for."""
    try:
        name = TopicName.parse(topic)
    except InvalidName:
        return None
    return max(name.partition, 0) if str(name.base) == ASSIGN_TOPIC else None


async def on_tc_connect(session: Session, body: Any) -> None:
    """TC_CLIENT_CONNECT_REQUEST: answered once the coordinator serves.

    Who names a transactional id gets its identity, once everything that older epochs left behind has ended. Who says goodbye
    is answered when that is durable.
    """
    answer = partial(session.connection.write_command, "tcClientConnectResponse", request_id=body.request_id)
    try:
        answer(**await _introduced(session, body))
    except Refusal as refusal:
        answer(error=int(refusal.code), message=refusal.message)


async def _introduced(session: Session, body: Any) -> dict[str, int]:
    coordinators = session.services.coordinators
    await coordinators.connect(body.tc_id)
    if body.goodbye:
        incarnation = session.incarnation
        if incarnation is not None:  # it has ended all that it began: its lanes may serve another one
            await asked(lambda answer: coordinators.goodbye(body.tc_id, session.principal, incarnation, answer))
        return {}
    if body.incarnation:
        if session.incarnation not in (None, body.incarnation):
            raise Refusal(ServerError.NotAllowedError, "this connection is of another incarnation of the client")
        session.incarnation = body.incarnation
    session.coordinators.add(body.tc_id)
    session.services.sessions.add(session)
    if not body.HasField("transactional_id"):
        return {}
    return await identify(session, body, coordinators)


def on_add_partition(session: Session, frame: bytes) -> None:
    """ADD_PARTITION_TO_TXN."""
    head, txn_id, topics = hot_txn.decode_add_partitions(frame)
    cluster = hot_txn.cluster_of(frame, hot_txn.ADD_PARTITION_TO_TXN)
    _add(session, head, txn_id, hot_txn.ADD_PARTITION_TO_TXN_RESPONSE, cluster, [(topic, None) for topic in topics])


def on_add_subscription(session: Session, frame: bytes) -> None:
    """ADD_SUBSCRIPTION_TO_TXN."""
    head, txn_id, subscriptions = hot_txn.decode_add_subscriptions(frame)
    cluster = hot_txn.cluster_of(frame, hot_txn.ADD_SUBSCRIPTION_TO_TXN)
    _add(session, head, txn_id, hot_txn.ADD_SUBSCRIPTION_TO_TXN_RESPONSE, cluster, subscriptions)


def _add(
    session: Session, head: bytes, txn_id: TxnId, response: int, cluster: str, named: Sequence[tuple[str, str | None]]
) -> None:
    """One refusal refuses the whole request, and registers nothing."""
    done = hot_txn.encode_response(response, head)
    answer = partial(session.connection.respond, done, REFUSALS[response], head)
    if len(named) > MAX_PARTICIPANTS:
        refusal = too_many(len(named))
        answer(None, refusal.code, refusal.message)
        return
    clusters = session.services.clusters
    try:
        where = clusters.named(cluster)
        participants = [normalise(topic, subscription) for topic, subscription in named]
    except Refusal as refusal:
        answer(None, refusal.code, refusal.message)
    except ParticipantRefused as refused:
        answer(None, ServerError.NotAllowedError, str(refused))
    else:
        if clusters.is_verified(where, participants):
            _register(session, txn_id, where, participants, answer)
        else:
            session.keep(asyncio.get_running_loop().create_task(_check(session, txn_id, where, participants, answer)))


async def _check(session: Session, txn_id: TxnId, cluster: str, participants: Sequence[Participant], answer: Answer) -> None:
    """Ask the cluster whether the participants are there, and register them. Always answers."""
    refusal = await refusal_of(session.services.clusters, cluster, participants)
    if refusal is None:
        _register(session, txn_id, cluster, participants, answer)
    else:
        answer(None, refusal.code, refusal.message)


def _register(session: Session, txn_id: TxnId, cluster: str, participants: Sequence[Participant], answer: Answer) -> None:
    session.services.coordinators.add(
        txn_id, of_cluster(cluster, participants), session.principal, session.transactions.identity, answer
    )


def on_end(session: Session, frame: bytes) -> None:
    """END_TXN. Its owner may say that nothing of the transaction can come late: then its ends need not be repeated."""
    txn_id, services = hot_txn.all_answered_of(frame), session.services
    if txn_id is not None and services.coordinators.belongs_to(txn_id, session.principal):
        services.clusters.all_answered(txn_id)
    on_end_txn(session, frame)


REQUESTS: Final[dict[int, FrameHandler]] = {
    hot_txn.NEW_TXN: on_new,
    hot_txn.ADD_PARTITION_TO_TXN: on_add_partition,
    hot_txn.ADD_SUBSCRIPTION_TO_TXN: on_add_subscription,
    hot_txn.END_TXN: on_end,
    pb.BaseCommand.PREPARE_TXN: on_prepare_txn,
}


COMMANDS: Final[dict[int, Handler]] = {
    pb.BaseCommand.CONNECT: on_connect,
    pb.BaseCommand.AUTH_RESPONSE: on_auth_response,
    pb.BaseCommand.PING: on_ping,
    pb.BaseCommand.PONG: on_pong,
    pb.BaseCommand.PARTITIONED_METADATA: on_partitioned_metadata,
    pb.BaseCommand.LOOKUP: on_lookup,
    pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST: on_tc_connect,
    **CHECK_HANDLERS,
    **DESCRIBE_HANDLERS,
}
