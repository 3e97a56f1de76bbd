"""A prepared transaction waits for its end: with its token, from any client, after any restart."""

import asyncio
import copy
import gc
import logging
import pickle
import warnings

import pytest
from fake_broker import SILENCE, FakeRuntime, fake_client
from fake_coordinators import extended_broker, refused, refused_send, silence
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.client import TransactionState, sync
from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    ConnectionLost,
    FeatureUnsupported,
    InvalidConfiguration,
    InvalidTransactionStatus,
    OperationTimeout,
    TransactionAborted,
    TransactionOperationFailed,
    TransactionStateError,
)
from pulsar_txn.client.transactions import PreparedToken
from pulsar_txn.wire.ids import TxnAction, TxnId

PREPARED, PREPARING = TransactionState.PREPARED, TransactionState.PREPARING


@pytest.fixture
def broker():
    return extended_broker(2)


def ends(broker):
    return [(TxnAction(body.txn_action), body.prepared_token) for body in broker.all("endTxn")]


async def prepared(client):
    txn = await client.begin_transaction()
    return txn, await txn.prepare()


# --- preparing ------------------------------------------------------------------------------------------------------


async def test_prepare_waits_for_operations_and_then_tells_the_coordinator(broker):
    order = []
    broker.on["send"] = lambda pipe, body: order.append("send") or broker._send(pipe, body)
    broker.on["prepareTxn"] = lambda pipe, body: order.append("prepare") or broker._prepareTxn(pipe, body)
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_max_delay=5)
        txn = await client.begin_transaction()
        producer.send_nowait(b"x", txn=txn)
        token = await txn.prepare()
        assert (txn.state, txn.remaining, txn.deadline) == (PREPARED, None, None)
        with pytest.raises(TransactionStateError, match="PREPARED"):
            await producer.send(b"late", txn=txn)
        assert await txn.prepare() is token
    assert order == ["send", "prepare"]
    (body,) = broker.all("prepareTxn")
    assert (token.txn_id, token.secret) == (txn.id, body.token)


@pytest.mark.parametrize("action", [TxnAction.COMMIT, TxnAction.ABORT])
async def test_the_handle_ends_it_with_its_token(broker, action):
    async with fake_client(broker) as client:
        txn, token = await prepared(client)
        await (txn.commit() if action is TxnAction.COMMIT else txn.abort())
        assert txn.state is (TransactionState.COMMITTED if action is TxnAction.COMMIT else TransactionState.ABORTED)
    assert ends(broker) == [(action, token.secret)]


async def test_a_lazy_transaction_is_opened_by_its_prepare(broker):
    async with fake_client(broker) as client:
        txn = await client.begin_transaction(eager=False)
        token = await txn.prepare()
        assert token.txn_id == txn.id


@pytest.mark.parametrize("form", [lambda token: token, str, bytes, lambda token: pickle.loads(pickle.dumps(token))])
async def test_whoever_has_the_token_ends_it(broker, form):
    async with fake_client(broker) as client:
        _, token = await prepared(client)
    async with fake_client(broker) as other:
        txn = await other.attach_prepared(form(token))
        assert (txn.id, txn.state) == (token.txn_id, PREPARED)
        await txn.commit()
        assert txn.state is TransactionState.COMMITTED
    assert ends(broker) == [(TxnAction.COMMIT, token.secret)]


async def test_closing_the_client_leaves_it_alone_and_says_so(broker, caplog):
    async with fake_client(broker) as client:
        txn, _ = await prepared(client)
        attached = await client.attach_prepared(await txn.prepare())
        open_one = await client.begin_transaction()
    assert [action for action, _ in ends(broker)] == [TxnAction.ABORT]  # of the one that is open
    assert (txn.state, attached.state, open_one.state) == (PREPARED, PREPARED, TransactionState.ABORTED)
    assert f"leaves 2 prepared transactions alone: end them with their tokens; the first is {txn.id}" in caplog.text


async def test_a_prepared_transaction_may_be_dropped_without_a_warning(broker):
    async with fake_client(broker) as client:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await prepared(client)
            gc.collect()
    assert ends(broker) == []


async def test_an_operation_that_failed_aborts_instead(broker):
    broker.on["send"] = refused_send()
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        txn = await client.begin_transaction()
        producer.send_nowait(b"x", txn=txn).add_done_callback(lambda ticket: ticket.exception())
        with pytest.raises(TransactionOperationFailed):
            await txn.prepare()
        assert txn.state is TransactionState.ABORTED
    assert broker.all("prepareTxn") == []
    assert [action for action, _ in ends(broker)] == [TxnAction.ABORT]


async def test_a_transaction_that_had_timed_out_is_not_prepared(broker):
    broker.on["prepareTxn"] = refused("prepareTxnResponse", 21, "ABORTED")
    async with fake_client(broker) as client:
        txn = await client.begin_transaction()
        with pytest.raises(TransactionAborted, match="before the prepare reached it"):
            await txn.prepare()
        assert txn.state is TransactionState.ABORTED
        late = await client.begin_transaction(timeout=0.01)
        await broker.until(lambda: late.state is TransactionState.TIMED_OUT)
        with pytest.raises(TransactionAborted, match="are over"):
            await late.prepare()


async def test_a_dry_run_cannot_be_prepared(broker):
    async with fake_client(broker) as client:
        txn = await client.begin_transaction(force_abort=True)
        with pytest.raises(TransactionStateError, match="dry run"):
            await txn.prepare()
        await txn.abort()
        ended = await client.begin_transaction()
        await ended.abort()
        with pytest.raises(TransactionStateError, match="ABORTED"):
            await ended.prepare()


async def test_a_stock_coordinator_leaves_it_open(broker):
    broker.knows_checks = False
    async with fake_client(broker) as client:
        txn = await client.begin_transaction()
        with pytest.raises(FeatureUnsupported, match="neither back-check nor prepare"):
            await txn.prepare()
        assert txn.state is TransactionState.OPEN
        await txn.commit()
        with pytest.raises(FeatureUnsupported):
            await client.attach_prepared(PreparedToken(TxnId(0, 1), b"s"))
    assert broker.all("prepareTxn") == []


# --- lost answers -----------------------------------------------------------------------------------------------------


async def test_a_prepare_is_sent_again_with_the_same_token_after_a_reconnect(broker):
    def cut(pipe, _body):
        del broker.on["prepareTxn"]
        pipe.cut()
        return SILENCE

    broker.on["prepareTxn"] = cut
    async with fake_client(broker) as client:
        _, token = await prepared(client)
    assert [body.token for body in broker.all("prepareTxn")] == [token.secret] * 2


async def test_after_a_lost_answer_prepare_may_be_called_again(broker):
    broker.on["prepareTxn"] = silence
    async with fake_client(broker, operation_timeout=0.1) as client:
        txn = await client.begin_transaction()
        with pytest.raises(OperationTimeout):
            await txn.prepare()
        assert txn.state is PREPARING
        with pytest.raises(TransactionStateError, match="PREPARING"):
            await txn.send(await client.create_producer("t"), b"x")
        del broker.on["prepareTxn"]
        token = await txn.prepare()
        assert txn.state is PREPARED
    assert {body.token for body in broker.all("prepareTxn")} == {token.secret}


async def test_a_prepare_that_is_repeated_does_not_say_aborted_because_it_may_have_been_committed_since(broker):
    broker.on["prepareTxn"] = silence
    async with fake_client(broker, operation_timeout=0.1) as client:
        txn = await client.begin_transaction()
        with pytest.raises(OperationTimeout):
            await txn.prepare()
        broker.on["prepareTxn"] = refused("prepareTxnResponse", 21, "COMMITTED")  # by an operator
        with pytest.raises(InvalidTransactionStatus, match="call commit"):
            await txn.prepare()
        assert txn.state is PREPARING
        await txn.commit()
        assert txn.state is TransactionState.COMMITTED


@pytest.mark.parametrize("action", [TxnAction.COMMIT, TxnAction.ABORT])
async def test_after_a_lost_answer_it_may_be_ended_as_well(broker, action):
    broker.on["prepareTxn"] = silence
    async with fake_client(broker, operation_timeout=0.1) as client:
        txn = await client.begin_transaction()
        with pytest.raises(OperationTimeout):
            await txn.prepare()
        await (txn.commit() if action is TxnAction.COMMIT else txn.abort())
    assert ends(broker) == [(action, broker.all("prepareTxn")[0].token)]


async def test_what_nobody_has_a_token_of_is_aborted_when_the_client_closes(broker):
    broker.on["prepareTxn"] = silence
    async with fake_client(broker, operation_timeout=0.1) as client:
        txn = await client.begin_transaction()
        with pytest.raises(OperationTimeout):
            await txn.prepare()
        preparing = asyncio.create_task((await client.begin_transaction()).prepare())
        await asyncio.sleep(0.01)
    with pytest.raises(TransactionStateError, match="aborted while it was being prepared"):
        await preparing
    assert [action for action, _ in ends(broker)] == [TxnAction.ABORT] * 2


async def test_an_abort_takes_the_place_of_a_prepare_and_a_commit_does_not(broker):
    broker.on["prepareTxn"] = silence
    async with fake_client(broker) as client:
        txn = await client.begin_transaction()
        preparing = asyncio.create_task(txn.prepare())
        await broker.until(lambda: broker.all("prepareTxn"))
        with pytest.raises(TransactionStateError, match="PREPARING"):
            await txn.commit()
        await txn.abort()
        with pytest.raises(TransactionStateError, match="aborted while it was being prepared"):
            await preparing
        assert txn.state is TransactionState.ABORTED


async def test_a_cancelled_caller_does_not_cancel_the_prepare_and_others_share_it(broker):
    broker.on["prepareTxn"] = silence
    async with fake_client(broker) as client:
        txn = await client.begin_transaction()
        first, second = (asyncio.create_task(txn.prepare()) for _ in range(2))
        await broker.until(lambda: broker.all("prepareTxn"))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        (body,) = broker.all("prepareTxn")
        broker.pipe.send(broker._prepareTxn(broker.pipe, body))
        assert (await second).secret == body.token
        assert (await txn.prepare()).secret == body.token
    assert len(broker.all("prepareTxn")) == 1


async def test_a_commit_that_did_not_leave_keeps_it_prepared_and_may_be_called_again(broker):
    async with fake_client(broker, operation_timeout=0.1) as client:
        txn, _ = await prepared(client)
        broker.refuses = True
        broker.pipe.cut()
        await broker.until(lambda: not broker.pipe.is_open)
        with pytest.raises((ConnectionLost, OperationTimeout)):
            await txn.commit()
        assert txn.state is PREPARED
        broker.refuses = False
        await txn.commit(timeout=2)
        assert txn.state is TransactionState.COMMITTED


async def test_a_commit_whose_answer_is_lost_is_unknown_and_asks_again_with_the_token(broker):
    async with fake_client(broker, operation_timeout=0.1) as client:
        txn, token = await prepared(client)
        broker.on["endTxn"] = silence
        with pytest.raises(CommitOutcomeUnknown) as caught:
            await txn.commit()
        del broker.on["endTxn"]
        assert await caught.value.resolve() is TransactionState.COMMITTED
    assert set(ends(broker)) == {(TxnAction.COMMIT, token.secret)}


async def test_who_commits_what_its_holder_has_aborted_is_told_so_and_the_other_way_round(broker):
    broker.on["endTxn"] = refused("endTxnResponse", 21, "ended")
    async with fake_client(broker) as client:
        txn, token = await prepared(client)
        with pytest.raises(TransactionAborted):
            await txn.commit()
        attached = await client.attach_prepared(token)
        with pytest.raises(InvalidTransactionStatus):
            await attached.abort()
        assert attached.state is TransactionState.COMMITTED


async def test_an_outcome_that_the_coordinator_has_forgotten_is_unknown(broker):
    broker.on["endTxn"] = refused("endTxnResponse", 24, "gone")
    async with fake_client(broker) as client:
        txn, token = await prepared(client)
        with pytest.raises(CommitOutcomeUnknown):
            await txn.commit()
        attached = await client.attach_prepared(token)
        with pytest.raises(Exception, match="gone"):
            await attached.abort()
        assert attached.state is TransactionState.UNKNOWN


# --- blocks -------------------------------------------------------------------------------------------------------------


async def test_leaving_a_block_after_its_prepare_decides_nothing(broker):
    async with fake_client(broker) as client:
        async with client.transaction() as txn:
            token = await txn.prepare()
        assert txn.state is PREPARED
        with pytest.raises(ZeroDivisionError) as caught:
            async with client.transaction() as failed:
                await failed.prepare()
                raise ZeroDivisionError
        assert failed.state is PREPARED
        assert caught.value.__notes__ == [f"the transaction {failed.id} is prepared and stays so: end it with its token"]
        await (await client.attach_prepared(token)).commit()
    assert ends(broker) == [(TxnAction.COMMIT, token.secret)]


async def test_in_its_block_a_prepared_transaction_is_ended_by_calls(broker):
    async with fake_client(broker) as client:
        async with client.transaction() as txn:
            await txn.prepare()
            await txn.commit()
        async with client.transaction() as other:
            await other.prepare()
            other.rollback()
        async with client.transaction() as third:
            await third.prepare()
            await third.abort()
        assert (txn.state, other.state, third.state) == (
            TransactionState.COMMITTED,
            TransactionState.ABORTED,
            TransactionState.ABORTED,
        )
    assert [action for action, _ in ends(broker)] == [TxnAction.COMMIT, TxnAction.ABORT, TxnAction.ABORT]


async def test_a_block_whose_prepare_has_no_answer_aborts(broker):
    broker.on["prepareTxn"] = silence
    async with fake_client(broker, operation_timeout=0.1) as client:
        with pytest.raises(OperationTimeout):
            async with client.transaction() as txn:
                await txn.prepare()
        assert txn.state is TransactionState.ABORTED


# --- tokens -------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.binary(min_size=1, max_size=64))
def test_a_token_is_its_text_and_its_text_is_a_token(most, least, secret):
    token = PreparedToken(TxnId(most, least), secret)
    assert PreparedToken.parse(str(token)) == PreparedToken.parse(bytes(token)) == copy.copy(token) == token
    assert secret.hex() not in repr(token) or len(secret) < 12
    assert repr(secret) not in repr(token)


@pytest.mark.parametrize("text", ["", "(1,2)", "(1,2)#", "(1,2)#xy", "#00", "(1,2)#" + "00" * 65, b"\xff", "(1)#00"])
async def test_what_is_no_token_is_refused_without_being_shown(broker, text):
    async with fake_client(broker) as client:
        with pytest.raises(InvalidConfiguration, match="no token of a prepared transaction"):
            await client.attach_prepared(text)
        with pytest.raises(InvalidConfiguration, match="must be a PreparedToken"):
            await client.attach_prepared(7)
    assert broker.pipes == []


async def test_the_secret_is_in_no_log(broker, caplog):
    caplog.set_level(logging.DEBUG)
    async with fake_client(broker) as client:
        txn, token = await prepared(client)
        await txn.commit()
        assert token.secret.hex() not in repr(txn)
    assert token.secret.hex() not in caplog.text


def test_a_blocking_client_prepares_and_ends(broker):
    runtime = FakeRuntime({broker.address: broker})
    with sync.Client(f"pulsar://{broker.address}", runtime=runtime, operation_timeout=5) as client:
        with client.transaction() as txn:
            token = txn.prepare()
        assert txn.state is PREPARED
        client.attach_prepared(str(token)).commit()
    assert ends(broker) == [(TxnAction.COMMIT, token.secret)]
