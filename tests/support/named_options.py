"""Options and the tests that name them: `python tests/support/named_options.py` prints each option that no test names.

A test names an option when it sets it: as a keyword, or as a word of a text (a line of a configuration, the key of a mapping).
Docstrings and comments do not count. Broker and coordinator take an option under the key of Pulsar's files, functions and Spark
under their camelCase keys; in each of these the field's own name counts as well.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from pulsar_txn.broker.base.config import conf_key
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.client import AsyncClient, AsyncCoordinator
from pulsar_txn.client.loop.options import PipelineOptions
from pulsar_txn.client.options import ConsumerOptions, ProducerOptions, ReaderOptionsDict
from pulsar_txn.pipeline.functions.config import _KEYS as FUNCTION_KEYS
from pulsar_txn.pipeline.functions.sections import InputSpec, ProducerConfig, StateConfig, TransactionConfig
from pulsar_txn.pipeline.functions.windows.config import _KEYS as WINDOW_KEYS
from pulsar_txn.pipeline.spark.options import TABLE
from pulsar_txn.tc_service.config import ClusterConfig, CoordinatorConfig

TESTS = Path(__file__).resolve().parents[1]
OWN = {Path(__file__).name, "test_options_have_tests.py"}


def options() -> dict[str, Mapping[str, set[str]]]:
    """Group -> option -> the names under which a test may set it."""
    fields = {
        "broker": BrokerConfig,
        "coordinator": CoordinatorConfig,
        "cluster": ClusterConfig,
        "producer": ProducerOptions,
        "consumer": ConsumerOptions,
        "pipeline": PipelineOptions,
    }
    found: dict[str, Mapping[str, set[str]]] = {
        group: {field.name: {field.name, conf_key(field.name)} for field in attrs.fields(kind)}
        for group, kind in fields.items()
    }
    found["reader"] = {name: {name} for name in ReaderOptionsDict.__annotations__}
    for group, kind in {"client": AsyncClient, "coordinator client": AsyncCoordinator}.items():
        keywords = [each.name for each in inspect.signature(kind).parameters.values() if each.kind is each.KEYWORD_ONLY]
        found[group] = {name: {name} for name in keywords}
    found["spark"] = {name: {name, field.name} for name, field in TABLE.items()}
    found["function"] = {key: {key, read[0]} for key, read in FUNCTION_KEYS.items()}
    found["window"] = {key: {key, read[0]} for key, read in WINDOW_KEYS.items()}
    sections = {"transaction": TransactionConfig, "state": StateConfig, "input": InputSpec, "producerConfig": ProducerConfig}
    for group, section in sections.items():
        keys = re.findall(r'"(\w+)": \("(\w+)",', inspect.getsource(section.parse))
        found[group] = {key: {key, name} for key, name in keys}
    return found


def named(tests: Path = TESTS) -> set[str]:
    """Every word that tests could set an option with."""
    files = (path for path in sorted(tests.rglob("*.py")) if path.name not in OWN)
    return {word for path in files for word in _words(ast.parse(path.read_text(encoding="utf-8")))}


def _words(tree: ast.Module) -> Iterator[str]:
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings, and texts below a field
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg is not None:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield from re.findall(r"[\w.]+", node.value)
            yield from re.findall(r"\w+", node.value)


def unnamed() -> list[str]:
    """The options that no test names, as `group: option`."""
    words = named()
    return [f"{group}: {option}" for group, each in options().items() for option, names in each.items() if not names & words]


if __name__ == "__main__":
    print("\n".join(unnamed()))
