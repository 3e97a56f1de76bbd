"""Checks of a function's file before it runs: nothing here imports or runs it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from pulsar_txn.client.errors import InvalidConfiguration

_DYNAMIC: Final = frozenset({"__getattr__", "__dict__", "exec", "globals", "locals", "modules", "setattr", "vars"})
"""Names of what can give a module names that its text does not show."""


def check_upload(class_name: str | None, py: str) -> None:
    """InvalidConfiguration when `className` cannot be in the file. OSError when the file cannot be read.

    What the text of a .py file does not show is accepted, as are other kinds of files: the worker says then what is missing.
    """
    if class_name is None:
        raise InvalidConfiguration("className is missing", hint="name the class, with its module: exclaim.Exclaim")
    file = Path(py)
    if file.suffix != ".py":
        return
    try:
        tree = ast.parse(file.read_bytes(), file.name)
    except (SyntaxError, ValueError) as error:
        raise InvalidConfiguration(f"py: {file.name} is no Python: {error}") from error
    module, _, last = class_name.rpartition(".")
    if not module:
        module, last = class_name, "process"  # the native form: a module with a function of this name
    if module != file.stem:
        return  # it may be installed where the worker runs
    names = _names(tree)
    if last not in names and "*" not in names and not _DYNAMIC & names:
        raise InvalidConfiguration(f"className: {file.name} has no {last}", hint="name what the file has: <module>.<class>")


def _names(tree: ast.Module) -> set[str]:
    """All names that the text has, wherever they are: more than the module has."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.partition(".")[0])
    return found
