"""The names of participants: topics and subscriptions of clusters.

In the coordinator's machine a participant is a `Participant` as in the broker. Its topic is `<cluster>|<full partition name>`,
for example `east|persistent://public/default/t-partition-3`. This module alone writes and reads that form.

Stock brokers answer "ok" to the end of a transaction on a topic or a subscription that does not exist, so a misspelt
participant looks like success and stays held back for ever. Therefore names are checked when they are registered.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from pulsar_txn.wire.ids import Participant
from pulsar_txn.wire.topics import SYSTEM_NAMES, InvalidName, TopicName, check_subscription, is_transaction_internal

_SEPARATOR: Final = "|"
_KEPT: Final = 4096
"""Names that are remembered: each transaction names its participants several times, and most name the same ones."""
_CLUSTER: Final = re.compile(r"[-.\w]{1,128}", re.ASCII)
_SCALABLE: Final = ("segment://", "topic://")
_SYSTEM_NAMESPACE: Final = ("pulsar", "system")


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


def check_cluster_name(cluster: str) -> None:
    """ParticipantRefused for what cannot be the name of a cluster."""
    if _CLUSTER.fullmatch(cluster) is None:
        text = f"the cluster name {cluster[:80]!r} is not allowed; use 1 to 128 letters, digits and any of -_."
        raise ParticipantRefused(text)


@lru_cache(_KEPT)
def normalise(topic: str, subscription: str | None = None) -> Participant:
    """The participant with the full name of its topic. ParticipantRefused for what no broker can end a transaction on.

    This looks at the names alone; `checks` asks the cluster about them.
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
