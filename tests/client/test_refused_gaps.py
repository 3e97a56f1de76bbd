"""What a producer makes of a broker that recognises repeats in transactions, or refuses gaps in sequence ids."""

import pytest
from fake_broker import SILENCE, fake_client, sent_entry

from pulsar_txn.client.errors import NotAllowedError, OutOfOrderSequence
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_broker_that_recognises_repeats_in_transactions_is_sent_everything_again(broker, chunked):
    flags = {"supports_txn_deduplication": True}
    broker.on["connect"] = lambda _pipe, _body: command(
        "connected", server_version="Ours", protocol_version=21, max_message_size=5 << 20, feature_flags=flags
    )
    broker.on["send"] = lambda _pipe, _body: SILENCE
    payload = bytes(12_000_000) if chunked else b"x"
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", chunking=True)
        async with client.transaction() as txn:
            ticket = producer.send_nowait(payload, txn=txn)
            await broker.until(lambda: len(broker.all("send")) == (3 if chunked else 1))
            first = [sent_entry(body) for body in broker.all("send")]
            del broker.on["send"]
            broker.got.clear()
            broker.pipe.cut()
        assert ticket.exception() is None
    assert [sent_entry(body) for body in broker.all("send")] == first


def strict(broker, *, refuses_gaps=True):
    broker.on["producer"] = lambda _pipe, body: command(
        "producer_success", request_id=body.request_id, producer_name="p", last_sequence_id=-1, refuses_gaps=refuses_gaps
    )


async def test_a_refused_gap_names_the_id_that_is_expected_and_the_producer_stays(broker):
    strict(broker)
    refusal = {"error": int(ServerError.NotAllowedError), "message": "comes before 1 was stored"}
    broker.on["send"] = lambda _pipe, body: command(
        "send_error", producer_id=body[0], sequence_id=body[1], expected_sequence_id=1, **refusal
    )
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", refuse_sequence_gaps=True, properties={"a": "b"})
        with pytest.raises(OutOfOrderSequence, match="comes before 1 was stored") as refused:
            await producer.send(b"2", sequence_id=2)
        assert (refused.value.expected_sequence_id, refused.value.code) == (1, ServerError.NotAllowedError)
        assert not refused.value.retriable
        broker.on["send"] = lambda _pipe, body: command("send_error", producer_id=body[0], sequence_id=body[1], **refusal)
        with pytest.raises(NotAllowedError) as other:
            await producer.send(b"1", sequence_id=1)
        assert type(other.value) is NotAllowedError, "a refusal that names no id is no gap"
        del broker.on["send"]
        await producer.send(b"1", sequence_id=1)
    (opened,) = broker.all("producer")
    assert {each.key: each.value for each in opened.metadata} == {"a": "b", "pulsar-txn.refuse-sequence-gaps": "true"}


async def test_a_broker_that_does_not_look_for_gaps_is_left_again(broker):
    strict(broker, refuses_gaps=False)
    async with fake_client(broker) as client:
        with pytest.raises(NotAllowedError, match="does not look for gaps"):
            await client.create_producer("t", refuse_sequence_gaps=True)
        await broker.until(lambda: broker.all("close_producer"))
