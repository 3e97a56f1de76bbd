"""The lanes of a coordinator: whose they are, and which of them the next transaction takes. See `lane_table`.

Lanes are state: they change by records only, and snapshots have them. `Lanes.choose` decides about the next transaction's lane,
whose NEW record then names it; so another choice of a later version reads the same log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias, TypeVar

from pulsar_txn.ledger.machine import WRITE
from pulsar_txn.ledger.ordered import OrderedMap
from pulsar_txn.tc.fencing import Name
from pulsar_txn.tc.ids import LaneIds, lane_of, most_of_lane
from pulsar_txn.tc.lane_info import ClientInfo, LaneCounts
from pulsar_txn.tc.lane_table import LANE_TRANSITIONS, UNKNOWN, Lane, LaneEvent, LaneState
from pulsar_txn.tc.leases import Incarnation, Leases
from pulsar_txn.tc.log_incarnations import NO_SERVICE, end_of_lanes, first_lane, service_of
from pulsar_txn.tc.owners import Owner, is_older
from pulsar_txn.tc.records_pb2 import CoordinatorSnapshot
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import TxnId, TxnStatus

KeyT = TypeVar("KeyT")

MAX_POOLED: Final = 4096
"""Number of lanes that wait for another client; more are retired. A lane costs bytes here and a mark at each participant."""
MAX_INCARNATION_LENGTH: Final = 256
LANES_AT_ONCE: Final = 2048
"""Lanes that one record retires: about three milliseconds."""

_BOUND: Final = frozenset({Lane.IDLE, Lane.OPEN, Lane.COMMITTING, Lane.ABORTING, Lane.PREPARED, Lane.HELD})
"""The states in which a lane belongs to a living incarnation."""

_FREE_FOR_SUCCESSORS: Final = frozenset({Lane.IDLE, Lane.POOLED, Lane.PREPARED, Lane.PARKED, Lane.HELD})
"""The states in which no end is under way that a successor has to wait for."""

_STATUSES: Final[dict[Lane, frozenset[TxnStatus]]] = {
    Lane.IDLE: frozenset(),
    Lane.OPEN: frozenset({TxnStatus.OPEN}),
    Lane.COMMITTING: frozenset({TxnStatus.COMMITTING}),
    Lane.ABORTING: frozenset({TxnStatus.ABORTING}),
    Lane.LEAVING: frozenset({TxnStatus.COMMITTING}),
    Lane.RETIRING: frozenset({TxnStatus.OPEN, TxnStatus.COMMITTING, TxnStatus.ABORTING}),
    Lane.PREPARED: frozenset({TxnStatus.PREPARED}),
    Lane.PARKED: frozenset({TxnStatus.PREPARED, TxnStatus.HELD}),
    Lane.HELD: frozenset({TxnStatus.HELD}),
    Lane.POOLED: frozenset(),
    Lane.RETIRED: frozenset(),
}
"""Allowed transaction states in each state of a lane; empty where it has no transaction."""


class Holder(NamedTuple):
    """Holder of a lane. Another epoch of the same transactional id is another holder."""

    owner: Owner
    incarnation: str | None


Holdings: TypeAlias = dict[int, None]
"""Numbers of lanes, or of transactions."""


class Held(NamedTuple):
    """A lane that was given. `least`: its transaction while it has one, and the last one afterwards."""

    state: Lane
    holder: Holder
    least: int


class Lanes:
    """The lanes of the coordinator `tc_id`.

    `kept`: every lane that is not RETIRED, in the order in which they were given. `next_lane`: the next one to be given.
    `given`: how many ever were. `giving`: the incarnations whose lanes are given again; lanes of others are only ended. The
    other members follow from these. `leases`: who is alive.
    """

    def __init__(self, tc_id: int, policy: LaneIds) -> None:
        self.tc_id = tc_id
        self.policy = policy
        self.kept: OrderedMap[int, Held] = OrderedMap()
        self.next_lane = 1
        self.given = 0
        self.giving: tuple[int, ...] = (NO_SERVICE,)
        self.leases = Leases(policy.lease_ms)
        self._idle: dict[Holder, Holdings] = {}
        self._pool: Holdings = {}
        self._leaving = 0
        self._bound: dict[Incarnation, Holdings] = {}
        self._open: dict[Incarnation, Holdings] = {}
        self._named: dict[Name, Holdings] = {}

    # ------------------------------------------------------------------ decisions

    def choose(self, owner: Owner, incarnation: str | None) -> int:
        """The lane of the next transaction. Raises Refusal: too many lanes, or a name that is none."""
        if incarnation is not None:
            self._check_name(incarnation)
            idle = self._idle.get(Holder(owner, incarnation))
            if idle:
                return next(reversed(idle))  # the one used last: participants have a mark for it already
            self._check_room_of(owner, incarnation)
            pooled = self._pooled_for(owner)
            if pooled is not None:
                return pooled
        if not self.lanes_left:
            text = f"coordinator {self.tc_id} has given all lanes of this incarnation, and draws others; retry"
            raise Refusal(ServerError.ServiceNotReady, text)
        if len(self.kept) >= self.policy.max_lanes:
            raise Refusal(
                ServerError.TooManyRequests,
                f"coordinator {self.tc_id} keeps {len(self.kept)} lanes, as many as it may: end transactions, close clients, or"
                " try later",
            )
        return self.next_lane

    @property
    def lanes_left(self) -> int:
        """Return how many lanes the incarnation can still give."""
        return end_of_lanes(self.giving[-1]) - self.next_lane

    def _pooled_for(self, owner: Owner) -> int | None:
        principal, identity = owner
        for lane in reversed(self._pool):
            (of, used_by), _ = self.kept[lane].holder
            if identity is None or used_by is None or (of, used_by[0]) != (principal, identity[0]):
                return lane
        return None

    def _check_name(self, incarnation: str) -> None:
        if not incarnation.strip() or len(incarnation) > MAX_INCARNATION_LENGTH:
            raise Refusal(
                ServerError.NotAllowedError,
                f"the incarnation of a client has 1 to {MAX_INCARNATION_LENGTH} characters that are not all blank;"
                f" this one has {len(incarnation)}",
            )

    def _check_room_of(self, owner: Owner, incarnation: str) -> None:
        held, most = len(self._bound.get((owner[0], incarnation), ())), self.policy.max_lanes_of_incarnation
        if held >= most:
            raise Refusal(
                ServerError.TooManyRequests,
                f"this client has {held} transactions open in coordinator {self.tc_id}, as many as it may: end some first",
            )

    def open_of(self, incarnation: Incarnation) -> Iterable[int]:
        """The OPEN transactions of an incarnation."""
        return (self.kept[lane].least for lane in self._open.get(incarnation, ()))

    def has_lost_client(self, lane: int) -> bool:
        """True if the client of a lane that is out of use has gone, or has a successor."""
        held = self.kept.get(lane)
        return held is not None and held.state is Lane.PARKED and held.holder.incarnation is not None

    def are_many(self, incarnation: Incarnation) -> bool:
        """True if one record would work long on the lanes of an incarnation."""
        return len(self._bound.get(incarnation, ())) > LANES_AT_ONCE

    def unfinished_before(self, owner: Owner) -> TxnId | None:
        """A transaction of an older epoch of the same transactional id that has not ended at all participants."""
        for lane in self._named.get(_name(owner), ()):
            state, holder, least = self.kept[lane]
            if state not in _FREE_FOR_SUCCESSORS and is_older(holder.owner, owner):
                return TxnId(most_of_lane(self.tc_id, lane), least)
        return None

    def state(self, lane: int) -> LaneState:
        """The state of a lane."""
        held = self.kept.get(lane)
        if held is None:
            is_new = service_of(lane) == self.giving[-1] and lane >= self.next_lane
            return UNKNOWN if is_new or not lane else Lane.RETIRED
        return held.state

    def clients(self) -> list[ClientInfo]:
        """Everybody who holds lanes."""
        return [
            ClientInfo(*each, len(lanes), len(self._open.get(each, ())), self.leases.until_ms(each))
            for each, lanes in self._bound.items()
        ]

    def counts(self) -> LaneCounts:
        """Return how many there are."""
        pooled, idle = len(self._pool), sum(map(len, self._idle.values()))
        by_state = {"pooled": pooled, "idle": idle, "in_use": len(self.kept) - pooled - idle}
        return LaneCounts(by_state | {"retired": self.given - len(self.kept)}, self.given, len(self.leases))

    # ------------------------------------------------------------------ the fold

    def opened(self, lane: int, least: int, owner: Owner, incarnation: str | None, now_ms: int) -> TxnId | None:
        """A NEW record names a lane: the id of its transaction, None where the table opens none."""
        before = self.kept.get(lane)
        state = self.state(lane) if before is None else before.state
        holder = Holder(owner, incarnation)
        act, to = LANE_TRANSITIONS[state, LaneEvent.ONCE if incarnation is None else LaneEvent.NEW][:2]
        if act is not WRITE or to is None or (state is Lane.IDLE and before is not None and before.holder != holder):
            return None
        if before is None:
            self.next_lane = lane + 1
            self.given += 1
            self._enter(lane, Held(to, holder, least))
        else:
            self._change(lane, before, Held(to, before.holder if before.holder == holder else holder, least))
        if incarnation is not None:
            self.leases.heard((owner[0], incarnation), now_ms)
        return TxnId(most_of_lane(self.tc_id, lane), least)

    def happened(self, most: int, event: LaneEvent) -> None:
        """Note what has happened to the transaction with these upper id bits."""
        lane = lane_of(most)
        if event is LaneEvent.DONE and service_of(lane) not in self.giving:
            event = LaneEvent.LAST
        self._move(lane, event)

    def began(self, service: int, *, goes_on: bool) -> None:
        """An incarnation begins. Unless the same process goes on, lanes of older ones that are not busy are retired."""
        if service == self.giving[-1]:
            return
        self.giving = (*self.giving, service) if goes_on else (service,)
        self.next_lane = first_lane(service) + 1
        if not goes_on:
            for lane in [lane for lane, held in self.kept.items() if held.state in (Lane.IDLE, Lane.POOLED)]:
                self._move(lane, LaneEvent.VANISHED)

    def left(self, incarnation: Incarnation) -> None:
        """The incarnation has said goodbye: its lanes go to the pool, as far as that has room."""
        for lane in sorted(self._bound.get(incarnation, ())):  # in an order that a restored state has as well
            has_room = len(self._pool) + self._leaving < MAX_POOLED
            self._move(lane, LaneEvent.GOODBYE if has_room else LaneEvent.VANISHED)

    def vanished(self, incarnation: Incarnation) -> None:
        """The incarnation is gone: its lanes are never used again. Where they are many, further records follow."""
        for lane in sorted(self._bound.get(incarnation, ()))[:LANES_AT_ONCE]:
            self._move(lane, LaneEvent.VANISHED)

    def succeeded(self, owner: Owner) -> None:
        """An epoch of a transactional id has begun: no lane of an older one is used again."""
        for lane in tuple(self._named.get(_name(owner), ())):
            if is_older(self.kept[lane].holder.owner, owner):
                self._move(lane, LaneEvent.VANISHED)

    def _move(self, lane: int, event: LaneEvent) -> None:
        held = self.kept.get(lane)
        if held is None:
            return
        act, to, _ = LANE_TRANSITIONS[held.state, event]
        if act is WRITE and to is not None:
            if to is not Lane.RETIRED:
                self._change(lane, held, Held(to, held.holder, held.least))
                if to in _BOUND:
                    return
            else:
                self._leave(lane, held)
                del self.kept[lane]
            principal, incarnation = held.holder.owner[0], held.holder.incarnation
            if incarnation is not None and (principal, incarnation) not in self._bound:
                self.leases.forget((principal, incarnation))

    def _change(self, lane: int, before: Held, after: Held) -> None:
        """Keep a lane in another state, which is mostly one with the same living holder: then little follows from it."""
        old, new, holder = before.state, after.state, after.holder
        if before.holder is not holder or holder.incarnation is None or old not in _BOUND or new not in _BOUND:
            self._leave(lane, before)
            self._enter(lane, after)
            return
        self.kept[lane] = after
        alive = (holder.owner[0], holder.incarnation)
        if old is Lane.IDLE:
            _take_out(self._idle, holder, lane)
        elif old is Lane.OPEN:
            _take_out(self._open, alive, lane)
        if new is Lane.IDLE:
            self._idle.setdefault(holder, {})[lane] = None
        elif new is Lane.OPEN:
            self._open.setdefault(alive, {})[lane] = None

    def _enter(self, lane: int, held: Held) -> None:
        """Keep a lane, and note what follows from it."""
        self.kept[lane] = held
        state, holder, _ = held
        (principal, identity), incarnation = holder
        if incarnation is not None and state in _BOUND:
            alive = (principal, incarnation)
            self._bound.setdefault(alive, {})[lane] = None
            if state is Lane.IDLE:
                self._idle.setdefault(holder, {})[lane] = None
            elif state is Lane.OPEN:
                self._open.setdefault(alive, {})[lane] = None
        if identity is not None:
            self._named.setdefault((principal, identity[0]), {})[lane] = None
        if state is Lane.POOLED:
            self._pool[lane] = None
        self._leaving += state is Lane.LEAVING

    def _leave(self, lane: int, held: Held) -> None:
        """The inverse of `_enter`, but for `kept`."""
        state, holder, _ = held
        (principal, identity), incarnation = holder
        if incarnation is not None and state in _BOUND:
            alive = (principal, incarnation)
            _take_out(self._bound, alive, lane)
            if state is Lane.IDLE:
                _take_out(self._idle, holder, lane)
            elif state is Lane.OPEN:
                _take_out(self._open, alive, lane)
        if identity is not None:
            _take_out(self._named, (principal, identity[0]), lane)
        if state is Lane.POOLED:
            del self._pool[lane]
        self._leaving -= state is Lane.LEAVING

    # ------------------------------------------------------------------ recovery, snapshots, tests

    def recovered(self, now_ms: int) -> None:
        """After a restart every incarnation has a whole lease."""
        self.leases.begin_all(self._bound, now_ms)

    def elements(self) -> Iterator[tuple[str, CoordinatorSnapshot.Lane]]:
        """The lanes of this moment, each with the name of its field in a snapshot."""
        groups = self.kept.moment().groups()
        return (("lanes", _stored(lane, held)) for group in groups for lane, held in group)

    def restore_head(self, part: CoordinatorSnapshot) -> None:
        """Take over how many were given, from the first slice."""
        self.next_lane = part.next_lane
        self.given = part.lanes_given if part.HasField("lanes_given") else part.next_lane - 1

    def restore(self, part: CoordinatorSnapshot) -> None:
        """Take over the lanes and incarnations of a slice."""
        for begun in part.incarnations:
            self.giving = (*self.giving, begun.service) if begun.goes_on else (begun.service,)
        for each in part.lanes:
            principal = each.principal if each.HasField("principal") else None
            identity = (each.transactional_id, each.epoch) if each.HasField("transactional_id") else None
            incarnation = each.incarnation if each.HasField("incarnation") else None
            self._enter(each.lane, Held(Lane(each.state), Holder((principal, identity), incarnation), each.least_bits))

    def contradictions(self, unfinished: Iterable[tuple[TxnId, TxnStatus, Owner]]) -> Iterator[tuple[str, str]]:
        """Return what contradicts `lane_table.LANE_INVARIANTS`, each with its id. `unfinished`: what is open or ending."""
        of_lane: dict[int, int] = {}
        for txn_id, status, owner in unfinished:
            most, least = txn_id.most, txn_id.least
            if most in of_lane:
                yield "LANE3", f"{txn_id} and {of_lane[most]} are in one lane"
            of_lane[most] = least
            held = self.kept.get(lane_of(most))
            if held is None or held.least != least or held.holder.owner != owner or status not in _STATUSES[held.state]:
                yield "LANE1", f"{txn_id} is {status.name}, and its lane is {held}"
        busy = sum(bool(_STATUSES[held.state]) for held in self.kept.values())
        if busy != len(of_lane):
            yield "LANE1", f"{busy} lanes are busy with {len(of_lane)} transactions"
        numbers = list(self.kept)
        by_service = [(service_of(lane), lane) for lane in numbers]
        newest = [lane for service, lane in by_service if service == self.giving[-1]]
        if newest != sorted(newest) or any(not 0 < lane < self.next_lane for lane in newest) or len(numbers) > self.given:
            yield "LANE2", f"lanes {numbers}, next {self.next_lane}"
        for lane, held in self.kept.items():
            if service_of(lane) not in self.giving and held.state in (Lane.IDLE, Lane.POOLED):
                yield "LANE2", f"lane {lane} of an older incarnation is {held.state.name}"
        again = Lanes(self.tc_id, self.policy)
        for lane, held in self.kept.items():
            again._enter(lane, held)
        if again._follows() != self._follows():
            yield "LANE4", f"{self._follows()} should be {again._follows()}"

    def _follows(self) -> tuple[object, ...]:
        return self._idle, self._pool, self._leaving, self._bound, self._open, self._named


def _name(owner: Owner) -> Name:
    principal, identity = owner
    return principal, "" if identity is None else identity[0]


def _take_out(lanes_of: dict[KeyT, Holdings], key: KeyT, lane: int) -> None:
    """Take a lane out, and its key with the last one."""
    lanes = lanes_of[key]
    del lanes[lane]
    if not lanes:
        del lanes_of[key]


def _stored(lane: int, held: Held) -> CoordinatorSnapshot.Lane:
    state, ((principal, identity), incarnation), least = held
    transactional_id, epoch = (None, None) if identity is None else identity
    return CoordinatorSnapshot.Lane(
        lane=lane,
        state=state,
        least_bits=least,
        incarnation=incarnation,
        principal=principal,
        transactional_id=transactional_id,
        epoch=epoch,
    )
