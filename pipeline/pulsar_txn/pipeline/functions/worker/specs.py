"""Functions and instances that are to run: functions as the broker keeps them, and the instances that they ask for.

Without IO.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from pulsar_txn.client.errors import InvalidConfiguration

OUR_KEYS: Final = ("transaction", "state", "windowConfig")
"""Keys that Pulsar's own tools do not know: they come in `customRuntimeOptions`, as JSON."""


@attrs.frozen
class InstanceName:
    """One instance of a function."""

    fqfn: str
    number: int


@attrs.frozen
class InstanceSpec:
    """Specification that an instance is started with; another spec means another process."""

    name: InstanceName
    package: int
    package_name: str
    sha256: str
    config_text: str
    restarts: int

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, without `py`."""
        found: dict[str, Any] = json.loads(self.config_text)
        return found


def specs_of(functions: Iterable[Mapping[str, Any]]) -> dict[InstanceName, InstanceSpec]:
    """All instances that are to run, from what the broker's door answers."""
    found: dict[InstanceName, InstanceSpec] = {}
    for each in functions:
        record = each["record"]
        if not record["running"]:
            continue
        package, config = record["package"], record["config"]
        fqfn = f"{each['tenant']}/{each['namespace']}/{each['name']}"
        for number in range(config.get("parallelism", 1)):
            if number in record["stopped"]:
                continue
            restarts = record["restarts"].get("all", 0) + record["restarts"].get(str(number), 0)
            name = InstanceName(fqfn, number)
            text = json.dumps(config, sort_keys=True)
            found[name] = InstanceSpec(name, package["number"], package["name"], package["sha256"], text, restarts)
    return found


def function_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a run understands, of what `pulsar-admin` sends: values that say nothing are left out.

    `state: {}` says that there is state. InvalidConfiguration when `customRuntimeOptions` is no JSON object with our keys.
    """
    found = {key: value for key, value in config.items() if value not in (None, {}, [], "") or (key, value) == ("state", {})}
    found.pop("cleanupSubscription", None)  # the worker does that, when the function is deleted
    options = found.pop("customRuntimeOptions", None)
    if options is not None:
        found |= _ours(options)
    if "inputSpecs" in found:
        found["inputSpecs"] = {topic: _without_defaults(spec) for topic, spec in found["inputSpecs"].items()}
    if "producerConfig" in found:
        found["producerConfig"] = _without_defaults(found["producerConfig"])
    return found


def _ours(options: str) -> dict[str, Any]:
    try:
        found = json.loads(options)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.keys() - set(OUR_KEYS):
        raise InvalidConfiguration(
            f"customRuntimeOptions should be a JSON object with some of {', '.join(OUR_KEYS)}, not {options[:80]!r}"
        )
    return found


def _without_defaults(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if value not in (None, {}, [], "", False, 0)}
