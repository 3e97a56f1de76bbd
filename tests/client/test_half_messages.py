"""Half messages: execute runs after all of them are stored, once, and its outcome ends their transaction."""

import asyncio
import json
import threading

import pytest
from fake_broker import FakeRuntime, fake_client
from fake_coordinators import ends, extended_broker, refused, refused_send, silence
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.client import TransactionState, sync
from pulsar_txn.client.errors import (
    FeatureUnsupported,
    InvalidConfiguration,
    InvalidTransactionStatus,
    NotAllowedError,
    TransactionAborted,
)
from pulsar_txn.client.half_messages import CheckedMessage, CheckQuestion, HalfMessage, LocalOutcome
from pulsar_txn.client.txn.check_groups import MAX_HEAD_BYTES, data_of, message_of
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnAction, TxnId

COMMIT, ROLLBACK, UNKNOWN = LocalOutcome.COMMIT, LocalOutcome.ROLLBACK, LocalOutcome.UNKNOWN
TOPIC = "persistent://public/default/orders"


@pytest.fixture
def broker():
    return extended_broker()


def says_unknown(_question):
    return UNKNOWN


async def half_producer(client, **options):
    return await client.transactional_producer("orders", group="shop", check=says_unknown, **options)


# --- the order of things --------------------------------------------------------------------------------------------


@pytest.mark.seed_rows("A02", "A03", "A04")
async def test_execute_runs_once_after_the_half_message_is_stored_and_before_the_commit(broker):
    order = []
    broker.on["send"] = lambda pipe, body: order.append("stored") or broker._send(pipe, body)
    broker.on["endTxn"] = lambda pipe, body: order.append("end") or broker._endTxn(pipe, body)

    async def execute(half):
        order.append("execute")
        assert half.txn_id == (0, 1)
        assert [each.entry_id for each in half.message_ids] == [0]
        assert half.txn.state is TransactionState.OPEN
        return COMMIT

    async with fake_client(broker) as client, await half_producer(client) as producer:
        assert await producer.send_in_transaction(b"order 17", execute=execute) is COMMIT
    assert order == ["stored", "execute", "end"]


@pytest.mark.seed_rows("A04")
async def test_execute_is_not_called_when_a_half_message_was_not_stored(broker):
    calls = []
    broker.on["send"] = refused_send("no space")
    async with fake_client(broker) as client, await half_producer(client) as producer:
        with pytest.raises(NotAllowedError, match="no space"):
            await producer.send_in_transaction(b"x", execute=lambda half: calls.append(half) or COMMIT)
    assert calls == []
    assert ends(broker) == [TxnAction.ABORT]


async def test_one_of_several_that_is_not_stored_is_enough(broker):
    calls = []

    def send(pipe, body):
        if body[0] == broker.producer_id:
            return command("send_error", producer_id=body[0], sequence_id=body[1], error=22, message="no")
        return broker._send(pipe, body)

    async with fake_client(broker) as client, await half_producer(client) as producer:
        second = await client.create_producer("payments")
        broker.on["send"] = send
        with pytest.raises(Exception, match="no"):
            await producer.send_in_transaction(
                b"x", execute=lambda half: calls.append(half) or COMMIT, also=[HalfMessage(b"y", second)]
            )
    assert calls == []
    assert TxnAction.COMMIT not in ends(broker)


@pytest.mark.seed_rows("A05")
@pytest.mark.parametrize(("outcome", "sent"), [(COMMIT, [TxnAction.COMMIT]), (ROLLBACK, [TxnAction.ABORT]), (UNKNOWN, [])])
async def test_the_outcome_of_execute_ends_the_transaction(broker, outcome, sent):
    async with fake_client(broker) as client, await half_producer(client) as producer:
        assert await producer.send_in_transaction(b"x", execute=lambda _half: outcome) is outcome
        assert client.transactions() == ()
    assert ends(broker) == sent  # also when the client closes


@pytest.mark.seed_rows("A05")
async def test_an_exception_in_execute_is_raised_and_leaves_the_transaction_to_the_check(broker):
    def execute(_half):
        raise OSError("the answer to COMMIT was lost")

    async with fake_client(broker) as client, await half_producer(client) as producer:
        with pytest.raises(OSError, match="was lost") as caught:
            await producer.send_in_transaction(b"x", execute=execute)
    assert caught.value.__notes__ == ["the transaction (0,1) is left to the check of group 'shop'"]
    assert ends(broker) == []


async def test_a_cancelled_execute_leaves_the_transaction_to_the_check(broker):
    began = asyncio.Event()

    async def execute(_half):
        began.set()
        await asyncio.Event().wait()

    async with fake_client(broker) as client, await half_producer(client) as producer:
        sending = asyncio.create_task(producer.send_in_transaction(b"x", execute=execute))
        await began.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    assert ends(broker) == []


async def test_a_cancellation_before_execute_aborts(broker):
    broker.on["send"] = silence
    async with fake_client(broker, operation_timeout=1.0) as client, await half_producer(client) as producer:
        sending = asyncio.create_task(producer.send_in_transaction(b"x", execute=lambda _half: COMMIT))
        await broker.until(lambda: broker.all("send"))
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await broker.until(lambda: ends(broker))
    assert ends(broker) == [TxnAction.ABORT]


@pytest.mark.parametrize("outcome", [None, True, "COMMIT"])
async def test_no_outcome_is_a_mistake_that_leaves_the_transaction_to_the_check(broker, outcome):
    async with fake_client(broker) as client, await half_producer(client) as producer:
        with pytest.raises(InvalidConfiguration, match="execute must return a LocalOutcome"):
            await producer.send_in_transaction(b"x", execute=lambda _half: outcome)
    assert ends(broker) == []


@pytest.mark.seed_rows("A10")
async def test_a_commit_whose_answer_is_lost_is_what_execute_said_and_the_check_says_it_again(broker, caplog):
    broker.on["endTxn"] = silence
    async with fake_client(broker, operation_timeout=0.2) as client, await half_producer(client) as producer:
        assert await producer.send_in_transaction(b"x", execute=lambda _half: COMMIT) is COMMIT
    assert "its group will say commit" in caplog.text
    assert set(ends(broker)) == {TxnAction.COMMIT}  # and no abort with the client


@pytest.mark.seed_rows("A10")
async def test_a_commit_that_found_the_transaction_aborted_is_raised(broker):
    broker.on["endTxn"] = refused("endTxnResponse", 21, "ABORTED")
    async with fake_client(broker) as client, await half_producer(client) as producer:
        with pytest.raises(TransactionAborted):
            await producer.send_in_transaction(b"x", execute=lambda _half: COMMIT)


async def test_a_rollback_that_found_the_transaction_committed_is_raised(broker):
    broker.on["endTxn"] = refused("endTxnResponse", 21, "COMMITTED")
    async with fake_client(broker) as client, await half_producer(client) as producer:
        with pytest.raises(InvalidTransactionStatus, match="COMMITTED"):
            await producer.send_in_transaction(b"x", execute=lambda _half: ROLLBACK)


async def test_a_rollback_that_could_not_be_said_is_left_to_the_check(broker, caplog):
    broker.on["endTxn"] = silence
    async with fake_client(broker, operation_timeout=0.2) as client, await half_producer(client) as producer:
        assert await producer.send_in_transaction(b"x", execute=lambda _half: ROLLBACK) is ROLLBACK
    assert "the local outcome is ROLLBACK" in caplog.text


async def test_a_commit_of_prepared_messages_that_could_not_be_sent_is_left_to_the_check(broker, caplog):
    async def execute(_half):
        broker.refuses = True
        broker.pipe.cut()
        await broker.until(lambda: not broker.pipe.is_open)
        return COMMIT

    async with fake_client(broker, operation_timeout=0.2) as client, await half_producer(client, prepare=True) as producer:
        assert await producer.send_in_transaction(b"x", execute=execute) is COMMIT
    assert "the local outcome is COMMIT" in caplog.text
    assert ends(broker) == []


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK, UNKNOWN])
async def test_half_messages_may_be_prepared_before_execute(broker, outcome):
    seen = []

    def execute(half):
        assert half.txn.state is TransactionState.PREPARED
        seen.append(half.token)
        return outcome

    async with fake_client(broker) as client, await half_producer(client, prepare=True) as producer:
        assert await producer.send_in_transaction(b"x", execute=execute) is outcome
        broker.on["prepareTxn"] = refused("prepareTxnResponse", 21, "no")
        with pytest.raises(InvalidTransactionStatus):
            await producer.send_in_transaction(b"x", execute=execute)
    (token,) = seen
    assert token.secret == broker.all("prepareTxn")[0].token


# --- what goes along ------------------------------------------------------------------------------------------------


@pytest.mark.seed_rows("A08")
async def test_the_check_sees_topic_key_and_properties_of_the_first_message(broker):
    seen = []
    async with fake_client(broker) as client, await half_producer(client, check_after=2.5, timeout=90) as producer:
        await producer.send_in_transaction(
            b"x", key="17", properties={"kind": "order"}, execute=lambda half: seen.append(half.data) or COMMIT
        )
    (body,) = broker.all("newTxn")
    assert (body.check_group, body.check_after_millis, body.txn_ttl_millis) == ("shop", 2500, 90_000)
    assert body.check_data == seen[0]
    question = CheckQuestion(TxnId(0, 1), "shop", body.check_data)
    assert question.message == CheckedMessage(TOPIC, "17", {"kind": "order"})


async def test_data_of_the_program_goes_along_instead(broker):
    async with fake_client(broker) as client, await half_producer(client) as producer:
        await producer.send_in_transaction(b"x", execute=lambda half: COMMIT, data=b"order 17")
        with pytest.raises(InvalidConfiguration, match="65536 are allowed"):
            await producer.send_in_transaction(b"x", execute=lambda half: COMMIT, data=bytes(65_537))
    assert [body.check_data for body in broker.all("newTxn")] == [b"order 17"]


async def test_messages_to_several_topics_are_one_unit_with_the_sends_of_execute(broker):
    async with fake_client(broker) as client, await half_producer(client) as producer:
        payments = await client.create_producer("payments")

        async def execute(half):
            assert len(half.message_ids) == 3
            await payments.send(b"late", txn=half.txn)
            return COMMIT

        also = [HalfMessage(b"2", key="k"), HalfMessage(b"3", payments)]
        assert await producer.send_in_transaction(b"1", execute=execute, also=also) is COMMIT
    topics = {topic for body in broker.all("addPartitionToTxn") for topic in body.partitions}
    assert topics == {TOPIC, "persistent://public/default/payments"}
    assert len(broker.all("newTxn")) == 1
    assert ends(broker) == [TxnAction.COMMIT]


async def test_producers_share_a_group_that_was_joined_and_leave_it_joined(broker):
    async with fake_client(broker) as client:
        group = await client.join_check_group("shop", says_unknown)
        for topic in ("orders", "payments"):
            async with await client.transactional_producer(topic, check=group) as producer:
                assert producer.group == "shop"
                await producer.send_in_transaction(b"x", execute=lambda _half: COMMIT)
        assert group.coordinators == 1
    assert len(broker.all("txnGroup")) == 2  # it joined, and it left with its client


async def test_closing_the_producer_leaves_its_own_group(broker):
    async with fake_client(broker) as client:
        async with await half_producer(client) as producer:
            assert "in group 'shop'" in repr(producer)
        assert [body.leave for body in broker.all("txnGroup")] == [False, True]
        await half_producer(client)


@pytest.mark.parametrize(
    "options",
    [
        {"check": says_unknown},
        {"group": "", "check": says_unknown},
        {"group": "g", "check": 7},
        {"group": "g", "check": says_unknown, "check_after": -1},
        {"group": "g", "check": says_unknown, "timeout": 0},
        {"group": "g", "check": says_unknown, "concurrency": 0},
        {"group": "g", "check": says_unknown, "unknown": 1},
    ],
)
@pytest.mark.parametrize("blocking", [False, True])
async def test_what_cannot_be_a_transactional_producer_is_refused_before_one_is_created(broker, options, blocking):
    if blocking:
        with blocking_client(broker) as client, pytest.raises(InvalidConfiguration):
            client.transactional_producer("orders", **options)
    else:
        async with fake_client(broker) as client:
            with pytest.raises(InvalidConfiguration):
                await client.transactional_producer("orders", **options)
    assert broker.all("producer") == []


async def test_a_broker_without_checks_leaves_no_producer_behind(broker):
    broker.knows_checks = False
    async with fake_client(broker) as client:
        with pytest.raises(FeatureUnsupported):
            await half_producer(client)
        assert client.stats().producers == 0
    assert len(broker.all("close_producer")) == 1


@pytest.mark.parametrize("also", [b"x", [b"x"], [HalfMessage(b"x", "a topic")], HalfMessage(b"x")])
async def test_what_is_no_further_message_is_refused_before_anything_is_sent(broker, also):
    async with fake_client(broker) as client, await half_producer(client) as producer:
        with pytest.raises(InvalidConfiguration):
            await producer.send_in_transaction(b"x", execute=lambda _half: COMMIT, also=also)
        with pytest.raises(InvalidConfiguration, match="execute"):
            await producer.send_in_transaction(b"x", execute=lambda: COMMIT)
        with pytest.raises(InvalidConfiguration, match="properties"):
            await producer.send_in_transaction(b"x", execute=lambda _half: COMMIT, properties={"a": 1})
    assert broker.all("newTxn") == []


# --- pictures of messages ---------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(TEXT, st.none() | TEXT, st.dictionaries(TEXT, TEXT, max_size=8))
def test_a_picture_of_a_message_is_read_as_it_was_made(topic, key, properties):
    assert message_of(data_of(topic, key, properties)) == CheckedMessage(topic, key, properties)


@given(TEXT, st.none() | st.text("aü☃", max_size=3000), st.dictionaries(TEXT, st.text("aü☃", max_size=900), max_size=8))
def test_a_picture_is_bounded_and_says_what_it_left_out(topic, key, properties):
    data = data_of(topic, key, properties)
    assert len(data) <= MAX_HEAD_BYTES
    found = message_of(data)
    whole = CheckedMessage(topic, key, properties)
    assert found == whole or not found.complete
    assert found.key in (key, None)
    assert dict(found.properties).items() <= properties.items()


@given(st.binary(max_size=60))
def test_any_other_bytes_are_no_picture(data):
    assert message_of(b"\x00msg1" + data) is None or json.loads(data)
    assert message_of(data) is None or data.startswith(b"\x00msg1")


# --- the blocking client ----------------------------------------------------------------------------------------------


def blocking_client(broker, **options):
    runtime = FakeRuntime({broker.address: broker})
    return sync.Client(f"pulsar://{broker.address}", runtime=runtime, **({"operation_timeout": 5} | options))


@pytest.mark.parametrize(("outcome", "sent"), [(COMMIT, [TxnAction.COMMIT]), (ROLLBACK, [TxnAction.ABORT]), (UNKNOWN, [])])
def test_a_blocking_execute_runs_in_the_thread_that_calls(broker, outcome, sent):
    threads = []

    def execute(half):
        threads.append(threading.current_thread())
        assert isinstance(half.txn, sync.Transaction)
        assert len(half.message_ids) == 2
        return outcome

    with (
        blocking_client(broker) as client,
        client.transactional_producer("orders", group="shop", check=says_unknown) as producer,
    ):
        assert isinstance(producer.producer, sync.Producer)
        also = [HalfMessage(b"2", producer.producer, key="k")]
        assert producer.send_in_transaction(b"1", execute=execute, key="17", also=also) is outcome
    assert threads == [threading.current_thread()]
    assert ends(broker) == sent
    (body,) = broker.all("newTxn")
    assert message_of(body.check_data).key == "17"


def test_a_blocking_execute_that_raises_leaves_the_transaction_to_the_check(broker):
    def execute(_half):
        raise KeyboardInterrupt

    with (
        blocking_client(broker) as client,
        client.transactional_producer("orders", group="shop", check=says_unknown) as producer,
    ):
        with pytest.raises(KeyboardInterrupt):
            producer.send_in_transaction(b"x", execute=execute)
        with pytest.raises(ZeroDivisionError):
            producer.send_in_transaction(b"x", execute=lambda _half: 1 // 0)
    assert ends(broker) == []


def test_a_blocking_execute_is_not_called_when_a_half_message_was_not_stored(broker):
    calls = []
    with (
        blocking_client(broker) as client,
        client.transactional_producer("orders", group="shop", check=says_unknown) as producer,
    ):
        broker.on["send"] = refused_send()
        for also in ((), [HalfMessage(b"2")]):
            with pytest.raises(Exception, match="no"):
                producer.send_in_transaction(b"x", execute=lambda half: calls.append(half) or COMMIT, also=also)

        async def execute(_half):
            return COMMIT

        with pytest.raises(InvalidConfiguration, match="plain `def`"):
            producer.send_in_transaction(b"x", execute=execute)
    assert calls == []
    assert set(ends(broker)) == {TxnAction.ABORT}
    assert len(broker.all("newTxn")) == 2


def test_blocking_producers_share_a_group_that_was_joined(broker):
    seen = []
    with blocking_client(broker) as client, client.join_check_group("shop", says_unknown) as group:
        with client.transactional_producer("orders", check=group, prepare=True) as producer:
            assert producer.send_in_transaction(b"x", execute=lambda half: seen.append(half.token) or COMMIT) is COMMIT
        assert seen[0].secret == broker.all("prepareTxn")[0].token
        assert group.coordinators == 1
