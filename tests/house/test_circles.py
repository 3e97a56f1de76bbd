"""No circle of imports joins more than three files, imports for type checkers and inside functions included.

Files that import each other can only be read, tested and moved together. Two or three may be one idea in several files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
LARGEST = 3


def modules_of(checkout: Path) -> dict[str, Path]:
    """Every module of the source by its name."""
    found = {}
    for namespace in sorted({*checkout.glob("*/pulsar_txn"), *checkout.glob("*/pyspark_pulsar_txn")}):
        for file in namespace.rglob("*.py"):
            parts = file.relative_to(namespace.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports_of(name: str, file: Path, modules: Mapping[str, Path]) -> set[str]:
    """The modules of the source that a module imports, anywhere in its text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inside = {f"{base}.{alias.name}" for alias in node.names}
            found |= inside & modules.keys() or {base}
    return found & modules.keys() - {name}


def circles_of(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Groups of modules that reach each other (Tarjan's strongly connected components, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    for root in graph:
        work = [] if root in index else [(root, iter(sorted(graph[root])))]
        while work:
            here, ahead = work[-1]
            if here not in index:
                index[here] = low[here] = len(index)
                path.append(here)
            for there in ahead:
                if there not in index:
                    work.append((there, iter(sorted(graph[there]))))
                    break
                if there in path:
                    low[here] = min(low[here], low[there])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[here])
                if low[here] == index[here]:
                    circle = path[path.index(here) :]
                    del path[path.index(here) :]
                    if len(circle) > 1:
                        yield sorted(circle)


def large_circles(checkout: Path) -> dict[str, list[list[str]]]:
    modules = modules_of(checkout)
    graph = {name: imports_of(name, file, modules) for name, file in modules.items()}
    found: dict[str, list[list[str]]] = {}
    for circle in circles_of(graph):
        if len(circle) > LARGEST:
            found.setdefault(modules[circle[0]].relative_to(checkout).parts[0], []).append(circle)
    return {room: sorted(circles, key=len, reverse=True) for room, circles in found.items()}


def test_no_circle_of_imports_is_larger_than_three_files() -> None:
    assert large_circles(CHECKOUT) == {}, "let one of these files not need the others"


@pytest.mark.parametrize(
    "statement",
    [
        "import pulsar_txn.room.d",
        "from pulsar_txn.room import d",
        "from pulsar_txn.room.d import name",
        "from . import d",
        "from .d import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pulsar_txn.room.d import name",
        "def later():\n    from pulsar_txn.room.d import name",
    ],
)
def test_a_circle_of_four_is_seen_however_it_is_imported(tmp_path: Path, statement: str) -> None:
    room = tmp_path / "room" / "pulsar_txn" / "room"
    room.mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "a": "from . import b",
        "b": "import pulsar_txn.room.c",
        "d": "from .a import x",
    }.items():
        (room / f"{name}.py").write_text(text, encoding="utf-8")
    (room / "c.py").write_text("", encoding="utf-8")
    assert large_circles(tmp_path) == {}
    (room / "c.py").write_text(statement, encoding="utf-8")
    assert large_circles(tmp_path) == {"room": [[f"pulsar_txn.room.{each}" for each in "abcd"]]}
