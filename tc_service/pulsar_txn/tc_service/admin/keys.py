"""Keys by which handlers find the service."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from pulsar_txn.tc_service.server.service import CoordinatorService

SERVICE: Final = web.AppKey("service", CoordinatorService)
