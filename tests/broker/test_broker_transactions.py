"""Transactions through the whole broker, in frames."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.hot import encode_send
from pulsar_txn.wire.ids import TxnAction, TxnId

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)


@pytest.mark.seed_rows("D28")
async def test_a_commit_shows_all_topics_and_a_batch_at_once_and_nothing_before(client: RawClient) -> None:
    await client.producer("a", 0)
    await client.producer("b", 1)
    await client.subscribe("a", "s", 0)
    await client.subscribe("b", "s", 1, kind=SHARED)
    txn = await client.new_txn(1)
    assert txn == TxnId(1, 0)
    await client.add_topics(txn, FULL + "a", FULL + "b")
    await client.sent(b"one", 0, txn=txn)
    await client.sent([b"two", b"three"], 1, txn=txn)
    await client.sent(b"plain", 0)
    await client.nothing(0)
    await client.nothing(1)
    answer = await client.end(txn)
    assert (answer.txnid_most_bits, answer.txnid_least_bits) == (1, 0)
    assert await client.payloads(2, 0) == [b"one", b"plain"]
    assert await client.payloads(2, 1) == [b"two", b"three"]


@pytest.mark.seed_rows("D32")
@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
async def test_an_abort_is_never_delivered_and_leaves_no_backlog(client: RawClient, bench: Any, kind: int) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    for number in range(3):
        txn = await client.new_txn()
        await client.add_topics(txn, FULL + "a")
        await client.sent(b"aborted", txn=txn)
        await client.abort(txn)
        await client.sent(b"%d" % number)
        message = await client.receive()
        assert message.payloads == [b"%d" % number]
        await client.ack(message)
    await client.nothing()
    subscription = bench.broker.topics[FULL + "a"].subscriptions["s"]
    assert subscription.cursor.backlog() == 0
    assert subscription.cursor.deleted_ranges() == []
    assert not subscription.dispatcher.moves.hidden


@pytest.mark.seed_rows("D32", "D59")
async def test_markers_leave_no_ack_holes_behind_an_unacknowledged_message(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    await client.sent(b"first")
    for _ in range(20):
        txn = await client.new_txn()
        await client.add_topics(txn, FULL + "a")
        await client.sent(b"x", txn=txn)
        await client.end(txn)
    messages = [await client.receive() for _ in range(21)]
    cursor = bench.broker.topics[FULL + "a"].subscriptions["s"].cursor
    before = cursor.ticket
    assert cursor.deleted_ranges() == []
    await client.ack(*messages[1:])
    assert cursor.ticket == before + 1
    assert len(cursor.deleted_ranges()) == 1
    await client.ack(messages[0])
    assert cursor.deleted_ranges() == []


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
async def test_an_abort_rewinds_a_subscription_that_keeps_order(client: RawClient, kind: int) -> None:
    """As on stock: clients drop what they have queued, so what is after the released message has to come again as well."""
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    for payload in (b"0", b"1", b"2"):
        await client.sent(payload)
    messages = [await client.receive() for _ in range(3)]
    await client.ack(messages[0])
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.ack(messages[1], txn=txn)
    await client.abort(txn)
    assert await client.payloads(2) == [b"1", b"2"]
    await client.nothing()


@pytest.mark.seed_rows("D67")
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_an_abort_redelivers_exactly_what_it_released(client: RawClient, kind: int) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    for payload in (b"0", b"1", b"2"):
        await client.sent(payload)
    messages = [await client.receive() for _ in range(3)]
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.ack(messages[1], txn=txn)
    await client.abort(txn)
    again = await client.receive()
    assert again.payloads == [b"1"]
    await client.nothing()


@pytest.mark.parametrize(("kind", "again_after_abort"), [(EXCLUSIVE, [b"0", b"1", b"2"]), (SHARED, [b"1"])])
async def test_an_abort_of_batch_indexes_redelivers_those_indexes(
    client: RawClient, kind: int, again_after_abort: list[bytes]
) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    await client.sent([b"0", b"1", b"2"])
    batch = await client.receive()
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.ack(batch, txn=txn, left=0b101)
    await client.abort(txn)
    again = await client.receive()
    assert again.payloads == again_after_abort
    await client.ack(batch, left=0b101)
    await client.ack(batch, left=0b010)
    await client.nothing()


@pytest.mark.seed_rows("B28", "D66")
async def test_committed_acks_stick_and_their_messages_do_not_come_again(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    for payload in (b"0", b"1"):
        await client.sent(payload)
    messages = [await client.receive() for _ in range(2)]
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.ack(messages[0], txn=txn)
    await client.end(txn)
    client.drop()
    other = bench.client()
    await other.subscribe("a", kind=SHARED)
    assert await other.payloads(1) == [b"1"]
    await other.nothing()


async def test_a_cumulative_ack_in_a_transaction_counts_at_commit(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a")
    for number in range(4):
        await client.sent(b"%d" % number)
    messages = [await client.receive() for _ in range(4)]
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.ack(messages[2], txn=txn, cumulative=True)
    cursor = bench.broker.topics[FULL + "a"].subscriptions["s"].cursor
    assert cursor.backlog() == 4
    await client.end(txn)
    assert cursor.backlog() == 1


async def test_a_second_ack_conflicts_and_a_batch_pending_as_a_whole_does_too(client: RawClient) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    await client.sent([b"0", b"1"])
    batch = await client.receive()
    first, second = await client.new_txn(), await client.new_txn()
    for txn in (first, second):
        await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.ack(batch, txn=first, left=0b10)
    await client.ack(batch, txn=first, left=0b01)
    with pytest.raises(Refused) as refused:
        await client.ack(batch, txn=second, left=0b10)
    assert refused.value.code == ServerError.TransactionConflict


async def test_what_is_pending_is_not_delivered_to_anybody(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    await client.sent(b"0")
    message = await client.receive()
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.ack(message, txn=txn)
    client.drop()
    other = bench.client()
    await other.subscribe("a", kind=SHARED)
    await other.nothing()
    await other.abort(txn)
    assert await other.payloads(1) == [b"0"]


async def test_an_end_may_be_repeated_and_the_opposite_is_refused(client: RawClient) -> None:
    await client.producer("a")
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    await client.sent(b"x", txn=txn)
    first = client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=0)
    second = client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=0)
    await client.answer(first)
    await client.answer(second)
    await client.end(txn)
    with pytest.raises(Refused) as refused:
        await client.abort(txn)
    assert refused.value.code == ServerError.InvalidTxnStatus


async def test_errors_of_transactions_echo_their_ids(client: RawClient) -> None:
    await client.request("tcClientConnectRequest", tc_id=1)
    with pytest.raises(Refused) as refused:
        await client.end(TxnId(1, 99))
    assert refused.value.code == ServerError.TransactionNotFound
    assert (refused.value.body.txnid_most_bits, refused.value.body.txnid_least_bits) == (1, 99)
    with pytest.raises(Refused) as refused:
        await client.add_topics(TxnId(77, 0), FULL + "a")
    assert refused.value.code == ServerError.TransactionCoordinatorNotFound
    assert refused.value.body.txnid_most_bits == 77


async def test_too_many_open_transactions_are_an_error_and_not_silence(benches: Any) -> None:
    bench = await benches(max_active_transactions_per_coordinator=2).start()
    client = bench.client()
    await client.new_txn(1)
    await client.new_txn(1)
    with pytest.raises(Refused) as refused:
        await client.new_txn(1)
    assert refused.value.code == ServerError.TooManyRequests
    assert refused.value.body.txnid_most_bits == 1
    await client.new_txn(0)


@pytest.mark.seed_rows("A03")
async def test_a_send_in_a_transaction_that_did_not_register_the_topic_is_refused(client: RawClient) -> None:
    await client.producer("a")
    txn = await client.new_txn()
    with pytest.raises(Refused) as refused:
        await client.sent(b"x", txn=txn)
    assert refused.value.code == ServerError.NotAllowedError
    with pytest.raises(Refused) as refused:
        await client.sent(b"x", txn=TxnId(99, 0))
    assert refused.value.code == ServerError.NotAllowedError
    await client.sent(b"plain")


@pytest.mark.parametrize("action", list(TxnAction))
async def test_a_send_after_the_end_is_refused(client: RawClient, action: TxnAction) -> None:
    await client.producer("a")
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    await client.sent(b"x", txn=txn)
    await client.end(txn, action)
    with pytest.raises(Refused) as refused:
        await client.sent(b"late", txn=txn)
    assert refused.value.code == ServerError.NotAllowedError


async def test_a_transaction_named_in_the_command_only_is_hidden_after_an_abort_also_after_a_crash(
    client: RawClient, bench: Any
) -> None:
    await client.producer("a")
    await client.subscribe("a")
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    await client.sent(b"aborted", txn=txn, stamp=False)
    await client.abort(txn)
    await client.sent(b"plain")
    assert await client.payloads(1) == [b"plain"]
    await bench.crash()
    again = bench.client()
    await again.subscribe("a")
    assert await again.payloads(1) == [b"plain"]


@pytest.mark.seed_rows("C05")
async def test_clients_cannot_forge_markers_or_smuggle_transactions_in(client: RawClient) -> None:
    await client.producer("a")
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    from pulsar_txn.wire.entries import encode_marker
    from pulsar_txn.wire.hot import encode_send

    marker = encode_marker(txn, TxnAction.COMMIT, 1)
    client.raw(b"".join(encode_send(0, 0, 1, marker, marker=True)))
    await client.until(lambda: client.send_errors)
    assert client.send_errors.pop().error == ServerError.NotAllowedError
    client.raw(b"".join(encode_send(0, 1, 1, marker, txn=txn)))
    await client.until(lambda: client.send_errors)


async def test_a_transactional_send_to_a_non_persistent_topic_is_answered_and_the_connection_stays(client: RawClient) -> None:
    await client.producer("non-persistent://public/default/n")
    await client.subscribe("non-persistent://public/default/n")
    txn = await client.new_txn()
    with pytest.raises(Refused) as refused:
        await client.sent(b"x", txn=txn)
    assert refused.value.code == ServerError.NotAllowedError
    with pytest.raises(Refused):
        await client.add_topics(txn, "non-persistent://public/default/n")
    assert await client.sent(b"plain") == (-1, -1)
    assert await client.payloads(1) == [b"plain"]


async def test_a_timeout_aborts_and_what_waits_behind_it_is_delivered(client: RawClient) -> None:
    await client.producer("a")
    await client.subscribe("a")
    txn = await client.new_txn(timeout_ms=1_000)  # a slow machine gets here, too, before it is over
    await client.add_topics(txn, FULL + "a")
    await client.sent(b"x", txn=txn)
    await client.sent(b"plain")
    await client.nothing()
    await asyncio.sleep(1)
    await client.until(lambda: client.messages[0], turns=1_000_000)
    assert await client.payloads(1) == [b"plain"]
    with pytest.raises(Refused):
        await client.end(txn)


@pytest.mark.seed_rows("D12")
async def test_transactions_that_are_not_enabled_are_refused_with_a_sentence(benches: Any) -> None:
    bench = await benches(transaction_coordinator_enabled=False).start()
    client = bench.client()
    with pytest.raises(Refused, match="transactionCoordinatorEnabled") as refused:
        await client.request("newTxn", tc_id=0)
    assert refused.value.code == ServerError.NotAllowedError
    assign = "persistent://pulsar/system/transaction_coordinator_assign"
    assert (await client.request("partitionMetadata", topic=assign)).partitions == 0


@pytest.mark.seed_rows("C05", "D17")
async def test_only_coordinators_may_end_a_transaction_at_a_participant(client: RawClient) -> None:
    await client.producer("a")
    txn = await client.new_txn()
    with pytest.raises(Refused) as refused:
        await client.request("endTxnOnPartition", txnid_least_bits=txn.least, txnid_most_bits=txn.most, topic=FULL + "a")
    assert refused.value.code == ServerError.NotAllowedError


async def test_a_plain_send_behind_a_waiting_transactional_one_keeps_the_order(client: RawClient, bench: Any) -> None:
    """Registration is in flight: the verification waits, and with it everything the producer sent later."""
    await client.producer("a")
    await client.subscribe("a")
    txn = await client.new_txn()
    bench.store.auto_confirm = False
    registered = client.start(
        "addPartitionToTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, partitions=[FULL + "a"]
    )
    client.send(b"in", txn=txn)
    client.send(b"plain")
    await client.settle()
    assert not client.receipts
    bench.store.auto_confirm = True
    bench.store.confirm()
    await client.answer(registered)
    await client.until(lambda: len(client.receipts) == 2)
    assert [sequence_id for _, sequence_id, _ in client.receipts] == [0, 1]
    assert client.receipts[0][2] < client.receipts[1][2]
    await client.end(txn)
    assert await client.payloads(2) == [b"in", b"plain"]


async def test_a_message_that_only_half_parses_is_refused_and_its_coordinator_goes_on(client: RawClient) -> None:
    await client.producer("a")
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=5, publish_time=1).SerializeToString()
    half = metadata + b"\x22\x01\xff"  # a property that is none; and the transaction is in the command only
    client.send(b"first", txn=txn)  # asks the coordinator; what follows waits for its answer
    client.raw(b"".join(encode_send(0, 5, 1, len(half).to_bytes(4) + half + b"x", txn=txn)))
    await client.until(lambda: client.send_errors)
    assert client.send_errors[0].error == ServerError.NotAllowedError
    await client.sent(b"behind it", sequence_id=6, txn=txn)
    await client.end(txn)
    await client.subscribe("a")
    assert await client.payloads(2) == [b"first", b"behind it"]


@pytest.mark.seed_rows("D19")
async def test_a_coordinator_that_failed_is_opened_again_with_its_log(
    client: RawClient, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_txn.broker.txn.coordinators._FIRST_REOPEN_SECONDS", 0.0)
    txn = await client.new_txn()
    bench.broker.coordinators.ready(0).fail(LedgerError("an effect could not be released"))
    await asyncio.sleep(0)
    assert bench.broker.coordinators.ready(0) is None
    await client.until(lambda: bench.broker.coordinators.ready(0), "the coordinator serves again")
    await client.request("tcClientConnectRequest", tc_id=0)
    await client.abort(txn)
