"""Claims of this process in one cluster: service numbers of incarnations, registers of logs, and numbers of the front.

A cluster takes participants only while the claims are held. A register says which incarnation of a log was the last one, and
how far the log had come when participants were told of its decisions. So a start can see that its log is not the one that was
told from: see `tc.log_incarnations`. It changes by compare-and-set alone, so a process that goes on with a copy of the log
takes it away from the other one. Claims never tell a participant anything.

They are in topics of the cluster. `pulsar-txn-claims` is a small metadata store with compare-and-set, which all services write
to (`topic_ledger.metadata`): a claim has happened when it was read back. The topic `pulsar-txn-claims-<store>` has one
exclusive producer, the process that has the store: so a copy of a folder waits while its original is alive. Instances that
share a store are producers beside each other.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Final

import attrs

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.ledger.protocols import LeaseLost, LedgerError, MetadataStore, VersionConflict
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.tc_service.topic_ledger.metadata import SharedMetadata
from pulsar_txn.tc_service.topic_ledger.topic import EXCLUSIVE, SHARED, WAIT_FOR_EXCLUSIVE, LogSubscription, Writer
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import Position

logger = logging.getLogger("pulsar_txn.tc_service")

CLAIMS_TOPIC: Final = "persistent://pulsar/system/pulsar-txn-claims"
BACKEND_ERRORS: Final = (PulsarError, LedgerError)
"""Errors of `TopicClaims.open` after which it is tried again."""
_PROBE_SECONDS: Final = 5.0
_TURN_SECONDS: Final = 30.0
_SERVICES: Final = "/services"
_LOGS: Final = "/logs"
_FRONT: Final = "/front"
_READS: Final = "/looks"
RESERVED_AT_ONCE: Final = 1 << 20
"""Numbers of the front that one claim reserves."""
_PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
_WAITS_SECONDS: Final = 5.0
"""After so long it is news that another process has our store."""


def presence_topic(store: str) -> str:
    """The topic whose producer shows that a process has a store, as the cluster is named there."""
    return f"{CLAIMS_TOPIC}-{store}"


class TopicClaims:
    """Store of the claims in topics of one cluster, while this process is present there."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._presence: Writer | None = None
        self._news = asyncio.Event()
        self._metadata: SharedMetadata | None = None

    @property
    def metadata(self) -> MetadataStore:
        """The claims of all services; after `open`."""
        assert self._metadata is not None  # noqa: S101 - only after `open`
        return self._metadata

    async def open(self, store: str, *, is_shared: bool) -> None:
        """Enter once no other process has the store, and read all claims. Raises PulsarError, LedgerError."""
        topic = presence_topic(store)
        await LogSubscription(self._brokers, topic).make()
        presence = self._presence = Writer(self._brokers, topic, self._name(), self._news)
        try:
            async with asyncio.timeout(_TURN_SECONDS):  # the queue of a broker that the topic has left lets nobody in
                await presence.attach(SHARED if is_shared else WAIT_FOR_EXCLUSIVE)
        except TimeoutError:
            raise LeaseLost(f"another process has claimed the store {store}") from None
        metadata = self._metadata = SharedMetadata(self._brokers, CLAIMS_TOPIC)
        await metadata.start()

    async def lost(self) -> str:
        """Return the reason once this process may not be present any more; after `open`."""
        presence = self._presence
        assert presence is not None  # noqa: S101 - only after `open`
        while presence.lost is None:
            self._news.clear()
            await self._news.wait()
        return str(presence.lost)

    async def is_alive(self, store: str) -> bool:
        """True if some process has another store. Raises PulsarError."""
        probe = Writer(self._brokers, presence_topic(store), self._name(), asyncio.Event())
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await probe.attach(EXCLUSIVE)
        except PulsarError as error:
            if error.code is None:
                raise
            return True
        except TimeoutError:
            return True
        finally:
            await probe.close()
        return False

    async def close(self) -> None:
        """Leave. Idempotent; it may be opened again."""
        metadata, self._metadata = self._metadata, None
        presence, self._presence = self._presence, None
        if metadata is not None:
            await metadata.close()
        if presence is not None:
            await presence.close()

    def _name(self) -> str:
        return f"pulsar-txn-claims-{int(self._brokers.runtime.random() * 2**48):012x}"


@attrs.frozen
class Registered:
    """Text of a register: the newest incarnation of a log, and the position that it had come to at least."""

    service: int
    position: Position
    version: int


class Claims:
    """The claims of this process in the cluster `name`. `why`: why they are not held; empty while they are.

    Whoever keeps them opens them each time that `attempts()` says so, takes what it has to take, and says what came of it:
    `held()` or `not_held(error)`. At the end it calls `close()`.
    """

    def __init__(self, name: str, backend: TopicClaims, store: str, *, is_shared: bool) -> None:
        self.name = name
        self.why = f"the claims in the cluster {name} are not read yet"
        self.first_attempt_over = asyncio.Event()
        """Set when the first attempt is over, whether it succeeded or not."""
        self.losses = 0
        self._failures = 0
        self._late: asyncio.TimerHandle | None = None
        self._backend = backend
        self._store = f"{store}-{name}"  # one process may have two names for one cluster
        self._is_shared = is_shared
        self._failed = asyncio.Event()
        self._is_held = asyncio.Event()
        self._taking_front = asyncio.Lock()

    @property
    def is_held(self) -> bool:
        """True if participants of the cluster may register."""
        return not self.why

    @property
    def _metadata(self) -> MetadataStore:
        return self._backend.metadata

    # ---- held or not

    async def until_held(self) -> None:
        """Return once they are held."""
        await self._is_held.wait()

    async def attempts(self) -> AsyncIterator[None]:
        """Each time that they are to be opened: at the start, after a failure, and when they are lost. Without an end."""
        while True:
            self._failed.clear()
            self._is_held.clear()
            self._late = asyncio.get_running_loop().call_later(_WAITS_SECONDS, self._report_wait)
            yield
            self._late.cancel()
            self.first_attempt_over.set()
            if self.is_held:
                await self._until_lost()
            await self._backend.close()
            await asyncio.sleep(_PAUSES[min(self._failures, len(_PAUSES) - 1)])
            self._failures += 1

    async def open(self) -> None:
        """Open the backend. Raises BACKEND_ERRORS."""
        await self._backend.open(self._store, is_shared=self._is_shared)

    def held(self) -> None:
        """Everything of this process is claimed."""
        self._failures, self.why = 0, ""
        self._is_held.set()

    def not_held(self, error: Exception) -> None:
        """The attempt has failed."""
        self.why = f"the claims in the cluster {self.name} cannot be read ({error})"
        logger.log(logging.WARNING if not self._failures else logging.DEBUG, "%s; it takes no participants", self.why)

    async def close(self) -> None:
        """Leave them to others."""
        if self._late is not None:
            self._late.cancel()
        self.why = "the service ends"
        await self._backend.close()

    async def _until_lost(self) -> None:
        """Return once the backend is lost, or a claim could not be written."""
        lost, failed = asyncio.ensure_future(self._backend.lost()), asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait([lost, failed], return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                self._lose(lost.result())
        finally:
            lost.cancel()
            failed.cancel()

    def _report_wait(self) -> None:
        self.why = (
            f"another process has claimed the store {self._store} in the cluster {self.name} (a copy of the data folder is in"
            " use elsewhere, or its last process is not given up yet), or the cluster does not answer"
        )
        logger.warning("%s; until that is over, transactions here cannot write to that cluster", self.why)
        self.first_attempt_over.set()

    def _lose(self, why: str) -> None:
        if not self._failed.is_set():
            self.losses += 1
            self.why = f"the claims in the cluster {self.name} were lost ({why})"
            logger.warning("%s; they are claimed again", self.why)
            self._failed.set()

    def failed(self, error: Exception) -> None:
        """A claim could not be written: begin anew."""
        self._lose(str(error))

    def refusal(self) -> Refusal:
        """Refusal of a participant while the claims are not held."""
        return Refusal(ServerError.ServiceNotReady, f"{self.why}, so the cluster takes no participants here; retry")

    # ---- claims

    async def take(self, service: int, owner: str) -> bool:
        """Claim a service number. False when another incarnation has it. Raises LedgerError."""
        path = f"{_SERVICES}/{service:07x}"
        said = json.dumps({"process": owner}).encode()  # equal under all names of the cluster
        while True:
            try:
                await self._metadata.put(path, said, expected_version=-1)
            except VersionConflict:
                stored = await self._metadata.get(path)
                if stored is None:
                    continue
                return stored.data == said
            return True

    async def catch_up(self) -> None:
        """Read everything that was claimed before this call. Raises LedgerError."""
        await self._metadata.increment(_READS)

    async def register(self, log: str) -> Registered | None:
        """The register of a log; None for one that is not there. After `catch_up`."""
        stored = await self._metadata.get(self._path(log))
        if stored is None:
            return None
        said = json.loads(stored.data)
        return Registered(said["service"], (said["ledger"], said["entry"]), stored.version)

    async def write(self, log: str, service: int, position: Position, version: int) -> int:
        """Write a register that nobody else has written since; its version. Raises VersionConflict, LedgerError."""
        said = {"service": service, "ledger": position[0], "entry": position[1]}
        return await self._metadata.put(self._path(log), json.dumps(said).encode(), expected_version=version)

    def _path(self, log: str) -> str:
        return f"{_LOGS}/{self._store}/{log}"

    # ---- the front

    async def reserve(self, tc_id: int, first: int) -> tuple[int, int]:
        """Numbers (from, until) that nobody else gives for coordinator `tc_id`. Raises Refusal, LedgerError, PulsarError.

        One service has the front of a cluster; another one may have it when no process of that service lives.
        """
        await self.catch_up()
        async with self._taking_front:  # two questions whether the last owner lives would each take the other one for it
            await self._take_front()
        path = f"{_FRONT}/{tc_id}"
        while True:
            stored = await self._metadata.get(path)
            start = max(first, 0 if stored is None else int(stored.data))
            until = start + RESERVED_AT_ONCE
            try:
                version = -1 if stored is None else stored.version
                await self._metadata.put(path, str(until).encode(), expected_version=version)
            except VersionConflict:
                continue
            return start, until

    async def _take_front(self) -> None:
        while True:
            stored = await self._metadata.get(_FRONT)
            owner = "" if stored is None else stored.data.decode()
            if owner == self._store:
                return
            if owner and await self._backend.is_alive(owner):
                raise Refusal(
                    ServerError.ServiceNotReady,
                    f"the front of the cluster {self.name} is that of another service (store {owner}), and a cluster has one:"
                    " stop that service, or give this one no frontServicePort",
                )
            try:
                version = -1 if stored is None else stored.version
                await self._metadata.put(_FRONT, self._store.encode(), expected_version=version)
            except VersionConflict:
                continue
            return


def claimed(found: Registered) -> str:
    """A register, for logs and errors."""
    return f"incarnation {found.service:07x} at {found.position[0]}:{found.position[1]}"
