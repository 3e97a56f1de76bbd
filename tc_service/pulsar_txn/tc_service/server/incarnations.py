"""The incarnations of a service's logs: claims come before anything is opened, and participants hear only of what is claimed.

At each start, and when this instance begins to lead a log, an incarnation begins (`tc.log_incarnations`): the registers in the
clusters are compared with the log, a service number is drawn and claimed, and the INCARNATION record says what is held. Only
then clients are served.

An end is told after the registers of all clusters of its transaction say that the log has come as far as the decision. So a log
that was restored, or rolled back, behind a decision that somebody was told of is known at its next start. Only a cluster that
is away is not waited for: its own part waits, and the others get theirs.

A broker answers "ok" to every end, also to one that changes nothing because the transaction was ended the other way before.
Claims prevent that; `FirstCommits` would notice it, by the first commit of each incarnation in each cluster. It needs the
admin API of the cluster, and changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from pulsar_txn.broker.serving import (
    News,
    Participants,
    Runtime,
    Turn,
    asked,
    coordinator_log_name,
)
from pulsar_txn.client.errors import PulsarError
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.ledger.protocols import LedgerError, Log, LogStore, SharedLogStore, VersionConflict
from pulsar_txn.tc import BeginIncarnation, ReleaseHeld
from pulsar_txn.tc.causes import Cause
from pulsar_txn.tc.log_incarnations import FIRST_SERVICE, LAST_SERVICE
from pulsar_txn.tc.requests import Coordinator
from pulsar_txn.tc_service.claims import BACKEND_ERRORS, RESERVED_AT_ONCE, Claims, claimed
from pulsar_txn.tc_service.cluster.admin import AdminApi, AdminRefused, AdminUnreachable, hides
from pulsar_txn.tc_service.cluster.participants import decode
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.ids import EARLIEST, LANE_BIT, Participant, Position, TxnAction, TxnId, TxnStatus, coordinator_of

from .timelines import FollowedCoordinatorHost, Timelines

logger = logging.getLogger("pulsar_txn.tc_service")


_STORE: Final = "/tc-service/store"
_FEW_LANES: Final = 1 << 16
"""Others are drawn when an incarnation has fewer left."""
_RETRY_SECONDS: Final = 1.0
_AWAY_SECONDS: Final = 1.0
"""A register that is not written after so long is that of a cluster that is away."""

_Untold: TypeAlias = tuple[TellParticipant, Callable[[TxnId], None]]


class FirstCommits:
    """Comparison of each incarnation's first commit with its topic. `wrong`: commits that are hidden.

    `admins`: the admin APIs of the clusters that have one.
    """

    def __init__(self, admins: Mapping[str, AdminApi], incarnations: LogIncarnations) -> None:
        self.wrong = 0
        self._admins = admins
        self._incarnations = incarnations
        self._seen: dict[tuple[str, bool, int], int] = {}
        self._looking: set[asyncio.Task[None]] = set()

    def told(self, cluster: str, effect: TellParticipant) -> None:
        """A participant holds an outcome."""
        txn_id, participant = effect.txn_id, effect.participant
        if effect.action is not TxnAction.COMMIT or participant.subscription is not None:
            return
        key = cluster, bool(txn_id.most & LANE_BIT), coordinator_of(txn_id.most)
        incarnation = self._incarnations.incarnation(txn_id)
        admin = self._admins.get(cluster)
        if self._seen.get(key) == incarnation or admin is None:
            return
        self._seen[key] = incarnation
        task = asyncio.get_running_loop().create_task(self._look(admin, cluster, participant, txn_id))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _look(self, admin: AdminApi, cluster: str, participant: Participant, txn_id: TxnId) -> None:
        try:
            hidden = await hides(admin, participant.topic, txn_id)
        except (AdminRefused, AdminUnreachable) as error:
            logger.info("the first commit of an incarnation could not be compared with %s: %s", participant.topic, error)
            return
        if hidden:
            self.wrong += 1
            logger.error(
                "%s was committed, and %s in the cluster %s hides it: the broker knows its id as aborted. Stop this"
                " coordinator, and look with pulsar-txn doctor --coordinator which commits are hidden",
                txn_id, participant.topic, cluster,
            )  # fmt: skip

    async def close(self) -> None:
        """Look no more."""
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)


async def store_id(store: LogStore, runtime: Runtime) -> str:
    """The name of a store, which copies of it have as well."""
    own = getattr(store, "uuid", "")
    if own:
        return str(own)
    while True:
        stored = await store.metadata.get(_STORE)
        if stored is not None:
            return str(json.loads(stored.data))
        drawn = f"{int(runtime.random() * 2**52):013x}{int(runtime.random() * 2**52):013x}"
        try:
            await store.metadata.put(_STORE, json.dumps(drawn).encode(), expected_version=-1)
        except VersionConflict:
            continue


class _LedLog:
    """A log that this instance leads. `registers`: by cluster, of those that are claimed for it."""

    def __init__(self, name: str, host: FollowedCoordinatorHost) -> None:
        self.name = name
        self.host = host
        self.machine: Any = host.coordinator
        self.registers: dict[str, Register] = {}
        self.has_begun = False
        self._untold: list[_Untold] = []
        """Ends that wait for the incarnation to begin, or for a cluster to be claimed."""

    @property
    def incarnation(self) -> int:
        """The service number of its newest incarnation."""
        return int(self.machine.incarnation)

    @property
    def confirmed(self) -> Position:
        """Position up to which the log is durable."""
        return self.host.main.confirmed

    def close(self) -> None:
        """Another host has the log from now on, or another process."""
        for register in self.registers.values():
            register.close()

    async def ask(self, make: Callable[[Any], Any]) -> None:
        """Have the machine decide something, and wait until that is durable."""
        await asked(lambda answer: self.host.submit_timed(make(answer), reserve=True))

    def wait(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        """This end cannot be told yet."""
        self._untold.append((effect, told))

    def take_waiting(self) -> list[_Untold]:
        """The ends that waited."""
        waiting, self._untold = self._untold, []
        return waiting

    def withdrawn(self, cluster: str) -> list[TxnId]:
        """Withdraw what was to be told to a cluster and is not, and return it; it is told no more."""
        infos = {effect.txn_id: self.machine.transaction(effect.txn_id.least) for effect, _ in self._untold}
        found = [txn_id for txn_id, info in infos.items() if info is not None and cluster in clusters_of(info)]
        self._untold = [each for each in self._untold if each[0].txn_id not in found]
        for txn_id in found:
            self.host.withdraw(txn_id)
        return found

    def in_doubt(self, is_known: Callable[[str], bool]) -> tuple[int, ...]:
        """Ids of open transactions with a participant in a cluster whose register is not known."""
        found = (info for info in self.machine.transactions() if info.status is TxnStatus.OPEN)
        return tuple(info.txn_id.least for info in found if not all(map(is_known, clusters_of(info))))


class Register:
    """The register of one log in one cluster, while this process leads the log.

    `mine`: the incarnations of this process. `is_lost`: another process goes on with a copy of the log, and nothing is told to
    this cluster any more. `is_away`: its last write does not return.
    """

    def __init__(self, claims: Claims, log: _LedLog, mine: Container[int]) -> None:
        self.is_lost = False
        self.is_away = False
        self._overdue: asyncio.TimerHandle | None = None
        self._claims = claims
        self._log = log
        self._mine = mine
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
        found = await self._claims.register(self._log.name)
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
            self._log.name, self._claims.name,
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
            found = await self._claims.register(self._log.name)
            if found is None or found.service not in self._mine:
                raise
            self._version = found.version  # a write of ours whose answer was lost
            await self._write()

    async def _write(self) -> None:
        log, position = self._log, self._log.confirmed
        self._version = await self._claims.write(log.name, log.incarnation, position, self._version)
        self._covered = max(self._covered, position)
        self._in_time()


def clusters_of(info: Any) -> set[str]:
    """The clusters of a transaction."""
    return {decode(participant)[0] for participant in info.participants}


class LedCoordinators:
    """Coordinators of one kind whose logs this service leads: `tc` for clients of ours, `front` for unchanged ones.

    `machine` makes one of a number.
    """

    def __init__(
        self,
        kind: str,
        incarnations: LogIncarnations,
        timelines: Timelines,
        turn: Turn,
        machine: Callable[[int], Coordinator],
    ) -> None:
        self._kind = kind
        self._incarnations = incarnations
        self._timelines = timelines
        self._turn = turn
        self._machine = machine

    def log_name(self, tc_id: int) -> str:
        """The name of a coordinator's log."""
        name = coordinator_log_name(tc_id)
        return name if self._kind == "tc" else f"{name}_{self._kind}"

    def make(self, tc_id: int, log: Log, on_news: News) -> FollowedCoordinatorHost:
        """A host whose log is led from now on, and whose records are followed."""
        host = FollowedCoordinatorHost(self._machine(tc_id), log, self._turn, on_news, self._timelines.watch(tc_id))
        self._incarnations.lead(f"{self._kind}-{tc_id}", host)
        return host

    async def recovered(self, tc_id: int) -> None:
        """An incarnation begins."""
        await self._incarnations.begin(f"{self._kind}-{tc_id}")

    def before_due(self) -> None:
        """Do nothing: nobody has a lease."""

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        """See `LogIncarnations.tell`."""
        self._incarnations.tell(effect, told)


class LogIncarnations:
    """All logs of a service. Implements `Participants` for their coordinators.

    `told_by` tells an end whose registers have come far enough. `front`: the cluster whose front this service has; None: it has
    no front.
    """

    def __init__(
        self,
        claims: Mapping[str, Claims],
        runtime: Runtime,
        told_by: Participants,
        *,
        front: str | None = None,
        first_of_front: int = 0,
    ) -> None:
        self._claims = dict(claims)
        self._runtime = runtime
        self._told_by = told_by
        self._front = front
        self._first_of_front = first_of_front
        self._process = f"{int(runtime.random() * 2**48):012x}"
        self._mine: set[int] = set()
        self._service: int | None = None
        self._used: set[str] = set()
        self._drawing = asyncio.Lock()
        self._logs: dict[str, _LedLog] = {}
        self._running: list[asyncio.Task[None]] = []
        self._extending = False

    def start(self) -> None:
        """Begin to claim in all clusters."""
        loop = asyncio.get_running_loop()
        self._running = [loop.create_task(self._keep(claim)) for claim in self._claims.values()]

    async def close(self) -> None:
        """Tell nothing more, and leave the claims to others."""
        for log in self._logs.values():
            log.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def lead(self, name: str, host: FollowedCoordinatorHost) -> None:
        """A log is open, and this host has it from now on."""
        before = self._logs.get(name)
        if before is not None:
            before.close()
        self._logs[name] = _LedLog(name, host)

    def held(self) -> Iterable[tuple[str, Any]]:
        """Transactions that are HELD, with the names of their logs."""
        for name, log in sorted(self._logs.items()):
            for info in log.machine.held():
                yield name, info

    def incarnation(self, txn_id: TxnId) -> int:
        """The newest incarnation of the log of a transaction."""
        log = self._logs.get(_log_of(txn_id))
        return 0 if log is None else int(log.machine.incarnation)

    @property
    def lost_registers(self) -> int:
        """Registers that another process has taken, with a copy of the log."""
        return sum(register.is_lost for log in self._logs.values() for register in log.registers.values())

    # ---- an incarnation begins

    async def begin(self, name: str) -> None:
        """Begin the incarnation of a log whose host is recovered: nobody is served before it has begun."""
        log, claims = self._logs[name], list(self._claims.values())
        await asyncio.gather(*(claim.first_attempt_over.wait() for claim in claims))
        if self._fronts(name):
            await self._until_front()
        known, lost = [], []
        for claim in claims:
            found = await self._compared(log, claim)
            if found is not None:
                known.append(claim)
                lost += [found] if found else []
        first, until = await self._reserved(log) if self._fronts(name) else (0, 0)
        service = await self._draw(name, known)
        names = {claim.name for claim in known}
        if lost:
            cause, hold = Cause.RESTORED, tuple(log.machine.unfinished())
        else:
            cause, hold = Cause.DOUBT, () if len(known) == len(claims) else log.in_doubt(names.__contains__)
        await log.ask(lambda token: BeginIncarnation(token, service, hold, cause, first_least=first, until_least=until))
        self._report(name, log, lost)
        for claim in known:
            await self._registers(log, claim)
        await self._release(log)
        log.has_begun = True
        for claim in claims:
            if claim.is_held and claim not in known:  # since a moment ago
                await self._join_log(log, claim)
        self._tell_again(log)

    async def _compared(self, log: _LedLog, claim: Claims) -> str | None:
        """Empty when the log holds what the cluster's register says; what it lacks; None when that is not known."""
        if not claim.is_held:
            return None
        try:
            await claim.catch_up()
            found = await claim.register(log.name)
        except (LedgerError, PulsarError) as error:
            claim.failed(error)
            return None
        if found is None or log.machine.holds(found.service, found.position):
            return ""
        return f"the cluster {claim.name} knows {claimed(found)}"

    async def _draw(self, name: str, known: Iterable[Claims]) -> int:
        """A service number that no other incarnation has, claimed in the known clusters; one for all logs of a process."""
        async with self._drawing:
            service = self._service
            if service is None or name in self._used:
                service = self._service = await self._drawn(known)
                self._used.clear()
            else:
                for claim in known:
                    await self._took(claim, service)
            self._used.add(name)
            return service

    async def _drawn(self, known: Iterable[Claims]) -> int:
        while True:
            service = FIRST_SERVICE + int(self._runtime.random() * (LAST_SERVICE + 1 - FIRST_SERVICE))
            results = [await self._took(claim, service) for claim in known]
            if all(results):
                self._mine.add(service)
                return service

    async def _took(self, claim: Claims, service: int) -> bool:
        try:
            return await claim.take(service, self._process)
        except (LedgerError, PulsarError) as error:
            claim.failed(error)  # it takes no participants until it is held again, and the number is taken there
            return True

    async def _registers(self, log: _LedLog, claim: Claims) -> None:
        register = Register(claim, log, self._mine)
        try:
            await register.begin()
        except VersionConflict:
            register.lose()
        except (LedgerError, PulsarError) as error:
            claim.failed(error)
            return
        log.registers[claim.name] = register

    def _report(self, name: str, log: _LedLog, lost: list[str]) -> None:
        machine, held = log.machine, log.machine.held_count
        if lost:
            logger.error(
                "log %s was restored, rolled back or copied: it ends at %d:%d, and %s. What was open in it may have been"
                " decided before, so it is HELD until an administrator decides: pulsar-txn transactions list --held."
                " Transactions that are held: %d", name, *machine.position, "; ".join(lost), held,
            )  # fmt: skip
        elif held:
            logger.warning(
                "log %s holds back %d transactions: a cluster of theirs is not claimed yet, or the log was restored before."
                " Look at them with pulsar-txn transactions list --held", name, held,
            )  # fmt: skip

    # ---- a cluster is claimed, later, or again

    async def _keep(self, claim: Claims) -> None:
        """Hold the claims in a cluster, until this is cancelled."""
        try:
            async for _ in claim.attempts():
                try:
                    await claim.open()
                    await self._join(claim)
                except BACKEND_ERRORS as error:
                    claim.not_held(error)
                else:
                    claim.held()
        finally:
            await claim.close()

    async def _join(self, claim: Claims) -> None:
        """Raises LedgerError, PulsarError: it is tried again."""
        for service in self._mine:
            if not await claim.take(service, self._process):
                text = f"another process has claimed incarnation {service:07x} in the cluster {claim.name}; restart this one"
                logger.error("%s", text)
                raise VersionConflict(text)
        for log in list(self._logs.values()):
            if log.has_begun and claim.name not in log.registers:
                await self._join_log(log, claim)
        for log in self._logs.values():  # the claims are held right after this: what waits from then on is written
            if log.has_begun:
                self._tell_again(log)
                if claim.name in log.registers:
                    log.registers[claim.name].go_on(is_joining=True)

    async def _join_log(self, log: _LedLog, claim: Claims) -> None:
        await claim.catch_up()
        found = await claim.register(log.name)
        if found is not None and found.service not in self._mine and not log.machine.holds(found.service, found.position):
            held = [info.txn_id for info in log.machine.held(Cause.DOUBT) if claim.name in clusters_of(info)]
            held += log.withdrawn(claim.name)
            hold = tuple(txn_id.least for txn_id in held)
            service = log.incarnation
            await log.ask(lambda token: BeginIncarnation(token, service, hold, Cause.RESTORED, goes_on=True))
            self._report(log.name, log, [f"the cluster {claim.name} knows {claimed(found)}"])
        await self._registers(log, claim)
        await self._release(log, claim.name)

    async def _release(self, log: _LedLog, also: str = "") -> None:
        """Let go on what was held in doubt of clusters that are known by now."""
        known = {name for name, register in log.registers.items() if not register.is_lost} | {also}
        held = [info.txn_id.least for info in log.machine.held(Cause.DOUBT) if clusters_of(info) <= known]
        if held:
            await log.ask(lambda token: ReleaseHeld(token, tuple(held)))

    # ---- numbers that are used up

    async def reserve_ahead(self) -> None:
        """Draw and reserve before an incarnation has given everything. Called from time to time."""
        if self._extending:
            return
        self._extending = True
        try:
            for name, log in list(self._logs.items()):
                left = log.machine.ids_left if log.has_begun and log.host.failure is None else None
                if left is None:
                    continue
                if self._fronts(name):
                    if left < RESERVED_AT_ONCE // 2:
                        _, until = await self._reserved(log)
                        incarnation = log.machine.incarnation
                        await log.ask(partial(BeginIncarnation, service=incarnation, goes_on=True, until_least=until))
                elif left < _FEW_LANES:
                    service = await self._draw(name, [claim for claim in self._claims.values() if claim.is_held])
                    await log.ask(partial(BeginIncarnation, service=service, goes_on=True))
        except (LedgerError, PulsarError, Refusal) as error:
            logger.warning("no further numbers of transactions could be reserved (%s); it is tried again", error)
        finally:
            self._extending = False

    def _fronts(self, name: str) -> bool:
        return self._front is not None and name.startswith("front")

    async def _until_front(self) -> None:
        """Without its claims the front may give no number."""
        claim = self._claims[self._front or ""]
        await claim.until_held()

    async def _reserved(self, log: _LedLog) -> tuple[int, int]:
        claim = self._claims[self._front or ""]
        first = max(self._first_of_front, log.machine.next_local_txn_id)
        said = ""
        while True:
            try:
                return await claim.reserve(log.machine.tc_id, first)
            except Refusal as refusal:
                if refusal.message != said:
                    said = refusal.message
                    logger.error("%s", said)  # noqa: TRY400 - it is no fault, and says what to do
            except (LedgerError, PulsarError) as error:
                claim.failed(error)
            await asyncio.sleep(_RETRY_SECONDS)

    # ---- ends

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        """See `Participants.tell`: once the registers of the transaction's clusters have come as far as its decision."""
        log = self._logs[_log_of(effect.txn_id)]
        if not log.has_begun:
            log.wait(effect, told)
            return
        self._tell(log, effect, told)

    def _tell(self, log: _LedLog, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        position, registers = log.confirmed, []
        its_own = decode(effect.participant)[0]
        for name in self._clusters_of(log, effect):
            register = log.registers.get(name)
            if name != its_own and (not self._claims[name].is_held or (register is not None and register.is_away)):
                continue
            if register is None:
                log.wait(effect, told)
                return
            if not register.covers(position):
                registers.append((register, name == its_own))
        if not registers:
            self._told_by.tell(effect, told)
            return
        left = len(registers)

        def covered() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._told_by.tell(effect, told)

        for register, is_needed in registers:
            register.cover(position, covered, is_needed=is_needed)

    def _clusters_of(self, log: _LedLog, effect: TellParticipant) -> Iterable[str]:
        """Clusters of the transaction that the configuration has."""
        if len(self._claims) == 1:
            return [name for name in (decode(effect.participant)[0],) if name in self._claims]
        info = log.machine.transaction(effect.txn_id.least)
        return clusters_of(info) & self._claims.keys() if info is not None else [decode(effect.participant)[0]]

    def _tell_again(self, log: _LedLog) -> None:
        for effect, told in log.take_waiting():
            self._tell(log, effect, told)


def _log_of(txn_id: TxnId) -> str:
    kind = "tc" if txn_id.most & LANE_BIT else "front"
    return f"{kind}-{coordinator_of(txn_id.most)}"


def is_shared(store: LogStore) -> bool:
    """True if several processes have the store at once."""
    return isinstance(store, SharedLogStore)
