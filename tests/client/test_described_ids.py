"""What a client is told of a transactional id, by what its coordinators know."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_broker import SILENCE, FakeBroker, fake_client

from pulsar_txn.client import TxnId
from pulsar_txn.client.errors import (
    AlreadyClosed,
    AuthorizationError,
    CoordinatorUnavailable,
    FeatureUnsupported,
    InvalidConfiguration,
    NotAllowedError,
    ProducerFenced,
)
from pulsar_txn.client.transactions import DescribedTransaction, TransactionalIdInfo
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import Participant, TxnStatus
from pulsar_txn.wire.topics import ASSIGN_TOPIC

ASK = "describeTransactionalId"


@pytest.fixture
def broker() -> FakeBroker:
    found = FakeBroker()
    found.partitions[ASSIGN_TOPIC] = 2
    flags = {"describes_transactional_ids": True}
    found.on["connect"] = lambda _pipe, _body: command(
        "connected", server_version="Ours", protocol_version=21, max_message_size=5 << 20, feature_flags=flags
    )
    return found


def answers(broker: FakeBroker, **fields: Any) -> None:
    broker.on[ASK] = lambda _pipe, body: command(f"{ASK}Response", request_id=body.request_id, **fields)


@pytest.mark.seed_rows("B18", "E07", "E08")
async def test_the_answer_is_values(broker: FakeBroker) -> None:
    places = [{"topic": "a", "cluster": "east"}, {"topic": "b", "subscription": "s", "cluster": "west"}]
    ids = {"txnid_most_bits": 2**64 - 1, "txnid_least_bits": 4}
    txn = ids | {
        "status": 100,
        "epoch": 6,
        "start_time_millis": 10,
        "timeout_millis": 20,
        "modified_millis": 30,
        "check_group": "g",
        "check_count": 2,
        "participant_count": 9,
        "participants": places,
    }
    answers(broker, tc_id=1, epoch=7, last_used_millis=50, transaction_count=3, transactions=[txn])
    async with fake_client(broker) as client:
        found = await client.describe_transactional_id("app")
    participants = (Participant("a"), Participant("b", "s"))
    expected = DescribedTransaction(TxnId(-1, 4), TxnStatus.PREPARED, 6, 10, 20, 30, participants, 9, ("east", "west"), "g", 2)
    assert found == TransactionalIdInfo("app", 1, 7, 50, (expected,), 3)
    (body,) = broker.all(ASK)
    assert (body.transactional_id, body.HasField("owner"), body.HasField("tc_id")) == ("app", False, False)


async def test_an_id_of_which_nothing_is_known_is_none(broker: FakeBroker) -> None:
    async with fake_client(broker) as client:
        for fields in ({}, {"tc_id": 1}):
            answers(broker, **fields)
            assert await client.describe_transactional_id("app", owner="ann") is None
    assert {body.owner for body in broker.all(ASK)} == {"ann"}


async def test_the_coordinator_that_has_the_id_is_asked_when_another_one_was(broker: FakeBroker) -> None:
    def answer(_pipe: Any, body: Any) -> bytes:
        fields = {"epoch": 3} if body.HasField("tc_id") else {"elsewhere": True}
        return command(f"{ASK}Response", request_id=body.request_id, tc_id=1, **fields)

    broker.on[ASK] = answer
    async with fake_client(broker) as client:
        found = await client.describe_transactional_id("app", owner="")
    assert found == TransactionalIdInfo("app", 1, 3, 0, (), 0)
    assert [(body.tc_id, body.owner, body.HasField("owner")) for body in broker.all(ASK)] == [(0, "", True), (1, "", True)]


async def test_one_that_names_a_coordinator_which_is_not_there_is_an_error(broker: FakeBroker) -> None:
    answers(broker, tc_id=7, elsewhere=True)
    async with fake_client(broker) as client:
        with pytest.raises(CoordinatorUnavailable, match="no coordinator 7"):
            await client.describe_transactional_id("app")


async def test_a_coordinator_that_moves_is_asked_again(broker: FakeBroker) -> None:
    def moved(_pipe: Any, body: Any) -> bytes:
        answers(broker, tc_id=0, epoch=1)
        return command("error", request_id=body.request_id, error=20, message="not here")

    broker.on[ASK] = moved
    async with fake_client(broker) as client:
        found = await client.describe_transactional_id("app")
    assert found is not None
    assert len(broker.all(ASK)) == 2


async def test_another_roles_id_is_refused_with_the_reason(broker: FakeBroker) -> None:
    broker.on[ASK] = lambda _pipe, body: command("error", request_id=body.request_id, error=4, message="its own")
    async with fake_client(broker) as client:
        with pytest.raises(AuthorizationError, match="its own"):
            await client.describe_transactional_id("app", owner="ann")


async def test_a_server_that_cannot_tell_is_not_asked(broker: FakeBroker) -> None:
    """Stock Pulsar would close the connection."""
    del broker.on["connect"]
    async with fake_client(broker) as client:
        with pytest.raises(FeatureUnsupported, match="does not describe transactional ids"):
            await client.describe_transactional_id("app")
    assert broker.all(ASK) == []


async def test_wrong_arguments_and_a_closed_client_are_told_apart(broker: FakeBroker) -> None:
    client: Any = fake_client(broker)
    with pytest.raises(InvalidConfiguration):
        await client.describe_transactional_id(7)
    with pytest.raises(InvalidConfiguration):
        await client.describe_transactional_id("app", owner=7)
    await client.close()
    with pytest.raises(AlreadyClosed):
        await client.describe_transactional_id("app")


# --- a broker refuses a send ------------------------------------------------------------------------------------------

FENCES = {"describes_transactional_ids": True, "supports_transactional_ids": True}


@pytest.fixture
def refusing(broker: FakeBroker) -> FakeBroker:
    """A stock broker that knows only that a transaction has ended, and coordinators that gave this instance epoch 5."""
    broker.on["connect"] = lambda _pipe, _body: command(
        "connected", server_version="Ours", protocol_version=21, max_message_size=5 << 20, feature_flags=FENCES
    )
    broker.on["tcClientConnectRequest"] = lambda _pipe, body: command(
        "tcClientConnectResponse", request_id=body.request_id, tc_id=0, transactional_epoch=5
    )
    broker.on["send"] = lambda _pipe, body: command(
        "send_error", producer_id=body[0], sequence_id=body[1], error=22, message="has been ended"
    )
    return broker


async def refusal(client: Any, sends: int = 1) -> list[Any]:
    """What sends of one transaction fail with."""
    producer = await client.create_producer("t", batching=False)
    txn = await client.begin_transaction()
    return await asyncio.gather(*(producer.send(b"late", txn=txn) for _ in range(sends)), return_exceptions=True)


async def test_a_send_that_a_broker_refuses_is_fenced_when_the_coordinator_has_a_newer_epoch(refusing: FakeBroker) -> None:
    """It was NotAllowedError: stock brokers know no instances, and say the same after a timeout."""
    answers(refusing, tc_id=0, epoch=6)
    async with fake_client(refusing, transactional_id="app") as client:
        errors = await refusal(client, 50)
    assert {type(each) for each in errors} == {ProducerFenced}
    assert errors[0].fatal
    assert "'app' was taken over by a newer instance" in str(errors[0])
    assert "stop this worker" in str(errors[0])
    assert "has been ended" in str(errors[0].__cause__)
    assert errors[0].txn_id is not None
    assert len(refusing.all(ASK)) < 50, "one question is for all that are refused meanwhile"


@pytest.mark.parametrize("known", [{"epoch": 5}, {"epoch": 4}, {}, None])
async def test_a_send_that_a_broker_refuses_is_not_called_fenced_unless_that_is_known(
    refusing: FakeBroker, known: dict[str, int] | None
) -> None:
    answers(refusing, tc_id=0, **(known or {}))
    if known is None:
        refusing.on[ASK] = lambda _pipe, body: command("error", request_id=body.request_id, error=4, message="not yours")
    async with fake_client(refusing, transactional_id="app") as client:
        (error,) = await refusal(client)
    assert type(error) is NotAllowedError
    assert len(refusing.all(ASK)) == 1


async def test_a_client_without_a_transactional_id_asks_nobody_why_a_send_was_refused(refusing: FakeBroker) -> None:
    async with fake_client(refusing) as client:
        (error,) = await refusal(client)
    assert type(error) is NotAllowedError
    assert refusing.all(ASK) == []


async def test_a_producer_that_closes_while_the_coordinator_is_asked_loses_no_refusal(refusing: FakeBroker) -> None:
    refusing.on[ASK] = lambda _pipe, _body: SILENCE
    async with fake_client(refusing, transactional_id="app", operation_timeout=0.3) as client:
        producer = await client.create_producer("t")
        txn = await client.begin_transaction()
        late = producer.send_nowait(b"late", txn=txn)
        await refusing.until(lambda: refusing.all(ASK))
        assert not late.done()
        await producer.close()
        with pytest.raises(NotAllowedError, match="has been ended"):
            await late
