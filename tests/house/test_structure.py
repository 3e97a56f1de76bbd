"""The rules of structure.py: for each, sources that keep it and sources that break it; and the list that only shrinks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import structure
from sources import Tree

CHECKOUT = Path(__file__).parents[2]
PROGRAM = CHECKOUT / "tests" / "house" / "structure.py"

Room = Callable[..., Path]
"""Writes files of a room, `a="text"`, and gives the checkout."""


@pytest.fixture
def room(tmp_path: Path) -> Room:
    folder = tmp_path / "room" / "pulsar_txn" / "room"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("", encoding="utf-8")

    def write(**files: str) -> Path:
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text, encoding="utf-8")
        return tmp_path

    return write


def found(rule: str, checkout: Path) -> list[str]:
    return [each.entry.removeprefix("pulsar_txn.room.") for each in structure.all_findings(Tree(checkout))[rule]]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, timeout=100, check=False)


def test_the_source_has_nothing_that_is_not_in_the_list_and_the_list_nothing_that_is_mended() -> None:
    done = run()
    assert done.returncode == 0, done.stdout


# One writer

CELL = """
from collections import deque

class Cell:
    def __init__(self) -> None:
        self.value = 0
        self.waiting: deque[int] = deque()
        self.by_name: dict[str, Cell] = {}

    def set(self, value: int) -> None:
        self.value = value
        self.waiting.append(value)

def find() -> Cell: ...
async def look() -> Cell | None: ...
"""


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("def f(cell: Cell) -> None:\n    cell.value = 1", "f: writes Cell.value"),
        ("def f(cell: Cell | None) -> None:\n    cell.value += 1", "f: writes Cell.value"),
        ("def f(cell: 'Cell') -> None:\n    del cell.value", "f: writes Cell.value"),
        ("def f(cell: Cell) -> None:\n    cell.value, other = 1, 2", "f: writes Cell.value"),
        ("def f(cell: Cell) -> None:\n    cell.waiting.append(1)", "f: changes Cell.waiting"),
        ("def f(cell: Cell) -> None:\n    cell.waiting[0] = 1", "f: changes Cell.waiting"),
        ("def f(cell: Cell) -> None:\n    setattr(cell, 'value', 1)", "f: writes Cell.value"),
        ("def f() -> None:\n    cell = Cell()\n    cell.value = 1", "f: writes Cell.value"),
        ("def f() -> None:\n    find().value = 1", "f: writes Cell.value"),
        ("async def f() -> None:\n    cell = await look()\n    cell.value = 1", "f: writes Cell.value"),
        ("def f(cells: list[Cell]) -> None:\n    for cell in cells:\n        cell.value = 1", "f: writes Cell.value"),
        ("def f(cells: dict[str, Cell]) -> None:\n    cells['a'].value = 1", "f: writes Cell.value"),
        ("def f(cell: Cell) -> None:\n    for _, one in cell.by_name.items():\n        one.value = 1", "f: writes Cell.value"),
        ("def f(cell: Cell) -> None:\n    def inner() -> None:\n        cell.value = 1", "f.inner: writes Cell.value"),
        (
            "class A:\n def __init__(self, cell: Cell) -> None:\n  self.a = cell\n def f(self) -> None:\n  self.a.value -= 1",
            "A.f: writes Cell.value",
        ),
        ("class A:\n    cell: Cell\n    def f(self) -> None:\n        self.cell.value -= 1", "A.f: writes Cell.value"),
        (
            "class A:\n    @property\n    def cell(self) -> Cell: ...\n    def f(self) -> None:\n        self.cell.value -= 1",
            "A.f: writes Cell.value",
        ),
    ],
)
def test_a_write_from_outside_is_seen(room: Room, body: str, what: str) -> None:
    checkout = room(cell=CELL, user=f"from .cell import Cell, find, look\n{body}\n")
    assert found("one_writer", checkout) == [f"user: {what}"]


@pytest.mark.parametrize(
    "body",
    [
        "def f(cell: Cell) -> None:\n    cell.set(1)",
        "def f(cell: Cell) -> int:\n    return cell.value",
        "def f(cell) -> None:\n    cell.value = 1",  # of no known type
        "def f(cell: Cell) -> None:\n    cell.other = 1",
        "def f(cell: Cell) -> None:\n    cell = object()\n    cell.value = 1",
        "class Longer(Cell):\n    def f(self) -> None:\n        self.value = 1",
        "def f(cell: Cell) -> None:\n    cell.waiting.index(1)",
    ],
)
def test_calls_reads_and_writes_of_something_else_are_no_writes_from_outside(room: Room, body: str) -> None:
    assert found("one_writer", room(cell=CELL, user=f"from .cell import Cell\n{body}\n")) == []


RECORD = """
class Record:
    def __init__(self) -> None:
        self.count = 0

class Keeper:
    def f(self, record: Record) -> None:
        record.count += 1
"""


def test_a_record_has_one_writer_in_its_file(room: Room) -> None:
    assert found("one_writer", room(records=RECORD)) == []
    another = "class Other:\n    def g(self, record: Record) -> None:\n        record.count = 0\n"
    assert found("one_writer", room(records=RECORD + another)) == [
        "records: Keeper.f: writes Record.count",
        "records: Other.g: writes Record.count",
    ]


def test_a_record_of_another_file_has_no_writer(room: Room) -> None:
    writer = "from .records import Record\nclass Far:\n    def f(self, record: Record) -> None:\n        record.count = 0\n"
    alone = RECORD.partition("class Keeper")[0]
    assert found("one_writer", room(records=alone, far=writer)) == ["far: Far.f: writes Record.count"]


# Callbacks

CALLBACKS = """
from collections.abc import Awaitable, Callable
from typing import Protocol
import attrs

Told = Callable[[int], None]

class Listener(Protocol):
    def opened(self) -> None: ...
    def closed(self) -> None: ...

class Log(Protocol):
    def append(self, data: bytes) -> int: ...
    def close(self) -> None: ...

@attrs.frozen
class Calls:
    opened: Callable[[], None]
    closed: Callable[[], None]
"""


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        ("    def __init__(self, a: Callable[[], None], b: Callable[[], int]) -> None: ...", ["callback a", "callback b"]),
        ("    def __init__(self, a: Told, *, b: Told | None) -> None: ...", ["callback a", "callback b"]),
        (
            "    def __init__(self, a: Callable[[], Awaitable[int]], b: dict[str, Told]) -> None: ...",
            ["callback a", "callback b"],
        ),
        ("    def __init__(self, all: Listener) -> None: ...", ["listener Listener all"]),
        ("    def __init__(self, all: Calls) -> None: ...", ["listener Calls all"]),
    ],
)
def test_a_constructor_with_two_callbacks_is_seen(room: Room, body: str, taken: list[str]) -> None:
    assert found("callbacks", room(a=f"{CALLBACKS}\nclass A:\n{body}\n")) == [f"a: A: takes {each}" for each in taken]


def test_fields_of_a_mutable_attrs_class_are_the_parameters_of_its_constructor(room: Room) -> None:
    fields = "    a: Told\n    b: Told\n    c: Told = attrs.field(init=False)\n"
    assert found("callbacks", room(a=f"{CALLBACKS}\n@attrs.define\nclass A:\n{fields}")) == [
        "a: A: takes callback a",
        "a: A: takes callback b",
    ]
    assert found("callbacks", room(a=f"{CALLBACKS}\n@attrs.frozen\nclass A:\n{fields}")) == []


@pytest.mark.parametrize(
    "parameters",
    ["a: Callable[[], None]", "a: Told, b: int, log: Log", "log: Log, other: Log", "kind: type[Log], a: Told"],
)
def test_one_callback_and_objects_that_are_asked_keep_the_rule(room: Room, parameters: str) -> None:
    text = f"{CALLBACKS}\nclass A:\n    def __init__(self, {parameters}) -> None: ...\n"
    assert found("callbacks", room(a=text)) == []


# Protocols

PROTOCOL = """
from typing import Protocol

class Door(Protocol):
    width: int
    def open(self) -> None: ...

class Wood:
    def __init__(self) -> None:
        self.width = 1
    def open(self) -> None: ...
"""
IRON = "class Iron:\n    width: int = 2\n    def open(self) -> None: ...\n"


def test_a_protocol_with_one_implementation_is_seen(room: Room) -> None:
    assert found("protocols", room(a=PROTOCOL)) == ["a: Door: has no two implementations"]
    narrow = "class Narrow:\n    def open(self) -> None: ...\n"
    assert found("protocols", room(a=PROTOCOL, b=narrow)) == ["a: Door: has no two implementations"]


@pytest.mark.parametrize("another", [IRON, "from .a import Door\nclass Heir(Door):\n    pass\n"])
def test_a_protocol_has_two_implementations_by_form_or_by_name(room: Room, another: str) -> None:
    assert found("protocols", room(a=PROTOCOL, b=another)) == []


def test_a_protocol_of_asyncio_and_one_of_operators_are_none_of_ours(room: Room) -> None:
    text = "import asyncio\nfrom typing import Protocol\nclass A(asyncio.Protocol):\n    def f(self) -> None: ...\n"
    text += "class Less(Protocol):\n    def __lt__(self, other: object) -> bool: ...\n"
    assert found("protocols", room(a=text)) == []


# Underscores


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("from .hidden import _limit", "import: uses pulsar_txn.room.hidden._limit"),
        ("from . import hidden\nx = hidden._limit", "module: uses ._limit"),
        ("from .hidden import A\ndef f(a: A) -> int:\n    return a._count", "f: uses A._count"),
        # the name of a field of this file as well, but this one is of the other
        (
            "from .hidden import A\nclass B:\n    def f(self, a: A) -> int:\n        self._count = 1\n        return a._count",
            "B.f: uses A._count",
        ),
        ("def f(a) -> int:\n    return a._count", "f: uses ._count"),
        ("def f(a) -> int:\n    return a.inside", "f: uses .inside"),
        ("class B:\n    @property\n    def inside(self) -> int:\n        return 1", "B: has .inside"),
        ("class B:\n    inside: int", "B: has .inside"),
        ('def f(a) -> int:\n    return getattr(a, "inside", a)', "module: asks for .inside"),
    ],
)
def test_an_underscored_name_of_another_file_is_seen(room: Room, text: str, what: str) -> None:
    assert found("underscores", room(hidden="class A:\n    _count: int\n", b=text + "\n")) == [f"b: {what}"]


@pytest.mark.parametrize(
    "text",
    [
        "_limit = 1\nclass A:\n    def __init__(self) -> None:\n        self._a = _limit\n        self._b = self._a",
        "class A:\n    _x: int\n    def f(self, other: 'A') -> int:\n        return other._x",
        "from .hidden import A\nclass B(A):\n    def f(self) -> int:\n        super()._g()\n        return self._count",
        "def f(row) -> object:\n    return row._replace(a=1)",
        "from . import _private_module",
        "def f(a) -> object:\n    return a.__class__",
    ],
)
def test_names_of_the_own_file_of_self_and_of_python_are_free(room: Room, text: str) -> None:
    checkout = room(hidden="class A:\n    _count: int\n    def _g(self) -> None: ...\n", _private_module="", b=text + "\n")
    assert found("underscores", checkout) == []


# Files


def test_a_small_file_with_one_importer_is_seen(room: Room) -> None:
    checkout = room(small="x = 1\n" * 109, user="from .small import x\n")
    assert found("small_files", checkout) == ["small: file: is small and has one importer"]
    assert found("small_files", room(small="x = 1\n" * 110)) == []


@pytest.mark.parametrize(
    "others",
    [
        {"other": "from pulsar_txn.room import small\n"},
        {"other": "import pulsar_txn.room.small\n"},
        {"__init__": "from .small import x as x\n"},  # everybody
        {"user": ""},  # a program, or a plug-in
    ],
)
def test_a_small_file_with_two_importers_or_none_keeps_the_rule(room: Room, others: dict[str, str]) -> None:
    assert found("small_files", room(**{"small": "x = 1\n", "user": "from .small import x\n"} | others)) == []


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
def test_a_circle_of_four_is_seen_however_it_is_imported(room: Room, statement: str) -> None:
    checkout = room(a="from . import b", b="import pulsar_txn.room.c", c="", d="from .a import x")
    assert found("import_circles", checkout) == []
    others = ", ".join(f"pulsar_txn.room.{each}" for each in "bcd")
    assert found("import_circles", room(c=statement)) == [f"a: file: imports in a circle with {others}"]


def test_a_circle_of_three_may_be_one_idea_in_several_files(room: Room) -> None:
    assert found("import_circles", room(a="from . import b", b="from . import c", c="from . import a")) == []


# The list

BROKEN = "from .cell import Cell\ndef f(cell: Cell) -> None:\n    cell.value = 1\n"
ENTRY = "pulsar_txn.room.user: f: writes Cell.value"


def test_a_new_finding_fails_with_the_rule_and_the_remedy(room: Room, tmp_path: Path) -> None:
    where = ("--root", str(room(cell=CELL, user=BROKEN)), "--list", str(tmp_path / "list.toml"))
    done = run(*where)
    assert done.returncode == 1
    assert f"pulsar_txn.room.user:3: one_writer: {ENTRY}: a field is written by the class that declares it" in done.stdout
    assert "have a method for the event" in done.stdout


def test_the_list_grows_by_accept_only_and_shrinks_by_update(room: Room, tmp_path: Path) -> None:
    listed = tmp_path / "list.toml"
    where = ("--root", str(room(cell=CELL, user=BROKEN)), "--list", str(listed))
    assert run(*where, "--update").returncode == 1
    assert ENTRY not in listed.read_text(encoding="utf-8")
    assert run(*where, "--update", "--accept").returncode == 0
    assert ENTRY in listed.read_text(encoding="utf-8")
    assert run(*where).returncode == 0
    room(user="")
    gone = run(*where)
    assert gone.returncode == 1
    assert f"{ENTRY}: taken away: remove it from the list by `--update`" in gone.stdout
    assert run(*where, "--update").returncode == 0
    assert ENTRY not in listed.read_text(encoding="utf-8")


def test_no_list_excuses_the_back_door(room: Room, tmp_path: Path) -> None:
    listed = tmp_path / "list.toml"
    where = ("--root", str(room(user="def f(a) -> int:\n    return a.inside\n")), "--list", str(listed))
    assert run(*where, "--update", "--accept").returncode == 1
    entry = "pulsar_txn.room.user: f: uses .inside"
    assert entry not in listed.read_text(encoding="utf-8")
    listed.write_text(f'[underscores]\nfound = ["{entry}"]\n[underscores.on_purpose]\n"{entry}" = "because"\n', "utf-8")
    done = run(*where)
    assert done.returncode == 1
    assert f"pulsar_txn.room.user:2: underscores: {entry}: " in done.stdout


def test_an_entry_that_is_right_keeps_its_reason(room: Room, tmp_path: Path) -> None:
    listed = tmp_path / "list.toml"
    where = ("--root", str(room(cell=CELL, user=BROKEN)), "--list", str(listed))
    run(*where, "--update", "--accept")
    text = listed.read_text(encoding="utf-8").replace(f'  "{ENTRY}",\n', "")
    listed.write_text(text.replace("[callbacks]", f'[one_writer.on_purpose]\n"{ENTRY}" = "because"\n\n[callbacks]'), "utf-8")
    assert run(*where, "--update", "--accept").returncode == 0
    assert structure.read_list(listed)["one_writer"] == structure.Listed(frozenset(), {ENTRY: "because"})
    room(user="")
    assert run(*where).returncode == 1
    assert run(*where, "--update").returncode == 0
    assert structure.read_list(listed)["one_writer"] == structure.Listed()


def test_the_table_counts_by_rule_and_room(room: Room, tmp_path: Path) -> None:
    done = run("--root", str(room(cell=CELL, user=BROKEN)), "--list", str(tmp_path / "none.toml"), "--show")
    assert done.returncode == 0
    assert done.stdout.split("\n")[0].split() == ["rule", "room", "all", "on", "purpose"]
    assert done.stdout.split("\n")[1].split() == ["one_writer", "1", "1", "0"]
    assert "one_writer: pulsar_txn.room.cell.Cell 1" in done.stdout


def test_the_order_of_the_questions_does_not_matter(tmp_path: Path) -> None:
    shutil.copytree(CHECKOUT / "tc", tmp_path / "tc", ignore=shutil.ignore_patterns("__pycache__"))
    tree, backwards = Tree(tmp_path), Tree(tmp_path)
    backwards.modules = dict(reversed(backwards.modules.items()))
    assert structure.all_findings(tree) == structure.all_findings(backwards)
