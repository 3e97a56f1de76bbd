"""What a consumer says of committed positions, by what its broker knows of them."""

import pytest
from fake_broker import fake_client

from pulsar_txn.client import MessageId, TxnId
from pulsar_txn.client.errors import AlreadyClosed, NotAllowedError, PositionUnstable
from pulsar_txn.client.messages import CommittedPosition
from pulsar_txn.wire.frames import command

HOLDER = {"unstable_most_bits": 3, "unstable_least_bits": 4}
LAST = {"last_committed_most_bits": 1, "last_committed_least_bits": 2}


def answers(broker, **fields):
    flags = {"supports_committed_position": True}
    broker.on["connect"] = lambda _pipe, _body: command(
        "connected", server_version="Ours", protocol_version=21, max_message_size=5 << 20, feature_flags=flags
    )
    position = {"ledgerId": 7, "entryId": 9}
    broker.on["getCommittedPosition"] = lambda _pipe, body: command(
        "getCommittedPositionResponse", request_id=body.request_id, position=position, **fields
    )


async def test_a_stable_position_names_the_last_transaction(broker):
    answers(broker, **LAST)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        expected = CommittedPosition(MessageId(7, 9), TxnId(1, 2), None)
        assert await consumer.committed() == {"persistent://public/default/t": expected}
        await consumer.close()
        with pytest.raises(AlreadyClosed):
            await consumer.committed()


async def test_an_unstable_one_is_an_error_with_the_transaction_unless_it_is_wanted(broker):
    answers(broker, **LAST, **HOLDER)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        with pytest.raises(PositionUnstable, match="ask again when the transaction has ended") as refused:
            await consumer.committed()
        assert (refused.value.txn_id, refused.value.retriable) == (TxnId(3, 4), True)
        (found,) = (await consumer.committed(require_stable=False)).values()
        assert found == CommittedPosition(MessageId(7, 9), TxnId(1, 2), TxnId(3, 4))


async def test_each_partition_has_a_position(broker):
    answers(broker)
    broker.partitions["persistent://public/default/t"] = 2
    async with fake_client(broker) as client:
        found = await (await client.subscribe("t", "s")).committed()
    assert {topic[-1]: each.message_id.partition for topic, each in found.items()} == {"0": 0, "1": 1}


async def test_a_broker_that_cannot_tell_is_not_taken_at_its_word(broker):
    """Stock Pulsar tells the place of the cursor, and nothing of transactions."""
    mark = {"ledgerId": 7, "entryId": 2**64 - 1}
    broker.on["getLastMessageId"] = lambda _pipe, body: command(
        "getLastMessageIdResponse", request_id=body.request_id, last_message_id=mark, consumer_mark_delete_position=mark
    )
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        with pytest.raises(NotAllowedError, match="require_stable=False"):
            await consumer.committed()
        (found,) = (await consumer.committed(require_stable=False)).values()
        assert found == CommittedPosition(MessageId(7, -1), None, None)
        broker.on["getLastMessageId"] = lambda _pipe, body: command(
            "getLastMessageIdResponse", request_id=body.request_id, last_message_id=mark
        )
        with pytest.raises(NotAllowedError, match="does not tell the position"):
            await consumer.committed(require_stable=False)
