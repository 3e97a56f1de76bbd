"""Coordinators over HTTP (`/admin/v3/transactions`): what they have open, and aborts; of a broker, or of a coordinator alone.

Shapes and paths are those of Pulsar 4.2; 404 with a sentence where that has 500.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final

import attrs
from aiohttp import web

from pulsar_txn.broker.txn.coordinator_host import CoordinatorHost
from pulsar_txn.broker.txn.coordinators import Coordinators
from pulsar_txn.broker.txn.hosts import asked
from pulsar_txn.tc.causes import Cause
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import LANE_BIT, TxnAction, TxnId, TxnStatus, coordinator_of

from .answers import TURN, Routes, done, flag, number
from .lists import after, limit, object_response

BASE: Final = "/admin/v3/transactions"
_SPARSE: Final = 16
_TXN: Final = re.compile(r"\(([0-9]{1,19}),([0-9]{1,18})\)")


def _everybody(_request: web.Request) -> bool:
    return True


def _none() -> None:
    return None


def _nobody(_request: web.Request) -> None:
    return None


@attrs.frozen
class Coordinated:
    """Server whose coordinators are shown. `service_url`: where one of them is; None while that is not known.

    `describe`: a transaction as it goes out. `front`: coordinators whose ids have no lanes, where the others give lanes.

    `is_operator`: whether the request may see and abort everything. To others only what their `role` owns exists.
    """

    coordinators: Callable[[], Coordinators | None]
    service_url: Callable[[int], str | None]
    describe: Callable[[Any], Awaitable[dict[str, Any]]]
    front: Callable[[], Coordinators | None] = _none
    is_operator: Callable[[web.Request], bool] = _everybody
    role: Callable[[web.Request], str | None] = _nobody

    def may_see(self, request: web.Request, owner: str | None) -> bool:
        """True if a transaction of `owner` exists for the request."""
        return self.is_operator(request) or (owner is not None and owner == self.role(request))


COORDINATED: Final = web.AppKey("coordinated", Coordinated)


def coordinators_of(request: web.Request) -> Coordinators:
    """All of them. HTTPServiceUnavailable where there are none."""
    coordinators = request.app[COORDINATED].coordinators()
    if coordinators is None:
        text = "transactions are not enabled on this broker; set transactionCoordinatorEnabled=true"
        raise web.HTTPServiceUnavailable(text=text)
    return coordinators


def coordinator(request: web.Request, tc_id: int) -> CoordinatorHost:
    """One of them. Refusal TransactionCoordinatorNotFound; HTTPServiceUnavailable while it recovers."""
    return _ready(coordinators_of(request), tc_id)


def _ready(coordinators: Coordinators, tc_id: int) -> CoordinatorHost:
    if not 0 <= tc_id < len(coordinators):
        text = f"Transaction coordinator not found! coordinator id : {tc_id}"
        raise Refusal(ServerError.TransactionCoordinatorNotFound, text)
    host = coordinators.ready(tc_id)
    if host is None:
        raise web.HTTPServiceUnavailable(text=_absent(coordinators, tc_id))
    return host


def _absent(coordinators: Coordinators, tc_id: int) -> str:
    if not coordinators.is_elsewhere(tc_id):
        return f"coordinator {tc_id} is recovering; retry"
    leader = coordinators.leader(tc_id)
    return f"coordinator {tc_id} is led by another instance{f' ({leader})' if leader else ''}; ask that one over HTTP"


def txn_id_of(request: web.Request) -> TxnId:
    """The transaction that the path names. HTTPBadRequest."""
    return TxnId(number(request, "most"), number(request, "least"))


def all_for(request: web.Request, txn_id: TxnId) -> Coordinators:
    """The coordinators among which is that of a transaction."""
    front = request.app[COORDINATED].front()
    return coordinators_of(request) if front is None or txn_id.most & LANE_BIT else front


def visible(request: web.Request, txn_id: TxnId) -> Any:
    """State of an open or ending transaction at its coordinator. Refusal TransactionNotFound."""
    machine: Any = _ready(all_for(request, txn_id), coordinator_of(txn_id.most)).machine
    info = machine.transaction(txn_id.least)
    if info is None or info.txn_id != txn_id or not request.app[COORDINATED].may_see(request, info.principal):
        text = f"transaction ({txn_id.most},{txn_id.least}) is not open: it never was, or has ended"
        raise Refusal(ServerError.TransactionNotFound, text)
    return info


# ---- coordinators


async def list_coordinators(request: web.Request) -> web.Response:
    """GET: ids and where they are."""
    url = request.app[COORDINATED].service_url
    return web.json_response([{"id": tc_id, "brokerServiceUrl": url(tc_id)} for tc_id in range(len(coordinators_of(request)))])


async def coordinator_stats(request: web.Request) -> web.Response:
    """GET: of one (`coordinatorId`), or of all by id."""
    coordinators = coordinators_of(request)
    if "coordinatorId" in request.query:
        return web.json_response(_stats(coordinator(request, number(request, "coordinatorId"))))
    return web.json_response({str(tc_id): _stats(coordinators.ready(tc_id)) for tc_id in range(len(coordinators))})


def _stats(host: CoordinatorHost | None) -> dict[str, Any]:
    if host is None:
        return {"state": "Initializing", "ongoingTxnSize": 0}
    machine: Any = host.machine
    ongoing = machine.active_count
    return {
        "state": "Ready",
        "leastSigBits": machine.next_local_txn_id - 1,
        "lowWaterMark": machine.low_watermark if ongoing or not machine.next_local_txn_id else 0,
        "ongoingTxnSize": ongoing,
    }


# ---- transactions


async def transaction_metadata(request: web.Request) -> web.Response:
    """GET: one that is open or ending."""
    return web.json_response(await request.app[COORDINATED].describe(visible(request, txn_id_of(request))))


async def slow_transactions(request: web.Request) -> web.StreamResponse:
    """GET: those that are at least `timeout` milliseconds old, of one coordinator (`coordinatorId`) or of all that are here.

    By coordinator and number. Beyond Pulsar, `limit` asks for so many, `after` for those after one (`after=(0,17)`),
    `prepared=true` for those that wait for their end, `parked=true` for those that wait for an operator because nobody of their
    check group knew, and `held=true` for those that wait for an administrator.
    """
    return await object_response(request, listed(request))


def listed(request: web.Request) -> AsyncIterator[tuple[str, Any]]:
    """Items of `slow_transactions`, of the coordinators that are here. HTTPServiceUnavailable while one recovers."""
    opened_until_ms = request.app[TURN].clock.now_ms() - number(request, "timeout")
    found = _open_transactions(request, _machines(request), _after_txn(request), opened_until_ms)
    return _described(request, found, limit(request))


def _machines(request: web.Request) -> list[tuple[tuple[bool, int], Any]]:
    """Those whose transactions are listed, in the order of their ids."""
    if "coordinatorId" in request.query:
        tc_id = number(request, "coordinatorId")
        return [((True, tc_id), coordinator(request, tc_id).machine)]
    found: list[tuple[tuple[bool, int], Any]] = []
    for gives_lanes, all_of_them in ((False, request.app[COORDINATED].front()), (True, coordinators_of(request))):
        if all_of_them is not None:
            of_here = (tc_id for tc_id in range(len(all_of_them)) if not all_of_them.is_elsewhere(tc_id))
            found += [((gives_lanes, tc_id), _ready(all_of_them, tc_id).machine) for tc_id in of_here]
    return found


def _after_txn(request: web.Request) -> tuple[tuple[bool, int], int]:
    """The list begins after this transaction: its coordinator and number. HTTPBadRequest."""
    text = after(request)
    return sort_key_of(request, text) if text else ((False, -1), -1)


def sort_key_of(request: web.Request, txn_id: str) -> tuple[tuple[bool, int], int]:
    """Sort key of a transaction in lists. HTTPBadRequest for a text that is no id."""
    found = _TXN.fullmatch(txn_id)
    if found is None:
        raise web.HTTPBadRequest(text=f"after {txn_id[:40]!r} is not the id of a transaction: write (coordinator,number)")
    most = int(found[1])
    is_of_front = request.app[COORDINATED].front() is not None and not most & LANE_BIT
    return (not is_of_front, coordinator_of(most)), int(found[2])


async def _open_transactions(
    request: web.Request,
    machines: list[tuple[tuple[bool, int], Any]],
    after_id: tuple[tuple[bool, int], int],
    opened_until_ms: int,
) -> AsyncIterator[Any]:
    """In slices; what is opened meanwhile may be missing, what ends meanwhile may be there."""
    budget, may_see = request.app[TURN].budget, request.app[COORDINATED].may_see
    only_prepared, only_held, only_parked = flag(request, "prepared"), flag(request, "held"), flag(request, "parked")
    for owner, machine in machines:
        first = machine.low_watermark + 1
        if owner <= after_id[0]:
            first = max(first, after_id[1] + 1) if owner == after_id[0] else machine.next_local_txn_id
        async for least in budget.each(_numbers(machine, first)):
            info = machine.transaction(least)
            if info is None or info.start_time_ms > opened_until_ms or not may_see(request, info.principal):
                continue
            if only_prepared > getattr(info, "prepared", False) or only_held > (info.status is TxnStatus.HELD):
                continue
            if only_parked <= _is_parked(info):
                yield info


def _is_parked(info: Any) -> bool:
    return getattr(info, "parked_ms", None) is not None


def _numbers(machine: Any, first: int) -> Iterable[int]:
    """Numbers of transactions to look at from `first` on. Millions that have ended may follow one that waits for days."""
    numbers = range(first, machine.next_local_txn_id)
    if len(numbers) < _SPARSE * machine.active_count or not hasattr(machine, "unfinished"):
        return numbers
    return sorted(least for least in machine.unfinished() if least >= first)


async def _described(request: web.Request, infos: AsyncIterator[Any], most: int | None) -> AsyncIterator[tuple[str, Any]]:
    left, describe = most, request.app[COORDINATED].describe
    async for info in infos:
        yield f"({info.txn_id.most},{info.txn_id.least})", await describe(info)
        if left is not None:
            left -= 1
            if not left:
                return


_HELD_BECAUSE: Final = {Cause.RESTORED: "restored log", Cause.DOUBT: "cluster that was not claimed"}


def own_fields(info: Any) -> dict[str, Any]:
    """Show a transaction beyond Pulsar's shape: whose it is, when it changed, and who is asked for its outcome.

    A plug-in may know less of it.
    """
    answer: dict[str, Any] = {}
    if info.principal is not None:
        answer["owner"] = info.principal
    if info.identity is not None:
        answer |= {"transactionalId": info.identity[0], "epoch": info.identity[1]}
    if getattr(info, "modified_ms", 0):
        answer["modifiedAt"] = info.modified_ms
    if getattr(info, "check_group", None) is not None:
        answer |= {"checkGroup": info.check_group, "checkCount": info.check_count}
    if getattr(info, "prepared", False):
        answer["prepared"] = True
    if _is_parked(info):
        answer |= {"parked": True, "parkedAt": info.parked_ms}
    if getattr(info, "held", 0):
        answer["heldBecause"] = _HELD_BECAUSE.get(info.held, "unknown")
    return answer


def _check_held(request: web.Request, info: Any) -> None:
    """Raise Refusal for what is HELD: it may have been decided before, so its owner cannot know more than the coordinator."""
    if info is not None and info.status is TxnStatus.HELD and not request.app[COORDINATED].is_operator(request):
        text = f"transaction ({info.txn_id.most},{info.txn_id.least}) is HELD: only an administrator may decide"
        raise Refusal(ServerError.AuthorizationError, text)


async def commit_transaction(request: web.Request) -> web.Response:
    """POST: commit a prepared, parked or held transaction; answered when every participant holds the outcome.

    One that is neither is for its client to commit: it may have more to send. 409 for it. Who may not see everything may
    commit what is its own.
    """
    txn_id = txn_id_of(request)
    coordinators, info = all_for(request, txn_id), visible(request, txn_id)
    waits = getattr(info, "prepared", False) or _is_parked(info)
    if not waits and info.status not in (TxnStatus.COMMITTING, TxnStatus.HELD):
        what = f"transaction ({txn_id.most},{txn_id.least}) is {info.status.name}"
        text = f"{what}; only prepared and parked ones are committed over HTTP"
        raise Refusal(ServerError.InvalidTxnStatus, text)
    _check_held(request, info)
    await asked(lambda answer: coordinators.end(txn_id, TxnAction.COMMIT, None, None, answer, superuser=True))
    return done()


async def resume_transaction(request: web.Request) -> web.Response:
    """POST: ask the check group of a parked transaction again, from the first question on; answered once that is durable.

    409 for one that is not parked. Who may not see everything may resume what is its own.
    """
    txn_id = txn_id_of(request)
    coordinators, info = all_for(request, txn_id), visible(request, txn_id)
    if not _is_parked(info):
        text = f"transaction ({txn_id.most},{txn_id.least}) is not parked: its group is asked for it already, or it is decided"
        raise Refusal(ServerError.InvalidTxnStatus, text)
    await asked(lambda answer: coordinators.resume(txn_id, answer))
    return done()


async def abort_transaction(request: web.Request) -> web.Response:
    """POST: abort a transaction of any client; answered when every participant holds the outcome.

    Who may not see everything may abort what is its own.
    """
    txn_id = txn_id_of(request)
    coordinators = all_for(request, txn_id)
    _ready(coordinators, coordinator_of(txn_id.most))
    if not request.app[COORDINATED].is_operator(request):
        _check_held(request, visible(request, txn_id))
    await asked(lambda answer: coordinators.end(txn_id, TxnAction.ABORT, None, None, answer, superuser=True))
    return done()


COORDINATOR_ROUTES: Final[Routes] = [
    ("GET", f"{BASE}/coordinators", list_coordinators),
    ("GET", f"{BASE}/coordinatorStats", coordinator_stats),
    ("GET", f"{BASE}/transactionMetadata/{{most}}/{{least}}", transaction_metadata),
    ("GET", f"{BASE}/slowTransactions/{{timeout}}", slow_transactions),
    ("POST", f"{BASE}/abortTransaction/{{most}}/{{least}}", abort_transaction),
    ("POST", f"{BASE}/commitTransaction/{{most}}/{{least}}", commit_transaction),
    ("POST", f"{BASE}/resumeTransaction/{{most}}/{{least}}", resume_transaction),
]
