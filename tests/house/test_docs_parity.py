"""docs/parity.md speaks of everything that the official client offers, and what it says is here is here."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import attrs
import pulsar as official
import pulsar.asyncio as official_asyncio
import pulsar.schema as official_schema
import pytest
from public_api import MODULES, names_of

from pulsar_txn import client

PAGE = (Path(__file__).parents[2] / "docs" / "parity.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith("| ")]
OFFICIAL = {name for row in ROWS for code in re.findall(r"`([^`]+)`", row[0]) for name in re.findall(r"\w+", code)}
CALLS = [official.Client.__init__, official.Client.create_producer, official.Client.subscribe, official.Client.create_reader]
CLASSES = [
    official.Client,
    official.Producer,
    official.Consumer,
    official.Reader,
    official.TableView,
    official_asyncio.Consumer,
]
EXTRAS_AND_HEADS = {
    "Official",
    "Extra",
    "`json`",
    "`avro`",
    "`pydantic`",
    "`encryption`",
    "`oauth2`",
    "`otel`",
    "`functions`",
    "`uvloop`",
}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_every_parameter_of_the_official_client_is_on_the_page(call) -> None:
    assert set(inspect.signature(call).parameters) - {"self"} - OFFICIAL == set()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_every_method_of_the_official_client_is_on_the_page(cls) -> None:
    names = {name for name in vars(cls) if not name.startswith("_") and callable(getattr(cls, name))}
    assert names - OFFICIAL - {"topic", "producer_name", "subscription_name"} == set()


def test_every_parameter_of_send_is_on_the_page() -> None:
    assert set(inspect.signature(official.Producer.send).parameters) - {"self"} - OFFICIAL == set()


def test_every_method_of_a_message_is_on_the_page() -> None:
    names = {name for name in vars(official.Message) if not name.startswith("_")}
    # Two other spellings of the schema's version and of the topic, and what the package uses itself.
    assert names - OFFICIAL - {"int_schema_version", "topic_name"} == set()


@pytest.mark.parametrize("prefix", ["Authentication", "Consumer", "Crypto", "Encryption"])
def test_every_class_of_these_is_on_the_page(prefix) -> None:
    names = {name for name, value in vars(official).items() if name.startswith(prefix) and inspect.isclass(value)}
    exceptions = {name for name in names if issubclass(getattr(official, name), Exception)}
    assert names - exceptions - OFFICIAL - {"Consumer"} == set()


def test_every_schema_and_field_class_is_on_the_page() -> None:
    names = {name for name, value in vars(official_schema).items() if inspect.isclass(value) and not name.startswith("_")}
    assert names - OFFICIAL - {"Field", "RecordMeta"} == set()


def test_every_row_has_its_mark() -> None:
    rows = [row for row in ROWS if row[0] not in EXTRAS_AND_HEADS]
    assert {len(row) for row in rows} == {3}
    assert {row[1] for row in rows} <= {"yes", "not yet", "no"}


def test_options_that_the_page_names_are_options() -> None:
    """A name with `=` in the right column is a keyword of something."""
    rows = [row for row in ROWS if len(row) == 3 and row[1] == "yes"]
    named = {name for row in rows for name in re.findall(r"`(\w+)=", row[2])}
    calls = [
        client.AsyncClient.__init__,
        client.AsyncProducer.send,
        client.AsyncConsumer.acknowledge,
        client.AsyncConsumer.receive,
    ]
    calls += [client.AsyncConsumer.negative_acknowledge, client.AsyncClient.create_reader]
    known = {name for call in calls for name in inspect.signature(call).parameters}
    from pulsar_txn.client.receive.options import ConsumerOptions
    from pulsar_txn.client.send.options import ProducerOptions

    known |= {field.name for options in (ConsumerOptions, ProducerOptions) for field in attrs.fields(options)}
    assert named
    assert named - known == set()


def test_classes_that_the_page_names_are_public() -> None:
    rows = [row for row in ROWS if len(row) == 3 and row[1] == "yes"]
    code = " ".join(text for row in rows for text in re.findall(r"`([^`]+)`", row[2]))
    named = set(re.findall(r"\b[A-Z][A-Za-z0-9]*(?:_SCHEMA|_ID)?\b(?!=)", code)) - {"True", "Order"}
    assert {"TokenAuthentication", "PemKeys", "AvroSchema"} <= named
    assert named - set(client.__all__) - {name for module in MODULES for name in names_of(module)} == set()
