"""From names to objects: the function that a configuration names, and its SerDe classes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.pipeline.functions.interface import IdentitySerDe, SerDe, refuse_pickle


@attrs.frozen
class Process:
    """Call per message: `call(input, context)`, or `call(input)` in the native form."""

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
            raise InvalidConfiguration(f"py: {py} is not there")
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
