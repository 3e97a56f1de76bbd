"""NEW_TXN of a client that says what the transaction writes to first: both in one request, and in one sync of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

from pulsar_txn.broker.serving import MAX_PARTICIPANTS, on_new_txn, refuse_new_txn
from pulsar_txn.tc_service.cluster.participants import ParticipantRefused, normalise
from pulsar_txn.wire import hot_txn
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.hot_tails import FirstParticipant
from pulsar_txn.wire.ids import Participant

from .clusters import Clusters, of_cluster
from .session import Session

_Wanted: TypeAlias = dict[str, list[Participant]]
"""Participants by cluster."""


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
    if all(session.services.clusters.is_checked(*each) for each in wanted.items()):
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
    """Return why one of them cannot take part, or could not be asked about; None when all can."""
    try:
        await clusters.check(cluster, participants)
    except Refusal as refusal:
        return refusal
    except Exception as error:  # noqa: BLE001 - the client gets it, and may try again
        return Refusal(ServerError.ServiceNotReady, f"cluster {cluster} could not be asked: {error}; retry")
    return None


def too_many(count: int) -> Refusal:
    """Return what a request is answered that names more participants than one may."""
    text = f"{count} participants in one request; {MAX_PARTICIPANTS} are the most, send several"
    return Refusal(ServerError.NotAllowedError, text)
