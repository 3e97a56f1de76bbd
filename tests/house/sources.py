"""The source as data: its modules, classes and fields, and the type of an expression as far as annotations say it.

Nothing is imported or run. A type that the text does not say stays unknown; what is known is true of the text. Every rule of
`structure.py` reads this model.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import attrs

ROOT: Final = Path(__file__).resolve().parents[2]
BUILDERS: Final = frozenset({"__init__", "__post_init__", "__attrs_post_init__"})
"""Methods that make an object."""
SELF_LIKE: Final = frozenset({"self", "cls"})
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
_OWN_NAMES: Final = (*FUNCTIONS, ast.ClassDef)
_WITHOUT_NAMES: Final = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop)

_ELEMENTS: Final = frozenset(
    {
        "list",
        "set",
        "frozenset",
        "deque",
        "Sequence",
        "MutableSequence",
        "Set",
        "MutableSet",
        "Iterable",
        "Iterator",
        "Collection",
    }
    | {"AsyncIterator", "AsyncIterable", "Generator", "AsyncGenerator", "KeysView", "ValuesView", "Reversible", "AbstractSet"}
)
_TABLES: Final = frozenset({"dict", "defaultdict", "OrderedDict", "Mapping", "MutableMapping", "WeakKeyDictionary"})
_AWAITED: Final = frozenset({"Coroutine", "Awaitable", "Future", "Task"})
CONTAINERS: Final = frozenset(
    {"list", "set", "deque", "dict", "defaultdict", "OrderedDict", "Counter", "bytearray"} | {"array"}
)
"""Mutable containers of the standard library, by the last part of their name."""


@attrs.frozen
class Instance:
    """A value of a class of the source."""

    of: SourceClass


@attrs.frozen
class TypeOf:
    """A class of the source as a value."""

    of: SourceClass


@attrs.frozen
class Other:
    """A value of another type: the last part of its name, and its arguments."""

    name: str
    arguments: tuple[Known, ...] = ()


@attrs.frozen
class Bound:
    """A function or method of the source as a value."""

    module: Module
    node: Function
    owner: SourceClass | None


Known = tuple["Instance | TypeOf | Other | Bound", ...]
"""The alternatives that the type of an expression has; none where it is not known."""


class SourceClass:
    """A class of the source: its bases, the fields that it declares, and its methods."""

    def __init__(self, module: Module, node: ast.ClassDef, qualname: str) -> None:
        self.module = module
        self.node = node
        self.qualname = qualname
        self.methods = {each.name: each for each in node.body if isinstance(each, FUNCTIONS)}
        self._types: dict[str, Known] = {}

    def __repr__(self) -> str:
        return f"{self.module.name}.{self.qualname}"

    @cached_property
    def bases(self) -> list[SourceClass]:
        """Bases of the source, in order."""
        found = (self.module.find(_without_arguments(base)) for base in self.node.bases)
        return [each for each in found if isinstance(each, SourceClass)]

    @cached_property
    def foreign_bases(self) -> list[str]:
        """Full names of the bases from elsewhere."""
        names = [_without_arguments(base) for base in self.node.bases]
        return [self.module.full_name(name) for name in names if not isinstance(self.module.find(name), SourceClass)]

    @cached_property
    def line(self) -> list[SourceClass]:
        """The class and all above it, each once, the nearest first."""
        found = [self]
        for base in self.bases:
            found += [each for each in base.line if each not in found]
        return found

    @property
    def is_protocol(self) -> bool:
        return any(base in ("typing.Protocol", "typing_extensions.Protocol") for base in self.foreign_bases)

    @cached_property
    def decorators(self) -> set[str]:
        """Full names of the decorators, with `frozen` where an argument says so."""
        found = set()
        for each in self.node.decorator_list:
            call = each if isinstance(each, ast.Call) else None
            found.add(self.module.full_name(dotted(call.func if call else each)))
            if call and any(key.arg == "frozen" and _is_true(key.value) for key in call.keywords):
                found.add("frozen")
        return found

    @property
    def is_record(self) -> bool:
        """True if attrs or dataclasses write its `__init__` from the annotations of its body."""
        return bool(self.decorators & {"attrs.define", "attrs.frozen", "attrs.mutable", "dataclasses.dataclass", "attr.s"})

    @property
    def is_frozen(self) -> bool:
        tuples = {"typing.NamedTuple", "enum.Enum", "enum.IntEnum", "enum.Flag", "enum.StrEnum", "typing.TypedDict"}
        return bool(self.decorators & {"attrs.frozen", "frozen"} or tuples & set(self.foreign_bases))

    @cached_property
    def body_fields(self) -> dict[str, ast.AnnAssign]:
        """Annotated names of the class body that are fields of its instances."""
        found = {}
        for each in self.node.body:
            match each:
                case ast.AnnAssign(target=ast.Name(id=name)) if "ClassVar" not in ast.dump(each.annotation):
                    found[name] = each
        return found

    @cached_property
    def own_assignments(self) -> dict[str, list[tuple[Function, ast.expr | None, ast.expr | None]]]:
        """Assignments of its methods to attributes of `self`: by name, each with the method, the annotation and the value."""
        found: dict[str, list[tuple[Function, ast.expr | None, ast.expr | None]]] = {}
        for method in self.methods.values():
            first = first_parameter(method)
            if first is None:
                continue
            for node in self.module.everything_in(method):
                for target in targets_of(node):
                    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == first:
                        annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
                        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                        plain = value if isinstance(node, ast.AnnAssign) or target in getattr(node, "targets", ()) else None
                        found.setdefault(target.attr, []).append((method, annotation, plain))
        return found

    @cached_property
    def fields(self) -> set[str]:
        """Names of the fields that the class declares: in its body, its slots, or by assigning them."""
        slots: set[str] = set()
        for each in self.node.body:
            if isinstance(each, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__slots__" for t in each.targets):
                slots |= {c.value for c in ast.walk(each.value) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
        setters = {name for name, node in self.methods.items() if is_property(node)}
        return ({*self.body_fields, *self.own_assignments} | slots) - setters

    def owner_of(self, field: str) -> SourceClass | None:
        """The class that declares a field of its instances: the topmost one."""
        return next((each for each in reversed(self.line) if field in each.fields), None)

    def type_of(self, name: str) -> Known:
        """The type of an attribute of its instances."""
        if name not in self._types:
            return self.module.tree.remembered(self._types, name, lambda: self._type_of(name))
        return self._types[name]

    def _type_of(self, name: str) -> Known:
        for each in self.line:
            method = each.methods.get(name)
            if method is not None:
                return each.module.returned(method, each) if is_property(method) else (Bound(each.module, method, each),)
            if name in each.body_fields:
                return each.module.known(each.body_fields[name].annotation, each)
            if name in each.own_assignments:
                return each._assigned(name)
        return ()

    def _assigned(self, name: str) -> Known:
        for _, annotation, _ in self.own_assignments[name]:
            if annotation is not None:
                return self.module.known(annotation, self)
        with self.module.tree.asking((self, name)) as first:
            values = [(method, value) for method, _, value in self.own_assignments[name] if value is not None] if first else []
            return _union([self.module.scope(self, method).infer(value) for method, value in values])


class Module:
    """A module of the source: what its names are."""

    def __init__(self, tree: Tree, name: str, file: Path) -> None:
        self.tree = tree
        self.name = name
        self.file = file
        self.text = file.read_text(encoding="utf-8")
        self.node = ast.parse(self.text)
        self._scopes: dict[Function, Scope] = {}
        self._known: dict[tuple[ast.expr, SourceClass | None], Known] = {}
        self._within: dict[Function, list[ast.AST]] = {}
        self._generators: dict[Function, bool] = {}
        self.classes: dict[str, SourceClass] = {}
        self.functions: dict[str, Function] = {}
        self.values: dict[str, ast.expr] = {}
        self._declare(self.node.body, "")
        self.imports = dict(self._imported())

    @property
    def is_package(self) -> bool:
        return self.file.name == "__init__.py"

    @property
    def room(self) -> str:
        """The top-level folder of the module."""
        return self.file.relative_to(self.tree.root).parts[0]

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of its text."""
        return everything(self.node)

    def within(self, node: Function) -> list[ast.AST]:
        """Everything in a function of the module, but nothing of the functions and classes in it."""
        if node not in self._within:
            self._within[node] = within(node)
        return self._within[node]

    def everything_in(self, node: Function) -> Iterator[ast.AST]:
        """Everything in a function of the module, with the functions in it."""
        for each in self.within(node):
            yield each
            if isinstance(each, FUNCTIONS):
                yield from self.everything_in(each)

    def _declare(self, body: Iterable[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                self.classes[prefix + node.name] = SourceClass(self, node, prefix + node.name)
                self._declare(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.If | ast.Try):
                self._declare([*node.body, *node.orelse], prefix)
            elif isinstance(node, FUNCTIONS):
                if not prefix:
                    self.functions[node.name] = node
                self._declare([each for each in self.within(node) if isinstance(each, _OWN_NAMES)], f"{prefix}{node.name}.")
            elif not prefix:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    self.values[node.targets[0].id] = node.value
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                    self.values[node.target.id] = node.value

    def _imported(self) -> Iterator[tuple[str, str]]:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    head = alias.name.partition(".")[0]
                    yield (alias.asname, alias.name) if alias.asname else (head, head)
            elif isinstance(node, ast.ImportFrom):
                base = self.imported_from(node)
                yield from ((alias.asname or alias.name, f"{base}.{alias.name}") for alias in node.names)

    def imported_from(self, node: ast.ImportFrom) -> str:
        """The full name of the module that the statement names."""
        package = self.name.split(".") if self.is_package else self.name.split(".")[:-1]
        above = package[: len(package) - node.level + 1] if node.level else []
        return ".".join([*above, *([node.module] if node.module else [])])

    def full_name(self, name: str) -> str:
        """A dotted name of this module as the rest of the world says it."""
        head, dot, rest = name.partition(".")
        return self.imports.get(head, head) + dot + rest

    def find(self, name: str) -> SourceClass | Bound | tuple[Module, ast.expr] | None:
        """The class, function or value of the source that a dotted name means here."""
        if name in self.classes:
            return self.classes[name]
        if name in self.functions:
            return Bound(self, self.functions[name], None)
        if name in self.values:
            return self, self.values[name]
        head = name.partition(".")[0]
        return self.tree.find(self.full_name(name)) if head in self.imports else None

    def scope(self, owner: SourceClass | None, node: Function, outer: Scope | None = None) -> Scope:
        """The scope of a function of this module."""
        if node not in self._scopes:
            self._scopes[node] = Scope(self, owner, node, outer)
        return self._scopes[node]

    @cached_property
    def all_functions(self) -> list[tuple[str, SourceClass | None, Function, Scope]]:
        """Every function: its name, the class that it belongs to, and its scope."""
        return list(self._functions_in(self.node.body, "", None, None))

    def _functions_in(
        self, body: Iterable[ast.AST], prefix: str, owner: SourceClass | None, outer: Scope | None
    ) -> Iterator[tuple[str, SourceClass | None, Function, Scope]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from self._functions_in(node.body, f"{prefix}{node.name}.", self.classes.get(prefix + node.name), None)
            elif isinstance(node, FUNCTIONS):
                scope = self.scope(owner, node, outer)
                yield prefix + node.name, owner, node, scope
                yield from self._functions_in(self.within(node), f"{prefix}{node.name}.", owner, scope)
            elif isinstance(node, ast.If | ast.Try) and outer is None:
                yield from self._functions_in([*node.body, *node.orelse], prefix, owner, outer)

    def known(self, annotation: ast.expr | None, owner: SourceClass | None = None) -> Known:
        """The type that an annotation says."""
        if annotation is None:
            return ()
        key = (annotation, owner)
        if key not in self._known:
            return self.tree.remembered(self._known, key, lambda: self._read(annotation, owner))
        return self._known[key]

    def _read(self, annotation: ast.expr, owner: SourceClass | None) -> Known:
        match annotation:
            case ast.Constant(value=str(text)):
                try:
                    return self.known(ast.parse(text, mode="eval").body, owner)
                except SyntaxError:
                    return ()
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return _union([self.known(left, owner), self.known(right, owner)])
            case ast.Name() | ast.Attribute():
                return self._named(dotted(annotation), owner)
            case ast.Subscript(value=base, slice=inner):
                return self._subscripted(base, inner.elts if isinstance(inner, ast.Tuple) else [inner], owner)
        return ()

    def _named(self, name: str, owner: SourceClass | None) -> Known:
        last = name.rpartition(".")[2]
        if last == "Self" and owner is not None:
            return (Instance(owner),)
        found = self.find(f"{owner.qualname}.{name}") if owner is not None else None
        found = found if isinstance(found, SourceClass) else self.find(name)
        if isinstance(found, SourceClass):
            return (Instance(found),)
        if isinstance(found, tuple):  # an alias, in the module that has it
            where, value = found
            with self.tree.asking((where, value)) as first:
                return where.known(value) if first else ()
        return (Other(last),)

    def _subscripted(self, base: ast.expr, inner: list[ast.expr], owner: SourceClass | None) -> Known:
        name = dotted(base)
        last = name.rpartition(".")[2]
        if last in ("Optional", "Final", "Annotated", "Required", "NotRequired", "ClassVar"):
            return self.known(inner[0], owner)
        if last == "Union":
            return _union([self.known(each, owner) for each in inner])
        if last in ("type", "Type"):
            return tuple(TypeOf(each.of) for each in self.known(inner[0], owner) if isinstance(each, Instance))
        plain = self._named(name, owner)
        if any(isinstance(each, Instance) for each in plain):
            return plain
        if last == "Callable" or (plain and isinstance(plain[0], Other) and plain[0].name == "Callable"):
            return (Other("Callable", (self.known(inner[-1], owner),)),)
        if last in ("Coroutine", "Generator"):
            return (Other(last, (self.known(inner[-1 if last == "Coroutine" else 0], owner),)),)
        return (Other(last, tuple(self.known(each, owner) for each in inner)),)

    def returned(self, node: Function, owner: SourceClass | None) -> Known:
        """The type of what a call of this function gives."""
        plain = self.known(node.returns, owner)
        if not isinstance(node, ast.AsyncFunctionDef):
            return plain
        if node not in self._generators:
            self._generators[node] = any(isinstance(each, ast.Yield) for each in self.within(node))
        if not self._generators[node]:
            return (Other("Coroutine", (plain,)),)
        return plain


class Tree:
    """All modules of the rooms of a checkout, generated protocol classes apart."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        files = sorted(modules_of(root).items())
        self.generated = {name for name, file in files if file.name.endswith("_pb2.py")}
        self._asked: set[object] = set()
        self._cut = 0
        self.modules = {name: Module(self, name, file) for name, file in files if name not in self.generated}

    @contextmanager
    def asking(self, what: object) -> Iterator[bool]:
        """Give False where this very question is being answered further out."""
        first = what not in self._asked
        self._asked.add(what)
        self._cut += not first
        try:
            yield first
        finally:
            if first:
                self._asked.discard(what)

    def remembered(self, answers: dict[Any, Known], key: Any, answer: Callable[[], Known]) -> Known:
        """The answer, kept unless a question that asks for itself cut it short: the order of questions must not matter."""
        before = self._cut
        found = answer()
        if self._cut == before:
            answers[key] = found
        return found

    @property
    def classes(self) -> Iterator[SourceClass]:
        for module in self.modules.values():
            yield from module.classes.values()

    def find(self, full: str) -> SourceClass | Bound | tuple[Module, ast.expr] | None:
        """The class, function or value with this full name, also where a package hands it on."""
        for _ in range(10):
            module, rest = self.split(full)
            if module is None or not rest:
                return None
            if rest in module.classes or rest in module.functions or rest in module.values:
                return module.find(rest)
            head, dot, tail = rest.partition(".")
            full = (module.imports.get(head) or self._starred(module, head)) + dot + tail
        return None

    def _starred(self, module: Module, name: str) -> str:
        """The full name of what a module has by `import *`; empty where it has no such name."""
        for each in module.nodes if module.is_package else ():
            if isinstance(each, ast.ImportFrom) and each.names[0].name == "*":
                where = self.modules.get(module.imported_from(each))
                if where is not None and where.find(name) is not None:
                    return f"{where.name}.{name}"
        return ""

    def split(self, full: str) -> tuple[Module | None, str]:
        """The module in which a full name is, and the rest of the name."""
        parts = full.split(".")
        for length in range(len(parts), 0, -1):
            module = self.modules.get(".".join(parts[:length]))
            if module is not None:
                return module, ".".join(parts[length:])
        return None, full

    def imports_of(self, module: Module) -> set[str]:
        """The modules of the source that a module imports, anywhere in its text."""
        found: set[str] = set()
        for node in module.nodes:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = module.imported_from(node)
                inside = {f"{base}.{alias.name}" for alias in node.names}
                found |= inside & (self.modules.keys() | self.generated) or {base}
        return found & self.modules.keys() - {module.name}


class Scope:
    """The names of a function, and the types of its expressions. A function in a function sees the names around it."""

    def __init__(self, module: Module, owner: SourceClass | None, node: Function | None, outer: Scope | None = None) -> None:
        self.module = module
        self.owner = owner
        self.outer = outer
        self._bindings: dict[str, list[tuple[str, ast.expr]]] = {}
        self._parameters: dict[str, Known] = {}
        self._inferred: dict[ast.expr, Known] = {}
        if node is not None:
            self._enter(node)

    def _enter(self, node: Function) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for each in arguments:
            self._parameters[each.arg] = self.module.known(each.annotation, self.owner)
        first = first_parameter(node)
        if self.owner is not None and self.outer is None and first is not None and not self._parameters.get(first):
            is_class = any(dotted(each) == "classmethod" for each in node.decorator_list)
            self._parameters[first] = (TypeOf(self.owner),) if is_class else (Instance(self.owner),)
        for inner in self.module.within(node):
            self._bind(inner)

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                self._bindings.setdefault(name, []).append(("annotation", annotation))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind_target(target, "value", value)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                self._bindings.setdefault(name, []).append(("value", value))
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                self._bind_target(node.target, "element", node.iter)
            case ast.withitem(context_expr=value, optional_vars=ast.Name(id=name)):
                self._bindings.setdefault(name, []).append(("entered", value))
            case ast.MatchAs(pattern=ast.MatchClass(cls=cls), name=str(name)):
                self._bindings.setdefault(name, []).append(("annotation", cls))

    def _bind_target(self, target: ast.expr, how: str, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._bindings.setdefault(target.id, []).append((how, value))
        elif isinstance(target, ast.Tuple):
            for number, each in enumerate(target.elts):
                if isinstance(each, ast.Name):
                    self._bindings.setdefault(each.id, []).append((f"{how} {number}", value))
                elif isinstance(each, ast.Tuple):
                    for inner, name in enumerate(each.elts):
                        if isinstance(name, ast.Name):
                            self._bindings.setdefault(name.id, []).append((f"{how} {number} {inner}", value))

    def name(self, name: str) -> Known:
        """The type of a name."""
        if name in self._parameters and name not in self._bindings:
            return self._parameters[name]
        if name in self._bindings:
            with self.module.tree.asking((self, name)) as first:
                return self._local(name) if first else ()
        if self.outer is not None:
            return self.outer.name(name)
        return self._global(self.module.find(name))

    def _local(self, name: str) -> Known:
        bindings = self._bindings[name]
        said = [self.module.known(value, self.owner) for how, value in bindings if how == "annotation"]
        if said:
            return _union(said)
        # A name that means several things has no type of its own.
        found = {self._bound(how, value) for how, value in bindings if not _is_none(value)}
        if name in self._parameters:
            found.add(self._parameters[name])
        return found.pop() if len(found) == 1 else ()

    def _bound(self, how: str, value: ast.expr) -> Known:
        kind, *places = how.split()
        if kind == "annotation":
            return self.module.known(value, self.owner)
        found = self.infer(value)
        if kind == "element":
            found = element_of(found)
        elif kind == "entered":
            found = self._entered(found)
        for place in places:
            found = _item(found, int(place))
        return found

    def _entered(self, found: Known) -> Known:
        entered: list[Known] = []
        for each in found:
            if isinstance(each, Instance):
                for name in ("__enter__", "__aenter__"):
                    entered += [awaited(called(one)) for one in each.of.type_of(name)]
        return _union(entered)

    def _global(self, found: object) -> Known:
        if isinstance(found, SourceClass):
            return (TypeOf(found),)
        return (found,) if isinstance(found, Bound) else ()

    def infer(self, node: ast.expr) -> Known:
        """The type of an expression."""
        if node not in self._inferred:
            return self.module.tree.remembered(self._inferred, node, lambda: self._infer(node))
        return self._inferred[node]

    def _infer(self, node: ast.expr) -> Known:
        match node:
            case ast.Name(id=name):
                return self.name(name)
            case ast.Attribute(value=value, attr=attr):
                return self._attribute(node, value, attr)
            case ast.Call():
                return self._call(node)
            case ast.Await(value=value):
                return awaited(self.infer(value))
            case ast.NamedExpr(value=value):
                return self.infer(value)
            case ast.IfExp(body=body, orelse=orelse):
                return _both(self.infer(body), self.infer(orelse), body, orelse)
            case ast.BoolOp(values=[left, right]):
                return _both(self.infer(left), self.infer(right), left, right)
            case ast.Subscript(value=value, slice=key):
                return self._subscript(value, key)
            case ast.List() | ast.ListComp():
                return (Other("list"),)
            case ast.Dict() | ast.DictComp():
                return (Other("dict"),)
            case ast.Set() | ast.SetComp():
                return (Other("set"),)
        return ()

    def _attribute(self, node: ast.Attribute, value: ast.expr, attr: str) -> Known:
        base = self.infer(value)
        if not base:
            return self._global(self.module.find(dotted(node)))
        found: list[Known] = []
        for each in base:
            if isinstance(each, Instance):
                found.append(each.of.type_of(attr))
            elif isinstance(each, TypeOf):
                found.append(each.of.type_of(attr) or self._global(each.of.module.find(f"{each.of.qualname}.{attr}")))
        return _union(found)

    def _call(self, node: ast.Call) -> Known:
        if isinstance(node.func, ast.Name) and node.args:
            match node.func.id:
                case "cast":
                    return self.module.known(node.args[0], self.owner)
                case "next" | "min" | "max":
                    return element_of(self.infer(node.args[0])) if len(node.args) == 1 or node.func.id == "next" else ()
                case "iter" | "sorted" | "reversed" | "list" | "tuple" | "set":
                    return (Other("list", (element_of(self.infer(node.args[0])),)),)
                case "enumerate":
                    return (Other("list", ((Other("tuple", ((), element_of(self.infer(node.args[0])))),),)),)
                case "super":
                    return ()
        if isinstance(node.func, ast.Attribute):
            table = self.infer(node.func.value)
            found = [_of_container(each, node.func.attr) for each in table if isinstance(each, Other)]
            if any(found):
                return _union(found)
        return _union([called(each) for each in self.infer(node.func)]) or self._made(node.func)

    def _made(self, function: ast.expr) -> Known:
        name = dotted(function).rpartition(".")[2]
        return (Other(name),) if name in CONTAINERS else ()

    def _subscript(self, value: ast.expr, key: ast.expr) -> Known:
        base = self.infer(value)
        if isinstance(key, ast.Slice):
            return base
        found: list[Known] = []
        for each in base:
            if isinstance(each, Other) and each.name in _TABLES and len(each.arguments) == 2:
                found.append(each.arguments[1])
            elif isinstance(each, Other) and each.name == "tuple":
                number = key.value if isinstance(key, ast.Constant) and isinstance(key.value, int) else 0
                found.append(_item((each,), number))
            elif isinstance(each, Other) and each.name in _ELEMENTS:
                found.append(element_of((each,)))
        return _union(found)


def called(what: Instance | TypeOf | Other | Bound) -> Known:
    """The type of what a call of such a value gives."""
    match what:
        case TypeOf(of):
            return (Instance(of),)
        case Bound(module, node, owner):
            return module.returned(node, owner)
        case Other("Callable", (given,)):
            return given
        case Instance(of) if "__call__" in of.methods:
            return of.module.returned(of.methods["__call__"], of)
    return ()


def awaited(found: Known) -> Known:
    """The type of what awaiting gives."""
    return _union(
        [each.arguments[0] if each.arguments else () for each in found if isinstance(each, Other) and each.name in _AWAITED]
        or [tuple(each for each in found if isinstance(each, Instance))]
    )


def element_of(found: Known) -> Known:
    """The type of what iterating gives."""
    elements: list[Known] = []
    for each in found:
        if isinstance(each, Other) and each.arguments:
            if each.name == "tuple":
                elements += each.arguments
            elif each.name in _ELEMENTS | _TABLES:
                elements.append(each.arguments[0])
    return _union(elements)


def _item(found: Known, place: int) -> Known:
    items: list[Known] = []
    for each in found:
        if isinstance(each, Other) and each.name == "tuple" and each.arguments:
            items.append(each.arguments[place] if -len(each.arguments) <= place < len(each.arguments) else each.arguments[-1])
        elif isinstance(each, Other) and each.name in _ELEMENTS:
            items.append(element_of((each,)))
    return _union(items)


def _of_container(table: Other, method: str) -> Known:
    if table.name in _TABLES and len(table.arguments) == 2:
        key, value = table.arguments
        match method:
            case "get" | "pop" | "setdefault":
                return value
            case "values":
                return (Other("list", (value,)),)
            case "items":
                return (Other("list", ((Other("tuple", (key, value)),),)),)
            case "popitem":
                return (Other("tuple", (key, value)),)
            case "copy":
                return (table,)
    elif table.name in _ELEMENTS and method in ("pop", "popleft"):
        return element_of((table,))
    elif table.name in _ELEMENTS and method == "copy":
        return (table,)
    return ()


def _both(left: Known, right: Known, one: ast.expr, other: ast.expr) -> Known:
    nothing = [isinstance(each, ast.Constant) for each in (one, other)]
    if (left or nothing[0]) and (right or nothing[1]):
        return _union([left, right])
    return ()


def _union(found: Iterable[Known]) -> Known:
    return tuple(dict.fromkeys(each for known in found for each in known))


def _without_arguments(node: ast.expr) -> str:
    return dotted(node.value if isinstance(node, ast.Subscript) else node)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def dotted(node: ast.expr) -> str:
    """An expression as a dotted name; empty where it is none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def first_parameter(node: Function) -> str | None:
    """The name of the object whose method this is; None for a static method."""
    if any(dotted(each) == "staticmethod" for each in node.decorator_list):
        return None
    arguments = [*node.args.posonlyargs, *node.args.args]
    return arguments[0].arg if arguments else None


def is_property(node: Function) -> bool:
    """True if the method is read as an attribute."""
    names = [dotted(each) for each in node.decorator_list]
    return any(name.rpartition(".")[2] in ("property", "cached_property", "setter", "getter", "deleter") for name in names)


def targets_of(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement assigns or deletes, tuples taken apart."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            stack = list(targets)
        case ast.AugAssign(target=target) | ast.For(target=target) | ast.AsyncFor(target=target):
            stack = [target]
        case ast.AnnAssign(target=target):
            stack = [target]
        case ast.withitem(optional_vars=ast.expr() as target):
            stack = [target]
        case _:
            return
    while stack:
        each = stack.pop(0)
        if isinstance(each, ast.Tuple | ast.List):
            stack = [*each.elts, *stack]
        elif isinstance(each, ast.Starred):
            stack.insert(0, each.value)
        else:
            yield each


def within(node: ast.AST) -> list[ast.AST]:
    """Everything in a function, but nothing of the functions and classes in it; lambdas count as a part of it."""
    found: list[ast.AST] = []
    stack = _children(node)
    while stack:
        each = stack.pop()
        found.append(each)
        if not isinstance(each, _OWN_NAMES):
            stack += _children(each)
    return found


def everything(node: ast.AST) -> list[ast.AST]:
    """Every node below, as `ast.walk` gives it, without loads, stores and operators."""
    found = [node]
    for each in found:
        found += _children(each)
    return found


def _children(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST) and not isinstance(value, _WITHOUT_NAMES):
            found.append(value)
    return found


def modules_of(root: Path) -> dict[str, Path]:
    """Every module of the rooms by its name."""
    found = {}
    for namespace in sorted({*root.glob("*/pulsar_txn"), *root.glob("*/pyspark_pulsar_txn")}):
        for file in namespace.rglob("*.py"):
            parts = file.relative_to(namespace.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def circles_of(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Groups of nodes that reach each other (Tarjan's strongly connected components, without recursion)."""
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
                    work.append((there, iter(sorted(graph.get(there, ())))))
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
