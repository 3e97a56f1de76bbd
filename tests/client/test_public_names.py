"""The package has the names that a program begins with, and each other name one public module; all are loaded on first use."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from public_api import MODULES, names_of

from pulsar_txn import client

SOURCE = Path(client.__file__)

LATER = [
    "aiohttp",
    "attrs",
    "cattrs",
    "crc32c",
    "cramjam",
    "cryptography",
    "email",
    "fastavro",
    "google.protobuf",
    "importlib.metadata",
    "opentelemetry",
    "pulsar_txn.client.loop",
    "pulsar_txn.client.receive",
    "pulsar_txn.client.schema",
    "pulsar_txn.client.send",
    "pulsar_txn.client.sync",
    "pulsar_txn.wire",
    "pydantic",
    "uvloop",
    "yaml",
]
"""What `import pulsar_txn.client` leaves out."""

LATER_THAN_THE_CLASSES = [
    "aiohttp",
    "cattrs",
    "crc32c",
    "cramjam",
    "cryptography",
    "difflib",
    "email",
    "fastavro",
    "importlib.metadata",
    "opentelemetry",
    "pulsar_txn.client.net.oauth2",
    "pulsar_txn.client.otel",
    "pulsar_txn.client.schema.avro",
    "pulsar_txn.client.schema.key_value",
    "pulsar_txn.client.schema.protobuf",
    "pydantic",
    "uvloop",
    "yaml",
]
"""What `from pulsar_txn.client import AsyncClient, Client` leaves out."""

HOMES = client._HOMES
ELSEWHERE = client._ELSEWHERE


def loaded_by(statement: str) -> set[str]:
    """The modules of a fresh interpreter after a statement."""
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split())


def test_the_import_of_the_client_loads_no_room_and_no_library() -> None:
    before, loaded = loaded_by("pass"), loaded_by("import pulsar_txn.client")
    assert "pulsar_txn.client" in loaded
    assert [name for name in LATER if name in loaded - before] == []


def test_the_import_of_the_clients_loads_neither_schemas_crypto_compression_nor_telemetry() -> None:
    before, loaded = loaded_by("pass"), loaded_by("from pulsar_txn.client import AsyncClient, Client, ConsumerType")
    assert "pulsar_txn.client.sync" in loaded
    assert [name for name in LATER_THAN_THE_CLASSES if name in loaded - before] == []


def for_checkers() -> dict[str, str]:
    """Name -> module, as type checkers see the package."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name  # else it is no name of this package for a strict checker
            found[alias.name] = str(node.module)
    return found


def test_type_checkers_see_the_names_that_there_are_from_where_they_are() -> None:
    assert for_checkers() == HOMES
    assert client.__all__ == sorted(HOMES)
    assert set(client.__all__) <= set(dir(client))


@pytest.mark.parametrize("name", client.__all__)
def test_a_name_can_be_imported(name: str) -> None:
    assert getattr(client, name) is getattr(importlib.import_module(HOMES[name]), name)


def test_the_package_has_about_sixty_names() -> None:
    assert len(client.__all__) <= 65


@pytest.mark.parametrize("module", client._NAMES_ELSEWHERE)
def test_a_public_module_has_the_names_that_the_package_points_to_it_for(module: str) -> None:
    elsewhere = {name for name, home in ELSEWHERE.items() if home == f"pulsar_txn.client.{module}"}
    assert names_of(module) - set(client.__all__) == elsewhere


def test_a_public_name_has_one_module() -> None:
    modules = {module: names_of(module) for module in MODULES}
    places = Counter(name for names in modules.values() for name in names)
    assert [name for name, count in places.items() if count > 1] == []
    assert set(client.__all__) & set(ELSEWHERE) == set()


@pytest.mark.parametrize("module", client._NAMES_ELSEWHERE)
def test_a_name_of_the_package_is_the_same_object_in_its_module(module: str) -> None:
    found = importlib.import_module(f"pulsar_txn.client.{module}")
    for name in names_of(module) & set(client.__all__):
        assert getattr(found, name) is getattr(client, name)


def test_a_name_of_the_package_that_has_no_module_is_a_class_with_its_twin_or_instrument() -> None:
    alone = set(client.__all__) - {name for module in MODULES for name in names_of(module)}
    twins = {name.removeprefix("Async") for name in alone if name.startswith("Async")}
    assert alone == twins | {f"Async{name}" for name in twins} | {"instrument"}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_that_is_elsewhere_says_where(name: str) -> None:
    place = f"`pulsar_txn.client.{name}` is in `{ELSEWHERE[name]}`"
    with pytest.raises(ImportError, match=re.escape(place)):
        getattr(client, name)
    with pytest.raises(ImportError, match=re.escape(place)):
        exec(f"from pulsar_txn.client import {name}")
    assert getattr(importlib.import_module(ELSEWHERE[name]), name) is not None


def test_the_import_of_a_public_module_loads_no_library_that_one_of_its_names_needs() -> None:
    before, loaded = loaded_by("pass"), loaded_by(f"from pulsar_txn.client import {', '.join(client._NAMES_ELSEWHERE)}")
    libraries = {"aiohttp", "cattrs", "crc32c", "cramjam", "cryptography", "fastavro", "opentelemetry", "pydantic", "yaml"}
    assert libraries & (loaded - before) == set()


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Clint'"):
        client.Clint  # noqa: B018 - the attribute is the test
    with pytest.raises(ImportError):
        importlib.import_module("pulsar_txn.client.clint")


def test_what_encodes_batches_and_reads_entries_is_below_encoded() -> None:
    encoded = importlib.import_module("pulsar_txn.client.encoded")
    sending, reading = (
        {"EncodedBatch", "Row", "encode_batch", "pack_batch", "row"},
        {"AsyncEntryReader", "OnGap", "OpenedEntry", "RawEntry"},
    )
    functions = {"existing_partitions", "join_chunks", "open_entry", "open_entry_reader", "split_entry_payload"}
    typing = {"EncodedSchema", "encoding_of", "join_pair", "message_class", "pair_info", "parts_of", "split_pair"}
    assert set(encoded.__all__) == sending | reading | functions | typing | {
        "UnreadableEntryError",
        "matching_topics",
        "SchemaInfo",
        "topic_schema",
    }
    assert encoded.encode_batch([encoded.row(b"x", key="k"), b"y"]).num_messages == 2


def test_a_star_import_brings_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from pulsar_txn.client import *", names)
    assert set(client.__all__) <= set(names)
