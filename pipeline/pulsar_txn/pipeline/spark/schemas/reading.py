"""Payloads as columns of typed values; what does not fit is null, and reported with its number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from pulsar_txn.client.encoded import SchemaInfo, message_class
from pulsar_txn.pipeline.spark.schemas.avro_values import AvroValues
from pulsar_txn.pipeline.spark.schemas.casting import UNFIT, Unfit, cast_column, one_by_one
from pulsar_txn.pipeline.spark.schemas.definitions import parsed
from pulsar_txn.pipeline.spark.schemas.json_values import json_reader
from pulsar_txn.pipeline.spark.schemas.parts import AVRO, JSON, PROTOBUF_NATIVE, Part
from pulsar_txn.pipeline.spark.schemas.primitives import PRIMITIVES
from pulsar_txn.pipeline.spark.schemas.protobuf_values import message_reader

Payloads = Sequence[bytes | None]
Versions = Sequence[tuple[int, bytes]]
"""How many messages after each other were written with which version of the schema (empty: not known)."""
Asked = Callable[[bytes], SchemaInfo | None]
"""The schema of a version."""


class PartReader:
    """Reads one part of the messages of one topic."""

    def __init__(self, topic: str, part: Part, asked: Asked) -> None:
        self._part = part
        self._asked = asked
        self._type = to_arrow_type(part.kind, timezone="UTC")
        self._written: dict[bytes, Callable[[bytes], Any]] = {}
        self._avro: AvroValues | None = None
        self._decode: Callable[[bytes], Any] | None = None
        info = part.info
        if info is None or info.type in PRIMITIVES:
            return
        if info.type == JSON:
            self._decode = json_reader(parsed(topic, info.data))
        elif info.type == AVRO:
            self._avro = AvroValues(info, parsed(topic, info.data))
        elif info.type == PROTOBUF_NATIVE:
            self._decode = message_reader(message_class(info))

    def column(self, payloads: Payloads, versions: Versions) -> tuple[Any, Unfit]:
        """The values, and what is wrong with those that are null because they do not fit."""
        info = self._part.info
        if info is None:
            return pa.array(payloads, pa.binary()), {}
        if info.type in PRIMITIVES:
            primitive = PRIMITIVES[info.type]
            found, bad = primitive.column(payloads)
            return found, {number: ValueError(f"it is no {primitive.name}") for number in bad}
        if self._avro is None and self._decode is None:
            return cast_column(pa.array(payloads, pa.binary()), self._type)
        values, unfit = self._values(payloads, versions)
        found, more = _array(values, self._type)
        return found, unfit | more

    def _values(self, payloads: Payloads, versions: Versions) -> tuple[list[Any], Unfit]:
        values: list[Any] = []
        unfit: Unfit = {}
        for count, version in versions:
            decode = self._decode or self._reader_of(version)
            for payload in payloads[len(values) : len(values) + count]:
                try:
                    values.append(None if payload is None else decode(payload))
                except UNFIT as error:
                    unfit[len(values)] = error
                    values.append(None)
        return values, unfit

    def _reader_of(self, version: bytes) -> Callable[[bytes], Any]:
        """With Avro, a payload can be read only with the definition that it was written with."""
        found = self._written.get(version)
        if found is None:
            assert self._avro is not None  # noqa: S101  # no other kind comes here
            assert self._part.info is not None  # noqa: S101
            found = self._written[version] = self._avro.reader((self._asked(version) if version else None) or self._part.info)
        return found


def _array(values: Sequence[Any], kind: Any) -> tuple[Any, Unfit]:
    """Decoded values as a column."""
    try:
        return pa.array(values, kind), {}
    except UNFIT:
        return one_by_one(values, lambda value: pa.array([value], kind), kind)
