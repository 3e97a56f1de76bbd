"""The options of `format("pulsar")`, read from what Spark hands over: names in any case, values as text."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from pulsar_txn.pipeline.spark.errors import OptionError

COMPRESSIONS: Final = {"none": 0, "lz4": 1, "zlib": 2, "zstd": 3, "snappy": 4}


def _text(value: str) -> str:
    return value


def _names(value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _flag(value: str) -> bool:
    return {"true": True, "false": False}[value.strip().lower()]


def _positive(value: str) -> int:
    number = int(value)
    if number <= 0:
        raise ValueError(value)
    return number


def _compression(value: str) -> int:
    return COMPRESSIONS[value.strip().lower()]


_EXPECTED: Final[dict[Callable[[str], Any], str]] = {
    _text: "a text",
    _names: "names with commas between them",
    _flag: "true or false",
    _positive: "a whole number above 0",
    _compression: f"one of {', '.join(COMPRESSIONS)}",
}


def _option(name: str, read: Callable[[str], Any], default: Any) -> Any:
    return attrs.field(default=default, metadata={"name": name, "read": read})


@attrs.frozen(kw_only=True)
class Options:
    """All options, for source and sink; times in milliseconds, sizes in bytes. The table in `docs/` explains them."""

    service_url: str = _option("service.url", _text, "")
    token_file: str | None = _option("tokenFile", _text, None)
    operation_timeout_ms: int = _option("operationTimeoutMs", _positive, 30_000)
    topics: tuple[str, ...] = _option("topic", _names, ())
    # source
    starting_offsets: str | None = _option("startingOffsets", _text, None)
    ending_offsets: str = _option("endingOffsets", _text, "latest")
    max_messages_per_trigger: int | None = _option("maxMessagesPerTrigger", _positive, None)
    subscription_name: str | None = _option("subscriptionName", _text, None)
    fail_on_data_loss: bool = _option("failOnDataLoss", _flag, True)
    poll_timeout_ms: int = _option("pollTimeoutMs", _positive, 30_000)
    # sink
    sink_id: str | None = _option("sinkId", _text, None)
    sink_name: str = _option("sinkName", _text, "0")
    control_topic: str | None = _option("controlTopic", _text, None)
    transaction_timeout_ms: int = _option("transactionTimeoutMs", _positive, 600_000)
    commit_timeout_ms: int = _option("commitTimeoutMs", _positive, 120_000)
    inline_max_bytes: int = _option("inlineMaxBytes", _positive, 16 * 1024 * 1024)
    batching_max_bytes: int = _option("batchingMaxBytes", _positive, 128 * 1024)
    batching_max_messages: int = _option("batchingMaxMessages", _positive, 1000)
    compression: int = _option("compression", _compression, 0)
    batch_id_property: str = _option("batchIdProperty", _text, "__batch_id")
    adopt_checkpoint: bool = _option("adoptCheckpoint", _flag, False)


_ALIASES: Final = {"serviceurl": "service.url", "topics": "topic"}
_BY_NAME: Final = {field.metadata["name"].lower(): field for field in attrs.fields(Options)}
_OF_SPARK: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "paths"})


def read_options(given: Mapping[str, str]) -> Options:
    """Spark's options. OptionError names what is unknown, missing or cannot be read."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        key = _ALIASES.get(name.lower(), name.lower())
        field = _BY_NAME.get(key)
        if field is None:
            _refuse_unknown(name)
            continue
        values[field.name] = _read(field, text)
    if not values.get("service_url"):
        raise OptionError(
            'the option "service.url" is missing, for instance .option("service.url", "pulsar://localhost:6650"); '
            "with SQL use CREATE TEMPORARY VIEW … USING pulsar OPTIONS (…), since tables do not keep options"
        )
    return Options(**values)


def _read(field: attrs.Attribute[Any], text: str) -> Any:
    read = field.metadata["read"]
    try:
        return read(text)
    except (ValueError, KeyError):
        raise OptionError(f"option {field.metadata['name']}: {text!r} is not {_EXPECTED[read]}") from None


def _refuse_unknown(name: str) -> None:
    """Spark adds its own options, so only a name that looks like a misspelling of one of these is an error."""
    if name.lower() in _OF_SPARK:
        return
    close = difflib.get_close_matches(name.lower(), [*_BY_NAME, *_ALIASES], n=1, cutoff=0.75)
    if close:
        known = _BY_NAME[_ALIASES.get(close[0], close[0])].metadata["name"]
        raise OptionError(f"unknown option {name!r}; did you mean {known!r}?")
