"""Sessions with the transaction coordinators: discovery, round robin, reconnecting, what may have been processed."""

import asyncio

import pytest
from fake_broker import SILENCE, FakeBroker, fake_client

from pulsar_txn.client.errors import (
    AlreadyClosed,
    AuthorizationError,
    ConnectionLost,
    CoordinatorUnavailable,
    OperationTimeout,
    TransactionNotFound,
    TransactionsDisabled,
)
from pulsar_txn.client.txn.coordinators import TransactionCoordinators
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnAction, TxnId
from pulsar_txn.wire.topics import ASSIGN_TOPIC

pytestmark = pytest.mark.quick


@pytest.fixture
def broker():
    found = FakeBroker()
    found.partitions[ASSIGN_TOPIC] = 3
    return found


def refuse(name, code, text="no"):
    def handler(_pipe, body):
        bits = {"txnid_most_bits": body.txnid_most_bits, "txnid_least_bits": body.txnid_least_bits}
        return command(name, request_id=body.request_id, error=code, message=text, **bits)

    return handler


async def all_connected(coordinators, count=3):
    async with asyncio.timeout(2):
        while sum(coordinators.endpoint(index) is not None for index in range(count)) < count:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)


async def test_nothing_is_looked_up_before_the_first_transaction(broker):
    async with fake_client(broker) as client:
        coordinators = TransactionCoordinators(core_of(client))
        assert coordinators.count == 0
        assert broker.pipes == []


@pytest.mark.seed_rows("D23")
async def test_new_transactions_go_round_robin_over_the_coordinators(broker):
    async with fake_client(broker) as client:
        coordinators = TransactionCoordinators(core_of(client))
        await coordinators.start()
        await all_connected(coordinators)
        ids = [await coordinators.new_txn(1500) for _ in range(6)]
    assert sorted(txn_id.most for txn_id in ids) == [0, 0, 1, 1, 2, 2]
    assert [one.most for one in ids[:3]] == [one.most for one in ids[3:]]
    assert {body.txn_ttl_millis for body in broker.all("newTxn")} == {1500}
    assert len(broker.all("partitionMetadata")) == 1


async def test_a_coordinator_that_is_away_is_passed_over(broker):
    def connect(_pipe, body):
        if body.tc_id == 1:
            return command("tcClientConnectResponse", request_id=body.request_id, error=20, message="moving")
        return command("tcClientConnectResponse", request_id=body.request_id)

    broker.on["tcClientConnectRequest"] = connect
    async with fake_client(broker, operation_timeout=0.2) as client:
        coordinators = TransactionCoordinators(core_of(client))
        await coordinators.start()
        async with asyncio.timeout(2):
            while coordinators.endpoint(0) is None or coordinators.endpoint(2) is None:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)
        assert {(await coordinators.new_txn(1000)).most for _ in range(4)} == {0, 2}
        await asyncio.sleep(0.3)  # its first attempts are given up, and go on in the background
        del broker.on["tcClientConnectRequest"]
        await all_connected(coordinators)
        assert {(await coordinators.new_txn(1000)).most for _ in range(4)} == {0, 1, 2}


async def test_a_cluster_without_coordinators_has_transactions_disabled(broker):
    broker.partitions[ASSIGN_TOPIC] = 0
    async with fake_client(broker) as client:
        with pytest.raises(TransactionsDisabled, match="transactionCoordinatorEnabled=true"):
            async with client.transaction(eager=True):
                pytest.fail("the block was entered")


@pytest.mark.parametrize("code", [11, 22])
async def test_a_broker_that_refuses_the_handshake_or_knows_no_assign_topic_has_them_disabled(broker, code):
    name = "partitionMetadata" if code == 11 else "tcClientConnectRequest"
    broker.on[name] = lambda _pipe, body: command("error", request_id=body.request_id, error=code, message="not enabled")
    async with fake_client(broker) as client:
        with pytest.raises(TransactionsDisabled):
            await client.begin_transaction()
        del broker.on[name]
        assert (await TransactionCoordinators(core_of(client)).new_txn(1000)).least == 1


@pytest.mark.parametrize(
    ("name", "code", "error", "words"),
    [
        ("partitionMetadata", 11, TransactionsDisabled, "initialize-transaction-coordinator-metadata.*pulsar-txn doctor"),
        ("partitionMetadata", 4, AuthorizationError, "grant-permission pulsar/system"),
        ("lookupTopic", 4, AuthorizationError, "grant-permission pulsar/system"),
        ("tcClientConnectRequest", 22, TransactionsDisabled, "transactionCoordinatorEnabled=true.*restart"),
        ("tcClientConnectRequest", 20, CoordinatorUnavailable, "not loaded.*20851.*pulsar-txn doctor"),
    ],
)
async def test_the_first_transaction_says_why_there_is_no_coordinator_and_what_to_do(broker, name, code, error, words):
    answer = {"lookupTopic": "lookupTopicResponse", "partitionMetadata": "partitionMetadataResponse"}.get(name, "error")
    refused = {} if answer == "error" else {"response": 2 if name == "lookupTopic" else 1}
    broker.on[name] = lambda _pipe, body: command(answer, request_id=body.request_id, error=code, message="no", **refused)
    async with fake_client(broker, operation_timeout=0.2) as client:
        with pytest.raises(error, match=words):
            await client.begin_transaction()


async def test_an_unknown_coordinator_is_said_with_the_transaction(broker):
    async with fake_client(broker) as client:
        coordinators = TransactionCoordinators(core_of(client))
        with pytest.raises(CoordinatorUnavailable, match=r"no coordinator 9.*\(9,1\).*another cluster") as caught:
            await coordinators.end_txn(TxnId(9, 1), TxnAction.COMMIT)
        assert caught.value.txn_id == (9, 1)


@pytest.mark.seed_rows("D53")
async def test_a_coordinator_that_was_added_is_found_by_the_first_transaction_of_it(broker):
    async with fake_client(broker) as client:
        coordinators = TransactionCoordinators(core_of(client))
        await coordinators.start()
        broker.partitions[ASSIGN_TOPIC] = 5
        await coordinators.end_txn(TxnId(4, 7), TxnAction.COMMIT)
        assert coordinators.count == 5
        await all_connected(coordinators, 5)
        assert {(await coordinators.new_txn(1000)).most for _ in range(5)} == {0, 1, 2, 3, 4}
    assert [body.tc_id for body in broker.all("tcClientConnectRequest")].count(4) == 1


@pytest.mark.seed_rows("D22")
async def test_a_request_without_an_answer_goes_out_again_after_the_reconnect_with_the_same_id(broker):
    async with fake_client(broker) as client:
        coordinators = TransactionCoordinators(core_of(client))
        txn_id = await coordinators.new_txn(1000)
        healthy = broker._endTxn
        broker.on["endTxn"] = lambda pipe, _body: (broker.on.pop("endTxn"), pipe.cut(), SILENCE)[2]
        await coordinators.end_txn(txn_id, TxnAction.COMMIT)
    assert healthy is not None
    first, second = broker.all("endTxn")
    assert first.request_id == second.request_id


@pytest.mark.parametrize("lost", [True, False])
async def test_whether_a_refused_end_may_have_been_processed_before(broker, lost):
    async with fake_client(broker) as client:
        coordinators = TransactionCoordinators(core_of(client))
        txn_id = await coordinators.new_txn(1000)
        not_found = refuse("endTxnResponse", 24, "gone")

        def cut_first(pipe, _body):
            broker.on["endTxn"] = not_found
            pipe.cut()
            return SILENCE

        broker.on["endTxn"] = cut_first if lost else not_found
        with pytest.raises(TransactionNotFound, match="gone") as caught:
            await coordinators.end_txn(txn_id, TxnAction.COMMIT)
    assert caught.value.maybe_processed is lost
    assert caught.value.txn_id == txn_id


@pytest.mark.seed_rows("C12", "D53")
async def test_a_moved_coordinator_is_looked_up_anew_and_asked_again(broker):
    async with fake_client(broker) as client:
        coordinators = TransactionCoordinators(core_of(client))
        txn_id = await coordinators.new_txn(1000)
        moved = refuse("addPartitionToTxnResponse", 20, "moved")
        broker.on["addPartitionToTxn"] = lambda pipe, body: (broker.on.pop("addPartitionToTxn"), moved(pipe, body))[1]
        connects = len(broker.all("tcClientConnectRequest"))
        await coordinators.add_partitions(txn_id, ["persistent://a/b/c"])
        assert len(broker.all("tcClientConnectRequest")) > connects
    assert [list(body.partitions) for body in broker.all("addPartitionToTxn")] == [["persistent://a/b/c"]] * 2


@pytest.mark.seed_rows("B27")
async def test_subscriptions_are_registered_by_topic_and_name(broker):
    async with fake_client(broker) as client:
        coordinators = TransactionCoordinators(core_of(client))
        txn_id = await coordinators.new_txn(1000)
        await coordinators.add_subscriptions(txn_id, [("persistent://a/b/c", "s")])
    (body,) = broker.all("addSubscriptionToTxn")
    assert [(one.topic, one.subscription) for one in body.subscription] == [("persistent://a/b/c", "s")]
    assert (body.txnid_most_bits, body.txnid_least_bits) == txn_id


async def test_a_request_that_never_left_was_not_processed(broker):
    async with fake_client(broker, operation_timeout=0.5) as client:
        coordinators = TransactionCoordinators(core_of(client))
        txn_id = await coordinators.new_txn(1000)
        broker.refuses = True
        broker.pipe.cut()
        async with asyncio.timeout(1):
            while coordinators.endpoint(txn_id.most) is not None:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)
        with pytest.raises(OperationTimeout, match="was not reached in time for endTxn") as caught:
            await coordinators.end_txn(txn_id, TxnAction.COMMIT, timeout=0.03)
        assert not caught.value.maybe_processed


async def test_a_request_that_is_never_answered_may_have_been_processed(broker):
    async with fake_client(broker) as client:
        coordinators = TransactionCoordinators(core_of(client))
        txn_id = await coordinators.new_txn(1000)
        broker.on["endTxn"] = lambda _pipe, _body: SILENCE
        with pytest.raises((OperationTimeout, ConnectionLost)) as caught:
            await coordinators.end_txn(txn_id, TxnAction.ABORT, timeout=0.03)
        assert caught.value.maybe_processed


async def test_a_refusal_that_is_final_is_not_repeated(broker):
    async with fake_client(broker) as client:
        coordinators = TransactionCoordinators(core_of(client))
        txn_id = await coordinators.new_txn(1000)
        broker.on["addPartitionToTxn"] = refuse("addPartitionToTxnResponse", 4)
        with pytest.raises(AuthorizationError):
            await coordinators.add_partitions(txn_id, ["t"])
    assert len(broker.all("addPartitionToTxn")) == 1


async def test_waiting_requests_end_when_the_client_is_closed(broker):
    client = fake_client(broker, operation_timeout=5)
    coordinators = TransactionCoordinators(core_of(client))
    txn_id = await coordinators.new_txn(1000)
    broker.refuses = True
    broker.pipe.cut()
    async with asyncio.timeout(1):
        while coordinators.endpoint(txn_id.most) is not None:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)
    ending = asyncio.create_task(coordinators.end_txn(txn_id, TxnAction.COMMIT))
    await asyncio.sleep(0.01)
    await client.close()
    with pytest.raises(AlreadyClosed):
        await ending


@pytest.mark.seed_rows("B28", "C20", "C24", "D22")
async def test_a_whole_transaction_walks_through_the_protocol_in_order(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("out")
        consumer = await client.subscribe("in", "s")
        broker.deliver(1, 0, b"x")
        broker.got.clear()
        async with client.transaction(timeout=5) as txn:
            message = await consumer.receive(1)
            await producer.send(message.data, txn=txn)
            await consumer.acknowledge(message, txn=txn)
    walk = ["newTxn", "addPartitionToTxn", "send", "addSubscriptionToTxn", "ack", "endTxn"]
    assert [name for name, _ in broker.got if name in walk] == walk
    assert broker.all("newTxn")[0].txn_ttl_millis == 5000
