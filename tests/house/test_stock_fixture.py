"""The stock servers of the fixture are what the tests believe they are."""

import json
import socket
import urllib.request
from typing import TYPE_CHECKING

import pytest
from stock_pulsar import is_ready, with_keys

if TYPE_CHECKING:
    from targets import Target


def test_a_stock_server_is_ready_for_transactions_when_the_fixture_hands_it_out(stock_pulsar: "Target") -> None:
    assert is_ready(stock_pulsar.service_url, stock_pulsar.admin_url)


def test_a_stock_server_runs_the_version_it_is_named_after_with_transactions_on(stock_pulsar: "Target") -> None:
    if not stock_pulsar.version:
        pytest.skip("a cluster from outside may be of any version")
    with urllib.request.urlopen(stock_pulsar.admin_url + "/admin/v2/brokers/version") as answer:
        assert answer.read().decode() == stock_pulsar.version
    with urllib.request.urlopen(stock_pulsar.admin_url + "/admin/v2/brokers/configuration/runtime") as answer:
        conf = json.load(answer)
    assert conf["transactionCoordinatorEnabled"] == "true"
    assert conf["acknowledgmentAtBatchIndexLevelEnabled"] == "true"
    assert conf["bindAddress"] == "127.0.0.1"


def test_a_closed_port_is_not_a_ready_server() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        assert not is_ready(f"pulsar://127.0.0.1:{reserved.getsockname()[1]}", "http://127.0.0.1:1")


def test_keys_are_set_in_place_once_and_the_last_line_keeps_its_own_value() -> None:
    stock = "# a comment\nport=6650\nother=1\nport=6651\nlast=Class"
    assert with_keys(stock, {"port": "1", "new": "2"}) == "# a comment\nport=1\nother=1\nlast=Class\nnew=2\n"
