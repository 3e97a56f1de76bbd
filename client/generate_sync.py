"""Write the sync twin anew from the asyncio classes: `python client/generate_sync.py [file]`.

Each public method of the classes below becomes a method of the same name, arguments and docstring that does its work on
the client's loop thread. What cannot be derived (Client's construction,
run_transaction), and what has a faster way (sending, receiving), is in the other files of `sync/`, by hand.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOM = Path(__file__).resolve().parent / "pulsar_txn" / "client"
TARGET = ROOM / "sync" / "_twins.py"
SOURCES = {
    "Transaction": ["txn/transaction.py:AsyncTransaction", "txn/ending.py:Ending"],
    "Producer": ["send/producer.py:AsyncProducer"],
    "Consumer": ["receive/consumer.py:AsyncConsumer", "receive/receiving.py:Receiving", "receive/settling.py:Settling"],
    "Reader": ["receive/reader.py:AsyncReader"],
    "TableView": ["receive/table_view.py:AsyncTableView"],
    "Client": ["client.py:AsyncClient", "_transactional.py:TransactionalClient"],
}
GENERIC = {"Producer", "Consumer", "Reader", "TableView"}
HANDMADE = {"ManagedTransaction", "TransactionalBatchBlock"}
TWINS = {"txn", "producer", "consumer"}  # parameters that are handed on as the asyncio object behind them
RECEIVING = {"receive", "receive_many", "receive_nowait", "acknowledge", "acknowledge_cumulative", "__anext__"}
BY_HAND = {
    "Client": {"run_transaction", "new_pauses", "pipeline", "close"},
    "Producer": {"send", "send_nowait", "send_encoded", "send_encoded_nowait", "wait_for_room"},
    "Consumer": RECEIVING,
    "Reader": {"read_next", "read_many", "__anext__"},
}
BASES = {"Client": "ClientBase", "Producer": "ProducerBase[T]", "Consumer": "ConsumerBase[T]", "Reader": "ReaderBase[T]"}
CALLS = {
    # What runs code of the program's own, or hands it on, is done by a method of the base, or by another twin.
    "Transaction.send": "producer.send(value, txn=self, **options)",
    "Transaction.acknowledge": "consumer.acknowledge(message, txn=self)",
    "Client.create_producer": "self._create_producer(topic, schema, options)",
    "Client.subscribe": "self._subscribe(topic, subscription, schema, options)",
    "Client.create_reader": "self._create_reader(topic, start, schema, options, start_inclusive, reader_name)",
    "Client.create_table_view": "self._create_table_view(topic, schema, options)",
    "TableView.for_each": "for key, value in self.snapshot().items():\n            action(key, value)",
    "TableView.for_each_and_listen": "heard = functools.partial(self._loop.callbacks.hear, action)\n"
    "        self._loop.run(lambda: self._inner.for_each_and_listen(heard))",
    "Client.add_observer": "self._observe(self._inner.add_observer, observer)",
    "Client.remove_observer": "self._observe(self._inner.remove_observer, observer)",
}
INTERNAL = {
    "Transaction": {
        "enlist_send",
        "sends_to",
        "enlist_ack",
        "send_finished",
        "ack_finished",
        "when_ended",
        "finish",
        "open",
        "in_time",
        "abandon",
        "doom",
        "leave",
    },
    "Producer": {"flush_nowait", "send_payload", "takes"},
    "Consumer": {
        "acknowledge_soon",
        "drop_queued",
        "enough",
        "enqueue",
        "fail",
        "give_back_later",
        "hand_out",
        "may_acknowledge_soon",
        "part_failed",
        "runs",
        "take_beside",
        "take_one_beside",
        "take_queued",
    },
}
LEFT_OUT = re.compile(r"\s*(?:If cancelled|Safe to cancel|It may be a coroutine function)[^.]*\.(?=\s|$)")
"""Sentences of docstrings about what threads have not: nothing can be cancelled."""
REWORDED = {
    "Safe to cancel and to repeat": "Safe to repeat",
    "`async with ": "`with ",
    "`await ": "`",
    "`loop.time()`": "`time.monotonic()`",
    "take part; tasks started there, too": "take part, in this thread",
}
ATTRIBUTES = {
    "Consumer": {
        "subscription": ("str", "The subscription's name."),
        "consumer_name": ("str", "The name given, or one that was made up."),
        "schema": ("Schema[T]", "What values are decoded by."),
    }
}  # of the asyncio object, set when it is made
ASYNC = re.compile(
    r"\bAsync(Client|Producer|Consumer|Reader|TableView|Transaction|TransactionalBatchBlock|ManagedTransaction)\b"
)
"""Names of asyncio's classes; the blocking ones have the same without Async."""
RENAMED = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}
HEADER = '''"""The sync twin, written by `client/generate_sync.py` from the asyncio classes. Do not edit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from re import Pattern
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, overload

from pulsar_txn.client import _transactional, client
from pulsar_txn.client.receive import consumer
from pulsar_txn.client.send import producer
from pulsar_txn.client.receive import reader
from pulsar_txn.client.receive import table_view
from pulsar_txn.client.txn import transaction
from pulsar_txn.client._transactional import DEFAULT_TIMEOUT
from pulsar_txn.client.send.batching import EncodedBatch
from pulsar_txn.client.client_stats import ClientStats
from pulsar_txn.client.receive.options import ConsumerType
from pulsar_txn.client.receive.message import EARLIEST_ID, LATEST_ID, Message
from pulsar_txn.client.net.resource_stats import ConsumerStats, ProducerStats
from pulsar_txn.client.net.runtime import Future
from pulsar_txn.client.schema.base import Schema
from pulsar_txn.client.sync._base import ClientBase, GenericTwin, Twin, inner
from pulsar_txn.client.sync._batches import TransactionalBatchBlock
from pulsar_txn.client.sync._managed import ManagedTransaction
from pulsar_txn.client.sync._receiving import ConsumerBase, ReaderBase
from pulsar_txn.client.sync._sending import ProducerBase
from pulsar_txn.client.receive.table_view import Action
from pulsar_txn.client.txn.transaction import TransactionState, TransactionStats
from pulsar_txn.wire.ids import MessageId, TxnId

Acknowledged = Message[Any] | MessageId
T = TypeVar("T")
'''


def generate() -> str:
    """The text of the twin."""
    parts = [HEADER]
    for name, places in SOURCES.items():
        classes = [_class(*place.split(":")) for place in places]
        parts.append(_twin(name, classes))
    names = ", ".join(f'"{name}"' for name in sorted(SOURCES))
    parts.append(f"\n\n__all__ = [{names}]\n")
    return _formatted("".join(parts))


def _class(file: str, name: str) -> ast.ClassDef:
    tree = ast.parse((ROOM / file).read_text(encoding="utf-8"))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _twin(name: str, classes: list[ast.ClassDef]) -> str:
    doc = (
        (ast.get_docstring(classes[0]) or "")
        .split("\n")[0]
        .replace("for asyncio; `async with", "for threads; `with")
        .replace("async ", "")
        .replace("an context", "a context")
    )
    module = {"TableView": "table_view"}.get(name, name.lower())
    twin = f"GenericTwin[{module}.Async{name}[T], T]" if name in GENERIC else f"Twin[{module}.Async{name}]"
    base = BASES.get(name, twin)
    nodes = [node for cls in classes for node in cls.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    methods = "".join(_method(name, node) for node in nodes if _is_public(name, node.name))
    attributes = "".join(
        f'\n    @property\n    def {each}(self) -> {kind}:\n        """{text}"""\n        return self._inner.{each}\n'
        for each, (kind, text) in ATTRIBUTES.get(name, {}).items()
    )
    return f'\n\nclass {name}({base}):\n    """{doc}"""\n{attributes}{methods}'


def _is_public(cls: str, method: str) -> bool:
    if method in BY_HAND.get(cls, ()) or method in INTERNAL.get(cls, ()):
        return False
    return method in RENAMED or not method.startswith("_")


def _method(cls: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = [ast.unparse(each) for each in node.decorator_list]
    name = RENAMED.get(node.name, node.name)
    returns = _annotation(node.returns)
    text = "".join(f"\n    @{each}" for each in decorators)
    text += f"\n    def {name}({_signature(node)}) -> {returns}:"
    if "overload" in decorators:
        return text + " ...\n"
    doc = _reworded(ast.get_docstring(node) or _dunder_doc(node.name))
    text += f'\n        """{_indented(doc)}"""' if doc else ""
    return text + _body(cls, node, decorators, returns) + "\n"


def _dunder_doc(name: str) -> str:
    return {"__aenter__": "Enter the block.", "__aexit__": "Leave the block."}.get(name, "")


def _reworded(doc: str) -> str:
    doc = ASYNC.sub(r"\1", doc)
    for old, new in REWORDED.items():
        doc = doc.replace(old, new)
    return LEFT_OUT.sub("", doc)


def _indented(doc: str) -> str:
    return doc.replace("\n", "\n        ").replace("\n        \n", "\n\n") + ("\n        " if "\n" in doc else "")


def _body(cls: str, node: ast.FunctionDef | ast.AsyncFunctionDef, decorators: list[str], returns: str) -> str:
    if cls == "Client" and node.name in ("__aenter__", "__aexit__"):
        return "\n        self.check_open()\n        return self" if node.name == "__aenter__" else "\n        self.close()"
    if f"{cls}.{node.name}" in CALLS:
        return f"\n        {'' if returns == 'None' else 'return '}{CALLS[f'{cls}.{node.name}']}"
    if node.name == "__aiter__":
        return "\n        return self"
    if "property" in decorators:
        return f"\n        return self._inner.{node.name}"
    if returns == "NoReturn":
        return f"\n        self._inner.{node.name}()\n        raise AssertionError"
    call = f"lambda: self._inner.{node.name}({_arguments(node)})"
    how = "run" if isinstance(node, ast.AsyncFunctionDef) else "submit" if returns.startswith("Future") else "call"
    result = f"self._loop.{how}({call})"
    if returns == "Self":
        return f"\n        {result}\n        return self"
    if returns in SOURCES or returns.split("[")[0] in GENERIC | HANDMADE:
        result = f"{returns}(self._loop, {result})"
    elif returns == "tuple[Transaction, ...]":
        result = f"tuple(Transaction(self._loop, each) for each in {result})"
    return f"\n        {'' if returns == 'None' else 'return '}{result}"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = ast.parse(ast.unparse(node)).body[0].args  # type: ignore[attr-defined]  # a copy of a function is a function
    for each in [*arguments.args, *arguments.kwonlyargs, arguments.kwarg]:
        if each is not None and each.annotation is not None:
            each.annotation = ast.parse(_annotation(each.annotation), mode="eval").body
    return ast.unparse(arguments)


def _annotation(node: ast.expr | None) -> str:
    text = "None" if node is None else ast.unparse(node)
    text = ASYNC.sub(r"\1", text)
    return text.replace("Enlisting", "Transaction").replace("SendTicket", "Future[MessageId]")


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    parts = [f"inner({each.arg})" if each.arg in TWINS else each.arg for each in node.args.args[1:]]
    parts += [f"{each.arg}={f'inner({each.arg})' if each.arg in TWINS else each.arg}" for each in node.args.kwonlyargs]
    if node.args.kwarg is not None:
        parts.append(f"**{node.args.kwarg.arg}")
    return ", ".join(parts)


def _formatted(text: str) -> str:
    for command in (["check", "--fix", "--quiet", "--exit-zero"], ["format", "--quiet"]):
        program = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(program, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own tool
    return text


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.write_text(generate(), encoding="utf-8")
    sys.stdout.write(f"{target}\n")
