"""What a client asks only of coordinators that can do it: groups, nonces, early answers; and one transaction at a time."""

import asyncio
import re

import pytest
from fake_broker import SILENCE, fake_client
from fake_coordinators import ends, extended_broker, refused, refused_send, silence

from pulsar_txn.client import AsyncCoordinator, TransactionState
from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    FeatureUnsupported,
    InvalidConfiguration,
    InvalidTransactionStatus,
    NotAllowedError,
    TransactionAborted,
    TransactionalIdUnsupported,
    TransactionFenced,
    TransactionOperationFailed,
    TransactionStateError,
    TransactionTimedOut,
)
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnAction


@pytest.fixture
def broker():
    return extended_broker()


def grouped(client, **options):
    return client.begin_transaction(check_group="orders", **options)


# --- begin --------------------------------------------------------------------------------------------------------------


async def test_what_new_txn_says_of_checks(broker):
    async with fake_client(broker) as client:
        await grouped(client, check_data=b"17", check_after=1.5, abort_on_disconnect=True)
        async with client.transaction(check_group="payments", eager=True):
            pass
    first, second = broker.all("newTxn")
    assert (first.check_group, first.check_data, first.check_after_millis) == ("orders", b"17", 1500)
    assert first.abort_on_disconnect
    assert (second.check_group, second.check_data, second.HasField("check_after_millis")) == ("payments", b"", False)


@pytest.mark.seed_rows("C37")
async def test_a_begin_whose_answer_was_lost_is_repeated_with_its_nonce_and_the_next_one_has_another(broker):
    def cut(pipe, _body):
        del broker.on["newTxn"]
        pipe.cut()
        return SILENCE

    broker.on["newTxn"] = cut
    async with fake_client(broker) as client:
        await client.begin_transaction()
        await client.begin_transaction()
    nonces = [body.nonce for body in broker.all("newTxn")]
    assert nonces[0] == nonces[1] != nonces[2]
    assert {len(each) for each in nonces} == {16}


async def test_nothing_of_it_goes_to_a_broker_that_does_not_know_it(broker):
    broker.knows_checks = False
    async with fake_client(broker) as client:
        txn = await client.begin_transaction()
        await txn.commit()
        for options in ({"check_group": "orders"}, {"abort_on_disconnect": True}):
            with pytest.raises(FeatureUnsupported, match="back-check"):
                await client.begin_transaction(**options)
    (body,) = broker.all("newTxn")
    assert not body.nonce
    assert issubclass(TransactionalIdUnsupported, FeatureUnsupported)


async def test_a_broker_that_lacks_a_feature_is_not_asked_again_and_again_by_a_unit_that_is_run_again(broker):
    broker.knows_checks = False
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        with pytest.raises(FeatureUnsupported):
            async with client.transaction(check_group="orders") as txn:
                await producer.send(b"x", txn=txn)
        assert txn.state is TransactionState.ABORTED


@pytest.mark.parametrize(
    "options",
    [
        {"check_group": " "},
        {"check_group": 7},
        {"check_group": "g", "check_data": "text"},
        {"check_group": "g", "check_data": bytes(64 * 1024 + 1)},
        {"check_group": "g", "check_after": 0},
        {"check_data": b"x"},
        {"check_after": 3},
    ],
)
async def test_what_cannot_be_a_check_is_refused_before_anything_is_sent(broker, options):
    async with fake_client(broker) as client:
        with pytest.raises(InvalidConfiguration):
            await client.begin_transaction(**options)
        with pytest.raises(InvalidConfiguration):
            client.transaction(**options)
    assert broker.pipes == []


# --- who else ends a transaction with a group -------------------------------------------------------------------------------


async def test_a_commit_of_a_group_that_did_not_leave_is_unknown_because_a_member_may_still_commit(broker):
    async with fake_client(broker, operation_timeout=0.1) as client:
        txn = await grouped(client)
        broker.refuses = True
        broker.pipe.cut()
        await broker.until(lambda: not broker.pipe.is_open)
        with pytest.raises(CommitOutcomeUnknown):
            await txn.commit()
        assert txn.state is TransactionState.UNKNOWN


async def test_a_successor_says_nothing_about_the_commit_of_a_group(broker):
    broker.on["endTxn"] = refused("endTxnResponse", 25, "fenced")
    async with fake_client(broker) as client:
        txn, alone = await grouped(client), await client.begin_transaction()
        with pytest.raises(CommitOutcomeUnknown):
            await txn.commit()
        with pytest.raises(TransactionFenced):
            await alone.commit()
        other = await grouped(client)
        with pytest.raises(TransactionFenced):
            await other.abort()
        assert other.state is TransactionState.UNKNOWN


async def test_an_abort_of_what_the_group_has_committed_says_so(broker):
    broker.on["endTxn"] = refused("endTxnResponse", 21, "COMMITTED")
    async with fake_client(broker) as client:
        txn = await grouped(client)
        with pytest.raises(InvalidTransactionStatus, match="COMMITTED"):
            await txn.abort()
        assert txn.state is TransactionState.COMMITTED


async def test_a_commit_after_the_local_deadline_is_what_the_group_has_decided(broker):
    async with fake_client(broker) as client:
        txn = await grouped(client, timeout=0.02)
        await broker.until(lambda: txn.state is TransactionState.TIMED_OUT)
        broker.on["endTxn"] = refused("endTxnResponse", 21, "COMMITTED")
        await txn.commit()
        assert txn.state is TransactionState.COMMITTED
        late = await grouped(client, timeout=0.02)
        await broker.until(lambda: late.state is TransactionState.TIMED_OUT)
        del broker.on["endTxn"]
        with pytest.raises(TransactionTimedOut):
            await late.commit()
    assert ends(broker) == [TxnAction.ABORT, TxnAction.ABORT]


async def failed_in_group(broker, client):
    """A transaction of a group with a send that failed."""
    producer = await client.create_producer("t")
    txn = await grouped(client)
    broker.on["send"] = refused_send()
    with pytest.raises(Exception, match="no"):
        await producer.send(b"x", txn=txn)
    return txn


@pytest.mark.parametrize("known", [TransactionState.ABORTED, TransactionState.COMMITTED])
async def test_what_could_not_be_aborted_is_unknown_and_is_never_asked_for_by_a_commit(broker, known):
    broker.on["endTxn"] = silence
    async with fake_client(broker, operation_timeout=0.4) as client:
        txn = await failed_in_group(broker, client)
        with pytest.raises(CommitOutcomeUnknown) as caught:
            await txn.commit()
        assert isinstance(caught.value.__cause__, TransactionOperationFailed)
        with pytest.raises(CommitOutcomeUnknown):
            await txn.commit()
        if known is TransactionState.COMMITTED:
            broker.on["endTxn"] = refused("endTxnResponse", 21, "COMMITTED")
        else:
            del broker.on["endTxn"]
        assert await caught.value.resolve() is known
    assert set(ends(broker)) == {TxnAction.ABORT}


async def test_what_a_group_committed_although_an_operation_had_failed_is_an_error(broker):
    async with fake_client(broker) as client:
        txn = await failed_in_group(broker, client)
        broker.on["endTxn"] = refused("endTxnResponse", 21, "COMMITTED")
        with pytest.raises(InvalidTransactionStatus) as caught:
            await txn.commit()
        assert isinstance(caught.value.__cause__, TransactionOperationFailed)


# --- leaving it to the group ------------------------------------------------------------------------------------------------


async def test_what_was_left_to_its_group_is_not_aborted_by_the_close_of_its_client(broker, caplog):
    async with fake_client(broker) as client:
        txn = await grouped(client)
        await txn.leave_to_check()
        assert (txn.state, client.transactions()) == (TransactionState.UNKNOWN, ())
        with pytest.raises(TransactionStateError, match="left to the check"):
            await txn.resolve()
    assert ends(broker) == []
    assert [each for each in caplog.records if each.levelname == "WARNING"] == []  # nothing went wrong


@pytest.mark.parametrize("action", [TxnAction.COMMIT, TxnAction.ABORT])
async def test_what_was_left_to_its_group_may_still_be_ended_here(broker, action):
    async with fake_client(broker) as client:
        txn = await grouped(client)
        await txn.leave_to_check()
        assert client.stats().transactions.unknown == 1
        await (txn.commit() if action is TxnAction.COMMIT else txn.abort())
        counts = client.stats().transactions
        assert (counts.unknown, counts.committed + counts.aborted) == (0, 1)
    assert ends(broker) == [action]


async def test_a_client_keeps_nothing_of_what_it_left_to_groups(broker):
    async with fake_client(broker) as client:
        for _ in range(50):
            await (await grouped(client)).leave_to_check()
        counts = client.stats().transactions
        assert (counts.begun, counts.unknown, counts.open) == (50, 50, {})
        assert client._transactions.observers._unknown == set()


async def test_only_what_is_open_and_has_a_group_can_be_left_to_it(broker):
    async with fake_client(broker) as client:
        with pytest.raises(TransactionStateError, match="no check group"):
            await (await client.begin_transaction()).leave_to_check()
        txn = await grouped(client)
        await txn.abort()
        with pytest.raises(TransactionStateError, match="ABORTED"):
            await txn.leave_to_check()
        lazy = await grouped(client, eager=False)
        await lazy.leave_to_check()
        assert lazy.state is TransactionState.ABORTED  # nobody knows of it


async def test_what_is_whole_only_in_part_is_aborted_and_not_left(broker):
    async with fake_client(broker) as client:
        txn = await failed_in_group(broker, client)
        with pytest.raises(TransactionOperationFailed):
            await txn.leave_to_check()
        assert txn.state is TransactionState.ABORTED


async def test_an_exception_leaves_a_block_with_a_group_to_its_check_and_a_rollback_aborts(broker):
    async with fake_client(broker) as client:
        with pytest.raises(OSError, match="lost") as caught:
            async with client.transaction(check_group="orders", eager=True) as txn:
                raise OSError("lost")
        assert caught.value.__notes__ == [f"the transaction {txn.id} is left to the check of group 'orders'"]
        with pytest.raises(asyncio.CancelledError):
            async with client.transaction(check_group="orders", eager=True):
                raise asyncio.CancelledError
        assert ends(broker) == []
        async with client.transaction(check_group="orders", eager=True) as txn:
            txn.rollback()
        with pytest.raises(OSError, match="early"):
            async with client.transaction(check_group="orders") as early:
                raise OSError("early")
        assert early.state is TransactionState.ABORTED
    assert ends(broker) == [TxnAction.ABORT]


async def test_a_failed_operation_aborts_a_block_with_a_group(broker):
    broker.on["send"] = refused_send()
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        with pytest.raises(Exception, match="no"):
            async with client.transaction(check_group="orders") as txn:
                await producer.send(b"x", txn=txn)
        assert txn.state is TransactionState.ABORTED
    assert ends(broker) == [TxnAction.ABORT]


async def test_closing_a_client_leaves_open_transactions_of_groups_to_their_checks(broker, caplog):
    caplog.set_level("INFO")
    async with fake_client(broker) as client:
        txn = await grouped(client)
        failed = await failed_in_group(broker, client)
    assert (txn.state, failed.state) == (TransactionState.UNKNOWN, TransactionState.ABORTED)
    assert f"leaves 1 transactions to the check of their groups, the first is {txn.id}" in caplog.text
    assert ends(broker) == [TxnAction.ABORT]


# --- early answers --------------------------------------------------------------------------------------------------------


@pytest.mark.seed_rows("C26")
async def test_a_commit_may_be_answered_at_its_decision(broker):
    async with fake_client(broker) as client:
        await (await client.begin_transaction()).commit(visible=False)
        async with client.transaction(eager=True, visible=False):
            pass
        await (await client.begin_transaction()).commit()
        txn = await client.begin_transaction()
        await txn.abort()
    assert [body.answer_at_decision for body in broker.all("endTxn")] == [True, True, False, False]


async def test_a_broker_that_cannot_answer_early_leaves_the_transaction_as_it_was(broker):
    broker.knows_checks = False
    async with fake_client(broker) as client:
        txn = await client.begin_transaction()
        with pytest.raises(FeatureUnsupported, match="visible=False"):
            await txn.commit(visible=False)
        assert txn.state is TransactionState.OPEN
        await txn.commit()
        await (await client.begin_transaction(eager=False)).commit(visible=False)  # nothing is sent
    assert [body.answer_at_decision for body in broker.all("endTxn")] == [False]


# --- one transaction at a time, and the transactional id -------------------------------------------------------------------


def refused_begin(_pipe, body):
    return command("newTxnResponse", request_id=body.request_id, error=22, message="no")


@pytest.mark.seed_rows("B16", "B25")
async def test_a_second_transaction_before_the_end_of_the_first_is_a_mistake_for_a_client_with_one_at_a_time(broker):
    async with fake_client(broker, one_transaction_at_a_time=True) as client:
        first = await client.begin_transaction()
        with pytest.raises(TransactionStateError, match="one transaction at a time"):
            await client.begin_transaction()
        with pytest.raises(TransactionStateError, match=re.escape(str(first.id))):
            async with client.transaction():
                pytest.fail("the block was entered")
        await first.commit()
        client.transaction()  # was never entered
        broker.on["newTxn"] = refused_begin
        with pytest.raises(NotAllowedError):
            await client.begin_transaction()
        del broker.on["newTxn"]
        async with client.transaction():
            with pytest.raises(TransactionStateError):
                await client.begin_transaction()
        second = await client.begin_transaction()
        client.attach_transaction("(0,99)")
        await second.prepare()
        await (await client.begin_transaction()).abort()
    async with fake_client(broker) as free:
        for _ in range(3):
            await free.begin_transaction()


async def test_one_at_a_time_belongs_to_who_has_the_transactions(broker):
    with pytest.raises(InvalidConfiguration, match="belongs to the coordinator"):
        fake_client(broker, coordinator=AsyncCoordinator("pulsar://c:6653"), one_transaction_at_a_time=True)
    with pytest.raises(InvalidConfiguration):
        fake_client(broker, one_transaction_at_a_time="yes")


@pytest.fixture
def fencing(broker):
    epochs = iter(range(5, 100))

    def connect(_pipe, body):
        more = {}
        if body.transactional_id and not body.HasField("transactional_epoch"):
            more = {"transactional_epoch": next(epochs), "tc_id": 0}
        return command("tcClientConnectResponse", request_id=body.request_id, **more)

    def connected(_pipe, _body):
        flags = {"supports_transactional_ids": True, "keeps_transaction_outcomes": True, "supports_checks": True}
        return command("connected", server_version="Fake", protocol_version=21, feature_flags=flags)

    broker.on["tcClientConnectRequest"], broker.on["connect"] = connect, connected
    return broker


async def test_taking_over_is_done_once_and_before_any_transaction(fencing):
    async with fake_client(fencing, transactional_id="orders-3") as client:
        assert await client.take_over() == 5
        assert await client.take_over() == 5
        await client.begin_transaction()
    named = [body for body in fencing.all("tcClientConnectRequest") if body.transactional_id]
    assert [body.HasField("transactional_epoch") for body in named] == [False]


async def test_taking_over_waits_for_a_coordinator_that_cannot_end_everything_yet(fencing):
    connect, away = fencing.on["tcClientConnectRequest"], [2]

    def busy(pipe, body):
        if body.transactional_id and away[0]:
            away[0] -= 1
            return command("tcClientConnectResponse", request_id=body.request_id, error=6, message="a participant is away")
        return connect(pipe, body)

    fencing.on["tcClientConnectRequest"] = busy
    async with fake_client(fencing, transactional_id="orders-3") as client:
        assert await client.take_over() == 5


async def test_taking_over_needs_a_transactional_id_and_a_broker_that_fences(broker):
    async with fake_client(broker) as client:
        with pytest.raises(InvalidConfiguration, match="transactional_id="):
            await client.take_over()
    async with fake_client(broker, transactional_id="orders-3") as client:
        with pytest.raises(TransactionalIdUnsupported):
            await client.take_over()


async def test_an_aborted_group_transaction_is_not_an_error_for_its_own_client(broker):
    broker.on["endTxn"] = refused("endTxnResponse", 21, "ABORTED")
    async with fake_client(broker) as client:
        with pytest.raises(TransactionAborted):
            await (await grouped(client)).commit()
