"""Holds for `pulsar-txn backup`, which copies the data folder of this broker while it runs. Ours: Pulsar has no such path."""

from __future__ import annotations

from typing import Final

import attrs
from aiohttp import web

from pulsar_txn.ledger.protocols import Holdable

from .answers import Routes, done, failed
from .common import BROKER

LEASE_SECONDS: Final = 30.0
_OVER: Final = "this hold is over (its lease, the disk is full, or the broker was restarted); take the backup again"


def _store(request: web.Request) -> Holdable:
    store = request.app[BROKER].store
    if not isinstance(store, Holdable):
        raise web.HTTPConflict(text="this broker keeps its data in no folder that can be copied")
    return store


async def _hold(request: web.Request) -> web.Response:
    name, cut = await _store(request).hold(LEASE_SECONDS)
    return web.json_response({"hold": name, "cut": attrs.asdict(cut), "leaseSeconds": LEASE_SECONDS})


async def _renew(request: web.Request) -> web.Response:
    if _store(request).holds.renew(request.match_info["hold"], LEASE_SECONDS):
        return done()
    return failed(404, _OVER)


async def _end(request: web.Request) -> web.Response:
    if _store(request).holds.end(request.match_info["hold"]):
        return done()
    return failed(404, _OVER)


_BASE: Final = "/admin/pulsar-txn/v1/holds"

ROUTES: Routes = [
    ("POST", _BASE, _hold),
    ("PUT", _BASE + "/{hold}", _renew),
    ("DELETE", _BASE + "/{hold}", _end),
]
