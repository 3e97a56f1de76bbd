"""The same values as attrs classes, dataclasses and pydantic models: what tests of schemas share."""

from __future__ import annotations

import dataclasses
import enum
from datetime import date, datetime, time
from uuid import UUID

import attrs
import pydantic

from pulsar_txn.client.schemas import Float32, Int32


class Kind(enum.Enum):
    BUY = "b"
    SELL = "s"


@attrs.frozen
class Leg:
    symbol: str
    amount: float = 1.5


@attrs.frozen
class AttrsOrder:
    id: int
    kind: Kind
    raw: bytes
    at: datetime
    day: date
    clock: time
    ref: UUID
    legs: list[Leg]
    tags: dict[str, int]
    note: str | None = None
    choice: int | str = 7
    small: Int32 = 3
    ratio: Float32 = 0.5
    default_kind: Kind = Kind.SELL
    names: tuple[str, ...] = ()
    nested: Leg | None = None
    flag: bool = True


@dataclasses.dataclass
class DataLeg:
    symbol: str
    amount: float = 1.5


@dataclasses.dataclass
class DataOrder:
    id: int
    kind: Kind
    raw: bytes
    at: datetime
    day: date
    clock: time
    ref: UUID
    legs: list[DataLeg]
    tags: dict[str, int]
    note: str | None = None
    choice: int | str = 7
    small: Int32 = 3
    ratio: Float32 = 0.5
    default_kind: Kind = Kind.SELL
    names: list[str] = dataclasses.field(default_factory=list)
    nested: DataLeg | None = None
    flag: bool = True


class ModelLeg(pydantic.BaseModel):
    symbol: str
    amount: float = 1.5


class ModelOrder(pydantic.BaseModel):
    id: int = pydantic.Field(alias="orderId")
    kind: Kind
    raw: bytes
    at: datetime
    day: date
    clock: time
    ref: UUID
    legs: list[ModelLeg]
    tags: dict[str, int]
    note: str | None = None
    choice: int | str = 7
    small: Int32 = 3
    ratio: Float32 = 0.5
    default_kind: Kind = Kind.SELL
    names: list[str] = []
    nested: ModelLeg | None = None
    flag: bool = True

    model_config = pydantic.ConfigDict(populate_by_name=True)


@dataclasses.dataclass
class Tree:
    value: int
    children: list[Tree] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Point:
    """Version 1 of a class whose later versions are below."""

    x: int
    y: int


@dataclasses.dataclass
class PointWithName:
    """Version 2: a field more, with a default."""

    x: int
    y: int
    name: str = "none"
