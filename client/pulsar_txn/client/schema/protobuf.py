"""Protobuf messages as they are (Pulsar's PROTOBUF_NATIVE): the broker gets their file descriptors."""

from __future__ import annotations

import base64
import json
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch
from pulsar_txn.client.schema.base import PROTOBUF_NATIVE, SchemaInfo

M = TypeVar("M", bound=Message)


class ProtobufNativeSchema(Generic[M]):
    """Messages of one generated class. Protobuf's own rules of compatibility hold between versions."""

    def __init__(self, message_class: type[M]) -> None:
        if not (isinstance(message_class, type) and issubclass(message_class, Message)):
            raise InvalidConfiguration(f"a generated protobuf class is needed, not {message_class!r}")
        self._class = message_class
        descriptor: Any = message_class.DESCRIPTOR
        files = FileDescriptorSet()
        _collect(descriptor.file, files, set())
        # The field names are those of ProtobufNativeSchemaData, in the order of Pulsar's clients.
        definition = {
            "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
            "rootMessageTypeName": descriptor.full_name,
            "rootFileDescriptorName": descriptor.file.name,
        }
        self.info: SchemaInfo | None = SchemaInfo(PROTOBUF_NATIVE, json.dumps(definition).encode(), "PROTOBUF_NATIVE")

    def encode(self, value: M) -> bytes:
        """The message's bytes; SchemaMismatch for another class or a missing required field."""
        if not isinstance(value, self._class):
            raise SchemaMismatch(f"{self._class.__name__} is needed, not {type(value).__name__}")
        try:
            return value.SerializeToString()
        except EncodeError as error:
            raise SchemaMismatch(f"the message cannot be written: {error}") from error

    def decode(self, payload: bytes) -> M:
        """The message of the bytes."""
        try:
            return self._class.FromString(payload)
        except DecodeError as error:
            raise SchemaMismatch(f"the payload is no {self._class.__name__}: {error}") from error


def _collect(file: FileDescriptor, files: FileDescriptorSet, seen: set[str]) -> None:
    """The file after everything that it imports."""
    if file.name in seen:
        return
    seen.add(file.name)
    for dependency in file.dependencies:
        _collect(dependency, files, seen)
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    files.file.append(proto)


def message_class(writer: SchemaInfo) -> Any:
    """A class made from the descriptors of a schema. InvalidConfiguration when they cannot be read."""
    try:
        definition = json.loads(writer.data)
        files = FileDescriptorSet.FromString(base64.b64decode(definition["fileDescriptorSet"]))
        pool = DescriptorPool()
        for file in files.file:
            pool.Add(file)
        return GetMessageClass(pool.FindMessageTypeByName(definition["rootMessageTypeName"]))
    except Exception as error:  # json, base64 and protobuf raise of all kinds
        raise InvalidConfiguration(f"its descriptors cannot be read: {error!r}") from error
