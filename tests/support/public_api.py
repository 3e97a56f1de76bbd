"""The public API as text, so that no name, argument or default leaves or comes unnoticed: `python tests/support/public_api.py`.

It writes `tests/client/public_api.txt`, which `tests/client/test_public_api.py` compares with the code.
"""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STORED = Path(__file__).resolve().parents[1] / "client" / "public_api.txt"
PACKAGE = "pulsar_txn.client"
MODULES = sorted({*importlib.import_module(PACKAGE)._NAMES_ELSEWHERE, "encoded", "outbox"})


def text() -> str:
    """Each public name of the client below the module that a program imports it from, with what it takes and has."""
    package = importlib.import_module(PACKAGE)
    lines = list(_section(PACKAGE, set(package.__all__)))
    for name in MODULES:
        lines += _section(f"{PACKAGE}.{name}", names_of(name) - set(package.__all__))
    return "\n".join(lines) + "\n"


def names_of(name: str) -> set[str]:
    """The names that a program may import from a public module of the client."""
    module = importlib.import_module(f"{PACKAGE}.{name}")
    if name == "errors":
        return {name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__}
    return set(module.__all__)


def _section(name: str, names: set[str]) -> Iterator[str]:
    module = importlib.import_module(name)
    yield f"# {name}"
    for each in sorted(names):
        yield from _entry(each, getattr(module, each))


def _entry(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{_signature(value)}" if inspect.isfunction(value) else name
    elif issubclass(value, enum.Enum):
        yield f"enum {name}: {', '.join(each.name for each in value)}"
    else:
        bases = ", ".join(each.__name__ for each in value.__bases__ if each is not object)
        yield f"class {name}({bases}){_signature(value)}"
        yield from (f"    {line}" for line in sorted(_members(value)))


def _members(value: type) -> Iterator[str]:
    for name in dir(value):
        owner = next((each for each in value.__mro__ if name in vars(each)), None)
        if name.startswith("_") or owner is None or not owner.__module__.startswith("pulsar_txn"):
            continue
        member = inspect.getattr_static(value, name)
        if isinstance(member, property):
            yield f"{name} (property)"
        elif isinstance(member, classmethod | staticmethod):
            yield f"{name}{_signature(getattr(value, name))} ({type(member).__name__})"
        elif callable(member):
            yield f"{name}{_signature(member)}"
        else:
            yield name


def _signature(value: Any) -> str:
    """Names, kinds and defaults; types are for type checkers, which have a test of their own."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    bare = [
        each.replace(annotation=inspect.Parameter.empty, default=_default(each.default))
        for each in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


class _Written(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _default(value: object) -> object:
    """A default, without the address of an object."""
    if isinstance(value, enum.Enum):
        return _Written(f"{type(value).__name__}.{value.name}")
    return _Written("…") if " at 0x" in repr(value) else value


if __name__ == "__main__":
    STORED.write_text(text(), encoding="utf-8")
