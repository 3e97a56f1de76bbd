"""What errors say is right for users of both clients: nobody of the blocking client is told to await."""

import ast
import re
from pathlib import Path

import pytest

import pulsar_txn.client
from pulsar_txn.client import errors, sync

SOURCE = Path(pulsar_txn.client.__file__).parent
OF_ASYNCIO = re.compile(r"\b(await|async|coroutine|asyncio)\b")
ALLOWED = ("use the asyncio client", "sync or asyncio", "asyncio.run()")
"""Parts of texts that may be there; the last one is of WrongEventLoop, which the blocking client never raises."""

ONLY_ASYNCIO = {"awaited"}
"""Functions that only the asyncio client calls: their errors may say what it is called there."""


def texts_of_errors(tree):
    """The texts that are given to an error or a hint: (line, text)."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in ONLY_ASYNCIO:
            node.body = []
    for node in ast.walk(tree):
        given = []
        if isinstance(node, ast.Raise) and node.exc is not None:
            given = [node.exc]
        elif isinstance(node, ast.Call) and re.search(
            r"(Error|Unknown|Full|Closed|Configuration|refused)$", ast.unparse(node.func)
        ):
            given = [*node.args, *(each.value for each in node.keywords)]
        elif isinstance(node, ast.keyword) and node.arg == "hint":
            given = [node.value]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and "hint" in ast.unparse(node).split("=")[0].lower():
            given = [node.value] if node.value is not None else []
        for each in given:
            for part in ast.walk(each):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def test_no_error_tells_a_user_to_await():
    found, seen = [], 0
    for file in SOURCE.rglob("*.py"):
        for line, text in texts_of_errors(ast.parse(file.read_text(encoding="utf-8"))):
            seen += 1
            if OF_ASYNCIO.search(text) and not any(each in text for each in ALLOWED):
                found.append(f"{file.relative_to(SOURCE)}:{line}: {text}")
    assert seen > 200
    assert not sorted(set(found))


def test_a_full_producer_and_a_foreign_txn_say_what_to_call(url):
    with sync.Client(url) as client:
        producer = client.create_producer("t", max_pending_messages=1, batching_max_delay=60)
        producer.send_nowait(b"x")
        with pytest.raises(errors.ProducerQueueFull, match=r"call producer\.wait_for_room") as full:
            producer.send_nowait(b"y")
        with pytest.raises(errors.InvalidConfiguration, match="enter the block") as foreign:
            producer.send(b"y", txn=client.transaction())
        with pytest.raises(errors.TransactionStateError, match=r"call txn\.abort") as unmanaged:
            client.begin_transaction().rollback()
        for said in (full, foreign, unmanaged):
            assert not OF_ASYNCIO.search(str(said.value))
