"""Single entries over HTTP: peeking at what waits for a subscription, whatever becomes of its transaction.

The body is the entry's payload; headers with Pulsar's names have the rest (PIP-353 for those of transactions).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from pulsar_txn.broker.topics.subscription import Subscription
from pulsar_txn.broker.topics.topic import Topic
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.compression import decompress
from pulsar_txn.wire.entries import split_entry
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Position, TxnId, signed64

from .answers import Routes, number, text_of
from .common import existing_subscription, persistent_topic

_MAX_SIZE: Final = 64 << 20
"""Bytes that an entry may have when its compression is undone."""
_TOPIC: Final = "/admin/v2/{domain:persistent}/{tenant}/{namespace}/{topic}"


async def peek(request: web.Request) -> web.Response:
    """GET: the entry at a place, from 1 on, of those that the subscription has not acknowledged; markers count as well."""
    place = number(request, "place")
    if place < 1:
        raise web.HTTPBadRequest(text=f"the place {place} is before the first one, which is 1")
    topic, subscription = await existing_subscription(request)
    found = await _waiting(topic, subscription, place)
    if found is None:
        raise web.HTTPNotFound(text="Message not found")
    return _answer(topic, *found)


async def _waiting(topic: Topic, subscription: Subscription, place: int) -> tuple[Position, bytes] | None:
    log, budget = topic.log, topic.turn.budget
    await budget.pause()
    after = log.next_position(subscription.cursor.mark_delete)
    while entries := await log.read(after):
        for position, entry in entries:
            place -= not subscription.cursor.is_deleted(position)
            if not place:
                return position, entry
        after = log.next_position(entries[-1][0])
        await budget.pause()
    return None


async def show_entry(request: web.Request) -> web.Response:
    """GET: the entry at a position."""
    topic = await persistent_topic(request)
    wanted = (number(request, "ledger"), number(request, "entry"))
    entries = await topic.log.read(wanted, max_entries=1)
    if not entries or entries[0][0] != wanted:
        raise web.HTTPNotFound(text="Message not found")
    return _answer(topic, *entries[0])


def _answer(topic: Topic, position: Position, entry: bytes) -> web.Response:
    raw, payload = split_entry(entry)
    metadata = pb.MessageMetadata.FromString(raw)
    said = dict(_said(topic, position, metadata))
    body = bytes(payload)
    if metadata.compression:
        try:
            body = decompress(metadata.compression, body, metadata.uncompressed_size, max_size=_MAX_SIZE)
        except WireError:  # encrypted first, or too large: as it is stored
            said["compression"] = pb.CompressionType.Name(metadata.compression)
    return web.Response(body=body, headers={f"X-Pulsar-{name}": _printable(value) for name, value in said.items()})


def _said(topic: Topic, position: Position, metadata: pb.MessageMetadata) -> Iterator[tuple[str, object]]:
    yield "Message-ID", text_of(position)
    yield "PROPERTY", json.dumps({each.key: each.value for each in metadata.properties}, separators=(",", ":"))
    yield "publish-time", _time(metadata.publish_time)
    yield "producer-name", metadata.producer_name
    yield "sequence-id", metadata.sequence_id
    yield "Is-Encrypted", str(bool(metadata.encryption_keys)).lower()
    if metadata.HasField("event_time"):
        yield "event-time", _time(metadata.event_time)
    if metadata.HasField("partition_key"):
        yield "partition-key", metadata.partition_key
    if metadata.HasField("num_messages_in_batch"):
        yield "num-batch-message", metadata.num_messages_in_batch
    if metadata.HasField("marker_type"):
        yield "marker-type", metadata.marker_type
    if metadata.HasField("txnid_least_bits") and metadata.HasField("txnid_most_bits"):
        txn_id = TxnId(signed64(metadata.txnid_most_bits), signed64(metadata.txnid_least_bits))
        yield "txnid-least-bits", txn_id.least
        yield "txnid-most-bits", txn_id.most
        yield "txn-aborted", str(topic.buffer.is_aborted(txn_id)).lower()
    yield "txn-uncommitted", str(position > topic.buffer.max_read_position).lower()


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _printable(value: object) -> str:
    """Without line ends, and in ASCII: names and keys are the senders' words."""
    return str(value).encode("unicode_escape").decode("ascii")


ROUTES: Routes = [
    ("GET", f"{_TOPIC}/subscription/{{subscription}}/position/{{place}}", peek),
    ("GET", f"{_TOPIC}/ledger/{{ledger}}/entry/{{entry}}", show_entry),
]
