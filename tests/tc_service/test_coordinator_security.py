"""Who a client is at the coordinator service: tokens, certificates, their end, and whose transactions are whose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trustme
from coordinator_bench import Bench
from credentials import TOKENS, Speaker, nested, pem, signed_with, token, unsigned
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from raw_client import FULL, RawClient, Refused
from second_addresses import WAYS, Reach, reached

from pulsar_txn.broker.serving import ConfigError
from pulsar_txn.client import AsyncClient, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.errors import AuthenticationError, PulsarError
from pulsar_txn.tc_service.config import ClusterConfig, CoordinatorConfig, load
from pulsar_txn.tc_service.server.listening import CoordinatorServer
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnId

OUT = FULL + "out"


@pytest.fixture(params=[False, True], ids=["advertised", "another address"], autouse=True)
def by_another_address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test here runs with clients that came by the advertised address, and by another one."""
    monkeypatch.setattr(Speaker, "by_another_address", request.param)


@pytest.fixture
async def benches() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**config: Any) -> Bench:
        made.append(Bench("east", **config))
        return made[-1]

    yield make
    for each in made:
        await each.service.close()
        await each.store.close()


@pytest.mark.parametrize(
    ("data", "method", "why"),
    [
        (b"", "token", "no token was given"),
        (b"", "", "the method 'none' is not known|the method '' is not known"),
        (b"ann:secret", "basic", "the method 'basic' is not known here; authenticate by token"),
        (unsigned(), "token", "the token is not valid"),
        (token(key=b"another secret of thirty-two bytes"), "token", "the token is not valid"),
        (token()[:-3], "token", "the token is not valid"),
        (b"\xff\xfe", "token", "the token is not valid"),
        (nested(), "token", "the token is not valid"),
        (token(exp=float("nan")), "token", "the token is not valid"),
        (token(nbf=float("-inf")), "token", "the token is not valid"),
        (token(None), "token", "no claim 'sub'"),
        (token("  "), "token", "no claim 'sub'"),
        (token(exp=1_000_000), "token", "the token has expired"),
        (token(nbf=99_999_999_999), "token", "not valid yet"),
        (token(pad="x" * 20_000), "token", "the token is too long"),
    ],
)
async def test_credentials_that_prove_nothing_are_refused_with_a_sentence_that_never_shows_them(
    benches: Any, data: str | bytes, method: str, why: str
) -> None:
    bench = await benches(**TOKENS).start()
    speaker = Speaker(bench.service, data, method)
    await speaker.until(lambda: speaker.refused)
    assert any(each in speaker.refused for each in why.split("|"))
    assert not data or str(data) not in speaker.refused
    assert len(bench.service.connections) == 0 or speaker.connection.closed


async def test_a_proxy_cannot_speak_for_its_clients(benches: Any) -> None:
    bench = await benches(**TOKENS).start()
    speaker = Speaker(bench.service, token("proxy"), original_principal="ann")
    await speaker.until(lambda: speaker.refused)
    assert "a proxy cannot speak for its clients" in speaker.refused


@pytest.mark.parametrize("kind", ["rsa", "ec"])
async def test_tokens_of_a_key_pair_are_taken_and_none_that_is_signed_with_the_public_key(
    benches: Any, tmp_path: Path, kind: str
) -> None:
    key: Any = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP256R1())
    public = pem(key)
    (tmp_path / "public.pem").write_bytes(public)
    keys = {"authentication_enabled": True, "authentication_providers": "token"}
    bench = await benches(**keys, token_public_key=f"file://{tmp_path / 'public.pem'}").start()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    good = Speaker(bench.service, token(key=secret, algorithm="RS256" if kind == "rsa" else "ES256"))
    await good.new_txn()
    assert good.connection.session.principal == "ann"
    for bad in (signed_with(public), unsigned(), token()):
        speaker = Speaker(bench.service, bad)
        await speaker.until(lambda speaker=speaker: speaker.refused)


async def add(client: RawClient, txn: TxnId, what: str) -> Any:
    ids = {"txnid_least_bits": txn.least, "txnid_most_bits": txn.most}
    if what == "addPartitionToTxn":
        return await client.request(what, **ids, partitions=[OUT])
    if what == "addSubscriptionToTxn":
        return await client.request(what, **ids, subscription=[{"topic": OUT, "subscription": "s"}])
    return await client.request("endTxn", **ids, txn_action=int(what == "abort"))


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("what", ["addPartitionToTxn", "addSubscriptionToTxn", "commit", "abort"])
async def test_every_command_that_names_a_transaction_is_for_its_owner_alone(benches: Any, what: str, crashes: bool) -> None:
    bench = await benches(**TOKENS).start()
    owner = Speaker(bench.service, token("ann"))
    txn = await owner.new_txn()
    if crashes:
        await bench.crash()
        owner = Speaker(bench.service, token("ann"))
    other = Speaker(bench.service, token("bob"))
    with pytest.raises(Refused) as refused:
        await add(other, txn, what)
    with pytest.raises(Refused) as unknown:
        await add(other, TxnId(txn.most, 4711), what)
    assert refused.value.code == unknown.value.code == ServerError.TransactionNotFound  # who asks learns nothing of others
    await add(owner, txn, what)


@pytest.mark.parametrize("what", ["commit", "abort"])
async def test_an_operator_ends_the_transactions_of_every_role_and_adds_to_none(benches: Any, what: str) -> None:
    bench = await benches(**TOKENS, super_user_roles="ops, root").start()
    owner, operator = Speaker(bench.service, token("ann")), Speaker(bench.service, token("root"))
    txn = await owner.new_txn()
    with pytest.raises(Refused) as refused:
        await add(operator, txn, "addPartitionToTxn")
    assert refused.value.code == ServerError.TransactionNotFound
    await add(operator, txn, what)
    await add(owner, txn, what)


async def test_what_was_begun_before_authentication_is_for_operators_alone(benches: Any) -> None:
    bench = await benches().start()
    txn = await bench.client().new_txn()
    bench.config = attrs.evolve(bench.config, **TOKENS, super_user_roles="root")
    await bench.crash()
    other = Speaker(bench.service, token("ann"))
    for what in ("addPartitionToTxn", "addSubscriptionToTxn", "commit", "abort"):
        with pytest.raises(Refused) as refused:
            await add(other, txn, what)
        assert refused.value.code == ServerError.TransactionNotFound
    await add(Speaker(bench.service, token("root")), txn, "abort")


async def test_a_client_is_asked_for_fresh_credentials_when_its_own_expire_and_goes_on_with_them(benches: Any) -> None:
    bench = await benches(**TOKENS).start()
    now = bench.service.turn.clock.now_ms() / 1000
    speaker = Speaker(bench.service, token(exp=now + 0.05))
    await asyncio.wait_for(challenged(speaker), 20)
    fresh = {"auth_method_name": "token", "auth_data": token(exp=now + 3600).encode()}
    speaker.raw(command("authResponse", response=fresh))
    await speaker.new_txn()
    other = {"auth_method_name": "token", "auth_data": token("bob").encode()}
    speaker.raw(command("authResponse", response=other))
    await speaker.until(lambda: speaker.refused)
    assert "the fresh credentials are of another role" in speaker.refused


async def challenged(speaker: Speaker) -> None:
    while not any(name == "authChallenge" for name, _ in speaker.events):  # noqa: ASYNC110 - a raw client collects
        await asyncio.sleep(0.01)
    (asked,) = [body for name, body in speaker.events if name == "authChallenge"]
    assert asked.challenge.auth_data == b"PulsarAuthRefresh"  # without it Java's client ends the connection


async def test_who_does_not_answer_in_time_is_sent_away(benches: Any) -> None:
    bench = await benches(**TOKENS).start()
    later: list[tuple[float, Any]] = []
    bench.service.turn.runtime.call_later = lambda delay, then, *_: later.append((delay, then)) or Timer()  # type: ignore[method-assign]
    speaker = Speaker(bench.service, token(exp=bench.service.turn.clock.now_ms() / 1000 + 500_000))
    (delay, expired) = later.pop()
    assert delay == 86_400
    expired()
    assert not speaker.refused
    bench.service.turn.observe(bench.service.turn.clock.now_ms() + 500_001_000)
    later.pop()[1]()
    later.pop()[1]()
    await speaker.until(lambda: speaker.refused)
    assert "no fresh ones came" in speaker.refused


class Timer:
    def cancel(self) -> None:
        """Nothing runs."""


# ---- over sockets, with the client


@pytest.fixture(params=WAYS)
def reach(request: pytest.FixtureRequest) -> Iterator[Reach]:
    with reached(request.param) as reach:
        yield reach


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA, tmp_path: Path) -> dict[str, Any]:
    server = authority.issue_cert("127.0.0.1", "localhost")
    server.private_key_pem.write_to_path(tmp_path / "server.key")
    for blob in server.cert_chain_pems:
        blob.write_to_path(tmp_path / "server.pem", append=True)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return {
        "broker_service_port": None,
        "broker_service_port_tls": 0,
        "tls_certificate_file_path": str(tmp_path / "server.pem"),
        "tls_key_file_path": str(tmp_path / "server.key"),
        "tls_trust_certs_file_path": str(tmp_path / "ca.pem"),
    }


def certificate(authority: trustme.CA, name: str, folder: Path) -> TlsAuthentication:
    made = authority.issue_cert(f"{name}@example.org", common_name=name)
    path = folder / f"{name}.pem"
    made.private_key_and_cert_chain_pem.write_to_path(path)
    return TlsAuthentication(path, path)


NOWHERE = {"east": ClusterConfig(service_url="pulsar://127.0.0.1:1")}


async def test_a_client_with_a_certificate_has_its_name_as_role_and_one_of_another_authority_is_not_let_in(
    authority: trustme.CA, tls: dict[str, Any], tmp_path: Path, reach: Reach
) -> None:
    config = CoordinatorConfig(authentication_enabled=True, authentication_providers="tls", **tls)
    async with CoordinatorServer(config, NOWHERE) as server:
        assert server.service_url.startswith("pulsar+ssl://")
        options = {
            "coordinator": reach(server.service_url),
            "tls_trust_certs_file": tls["tls_trust_certs_file_path"],
            "operation_timeout": 1,
        }
        async with (
            AsyncClient("pulsar://127.0.0.1:1", authentication=certificate(authority, "ann", tmp_path), **options) as ann,
            AsyncClient("pulsar://127.0.0.1:1", authentication=certificate(authority, "bob", tmp_path), **options) as bob,
        ):
            txn = await ann.begin_transaction()
            with pytest.raises(PulsarError):
                await bob.attach_transaction(txn.id).commit()
            await txn.commit()
        stranger = certificate(trustme.CA(), "eve", tmp_path)
        for authentication in (stranger, None):
            async with AsyncClient("pulsar://127.0.0.1:1", authentication=authentication, **options) as eve:
                with pytest.raises(PulsarError):
                    await eve.begin_transaction()


async def test_the_client_proves_who_it_is_with_a_token_over_tls(tls: dict[str, Any], reach: Reach) -> None:
    async with CoordinatorServer(CoordinatorConfig(**TOKENS, **tls), NOWHERE) as server:
        options = {"coordinator": reach(server.service_url), "tls_trust_certs_file": tls["tls_trust_certs_file_path"]}
        good, bad = TokenAuthentication(token()), TokenAuthentication(token(key=b"x" * 32))
        async with (
            AsyncClient("pulsar://127.0.0.1:1", authentication=good, **options) as client,
            client.transaction(eager=True) as txn,
        ):
            assert txn.id is not None
        async with AsyncClient("pulsar://127.0.0.1:1", authentication=bad, **options) as client:
            with pytest.raises(AuthenticationError, match="the token is not valid"):
                await client.begin_transaction()


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"authenticationEnabled": "true"}, "needs authenticationProviders"),
        ({"authenticationEnabled": "true", "authenticationProviders": "kerberos"}, "kerberos is not known"),
        ({"authenticationEnabled": "true", "authenticationProviders": "token"}, "one of tokenSecretKey and tokenPublicKey"),
        (
            {"authenticationEnabled": "true", "authenticationProviders": "token", "tokenSecretKey": "c2hvcnQ="},
            "has 5 bytes, and 32 are the least",
        ),
        (
            {"authenticationEnabled": "true", "authenticationProviders": "token", "tokenSecretKey": "file:///not/there"},
            "tokenSecretKey cannot be read: No such file",
        ),
        (
            {"authenticationEnabled": "true", "authenticationProviders": "token", "tokenPublicKey": "c2hvcnQ="},
            "no public key in PEM or DER",
        ),
        ({"brokerServicePortTls": "6654"}, "needs tlsCertificateFilePath and tlsKeyFilePath"),
        ({"brokerServicePort": ""}, "there is no port"),
    ],
)
def test_keys_that_cannot_work_are_refused_with_a_sentence(keys: dict[str, str], sentence: str) -> None:
    east = {"clusters": "east", "cluster.east.serviceUrl": "pulsar://b1:6650"}
    if "brokerServicePort" in keys:
        east |= {"brokerServicePortTls": ""}
    with pytest.raises(ConfigError, match=sentence):
        load(None, {}, east | keys)


def test_with_authentication_it_may_listen_everywhere_and_no_secret_is_shown() -> None:
    keys = {"clusters": "east", "cluster.east.serviceUrl": "pulsar://b1:6650", "bindAddress": "0.0.0.0"}
    keys |= {"authenticationEnabled": "true", "authenticationProviders": "token"}
    found = load(None, {}, keys | {"tokenSecretKey": TOKENS["token_secret_key"]})
    assert found.config.bind_address == "0.0.0.0"
    assert TOKENS["token_secret_key"] not in repr(found)
