"""Peeking at entries over HTTP: places, positions, and words of senders that are no headers."""

from __future__ import annotations

from typing import Any

import pytest
from admin_client import Admin
from raw_client import FULL

from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.compression import ZLIB, compress
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.hot import encode_send

TOPIC = "/admin/v2/persistent/public/default/t"


async def headers_of(admin: Admin, path: str) -> dict[str, str]:
    """The headers of an answer that are about its entry."""
    async with admin._client.get(path) as answer:
        assert answer.status == 200
        return {name: value for name, value in answer.headers.items() if name.startswith("X-Pulsar-")}


async def test_places_count_what_is_not_acknowledged(admin: Admin, bench: Any) -> None:
    client = bench.client()
    await client.subscribe(f"{FULL}t")
    await client.producer(f"{FULL}t")
    places = [await client.sent(b"%d" % number) for number in range(3)]
    await client.ack(await client.receive())
    assert await admin("GET", f"{TOPIC}/subscription/s/position/1") == (200, "1")
    assert await admin("GET", f"{TOPIC}/subscription/s/position/2") == (200, "2")
    assert (await admin("GET", f"{TOPIC}/subscription/s/position/3"))[0] == 404
    ledger, entry = places[0]
    assert await admin("GET", f"{TOPIC}/ledger/{ledger}/entry/{entry}") == (200, "0")
    assert (await admin("GET", f"{TOPIC}/ledger/{ledger}/entry/{entry + 3}"))[0] == 404


@pytest.mark.parametrize("place", ["0", "-1", "first"])
async def test_a_place_before_the_first_one_is_refused(admin: Admin, bench: Any, place: str) -> None:
    await bench.client().subscribe(f"{FULL}t")
    status, answer = await admin("GET", f"{TOPIC}/subscription/s/position/{place}")
    assert status == 400
    assert place in answer["reason"]


async def test_a_key_with_line_ends_makes_no_header_of_its_own(admin: Admin, bench: Any) -> None:
    client = bench.client()
    await client.subscribe(f"{FULL}t", permits=0)
    await client.producer(f"{FULL}t")
    await client.sent(b"x", key="a\r\nSet-Cookie: grüß")
    found = await headers_of(admin, f"{TOPIC}/subscription/s/position/1")
    assert found["X-Pulsar-partition-key"] == r"a\r\nSet-Cookie: gr\xfc\xdf"


@pytest.mark.parametrize("size", [5, 4])
async def test_compression_is_undone_where_it_can_be(admin: Admin, bench: Any, size: int) -> None:
    client = bench.client()
    await client.subscribe(f"{FULL}t", permits=0)
    await client.producer(f"{FULL}t")
    metadata = pb.MessageMetadata(producer_name="p", publish_time=1, compression=ZLIB, uncompressed_size=size)
    metadata.sequence_id = 0
    stored = compress(ZLIB, b"hello")
    client.raw(b"".join(encode_send(0, 0, 1, encode_entry(metadata, stored))))
    await client.until(lambda: client.receipts)
    path = f"{TOPIC}/subscription/s/position/1"
    found = await headers_of(admin, path)
    assert ("X-Pulsar-compression" in found) is (size != 5)
    async with admin._client.get(path) as answer:
        assert await answer.read() == (b"hello" if size == 5 else stored)
