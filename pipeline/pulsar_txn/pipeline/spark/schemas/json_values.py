"""Values in JSON payloads, which have numbers and text where Avro has bytes and logical types.

Reads what Java's client (Jackson) and this project's write: times as numbers in the unit of the definition, instants as
seconds with a fraction, times as text or as lists of their parts; bytes as Base64; decimals as numbers or text. Writes numbers
in the unit of the definition, Base64, and decimals as text, which keeps all digits.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from pulsar_txn.pipeline.spark.option_values import BEGIN_OF_TIME_MS, END_OF_TIME_MS
from pulsar_txn.pipeline.spark.schemas.definitions import Convert, Node, converter

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  # without a time zone, as the type says
_DAY_ZERO: Final = date(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_PER_DAY: Final = timedelta(days=1) // _MICROSECOND
_DAY_MS: Final = _PER_DAY // 1000


def json_reader(node: Node) -> Callable[[bytes], Any]:
    """From a payload to a value for Arrow. ValueError, TypeError."""
    convert = converter(node, _read)
    if convert is None:
        return json.loads
    fix = convert
    if not _needs_text(node):
        return lambda payload: fix(json.loads(payload))
    return lambda payload: fix(json.loads(payload, parse_float=_Number))


def _needs_text(node: Node) -> bool:
    """True if the digits of numbers matter, beyond those of a double."""
    if node.logical == "decimal" or (node.logical or "").startswith("timestamp"):
        return True
    below = [each for _, each in node.fields] if node.inner is None else [node.inner]
    return any(_needs_text(each) for each in below)


def json_writer(node: Node) -> Callable[[Any], bytes]:
    """From a value of Arrow to a payload."""
    convert = converter(node, _write, pairs=True)
    check = _required(node)

    def write(value: Any) -> bytes:
        if check is not None:
            check(value, "value")
        document = value if convert is None else convert(value)
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    return write


class _Number(float):
    """A number with a fraction, and its text."""

    __slots__ = ("text",)

    def __new__(cls, text: str) -> _Number:
        """Keep the text beside the number."""
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str


def _read(node: Node) -> Convert | None:
    logical = node.logical
    if logical == "decimal":
        return _decimal
    if node.kind in ("bytes", "fixed"):
        return lambda text: base64.b64decode(text, validate=True)
    if logical is None and node.kind in ("int", "long"):
        return _whole
    if node.kind in ("float", "double"):
        return _fraction
    if logical is None or logical == "uuid":
        return None
    scale = 1000 if logical.endswith("millis") else 1
    if logical == "date":
        return lambda value: _days(value) if _is_whole(value) else (_parts(date, value) - _DAY_ZERO).days
    if logical.startswith("timestamp"):
        return lambda value: _micros(value * scale if _is_whole(value) else _instant(value))
    if logical.startswith("local"):
        return lambda value: (
            _micros(value * scale) if _is_whole(value) else (_parts(datetime, value) - _LOCAL_EPOCH) // _MICROSECOND
        )
    return lambda value: _time_of_day(value * scale) if _is_whole(value) else _parts(time, value)


def _micros(value: int) -> int:
    """A time in Spark's unit, which Python's calendar has as well: else it passes, and ends the query that collects it."""
    if not BEGIN_OF_TIME_MS <= value // 1000 < END_OF_TIME_MS:
        raise ValueError(f"{value} microseconds are not between the years 1 and 9999")
    return value


def _days(value: int) -> int:
    if not BEGIN_OF_TIME_MS <= value * _DAY_MS < END_OF_TIME_MS:
        raise ValueError(f"{value} days are not between the years 1 and 9999")
    return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(value: Any) -> int:
    """Arrow would cut a fraction, and take truth for a number."""
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise TypeError(f"a whole number is needed, not {value!r}")


def _fraction(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError(f"a number is needed, not {value!r}")
    number: float = value
    return number


def _decimal(value: Any) -> Decimal:
    if isinstance(value, _Number):
        return Decimal(value.text)
    if isinstance(value, str) or _is_whole(value):
        return Decimal(value)
    raise TypeError(f"a number is needed, not {value!r}")


def _instant(value: Any) -> int:
    """Microseconds: of seconds with a fraction, as Jackson writes Instants, or of text with a time zone."""
    if isinstance(value, _Number):
        return int(Decimal(value.text).scaleb(6))
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    return (found - _EPOCH) // _MICROSECOND


def _parts(kind: Any, value: Any) -> Any:
    """A date or time from its text, or from its parts, of which the last may be nanoseconds."""
    if isinstance(value, str):
        return kind.fromisoformat(value)
    if not isinstance(value, Sequence):
        raise TypeError(f"a {kind.__name__} is needed, not {value!r}")
    most = {date: 3, time: 4, datetime: 7}[kind]
    return kind(*value[: most - 1], *(part // 1000 if most != 3 else part for part in value[most - 1 :]))


def _time_of_day(micros: int) -> time:
    if not 0 <= micros < _PER_DAY:
        raise ValueError(f"{micros} microseconds are no time of day")
    return (_LOCAL_EPOCH + micros * _MICROSECOND).time()


def _write(node: Node) -> Convert | None:
    logical = node.logical
    if node.kind == "enum":
        return lambda value: _symbol(node, value)
    if logical == "decimal":
        return str
    if node.kind in ("bytes", "fixed"):
        return lambda value: base64.b64encode(value).decode()
    if logical is None or logical == "uuid":
        return None
    unit = timedelta(milliseconds=1) if logical.endswith("millis") else _MICROSECOND
    if logical == "date":
        return lambda value: (value - _DAY_ZERO).days
    if logical.startswith("timestamp"):
        return lambda value: (value - _EPOCH) // unit
    if logical.startswith("local"):
        return lambda value: (value - _LOCAL_EPOCH) // unit
    return lambda value: (datetime.combine(_DAY_ZERO, value) - _LOCAL_EPOCH) // unit


def _symbol(node: Node, value: str) -> str:
    if value not in node.symbols:
        raise ValueError(f"{value!r} is none of {', '.join(sorted(node.symbols))}")
    return value


Check = Callable[[Any, str], None]


def _required(node: Node) -> Check | None:
    """Refuses null where the definition has no null; None where it has null everywhere."""
    if node.kind == "record":
        parts = [(name, each.is_optional, _required(each)) for name, each in node.fields]
        strict = [each for each in parts if not each[1] or each[2] is not None]
        return _of_fields(strict) if strict else None
    inner = node.inner
    if inner is None:
        return None
    below, is_map = _required(inner), node.kind == "map"
    if inner.is_optional and below is None:
        return None

    def check(values: Any, path: str) -> None:
        for each in values or ():
            _check_one(each[1] if is_map else each, f"{path}[]", below, optional=inner.is_optional)

    return check


def _of_fields(parts: Sequence[tuple[str, bool, Check | None]]) -> Check:
    def check(value: Any, path: str) -> None:
        for name, optional, below in parts:
            _check_one(value.get(name), f"{path}.{name}", below, optional=optional)

    return check


def _check_one(value: Any, path: str, below: Check | None, *, optional: bool) -> None:
    if value is None:
        if not optional:
            raise ValueError(f"{path} is null, and the schema has no null there")
    elif below is not None:
        below(value, path)
