"""Participants: the names of topics and subscriptions of clusters, and the checks before a cluster or one of them takes part.

In the coordinator's machine a participant is a `Participant` as in the broker. Its topic is `<cluster>|<full partition name>`,
for example `east|persistent://public/default/t-partition-3`. This module alone writes and reads that form.

Stock brokers answer "ok" to the end of a transaction on a topic or a subscription that does not exist, so a misspelt
participant looks like success and stays held back for ever. Therefore names are checked when they are registered. A check
never changes anything in the cluster.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from pulsar_txn.client.errors import PulsarError, TopicNotFound
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId
from pulsar_txn.wire.topics import SYSTEM_NAMES, InvalidName, TopicName, check_subscription, is_transaction_internal

from .admin import AdminApi, AdminRefused, AdminUnreachable, topic_path
from .attempts import RULES, Answer, AttemptResult, BrokerAttempts
from .brokers import Brokers

_SEPARATOR: Final = "|"
_KEPT: Final = 4096
"""Names that are remembered: each transaction names its participants several times, and most name the same ones."""
_CLUSTER: Final = re.compile(r"[-.\w]{1,128}", re.ASCII)
_SCALABLE: Final = ("segment://", "topic://")
_SYSTEM_NAMESPACE: Final = ("pulsar", "system")
_PROBE: Final = TellParticipant(
    TxnId(0, (1 << 62) + 1), Participant("persistent://pulsar/system/no-topic-of-this-name"), TxnAction.ABORT, -1
)
"""The end of a transaction that nobody has, on a topic that is not there: brokers answer "ok", and do nothing."""
_NOT_US: Final = frozenset({401, 403})


class ParticipantRefused(ValueError):  # noqa: N818 - named by what happened
    """This topic or subscription cannot take part in a transaction; the message says why, and what to do."""


def encode(cluster: str, participant: Participant) -> Participant:
    """The participant as the coordinator's machine knows it. The topic is a full partition name."""
    return _encoded(cluster, participant.topic, participant.subscription)


@lru_cache(_KEPT)
def _encoded(cluster: str, topic: str, subscription: str | None) -> Participant:
    return Participant(cluster + _SEPARATOR + topic, subscription)


def decode(participant: Participant) -> tuple[str, Participant]:
    """The cluster, and the participant as the brokers of that cluster know it. ValueError when no cluster is named."""
    return _decoded(participant.topic, participant.subscription)


@lru_cache(_KEPT)
def _decoded(named: str, subscription: str | None) -> tuple[str, Participant]:
    cluster, separator, topic = named.partition(_SEPARATOR)
    if not separator or _CLUSTER.fullmatch(cluster) is None:
        raise ValueError(f"{named!r} names no cluster")
    return cluster, Participant(topic, subscription)


def validate_cluster_name(cluster: str) -> None:
    """ParticipantRefused for what cannot be the name of a cluster."""
    if _CLUSTER.fullmatch(cluster) is None:
        text = f"the cluster name {cluster[:80]!r} is not allowed; use 1 to 128 letters, digits and any of -_."
        raise ParticipantRefused(text)


@lru_cache(_KEPT)
def normalise(topic: str, subscription: str | None = None) -> Participant:
    """The participant with the full name of its topic. ParticipantRefused for what no broker can end a transaction on.

    This looks at the names alone; `verify_participant` asks the cluster about them.
    """
    if topic.startswith(_SCALABLE):
        raise ParticipantRefused(
            f"{topic[:80]!r} is a scalable topic, whose transactions end through the metadata store of Pulsar 5 and not by "
            "commands; use a persistent:// topic"
        )
    try:
        name = TopicName.parse(topic)
        if subscription is not None:
            check_subscription(subscription)
    except InvalidName as error:
        raise ParticipantRefused(str(error)) from None
    if not name.is_persistent:
        raise ParticipantRefused(f"{name} is not persistent, and has no transactions; use a persistent:// topic")
    if _is_system(name):
        raise ParticipantRefused(f"{name} is a system topic of the cluster, and has no transactions; use a topic of your own")
    return Participant(str(name), subscription)


def _is_system(name: TopicName) -> bool:
    base = name.base
    return (name.tenant, name.namespace) == _SYSTEM_NAMESPACE or base.name in SYSTEM_NAMES or is_transaction_internal(str(name))


class ClusterRefused(Exception):  # noqa: N818 - named by what happened
    """The cluster cannot take part as it is configured; the message says what to change.

    `passes`: it may do so by itself, because the brokers are away or busy.
    """

    def __init__(self, message: str, *, passes: bool = False) -> None:
        super().__init__(message)
        self.passes = passes


async def verify_cluster(brokers: Brokers, attempts: BrokerAttempts) -> None:
    """ClusterRefused unless the cluster is reachable, has transactions on, and lets our role end them."""
    result = await attempts.attempt(_PROBE)
    if result.answer is Answer.OK:
        result = await _transactions(brokers)
    if result.answer is not Answer.OK:
        rule = RULES[result.answer]
        text = f"the cluster {brokers.name} cannot take part: {result.answer.value} ({result.detail}); {rule.remedy}"
        raise ClusterRefused(text, passes=rule.alarm_after != 1)


async def _transactions(brokers: Brokers) -> AttemptResult:
    try:
        on = await brokers.has_transactions()
    except PulsarError as error:
        return AttemptResult(Answer.NO_CONNECTION, str(error))
    return AttemptResult(Answer.OK) if on else AttemptResult(Answer.NOT_ALLOWED, "its brokers have transactions off")


async def verify_participant(brokers: Brokers, participant: Participant, admin: AdminApi | None = None) -> None:
    """ParticipantRefused for a topic that does not exist, or is the base name of a partitioned one. Raises PulsarError.

    The participant is one that `normalise` gave. Brokers do not say over the binary protocol whether a subscription exists,
    so that is checked only where the cluster's admin API is known.
    """
    name = TopicName.parse(participant.topic)
    count = await _count_of(brokers, name)
    if name.partition < 0 and count:
        raise ParticipantRefused(
            f"{name} has {count} partitions, and each takes part by itself: register {name.with_partition(0)} and so on"
        )
    if count is None or (count and name.partition >= count):
        raise ParticipantRefused(f"there is no topic {name} in the cluster {brokers.name}; create it first, or mend its name")
    if participant.subscription is not None and admin is not None:
        await _verify_subscription(brokers.name, participant, admin)


async def is_missing(brokers: Brokers, topic: str) -> bool:
    """True if there is no such topic at this moment, which brokers answer "ok" to ends of. Raises as `verify_participant`."""
    name = TopicName.parse(topic)
    count = await _count_of(brokers, name)
    return count is None or bool(count and name.partition >= count)


async def _count_of(brokers: Brokers, name: TopicName) -> int | None:
    count = await _partitions(brokers, name.base)
    if count is None and name.partition >= 0:
        count = await _partitions(brokers, name)  # not partitioned, but named so
    return count


async def _partitions(brokers: Brokers, name: TopicName) -> int | None:
    try:
        return await brokers.partitions(str(name))
    except TopicNotFound:
        return None
    except PulsarError as error:
        if error.code is not None and not error.retriable:
            raise ParticipantRefused(f"{name} cannot be looked up in the cluster {brokers.name}: {error}") from None
        raise


async def _verify_subscription(cluster: str, participant: Participant, admin: AdminApi) -> None:
    try:
        found = await admin.get(f"/admin/v2/persistent/{topic_path(participant.topic)}/subscriptions")
    except AdminRefused as error:
        if error.status in _NOT_US:
            text = f"the admin API at {admin.url} does not accept the coordinator's credentials ({error.status})"
            raise AdminUnreachable(text) from None
        raise ParticipantRefused(f"the subscriptions of {participant.topic} in the cluster {cluster}: {error}") from None
    if participant.subscription not in found:
        raise ParticipantRefused(
            f"{participant.topic} in the cluster {cluster} has no subscription {participant.subscription!r}; "
            "subscribe before acknowledging in a transaction"
        )
