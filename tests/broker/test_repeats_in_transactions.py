"""A message that is sent again in its transaction is stored once, whether the topic looks for duplicates or not."""

from __future__ import annotations

from typing import Any

import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnId, signed64

TOPIC = FULL + "t"
REPEATED = (-1, -1)


@pytest.fixture(params=["topic", "half-topic"])
async def bench(request: Any, benches: Any) -> Any:
    """A broker that does not look for duplicates, with each of our buffers."""
    return await benches(transaction_buffer_provider_class_name=request.param).start()


async def opened(client: RawClient) -> TxnId:
    """A transaction with the topic registered."""
    txn = await client.new_txn()
    await client.add_topics(txn, TOPIC)
    return txn


async def read(bench: Any, count: int) -> list[bytes]:
    """What a reader of the whole topic gets."""
    client = bench.client()
    await client.subscribe("t")
    found = await client.payloads(count)
    await client.nothing()
    return list(found)


@pytest.mark.seed_rows("B10")
async def test_each_request_of_a_transaction_twice_on_the_wire_is_one_message(bench: Any) -> None:
    client = bench.client()
    await client.producer("t", producer_name="p")
    txn = await opened(client)
    expected = []
    for number in range(20):
        sequence_id, payload = 2 * number, [f"{number}".encode(), f"{number}+".encode()]
        fields = {"highest_sequence_id": sequence_id + 1}
        if number % 2:
            payload, fields = payload[:1], {}
        for _ in range(2):
            client.send(payload if len(payload) > 1 else payload[0], sequence_id=sequence_id, txn=txn, fields=fields)
        expected += payload
    await client.until(lambda: len(client.receipts) == 40, "receipts")
    assert [receipt[2] == REPEATED for receipt in client.receipts] == [False, True] * 20
    await client.end(txn)
    assert await read(bench, len(expected)) == expected


@pytest.mark.seed_rows("B10")
async def test_what_a_lost_connection_left_unanswered_is_sent_again_under_the_same_name(bench: Any) -> None:
    """As the Java client does it: a new connection, the same producer name, the same ids, one of them not verified yet."""
    lost = bench.client()
    await lost.producer("t", producer_name="p")
    txn = await opened(lost)
    for number in range(3):
        lost.send(f"{number}".encode(), sequence_id=number, txn=txn)
    lost.drop()
    client = bench.client()
    await client.producer("t", producer_name="p")
    for number in range(4):
        await client.sent(f"{number}".encode(), sequence_id=number, txn=txn)
    await client.request("tcClientConnectRequest", tc_id=0)
    await client.end(txn)
    assert await read(bench, 4) == [b"0", b"1", b"2", b"3"]


@pytest.mark.seed_rows("B10")
@pytest.mark.parametrize("how", ["crash", "restart"])
async def test_a_repeat_after_a_restart_is_one_message(bench: Any, how: str) -> None:
    client = bench.client()
    await client.producer("t", producer_name="p")
    await client.producer("t", 1, producer_name="q")
    txn, other = await opened(client), await opened(client)
    await client.sent(b"p0", sequence_id=0, txn=txn)
    await client.sent(b"p1", sequence_id=1, txn=other)
    await client.sent(b"q0", 1, sequence_id=0, txn=txn, name="q")
    await getattr(bench, how)()
    again = bench.client()
    await again.producer("t", producer_name="p")
    await again.producer("t", 1, producer_name="q")
    assert await again.sent(b"p0", sequence_id=0, txn=txn) == REPEATED
    assert await again.sent(b"p1", sequence_id=1, txn=other) == REPEATED
    assert await again.sent(b"q0", 1, sequence_id=0, txn=txn, name="q") == REPEATED
    assert await again.sent(b"p2", sequence_id=2, txn=txn) != REPEATED
    await again.request("tcClientConnectRequest", tc_id=0)
    await again.end(txn)
    await again.end(other)
    assert sorted(await read(bench, 4)) == [b"p0", b"p1", b"p2", b"q0"]


@pytest.mark.parametrize("how", [None, "crash"])
async def test_chunks_of_a_message_are_stored_once_each(bench: Any, how: str | None) -> None:
    client = bench.client()
    await client.producer("t", producer_name="p")
    txn = await opened(client)

    def chunk(number: int) -> dict[str, Any]:
        fields = {"uuid": "u", "num_chunks_from_msg": 3, "chunk_id": number, "total_chunk_msg_size": 3}
        return {"sequence_id": 5, "txn": txn, "fields": fields}

    assert REPEATED not in [await client.sent(b"0", **chunk(0)), await client.sent(b"1", **chunk(1))]
    if how:
        await getattr(bench, how)()
        client = bench.client()
        await client.producer("t", producer_name="p")
        await client.request("tcClientConnectRequest", tc_id=0)
    assert [await client.sent(b"0", **chunk(0)), await client.sent(b"1", **chunk(1))] == [REPEATED] * 2
    assert await client.sent(b"2", **chunk(2)) != REPEATED
    assert [await client.sent(b"1", **chunk(1)), await client.sent(b"2", **chunk(2))] == [REPEATED] * 2
    await client.end(txn)
    assert await read(bench, 3) == [b"0", b"1", b"2"]


async def test_another_producer_of_a_name_goes_on_after_what_is_in_open_transactions(bench: Any) -> None:
    """Otherwise its first messages would be taken for repeats of the first one's."""
    first = bench.client()
    assert (await first.producer("t", producer_name="p")).last_sequence_id == -1
    txn, other = await opened(first), await opened(first)
    await first.sent([b"0", b"1"], sequence_id=0, txn=txn, fields={"highest_sequence_id": 1})
    await first.sent(b"2", sequence_id=2, txn=other)
    first.drop()
    second = bench.client()
    assert (await second.producer("t", producer_name="p")).last_sequence_id == 2
    await second.request("tcClientConnectRequest", tc_id=0)
    await second.sent(b"3", sequence_id=3, txn=txn)
    await second.end(txn)
    await second.end(other)
    second.drop()
    third = bench.client()
    assert (await third.producer("t", producer_name="p")).last_sequence_id == -1, "nothing is open, and nothing is kept"
    assert sorted(await read(bench, 4)) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("how", [None, "crash"])
async def test_a_second_message_with_an_id_that_its_transaction_has_is_refused(bench: Any, how: str | None) -> None:
    """It was confirmed and not stored. The first one stays, and is known when it is sent again."""
    client = bench.client()
    await client.producer("t", producer_name="p")
    txn = await opened(client)
    batch = {"sequence_id": 6, "txn": txn, "fields": {"highest_sequence_id": 7}}
    await client.sent(b"first", sequence_id=5, txn=txn)
    await client.sent([b"a", b"b"], **batch)
    if how:
        await getattr(bench, how)()
        client = bench.client()
        await client.producer("t", producer_name="p")
        await client.request("tcClientConnectRequest", tc_id=0)
    client.send(b"second", sequence_id=5, txn=txn)
    client.send([b"a", b"c"], **batch)
    await client.until(lambda: len(client.send_errors) == 2, "SEND_ERROR")
    assert {each.error for each in client.send_errors} == {ServerError.NotAllowedError}
    assert "another message with sequence id 5" in client.send_errors[0].message
    client.send_errors.clear()
    assert await client.sent(b"first", sequence_id=5, txn=txn) == REPEATED
    assert await client.sent([b"a", b"b"], **batch) == REPEATED
    await client.end(txn)
    assert await read(bench, 3) == [b"first", b"a", b"b"]


async def test_ids_between_hundreds_of_gaps_are_stored(bench: Any) -> None:
    """346 of 349 were: of more than 256 gaps the lowest were taken for sent."""
    client = bench.client()
    await client.producer("t", producer_name="p")
    txn = await opened(client)
    ids = [*range(0, 600, 2), *range(1, 99, 2)]
    for sequence_id in ids:
        client.send(b"%d" % sequence_id, sequence_id=sequence_id, txn=txn)
    await client.until(lambda: len(client.receipts) == len(ids) == 349, "receipts")
    await client.end(txn)
    assert await read(bench, len(ids)) == [b"%d" % sequence_id for sequence_id in ids]


async def test_ids_within_the_span_of_a_batch_are_stored(bench: Any) -> None:
    """A program that gives ids itself leaves some out: a batch from 10 to 30 need not contain 15."""
    client = bench.client()
    await client.producer("t", producer_name="p")
    txn = await opened(client)
    await client.sent([b"10", b"20", b"30"], sequence_id=10, txn=txn, fields={"highest_sequence_id": 30})
    await client.sent(b"15", sequence_id=15, txn=txn)
    await client.end(txn)
    assert await read(bench, 4) == [b"10", b"20", b"30", b"15"]


# ---- requests that mean a second, new request: docs/adr/0010


async def test_a_participant_added_twice_is_one_and_after_the_end_none(bench: Any) -> None:
    first, second = bench.client(), bench.client()
    await first.producer("t")
    txn = await opened(first)
    await second.request("tcClientConnectRequest", tc_id=0)
    for client in (first, second):
        await client.add_topics(txn, TOPIC, TOPIC)
        await client.add_subscriptions(txn, (TOPIC, "s"), (TOPIC, "s"))
    await first.sent(b"0", txn=txn)
    await second.end(txn)
    for add in (first.add_topics(txn, TOPIC), second.add_subscriptions(txn, (TOPIC, "s"))):
        with pytest.raises(Refused) as refused:
            await add
        assert refused.value.code == ServerError.InvalidTxnStatus
    assert await read(bench, 1) == [b"0"]
    assert bench.broker.topics[TOPIC].buffer.stats().committed_txn_count == 1, "told once"


async def test_a_second_end_says_what_became_and_ends_nothing_that_began_later(bench: Any) -> None:
    first, second = bench.client(), bench.client()
    await first.producer("t")
    txn, later = await opened(first), await opened(first)
    await first.sent(b"0", txn=txn)
    await first.end(txn)
    await second.request("tcClientConnectRequest", tc_id=0)
    await second.end(txn)
    with pytest.raises(Refused) as refused:
        await second.abort(txn)
    assert refused.value.code == ServerError.InvalidTxnStatus
    await first.sent(b"1", txn=later)
    await first.end(later)
    assert await read(bench, 2) == [b"0", b"1"]


async def test_a_plain_acknowledgement_twice_says_the_same(bench: Any) -> None:
    client = bench.client()
    await client.producer("t")
    await client.subscribe("t")
    positions = [await client.sent(b"%d" % number) for number in range(2)]
    for _ in range(2):
        await client.ack(positions[0])
    assert bench.broker.topics[TOPIC].subscriptions["s"].cursor.backlog() == 1


async def test_a_request_id_that_is_used_again_opens_another_transaction(bench: Any) -> None:
    """Java sends a NEW_TXN again before it has its answer, never after it. Nor is another request a repeat."""
    client = bench.client()
    await client.producer("t")
    await client.request("tcClientConnectRequest", tc_id=0)

    async def begun(timeout_ms: int = 60_000) -> TxnId:
        client.raw(command("newTxn", request_id=7, tc_id=0, txn_ttl_millis=timeout_ms))
        body = await client.answer(7)
        return TxnId(signed64(body.txnid_most_bits), signed64(body.txnid_least_bits))

    first = await begun()
    assert await begun() == first, "a repeat"
    other = await begun(30_000)
    assert other != first, "another request"
    await client.add_topics(first, TOPIC)
    second = await begun()
    assert second not in {first, other}
    await client.end(first)
    assert await begun() == second
    await client.end(second)
    assert await begun() not in {first, second, other}


async def test_ids_count_in_their_transaction_only(bench: Any) -> None:
    client = bench.client()
    await client.producer("t", producer_name="p")
    for number in range(3):
        txn = await opened(client)
        for _ in range(2):
            await client.sent(f"{number}".encode(), sequence_id=7, txn=txn)
        await client.sent(f"plain {number}".encode(), sequence_id=7)
        await client.end(txn)
    assert len(await read(bench, 6)) == 6


async def test_a_name_that_is_too_long_to_be_kept_is_refused(bench: Any) -> None:
    client = bench.client()
    await client.producer("t")
    txn = await opened(client)
    with pytest.raises(Refused, match="more than 2048 characters"):
        await client.sent(b"0", txn=txn, name="n" * 5000)
