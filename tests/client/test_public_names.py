"""One import brings everything that a program needs, and loads what it needs when it is first asked for."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pulsar_txn import client
from pulsar_txn.client import errors

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


def is_defined_in(module: ModuleType, name: str, kind: object) -> bool:
    return not name.startswith("_") and getattr(kind, "__module__", None) == module.__name__


def for_checkers() -> dict[str, str]:
    """Name -> module, as type checkers see the package."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        if [alias.name for alias in node.names] == ["*"]:
            module = importlib.import_module(str(node.module))
            found |= {name: str(node.module) for name, kind in vars(module).items() if is_defined_in(module, name, kind)}
            continue
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


def test_every_error_class_is_a_name_of_the_client() -> None:
    defined = {name for name, cls in vars(errors).items() if inspect.isclass(cls) and cls.__module__ == errors.__name__}
    assert defined - set(client.__all__) == set()


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
    assert set(encoded.__all__) & set(client.__all__) == set()
    assert encoded.encode_batch([encoded.row(b"x", key="k"), b"y"]).num_messages == 2


def test_a_star_import_brings_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from pulsar_txn.client import *", names)
    assert set(client.__all__) <= set(names)
