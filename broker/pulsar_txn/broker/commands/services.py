"""Services that the commands ask of the broker.

They see this protocol only, so they can be read and tested without the broker.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from pulsar_txn.broker.base.limits import Limits
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.base.sorted_names import Pieces
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.catalog.catalog import Catalog
from pulsar_txn.broker.catalog.lists import TopicLists
from pulsar_txn.broker.net.authentication import Authentication
from pulsar_txn.broker.net.connection import Connection
from pulsar_txn.broker.topics.nonpersistent import NonPersistentTopic
from pulsar_txn.broker.topics.producers import Producer
from pulsar_txn.broker.topics.topic import Topic
from pulsar_txn.broker.txn.coordinators import Coordinators
from pulsar_txn.broker.txn.host import Answer
from pulsar_txn.broker.txn.take_overs import TakeOvers
from pulsar_txn.broker.txn.transactional_ids import TransactionalIds
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId
from pulsar_txn.wire.topics import TopicName

AnyTopic: TypeAlias = "Topic | NonPersistentTopic"


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

    def place(self, participant: Participant) -> tuple[str, Participant]:
        """See `coordinating.Coordinating`."""

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
