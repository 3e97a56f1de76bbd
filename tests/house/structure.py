"""Check how the source is built: `python tests/house/structure.py`.

Six rules, read from the text alone. `structure.toml` lists what breaks them today. A finding that is not listed fails, and so
does an entry that nothing breaks any more: the list only shrinks.

--show [RULE]   counts by rule and room and the five worst of each; or each finding of one rule with its line
--update        takes entries away that are mended; with --accept it adds the new ones as well

An entry under `on_purpose` is right as it is, and says why. One writer, callbacks and underscores know a type only where an
annotation says it: they miss some, and what they report is so.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import attrs
from sources import (
    BUILDERS,
    CONTAINERS,
    FUNCTIONS,
    ROOT,
    SELF_LIKE,
    Instance,
    Known,
    Module,
    Other,
    Scope,
    SourceClass,
    Tree,
    circles_of,
    dotted,
    targets_of,
)

STORED: Final = Path(__file__).with_name("structure.toml")
LARGEST_CIRCLE: Final = 3
SMALL_FILE: Final = 110
MUTATORS: Final = frozenset(
    {"append", "appendleft", "extend", "extendleft", "insert", "remove", "pop", "popleft", "popitem", "clear", "add", "discard"}
    | {"update", "setdefault", "rotate", "move_to_end"}
    | {"difference_update", "intersection_update", "symmetric_difference_update"}
)
OF_TUPLES: Final = frozenset({"_replace", "_asdict", "_fields", "_make"})
"""Public names of named tuples."""
BACK_DOOR: Final = "inside"
"""Name that no attribute has, because it was the way from public classes to their parts. No list excuses it."""


@attrs.frozen(order=True)
class Finding:
    """A place that breaks a rule. `detail` and `line` are for the reader; the other fields are its entry in the list."""

    module: str
    symbol: str
    what: str
    detail: str = attrs.field(default="", eq=False)
    line: int = attrs.field(default=0, eq=False)
    is_refused: bool = attrs.field(default=False, eq=False, kw_only=True)
    """True for what no list excuses."""

    @property
    def entry(self) -> str:
        """Its line in `structure.toml`."""
        return f"{self.module}: {self.symbol}: {self.what}"


@attrs.frozen
class Rule:
    """A rule: the sentence for who breaks it, and the function that finds the places."""

    name: str
    sentence: str
    find: Callable[[Tree], Iterable[Finding]]


# One writer


def writers(tree: Tree) -> Iterator[Finding]:
    """Writes of fields of a class outside of it: assignments, deletions, and changes of a container in the field.

    A record that never writes its own field may have one writer, a class or the functions of its own file.
    """
    found: defaultdict[tuple[SourceClass, str], list[tuple[object, Finding]]] = defaultdict(list)
    for module in tree.modules.values():
        for name, writer, function, scope in module.all_functions:
            for node in module.within(function):
                for field, how in written_by(node, scope):
                    of = owner_of(field, scope)
                    if of is None or (how == "changes" and not is_container(of.type_of(field.attr))):
                        continue
                    inside = writer is not None and of in writer.line
                    if not (inside and function.name in BUILDERS):
                        made = Finding(module.name, name, f"{how} {of.qualname}.{field.attr}", of.module.name, field.lineno)
                        found[of, field.attr].append((of if inside else writer or module, made))
    for (of, _), written in found.items():
        units = {unit for unit, _ in written}
        if len(units) == 1 and all(each.module == of.module.name for _, each in written):
            continue
        yield from (each for unit, each in written if unit is not of)


def owner_of(field: ast.Attribute, scope: Scope) -> SourceClass | None:
    """The class that declares the field, where the text leaves only one."""
    instances = [each.of for each in scope.infer(field.value) if isinstance(each, Instance)]
    owners = {owner for each in instances if (owner := each.owner_of(field.attr)) is not None}
    return owners.pop() if len(owners) == 1 else None


def written_by(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.Attribute, str]]:
    """Attributes that a statement or call writes, and whether it `writes` them or `changes` what they hold."""
    for target in targets_of(node):
        if isinstance(target, ast.Attribute):
            yield target, "writes"
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute):
            yield target.value, "changes"
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Attribute() as field, attr=method)) if method in MUTATORS:
            yield field, "changes"
        case ast.Call(func=function, args=[changed, ast.Constant(value=str(name)), *_]) if dotted(function).rpartition(".")[
            2
        ] in ("setattr", "__setattr__", "delattr"):
            yield ast.Attribute(changed, name, ast.Store(), lineno=node.lineno, col_offset=0), "writes"


def is_container(known: Known) -> bool:
    return any(isinstance(each, Other) and each.name in CONTAINERS for each in known)


# Callbacks


def callbacks(tree: Tree) -> Iterator[Finding]:
    """Each callback of a constructor that takes more than one. A listener counts as many as it has methods."""
    for each in tree.classes:
        if each.is_protocol or each.is_frozen:
            continue
        found = [(name, line, *carried(each.module.known(annotation, each))) for name, line, annotation in taken(each)]
        if sum(count for _, _, count, _ in found) > 1:
            for name, line, count, how in found:
                if count:
                    yield Finding(each.module.name, each.qualname, f"takes {how} {name}", line=line)


def taken(of: SourceClass) -> Iterator[tuple[str, int, ast.expr | None]]:
    """Parameters of a constructor, with their lines and annotations."""
    if "__init__" in of.methods:
        arguments = of.methods["__init__"].args
        for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs][1:]:
            yield each.arg, each.lineno, each.annotation
    elif of.is_record:
        for name, node in of.body_fields.items():
            keywords = node.value.keywords if isinstance(node.value, ast.Call) else []
            if not any(key.arg == "init" and isinstance(key.value, ast.Constant) and not key.value.value for key in keywords):
                yield name, node.lineno, node.annotation


def carried(known: Known) -> tuple[int, str]:
    """The number of callbacks in a value of this type, and the word for it."""
    for each in known:
        if isinstance(each, Other):
            if each.name == "Callable" or any(carried(inner)[0] for inner in each.arguments):
                return 1, "callback"
        elif isinstance(each, Instance):
            count = told(each.of)
            if count:
                return count, f"{'callback' if count == 1 else 'listener'} {each.of.qualname}"
    return 0, ""


def told(of: SourceClass) -> int:
    """The methods of a Protocol that is only told things, or the callables of a class that has nothing else; otherwise 0."""
    above = [each for each in of.line if each.is_protocol or not of.is_protocol]
    methods = {name: node for each in above for name, node in each.methods.items()}
    fields = {name for each in above for name in each.fields}
    if of.is_protocol:
        only_told = all(
            isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Constant) and node.returns.value is None
            for node in methods.values()
        )
        if set(methods) == {"__call__"} or (methods and not fields and only_told):
            return len(methods)
        return 0
    only_callables = fields and all(
        any(isinstance(each, Other) and each.name == "Callable" for each in of.type_of(name)) for name in fields
    )
    return len(fields) if only_callables and not set(methods) - {"__init__", "__repr__"} else 0


# Protocols


def protocols(tree: Tree) -> Iterator[Finding]:
    """Protocols with fewer than two implementations: classes that inherit from it, or have all that it asks for."""
    offered = {each: attributes_of(each) for each in tree.classes if not each.is_protocol}
    for protocol in (each for each in tree.classes if each.is_protocol):
        above = [each for each in protocol.line if each.is_protocol]
        asked = {name for each in above for name in (*each.methods, *each.fields)}
        if not asked or all(name.startswith("__") for name in asked):
            continue  # a callable or a bound of a type variable: anything may be one
        found = [each for each in offered if protocol in each.line or asked <= offered[each]]
        own = [each for each in found if asked & each.methods.keys() or not any(above in found for above in each.line[1:])]
        if len(own) < 2:
            names = ", ".join(f"{each.module.name}.{each.qualname}" for each in own) or "nobody"
            yield Finding(protocol.module.name, protocol.qualname, "has no two implementations", names, protocol.node.lineno)


def attributes_of(of: SourceClass) -> set[str]:
    """Names of the attributes of its instances."""
    found: set[str] = set()
    for each in of.line:
        assigned = {t.id for node in each.node.body for t in targets_of(node) if isinstance(t, ast.Name)}
        found |= {*each.methods, *each.fields, *assigned}
    return found


# Underscores


def underscores(tree: Tree) -> Iterator[Finding]:
    """Underscored names of another file, and the back door."""
    for module in tree.modules.values():
        yield from back_doors(module)
        own = names_defined_in(module)
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom):
                base = module.imported_from(node)
                for alias in node.names:
                    if is_private(alias.name) and f"{base}.{alias.name}" not in tree.modules:
                        yield Finding(module.name, "import", f"uses {base}.{alias.name}", line=node.lineno)
        seen = set()
        for name, _, function, scope in module.all_functions:
            for each in module.within(function):
                if isinstance(each, ast.Attribute):
                    seen.add(each)
                    yield from reached(module, name, each, scope, own)
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and node not in seen:
                yield from reached(module, "module", node, Scope(module, None, None), own)


def back_doors(module: Module) -> Iterator[Finding]:
    """Classes that have the back door, and calls that take it by its name in quotes."""
    for each in module.classes.values():
        node = each.methods.get(BACK_DOOR) or each.body_fields.get(BACK_DOOR)
        if node is not None:
            yield Finding(module.name, each.qualname, f"has .{BACK_DOOR}", line=node.lineno, is_refused=True)
    for call in module.nodes:
        match call:
            case ast.Call(func=ast.Name("getattr"), args=[_, ast.Constant(value=name), *_]) if name == BACK_DOOR:
                yield Finding(module.name, "module", f"asks for .{BACK_DOOR}", line=call.lineno, is_refused=True)


def reached(module: Module, name: str, node: ast.Attribute, scope: Scope, own: set[str]) -> Iterator[Finding]:
    """The finding if an attribute is private to another file."""
    base = node.value
    if node.attr == BACK_DOOR and dotted(base) not in module.imports:
        yield Finding(module.name, name, f"uses .{BACK_DOOR}", line=node.lineno, is_refused=True)
    if not is_private(node.attr) or node.attr in OF_TUPLES or (isinstance(base, ast.Name) and base.id in SELF_LIKE):
        return
    if isinstance(base, ast.Call) and dotted(base.func) == "super":
        return
    owners = [each.of for each in scope.infer(base) if isinstance(each, Instance)]
    declared = [each for of in owners for each in of.line if node.attr in each.fields or node.attr in each.methods]
    if declared:
        if all(each.module is not module for each in declared):
            yield Finding(module.name, name, f"uses {declared[0].qualname}.{node.attr}", declared[0].module.name, node.lineno)
    elif node.attr not in own:
        yield Finding(module.name, name, f"uses .{node.attr}", line=node.lineno)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_")


def names_defined_in(module: Module) -> set[str]:
    """Names that the file defines, as attributes or otherwise."""
    found = {name for each in module.classes.values() for name in (*each.fields, *each.methods)}
    for node in module.nodes:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            found.add(node.name)
        for target in targets_of(node):
            if isinstance(target, ast.Name):
                found.add(target.id)
            elif isinstance(target, ast.Attribute) and dotted(target.value) in SELF_LIKE:
                found.add(target.attr)
    return found


# Files


def small_files(tree: Tree) -> Iterator[Finding]:
    """Files under 110 lines with one importer. What the door of a room hands on has users elsewhere as well."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for module in tree.modules.values():
        for name in imported_files(tree, module):
            importers[name].add("everybody" if module.is_package and is_door(module.name) else module.name)
    for name, module in tree.modules.items():
        users = {each for each in importers[name] if each not in tree.modules or not tree.modules[each].is_package}
        if module.is_package or module.file.name == "__main__.py" or module.lines >= SMALL_FILE or "everybody" in users:
            continue
        if len(users) == 1:
            yield Finding(name, "file", "is small and has one importer", f"{module.lines} lines, for {min(users)}", 1)


def is_door(name: str) -> bool:
    """True for a room itself, `pulsar_txn.client`, and not for a folder in it."""
    return name.count(".") < 2


def imported_files(tree: Tree, module: Module) -> set[str]:
    """The files that define what a module imports, also where a package hands it on."""
    found: set[str] = set()
    for node in module.nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{module.imported_from(node)}.{alias.name}"
                for _ in range(10):
                    where, rest = tree.split(full)
                    if where is None:
                        break
                    if not rest or rest not in where.imports or not where.is_package:
                        found.add(where.name)
                        break
                    full = where.imports[rest]
    return found & tree.modules.keys() - {module.name}


def import_circles(tree: Tree) -> Iterator[Finding]:
    """Circles of more than three files that import each other, imports for type checkers and in functions included."""
    graph = {name: tree.imports_of(module) for name, module in tree.modules.items()}
    for circle in circles_of(graph):
        if len(circle) > LARGEST_CIRCLE:
            yield Finding(circle[0], "file", "imports in a circle with " + ", ".join(circle[1:]), line=1)


RULES: Final = (
    Rule(
        "one_writer",
        "a field is written by the class that declares it: let that class have a method for the event, and call it",
        writers,
    ),
    Rule(
        "callbacks",
        "a constructor takes at most one callback: return effects or results to the caller, or ask the object itself",
        callbacks,
    ),
    Rule(
        "protocols",
        "a Protocol has two implementations in the source, or is a plug-in point: use the class itself, or give the reason",
        protocols,
    ),
    Rule(
        "underscores",
        "an underscored name is used in its own file only: give it a public name, or move the code to its owner; "
        "no attribute is called inside",
        underscores,
    ),
    Rule(
        "small_files",
        "a file has two importers or more than 110 lines: move the code to its one user",
        small_files,
    ),
    Rule(
        "import_circles",
        "at most three files import each other in a circle: let one of them not need the others",
        import_circles,
    ),
)


# The list


@attrs.frozen
class Listed:
    """The list of one rule: entries to be mended, and those that are right, with the reason."""

    found: frozenset[str] = frozenset()
    on_purpose: dict[str, str] = attrs.field(factory=dict)


def read_list(path: Path) -> dict[str, Listed]:
    """The stored list by rule; empty where there is no file."""
    stored = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {
        rule.name: Listed(
            frozenset(stored.get(rule.name, {}).get("found", ())),
            stored.get(rule.name, {}).get("on_purpose", {}),
        )
        for rule in RULES
    }


def write_list(path: Path, listed: dict[str, Listed]) -> None:
    """Write the list, sorted, one entry a line."""
    lines = [
        "# Places that break a rule of structure.py today. Each line that goes is an improvement; none comes.",
        "# `python tests/house/structure.py --update` takes away what is mended. `on_purpose` says why an entry is right.",
    ]
    for name, each in listed.items():
        lines += ["", f"[{name}]", "found = ["]
        lines += [f"  {json.dumps(entry)}," for entry in sorted(each.found)]
        lines += ["]"]
        if each.on_purpose:
            lines += ["", f"[{name}.on_purpose]"]
            lines += [f"{json.dumps(entry)} = {json.dumps(why)}" for entry, why in sorted(each.on_purpose.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def complaints(found: dict[str, list[Finding]], listed: dict[str, Listed]) -> list[str]:
    """What differs between the source and the list, each as a sentence."""
    said = []
    for rule in RULES:
        known = listed[rule.name]
        entries = {each.entry: each for each in found[rule.name]}
        for entry, each in entries.items():
            if each.is_refused or (entry not in known.found and entry not in known.on_purpose):
                said.append(f"{place(each)}: {rule.name}: {entry}: {rule.sentence}")
        for entry in sorted(known.found | known.on_purpose.keys()):
            if entry not in entries:
                said.append(f"structure.toml: {rule.name}: {entry}: taken away: remove it from the list by `--update`")
    return said


def place(each: Finding) -> str:
    return f"{each.module}:{each.line}"


def updated(found: dict[str, list[Finding]], listed: dict[str, Listed], *, accept: bool) -> dict[str, Listed]:
    """The list without what is mended; with `accept`, with what is new."""
    result = {}
    for name, known in listed.items():
        entries = {each.entry for each in found[name] if not each.is_refused}
        kept = entries - known.on_purpose.keys() if accept else entries & known.found
        result[name] = Listed(frozenset(kept), {entry: why for entry, why in known.on_purpose.items() if entry in entries})
    return result


def all_findings(tree: Tree) -> dict[str, list[Finding]]:
    """The findings of every rule, sorted, each once."""
    return {rule.name: sorted({each.entry: each for each in rule.find(tree)}.values()) for rule in RULES}


# What a person looks at


def table(found: dict[str, list[Finding]], listed: dict[str, Listed], files: dict[str, Module]) -> Iterator[str]:
    """Counts by rule and room, those on purpose apart, and the five worst of each rule."""
    rooms = list(dict.fromkeys(module.room for module in files.values()))
    yield "rule".ljust(16) + "".join(f"{room:>15}" for room in [*rooms, "all"]) + f"{'on purpose':>15}"
    for name, each in found.items():
        open_ones = [one for one in each if one.entry not in listed[name].on_purpose]
        counts = Counter(files[one.module].room for one in open_ones)
        numbers = [*(counts[room] for room in rooms), len(open_ones), len(each) - len(open_ones)]
        yield name.ljust(16) + "".join(f"{number:>15}" for number in numbers)
    for name, each in found.items():
        worst = Counter(blamed(name, one) for one in each if one.entry not in listed[name].on_purpose).most_common(5)
        yield f"\n{name}: " + ", ".join(f"{what} {count}" for what, count in worst)


def blamed(rule: str, each: Finding) -> str:
    """The class, module or folder that a finding is counted for: for a write, the class whose field is written."""
    if rule == "one_writer":
        return f"{each.detail}.{each.what.split()[1].rpartition('.')[0]}"
    if rule == "small_files":
        return each.module.rpartition(".")[0]
    whole_module = rule == "protocols" or each.symbol in ("file", "import", "module")
    return each.module if whole_module else f"{each.module}.{each.symbol.partition('.')[0]}"


def main(arguments: list[str] | None = None) -> int:
    """Compare the source with the list, or show it; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--show", nargs="?", const="all", choices=["all", *(rule.name for rule in RULES)])
    parser.add_argument("--update", action="store_true", help="take away what is mended")
    parser.add_argument("--accept", action="store_true", help="with --update: add what is new")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--list", type=Path, default=STORED, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    tree = Tree(chosen.root)
    found, listed = all_findings(tree), read_list(chosen.list)
    if chosen.show == "all":
        print(*table(found, listed, tree.modules), sep="\n")
        return 0
    if chosen.show:
        print(*(f"{place(each)}: {each.symbol}: {each.what} {each.detail}" for each in found[chosen.show]), sep="\n")
        return 0
    if chosen.update:
        listed = updated(found, listed, accept=chosen.accept)
        write_list(chosen.list, listed)
    said = complaints(found, listed)
    print(*said, sep="\n")
    print(f"structure: {sum(len(each) for each in found.values())} known places, {len(said)} to mend")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
