"""Keys and values of the messages of one topic as typed columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pulsar_txn.client import KeyValueEncoding
from pulsar_txn.client.encoded import SchemaInfo, parts_of, split_pair
from pulsar_txn.pipeline.spark.schemas.casting import UNFIT, Unfit
from pulsar_txn.pipeline.spark.schemas.parts import KEY_VALUE, TopicType
from pulsar_txn.pipeline.spark.schemas.reading import Asked, PartReader, Versions

Bytes = Sequence[bytes | None]


class MessageReader:
    """Decodes them. `asked` is for the schemas that messages were written with."""

    def __init__(self, topic: str, typed: TopicType, asked: Asked) -> None:
        self._asked = asked
        self._encoding = typed.encoding
        self._value = PartReader(topic, typed.value, asked if typed.key is None else self._part_of(1))
        self._key = None if typed.key is None else PartReader(topic, typed.key, self._part_of(0))

    @property
    def needs_keys(self) -> bool:
        """True if the keys of messages are keys of pairs."""
        return self._encoding is KeyValueEncoding.SEPARATED

    def columns(self, payloads: Bytes, keys: Bytes, versions: Versions) -> tuple[Any, Any, Unfit]:
        """Keys (None for those of the messages), values, and what is wrong with which message."""
        unfit: Unfit = {}
        if self._encoding is KeyValueEncoding.INLINE:
            keys, payloads, unfit = _split(payloads)
        value, wrong = self._value.column(payloads, versions)
        unfit |= wrong
        if self._key is None:
            return None, value, unfit
        key, wrong = self._key.column(keys, versions)
        return key, value, unfit | wrong

    def _part_of(self, number: int) -> Callable[[bytes], SchemaInfo | None]:
        def asked(version: bytes) -> SchemaInfo | None:
            info = self._asked(version)
            return parts_of(info)[number] if info is not None and info.type == KEY_VALUE else None

        return asked


def _split(payloads: Bytes) -> tuple[list[bytes | None], list[bytes | None], Unfit]:
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    unfit: Unfit = {}
    for number, payload in enumerate(payloads):
        key = value = None
        try:
            if payload is not None:
                key, value = split_pair(payload)
        except UNFIT as error:
            unfit[number] = error
        keys.append(key)
        values.append(value)
    return keys, values, unfit
