"""The front for unchanged clients: what it answers, what it passes on, and what it lets nobody do."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import jwt
import pytest
from front_bench import BrokerPipe, FrontBench, FrontClient
from raw_client import FULL, Refused

from pulsar_txn.tc_service.claims import RESERVED_AT_ONCE
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command, decode_command
from pulsar_txn.wire.ids import TxnId
from pulsar_txn.wire.topics import ASSIGN_TOPIC

OUT = FULL + "out"
FIRST = 1 << 40
SECRET = b"0123456789abcdef0123456789abcdef"
TOKENS = {
    "authentication_enabled": True,
    "authentication_providers": "token",
    "token_secret_key": base64.b64encode(SECRET).decode(),
}
CONNECT, LOOKUP, METADATA, RESPONSE = 2, 23, 21, 37


@pytest.fixture
async def benches() -> AsyncIterator[Callable[..., FrontBench]]:
    made: list[FrontBench] = []

    def make(*names: str, **config: Any) -> FrontBench:
        made.append(FrontBench(*names, **config))
        return made[-1]

    yield make
    for each in made:
        await each.service.close()
        await each.store.close()


def token(role: str = "ann") -> str:
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256")


def lookup_answer(said: Any, **fields: Any) -> bytes:
    where = {"brokerServiceUrl": "pulsar://owner:6650", "response": pb.CommandLookupTopicResponse.Connect, **fields}
    return command("lookupTopicResponse", request_id=said.lookupTopic.request_id, **where)


# ---- what it answers


async def test_coordinators_are_found_at_the_front_and_every_other_topic_at_the_brokers(benches: Any) -> None:
    bench = await benches().start()
    client = await bench.joined()
    bench.broker.broker.answers[LOOKUP] = lookup_answer
    found = await client.request("partitionMetadata", topic=ASSIGN_TOPIC)
    assert found.partitions == 2
    coordinator = await client.request("lookupTopic", topic=f"{ASSIGN_TOPIC}-partition-1")
    assert coordinator.brokerServiceUrl == "pulsar://front:6652"
    assert coordinator.response == pb.CommandLookupTopicResponse.Connect
    assert coordinator.authoritative
    assert not coordinator.proxy_through_service_url
    assert bench.broker.kinds() == [CONNECT]
    owner = await client.request("lookupTopic", topic=OUT)
    assert owner.brokerServiceUrl == "pulsar://owner:6650"
    client.start("lookupTopic", topic=OUT + "transaction_coordinator_assign")  # its name is like it, and no more
    client.start("partitionMetadata", topic=OUT)
    assert bench.broker.kinds() == [CONNECT, LOOKUP, LOOKUP, METADATA]


async def test_ids_have_the_coordinators_number_above_and_begin_where_no_broker_ever_was(benches: Any) -> None:
    bench = await benches().start()
    client = await bench.joined()
    for tc_id in (0, 1):
        await client.request("tcClientConnectRequest", tc_id=tc_id)
    ids = [await client.new_txn(tc_id) for tc_id in (0, 1, 0)]
    assert ids == [TxnId(0, FIRST), TxnId(1, FIRST), TxnId(0, FIRST + 1)]
    with pytest.raises(Refused) as refused:
        await client.request("tcClientConnectRequest", tc_id=2)
    assert refused.value.code == ServerError.TransactionCoordinatorNotFound
    assert bench.broker.kinds() == [CONNECT]


async def test_a_commit_is_told_to_the_fronts_cluster_with_a_watermark_that_covers_nothing_open(benches: Any) -> None:
    bench = await benches("east", "west").start()
    client = await bench.joined()
    first, second = await client.new_txn(), await client.new_txn()
    for txn in (first, second):
        await client.add_topics(txn, "out")
        await client.add_subscriptions(txn, (FULL + "in", "s"))
    await client.end(second)
    await client.abort(first)
    third = await client.new_txn()
    await client.add_topics(third, OUT)
    await client.end(third)
    assert bench.clusters["west"].told == []
    marks = [(each.txn_id.least, each.low_watermark, each.action.name) for each in bench.clusters["east"].told]
    assert marks == [
        *[(second.least, FIRST - 1, "COMMIT")] * 2,
        *[(first.least, FIRST - 1, "ABORT")] * 2,
        (third.least, second.least, "COMMIT"),
    ]
    assert {each.participant.topic for each in bench.clusters["east"].told} == {OUT, FULL + "in"}


async def test_a_transaction_of_a_coordinator_client_is_nobodys_at_the_front_and_the_other_way_round(benches: Any) -> None:
    bench = await benches().start()
    front, direct = await bench.joined(), bench.client()
    of_front, of_lane = await front.new_txn(), await direct.new_txn()
    for client, alien in ((front, of_lane), (direct, of_front)):
        with pytest.raises(Refused):
            await client.end(alien)
    await front.end(of_front)
    await direct.end(of_lane)


async def test_after_a_crash_decisions_are_told_again_and_repeats_are_answered_also_without_a_front(benches: Any) -> None:
    bench = await benches().start()
    bench.clusters["east"].answers = False
    client = await bench.joined()
    txn = await client.new_txn()
    await client.add_topics(txn, OUT)
    client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=0)
    await client.until(lambda: bench.clusters["east"].told)
    await bench.crash()
    await client.until(lambda: bench.clusters["east"].ends == [(OUT, None, "COMMIT")])
    again = await bench.joined()
    await again.end(txn)
    with pytest.raises(Refused):
        await again.abort(txn)
    assert await again.new_txn() == TxnId(0, FIRST + RESERVED_AT_ONCE), "a start gives numbers that nobody has reserved"
    left = await again.new_txn()
    await again.add_topics(left, OUT)
    bench.clusters["east"].answers = False
    again.start("endTxn", txnid_least_bits=left.least, txnid_most_bits=left.most, txn_action=1)
    await client.until(lambda: len(bench.clusters["east"].told) == 2)
    bench.config = type(bench.config)(number_of_transaction_coordinators=2)
    await bench.crash()
    await client.until(lambda: (OUT, None, "ABORT") in bench.clusters["east"].ends)


async def test_any_timeout_is_taken_as_by_the_brokers_own_coordinators(benches: Any) -> None:
    bench = await benches().start()
    client = await bench.joined()
    txn = await client.new_txn(timeout_ms=7 * 24 * 3600 * 1000)
    await client.add_topics(txn, OUT)
    await client.end(txn)


# ---- what it passes on


async def test_bytes_pass_as_they_are_in_both_directions_whatever_their_pieces(benches: Any) -> None:
    bench = await benches().start()
    client = await bench.joined()
    said = command("producer", topic=OUT, producer_id=1, request_id=2) + command("flow", consumer_id=1, messagePermits=7)
    before = len(bench.broker.raw)
    for size in (1, 3, 1000):
        for at in range(0, len(said), size):
            client.raw(said[at : at + size])
    assert bench.broker.raw[before:] == said * 3
    seen: list[bytes] = []
    client.pipe._receive = seen.append
    from_broker = command("active_consumer_change", consumer_id=1, is_active=True) + command("reachedEndOfTopic", consumer_id=4)
    for size in (1, 3, 1000):
        for at in range(0, len(from_broker), size):
            bench.broker.protocol.data_received(from_broker[at : at + size])
    assert b"".join(seen) == from_broker * 3


async def test_answers_of_ours_never_come_amid_a_frame_of_the_broker(benches: Any) -> None:
    bench = await benches().start()
    client = await bench.joined()
    half = command("producer_success", request_id=99, producer_name="p" * 50)
    bench.broker.protocol.data_received(half[:30])
    asked = client.start("newTxn", txn_ttl_millis=60_000, tc_id=0)
    await client.settle()
    assert asked not in client._answers
    bench.broker.protocol.data_received(half[30:])
    assert (await client.answer(asked)).txnid_least_bits == FIRST
    assert (await client.answer(99)).producer_name == "p" * 50


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_lookup_leads_clients_straight_to_the_broker_unless_a_proxy_is_between(benches: Any, keeps: bool) -> None:
    bench = await benches(front_keeps_proxy_through_service_url=keeps).start()
    client = await bench.joined()
    bench.broker.broker.answers[LOOKUP] = partial(lookup_answer, proxy_through_service_url=True, authoritative=True)
    answer = await client.request("lookupTopic", topic=OUT)
    assert answer.proxy_through_service_url == keeps
    assert answer.authoritative
    assert answer.brokerServiceUrl == "pulsar://owner:6650"


async def test_a_broker_that_refuses_the_client_is_heard_and_ends_both_connections(benches: Any) -> None:
    bench = await benches().start()
    sentence = "who are you?"

    def refuse(_: Any) -> bytes:
        return command("error", request_id=2**64 - 1, error=int(ServerError.AuthenticationError), message=sentence)

    for each in bench.brokers.values():
        each.answers[CONNECT] = refuse
    client = FrontClient(bench.front)
    await client.until(lambda: client._answers)
    bench.broker.close()
    await client.until(lambda: client.pipe.closed)
    assert client.refused == sentence
    client.drop()
    assert bench.service.limits.connections == 0
    assert not bench.service.connections


# ---- brokers


async def test_when_a_broker_refuses_connections_the_next_one_is_asked_and_without_any_the_client_hears(
    benches: Any,
) -> None:
    bench = await benches().start()
    bench.brokers["b1:6650"].refuses = True
    for _ in range(2):
        await bench.joined()
    assert len(bench.brokers["b2:6650"].pipes) == 2
    assert bench.runtime.connects == ["b1:6650", "b2:6650", "b2:6650"]  # the second client does not try the dead one first
    bench.brokers["b2:6650"].refuses = True
    client = FrontClient(bench.front)
    await client.until(lambda: client.refused)
    assert "no broker of the cluster east can be reached" in client.refused


async def test_the_front_is_no_open_proxy(benches: Any) -> None:
    bench = await benches(front_keeps_proxy_through_service_url=True).start()
    bench.brokers["owner:6650"] = type(bench.brokers["b1:6650"])()
    stranger = FrontClient(bench.front, proxy_to_broker_url="owner:6650")
    await stranger.until(lambda: stranger.refused)
    assert "'owner:6650' is not known as a broker of the cluster east; look the topic up again" in stranger.refused
    assert bench.runtime.connects == []
    await bench.joined(proxy_to_broker_url="pulsar://b2:6650")
    client = await bench.joined()
    bench.broker.broker.answers[LOOKUP] = partial(lookup_answer, proxy_through_service_url=True)
    await client.request("lookupTopic", topic=OUT)
    await bench.joined(proxy_to_broker_url="owner:6650")
    assert bench.runtime.connects == ["b2:6650", "b1:6650", "owner:6650"]
    assert decode_command(bench.broker.got[0]).connect.proxy_to_broker_url == "owner:6650"


async def test_brokers_that_lookups_name_without_end_are_forgotten_and_those_of_the_configuration_never(benches: Any) -> None:
    bench = await benches().start()
    brokers = bench.front.brokers
    for number in range(5_000):
        brokers.learn(f"pulsar://h{number}:6650", "pulsar://b1:6650", "no url", "")
    assert len(brokers._known) < 1100
    assert str(brokers.named("b1:6650")) == "b1:6650"
    assert str(brokers.named("h4999:6650")) == "h4999:6650"
    with pytest.raises(Exception, match="not known as a broker"):
        brokers.named("h0:6650")


# ---- limits


async def test_each_side_is_read_only_while_the_other_takes_what_it_is_sent(benches: Any) -> None:
    bench = await benches().start()
    client = await bench.joined()
    broker: BrokerPipe = bench.broker
    broker.protocol.pause_writing()
    assert not client.pipe.reading
    broker.protocol.resume_writing()
    assert client.pipe.reading
    client.connection.pause_writing()
    assert (client.pipe.reading, broker.reading) == (False, False)
    client.connection.resume_writing()
    assert (client.pipe.reading, broker.reading) == (True, True)


async def test_requests_without_an_answer_are_bounded(benches: Any) -> None:
    bench = await benches(max_concurrent_requests_per_connection=4).start()
    bench.clusters["east"].answers = False
    client = await bench.joined()
    ids = [await client.new_txn() for _ in range(4)]
    for txn in ids:
        await client.add_topics(txn, OUT)
    asked = [client.start("endTxn", txnid_least_bits=t.least, txnid_most_bits=t.most, txn_action=0) for t in ids]
    assert not client.pipe.reading
    assert client.connection.is_busy
    await client.until(lambda: len(bench.clusters["east"].told) == 4)
    bench.clusters["east"].answer()
    for each in asked:
        await client.answer(each)
    assert client.pipe.reading


async def test_a_client_takes_two_places_and_gives_them_back(benches: Any) -> None:
    bench = await benches(broker_max_connections=5).start()
    clients = [await bench.joined() for _ in range(2)]
    third = FrontClient(bench.front)
    assert "brokerMaxConnections" in third.refused
    for each in clients:
        each.drop()
    assert bench.service.limits.connections == 0
    await third.settle()
    assert all(not pipe.is_open for broker in bench.brokers.values() for pipe in broker.pipes)


@pytest.mark.parametrize(
    "said",
    [
        command("connect", client_version="again", protocol_version=21),
        b"\xff" * 40,
        b"GET / HTTP/1.1\r\n\r\n",
        (1 << 30).to_bytes(4) + b"\0\0\0\x0c\x08\x17",
        b"\0\0\0\x10\0\0\0\x0c\x08\x32" + b"\x92\x03\xff" + bytes(7),  # a NEW_TXN that is no protobuf
    ],
)
async def test_hostile_frames_end_both_connections_and_nothing_of_them_stays(benches: Any, said: bytes) -> None:
    bench = await benches().start()
    client = await bench.joined()
    client.raw(said)
    assert client.pipe.closed
    client.drop()
    await client.settle()
    assert not bench.broker.is_open
    assert bench.service.limits.connections == 0


async def test_before_the_broker_has_let_it_in_a_client_gets_no_transaction(benches: Any) -> None:
    bench = await benches().start()
    for each in bench.brokers.values():
        each.answers[CONNECT] = lambda _: b""
    client = FrontClient(bench.front)
    await client.until(lambda: any(each.pipes for each in bench.brokers.values()))
    client.start("newTxn", txn_ttl_millis=60_000, tc_id=0)
    assert client.pipe.closed


async def test_silent_and_stuck_clients_are_sent_away(benches: Any) -> None:
    bench = await benches().start()
    silent, stuck, slow = [await bench.joined() for _ in range(3)]
    stuck.connection.pause_writing()
    slow.connection.pause_writing()
    sizes = iter([1000, 900, 800, 700, 600, 500])
    stuck.pipe.get_write_buffer_size = lambda: 1000
    slow.pipe.get_write_buffer_size = lambda: next(sizes)
    for _ in range(4):
        for each in (silent, stuck, slow):
            if not each.pipe.closed:
                each.connection.tick()
    assert (silent.pipe.closed, stuck.pipe.closed, slow.pipe.closed) == (True, True, False)
    waiting = bench.front.connection()
    waiting.connection_made(pipe := type(silent.pipe)(lambda _: None))
    for _ in range(4):
        waiting.look()
    assert pipe.closed
    waiting.connection_lost(None)


async def test_at_the_end_what_was_asked_is_answered_and_clients_are_sent_away(benches: Any) -> None:
    bench = await benches().start()
    client = await bench.joined()
    txn = await client.new_txn()
    await client.add_topics(txn, OUT)
    asked = client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=0)
    await bench.service.close()
    await client.answer(asked)
    assert client.pipe.closed


# ---- who clients are


async def test_the_role_of_a_token_owns_its_transactions(benches: Any) -> None:
    bench = await benches(**TOKENS).start()
    ann, eve = [await bench.joined(auth_method_name="token", auth_data=token(role).encode()) for role in ("ann", "eve")]
    txn = await ann.new_txn()
    await ann.add_topics(txn, OUT)
    for ask in (eve.end, eve.abort, lambda txn: eve.add_topics(txn, OUT + "2")):
        with pytest.raises(Refused) as refused:
            await ask(txn)
        assert refused.value.code == ServerError.TransactionNotFound
    await ann.end(txn)
    assert bench.clusters["east"].ends == [(OUT, None, "COMMIT")]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "the method 'none' is not known|the method '' is not known"),
        ({"auth_method_name": "token", "auth_data": b"x"}, "the token is not valid"),
        ({"auth_method_name": "tls"}, "a client cannot show its certificate to a broker through the front"),
        (
            {"auth_method_name": "token", "auth_data": token().encode(), "original_principal": "admin"},
            "a proxy cannot speak for its clients",
        ),
    ],
)
async def test_who_proves_nothing_reaches_no_broker(benches: Any, fields: dict[str, Any], why: str) -> None:
    bench = await benches(**TOKENS).start()
    client = FrontClient(bench.front, **fields or {"auth_method_name": ""})
    await client.until(lambda: client.refused)
    assert any(each in client.refused for each in why.split("|"))
    assert bench.runtime.connects == []


def fresh(role: str) -> bytes:
    return command("authResponse", response={"auth_method_name": "token", "auth_data": token(role).encode()})


async def test_a_fresh_token_that_the_broker_wants_is_seen_here_too_and_another_role_is_sent_away(benches: Any) -> None:
    bench = await benches(**TOKENS).start()
    client = await bench.joined(auth_method_name="token", auth_data=token("ann").encode())
    challenge = command("authChallenge", challenge={"auth_method_name": "token", "auth_data": b"PulsarAuthRefresh"})
    bench.broker.say(challenge)
    await client.until(lambda: any(name == "authChallenge" for name, _ in client.events))
    client.raw(fresh("ann"))
    assert bench.broker.kinds() == [CONNECT, RESPONSE]
    client.raw(fresh("ann"))  # an answer to us, whom the broker has not asked about
    assert bench.broker.kinds() == [CONNECT, RESPONSE]
    bench.broker.say(challenge)
    await client.settle()
    client.raw(fresh("eve"))
    assert client.pipe.closed
    assert bench.broker.kinds() == [CONNECT, RESPONSE]
