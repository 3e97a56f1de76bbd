"""Every request with a request id is answered, whatever it names: closed, unloaded, deleted, never there, just being closed.

A request without an answer costs its client the whole operation timeout, and a transaction then its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import NAMES
from pulsar_txn.wire.hot import encode_ack
from pulsar_txn.wire.ids import TxnId
from pulsar_txn.wire.topics import TopicName

TOPIC: Final = FULL + "t"
NAME: Final = TopicName.parse(TOPIC)
NOBODY: Final = TxnId(0, 10**6)
"""A transaction that never was."""

TXN: Final = {"txnid_least_bits": NOBODY.least, "txnid_most_bits": NOBODY.most}
ENTRY: Final = pb.MessageIdData(ledgerId=0, entryId=0)
SUBSCRIPTION: Final = pb.Subscription(topic=TOPIC, subscription="s")
SCHEMA: Final = pb.Schema(name="s", schema_data=b"", type=pb.Schema.String)  # type: ignore[arg-type] # an enum of the protocol
REQUESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "subscribe": {"topic": TOPIC, "subscription": "s", "subType": 1, "consumer_id": 0},
    "producer": {"topic": TOPIC, "producer_id": 0},
    "ack": {"consumer_id": 0, "ack_type": 0, "message_id": [ENTRY]},
    "unsubscribe": {"consumer_id": 0},
    "seek": {"consumer_id": 0, "message_id": ENTRY},
    "getLastMessageId": {"consumer_id": 0},
    "getCommittedPosition": {"consumer_id": 0},
    "consumerStats": {"consumer_id": 0},
    "close_consumer": {"consumer_id": 0},
    "close_producer": {"producer_id": 0},
    "partitionMetadata": {"topic": TOPIC},
    "lookupTopic": {"topic": TOPIC},
    "getSchema": {"topic": TOPIC},
    "getOrCreateSchema": {"topic": TOPIC, "schema": SCHEMA},
    "getTopicsOfNamespace": {"namespace": "public/default"},
    "watchTopicList": {"namespace": "public/default", "watcher_id": 1, "topics_pattern": "persistent://public/default/.*"},
    "watchTopicListClose": {"watcher_id": 7},
    "tcClientConnectRequest": {"tc_id": 9},
    "newTxn": {"tc_id": 9},
    "addPartitionToTxn": {**TXN, "partitions": [TOPIC]},
    "addSubscriptionToTxn": {**TXN, "subscription": [SUBSCRIPTION]},
    "endTxn": {**TXN, "txn_action": 0},
    "endTxnOnPartition": {**TXN, "topic": TOPIC},
    "endTxnOnSubscription": {**TXN, "subscription": SUBSCRIPTION},
    "prepareTxn": TXN,
    "txnCheckBegun": {**TXN, "group": "g"},
    "txnGroup": {"tc_id": 0, "group": "g", "leave": True},
    "describeTransactionalId": {"tc_id": 0, "transactional_id": "nobody"},
}
"""Each command with a request id that a client sends: of a thing that the test closes, or that never was there."""

TRANSACTIONAL: Final = {"ack in a transaction": {**REQUESTS["ack"], **TXN}, "cumulative": {**REQUESTS["ack"], "ack_type": 1}}
CASES: Final = [*REQUESTS, *TRANSACTIONAL]


def begin(client: RawClient, case: str) -> int:
    """Send a request of the table; its id."""
    name = case if case in REQUESTS else "ack"
    return client.start(name, **(REQUESTS.get(case) or TRANSACTIONAL[case]))


async def answered(client: RawClient, request_id: int, case: str) -> Any:
    """The answer, whatever it says. AssertionError when there is none."""
    return await client.until(lambda: client._answers.get(request_id), f"an answer to {case}")


@pytest.fixture
async def bench(benches: Callable[..., Any]) -> Any:
    return await benches().start()


@pytest.fixture
async def client(bench: Any) -> AsyncIterator[RawClient]:
    """A client with a producer and a consumer of a topic, which has a message."""
    client = bench.client()
    await client.producer(TOPIC)
    await client.subscribe(TOPIC, kind=1)
    await client.sent(b"x")
    await client.receive()
    yield client
    client.drop()


async def nothing(_bench: Any, _client: RawClient) -> None:
    pass


async def closed_by_the_client(_bench: Any, client: RawClient) -> None:
    await client.request("close_consumer", consumer_id=0)
    await client.request("close_producer", producer_id=0)


async def unsubscribed(_bench: Any, client: RawClient) -> None:
    await client.request("unsubscribe", consumer_id=0)
    await client.request("close_producer", producer_id=0)


async def unloaded(bench: Any, _client: RawClient) -> None:
    await bench.broker.unload_topic(NAME)


async def deleted(bench: Any, _client: RawClient) -> None:
    await bench.broker.delete_topic(NAME)


CLOSED: Final = [nothing, closed_by_the_client, unsubscribed, unloaded, deleted]


@pytest.mark.parametrize("closed", CLOSED)
async def test_every_request_about_something_closed_is_answered(
    bench: Any, client: RawClient, closed: Callable[[Any, RawClient], Awaitable[None]]
) -> None:
    for case in CASES:
        await closed(bench, client)
        await answered(client, begin(client, case), case)
        assert not client.pipe.closed, case
        for name, fields in (("producer", {}), ("subscribe", {})):  # what the request or the test has closed is opened again
            await client.refusal(client.start(name, **{**REQUESTS[name], **fields}))


@pytest.mark.parametrize("closes", ["unload_topic", "delete_topic"])
async def test_every_request_that_meets_a_closing_topic_is_answered(bench: Any, client: RawClient, closes: str) -> None:
    for case in CASES:
        for turns in range(4):  # at every step of the end
            before = begin(client, case)
            ending = asyncio.ensure_future(getattr(bench.broker, closes)(NAME))
            for _ in range(turns):
                await asyncio.sleep(0)
            during = begin(client, case)
            await asyncio.wait([ending])
            ending.exception()
            await answered(client, before, f"{case} before {closes}")
            await answered(client, during, f"{case} after {turns} turns of {closes}")
            for name in ("producer", "subscribe"):
                await client.refusal(client.start(name, **REQUESTS[name]))
            assert not client.pipe.closed, case


async def test_the_table_has_every_command_with_a_request_id(bench: Any) -> None:
    session: Any = bench.broker.connection().session
    known = {NAMES[kind] for kind in (*session.commands, *session.frames, *session.requests)}
    fields = pb.BaseCommand.DESCRIPTOR.fields_by_name
    assert set(REQUESTS) == {name for name in known if "request_id" in fields[name].message_type.fields_by_name}


async def last_of(bench: Any) -> pb.MessageIdData:
    """The id of the message in the topic."""
    (ledger_id, entry_id), _ = await bench.broker.topics[TOPIC].last_message()
    return pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)


@contextmanager
def unconfirmed(bench: Any) -> Iterator[None]:
    """Inside, nothing becomes durable by itself."""
    bench.store.auto_confirm = False
    try:
        yield
    finally:
        bench.store.auto_confirm = True
        bench.store.wake()


@pytest.mark.parametrize("ends", ["unsubscribe", "delete_topic", "unload_topic"])
async def test_what_waits_for_the_disk_is_answered_when_its_subscription_ends(bench: Any, client: RawClient, ends: str) -> None:
    ending: list[asyncio.Future[Any]] = []
    with unconfirmed(bench):
        waiting = client.start("ack", consumer_id=0, ack_type=0, message_id=[await last_of(bench)])
        await client.settle()
        assert not client._answers.get(waiting)
        if ends == "unsubscribe":
            client.start("unsubscribe", consumer_id=0)
        else:
            ending.append(asyncio.ensure_future(getattr(bench.broker, ends)(NAME)))
        await client.settle()
    await answered(client, waiting, f"an acknowledgement before {ends}")
    await asyncio.gather(*ending)


async def test_a_log_that_fails_answers_the_acknowledgements_that_wait_for_it(bench: Any, client: RawClient) -> None:
    with unconfirmed(bench):
        waiting = client.start("ack", consumer_id=0, ack_type=0, message_id=[await last_of(bench)])
        await client.settle()
        bench.broker.topics[TOPIC].log.fail(LedgerError("the disk of this topic"))
        answer = await answered(client, waiting, "ack")
    assert answer[3] == ServerError.ServiceNotReady


async def test_a_producer_that_is_closed_while_it_waits_for_the_topic_is_answered(client: RawClient) -> None:
    waiting = client.start("producer", topic=TOPIC, producer_id=1, producer_access_mode=2)
    assert not (await client.answer(waiting)).producer_ready
    await client.request("close_producer", producer_id=1)
    with pytest.raises(Refused, match="closed before its turn came"):
        await client.answer(waiting)


async def test_an_acknowledgement_without_a_request_id_is_not_answered(client: RawClient) -> None:
    client.raw(encode_ack(7, False, [(0, 0, None, 0)]))
    await client.settle()
    assert not client.pipe.closed
    assert not any(client._answers.values())


async def test_an_acknowledgement_of_a_consumer_that_is_not_there_says_so(client: RawClient) -> None:
    answer = await answered(client, client.start("ack", **{**TRANSACTIONAL["ack in a transaction"], "consumer_id": 7}), "ack")
    consumer_id, _, txn_id, code, text = answer
    assert (consumer_id, txn_id, code) == (7, NOBODY, ServerError.ConsumerNotFound)
    assert text == "consumer 7 is not open on this connection"
