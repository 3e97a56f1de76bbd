"""`produce`, `consume` and `ping` at a broker with TLS and tokens: they could not speak to one."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from credentials import TOKENS, Papers, token

from pulsar_txn.broker import BrokerConfig, Standalone
from pulsar_txn.broker.base.runtime import LoopThread
from pulsar_txn.client.commands import consume, ping, produce


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module", params=["token", "tls"])
def secured(request, papers):
    """The URL of a broker, and the options that it asks for."""
    folder = papers.folder
    keys = papers.keys | {"broker_service_port_tls": 0}
    if request.param == "token":
        (folder / "token").write_text(token("ann"))
        keys |= TOKENS
        shown = ["--auth-token-file", str(folder / "token")]
    else:
        keys |= {"authentication_enabled": True, "authentication_providers": "tls"}
        certificate, key = papers.of("ann")
        shown = ["--tls-certificate-file", str(certificate), "--tls-key-file", str(key)]
    thread = LoopThread(lambda: Standalone(config=BrokerConfig(broker_service_port=None, **keys)))
    url = thread.start().service_url_tls
    yield url, [*shown, "--tls-trust-certs-file", str(papers.trust)]
    thread.stop()


def run(command, *arguments):
    return CliRunner().invoke(command, list(arguments))


def test_the_commands_show_a_token_or_a_certificate_and_trust_an_authority(secured):
    url, options = secured
    done = run(produce, "t", "hello", "--transaction", "--url", url, *options)
    assert done.exit_code == 0, done.output
    done = run(consume, "t", "-s", "s", "--from-start", "--wait", "10", "--url", url, *options)
    assert (done.exit_code, done.stdout) == (0, "hello\n"), done.output
    assert run(ping, url, *options).exit_code == 0
    assert "serves at" in run(ping, url).output


def test_without_the_options_they_say_which_are_missing(secured):
    url, options = secured
    done = run(produce, "t", "hello", "--url", url)
    assert done.exit_code == 69
    assert "--tls-trust-certs-file" in done.output
    done = run(produce, "t", "hello", "--url", url, *options[-2:])
    assert done.exit_code != 0


def test_a_file_that_is_none_is_a_mistake_of_usage_and_what_was_given_is_not_shown(papers):
    for command, arguments in ((produce, ["t", "x"]), (consume, ["t", "-s", "s"]), (ping, [])):
        done = run(command, *arguments, "--auth-token-file", "eyJhbGciOi.secret")
        assert done.exit_code == 2
        assert "secret" not in done.output
        certificate, _ = papers.of("bob")
        assert run(command, *arguments, "--tls-certificate-file", str(certificate)).exit_code == 2
