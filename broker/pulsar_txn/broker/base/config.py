"""Reading configuration: Pulsar's files, Pulsar's key names, and environment variables as in Pulsar's images.

A file is a Java properties file with camelCase keys. Precedence, lowest first: built-in defaults, the file, the
environment (a variable with the very name of a key; `PULSAR_PREFIX_key` works as well), what the command line says.
A stock `standalone.conf` is read without an error: keys that this broker does not have are named in one warning.
"""

from __future__ import annotations

import difflib
import importlib.resources
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import javaproperties

from pulsar_txn.wire.secret_text import Secret

from .settings import BrokerConfig, ConfigError

ConfigT = TypeVar("ConfigT")

COMMAND_LINE: Final = "command line"
ENVIRONMENT_PREFIX: Final = "PULSAR_PREFIX_"
_SHIPPED: Final = "standalone.conf"
_UNLIMITED_AT_MINUS_ONE: Final = frozenset({"default_retention_time_in_minutes", "default_retention_size_in_mb"})
_AT_LEAST_ONE: Final = frozenset(
    {
        "keep_alive_interval_seconds",
        "connection_liveness_check_timeout_millis",
        "max_message_size",
        "incomplete_frame_timeout_seconds",
        "max_concurrent_requests_per_connection",
        "max_pending_publish_requests_per_connection",
        "managed_ledger_max_entries_per_ledger",
        "managed_ledger_max_size_per_ledger_mbytes",
        "retention_check_interval_in_seconds",
        "default_num_partitions",
        "broker_deduplication_entries_interval",
        "dispatcher_max_read_batch_size",
        "dispatcher_max_read_size_bytes",
        "delayed_delivery_tick_time_millis",
        "max_ack_state_bytes_per_subscription",
        "max_pending_ack_bytes_per_subscription",
        "max_pending_ack_bytes_per_transaction",
        "number_of_transaction_coordinators",
        "transactional_id_take_over_timeout_in_millis",
        "transaction_check_interval_in_seconds",
        "transaction_check_max",
    }
)
_MAX_PORT: Final = 65535
_CHOICES: Final = {
    "allow_auto_topic_creation_type": ("non-partitioned", "partitioned"),
    "transaction_check_policy": ("park", "abort", "commit", "keep"),
}


@attrs.frozen
class Loaded:
    """A configuration, where each value came from (`default`, `FILE:LINE`, `environment KEY`, `command line`), and warnings."""

    config: BrokerConfig
    origins: Mapping[str, str]
    warnings: tuple[str, ...]


@attrs.frozen
class Setting:
    """A key with its value, and where it was said."""

    key: str
    value: str = attrs.field(repr=False)  # perhaps a secret
    origin: str


def conf_key(field: str) -> str:
    """The camelCase key of a field of BrokerConfig, as Pulsar spells it."""
    first, *rest = field.split("_")
    key = first + "".join(word.capitalize() for word in rest)
    return key.removesuffix("Mb") + "MB" if field.endswith(("_size_in_mb", "_mem_size_mb")) else key


def fields_of(kind: type[Any]) -> dict[str, attrs.Attribute[Any]]:
    """Key in the file -> field of an attrs class."""
    return {conf_key(field.name): field for field in attrs.fields(kind)}


FIELDS: Final[Mapping[str, attrs.Attribute[Any]]] = fields_of(BrokerConfig)
"""Key in the file -> field of BrokerConfig."""


def shipped_conf() -> str:
    """The text of the `standalone.conf` that comes with the package (in a checkout: `conf/standalone.conf`)."""
    packaged = importlib.resources.files("pulsar_txn.broker") / "conf" / _SHIPPED
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).parents[4] / "conf" / _SHIPPED).read_text(encoding="utf-8")


def load(path: Path | None, environ: Mapping[str, str], command_line: Mapping[str, str] | None = None) -> Loaded:
    """Read a configuration; `path` None reads the shipped file.

    Raises ConfigError for a value that cannot be used, OSError when the file cannot be read.
    """
    text = shipped_conf() if path is None else path.read_text(encoding="utf-8")
    name = f"(shipped) {_SHIPPED}" if path is None else str(path)
    chosen, warnings = read_settings(text, name, environ, command_line or {}, FIELDS.__contains__)
    unknown = [each for key, each in chosen.items() if key not in FIELDS]
    refuse_unknown(unknown, FIELDS)
    if unknown:
        warnings.append(unknown_keys(unknown, "this broker"))
    config, origins = build(BrokerConfig, [each for key, each in chosen.items() if key in FIELDS])
    return Loaded(config, origins, tuple(warnings))


def read_settings(
    text: str, name: str, environ: Mapping[str, str], command_line: Mapping[str, str], is_known: Callable[[str], bool]
) -> tuple[dict[str, Setting], list[str]]:
    """Read settings from a file, the environment and a command line, by key; and warnings.

    `name` is the file's, for texts. A variable of the environment counts when `is_known` says so, or has the prefix.
    """
    warnings: list[str] = []
    chosen = _last_wins(_from_file(text, name), warnings)
    chosen |= {each.key: each for each in _from_environment(environ, is_known)}
    chosen |= {key: Setting(key, value, COMMAND_LINE) for key, value in command_line.items()}
    return chosen, warnings


def build(kind: type[ConfigT], settings: Iterable[Setting]) -> tuple[ConfigT, dict[str, str]]:
    """A configuration of the attrs class `kind`, and where the value of each field came from. ConfigError."""
    fields = fields_of(kind)
    chosen = {fields[each.key]: each for each in settings}
    values = {field.name: _convert(field, each) for field, each in chosen.items()}
    origins = {field.name: "default" for field in fields.values()}
    origins |= {field.name: each.origin for field, each in chosen.items()}
    for name, value in values.items():
        expected = _expected(name, value)
        if expected:
            raise ConfigError(f"{origins[name]}: {conf_key(name)}={value}: {expected} is expected")
    given = {field.name: values[field.name] for field in chosen if values[field.name] is not None or _is_optional(field)}
    return kind(**given), origins


def _from_file(text: str, name: str) -> Iterator[Setting]:
    line = 1
    for item in javaproperties.parse(text):
        if isinstance(item, javaproperties.KeyValue):
            yield Setting(item.key, item.value, f"{name}:{line}")
        line += item.source.count("\n")


def _from_environment(environ: Mapping[str, str], is_known: Callable[[str], bool]) -> Iterator[Setting]:
    for variable, value in environ.items():
        key = variable.removeprefix(ENVIRONMENT_PREFIX)
        if is_known(key) or key != variable:
            yield Setting(key, value, f"environment {variable}")


def _last_wins(settings: Iterator[Setting], warnings: list[str]) -> dict[str, Setting]:
    chosen: dict[str, Setting] = {}
    for each in settings:
        if each.key in chosen:
            warnings.append(f"{each.origin}: {each.key} is repeated (first at {chosen[each.key].origin}); this one counts")
        chosen[each.key] = each
    return chosen


def refuse_unknown(unknown: Iterable[Setting], known: Iterable[str]) -> None:
    """ConfigError for a key that a command line names and nobody knows: nobody would find the typing error.

    A file is of another program, perhaps, and its further keys are a warning.
    """
    for each in unknown:
        if each.origin == COMMAND_LINE:
            near = difflib.get_close_matches(each.key, list(known), 1)
            hint = f"; did you mean {near[0]}?" if near else "; docs/configuration.md has all keys"
            raise ConfigError(f"{COMMAND_LINE}: there is no key {each.key}{hint}")


def unknown_keys(unknown: Sequence[Setting], program: str) -> str:
    """The warning about keys that are passed over."""
    shown = ", ".join(f"{each.key} ({each.origin})" if len(unknown) <= 3 else each.key for each in unknown)
    return f"{len(unknown)} keys are not known to {program} and have no effect: {shown}"


def _convert(field: attrs.Attribute[Any], setting: Setting) -> Any:
    converter = _CONVERTERS[str(field.type)]
    try:
        return converter(setting.value.strip())
    except ValueError as error:
        raise ConfigError(f"{setting.origin}: {setting.key}={setting.value}: {error}") from None


def _expected(name: str, value: object) -> str:
    """The expected form of the value; empty when the value is fine."""
    if value is not None and value not in _CHOICES.get(name, (value,)):
        return " or ".join(_CHOICES[name])
    if not isinstance(value, int):
        return ""
    if name.endswith(("_port", "_port_tls")) and value > _MAX_PORT:
        return f"a port up to {_MAX_PORT}"
    least = -1 if name in _UNLIMITED_AT_MINUS_ONE else 1 if name in _AT_LEAST_ONE else 0
    return "" if value >= least else f"a number from {least} on"


def _is_optional(field: attrs.Attribute[Any]) -> bool:
    return "None" in str(field.type)


def _integer(text: str) -> int | None:
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number is expected") from None


def _boolean(text: str) -> bool | None:
    if not text:
        return None
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false is expected")
    return text.lower() == "true"


_CONVERTERS: Final[Mapping[str, Callable[[str], object]]] = {
    "int": _integer,
    "int | None": _integer,
    "bool": _boolean,
    "str": lambda text: text or None,
    "str | None": lambda text: text or None,
    "Secret": Secret,
    "Secret | None": lambda text: Secret(text) if text else None,
}
