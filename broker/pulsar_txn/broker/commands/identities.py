"""TC_CLIENT_CONNECT of a client that names a transactional id: who it is from then on, on this connection.

A client that comes without an epoch is a new instance. It is answered once everything that older instances began has ended,
at all participants, so that what it reads then does not change under it (Kafka's InitProducerId; `docs/adr/0003`).
"""

from __future__ import annotations

from typing import Any

from pulsar_txn.broker.txn.coordinators import Coordinators
from pulsar_txn.tc.owners import Identity
from pulsar_txn.wire.errors import Refusal, ServerError

from .coordinating import TxnSession


async def identify(session: TxnSession, body: Any, coordinators: Coordinators) -> dict[str, int]:
    """Bind the connection to a transactional id and its epoch; what the answer says of them.

    Raises Refusal, as `TakeOvers.done` and `TransactionalIds` do; then the connection has no new identity. A repeat over the
    same connection after ServiceNotReady goes on with the epoch of the first attempt.
    """
    name, ids = body.transactional_id, session.services.transactional_ids
    if ids is None:
        text = "transactional ids are not served here; set transactionMetadataStoreProviderClassName=fencing"
        raise Refusal(ServerError.NotAllowedError, text)
    known = session.identity or session.taking_over
    if known is not None and known[0] != name:
        raise Refusal(ServerError.NotAllowedError, f"this connection is bound to transactional id {known[0]!r}")
    if body.HasField("transactional_epoch"):
        await _resume(session, (name, body.transactional_epoch), body.tc_id, coordinators)
        return {}
    if session.taking_over is None:
        epoch, tc_id = await ids.begin(name, len(coordinators))
        session.taking_over = (name, epoch)
    else:
        epoch, tc_id = session.taking_over[1], await ids.coordinator(name, len(coordinators))
    identity = (name, epoch)
    if not coordinators.is_elsewhere(tc_id):  # else the client goes there with its epoch, which begins there
        await _take_over(session, identity, tc_id, coordinators)
    session.identity, session.taking_over = identity, None
    return {"tc_id": tc_id, "transactional_epoch": epoch}


async def _resume(session: TxnSession, identity: Identity, tc_id: int, coordinators: Coordinators) -> None:
    """A client is back with its epoch. Where several processes lead coordinators, the epoch may begin here only now."""
    ids = session.services.transactional_ids
    assert ids is not None  # noqa: S101 - the caller has looked
    await ids.resume(*identity)
    if coordinators.is_shared and tc_id == await ids.coordinator(identity[0], len(coordinators)):
        await _take_over(session, identity, tc_id, coordinators)
    session.identity = identity


async def _take_over(session: TxnSession, identity: Identity, tc_id: int, coordinators: Coordinators) -> None:
    await coordinators.connect(tc_id)
    take_overs = session.services.take_overs
    assert take_overs is not None  # noqa: S101 - there are transactional ids, so there are coordinators
    await take_overs.done(tc_id, session.principal, identity, session.incarnation)
