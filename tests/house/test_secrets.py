"""A walk over everything that is given a secret: no repr, error, traceback, log line or command shows one of them."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from pulsar_txn import compat
from pulsar_txn.broker.base.config import FIELDS, load
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.net.authentication import authentication_of
from pulsar_txn.client import AsyncClient, Client, TlsAuthentication, TokenAuthentication
from pulsar_txn.client.authentication import BasicAuthentication, OAuth2Authentication
from pulsar_txn.client.encryption import PemKeys
from pulsar_txn.client.net.authentication import current_data
from pulsar_txn.client.options import AutoClusterFailover, ProducerOptions
from pulsar_txn.client.outbox import AsyncOutbox
from pulsar_txn.pipeline.functions import FunctionConfig
from pulsar_txn.pipeline.functions._command import authentication_of as authentication_of_flags
from pulsar_txn.pipeline.spark.connecting import authentication_of_options, connection_of
from pulsar_txn.pipeline.spark.options import TABLE, read_client_option, read_options
from pulsar_txn.tc_service.config import CLUSTER_FIELDS, ClusterConfig
from pulsar_txn.tc_service.config import FIELDS as COORDINATOR_FIELDS
from pulsar_txn.tc_service.config import load as load_coordinator
from pulsar_txn.wire.secret_text import Secret, optional_secret, shown

SESAME = "0pen+sesame/0pen+sesame/0pen+sesame/0pen+ses"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.5esam3-5esam3-5esam3"
PEM = f"-----BEGIN PRIVATE KEY-----\n{SESAME}\n-----END PRIVATE KEY-----\n"
URL = f"pulsar://ann:{SESAME}@broker:6650"
SERVICE = "pulsar://127.0.0.1:1"


def seen(value: object) -> str:
    """Everything that a program, a log or a debugger prints of a value."""
    return f"{value!r} {value} {value!s:.900} {copy.copy(value)!r} {[value]} { ({'x': value}) }"


def failure(act: Callable[[], Any]) -> str:
    """The traceback and the message of what must fail, chained errors included."""
    try:
        act()
    except SystemExit as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return "".join(traceback.format_exception(error)) + repr(error) + str(getattr(error, "hint", ""))
    raise AssertionError("that is no mistake")


def assert_hidden(text: str, *secrets: str) -> None:
    """`text` has no part of the secrets: neither a half, nor what a shortened text keeps."""
    for each in (SESAME, JWT, *secrets):
        assert each not in text
        assert each[:12] not in text
        assert each[-12:] not in text


# ---- the type


def test_a_secret_shows_nothing_and_says_its_text_to_those_who_ask_for_it() -> None:
    secret = Secret(SESAME)
    assert_hidden(seen(secret) + json.dumps({"x": str(secret)}) + f"{secret}" + "%s %r" % (secret, secret))  # noqa: UP031 - as logs do
    assert secret.reveal() == SESAME
    assert secret == Secret(SESAME) != Secret("x")
    assert secret != SESAME
    assert hash(secret) == hash(Secret(SESAME))
    assert pickle.loads(pickle.dumps(secret)) == secret  # Spark hands options to other processes
    assert optional_secret(secret) is secret
    assert not Secret("")
    assert Secret(SESAME).shown == "***"
    assert Secret("file:///run/key").shown == "file:///run/key"
    with pytest.raises(TypeError):
        json.dumps(secret)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"at {URL}", "at pulsar://***@broker:6650"),
        (f"bad host 'ann:{SESAME}@h' in service URL 'pulsar+ssl://ann:p@ss@h,i:1'", "pulsar+ssl://***@h,i:1'"),
        (f"postgresql://h/db?user=ann&password={SESAME}&x=1", "postgresql://h/db?user=ann&password=***&x=1"),
        (f"jdbc:x;authToken={SESAME};y=2", "jdbc:x;authToken=***;y=2"),
        (f"the file {PEM} is not there", "the file -----BEGIN ***"),
        (f"no such file: {JWT}", "no such file: ***"),
        (f"no such file: {JWT[:60]}…", "no such file: ***…"),
        ("nothing to hide: eyJ, 1:2@3, ?x=y", "nothing to hide: eyJ, 1:2@3, ?x=y"),
    ],
)
def test_texts_lose_the_credentials_that_they_carry_by_mistake(text: str, left: str) -> None:
    assert left in shown(text)
    if "service URL" not in text:
        assert_hidden(shown(text))


# ---- the client


SECRETIVE: list[Callable[[], Any]] = [
    lambda: TokenAuthentication(SESAME),
    lambda: BasicAuthentication("ann", SESAME),
    lambda: OAuth2Authentication("http://idp", client_id="me", client_secret=SESAME),
    lambda: PemKeys(private=PEM.encode()),
    lambda: compat.AuthenticationToken(SESAME),
    lambda: compat.AuthenticationToken(SESAME).native(),
    lambda: compat.AuthenticationBasic("ann", SESAME),
    lambda: compat.AuthenticationBasic("ann", SESAME).native(),
    lambda: compat.AuthenticationOauth2(json.dumps({"client_id": "me", "client_secret": SESAME, "issuer_url": "http://i"})),
    lambda: ProducerOptions(encryption_keys=["k"], crypto_keys=PemKeys(public=PEM.encode())),
    lambda: BrokerConfig(token_secret_key=SESAME),
    lambda: load(None, {}, {"tokenSecretKey": SESAME}),
    lambda: ClusterConfig(service_url="pulsar://b:6650", auth_plugin="token", auth_params=f"token:{SESAME}"),
    lambda: ClusterConfig(service_url="pulsar://b:6650", auth_plugin="token", auth_params=f"token:{SESAME}").settings(),
    lambda: load_coordinator(
        None,
        {},
        {"clusters": "e", "cluster.e.serviceUrl": SERVICE, "cluster.e.authPlugin": "token"}
        | {"cluster.e.authParams": f"token:{SESAME}"},
    ),
    lambda: FunctionConfig(class_name="m.C", inputs=("t",), secrets={"db": SESAME}),
    lambda: read_options({"service.url": SERVICE, "token": SESAME}),
    lambda: read_options({"service.url": SERVICE, "oauth2KeyFile": f"data:,{SESAME}"}),
    lambda: connection_of(read_options({"service.url": SERVICE, "token": SESAME})),
    lambda: read_client_option("pulsar.client.authParams", f"token:{SESAME}"),
    lambda: read_options(
        {"service.url": SERVICE, "pulsar.client.authPluginClassName": "token"} | {"pulsar.client.authParams": f"token:{SESAME}"}
    ),
    lambda: authentication_of_options(read_options({"service.url": SERVICE, "token": SESAME})),
    lambda: authentication_of_flags("AuthenticationToken", f"token:{SESAME}"),
]


@pytest.mark.parametrize("make", SECRETIVE)
def test_no_value_shows_the_secret_that_it_was_given(make: Callable[[], Any]) -> None:
    value = make()
    assert_hidden(seen(value))
    if attrs.has(type(value)):
        assert_hidden(repr(attrs.asdict(value)) if not isinstance(value, PemKeys | ProducerOptions | FunctionConfig) else "")


def clients(**options: Any) -> Callable[[], Any]:
    return lambda: AsyncClient(options.pop("url", SERVICE), **options)


def said_by(authentication: Any) -> Callable[[], Any]:
    return lambda: asyncio.run(current_data(authentication))


def surrogates() -> str:
    return SESAME + "\ud800"


@pytest.mark.parametrize(
    "mistake",
    [
        clients(authentication=SESAME),
        clients(authentication=SESAME.encode()),
        clients(authentication={"token": SESAME}),
        lambda: Client(SERVICE, authentication=SESAME),  # type: ignore[arg-type]
        clients(url=URL),
        clients(url=URL.encode()),
        clients(url=f"pulsar://ann:{SESAME}@broker:port"),
        clients(url=f"http://ann:{SESAME}@broker"),
        clients(url=f"ann:{JWT}"),
        clients(sni_proxy_url=f"pulsar+ssl://ann:{SESAME}@h:1"),
        clients(coordinator=URL),
        clients(url="pulsar+ssl://h:1", tls_key_file=PEM, tls_certificate_file="x"),
        clients(url="pulsar+ssl://h:1", authentication=TlsAuthentication(PEM, PEM)),
        clients(url="pulsar+ssl://h:1", tls_certificate_file=PEM.encode()),
        lambda: AutoClusterFailover(primary=SERVICE, secondaries=[URL]),
        lambda: TokenAuthentication(SESAME.encode()),  # type: ignore[arg-type]
        lambda: BasicAuthentication(f"ann:{SESAME}", ""),
        lambda: BasicAuthentication("ann", SESAME.encode()),  # type: ignore[arg-type]
        lambda: ProducerOptions(crypto_keys=PEM),  # type: ignore[arg-type]
        lambda: ProducerOptions(crypto_keys=SESAME.encode()),  # type: ignore[arg-type]
        lambda: OAuth2Authentication.from_key_file(f'{{"client_secret": "{SESAME}"'),
        lambda: OAuth2Authentication.from_key_file(f"data:,{SESAME}"),
        lambda: OAuth2Authentication.from_key_file(f"data:;base64,{SESAME}!"),
        said_by(TokenAuthentication.from_file(SESAME)),
        said_by(TokenAuthentication.from_file("/" + SESAME)),
        said_by(TokenAuthentication(surrogates)),
        said_by(TokenAuthentication(surrogates())),
        said_by(OAuth2Authentication("http://127.0.0.1:1", client_id="me", client_secret=SESAME)),
        lambda: OAuth2Authentication(f"http://ann:{SESAME.replace('/', '')}@idp", client_id="me", client_secret="s"),
        lambda: OAuth2Authentication(token_url=f"http://:{SESAME.replace('/', '')}@idp", client_id="me", client_secret="s"),
        lambda: compat.AuthenticationToken(SESAME.encode()),  # type: ignore[arg-type]
        lambda: compat.AuthenticationBasic(auth_params_string=f'{{"password": "{SESAME}"'),
        lambda: compat.AuthenticationOauth2(f'{{"client_secret": "{SESAME}"}}'),
        lambda: compat.AuthenticationOauth2(f'{{"client_secret": "{SESAME}"'),
        lambda: compat.Client(URL),
        lambda: compat.Client(SERVICE, authentication=SESAME),  # type: ignore[arg-type]
        *(
            (lambda dsn=dsn: AsyncOutbox(AsyncClient(SERVICE), "g", dsn))
            for dsn in (f"postgresql://ann:{SESAME}@db/x", f"host=db user=ann password={SESAME}", f"db?authToken={SESAME}")
        ),
        # the servers
        lambda: authentication_of(load(None, {}, TOKEN_KEYS | {"tokenSecretKey": SESAME[:30]}).config),
        lambda: authentication_of(load(None, {}, TOKEN_KEYS | {"tokenSecretKey": f"data:;base64,{SESAME}!"}).config),
        lambda: authentication_of(load(None, {}, TOKEN_KEYS | {"tokenSecretKey": f"file:///{SESAME}"}).config),
        lambda: authentication_of(load(None, {}, TOKEN_KEYS | {"tokenPublicKey": PEM}).config),
        lambda: load(None, {}, {"brokerServicePort": URL}),
        lambda: load_coordinator(None, {}, EAST | {"cluster.east.authPlugin": SESAME}).clusters["east"].settings(),
        lambda: load_coordinator(None, {}, EAST | {"cluster.east.serviceUrl": URL}),
        lambda: (
            load_coordinator(None, {}, EAST | {"cluster.east.adminUrl": f"ftp://ann:{SESAME}@h"}).clusters["east"].settings()
        ),
        # Spark and functions
        lambda: read_options({"service.url": SERVICE, "pulsar.client.authParam": SESAME}),
        lambda: read_options({"token": SESAME}),
        lambda: options_of({"pulsar.client.authPluginClassName": SESAME, "pulsar.client.authParams": "token"}),
        lambda: options_of({"pulsar.client.authPluginClassName": "AuthenticationBasic", "pulsar.client.authParams": SESAME}),
        lambda: options_of({"pulsar.client.authPluginClassName": "AuthenticationOAuth2", "pulsar.client.authParams": SESAME}),
        lambda: options_of({"pulsar.client.authPluginClassName": "AuthenticationTls", "pulsar.client.authParams": SESAME}),
        lambda: options_of({"token": SESAME, "tokenFile": SESAME}),
        lambda: options_of({"oauth2KeyFile": SESAME}),
        lambda: read_options({"service.url": SERVICE, "startingTimestamp": URL}),
        lambda: authentication_of_flags(SESAME, "token:x"),
        lambda: authentication_of_flags("AuthenticationToken", "{" + SESAME),
        lambda: FunctionConfig.from_mapping({"className": "m.C", "inputs": ["t"], "secrets": SESAME}),
    ],
)
def test_no_error_shows_the_secret_that_it_is_about(mistake: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert_hidden(failure(mistake) + caplog.text)


TOKEN_KEYS = {"authenticationEnabled": "true", "authenticationProviders": "token"}
EAST = {"clusters": "east", "cluster.east.serviceUrl": "pulsar://b:6650"}


def options_of(given: dict[str, str]) -> Any:
    return authentication_of_options(read_options({"service.url": SERVICE} | given))


def test_a_file_of_a_function_that_is_no_yaml_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(f"className: m.C\nsecrets: {{db: {SESAME}\n")
    text = failure(lambda: FunctionConfig.from_file(tmp_path / "f.yaml"))
    assert "in line 3" in text
    assert_hidden(text)


# ---- the tables: an option that is new and sounds like a secret is one


@pytest.mark.parametrize(
    "fields", [FIELDS, COORDINATOR_FIELDS, CLUSTER_FIELDS, TABLE], ids=["broker", "coordinator", "cluster", "spark"]
)
def test_every_key_that_carries_a_secret_has_the_type_of_secrets(fields: dict[str, Any]) -> None:
    said = {"tokenPublicKey", "tokenAuthClaim", "tokenFile"}  # public, a name, a path
    for key, field in fields.items():
        sounds = any(word in key.lower() for word in ("token", "secret", "password", "params", "credential", "oauth2key"))
        assert sounds - (key in said) == ("Secret" in str(field.type)), key


# ---- commands


def ran(*arguments: str) -> str:
    """Both outputs of `pulsar-txn`."""
    process = subprocess.run(
        [sys.executable, "-c", "from pulsar_txn.broker.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if "PULSAR" not in key},
        check=False,
        timeout=60,
    )
    return process.stdout + process.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("config", "show", "--set", f"tokenSecretKey={SESAME}"),
        ("config", "show", "--json", "--set", f"tokenSecretKey={SESAME}"),
        ("config", "show", "--set", f"tokenSecretKey:{SESAME}"),
        ("config", "show", "--set", f"brokerServicePort={URL}"),
        ("config", "show", "--set", f"tokenSecretKye={SESAME}"),
        ("transactions", "--admin-url", f"http://ann:{SESAME}@127.0.0.1:1", "list"),
        ("transactions", "--admin-url", f"ann:{SESAME}@127.0.0.1:1", "list"),
        ("transactions", "--admin-url", "http://127.0.0.1:1", "--auth-token-file", SESAME, "list"),
        ("functions", "list", "--admin-url", f"http://ann:{SESAME}@127.0.0.1:1"),
    ],
)
def test_no_command_shows_a_secret(arguments: tuple[str, ...]) -> None:
    text = ran(*arguments)
    assert text
    assert_hidden(text.replace(f"ann:{SESAME}@127.0.0.1:1: write", "") if arguments[2].startswith("ann:") else text)


def test_config_show_says_where_the_key_is() -> None:
    assert "tokenSecretKey=file:///run/secrets/key " in ran("config", "show", "--set", "tokenSecretKey=file:///run/secrets/key")
    assert "tokenSecretKey=*** " in ran("config", "show", "--set", f"tokenSecretKey={SESAME}")
