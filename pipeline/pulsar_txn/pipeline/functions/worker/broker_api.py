"""Broker's API for its functions worker, over HTTP, and the instances that its assignments ask for.

`specs_of` and `function_config` do no IO.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import attrs

from pulsar_txn.client.errors import InvalidConfiguration, PulsarError
from pulsar_txn.client.inside import parse_topic

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
    """All instances that are to run, from what the broker answers."""
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


_BASE: Final = "/admin/pulsar-txn/v1/functions"
_WAIT: Final = aiohttp.ClientTimeout(total=30)
_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class WorkerReplaced(PulsarError):  # noqa: N818 - named as the client's errors are
    """Another functions worker has taken over; this one must end."""

    fatal = True


class BrokerApi:
    """Requests of a worker to its broker, and its reports.

    Raises aiohttp.ClientError and TimeoutError when it does not answer.
    """

    def __init__(self, session: aiohttp.ClientSession, admin_url: str, worker: str, folder: Path) -> None:
        self._session = session
        self._admin_url = admin_url.rstrip("/")
        self._url = self._admin_url + _BASE
        self._worker = worker
        self._folder = folder

    async def assignments(self, after: str) -> dict[str, Any]:
        """Wait for assignments newer than the revision `after`, or for a while. WorkerReplaced."""
        params = {"worker": self._worker, "after": after}
        async with self._session.get(f"{self._url}/assignments", params=params, timeout=_WAIT) as answer:
            await _check(answer)
            found: dict[str, Any] = await answer.json()
            return found

    async def report(self, fqfn: str, reports: list[dict[str, Any]]) -> None:
        """Report how the instances of a function are. WorkerReplaced."""
        params = {"worker": self._worker}
        async with self._session.put(f"{self._url}/reports/{fqfn}", params=params, json=reports, timeout=_WAIT) as answer:
            await _check(answer)

    async def questions(self) -> list[dict[str, Any]]:
        """Wait for questions of the broker, or for a while. WorkerReplaced."""
        async with self._session.get(f"{self._url}/questions", params={"worker": self._worker}, timeout=_WAIT) as answer:
            await _check(answer)
            found: list[dict[str, Any]] = await answer.json()
            return found

    async def answer(self, number: int, said: dict[str, Any]) -> None:
        """The answer to a question. WorkerReplaced."""
        params = {"worker": self._worker}
        async with self._session.put(f"{self._url}/answers/{number}", params=params, json=said, timeout=_WAIT) as answer:
            await _check(answer)

    async def has_topic(self, topic: str) -> bool:
        """True if there is such a topic, with partitions or without. Nothing is made."""
        name = parse_topic(topic)
        path = f"{self._admin_url}/admin/v2/{name.domain}/{name.tenant}/{name.namespace}/{quote(name.name, safe='')}"
        async with self._session.get(f"{path}/partitions", timeout=_WAIT) as answer:
            if answer.status == 200 and (await answer.json())["partitions"]:
                return True
        async with self._session.get(f"{path}/stats", timeout=_WAIT) as answer:
            return answer.status == 200

    async def package(self, spec: InstanceSpec) -> Path:
        """The file of a function, fetched once and checked."""
        if _FILE.fullmatch(spec.package_name) is None:
            raise PulsarError(f"the package's name {spec.package_name!r} is not a plain name")
        file = self._folder / spec.sha256[:32] / spec.package_name
        if file.exists():
            return file
        async with self._session.get(f"{self._url}/packages/{spec.package}", timeout=_WAIT) as answer:
            await _check(answer)
            data = await answer.read()
        if hashlib.sha256(data).hexdigest() != spec.sha256:
            raise PulsarError(f"package {spec.package} of {spec.name.fqfn} came damaged", hint="it is fetched again")
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(file.name + ".part")
        beside.write_bytes(data)
        beside.replace(file)
        return file


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status == 409:
        raise WorkerReplaced(str((await answer.json()).get("reason")))
    if answer.status >= 400:
        raise PulsarError(f"the broker answered {answer.status}: {(await answer.text())[:500]}")
