"""Schemas and records under the official names. A value is encoded in the caller's thread, and decoded by `message.value()`.

`JsonSchema`, `AvroSchema` take an attrs class, a dataclass or a pydantic model, or a `Record`: a value that is declared field
by field, in the official style, with the Avro definition that follows from it.

    class Order(Record):
        id = Integer(required=True)
        items = Array(String())
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Any, ClassVar

from pulsar_txn.client import JsonSchema as OurJsonSchema
from pulsar_txn.client import Schema as OurSchema
from pulsar_txn.client.inside import PROTOBUF_NATIVE, SchemaInfo, need

if TYPE_CHECKING:
    from pulsar_txn.compat.messages import Message


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
        """Definition of its items."""
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
        """Definition of its values."""
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
        """Declaration of a field, as it was given."""
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


_SCHEMA_TYPES = {"STRING": 1, "JSON": 2, "PROTOBUF": 3, "AVRO": 4}


class Schema:
    """Base of the schemas, also for a program's own: override `encode` and `decode`.

    `record_cls` is the class of the values, `schema_type` Pulsar's number (0: just bytes), `schema_definition` what the
    broker keeps (a mapping or None), `schema_name` its name.
    """

    def __init__(self, record_cls: Any, schema_type: Any, schema_definition: Any, schema_name: str) -> None:
        self._record_cls = record_cls
        self._schema_info = _info(int(schema_type), schema_definition, schema_name)

    def encode(self, obj: Any) -> bytes:
        """The payload of a value; TypeError for a value of another class."""
        raise TypeError(f"{type(self).__name__} has no encode")

    def decode(self, data: bytes) -> Any:
        """The value of a payload."""
        raise TypeError(f"{type(self).__name__} has no decode")

    def decode_message(self, msg: Message) -> Any:
        """The value of a received message."""
        return self.decode(msg.data())

    def schema_info(self) -> SchemaInfo | None:
        """Schema for the broker; None for just bytes."""
        return self._schema_info

    def attach_client(self, client: Any) -> None:
        """Nothing: schemas need no client here."""

    def native(self) -> OurSchema[Any]:
        """For the client: what it is given."""
        return PreEncoded(self._schema_info)

    def _validate_object_type(self, obj: Any) -> None:
        if not isinstance(obj, self._record_cls):
            raise TypeError(f"{self._record_cls.__name__} is needed, not {type(obj).__name__}")

    def __str__(self) -> str:
        return type(self).__name__


def _info(schema_type: int, definition: Any, name: str) -> SchemaInfo | None:
    if schema_type <= 0:
        return None
    data = b"" if definition is None else json.dumps(definition).encode()
    return SchemaInfo(schema_type, data, name)


class PreEncoded:
    """A schema of our client for payloads that are encoded already; told to the broker as `info`."""

    def __init__(self, info: SchemaInfo | None) -> None:
        self.info = info

    def encode(self, value: bytes) -> bytes:
        """Return it as it is."""
        return value

    def decode(self, payload: bytes) -> bytes:
        """Return it as it is."""
        return payload


class PreEncodedWritten(PreEncoded):
    """As `PreEncoded`, and received values are read with the definition that they were written with."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.info)
        self._inner = inner

    def decode(self, payload: bytes) -> Any:
        """Decode by the schema."""
        return self._inner.decode(payload)

    def decode_written(self, payload: bytes, writer: SchemaInfo) -> Any:
        """Decode by the schema and its writer's."""
        return self._inner.decode_written(payload, writer)


class BytesSchema(Schema):
    """Payloads as they are."""

    def __init__(self) -> None:
        super().__init__(bytes, 0, None, "BYTES")

    def encode(self, obj: Any) -> bytes:
        """The bytes themselves; TypeError for anything else."""
        self._validate_object_type(obj)
        return bytes(obj)

    def decode(self, data: bytes) -> bytes:
        """The bytes themselves."""
        return data


class StringSchema(Schema):
    """Text as UTF-8."""

    def __init__(self) -> None:
        super().__init__(str, _SCHEMA_TYPES["STRING"], None, "STRING")

    def encode(self, obj: Any) -> bytes:
        """UTF-8 bytes; TypeError for anything but text."""
        self._validate_object_type(obj)
        return str(obj).encode()

    def decode(self, data: bytes) -> str:
        """Text of UTF-8 bytes."""
        return data.decode()


class JsonSchema(Schema):
    """JSON documents of a Record, an attrs class, a dataclass or a pydantic model; written compactly."""

    def __init__(self, record_cls: Any) -> None:
        self._of_record = isinstance(record_cls, type) and issubclass(record_cls, Record)
        self._inner: OurJsonSchema[Any] | None = None if self._of_record else OurJsonSchema(record_cls)
        super().__init__(record_cls, _SCHEMA_TYPES["JSON"], record_cls.schema() if self._of_record else None, "JSON")

    def encode(self, obj: Any) -> bytes:
        """UTF-8 JSON; TypeError for a value of another class."""
        self._validate_object_type(obj)
        if self._inner is not None:
            return self._inner.encode(obj)
        return json.dumps(obj.as_document(), separators=(",", ":"), ensure_ascii=False).encode()

    def decode(self, data: bytes) -> Any:
        """A value of the class."""
        return self._record_cls(**json.loads(data)) if self._inner is None else self._inner.decode(data)

    def schema_info(self) -> SchemaInfo | None:
        """The class's definition."""
        return self._schema_info if self._inner is None else self._inner.info

    def native(self) -> OurSchema[Any]:
        """For the client: what it is given."""
        return PreEncoded(self.schema_info())


class AvroSchema(Schema):
    """Avro of a Record, an attrs class, a dataclass or a pydantic model; or of dicts, with a definition. Extra `avro`."""

    def __init__(self, record_cls: Any, schema_definition: Any = None) -> None:
        if record_cls is None and schema_definition is None:
            raise AssertionError("give record_cls or schema_definition")
        self._of_record = isinstance(record_cls, type) and issubclass(record_cls, Record)
        definition = schema_definition or (record_cls.schema() if self._of_record else None)
        avro = need("pulsar_txn.client.schema.avro", "avro")
        self._inner = avro.AvroSchema(record_cls if definition is None else definition)
        super().__init__(record_cls or dict, _SCHEMA_TYPES["AVRO"], definition, "AVRO")

    def encode(self, obj: Any) -> bytes:
        """Avro's binary form; TypeError for a value of another class."""
        self._validate_object_type(obj)
        return self.encode_dict(obj.as_document(plain=False)) if self._of_record else self._encoded(obj)

    def encode_dict(self, d: dict[str, Any]) -> bytes:
        """Avro's binary form of a dict."""
        return self._encoded(d)

    def _encoded(self, value: Any) -> bytes:
        payload: bytes = self._inner.encode(value)
        return payload

    def decode(self, data: bytes) -> Any:
        """A value of the class, written with this very definition."""
        return self._of(self._inner.decode(data))

    def decode_message(self, msg: Message) -> Any:
        """A value of the class, read with its writer's definition."""
        return self._of(msg.native().value)

    def _of(self, value: Any) -> Any:
        return self._record_cls(**value) if self._of_record and value is not None else value

    def schema_info(self) -> SchemaInfo | None:
        """The definition."""
        info: SchemaInfo | None = self._inner.info
        return info

    def native(self) -> OurSchema[Any]:
        """For the client: what it is given."""
        return PreEncodedWritten(self._inner)


class ProtobufNativeSchema(Schema):
    """Messages of one generated protobuf class."""

    def __init__(self, record_cls: Any) -> None:
        protobuf = need("pulsar_txn.client.schema.protobuf", "protobuf")
        self._inner = protobuf.ProtobufNativeSchema(record_cls)
        super().__init__(record_cls, PROTOBUF_NATIVE, None, "PROTOBUF_NATIVE")

    def encode(self, obj: Any) -> bytes:
        """The message's bytes; TypeError for a value of another class."""
        self._validate_object_type(obj)
        payload: bytes = self._inner.encode(obj)
        return payload

    def decode(self, data: bytes) -> Any:
        """The message of its bytes."""
        return self._inner.decode(data)

    def schema_info(self) -> SchemaInfo | None:
        """The class's descriptor."""
        info: SchemaInfo | None = self._inner.info
        return info

    def native(self) -> OurSchema[Any]:
        """For the client: what it is given."""
        return PreEncoded(self.schema_info())


__all__ = [
    "Array",
    "AvroSchema",
    "Boolean",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "Double",
    "Field",
    "Float",
    "Integer",
    "JsonSchema",
    "Long",
    "Map",
    "Null",
    "ProtobufNativeSchema",
    "Record",
    "Schema",
    "String",
    "StringSchema",
]
