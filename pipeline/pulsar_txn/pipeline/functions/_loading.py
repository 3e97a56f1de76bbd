"""Loading of a function: its code, its SerDe classes and its schemas, by the names in its configuration.

A schema is named by a type of Pulsar or by a class of the function's own. `check_upload` checks a file before it is sent to
a broker, and neither imports nor runs it.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import attrs

from pulsar_txn.client import AvroSchema, BytesSchema, JsonSchema, Schema, StringSchema
from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch
from pulsar_txn.client.inside import SchemaInfo
from pulsar_txn.client.schemas import (
    BOOLEAN_SCHEMA,
    DOUBLE_SCHEMA,
    FLOAT_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    AutoSchema,
)
from pulsar_txn.pipeline.functions.interface import IdentitySerDe, SerDe, refuse_pickle


@attrs.frozen
class Process:
    """Function that is called per message: `call(input, context)`, or `call(input)` in the native form."""

    call: Callable[..., Any]
    takes_context: bool

    @property
    def is_async(self) -> bool:
        """True if it is to be called on the loop."""
        return inspect.iscoroutinefunction(self.call)


def load(class_name: str, py: str | None) -> Any:
    """A class or a module by name; the module from `py` when given. InvalidConfiguration says what is missing."""
    module_name, _, last = class_name.rpartition(".")
    if not module_name:
        return _module(class_name, py)
    try:
        module = _module(module_name, py)
    except InvalidConfiguration:
        with contextlib.suppress(InvalidConfiguration):  # then what was missing is the module before the last dot
            return _module(class_name, py)  # the native form of a module in a package
        raise
    try:
        return getattr(module, last)
    except AttributeError as error:
        raise InvalidConfiguration(f"className: {module_name} has no {last}") from error


def _module(name: str, py: str | None) -> ModuleType:
    if py is not None:
        path = Path(py).resolve()
        if not path.exists():
            raise InvalidConfiguration(f"py: {py} does not exist")
        if path.suffix == ".py" and name == path.stem:
            return _module_of_file(name, path)
        place = str(path.parent if path.suffix == ".py" else path)
        if place not in sys.path:
            sys.path.insert(0, place)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        raise InvalidConfiguration(f"className: there is no module {name}", hint="say where it is: py") from error


def _module_of_file(name: str, path: Path) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidConfiguration(f"py: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def process_of(function: Any) -> Process:
    """The call of an object, a class (made without arguments), a module, or a callable. InvalidConfiguration for others."""
    if isinstance(function, type):
        function = function()
    method = getattr(function, "process", None)
    if isinstance(function, ModuleType) and method is None:
        raise InvalidConfiguration(f"the module {function.__name__} has no process(input)")
    call = method if callable(method) else function
    if not callable(call):
        raise InvalidConfiguration(
            f"{function!r} is no function", hint="give an object with process(input, context), or a callable"
        )
    if not inspect.isroutine(call):
        call = call.__call__
    return Process(call, takes_context=_takes_context(call))


def _takes_context(call: Callable[..., Any]) -> bool:
    """True if it has a second positional argument that it needs, or that is called `context`."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except ValueError:  # of some built-in functions
        return False
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(places) < 2:
        return any(each.kind is each.VAR_POSITIONAL for each in parameters)
    return places[1].default is places[1].empty or places[1].name == "context"


def serde_of(class_name: str | None, py: str | None) -> SerDe:
    """An object of the SerDe class with that name; IdentitySerDe without."""
    last = (class_name or "IdentitySerDe").rpartition(".")[2]
    if last == "PickleSerDe":
        refuse_pickle()
    if class_name is None or class_name in ("IdentitySerDe", "serde.IdentitySerDe", "pulsar.functions.serde.IdentitySerDe"):
        return IdentitySerDe()
    found = load(class_name, py)
    serde: SerDe = found() if isinstance(found, type) else found
    if not callable(getattr(serde, "serialize", None)) or not callable(getattr(serde, "deserialize", None)):
        raise InvalidConfiguration(f"{class_name} is no SerDe", hint="it needs serialize(input) and deserialize(input_bytes)")
    return serde


def extractor_of(class_name: str | None, py: str | None) -> Callable[[Any, Any], Any] | None:
    """`extract_timestamp` of the class with that name; None without a name."""
    if class_name is None:
        return None
    found = load(class_name, py)
    call = getattr(found() if isinstance(found, type) else found, "extract_timestamp", None)
    if not callable(call):
        raise InvalidConfiguration(f"{class_name} is no extractor", hint="it needs extract_timestamp(input, message)")
    extract: Callable[[Any, Any], Any] = call
    return extract


_PRIMITIVES: Final[dict[str, Any]] = {
    "boolean": BOOLEAN_SCHEMA,
    "int8": INT8_SCHEMA,
    "int16": INT16_SCHEMA,
    "int32": INT32_SCHEMA,
    "int64": INT64_SCHEMA,
    "float": FLOAT_SCHEMA,
    "double": DOUBLE_SCHEMA,
}
_JSON: Final = 2
_AVRO: Final = 4


def schema_of(schema_type: str | None, type_class_name: str | None, py: str | None) -> Schema[Any] | None:
    """The schema with that type, for values of that class; None without a type. InvalidConfiguration for other names."""
    if schema_type is None:
        return None
    kind = schema_type.lower()
    if kind in ("bytes", "none"):
        return BytesSchema()
    if kind == "string":
        return StringSchema()
    if kind in ("auto_consume", "auto"):
        return AutoSchema()
    if kind in _PRIMITIVES:
        primitive: Schema[Any] = _PRIMITIVES[kind]
        return primitive
    if kind in ("json", "avro"):
        return _of_class(kind, None if type_class_name is None else load(type_class_name, py))
    if "." in schema_type:
        return _own(schema_type, py)
    raise InvalidConfiguration(
        f"there is no schema type {schema_type!r}",
        hint=f"write one of bytes, string, json, avro, auto_consume, {', '.join(_PRIMITIVES)}, or module.Class of a schema",
    )


def _of_class(kind: str, cls: Any) -> Schema[Any]:
    if cls is None:
        if kind == "json":
            return JsonSchema()
        raise InvalidConfiguration(
            "schema type avro needs the class of the values", hint="name it: inputTypeClassName, or outputTypeClassName"
        )
    official = sys.modules.get("pulsar.schema")
    if official is not None and isinstance(cls, type) and issubclass(cls, official.Record):
        return _RecordSchema(kind, cls, official)
    return JsonSchema(cls) if kind == "json" else AvroSchema(cls)


def _own(class_name: str, py: str | None) -> Schema[Any]:
    found = load(class_name, py)
    schema: Any = found() if isinstance(found, type) else found
    if not callable(getattr(schema, "encode", None)) or not callable(getattr(schema, "decode", None)):
        raise InvalidConfiguration(f"{class_name} is no schema", hint="it needs encode(value), decode(payload) and info")
    own: Schema[Any] = schema
    return own


class _RecordSchema:
    """Values of a `Record` of the official package, which encodes and decodes them itself."""

    def __init__(self, kind: str, record: Any, official: Any) -> None:
        self._inner = (official.JsonSchema if kind == "json" else official.AvroSchema)(record)
        definition = json.dumps(record.schema()).encode()
        self.info: SchemaInfo | None = SchemaInfo(_JSON if kind == "json" else _AVRO, definition, kind.upper())

    def encode(self, value: Any) -> bytes:
        """The payload of a record. SchemaMismatch."""
        try:
            return bytes(self._inner.encode(value))
        except Exception as error:
            raise SchemaMismatch(f"the value does not fit its record: {error!r}") from error

    def decode(self, payload: bytes) -> Any:
        """The record of a payload. SchemaMismatch."""
        try:
            return self._inner.decode(payload)
        except Exception as error:
            raise SchemaMismatch(f"the payload does not fit its record: {error!r}") from error


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
