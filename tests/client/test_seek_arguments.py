"""A seek that cannot be moves nothing: what was queued is still there."""

from datetime import UTC, datetime

import pytest

from pulsar_txn.client import InitialPosition, MessageId
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.wire.ids import TxnId


@pytest.mark.parametrize(
    "target", ["x", 1.5, -1, True, None, 2**70, MessageId(2**70, 0), MessageId("x", 0), datetime.min.replace(tzinfo=UTC)]
)
async def test_a_target_that_is_none_is_refused_and_the_consumer_goes_on(client, target):
    """The queue was dropped before, and nothing came any more."""
    producer = await client.create_producer("t")
    consumer = await client.subscribe("t", "s", initial_position=InitialPosition.EARLIEST)
    for number in range(3):
        await producer.send(b"%d" % number)
    assert (await consumer.receive(10)).data == b"0"
    with pytest.raises(InvalidConfiguration):
        await consumer.seek(target)
    assert [(await consumer.receive(10)).data for _ in range(2)] == [b"1", b"2"]
    await consumer.seek(0)
    assert (await consumer.receive(10)).data == b"0"


@pytest.mark.parametrize(
    "txn_id", ["(1,99999999999999999999999)", "(1,2", "1,2)", f"(1,{2**63})", "(-1,2)", "(\u0661,2)", "", None, 5, (1, 2)]
)
async def test_an_id_that_is_none_is_not_attached(client, txn_id):
    """It was cut to 64 bits, and the commit went out for another transaction."""
    with pytest.raises(InvalidConfiguration):
        client.attach_transaction(txn_id)


@pytest.mark.parametrize("txn_id", ["(1,2)", "1,2", "1:2", " (1, 2) ".strip(), TxnId(1, 2)])
async def test_an_id_is_attached_in_every_form_that_it_is_printed_in(client, txn_id):
    assert client.attach_transaction(txn_id).id == TxnId(1, 2)
