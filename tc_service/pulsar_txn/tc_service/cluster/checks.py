"""Checks of a cluster before it takes part: at the start of the coordinator, and for each participant that registers."""

from __future__ import annotations

from typing import Final

from pulsar_txn.client.errors import PulsarError, TopicNotFound
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId
from pulsar_txn.wire.topics import TopicName

from .admin import AdminApi, AdminRefused, AdminUnreachable, topic_path
from .attempts import Attempts, Outcome
from .brokers import Brokers
from .participants import ParticipantRefused
from .rules import RULES, Answer

_PROBE: Final = TellParticipant(
    TxnId(0, (1 << 62) + 1), Participant("persistent://pulsar/system/no-topic-of-this-name"), TxnAction.ABORT, -1
)
"""The end of a transaction that nobody has, on a topic that is not there: brokers answer "ok", and do nothing."""
_NOT_US: Final = frozenset({401, 403})


class ClusterRefused(Exception):  # noqa: N818 - named by what happened
    """The cluster cannot take part as it is configured; the message says what to change.

    `passes`: it may do so by itself, because the brokers are away or busy.
    """

    def __init__(self, message: str, *, passes: bool = False) -> None:
        super().__init__(message)
        self.passes = passes


async def check_cluster(brokers: Brokers, attempts: Attempts) -> None:
    """ClusterRefused unless the cluster is reachable, has transactions on, and lets our role end them."""
    outcome = await attempts.attempt(_PROBE)
    if outcome.answer is Answer.OK:
        outcome = await _transactions(brokers)
    if outcome.answer is not Answer.OK:
        rule = RULES[outcome.answer]
        text = f"the cluster {brokers.name} cannot take part: {outcome.answer.value} ({outcome.detail}); {rule.remedy}"
        raise ClusterRefused(text, passes=rule.alarm_after != 1)


async def _transactions(brokers: Brokers) -> Outcome:
    try:
        on = await brokers.has_transactions()
    except PulsarError as error:
        return Outcome(Answer.NO_CONNECTION, str(error))
    return Outcome(Answer.OK) if on else Outcome(Answer.NOT_ALLOWED, "its brokers have transactions off")


async def check_participant(brokers: Brokers, participant: Participant, admin: AdminApi | None = None) -> None:
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
        await _check_subscription(brokers.name, participant, admin)


async def is_missing(brokers: Brokers, topic: str) -> bool:
    """True if there is no such topic at this moment, which brokers answer "ok" to ends of. Raises as `check_participant`."""
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


async def _check_subscription(cluster: str, participant: Participant, admin: AdminApi) -> None:
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
