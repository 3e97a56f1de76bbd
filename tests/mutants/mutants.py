"""The mutants of each room, read from `<room>.toml`, and what each makes of the room's files.

A mutant names a symbol, the lines in it that it breaks and the lines that it puts there:

    [[mutant]]
    name = "the_epoch_is_not_compared"
    caught_by = "test_tc_lease.py::test_a_predecessor_is_fenced"
    symbol = "pulsar_txn.tc.table:Table.grant"
    old = "if epoch < self.epoch:"
    new = "if False:"

`old` are whole lines, found once in the symbol at any indentation; without `new` they are left out. The symbol is a
function, a class or a name that is assigned, as `module:qualified.name`, or a whole `module`. One that breaks two
places has `[[mutant.edit]]` tables, each with `symbol`, `old` and `new`.

Run as a program, it checks that every mutant still fits the code, and says why one does not.
"""

from __future__ import annotations

import ast
import functools
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import attrs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class MisfitError(Exception):
    """A mutant that does not fit the code it is to break."""


@attrs.frozen
class Edit:
    """Lines of one symbol, and those that replace them."""

    symbol: str
    old: tuple[str, ...]
    new: tuple[str, ...]

    def path(self, room: str) -> str:
        """The file of the symbol, from the root of the repository."""
        return f"{room}/{self.symbol.partition(':')[0].replace('.', '/')}"

    def applied(self, source: str) -> str:
        """`source` with the new lines. Raises MisfitError when the symbol or the old lines are not there, or there twice."""
        lines = source.splitlines()
        first, last = _span(source, self.symbol)
        found = [at for at in range(first, last - len(self.old) + 1) if self._indent(lines, at) is not None]
        if len(found) != 1:
            raise MisfitError(f"{self.symbol} has {len(found) or 'no'} places that read\n" + "\n".join(self.old))
        (at,) = found
        indent = self._indent(lines, at) or ""
        lines[at : at + len(self.old)] = [indent + each if each else "" for each in self.new]
        return "\n".join(lines) + "\n"

    def _indent(self, lines: list[str], at: int) -> str | None:
        """What stands before each of the old lines when they begin at line `at`."""
        if not lines[at].endswith(self.old[0]):
            return None
        indent = lines[at].removesuffix(self.old[0])
        as_there = [indent + each if each else "" for each in self.old]
        return indent if not indent.strip() and lines[at : at + len(self.old)] == as_there else None


@attrs.frozen
class Mutant:
    """One promise of a room, broken."""

    room: str
    name: str
    caught_by: str
    edits: tuple[Edit, ...]

    def files(self, root: Path) -> dict[str, str]:
        """By path from the root, what the files that it breaks read then. Raises MisfitError with its name and the reason."""
        changed: dict[str, str] = {}
        for edit in self.edits:
            try:
                path = _file_of(root, edit.path(self.room))
                changed[path] = edit.applied(changed.get(path) or (root / path).read_text())
            except MisfitError as misfit:
                raise MisfitError(f"{self.room}.toml: {self.name} no longer fits: {misfit}") from None
        return changed


def _file_of(root: Path, stem: str) -> str:
    for path in (f"{stem}.py", f"{stem}/__init__.py"):
        if (root / path).is_file():
            return path
    raise MisfitError(f"there is no {stem}.py")


@functools.lru_cache(maxsize=64)
def _spans(source: str) -> dict[str, tuple[int, int]]:
    """By qualified name, where the symbols of a module begin and end, in lines from 0."""
    found: dict[str, tuple[int, int]] = {}

    def walk(body: list[ast.stmt], prefix: str, *, assigned: bool = True) -> None:
        for node in body:
            last = node.end_lineno or node.lineno
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                name = prefix + node.name
                # An overload and a setter have the name of what they belong to: together they are one symbol.
                found[name] = (min(first - 1, found.get(name, (first - 1, 0))[0]), last)
                walk(node.body, name + ".", assigned=isinstance(node, ast.ClassDef))
            elif isinstance(node, ast.Assign | ast.AnnAssign) and assigned:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        found[prefix + target.id] = (node.lineno - 1, last)
            elif isinstance(node, ast.If | ast.Try):
                walk(node.body, prefix, assigned=assigned)

    walk(ast.parse(source).body, "")
    return found


def _span(source: str, symbol: str) -> tuple[int, int]:
    module, _, name = symbol.partition(":")
    if not name:
        return 0, len(source.splitlines())
    try:
        return _spans(source)[name]
    except KeyError:
        raise MisfitError(f"{module} has no {name}") from None


def mutants() -> list[Mutant]:
    """All of them, room by room. Raises MisfitError when one is not written as the text above says."""
    return [each for path in sorted(HERE.glob("*.toml")) for each in _mutants_of(path)]


def _mutants_of(path: Path) -> Iterator[Mutant]:
    names = set()
    for said in tomllib.loads(path.read_text())["mutant"]:
        try:
            edits = tuple(_edit_of(each) for each in said.get("edit") or [said])
            mutant = Mutant(path.stem, said["name"], said["caught_by"], edits)
        except KeyError as missing:
            raise MisfitError(f"{path.name}: {said.get('name', said)} has no {missing}") from None
        if mutant.name in names or not mutant.caught_by.partition("::")[0].rpartition("/")[2].startswith("test_"):
            raise MisfitError(f"{path.name}: {mutant.name} stands there twice, or does not name a test in `caught_by`")
        names.add(mutant.name)
        yield mutant


def _edit_of(table: dict[str, str]) -> Edit:
    return Edit(table["symbol"], tuple(table["old"].splitlines()), tuple(table.get("new", "").splitlines()))


def main() -> int:
    """Say which mutants do not fit."""
    misfits = []
    for mutant in mutants():
        try:
            mutant.files(ROOT)
        except MisfitError as misfit:
            misfits.append(str(misfit))
    print("\n".join(misfits) or f"{len(mutants())} mutants fit the code")
    return bool(misfits)


if __name__ == "__main__":
    sys.exit(main())
