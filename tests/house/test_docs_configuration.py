"""docs/configuration.md names every key that the broker obeys, with the default that it has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from pulsar_txn.broker.base import settings
from pulsar_txn.broker.base.config import conf_key
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.tc_service.config import ClusterConfig, CoordinatorConfig
from pulsar_txn.wire.secret_text import Secret

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
ROW = re.compile(r"^\| `(?P<key>\w+)` \| (?:`(?P<default>[^`]*)`)? ?\|", re.MULTILINE)


def as_written(value: object) -> str:
    if isinstance(value, Secret):
        return value.shown
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


BESIDE = "## Coordinator beside clusters"
A_CLUSTER = "| Key of a cluster |"


def parts_of_the_page() -> dict[type[Any], str]:
    """The part of the page that has the keys of each class."""
    brokers, _, beside = PAGE.read_text(encoding="utf-8").partition(BESIDE)
    service, _, cluster = beside.partition(A_CLUSTER)
    return {BrokerConfig: brokers, CoordinatorConfig: service, ClusterConfig: cluster}


@pytest.mark.parametrize("kind", [BrokerConfig, CoordinatorConfig, ClusterConfig])
def test_every_key_stands_on_the_page_once_with_its_default(kind: type[Any]) -> None:
    defaults = kind()
    obeyed = {conf_key(field.name): as_written(getattr(defaults, field.name)) for field in attrs.fields(kind)}
    rows = [(match["key"], match["default"] or "") for match in ROW.finditer(parts_of_the_page()[kind])]
    assert dict(rows) == obeyed
    assert len(rows) == len(obeyed)


def test_every_key_is_read_by_the_broker() -> None:
    """A key without code promises what nobody keeps."""
    room = Path(settings.__file__).parents[1]
    code = " ".join(file.read_text(encoding="utf-8") for file in room.rglob("*.py") if file != Path(settings.__file__))
    read = set(re.findall(r"\.(\w+)", code))
    assert [field.name for field in attrs.fields(BrokerConfig) if field.name not in read] == []
