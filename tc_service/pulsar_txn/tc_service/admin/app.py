"""The way to the service's HTTP side that costs nothing before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import web


def app_of(service: Any) -> web.Application:
    """For `HttpServer`: aiohttp takes longer to import than the service takes to start."""
    from .routes import make_app

    return make_app(service)
