"""Certificates and keys of tokens that are replaced under a server: it uses the new ones, or says why it cannot."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from credentials import TOKENS, Papers, token

from pulsar_txn.broker.admin.server import HttpServer
from pulsar_txn.broker.base.reloading import Reloaded
from pulsar_txn.broker.base.runtime import AsyncioRuntime
from pulsar_txn.broker.base.settings import BrokerConfig, ConfigError
from pulsar_txn.broker.net.authentication import authentication_of
from pulsar_txn.broker.net.tls import reloaded_tls_of
from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient
from pulsar_txn.tc_service.config import ClusterConfig, CoordinatorConfig
from pulsar_txn.tc_service.server.listening import CoordinatorServer
from pulsar_txn.wire.errors import Refusal

OTHER = b"another-secret-another-secret-32"


def papers_in(tmp_path: Path, name: str) -> Papers:
    folder = tmp_path / name
    folder.mkdir()
    return Papers(folder)


def replace(old: Papers, new: Papers) -> None:
    """The files of `old` become those of `new`."""
    for before, after in zip((*old.server, old.trust), (*new.server, new.trust), strict=True):
        before.write_bytes(after.read_bytes())


async def shown_at(url: str) -> bytes:
    """The certificate of a port with TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), ssl=context)
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return certificate


def der(papers: Papers) -> bytes:
    return ssl.PEM_cert_to_DER_cert(papers.server[0].read_text().split("-----END")[0] + "-----END CERTIFICATE-----\n")


async def test_a_new_certificate_is_shown_to_who_comes_next_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used, first, second = (papers_in(tmp_path, name) for name in ("used", "first", "second"))
    replace(used, first)
    keys: dict[str, Any] = {"broker_service_port": 0, "broker_service_port_tls": 0, "tls_cert_refresh_check_duration_sec": 0}
    async with Standalone(config=BrokerConfig(**keys | used.keys, number_of_transaction_coordinators=1)) as broker:
        http = HttpServer(broker.broker, AsyncioRuntime())
        await http.start("127.0.0.1", None, 0)
        urls = [broker.service_url_tls, http.url_tls]
        assert [await shown_at(each) for each in urls] == [der(first)] * 2
        old = AsyncClient(broker.service_url_tls, tls_trust_certs_file=first.trust)
        producer = await old.create_producer("t")
        replace(used, second)
        assert [await shown_at(each) for each in urls] == [der(second)] * 2
        async with AsyncClient(broker.service_url_tls, tls_trust_certs_file=second.trust) as new:
            await (await new.create_producer("t")).send(b"x")
        await producer.send(b"y")  # what was connected before goes on
        await old.close()
        used.server[1].write_bytes(first.server[1].read_bytes())  # the key of another certificate
        with caplog.at_level(logging.ERROR):
            assert [await shown_at(each) for each in urls * 2] == [der(second)] * 4
        errors = [each for each in caplog.records if "cannot be used" in each.getMessage()]
        assert len(errors) == 2, "once for each port, and not at each connection"
        used.server[0].unlink()
        assert await shown_at(urls[0]) == der(second)
        replace(used, first)
        assert [await shown_at(each) for each in urls] == [der(first)] * 2
        await http.close()


async def test_a_coordinator_shows_its_new_certificate(tmp_path: Path) -> None:
    used, second = papers_in(tmp_path, "used"), papers_in(tmp_path, "second")
    before = der(used)
    async with Standalone(config=BrokerConfig(broker_service_port=0, external_transaction_coordinators_enabled=True)) as broker:
        config = CoordinatorConfig(
            **used.keys, broker_service_port=0, broker_service_port_tls=0, tls_cert_refresh_check_duration_sec=0
        )
        async with CoordinatorServer(config, {"east": ClusterConfig(service_url=broker.service_url)}) as coordinator:
            url = coordinator.service.service_url_tls
            assert await shown_at(url) == before
            replace(used, second)
            assert await shown_at(url) == der(second)


def is_let_in(authentication: Any, key: bytes, now: float) -> bool:
    try:
        authentication.authenticate("token", token("ann", key).encode(), None, now)
    except Refusal:
        return False
    return True


def test_a_new_key_of_tokens_counts_after_the_next_look_and_a_broken_one_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, first = tmp_path / "key", base64.b64decode(TOKENS["token_secret_key"])
    file.write_bytes(first)
    keys = TOKENS | {"token_secret_key": f"file://{file}"}
    known = authentication_of(BrokerConfig(**keys))
    seen = [is_let_in(known, each, 1000.0) for each in (first, OTHER)]
    file.write_bytes(OTHER)
    seen += [is_let_in(known, each, 1299.0) for each in (first, OTHER)]
    seen += [is_let_in(known, each, 1300.0) for each in (first, OTHER)]
    assert seen == [True, False, True, False, False, True]
    file.write_bytes(b"short")
    assert is_let_in(known, OTHER, 1600.0)
    assert "tokenSecretKey has 5 bytes" in caplog.text
    assert OTHER.decode() not in caplog.text
    file.unlink()
    assert is_let_in(known, OTHER, 1900.0)
    file.write_bytes(first)
    assert is_let_in(known, first, 2200.0)


def test_a_clock_that_goes_back_is_a_look_and_no_end_of_looking(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("1")
    reloaded = Reloaded(file.read_text, [str(file)], 300)
    assert reloaded.get(10_000) == "1"
    file.write_text("22")
    assert reloaded.get(5_000) == "22"


def test_what_cannot_be_used_at_the_start_is_no_start(tmp_path: Path) -> None:
    keys = {"tls_certificate_file_path": str(tmp_path / "no"), "tls_key_file_path": str(tmp_path / "no")}
    with pytest.raises(ConfigError, match="tlsCertificateFilePath"):
        reloaded_tls_of(BrokerConfig(**keys))
