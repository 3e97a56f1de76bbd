"""Whose transactions are whose at a broker that asks who comes: what belongs to another role does not exist."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import attrs
import pytest
from credentials import TOKENS, Speaker, token
from raw_client import FULL, RawClient, Received, Refused

from pulsar_txn.broker.base.settings import BrokerConfig, ConfigError
from pulsar_txn.broker.server import Standalone, check_security
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnAction, TxnId

IN, OUT = FULL + "in", FULL + "out"
GUARDED = TOKENS | {"super_user_roles": "root"}


@pytest.fixture(params=[False, True], ids=["advertised", "another address"], autouse=True)
def by_another_address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test here runs with clients that came by the advertised address, and by another one."""
    monkeypatch.setattr(Speaker, "by_another_address", request.param)


@pytest.fixture
async def bench(benches: Any) -> Any:
    return await benches(**GUARDED).start()


def speaker(bench: Any, role: str) -> Speaker:
    return Speaker(bench.broker, token(role))


async def opened(client: RawClient) -> TxnId:
    """A transaction with both participants."""
    txn = await client.new_txn()
    await client.add_topics(txn, OUT)
    await client.add_subscriptions(txn, (IN, "s"))
    return txn


async def name_it(client: RawClient, txn: TxnId, what: str) -> Any:
    """A command that names a transaction."""
    ids = {"txnid_least_bits": txn.least, "txnid_most_bits": txn.most}
    match what:
        case "partition":
            return await client.request("addPartitionToTxn", **ids, partitions=[OUT])
        case "subscription":
            return await client.request("addSubscriptionToTxn", **ids, subscription=[{"topic": IN, "subscription": "s"}])
        case "commit" | "abort":
            return await client.end(txn, TxnAction.COMMIT if what == "commit" else TxnAction.ABORT)
        case _:
            return await client.request("endTxn", **ids, txn_action=0, group_least_bits=[txn.least + 1])


COMMANDS = ["partition", "subscription", "commit", "abort", "group"]


@pytest.mark.parametrize("crashes", [False, True], ids=["live", "recovered"])
@pytest.mark.parametrize("what", COMMANDS)
async def test_every_command_that_names_a_transaction_is_for_its_owner_alone(bench: Any, what: str, crashes: bool) -> None:
    owner = speaker(bench, "ann")
    txn, second = await opened(owner), await opened(owner)
    assert second.least == txn.least + 1
    if crashes:
        await bench.crash()
        owner = speaker(bench, "ann")
        await owner.request("tcClientConnectRequest", tc_id=0)
    other = speaker(bench, "bob")
    with pytest.raises(Refused) as refused:
        await name_it(other, txn, what)
    with pytest.raises(Refused) as unknown:
        await name_it(other, TxnId(txn.most, 4711), what)
    assert refused.value.code == unknown.value.code == ServerError.TransactionNotFound
    assert str(refused.value).replace(str(txn), "") == str(unknown.value).replace(str(TxnId(txn.most, 4711)), "")
    for each in (txn, second):
        await owner.end(each)


async def test_a_group_with_one_transaction_of_somebody_else_ends_nothing(bench: Any) -> None:
    ann, bob = speaker(bench, "ann"), speaker(bench, "bob")
    mine, other = await ann.new_txn(), await bob.new_txn()
    ids = {"txnid_least_bits": mine.least, "txnid_most_bits": mine.most}
    with pytest.raises(Refused) as refused:
        await ann.request("endTxn", **ids, txn_action=0, group_least_bits=[other.least])
    assert refused.value.code == ServerError.TransactionNotFound
    await ann.abort(mine)
    await bob.abort(other)


# ---- at the participants


async def refusal_of_send(client: RawClient, txn: TxnId, **options: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        await client.sent(b"x", txn=txn, **options)
    return refused.value


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("written", [False, True], ids=["first", "ongoing there"])
async def test_nobody_writes_into_the_transaction_of_another_role(bench: Any, written: bool, batch: bool) -> None:
    ann, bob = speaker(bench, "ann"), speaker(bench, "bob")
    await ann.producer(OUT)
    await bob.producer(OUT)
    txn = await opened(ann)
    if written:
        await ann.sent(b"of ann", txn=txn)
    payload: Any = [b"a", b"b"] if batch else b"x"
    with pytest.raises(Refused) as refused:
        await bob.sent(payload, txn=txn)
    unknown = await refusal_of_send(bob, TxnId(txn.most, 4711))
    assert refused.value.code == unknown.code == ServerError.NotAllowedError
    assert str(refused.value).replace(str(txn), "") == str(unknown).replace(str(TxnId(txn.most, 4711)), "")
    await ann.sent(b"later", txn=txn)
    await ann.end(txn)
    await bob.subscribe(OUT)
    assert await bob.payloads(1 + written) == [b"of ann", b"later"][not written :]
    await bob.nothing()
    assert bob.connection.session.pending_sends == 0


async def test_the_refusal_is_the_one_that_a_participant_gives_itself(bench: Any, benches: Any) -> None:
    plain = await benches().start()
    for server, client in ((bench, speaker(bench, "bob")), (plain, plain.client())):
        await client.producer(OUT)
        await client.request("tcClientConnectRequest", tc_id=0)
        refused = await refusal_of_send(client, TxnId(0, 4711))
        message = await given(client, IN)
        with pytest.raises(Refused) as of_ack:
            await client.ack(message, txn=TxnId(0, 4711))
        if server is bench:
            of_bob = str(refused), str(of_ack.value)
    assert of_bob == (str(refused), str(of_ack.value))


async def given(client: RawClient, topic: str) -> Received:
    """A message that the client holds."""
    await client.producer(topic, 9)
    await client.sent(b"in", 9)
    await client.subscribe(topic, kind=1)
    return await client.receive()


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("held", [False, True], ids=["first", "ongoing there"])
async def test_nobody_acknowledges_in_the_transaction_of_another_role(bench: Any, held: bool, cumulative: bool) -> None:
    ann, bob = speaker(bench, "ann"), speaker(bench, "bob")
    await ann.producer(IN)
    for index in range(3):
        await ann.sent(b"%d" % index)
    await bob.subscribe(IN, "s" if not cumulative else "t", kind=1 if not cumulative else 0, permits=2)
    txn = await ann.new_txn()
    await ann.add_subscriptions(txn, (IN, "s"), (IN, "t"))
    first = await bob.receive()
    if held and not cumulative:
        await ann.subscribe(IN, "s", kind=1, permits=1)
        await ann.ack(await ann.receive(), txn=txn)
    with pytest.raises(Refused) as refused:
        await bob.ack(first, txn=txn, cumulative=cumulative)
    with pytest.raises(Refused) as unknown:
        await bob.ack(first, txn=TxnId(txn.most, 4711), cumulative=cumulative)
    assert refused.value.code == unknown.value.code == ServerError.NotAllowedError
    assert str(refused.value).replace(str(txn), "") == str(unknown.value).replace(str(TxnId(txn.most, 4711)), "")
    await ann.end(txn)
    await bob.ack(first)  # it is still bob's
    again = speaker(bench, "bob")
    bob.drop()
    await again.subscribe(IN, "s" if not cumulative else "t", kind=1 if not cumulative else 0)
    assert (await again.receive()).position != first.position


async def test_an_operator_writes_nothing_into_the_transactions_of_others(bench: Any) -> None:
    ann, root = speaker(bench, "ann"), speaker(bench, "root")
    await root.producer(OUT)
    txn = await opened(ann)
    assert (await refusal_of_send(root, txn)).code == ServerError.NotAllowedError
    await root.add_topics(txn, OUT)  # as on stock Pulsar
    assert (await refusal_of_send(root, txn)).code == ServerError.NotAllowedError
    await root.end(txn)
    await ann.end(txn)  # a repeat: the outcome is known to its owner


async def test_while_a_coordinator_is_away_its_owner_is_told_to_come_again(bench: Any) -> None:
    ann = speaker(bench, "ann")
    await ann.producer(OUT)
    txn = await opened(ann)
    serving = bench.broker.coordinators._serving
    host = serving.pop(txn.most)
    assert (await refusal_of_send(ann, txn)).code == ServerError.ServiceNotReady
    serving[txn.most] = host
    await ann.sent(b"x", txn=txn)
    await ann.end(txn)


# ---- transactional ids, incarnations, and what was before


async def test_a_transactional_id_is_of_each_role_by_itself(bench: Any) -> None:
    ann, bob = speaker(bench, "ann"), speaker(bench, "bob")
    (tc_id, _) = await identity(ann, "worker")
    txn = await begun(ann, tc_id)
    await identity(bob, "worker")
    await begun(bob, tc_id)  # fences nobody
    await ann.end(txn)
    await identity(speaker(bench, "ann"), "worker")


async def test_the_epoch_of_another_role_opens_nothing_of_its_own(bench: Any) -> None:
    ann, bob = speaker(bench, "ann"), speaker(bench, "bob")
    tc_id, epoch = await identity(ann, "worker")
    txn = await begun(ann, tc_id)
    await bob.request("tcClientConnectRequest", tc_id=tc_id, transactional_id="worker", transactional_epoch=epoch)
    with pytest.raises(Refused) as refused:
        await bob.abort(txn)
    assert refused.value.code == ServerError.TransactionNotFound
    await ann.end(txn)


async def identity(client: RawClient, name: str) -> tuple[int, int]:
    told = await client.request("tcClientConnectRequest", tc_id=0, transactional_id=name)
    return told.tc_id, told.transactional_epoch


async def begun(client: RawClient, tc_id: int) -> TxnId:
    body = await client.request("newTxn", tc_id=tc_id, txn_ttl_millis=60_000)
    return TxnId(body.txnid_most_bits, body.txnid_least_bits)


async def test_what_was_begun_before_authentication_is_for_operators_alone(benches: Any) -> None:
    bench = await benches().start()
    nobody = bench.client()
    await nobody.producer(OUT)
    txn = await opened(nobody)
    await nobody.sent(b"x", txn=txn)
    bench.config = attrs.evolve(bench.config, **GUARDED)
    await bench.crash()
    ann = speaker(bench, "ann")
    await ann.request("tcClientConnectRequest", tc_id=0)
    for what in ("partition", "subscription", "commit", "abort"):
        with pytest.raises(Refused) as refused:
            await name_it(ann, txn, what)
        assert refused.value.code == ServerError.TransactionNotFound
    await ann.producer(OUT)
    assert (await refusal_of_send(ann, txn)).code == ServerError.NotAllowedError
    await speaker(bench, "root").end(txn)
    await ann.subscribe(OUT)
    assert await ann.payloads(1) == [b"x"]


# ---- how one is let in


URL, URL_TLS = "pulsar://broker.test:6650", "pulsar+ssl://[fd00::1]:6651"


async def named(benches: Any, wanted: str, **keys: Any) -> Speaker:
    """Who asks for this server, at a broker with two addresses."""
    bench = await benches(**keys).start()
    bench.broker.service_url, bench.broker.service_url_tls = URL, URL_TLS
    return Speaker(bench.broker, token("ann"), proxy_to_broker_url=wanted)


@pytest.mark.parametrize(
    "wanted",
    ["broker.test:6650", URL, "Broker.TEST:6650", URL + "/", "[fd00::1]:6651", "fd00::1:6651", URL_TLS],
)
async def test_who_asks_for_this_server_by_any_of_its_addresses_is_let_in(benches: Any, wanted: str) -> None:
    speaker = await named(benches, wanted, **GUARDED)
    await speaker.new_txn()
    assert speaker.connection.session.principal == "ann"


@pytest.mark.parametrize("keys", [{}, GUARDED], ids=["open", "guarded"])
@pytest.mark.parametrize("wanted", ["broker.test:6652", "other.test:6650", "pulsar://", "x" * 9000, "broker.test:6650,other:1"])
async def test_nobody_is_led_to_another_server(benches: Any, wanted: str, keys: dict[str, Any]) -> None:
    speaker = await named(benches, wanted, **keys)
    await speaker.until(lambda: speaker.refused)
    assert f"is not this server, which is {URL} and {URL_TLS} and forwards nothing" in speaker.refused
    assert len(speaker.refused) < 300


@pytest.mark.parametrize(
    "said",
    [
        {"original_principal": "bob"},
        {"original_principal": ""},
        {"original_auth_data": token("bob")},
        {"original_auth_method": "token"},
    ],
)
async def test_a_proxy_cannot_speak_for_its_clients(bench: Any, said: dict[str, str]) -> None:
    speaker = Speaker(bench.broker, token("root"), **said)
    await speaker.until(lambda: speaker.refused)
    assert "a proxy cannot speak for its clients" in speaker.refused


async def test_who_says_nothing_is_sent_away_before_anything_else(bench: Any) -> None:
    nobody = bench.client()
    await nobody.settle()
    assert nobody.pipe.closed
    assert not nobody.connection.connected


async def test_end_of_a_transaction_at_a_participant_is_for_nobody(bench: Any) -> None:
    root = speaker(bench, "root")
    with pytest.raises(Refused) as refused:
        ids = {"txnid_least_bits": 0, "txnid_most_bits": 0}
        await root.request("endTxnOnPartition", **ids, topic=OUT, txn_action=0)
    assert refused.value.code == ServerError.NotAllowedError


async def test_a_client_goes_on_with_the_fresh_token_that_it_is_asked_for(bench: Any) -> None:
    now = bench.broker.clock.now_ms() / 1000
    ann = Speaker(bench.broker, token("ann", exp=now + 0.05))
    async with asyncio.timeout(20):
        while not any(name == "authChallenge" for name, _ in ann.events):  # noqa: ASYNC110 - a raw client collects
            await asyncio.sleep(0.01)
    fresh = {"auth_method_name": "token", "auth_data": token("ann", exp=now + 3600).encode()}
    ann.raw(command("authResponse", response=fresh))
    await ann.new_txn()
    stale = {"auth_method_name": "token", "auth_data": token("ann", exp=now).encode()}
    ann.raw(command("authResponse", response=stale))
    await ann.until(lambda: ann.refused)
    assert "the token has expired" in ann.refused


# ---- configuration


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"authentication_enabled": True}, "needs authenticationProviders"),
        (GUARDED | {"authentication_providers": "basic"}, "basic is not known here"),
        (GUARDED | {"token_secret_key": "c2hvcnQ="}, "32 are the least"),
        ({"broker_service_port": None}, "there is no port"),
        (
            {"functions_worker_enabled": True, "bind_address": "0.0.0.0"},
            "whoever reaches this port could run code on this machine",
        ),
        ({"broker_service_port_tls": 0}, "needs tlsCertificateFilePath and tlsKeyFilePath"),
        ({"web_service_port_tls": 0}, "needs tlsCertificateFilePath and tlsKeyFilePath"),
    ],
)
async def test_keys_that_cannot_work_are_refused_before_the_store_is_opened(
    keys: dict[str, Any], sentence: str, tmp_path: Any
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        await Standalone(tmp_path / "data", config=BrokerConfig(**keys)).start()
    assert not (tmp_path / "data").exists()


def test_functions_on_an_open_address_need_a_key_that_says_so(caplog: pytest.LogCaptureFixture) -> None:
    open_to_all = BrokerConfig(functions_worker_enabled=True, bind_address="0.0.0.0")
    with pytest.raises(ConfigError, match="functionsWorkerWithoutAuthenticationAllowed=true"):
        check_security(open_to_all)
    check_security(attrs.evolve(open_to_all, functions_worker_without_authentication_allowed=True))
    assert "functions run code of everybody who reaches the HTTP port on 0.0.0.0" in caplog.text
    for address in ("127.0.0.1", "::1", "localhost"):
        check_security(BrokerConfig(functions_worker_enabled=True, bind_address=address))


def test_what_a_configuration_leaves_open_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    check_security(BrokerConfig())
    assert not caplog.messages
    check_security(BrokerConfig(bind_address="0.0.0.0"))
    check_security(BrokerConfig(bind_address="0.0.0.0", **TOKENS))
    warned, nobody, everything = caplog.messages
    assert "without authenticationEnabled: whoever reaches this broker may read, write and administrate" in warned
    assert "superUserRoles is empty" in nobody
    assert "every topic" in everything
