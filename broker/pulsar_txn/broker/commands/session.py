"""Session of one client: its producers, its consumers, and who it is; and what the commands ask of the broker (`Services`).

A connection moves bytes; the session knows what they mean. Commands see the `Services` only, so they can be read and tested
without the broker. CONNECT, fresh credentials and keep-alive are here, all other commands in files of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Protocol, TypeAlias

from pulsar_txn.broker.base.limits import LimitReached, Limits
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.base.sorted_names import Pieces
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.catalog.catalog import Catalog
from pulsar_txn.broker.catalog.lists import TopicLists
from pulsar_txn.broker.dispatch.consumers import Consumer
from pulsar_txn.broker.net.authentication import Authentication
from pulsar_txn.broker.net.connection import Connection
from pulsar_txn.broker.net.intake import SENDS
from pulsar_txn.broker.net.introduction import Introduction
from pulsar_txn.broker.topics.nonpersistent import NonPersistentTopic
from pulsar_txn.broker.topics.producers import Producer
from pulsar_txn.broker.topics.topic import Topic
from pulsar_txn.broker.txn.coordinators import Coordinators
from pulsar_txn.broker.txn.participants import is_external
from pulsar_txn.broker.txn.transactional_ids import TakeOvers, TransactionalIds
from pulsar_txn.ledger.hosting import Answer
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import MalformedFrame, Refusal, ServerError
from pulsar_txn.wire.hot import encode_send_receipt
from pulsar_txn.wire.ids import Participant, Position, TxnAction, TxnId, unsigned64
from pulsar_txn.wire.topics import TopicName

from .txn_session import ClientTransactions

_PROTOCOL_VERSION: Final = 21
_MAX_VERSION_LENGTH: Final = 256
_SERVER_VERSION: Final = f"pulsar-txn {version('pulsar-txn')}"

AnyTopic: TypeAlias = "Topic | NonPersistentTopic"


Handler: TypeAlias = "Callable[[Session, Any], Coroutine[Any, Any, None] | None]"
"""Takes a command's body; a coroutine is run as a task of the connection, and its Refusal is answered with ERROR."""

FrameHandler: TypeAlias = "Callable[[Session, bytes], None]"
"""Takes a whole frame, and decodes it itself: for commands that travel per message or per transaction."""


class Services(Protocol):
    """Topics, names and coordinators of one broker. `coordinators` is None where transactions are switched off.

    `ends_groups`: whether the coordinators end several transactions by one record; `checks`: whether they ask check groups.
    """

    config: BrokerConfig
    turn: Turn
    catalog: Catalog
    topic_lists: TopicLists
    coordinators: Coordinators | None
    transactional_ids: TransactionalIds | None
    take_overs: TakeOvers | None
    ends_groups: bool
    checks: bool
    service_url: str
    service_url_tls: str
    authentication: Authentication
    limits: Limits

    def end_on_partition(self, topic: str, txn_id: TxnId, action: TxnAction, low_watermark: int, answer: Answer) -> None:
        """See `txn.participants.EndsTransactions`."""

    def end_on_subscription(
        self, topic: str, subscription: str, txn_id: TxnId, action: TxnAction, low_watermark: int, answer: Answer
    ) -> None:
        """See `txn.participants.EndsTransactions`."""

    def cluster_and_participant(self, participant: Participant) -> tuple[str, Participant]:
        """See `txn_session.Coordinating`."""

    async def topic(self, name: TopicName, *, create: bool = True) -> AnyTopic:
        """The topic, opened and recovered. Refusals: TopicNotFound, NotAllowedError, ServiceNotReady."""

    async def non_persistent_topics(self, tenant: str, namespace: str) -> Pieces:
        """Full names of the non-persistent topics that are in use, sorted."""

    def new_consumer_name(self) -> str:
        """A name for a consumer that brought none."""

    def remove_producer(self, producer: Producer) -> None:
        """A producer is gone."""

    def list_turn(self, connection: Connection) -> AbstractAsyncContextManager[None]:
        """Inside, one long answer may be made for this client. LimitReached: too many of them wait to be read."""


class Session:
    """The state of one client.

    `principal`: who the client is (None without authentication), and whether that is an operator: `superuser`.
    """

    def __init__(
        self,
        services: Services,
        commands: Mapping[int, Handler],
        frames: Mapping[int, FrameHandler],
        requests: Mapping[int, FrameHandler],
        connection: Connection,
    ) -> None:
        self.services = services
        self.connection = connection
        self.commands = commands
        self.frames = {kind: partial(handler, self) for kind, handler in frames.items()}
        self.requests = {kind: partial(handler, self) for kind, handler in requests.items()}
        urls = services.service_url, services.service_url_tls
        self.introduction = Introduction(services.authentication, connection, services.turn, urls, services.limits)
        self.principal: str | None = None
        self.superuser = False
        self.incarnation: str | None = None  # of use beside a cluster only
        self.answers_checks = False
        self.transactions = ClientTransactions()
        self.writable = True
        self.write_many = connection.write_many
        self.producers: dict[int, Producer] = {}
        self.waiting_producers: dict[int, tuple[Producer, Any]] = {}  # with the request of each
        self.opening_producers: dict[int, asyncio.Task[None]] = {}
        self.consumers: dict[int, Consumer] = {}
        self.opening_consumers: dict[int, asyncio.Task[None]] = {}
        self.closed_producers: deque[int] = deque(maxlen=64)
        self.pending_sends = 0
        self.max_pending_sends = services.config.max_pending_publish_requests_per_connection

    # ---- what the connection tells

    @property
    def is_busy(self) -> bool:
        """True if a publish is not answered yet."""
        return self.pending_sends > 0

    def writable_changed(self, *, writable: bool) -> None:
        """The client reads what it is sent, or does not: dispatchers go on when it does."""
        self.writable = writable
        coordinators = self.services.coordinators
        if self.transactions.member is not None and coordinators is not None:
            coordinators.check_groups.writable_changed(self.transactions.member)
        for consumer in self.consumers.values():
            consumer.set_writable(writable=writable)
            if writable:
                consumer.subscription.room_changed()

    def ended(self) -> None:
        """The client is gone, and with it its producers, its consumers and its membership of check groups.

        Its transactions stay open until their timeout, but for those that it opened to end with its connection.
        """
        self.introduction.ended()
        self.services.limits.leave_role(self.principal, self)
        if self.services.coordinators is not None:
            self.transactions.leave(self.services.coordinators)
        self.services.topic_lists.gone(self.connection)
        for producer in [*(waiter for waiter, _ in self.waiting_producers.values()), *self.producers.values()]:
            self.services.remove_producer(producer)
        for consumer in list(self.consumers.values()):
            consumer.topic.remove_consumer(consumer)
        self.waiting_producers.clear()
        self.producers.clear()
        self.consumers.clear()
        self.frames.clear()
        self.requests.clear()  # no circle is left: a connection that ends is freed at once

    # ---- limits

    def opening_producer(self, producer_id: int) -> AbstractContextManager[None]:
        """Inside, a producer is being created: its place is taken before the first await.

        Refusal when it is being created already, or this client has too many; those that wait or are being created count.
        """
        config = self.services.config
        most = config.max_producers_per_connection, config.max_producers_per_role
        others = self.producers, self.waiting_producers
        return self._opening("producer", producer_id, self.opening_producers, others, most, _producers_of)

    def opening_consumer(self, consumer_id: int) -> AbstractContextManager[None]:
        """Inside, a consumer is being created: its place is taken before the first await.

        Refusal when it is being created already, or this client has too many; those that are being created count.
        """
        config = self.services.config
        most = config.max_consumers_per_connection, config.max_consumers_per_role
        return self._opening("consumer", consumer_id, self.opening_consumers, (self.consumers,), most, _consumers_of)

    @contextmanager
    def _opening(
        self,
        kind: str,
        number: int,
        opening: dict[int, asyncio.Task[None]],
        others: Sequence[Collection[int]],
        most: tuple[int, int],
        count: Callable[[Session], int],
    ) -> Iterator[None]:
        """`most` of one connection, and of one role."""
        task, held = asyncio.current_task(), (*others, opening)
        if number in opening or task is None:
            raise Refusal(ServerError.ServiceNotReady, f"{kind} {number} is being created already; retry")
        _check_room(f"{kind}s", number, held, most[0])
        if not any(number in each for each in held):
            self._check_role(f"{kind.title()}s", most[1], count)
        opening[number] = task
        try:
            yield
        finally:
            del opening[number]

    def _check_role(self, kind: str, most: int, count: Callable[[Session], int]) -> None:
        """Refusal when all clients of this role have too many; operators are not limited."""
        if most and not self.services.limits.has_room(self.principal, kind, most, count):
            raise LimitReached(f"max{kind}PerRole", f"role {self.principal!r} has {most} {kind.lower()} at this broker")

    # ---- owner of producers

    def add_producer(self, producer: Producer) -> None:
        """A producer may publish."""
        self.producers[producer.producer_id] = producer

    def add_waiting(self, producer: Producer, asked: Any) -> None:
        """A producer waits for its topic. `asked`: the request that is answered when the wait ends."""
        self.waiting_producers[producer.producer_id] = (producer, asked)

    def take_waiting(self, producer_id: int) -> tuple[Producer, Any] | None:
        """Take a producer that does not wait any more, and its request; None where none of this number waits."""
        return self.waiting_producers.pop(producer_id, None)

    def begin_send(self, producer: Producer) -> None:
        """A SEND came, which is to be answered; at the limit no further one is taken."""
        producer.begin_send()
        self.pending_sends += 1
        if self.pending_sends == self.max_pending_sends:
            self.connection.hold(SENDS, hold=True)

    async def is_alive(self) -> bool:
        """True if the client answers; if it does not, its connection and all it holds are gone afterwards."""
        return await self.connection.is_alive()

    def producer_receipt(self, producer: Producer, sequence_id: int, highest_sequence_id: int, position: Position) -> None:
        """A publish is durable."""
        if producer.end_send():
            self._send_ended()
        self.connection.write(
            encode_send_receipt(
                producer.producer_id, sequence_id, position[0], position[1], highest_sequence_id=highest_sequence_id
            )
        )

    def _send_ended(self) -> None:
        self.pending_sends -= 1
        if self.pending_sends == self.max_pending_sends // 2:
            self.connection.hold(SENDS, hold=False)

    def producer_refused(
        self, producer: Producer, sequence_id: int, error: ServerError, message: str, expected: int | None = None
    ) -> None:
        """A publish was refused; `expected`: because it is not the next one, which has this sequence id."""
        if producer.end_send():
            self._send_ended()
        self.connection.write_command(
            "send_error",
            producer_id=producer.producer_id,
            sequence_id=unsigned64(sequence_id),
            error=int(error),
            message=message,
            **({} if expected is None else {"expected_sequence_id": unsigned64(expected)}),
        )

    def producer_closed(self, producer: Producer) -> None:
        """The broker closed the producer: the client is to look its topic up again."""
        if self.producers.get(producer.producer_id) is producer:
            self.forget_producer(producer)
            self.connection.write_command("close_producer", producer_id=producer.producer_id, request_id=unsigned64(-1))

    def forget_producer(self, producer: Producer) -> None:
        """A producer is closed; its last sends may still be on their way."""
        del self.producers[producer.producer_id]
        self.closed_producers.append(producer.producer_id)
        self.pending_sends -= producer.close()
        if self.pending_sends <= self.max_pending_sends // 2:
            self.connection.hold(SENDS, hold=False)

    # ---- owner of consumers

    def add_consumer(self, consumer: Consumer) -> None:
        """A consumer has its place."""
        self.consumers[consumer.consumer_id] = consumer

    def consumer_closed(self, consumer: Consumer) -> None:
        """The broker closed the consumer: the client is to look its topic up again."""
        if self.consumers.get(consumer.consumer_id) is consumer:
            self.forget_consumer(consumer)
            self.connection.write_command("close_consumer", consumer_id=consumer.consumer_id, request_id=unsigned64(-1))

    def forget_consumer(self, consumer: Consumer) -> None:
        """A consumer is closed; what it acknowledged may be answered later, or never."""
        del self.consumers[consumer.consumer_id]
        for _ in range(consumer.pending_acks):
            self.connection.end_request()
        consumer.end_acks(consumer.pending_acks)

    def active_changed(self, consumer: Consumer, active: bool) -> None:
        """Tell a Failover consumer whether it is the active one, after the answer to its SUBSCRIBE."""
        tell = partial(self.connection.write_command, "active_consumer_change")
        self.services.turn.defer(partial(tell, consumer_id=consumer.consumer_id, is_active=active))


def _producers_of(session: Session) -> int:
    return len(session.producers) + len(session.waiting_producers) + len(session.opening_producers)


def _consumers_of(session: Session) -> int:
    return len(session.consumers) + len(session.opening_consumers)


def _check_room(kind: str, channel_id: int, held: Sequence[Collection[int]], limit: int) -> None:
    if limit and sum(len(each) for each in held) >= limit and not any(channel_id in each for each in held):
        raise LimitReached(f"max{kind.capitalize()}PerConnection", f"this connection has {limit} {kind}")


def foreign_in(session: Session, txn_id: TxnId, participant: str) -> Refusal | None:
    """Refusal for a client with a principal that may not write in a transaction; None: it is its own.

    Ids are counters that anybody can guess, so a participant cannot tell from them whose a transaction is. What belongs to
    another role is refused as what does not exist. A client without a principal is not asked for: then nobody has one.
    `participant`: what the refusal of the participant itself says of a transaction that does not exist.
    """
    coordinators = session.services.coordinators
    if coordinators is None:
        return None  # the participant knows of no transaction
    if session.services.config.external_transaction_coordinators_enabled and is_external(txn_id):
        return None  # whose it is its coordinator knows; no broker asks one beside it
    own = coordinators.belongs_to(txn_id, session.principal)
    if own is None:
        return Refusal(ServerError.ServiceNotReady, f"the coordinator of {txn_id} is not ready; retry")
    text = f"transaction {txn_id} is not open, or {participant}"
    return None if own else Refusal(ServerError.NotAllowedError, text)


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
            supports_topic_watchers=session.services.config.enable_broker_side_subscription_pattern_evaluation,
            supports_topic_watcher_reconcile=session.services.config.enable_broker_side_subscription_pattern_evaluation,
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_transactional_ids=session.services.transactional_ids is not None,
            keeps_transaction_outcomes=session.services.config.transaction_outcome_retention_count > 0,
            supports_group_end=session.services.ends_groups,
            supports_txn_deduplication=True,
            supports_committed_position=True,
            tells_halves=True,
            describes_transactional_ids=session.services.transactional_ids is not None,
            supports_checks=session.services.checks,
        ),
    )


def on_auth_response(session: Session, body: Any) -> None:
    """AUTH_RESPONSE: fresh credentials, which the client was asked for."""
    session.introduction.renew(body)


def on_ping(session: Session, body: Any) -> None:
    """PING."""
    session.connection.write_command("pong")


def on_pong(session: Session, body: Any) -> None:
    """PONG: that something was heard is noted already."""


HANDLERS: Final[dict[int, Handler]] = {
    pb.BaseCommand.CONNECT: on_connect,
    pb.BaseCommand.AUTH_RESPONSE: on_auth_response,
    pb.BaseCommand.PING: on_ping,
    pb.BaseCommand.PONG: on_pong,
}
