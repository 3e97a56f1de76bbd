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
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import attrs

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.ledger.protocols import LeaseLost, LedgerError, MetadataStore, VersionConflict
from pulsar_txn.tc_service.cluster.brokers import Brokers
from pulsar_txn.tc_service.topic_ledger.metadata import SharedMetadata
from pulsar_txn.tc_service.topic_ledger.topic import EXCLUSIVE, SHARED, WAIT_FOR_EXCLUSIVE, LogSubscription, Writer
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import EARLIEST, Position

logger = logging.getLogger("pulsar_txn.tc_service")

CLAIMS_TOPIC: Final = "persistent://pulsar/system/pulsar-txn-claims"
BACKEND_ERRORS: Final = (PulsarError, LedgerError)
"""Errors of `ClaimsBackend.open` after which it is tried again."""
_PROBE_SECONDS: Final = 5.0
_TURN_SECONDS: Final = 30.0
_SERVICES: Final = "/services"
_LOGS: Final = "/logs"
_FRONT: Final = "/front"
_READS: Final = "/looks"
RESERVED_AT_ONCE: Final = 1 << 20
"""Numbers of the front that one claim reserves."""
_PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
_AWAY_SECONDS: Final = 1.0
"""A register that is not written after so long is that of a cluster that is away."""
_WAITS_SECONDS: Final = 5.0
"""After so long it is news that another process has our store."""


def presence_topic(store: str) -> str:
    """The topic whose producer shows that a process has a store, as the cluster is named there."""
    return f"{CLAIMS_TOPIC}-{store}"


class ClaimsBackend(Protocol):
    """Store of the claims in one cluster, while this process is present there."""

    @property
    def metadata(self) -> MetadataStore:
        """The claims of all services; after `open`."""

    async def open(self, store: str, *, is_shared: bool, when_lost: Callable[[str], None]) -> None:
        """Enter once no other process has the store, and read all claims. Raises PulsarError, LedgerError.

        `when_lost` is called with the reason when this process may not be present any more.
        """

    async def is_alive(self, store: str) -> bool:
        """True if some process has another store. Raises PulsarError."""

    async def close(self) -> None:
        """Leave. Idempotent; it may be opened again."""


class TopicClaims:
    """Implements `ClaimsBackend` in topics of the cluster."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._presence: Writer | None = None
        self._metadata: SharedMetadata | None = None

    @property
    def metadata(self) -> MetadataStore:
        """See `ClaimsBackend`."""
        assert self._metadata is not None  # noqa: S101 - only after `open`
        return self._metadata

    async def open(self, store: str, *, is_shared: bool, when_lost: Callable[[str], None]) -> None:
        """See `ClaimsBackend`."""
        topic = presence_topic(store)
        await LogSubscription(self._brokers, topic).make()
        presence = self._presence = Writer(self._brokers, topic, self._name())
        presence.when_lost = lambda lost: when_lost(str(lost))
        try:
            async with asyncio.timeout(_TURN_SECONDS):  # the queue of a broker that the topic has left lets nobody in
                await presence.attach(SHARED if is_shared else WAIT_FOR_EXCLUSIVE)
        except TimeoutError:
            raise LeaseLost(f"another process has claimed the store {store}") from None
        metadata = self._metadata = SharedMetadata(self._brokers, CLAIMS_TOPIC)
        await metadata.start()

    async def is_alive(self, store: str) -> bool:
        """See `ClaimsBackend`."""
        probe = Writer(self._brokers, presence_topic(store), self._name())
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
        """See `ClaimsBackend`."""
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
    """The claims of this process in the cluster `name`. `run()` keeps them until it is cancelled.

    `why`: why they are not held; empty while they are. `when_held` is awaited each time before they are held.
    """

    def __init__(self, name: str, backend: ClaimsBackend, store: str, *, is_shared: bool) -> None:
        self.name = name
        self.why = f"the claims in the cluster {name} are not read yet"
        self.when_held: Callable[[], Awaitable[None]] = _nobody_asks
        self.first_attempt_over = asyncio.Event()
        """Set when the first attempt is over, whether it succeeded or not."""
        self.losses = 0
        self._backend = backend
        self._store = f"{store}-{name}"  # one process may have two names for one cluster
        self._is_shared = is_shared
        self._lost = asyncio.Event()
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

    async def held(self) -> None:
        """Return once they are held."""
        await self._is_held.wait()

    async def run(self) -> None:
        """Open the backend, and again whenever it is lost."""
        failures = 0
        try:
            while True:
                self._lost.clear()
                self._is_held.clear()
                late = asyncio.get_running_loop().call_later(_WAITS_SECONDS, self._report_wait)
                try:
                    await self._backend.open(self._store, is_shared=self._is_shared, when_lost=self._lose)
                    await self.when_held()
                except BACKEND_ERRORS as error:
                    self.why = f"the claims in the cluster {self.name} cannot be read ({error})"
                    logger.log(logging.WARNING if not failures else logging.DEBUG, "%s; it takes no participants", self.why)
                else:
                    failures, self.why = 0, ""
                    self._is_held.set()
                finally:
                    late.cancel()
                self.first_attempt_over.set()
                if self.is_held:
                    await self._lost.wait()
                await self._backend.close()
                await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
                failures += 1
        finally:
            self.why = "the service ends"
            await self._backend.close()

    def _report_wait(self) -> None:
        self.why = (
            f"another process has claimed the store {self._store} in the cluster {self.name} (a copy of the data folder is in"
            " use elsewhere, or its last process is not given up yet), or the cluster does not answer"
        )
        logger.warning("%s; until that is over, transactions here cannot write to that cluster", self.why)
        self.first_attempt_over.set()

    def _lose(self, why: str) -> None:
        if not self._lost.is_set():
            self.losses += 1
            self.why = f"the claims in the cluster {self.name} were lost ({why})"
            logger.warning("%s; they are claimed again", self.why)
            self._lost.set()

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


class Register:
    """The register of one log in one cluster, while this process leads the log.

    `position()`: how far the log is durable. `is_mine(service)`: whether an incarnation is of this process. `is_lost`: another
    process goes on with a copy of the log, and nothing is told to this cluster any more. `is_away`: its last write does not
    return.
    """

    def __init__(
        self,
        claims: Claims,
        log: str,
        service: Callable[[], int],
        position: Callable[[], Position],
        mine: Callable[[int], bool],
    ) -> None:
        self.is_lost = False
        self.is_away = False
        self._overdue: asyncio.TimerHandle | None = None
        self._claims = claims
        self._log = log
        self._service = service
        self._position = position
        self._is_mine = mine
        self._version = -1
        self._covered: Position = EARLIEST
        self._waiting: deque[tuple[Position, Callable[[], None], bool]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def covers(self, position: Position) -> bool:
        """True if it says that the log has come so far."""
        return position <= self._covered

    async def begin(self) -> None:
        """Write it for a new incarnation: it was compared before. Raises LedgerError, VersionConflict for a copy."""
        found = await self._claims.register(self._log)
        self._version = -1 if found is None else found.version
        await self._write_or_adopt()

    def cover(self, position: Position, then: Callable[[], None], *, is_needed: bool) -> None:
        """Call `then` once it says that the log has come so far. Positions come in order.

        `is_needed`: the end is told in this cluster. One that is told elsewhere does not wait for a cluster that is away.
        """
        self._waiting.append((position, then, is_needed))
        if not is_needed:  # nearly all are needed: those look at nothing but themselves
            self._watch()
        self.go_on()

    def _watch(self) -> None:
        if self._overdue is None and not all(is_needed for _, _, is_needed in self._waiting):
            self._overdue = asyncio.get_running_loop().call_later(_AWAY_SECONDS, self._skip_unneeded)

    def _skip_unneeded(self) -> None:
        self._overdue, self.is_away = None, True
        waiting, self._waiting = self._waiting, deque(each for each in self._waiting if each[2])
        for _, then, is_needed in waiting:
            if not is_needed:
                then()

    def _in_time(self) -> None:
        self.is_away = False
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def go_on(self, *, is_joining: bool = False) -> None:
        """Write while somebody waits. `is_joining`: the claims are about to be held again."""
        may_write = self._claims.is_held or is_joining
        if self._waiting and self._writing is None and not self.is_lost and not self._closed and may_write:
            self._writing = asyncio.get_running_loop().create_task(self._cover_all())

    def lose(self) -> None:
        """Another process has written it."""
        self.is_lost = True
        logger.error(
            "another process goes on with a copy of the log %s, and has claimed it in the cluster %s: nothing of this one is"
            " told there any more. Stop one of them; what is open in the log of the other one is HELD",
            self._log, self._claims.name,
        )  # fmt: skip

    def close(self) -> None:
        """Write nothing more."""
        self._closed = True
        self._waiting.clear()
        self._in_time()
        if self._writing is not None:
            self._writing.cancel()

    async def _cover_all(self) -> None:
        try:
            while self._waiting and not self._closed:
                await self._write_or_adopt()
                waiting, covered = self._waiting, self._covered
                while waiting and waiting[0][0] <= covered:
                    waiting.popleft()[1]()
                self._watch()
        except VersionConflict:
            self.lose()
        except (LedgerError, PulsarError) as error:
            self._claims.failed(error)
        finally:
            self._writing = None

    async def _write_or_adopt(self) -> None:
        try:
            await self._write()
        except VersionConflict:
            found = await self._claims.register(self._log)
            if found is None or not self._is_mine(found.service):
                raise
            self._version = found.version  # a write of ours whose answer was lost
            await self._write()

    async def _write(self) -> None:
        position = self._position()
        self._version = await self._claims.write(self._log, self._service(), position, self._version)
        self._covered = max(self._covered, position)
        self._in_time()


async def _nobody_asks() -> None:
    """Nothing is to be done first."""


def claimed(found: Registered) -> str:
    """A register, for logs and errors."""
    return f"incarnation {found.service:07x} at {found.position[0]}:{found.position[1]}"
