"""Who the client says it is: tokens, basic, OAuth 2.0, and fresh credentials when the broker asks for them."""

import asyncio
import base64
import json

import pytest
from aiohttp import web
from fake_broker import FakeBroker, fake_client

from pulsar_txn.client import OperationTimeout, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.authentication import BasicAuthentication, OAuth2Authentication
from pulsar_txn.client.errors import AuthenticationError, InvalidConfiguration

LINGER = 0.01


async def said_by(authentication, **options):
    """The CONNECT of a client."""
    broker = FakeBroker()
    async with fake_client(broker, authentication=authentication, **options) as client:
        await client.get_topic_partitions("t")
    return broker.all("connect")[0]


@pytest.mark.parametrize(
    ("authentication", "method", "data"),
    [
        (TokenAuthentication("abc"), "token", b"abc"),
        (TokenAuthentication(lambda: "made"), "token", b"made"),
        (BasicAuthentication("ann", "pass:word"), "basic", b"ann:pass:word"),
        (TlsAuthentication("cert.pem", "key.pem"), "tls", b""),
    ],
)
async def test_a_connection_says_who_we_are(authentication, method, data):
    said = await said_by(authentication)
    assert (said.auth_method_name, said.auth_data) == (method, data)
    assert said.feature_flags.supports_auth_refresh


async def test_a_token_may_come_from_a_coroutine_function():
    async def token():
        await asyncio.sleep(0)
        return "later"

    assert (await said_by(TokenAuthentication(token))).auth_data == b"later"


async def test_a_token_file_is_read_again_when_the_broker_asks(tmp_path):
    file = tmp_path / "token"
    file.write_text("first\n")
    broker = FakeBroker()
    async with fake_client(broker, authentication=TokenAuthentication.from_file(file)) as client:
        await client.get_topic_partitions("t")
        file.write_text("second\n")
        broker.say("authChallenge", server_version="x")
        await broker.until(lambda: broker.all("authResponse"))
    assert broker.all("connect")[0].auth_data == b"first"
    answer = broker.all("authResponse")[0].response
    assert (answer.auth_method_name, answer.auth_data) == ("token", b"second")


async def test_two_challenges_at_once_are_one_question_to_the_program():
    asked = 0

    async def token():
        nonlocal asked
        asked += 1
        await asyncio.sleep(LINGER)
        return f"t{asked}"

    broker = FakeBroker()
    async with fake_client(broker, authentication=TokenAuthentication(token)) as client:
        await client.get_topic_partitions("t")
        broker.say("authChallenge", server_version="x")
        broker.say("authChallenge", server_version="x")
        await broker.until(lambda: broker.all("authResponse"))
        await asyncio.sleep(2 * LINGER)
    assert [answer.response.auth_data for answer in broker.all("authResponse")] == [b"t2"]


async def test_a_file_that_is_away_for_a_moment_delays_and_does_not_fail(tmp_path):
    file = tmp_path / "token"
    broker = FakeBroker()
    async with fake_client(broker, authentication=TokenAuthentication.from_file(file)) as client:
        work = asyncio.create_task(client.get_topic_partitions("t"))
        await broker.until(lambda: len(broker.pipes) > 1)
        file.write_text("here")
        await work
    assert [connect.auth_data for connect in broker.all("connect")] == [b"here"]


async def test_a_function_that_fails_for_good_is_an_authentication_error_with_its_reason():
    def token():
        raise KeyError("vault")

    broker = FakeBroker()
    async with fake_client(broker, authentication=TokenAuthentication(token)) as client:
        with pytest.raises(AuthenticationError, match="vault") as caught:
            await client.get_topic_partitions("t")
    assert isinstance(caught.value.__cause__, KeyError)
    assert len(broker.pipes) == 1
    assert not broker.pipes[0].is_open


async def test_credentials_that_do_not_come_time_out():
    broker = FakeBroker()
    slow = TokenAuthentication(lambda: asyncio.sleep(60, "never"))
    async with fake_client(broker, authentication=slow, connection_timeout=0.05, operation_timeout=0.2) as client:
        with pytest.raises(OperationTimeout, match="credentials"):
            await client.get_topic_partitions("t")


async def test_a_challenge_without_credentials_ends_the_connection_and_the_next_one_asks_again():
    answers = iter(["first", OSError("vault is away"), "third"])

    def token():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    broker = FakeBroker()
    async with fake_client(broker, authentication=TokenAuthentication(token)) as client:
        await client.get_topic_partitions("t")
        broker.say("authChallenge", server_version="x")
        await broker.until(lambda: not broker.pipes[0].is_open)
        await client.get_topic_partitions("t")
    assert [connect.auth_data for connect in broker.all("connect")] == [b"first", b"third"]


async def test_closing_during_a_challenge_leaves_no_task_behind():
    broker = FakeBroker()
    sources = iter([asyncio.sleep(0, "now"), asyncio.sleep(60, "never")])
    async with fake_client(broker, authentication=TokenAuthentication(lambda: next(sources))) as client:
        await client.get_topic_partitions("t")
        broker.say("authChallenge", server_version="x")
        await asyncio.sleep(LINGER)
    await asyncio.sleep(LINGER)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("user", ["", "a:b"])
def test_a_user_name_that_basic_cannot_carry_is_refused(user):
    with pytest.raises(InvalidConfiguration, match="colon"):
        BasicAuthentication(user, "p")


def test_secrets_are_left_out_of_repr():
    oauth2 = OAuth2Authentication("http://idp", client_id="me", client_secret="sesame")
    said = repr([TokenAuthentication("sesame"), BasicAuthentication("me", "sesame"), oauth2])
    assert "sesame" not in said
    assert "me" in said


# --- OAuth 2.0 ------------------------------------------------------------------------------------------------------


class Provider:
    """An identity provider on loopback: discovery and a token endpoint."""

    def __init__(self):
        self.forms = []
        self.lookups = 0
        self.life = 3600
        self.refusals = []

    async def discover(self, request):
        self.lookups += 1
        return web.json_response({"token_endpoint": str(request.url.with_path("/token"))})

    async def token(self, request):
        self.forms.append(dict(await request.post()))
        if self.refusals:
            return web.json_response({"error": "invalid_client", "error_description": "who?"}, status=self.refusals.pop(0))
        return web.json_response({"access_token": f"token-{len(self.forms)}", "expires_in": self.life})


@pytest.fixture
async def provider():
    idp = Provider()
    app = web.Application()
    app.router.add_get("/realm/.well-known/openid-configuration", idp.discover)
    app.router.add_post("/token", idp.token)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    idp.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/realm"
    yield idp
    await runner.cleanup()


async def test_client_credentials_become_a_token_that_is_kept_while_it_lives(provider):
    oauth2 = OAuth2Authentication(provider.url, client_id="me", client_secret="s", audience="urn:pulsar", scope="all")
    assert (await said_by(oauth2)).auth_data == b"token-1"
    assert (await said_by(oauth2)).auth_data == b"token-1"
    assert provider.lookups == 1
    (form,) = provider.forms
    assert form == {
        "grant_type": "client_credentials",
        "client_id": "me",
        "client_secret": "s",
        "audience": "urn:pulsar",
        "scope": "all",
    }


async def test_a_token_at_the_end_of_its_life_is_replaced_and_discovery_is_not_repeated(provider):
    provider.life = 0
    oauth2 = OAuth2Authentication(provider.url, client_id="me", client_secret="s")
    assert [await oauth2.data(), await oauth2.data()] == [b"token-1", b"token-2"]
    assert provider.lookups == 1


async def test_many_connections_at_once_ask_for_one_token(provider):
    oauth2 = OAuth2Authentication(provider.url, client_id="me", client_secret="s")
    assert set(await asyncio.gather(*(oauth2.data() for _ in range(5)))) == {b"token-1"}


async def test_a_provider_that_refuses_ends_the_attempts_with_its_words(provider):
    provider.refusals = [401]
    async with fake_client(
        FakeBroker(), authentication=OAuth2Authentication(provider.url, client_id="me", client_secret="s")
    ) as client:
        with pytest.raises(AuthenticationError, match=r"401: who\?"):
            await client.get_topic_partitions("t")
    assert len(provider.forms) == 1


async def test_a_provider_in_trouble_is_asked_again(provider):
    provider.refusals = [503, 429]
    assert (await said_by(OAuth2Authentication(provider.url, client_id="me", client_secret="s"))).auth_data == b"token-3"


async def test_a_provider_that_is_not_there_is_named(unused_tcp_port):
    oauth2 = OAuth2Authentication(f"http://127.0.0.1:{unused_tcp_port}", client_id="me", client_secret="s")
    with pytest.raises(AuthenticationError, match=f"127.0.0.1:{unused_tcp_port}") as caught:
        await oauth2.data()
    assert caught.value.retriable


@pytest.mark.parametrize("form", ["path", "file", "data"])
async def test_a_key_file_of_pulsars_form_is_enough(provider, tmp_path, form):
    document = {"type": "client_credentials", "client_id": "me", "client_secret": "s", "issuer_url": provider.url}
    text = json.dumps(document)
    file = tmp_path / "key.json"
    file.write_text(text)
    data = f"data:application/json;base64,{base64.b64encode(text.encode()).decode()}"
    where = {"path": file, "file": f"file://{file}", "data": data}[form]
    assert await OAuth2Authentication.from_key_file(where).data() == b"token-1"
    assert provider.forms[0]["client_secret"] == "s"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"type": "password", "client_id": "a", "client_secret": "b"}'])
def test_a_key_file_that_is_none_is_refused(tmp_path, text):
    file = tmp_path / "key.json"
    file.write_text(text)
    with pytest.raises(InvalidConfiguration, match="key file"):
        OAuth2Authentication.from_key_file(file)
