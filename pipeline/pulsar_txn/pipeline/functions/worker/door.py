"""The broker's door for its worker, over HTTP."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.inside import parse_topic
from pulsar_txn.pipeline.functions.worker.specs import InstanceSpec

_BASE: Final = "/admin/pulsar-txn/v1/functions"
_WAIT: Final = aiohttp.ClientTimeout(total=30)
_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class WorkerReplaced(PulsarError):  # noqa: N818 - named as the client's errors are
    """Another functions worker has taken over; this one must end."""

    fatal = True


class Door:
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
        """Return what is to run, when it is something else than at the revision `after`, or after a while. WorkerReplaced."""
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
        """Return what the broker asks, when there is something, or after a while. WorkerReplaced."""
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
