"""Records: values declared field by field, in the official style, and the Avro definitions that follow from them.

class Order(Record):
    id = Integer(required=True)
    items = Array(String())
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar


class Field:
    """One field of a record. `default` is its value when nothing is given; `required` leaves null out of its type;
    `required_default` writes the default into the definition as well."""

    python_types: ClassVar[tuple[type, ...]] = ()
    avro_name: ClassVar[str] = ""

    def __init__(self, default: Any = None, required: bool = False, required_default: bool = False) -> None:
        self._required = required
        self._required_default = required_default
        self._default = None if default is None else self.validate("default", default)

    def default(self) -> Any:
        """The value of a record that was not given one."""
        return self._default

    def writes_default(self) -> bool:
        """True if the record's definition has the default."""
        return self._required_default

    def definition(self, _known: set[str]) -> Any:
        """The field's Avro type, without null."""
        return self.avro_name

    def validate(self, name: str, value: Any) -> Any:
        """The value, converted where it has to be; TypeError for one of another type."""
        if value is None:
            return self._none(name)
        if not isinstance(value, self.python_types) or (isinstance(value, bool) and bool not in self.python_types):
            raise TypeError(f"field {name} takes {self.python_types[0].__name__}, not {type(value).__name__}")
        return value

    def _none(self, name: str) -> Any:
        if getattr(self, "_required", False):
            raise TypeError(f"field {name} is required and cannot be None")
        return getattr(self, "_default", None)

    def with_null(self, known: set[str]) -> Any:
        """The field's Avro type as it is in a record's definition."""
        mine = self.definition(known)
        return mine if self._required else ["null", mine]

    def document(self, value: Any, *, plain: bool) -> Any:
        """The value as JSON (`plain`) or Avro libraries take it."""
        return value.decode() if plain and isinstance(value, bytes) else value


class Null(Field):
    """Nothing."""

    python_types = (type(None),)
    avro_name = "null"


class Boolean(Field):
    """True or false."""

    python_types = (bool,)
    avro_name = "boolean"


class Integer(Field):
    """A whole number of 32 bits."""

    python_types = (int,)
    avro_name = "int"


class Long(Field):
    """A whole number of 64 bits."""

    python_types = (int,)
    avro_name = "long"


class Float(Field):
    """A floating-point number of 32 bits."""

    python_types = (float,)
    avro_name = "float"


class Double(Field):
    """A floating-point number of 64 bits."""

    python_types = (float,)
    avro_name = "double"


class Bytes(Field):
    """Bytes."""

    python_types = (bytes,)
    avro_name = "bytes"

    def validate(self, name: str, value: Any) -> Any:
        """JSON has text where Avro has bytes."""
        return super().validate(name, value.encode() if isinstance(value, str) else value)


class String(Field):
    """Text."""

    python_types = (str,)
    avro_name = "string"


class CustomEnum(Field):
    """A member of an enumeration; travels by its name in Avro, by its value in JSON."""

    def __init__(self, enum_type: Any, default: Any = None, required: bool = False, required_default: bool = False) -> None:
        self.enum_type = enum_type
        super().__init__(default, required, required_default)

    def definition(self, known: set[str]) -> Any:
        """The names of its members, where it comes first; its name after that."""
        name = self.enum_type.__name__
        if name in known:
            return name
        known.add(name)
        return {"type": "enum", "name": name, "symbols": [member.name for member in self.enum_type]}

    def validate(self, name: str, value: Any) -> Any:
        """A member, its name or its value."""
        if value is None:
            return self._none(name)
        if isinstance(value, str) and value in self.enum_type.__members__:
            return self.enum_type[value]
        try:
            return self.enum_type(value)
        except ValueError as error:
            raise TypeError(f"field {name} takes {self.enum_type.__name__}, not {value!r}") from error

    def document(self, value: Any, *, plain: bool) -> Any:
        """Value or name."""
        return None if value is None else value.value if plain else value.name


class Array(Field):
    """A list of one type."""

    python_types = (list,)

    def __init__(self, array_type: Any, default: Any = None, required: bool = False, required_default: bool = False) -> None:
        self.array_type = as_field(array_type)
        super().__init__(default, required, required_default)

    def definition(self, known: set[str]) -> Any:
        """Of its items."""
        return {"type": "array", "items": self.array_type.definition(known)}

    def validate(self, name: str, value: Any) -> Any:
        """All items as well."""
        found = super().validate(name, value)
        return None if found is None else [self.array_type.validate(name, item) for item in found]

    def document(self, value: Any, *, plain: bool) -> Any:
        """A list of documents."""
        return None if value is None else [self.array_type.document(item, plain=plain) for item in value]


class Map(Field):
    """A dict from text to one type."""

    python_types = (dict,)

    def __init__(self, value_type: Any, default: Any = None, required: bool = False, required_default: bool = False) -> None:
        self.value_type = as_field(value_type)
        super().__init__(default, required, required_default)

    def definition(self, known: set[str]) -> Any:
        """Of its values."""
        return {"type": "map", "values": self.value_type.definition(known)}

    def validate(self, name: str, value: Any) -> Any:
        """All values as well."""
        found = super().validate(name, value)
        return None if found is None else {str(key): self.value_type.validate(name, item) for key, item in found.items()}

    def document(self, value: Any, *, plain: bool) -> Any:
        """A dict of documents."""
        return None if value is None else {key: self.value_type.document(item, plain=plain) for key, item in value.items()}


class SubRecord(Field):
    """A record inside a record."""

    def __init__(self, record: Record) -> None:
        self.record_type = type(record)
        options = record.field_options
        super().__init__(options["default"], options["required"], options["required_default"])

    def definition(self, known: set[str]) -> Any:
        """The record's own."""
        return self.record_type.schema_info(known)

    def validate(self, name: str, value: Any) -> Any:
        """A record, or a dict of its fields."""
        if value is None:
            return self._none(name)
        if isinstance(value, dict):
            return self.record_type(**value)
        if not isinstance(value, self.record_type):
            raise TypeError(f"field {name} takes {self.record_type.__name__}, not {type(value).__name__}")
        return value

    def document(self, value: Any, *, plain: bool) -> Any:
        """The record's own."""
        return None if value is None else value.as_document(plain=plain)


def as_field(value: Any) -> Field:
    """The field that a declaration represents; TypeError for anything else."""
    if isinstance(value, Field):
        return value
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return CustomEnum(value)
    if isinstance(value, type) and issubclass(value, Record):
        value = value()
    if isinstance(value, Record):
        return SubRecord(value)
    raise TypeError(f"{value!r} is neither a field nor a record")


def _is_declaration(value: Any) -> bool:
    return isinstance(value, (Field, Record)) or (isinstance(value, type) and issubclass(value, (enum.Enum, Record)))


class Record:
    """Base of records. Fields are class attributes; an instance has their values, checked when they are set."""

    _fields: ClassVar[dict[str, Field]] = {}
    _avro_namespace: ClassVar[str | None] = None
    _sorted_fields: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        mine = {name: as_field(value) for name, value in vars(cls).items() if _is_declaration(value)}
        cls._fields = mine

    def __init__(self, default: Any = None, required_default: bool = False, required: bool = False, **values: Any) -> None:
        options = {"default": default, "required_default": required_default, "required": required}
        object.__setattr__(self, "_options", options)
        for name, field in self._fields.items():
            if name in values:
                setattr(self, name, values[name])
            else:
                object.__setattr__(self, name, field.default())

    @property
    def field_options(self) -> dict[str, Any]:
        """What it was told as the declaration of a field."""
        options: dict[str, Any] = vars(self)["_options"]
        return options

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._fields:
            raise AttributeError(f"{type(self).__name__} has no field {name}")
        object.__setattr__(self, name, self._fields[name].validate(name, value))

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """The Avro definition."""
        definition: dict[str, Any] = cls.schema_info(set())
        return definition

    @classmethod
    def schema_info(cls, known: set[str]) -> Any:
        """The Avro definition, or its name where that is `known` already."""
        full_name = f"{cls._avro_namespace}.{cls.__name__}" if cls._avro_namespace else cls.__name__
        if full_name in known:
            return full_name
        known.add(full_name)
        names = sorted(cls._fields) if cls._sorted_fields else cls._fields
        definition: dict[str, Any] = {"type": "record", "name": cls.__name__}
        if cls._avro_namespace:
            definition["namespace"] = cls._avro_namespace
        return definition | {"fields": [cls._field_definition(name, cls._fields[name], known) for name in names]}

    @staticmethod
    def _field_definition(name: str, field: Field, known: set[str]) -> dict[str, Any]:
        start: dict[str, Any] = {"name": name}
        if field.writes_default():
            start["default"] = field.document(field.default(), plain=False)
        return start | {"type": field.with_null(known)}

    def as_document(self, *, plain: bool = True) -> dict[str, Any]:
        """A dict, as JSON (`plain`) or Avro libraries take it."""
        return {name: field.document(getattr(self, name), plain=plain) for name, field in self._fields.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self.as_document(plain=False) == other.as_document(plain=False)

    __hash__ = None  # type: ignore[assignment]  # its values change

    def __str__(self) -> str:
        return str(self.as_document(plain=False))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"
