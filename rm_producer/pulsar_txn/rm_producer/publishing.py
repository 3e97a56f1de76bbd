"""Answers of both transaction buffers to sends: stored, or not."""

from __future__ import annotations

from typing import Final

from pulsar_txn.ledger.machine import Reply, Step
from pulsar_txn.rm_producer.requests import Publish, TopicRecord
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EARLIEST

from .sent_messages import SentMessages

REPEATED: Final = EARLIEST
"""The position in the answer to a repeat, as Pulsar answers what it drops as a duplicate."""


def stored(request: Publish, code: ServerError | None, log: str, topic: str, sent: SentMessages) -> Step[TopicRecord]:
    """Append the entry to `log`, and answer with its position. `code`: why the table refuses it, None when it does not.

    What the transaction has already is answered, and not appended. Raises Refusal with that code, NotAllowedError for an
    entry whose metadata says something else than its SEND, and TooManyRequests (see `SentMessages.check_room`).
    """
    if code is not None:
        raise Refusal(code, f"transaction {request.txn_id} has ended on {topic}; use a new transaction")
    header = request.record.header
    if header.txn_id != request.txn_id or header.marker_type is not None:
        text = f"the entry's metadata names {header.txn_id}, marker {header.marker_type}; it was sent in {request.txn_id}"
        raise Refusal(ServerError.NotAllowedError, text)
    if sent.is_repeat(request.txn_id, header):
        return Step(effects=(Reply(request.token, REPEATED),))
    sent.check_room(request.txn_id, header)
    return Step(((log, request.record),), (Reply(request.token, position_of=0),))


def unregistered(request: Publish, code: ServerError | None, topic: str) -> Refusal:
    """Answer to a send whose transaction is not open, or does not know the topic. `code`: what the table says."""
    text = f"transaction {request.txn_id} is not open, or {topic} is not registered in it"
    return Refusal(code or ServerError.NotAllowedError, text)
