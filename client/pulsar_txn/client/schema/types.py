"""Classes as schemas: attrs classes, dataclasses and pydantic models become Avro definitions, and their values plain data.

JSON and Avro topics of Pulsar both keep an Avro definition, so both schemas use this. The conversion of values is
cattrs's (extras `json` and `avro`); what is here is which Avro type a Python type is.

| Python | Avro | in JSON payloads |
|---|---|---|
| bool, int, float, str, bytes | boolean, long, double, string, bytes | bytes as base64 |
| `Int32`, `Float32` | int, float | |
| datetime (aware), date, time | timestamp-micros, date, time-micros | numbers |
| UUID | string, logical type uuid | text |
| an Enum | enum of the names | name |
| list, tuple[X, ...], set, Sequence; dict[str, X], Mapping | array; map | |
| X \\| Y \\| None | union; null first unless the default is another | |
| attrs class, dataclass, pydantic model | record | object |

Defaults that Avro can carry become defaults of the definition: what was written without the field is read with them.
"""

from __future__ import annotations

import base64
import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from typing import Annotated, Any, Final, TypeVar
from uuid import UUID

import attrs
import cattrs
from cattrs.strategies import configure_union_passthrough

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.schema.avro import AvroType

T = TypeVar("T")


_SIMPLE: Final[dict[Any, Any]] = {
    type(None): "null",
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    datetime: {"type": "long", "logicalType": "timestamp-micros"},
    date: {"type": "int", "logicalType": "date"},
    time: {"type": "long", "logicalType": "time-micros"},
    UUID: {"type": "string", "logicalType": "uuid"},
}
_ARRAYS: Final = (list, tuple, set, frozenset, Sequence, AbstractSet)
_MAPS: Final = (dict, Mapping)
_MISSING: Final = object()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_ZERO: Final = date(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)


# --- definitions ----------------------------------------------------------------------------------------------------


def definition_of(cls: type[Any]) -> dict[str, Any]:
    """The Avro definition of a class. InvalidConfiguration names the field whose type has no Avro type."""
    if not is_record(cls):
        raise InvalidConfiguration(f"{cls!r} is not an attrs class, a dataclass or a pydantic model")
    record: dict[str, Any] = _record(cls, {})
    return record


def is_record(cls: Any) -> bool:
    """True if it is a class of one of the kinds that become records."""
    return isinstance(cls, type) and (attrs.has(cls) or dataclasses.is_dataclass(cls) or _is_pydantic(cls))


def _is_pydantic(cls: Any) -> bool:
    return isinstance(cls, type) and hasattr(cls, "model_validate") and hasattr(cls, "model_fields")


def _record(cls: type[Any], known: dict[str, type[Any]]) -> Any:
    """A record, or its name where the definition has had it before."""
    if known.setdefault(cls.__name__, cls) is not cls:
        raise InvalidConfiguration(f"two classes of one schema are called {cls.__name__}")
    fields = []
    for name, kind, default in _fields(cls):
        try:
            fields.append(_field(name, kind, default, known))
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"{cls.__name__}.{name}: {error.message}", hint=error.hint) from None
    return {"type": "record", "name": cls.__name__, "fields": fields}


def _fields(cls: type[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, type and default (or _MISSING) of each field."""
    try:
        kinds = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise InvalidConfiguration(
            f"a type of {cls.__name__} cannot be found: {error}", hint="define the classes of a schema at module level"
        ) from error
    if _is_pydantic(cls):
        for name, field in cls.model_fields.items():
            absent = field.is_required()
            factory = field.default_factory
            yield name, kinds[name], _MISSING if absent else _default(field.default if factory is None else _MISSING, factory)
    elif attrs.has(cls):
        for attribute in attrs.fields(cls):
            if attribute.init:
                default = attribute.default
                factory = getattr(default, "factory", None)
                yield (
                    attribute.name,
                    kinds[attribute.name],
                    _default(_MISSING if default is attrs.NOTHING else default, factory),
                )
    else:
        for each in dataclasses.fields(cls):
            if each.init:
                factory = None if each.default_factory is dataclasses.MISSING else each.default_factory
                default = _MISSING if each.default is dataclasses.MISSING else each.default
                yield each.name, kinds[each.name], _default(default, factory)


def _default(value: Any, factory: Any) -> Any:
    if factory is not None:
        return factory() if factory in _ARRAYS or factory in _MAPS else _MISSING
    return value


def _field(name: str, kind: Any, default: Any, known: dict[str, type[Any]]) -> dict[str, Any]:
    avro = _avro(kind, known)
    if isinstance(avro, list) and default is not _MISSING and default is not None and avro[0] == "null":
        avro = [*avro[1:], "null"]
    field = {"name": name, "type": avro}
    if default is None and isinstance(avro, list) and "null" in avro:
        field["default"] = None
    elif isinstance(default, Enum):
        field["default"] = default.name
    elif isinstance(default, (bool, int, float, str)):
        field["default"] = default
    elif isinstance(default, (*_ARRAYS, *_MAPS)) and not isinstance(default, bytes) and not default:
        field["default"] = {} if isinstance(default, Mapping) else []
    return field


def _avro(kind: Any, known: dict[str, type[Any]]) -> Any:
    """The Avro type of a Python type."""
    if typing.get_origin(kind) is Annotated:
        named = [each.name for each in kind.__metadata__ if isinstance(each, AvroType)]
        return named[0] if named else _avro(kind.__origin__, known)
    kind = getattr(kind, "__supertype__", kind)  # a NewType
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union([_avro(each, known) for each in arguments])
    if origin in _MAPS and len(arguments) == 2 and arguments[0] is str:
        return {"type": "map", "values": _avro(arguments[1], known)}
    if origin in _ARRAYS and (len(arguments) == 1 or arguments[1:] == (Ellipsis,)):
        return {"type": "array", "items": _avro(arguments[0], known)}
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _named(kind, known, lambda: {"type": "enum", "name": kind.__name__, "symbols": [each.name for each in kind]})
    if is_record(kind):
        return _named(kind, known, lambda: _record(kind, known))
    raise InvalidConfiguration(
        f"{kind!r} has no Avro type", hint="see the table of pulsar_txn.client.schema.types, or give a definition and dicts"
    )


def _named(kind: type[Any], known: dict[str, type[Any]], make: Callable[[], Any]) -> Any:
    if known.get(kind.__name__) is kind:
        return kind.__name__
    if known.setdefault(kind.__name__, kind) is not kind:
        raise InvalidConfiguration(f"two classes of one schema are called {kind.__name__}")
    return make()


def _union(members: list[Any]) -> list[Any]:
    rest = [each for each in members if each != "null"]
    return ["null", *rest] if len(rest) < len(members) else rest


# --- values ---------------------------------------------------------------------------------------------------------


def avro_converter() -> cattrs.Converter:
    """Between values and what fastavro writes and reads."""
    converter = _converter()
    for kind in (bytes, date, time, UUID):
        _register(converter, kind, _same, _is(kind))
    _register(converter, datetime, _aware, _is(datetime))
    return converter


def json_converter() -> cattrs.Converter:
    """Between values and what `json` writes and reads, numbers for times as the definition says."""
    converter = _converter()
    _register(
        converter, bytes, lambda value: base64.b64encode(value).decode(), lambda text: base64.b64decode(text, validate=True)
    )
    _register(converter, datetime, lambda value: (_aware(value) - _EPOCH) // _MICROSECOND, lambda n: _EPOCH + n * _MICROSECOND)
    _register(converter, date, lambda value: (value - _DAY_ZERO).days, lambda n: _DAY_ZERO + timedelta(days=n))
    _register(converter, time, _micros_of_day, lambda n: (datetime.min + n * _MICROSECOND).time())  # noqa: DTZ901 - only for its arithmetic
    _register(converter, UUID, str, UUID)
    return converter


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    for kind in (bool, int, str):
        converter.register_structure_hook(kind, _checked(_is(kind)))
    converter.register_structure_hook(float, _checked(_number))
    configure_union_passthrough(bool | int | float | str | bytes | None, converter)
    converter.register_unstructure_hook_func(_is_enum, lambda value: value.name)
    converter.register_structure_hook_func(_is_enum, lambda name, kind: kind[name])
    converter.register_unstructure_hook_factory(_is_pydantic, lambda kind: _model_to_dict(kind, converter))
    converter.register_structure_hook_factory(_is_pydantic, lambda kind: _model_from_dict(kind, converter))
    return converter


def _register(converter: cattrs.Converter, kind: type[Any], there: Callable[[Any], Any], back: Callable[[Any], Any]) -> None:
    converter.register_unstructure_hook(kind, there)
    converter.register_structure_hook(kind, _checked(back))


def _checked(back: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, _kind: back(value)


def _is(kind: type[T]) -> Callable[[Any], T]:
    def check(value: Any) -> T:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(f"{kind.__name__} is needed, not {type(value).__name__}")
        return value

    return check


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"a number is needed, not {type(value).__name__}")
    return float(value)


def _same(value: Any) -> Any:
    return value


def _aware(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    return value


def _micros_of_day(value: time) -> int:
    since = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    return since // _MICROSECOND


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _model_to_dict(kind: Any, converter: cattrs.Converter) -> Callable[[Any], dict[str, Any]]:
    kinds = [(name, hint) for name, hint, _ in _fields(kind)]
    return lambda model: {name: converter.unstructure(getattr(model, name), unstructure_as=hint) for name, hint in kinds}


def _model_from_dict(kind: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    kinds = [(name, hint) for name, hint, _ in _fields(kind)]

    def build(document: Any, _kind: Any) -> Any:
        if not isinstance(document, Mapping):
            raise TypeError(f"an object is needed, not {type(document).__name__}")
        values = {name: converter.structure(document[name], hint) for name, hint in kinds if name in document}
        return kind.model_validate(values, by_name=True, by_alias=False)

    return build
