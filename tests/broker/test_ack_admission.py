"""What an ACK says of sizes, indexes and positions is judged by the entries themselves, and what it may add is bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from keeping import kept_by
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.topics import ack_reader
from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.hot import encode_ack
from pulsar_txn.wire.ids import Position, TxnId, full_ack_set

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)


def subscription(bench: Any) -> Any:
    return bench.broker.topics[FULL + "a"].subscriptions["s"]


def forgotten(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic's entries are not at hand any more, and nobody remembers what they were."""
    reader = subscription(bench).reader
    reader._sizes.clear()
    reader._older.clear()
    monkeypatch.setattr(type(bench.broker.topics[FULL + "a"].log), "read_cached", lambda _self, _position: None)


async def opened(client: RawClient) -> TxnId:
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    return txn


async def ack(
    client: RawClient, position: Position, left: int | None, size: int, *, txn: TxnId | None = None, cumulative: bool = False
) -> None:
    """ACK with a receipt, and a batch size of one's own."""
    client._ids += 1
    client.raw(encode_ack(0, cumulative, [(*position, left, size)], txn=txn, request_id=client._ids))
    answer = await client.until(lambda: client._answers.pop(client._ids, None), "ACK_RESPONSE")
    if answer[3] is not None:
        raise Refused(answer[3], answer[4] or "", answer)


@pytest.mark.parametrize("in_transaction", [True, False])
@pytest.mark.parametrize("cumulative", [True, False])
@pytest.mark.parametrize(
    ("entry", "left", "size"),
    [
        pytest.param(0, 1 << 99_999, 100_000, id="one message as a batch of many"),
        pytest.param(0, 1, 2, id="one message as a batch of two"),
        pytest.param(0, 1, 0, id="an index of one message"),
        pytest.param(1, 1 << 99_999, 100_000, id="a batch as a larger one"),
        pytest.param(1, 0b10, 2, id="a batch as a smaller one"),
        pytest.param(7, None, 0, id="no such message"),
        pytest.param(7, 1 << 99_999, 100_000, id="no such batch"),
    ],
)
async def test_an_invented_acknowledgement_is_refused_and_adds_nothing(
    client: RawClient, bench: Any, entry: int, left: int | None, size: int, in_transaction: bool, cumulative: bool
) -> None:
    await client.producer("a")
    await client.subscribe("a")
    ledger_id, _ = await client.sent(b"x")
    await client.sent([b"0", b"1", b"2"])
    cursor = subscription(bench).cursor
    txn = await opened(client) if in_transaction else None
    with pytest.raises(Refused) as refused:
        await ack(client, (ledger_id, entry), left, size, txn=txn, cumulative=cumulative)
    assert refused.value.code == ServerError.NotAllowedError
    assert (cursor.ticket, cursor.state_bytes(), cursor.backlog()) == (0, 0, 2)


async def test_an_invented_acknowledgement_that_nobody_waits_for_is_left_out(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    single, batch = await client.sent(b"x"), await client.sent([b"0", b"1"])
    ledger_id, _ = single
    for number in range(200):
        client.raw(encode_ack(0, False, [(ledger_id, number, 1 << 99_999, 100_000)]))
    cursor = subscription(bench).cursor
    assert (cursor.ticket, cursor.state_bytes()) == (0, 0)
    good = [(*single, None, 0), (ledger_id, 9, None, 0), (*batch, 0b10, 7), (*batch, 0b10, 2)]
    client.raw(encode_ack(0, False, good))
    await client.settle()
    assert cursor.mark_delete == single
    assert cursor.ack_set(batch) == 0b10
    assert not client.pipe.closed


@pytest.mark.parametrize("at_hand", [True, False])
@pytest.mark.parametrize("in_transaction", [True, False])
@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_an_index_is_acknowledged_without_the_size_of_its_batch(
    client: RawClient, bench: Any, monkeypatch: pytest.MonkeyPatch, kind: int, in_transaction: bool, at_hand: bool
) -> None:
    """As clients over the C++ one say it; the last index, so that what is left does not show the size."""
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    batch = await client.sent([b"0", b"1", b"2", b"3"])
    await client.receive()
    if not at_hand:
        forgotten(bench, monkeypatch)
    txn = await opened(client) if in_transaction else None
    await ack(client, batch, 0b0111, 0, txn=txn)
    if txn is not None:
        await client.end(txn)
    assert subscription(bench).cursor.ack_set(batch) == 0b0111


async def test_every_index_named_is_the_whole_batch_and_nothing_named_is_no_acknowledgement(
    client: RawClient, bench: Any
) -> None:
    await client.producer("a")
    await client.subscribe("a")
    single, batch = await client.sent(b"x"), await client.sent([b"0", b"1"])
    await ack(client, batch, full_ack_set(2), 2)
    assert subscription(bench).cursor.backlog() == 2
    await ack(client, single, 0, 0)
    await ack(client, batch, 0, 2)
    assert subscription(bench).cursor.backlog() == 0
    await ack(client, batch, 0b10, 2)  # once more: settled, so its size does not matter


async def test_a_batch_that_cannot_be_read_is_a_typed_error_of_its_acknowledgement(
    client: RawClient, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    batch, single = await client.sent([b"0", b"1"]), await client.sent(b"x")
    forgotten(bench, monkeypatch)

    async def unreadable(*_args: object, **_options: object) -> list[Any]:
        raise LedgerError("a bad sector")

    with monkeypatch.context() as patch:
        patch.setattr(type(bench.broker.topics[FULL + "a"].log), "read", unreadable)
        with pytest.raises(Refused, match="a bad sector") as refused:
            await ack(client, batch, 0b10, 2)
        assert refused.value.code == ServerError.PersistenceError
        await ack(client, single, None, 0)
    await ack(client, batch, 0b10, 2)
    assert subscription(bench).cursor.ack_set(batch) == 0b10


async def test_acknowledgements_that_wait_for_their_batches_are_bounded_and_answered_when_the_topic_closes(
    client: RawClient, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_reader, "MAX_WAITING", 3)
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    batch = await client.sent([b"0", b"1"])
    await client.receive()
    forgotten(bench, monkeypatch)

    async def slow(*_args: object, **_options: object) -> list[Any]:
        await asyncio.Event().wait()
        raise AssertionError("cancelled when the subscription closes")

    monkeypatch.setattr(type(bench.broker.topics[FULL + "a"].log), "read", slow)
    for request_id in range(1, 6):
        client.raw(encode_ack(0, False, [(*batch, 0b10, 2)], request_id=request_id))
    await client.settle()
    codes = [client._answers[each][3] for each in (4, 5)]
    assert codes == [ServerError.TooManyRequests] * 2
    assert subscription(bench).is_busy
    await subscription(bench)._cold.close()
    await client.settle()
    assert [client._answers[each][3] for each in (1, 2, 3)] == [ServerError.ServiceNotReady] * 3


async def test_sizes_are_remembered_for_so_many_batches_and_read_for_others(
    client: RawClient, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_reader, "_GENERATION", 4)
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    batches = [await client.sent([b"0", b"1"]) for _ in range(20)]
    reader = subscription(bench).reader
    assert 4 <= kept_by(reader) <= 8
    for batch in batches:
        await ack(client, batch, 0b10, 2)
        await ack(client, batch, 0b01, 2)
    assert subscription(bench).cursor.backlog() == 0


async def test_acknowledgements_out_of_order_have_a_bound_that_those_in_order_pass(benches: Any) -> None:
    bench = await benches(max_ack_state_bytes_per_subscription=4000).start()
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    batches = [await client.sent([b"0", b"1"]) for _ in range(60)]
    cursor = subscription(bench).cursor
    taken = 0
    with pytest.raises(Refused, match="maxAckStateBytesPerSubscription") as refused:
        for batch in batches[1:]:
            await ack(client, batch, 0b10, 2)
            taken += 1
    assert refused.value.code == ServerError.TooManyRequests
    assert 10 < taken < 59
    assert cursor.state_bytes() < 4200
    txn = await opened(client)
    with pytest.raises(Refused) as in_transaction:
        await ack(client, batches[-1], 0b10, 2, txn=txn)
    assert in_transaction.value.code == ServerError.TooManyRequests
    await client.abort(txn)
    client.raw(encode_ack(0, False, [(*batches[-1], 0b10, 2), (*batches[5], 0b01, 2)]))
    await client.settle()
    assert cursor.ack_set(batches[-1]) is None
    assert cursor.is_deleted(batches[5]), "what makes it less is taken"
    for batch in batches:
        await ack(client, batch, 0, 2)
    assert cursor.backlog() == 0
    assert cursor.state_bytes() <= 800, "one chunk around the last acknowledged message"


async def test_when_the_store_keeps_all_the_state_it_may_only_acknowledgements_that_add_nothing_are_taken(
    client: RawClient, bench: Any
) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    batches = [await client.sent([b"0", b"1"]) for _ in range(4)]
    await ack(client, batches[2], 0b01, 2)
    subscription(bench).cursor.log.groups.tally.max_bytes = 0
    with pytest.raises(Refused, match="raise maxStoreStateBytes") as refused:
        await ack(client, batches[3], 0b01, 2)
    assert refused.value.code == ServerError.TooManyRequests
    txn = await opened(client)
    with pytest.raises(Refused, match="raise maxStoreStateBytes"):
        await ack(client, batches[3], 0b01, 2, txn=txn)
    await client.abort(txn)
    await ack(client, batches[2], 0b10, 2)
    await ack(client, batches[0], 0, 2)
    assert subscription(bench).cursor.backlog() == 2
