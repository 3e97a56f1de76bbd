"""An acknowledgement names exactly what was delivered to its consumer and is not settled."""

from __future__ import annotations

from typing import Any

import pytest
from raw_client import FULL, RawClient, Received, Refused

from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnId, full_ack_set

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
EVERY_KIND = [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED]


async def opened(client: RawClient) -> TxnId:
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    return txn


async def acked(client: RawClient, batch: Received, *indexes: int, **how: Any) -> None:
    left = full_ack_set(batch.batch_size) & ~sum(1 << index for index in indexes)
    await client.ack(batch, left=left, **how)


async def conflicts(client: RawClient, batch: Received, *indexes: int, consumer_id: int = 0) -> None:
    """Neither the whole entry (no indexes) nor the indexes can be acknowledged in a new transaction."""
    txn = await opened(client)
    with pytest.raises(Refused) as refused:
        if indexes:
            await acked(client, batch, *indexes, consumer_id=consumer_id, txn=txn)
        else:
            await client.ack(batch, consumer_id=consumer_id, txn=txn)
    assert refused.value.code == ServerError.TransactionConflict
    await client.abort(txn)


def redeliver(client: RawClient, *batches: Received, consumer_id: int = 0) -> None:
    ids = [{"ledgerId": batch.position[0], "entryId": batch.position[1]} for batch in batches]
    client.raw(command("redeliverUnacknowledgedMessages", consumer_id=consumer_id, message_ids=ids))


def cursor(bench: Any) -> Any:
    return bench.broker.topics[FULL + "a"].subscriptions["s"].cursor


@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_a_whole_entry_of_which_another_transaction_committed_a_part_conflicts(client: RawClient, kind: int) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    await client.sent([b"0", b"1", b"2", b"3"])
    batch = await client.receive()
    first = await opened(client)
    await acked(client, batch, 0, txn=first)
    await client.end(first)
    await conflicts(client, batch, 0)
    await conflicts(client, batch)
    rest = await opened(client)
    await acked(client, batch, 1, 2, 3, txn=rest)
    await client.end(rest)
    await conflicts(client, batch)


@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_a_whole_entry_of_which_only_the_rest_was_given_means_the_rest(client: RawClient, bench: Any, kind: int) -> None:
    """As official clients say it, which were not given the other indexes."""
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    await client.sent([b"0", b"1", b"2", b"3"])
    batch = await client.receive()
    first = await opened(client)
    await acked(client, batch, 0, txn=first)
    await client.end(first)
    again = bench.client()
    client.drop()
    await again.subscribe("a", kind=kind)
    rest = await again.receive()
    assert rest.payloads == [b"1", b"2", b"3"]
    second = await opened(again)
    await again.ack(rest, txn=second)
    await again.end(second)
    assert cursor(bench).backlog() == 0


async def test_a_whole_entry_leaves_to_another_consumer_what_only_that_one_was_given(bench: Any) -> None:
    """Index 0 is freed by an abort, and worked on by the other consumer when the rest is acknowledged as a whole."""
    here, there = bench.client(), bench.client()
    await here.producer("a")
    await here.subscribe("a", kind=SHARED, permits=1000)
    await here.sent([b"0", b"1", b"2", b"3"])
    batch = await here.receive()
    holder = await opened(here)
    await acked(here, batch, 0, txn=holder)
    await there.subscribe("a", kind=SHARED)
    bench.broker.topics[FULL + "a"].subscriptions["s"].consumers[0].permits = 0
    redeliver(here, batch)
    rest = await there.receive()
    assert rest.payloads == [b"1", b"2", b"3"]
    bench.broker.topics[FULL + "a"].subscriptions["s"].consumers[1].permits = 0
    await here.abort(holder)
    here.flow(1000)
    freed = await here.receive()
    assert freed.payloads == [b"0"]
    txn = await opened(there)
    await there.ack(rest, txn=txn)
    await there.end(txn)
    assert cursor(bench).ack_set(batch.position) == 0b0001, "index 0 is with the other consumer, and not acknowledged"
    await here.ack(freed)
    assert cursor(bench).backlog() == 0


async def test_a_plain_whole_entry_leaves_what_its_consumer_was_not_given(bench: Any) -> None:
    """Else an abort could not bring it back: nobody would work on it."""
    here, there = bench.client(), bench.client()
    await here.producer("a")
    await here.subscribe("a", kind=SHARED)
    await here.sent([b"0", b"1", b"2"])
    batch = await here.receive()
    holder = await opened(here)
    await acked(here, batch, 0, txn=holder)
    here.drop()
    await there.subscribe("a", kind=SHARED)
    rest = await there.receive()
    assert rest.payloads == [b"1", b"2"]
    await there.ack(rest)
    await there.abort(holder)
    assert (await there.receive()).payloads == [b"0"]


async def test_what_was_settled_after_the_delivery_conflicts_in_a_whole_entry(bench: Any) -> None:
    """Both were given indexes 1 to 3; one of them acknowledges 1, and the other says "whole"."""
    here, there = bench.client(), bench.client()
    await here.producer("a")
    await here.subscribe("a", kind=SHARED)
    await here.sent([b"0", b"1", b"2", b"3"])
    await acked(here, await here.receive(), 0)
    here.drop()
    again = bench.client()
    await again.subscribe("a", kind=SHARED)
    rest = await again.receive()
    await there.subscribe("a", kind=SHARED)
    bench.broker.topics[FULL + "a"].subscriptions["s"].consumers[0].permits = 0
    redeliver(again, rest)
    copy = await there.receive()
    assert copy.payloads == rest.payloads == [b"1", b"2", b"3"]
    winner = await opened(there)
    await acked(there, copy, 1, txn=winner)
    await there.end(winner)
    await conflicts(again, rest)
    await conflicts(there, copy)


async def test_a_consumer_that_lost_its_place_cannot_acknowledge_what_its_successor_did(bench: Any) -> None:
    old, new = bench.client(), bench.client()
    await old.producer("a")
    await old.subscribe("a", kind=FAILOVER, consumer_name="b")
    await old.sent([b"0", b"1"])
    stale = await old.receive()
    await new.subscribe("a", kind=FAILOVER, consumer_name="a")
    fresh = await new.receive()
    txn = await opened(new)
    await acked(new, fresh, 0, txn=txn)
    await new.end(txn)
    await conflicts(old, stale)
    await conflicts(new, fresh)
    rest = await opened(new)
    await acked(new, fresh, 1, txn=rest)
    await new.end(rest)
    assert cursor(bench).backlog() == 0


async def test_notes_of_parts_do_not_outlive_their_entries(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED, permits=10**6)
    (consumer,) = bench.broker.topics[FULL + "a"].subscriptions["s"].consumers
    for _ in range(40):
        await client.sent([b"0", b"1"])
        batch = await client.receive()
        await acked(client, batch, 0)
        redeliver(client, batch)
        rest = await client.receive()
        assert len(consumer.given) <= 5
        await client.ack(rest)
    assert cursor(bench).backlog() == 0


@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_an_acknowledgement_sent_again_in_its_transaction_succeeds(bench: Any, kind: int) -> None:
    """Its answer was lost with the connection; it says by its key that it is the same one, and the transaction commits."""
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    await client.sent([b"0", b"1"])
    single = await client.sent(b"2")
    batch = await client.receive()
    txn = await opened(client)
    await acked(client, batch, 0, txn=txn, key=(7, 1))
    await client.ack(single, txn=txn, key=(7, 2))
    client.drop()
    again = bench.client()
    await again.subscribe("a", kind=kind)
    await acked(again, batch, 0, txn=txn, key=(7, 1))
    await again.ack(single, txn=txn, key=(7, 2))
    await acked(again, batch, 1, txn=txn, key=(7, 3))
    await again.end(txn)
    assert cursor(bench).backlog() == 0


@pytest.mark.parametrize("key", [None, (7, 2), (8, 1)], ids=["an official client", "another request", "another consumer"])
@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_a_second_copy_acknowledged_in_the_same_transaction_conflicts(
    bench: Any, kind: int, key: tuple[int, int] | None
) -> None:
    """An abort rewinds, what waited in the client comes twice, and the program works on both copies: stock refuses it too."""
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    await client.sent([b"0", b"1"])
    single = await client.sent(b"2")
    batch = await client.receive()
    txn = await opened(client)
    await client.ack(batch, single, txn=txn, key=(7, 1))
    for again in (client.ack(single, txn=txn, key=key), acked(client, batch, 1, txn=txn, key=key)):
        with pytest.raises(Refused) as refused:
            await again
        assert refused.value.code == ServerError.TransactionConflict
    await client.abort(txn)
    assert cursor(bench).backlog() == 2


async def test_a_resend_that_comes_after_another_process_acknowledged_conflicts(bench: Any) -> None:
    """Two processes share a transaction. The first one's request is lost, and the second acknowledges what it was given."""
    first = bench.client()
    await first.producer("a")
    await first.subscribe("a", kind=SHARED)
    await first.sent(b"0")
    message = await first.receive()
    txn = await opened(first)
    first.drop()
    second, again = bench.client(), bench.client()
    await second.subscribe("a", kind=SHARED)
    await second.ack(await second.receive(), txn=txn, key=(8, 1))
    await again.subscribe("a", kind=SHARED)
    with pytest.raises(Refused) as refused:
        await again.ack(message, txn=txn, key=(7, 1))
    assert refused.value.code == ServerError.TransactionConflict
    await again.request("tcClientConnectRequest", tc_id=0)
    await again.end(txn)
    assert cursor(bench).backlog() == 0


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
async def test_a_cumulative_acknowledgement_sent_again_in_its_transaction_succeeds(bench: Any, kind: int) -> None:
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    first, second = await client.sent([b"0", b"1"]), await client.sent(b"2")
    txn = await opened(client)
    for position, number in ((first, 1), (first, 1), (second, 2), (first, 1), (second, 2)):
        await client.ack(position, txn=txn, cumulative=True, key=(7, number))
    for position, key in ((first, None), (second, (7, 3))):
        with pytest.raises(Refused) as refused:
            await client.ack(position, txn=txn, cumulative=True, key=key)
        assert refused.value.code == ServerError.TransactionConflict
    await client.end(txn)
    assert cursor(bench).backlog() == 0


async def taken_over(bench: Any, count: int = 6) -> tuple[RawClient, RawClient, list[Received]]:
    """Failover: `old` was given everything, and lost its place to `new`, which was given everything as well."""
    old, new = bench.client(), bench.client()
    await old.producer("a")
    await old.subscribe("a", kind=FAILOVER, consumer_name="b")
    for number in range(count):
        await old.sent(b"%d" % number)
    messages = [await old.receive() for _ in range(count)]
    await new.subscribe("a", kind=FAILOVER, consumer_name="a")
    assert await new.payloads(count) == [each.payloads[0] for each in messages]
    return old, new, messages


@pytest.mark.parametrize("first_cumulative", [True, False])
@pytest.mark.parametrize("loser", ["old", "new"])
async def test_a_cumulative_ack_over_what_another_consumer_settled_since_conflicts(
    bench: Any, first_cumulative: bool, loser: str
) -> None:
    """Both were given all six; whoever comes second would acknowledge in its transaction what is committed already."""
    old, new, messages = await taken_over(bench)
    first, second = (new, old) if loser == "old" else (old, new)
    txn = await opened(first)
    await first.ack(messages[1], txn=txn, cumulative=first_cumulative)
    await first.end(txn)
    late = await opened(second)
    with pytest.raises(Refused) as refused:
        await second.ack(messages[4], txn=late, cumulative=True)
    assert refused.value.code == ServerError.TransactionConflict
    await second.abort(late)
    redeliver(new)
    rest = [0, 2, 3, 4, 5] if not first_cumulative else [2, 3, 4, 5]
    assert await new.payloads(len(rest)) == [b"%d" % number for number in rest]
    good = await opened(new)
    await new.ack(messages[5], txn=good, cumulative=True)
    await new.end(good)
    assert cursor(bench).backlog() == 0


async def test_a_cumulative_ack_over_what_its_own_consumer_settled_succeeds(bench: Any) -> None:
    _, new, messages = await taken_over(bench)
    await new.ack(messages[0])
    txn = await opened(new)
    await new.ack(messages[2], txn=txn)
    await new.end(txn)
    txn = await opened(new)
    await new.ack(messages[5], txn=txn, cumulative=True)
    await new.end(txn)
    assert cursor(bench).backlog() == 0


async def test_what_an_aborted_transaction_of_another_consumer_held_does_not_conflict(bench: Any) -> None:
    old, new, messages = await taken_over(bench)
    txn = await opened(old)
    await old.ack(messages[1], txn=txn)
    await old.abort(txn)
    assert await new.payloads(6) == [b"%d" % number for number in range(6)]
    txn = await opened(new)
    await new.ack(messages[5], txn=txn, cumulative=True)
    await new.end(txn)
    assert cursor(bench).backlog() == 0
