"""The command `doctor`: what it asks of the addresses that it is given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from our_broker import OurBroker

from pulsar_txn.broker.cli.group import group


@pytest.fixture(scope="module")
def server() -> Iterator[OurBroker]:
    with OurBroker() as broker:
        yield broker


def doctor(server: OurBroker, cluster: str) -> tuple[int, str]:
    done = CliRunner().invoke(group, ["doctor", "--cluster", cluster, "--admin-url", server.admin_url])
    return done.exit_code, done.output


def test_a_cluster_that_is_well_is_said_to_be_so(server: OurBroker) -> None:
    code, said = doctor(server, server.service_url)
    assert (code, "nothing is wrong" in said) == (0, True), said


def test_nothing_is_said_to_be_well_at_a_port_where_no_broker_answers(server: OurBroker) -> None:
    http_port = server.admin_url.rpartition(":")[2]
    code, said = doctor(server, f"pulsar://127.0.0.1:{http_port}")
    assert code == 69, said
    assert "check --cluster" in said
    assert "nothing is wrong." not in said
