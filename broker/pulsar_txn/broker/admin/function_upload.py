"""The parts of a request that creates or updates a function: its configuration, and its package, never whole in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import stat
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import attrs
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from .common import BROKER
from .function_store import FunctionStore, Package

_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\.(py|zip|whl)")
_CONFIG_BYTES: Final = 1 << 20
_URL_BYTES: Final = 4096
_CHUNK_BYTES: Final = 256 << 10


@attrs.frozen
class Given:
    """Contents of the parts of a request."""

    config: dict[str, Any]
    package: Package | None


async def given(request: web.Request, functions: FunctionStore) -> Given:
    """The parts of the request. HTTPBadRequest."""
    parts = _Parts(request, functions)
    try:
        async with _reading(request):
            await parts.read()
    except BaseException:
        if parts.package is not None:
            await functions.drop_package(parts.package.number)
        raise
    return Given({key: value for key, value in (parts.config or {}).items() if value is not None}, parts.package)


async def small_parts(request: web.Request) -> dict[str, bytes]:
    """The parts of a form by name, together not larger than maxHttpRequestSize. HTTPBadRequest, HTTPRequestEntityTooLarge."""
    config = request.app[BROKER].config
    seconds, left = config.http_server_idle_timeout / 1000, config.max_http_request_size
    found: dict[str, bytes] = {}
    async with _reading(request):
        async for part in _each_part(request, seconds):
            text = await _text(part, seconds, left)
            left -= len(text)
            found.setdefault(part.name or "", text)
    return found


@contextlib.asynccontextmanager
async def _reading(request: web.Request) -> AsyncIterator[None]:
    """Errors of reading a form, as HTTP errors."""
    if not request.content_type.startswith("multipart/"):
        raise web.HTTPBadRequest(text="the body should be multipart/form-data")
    try:
        yield
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(text="the body did not come in time (httpServerIdleTimeout)") from error
    except (ValueError, HttpProcessingError) as error:
        raise web.HTTPBadRequest(text=f"the body is no multipart/form-data: {error}") from error


async def _each_part(request: web.Request, seconds: float) -> AsyncIterator[BodyPartReader]:
    reader = await request.multipart()
    while True:
        async with asyncio.timeout(seconds):
            part = await reader.next()
        if part is None:
            return
        if not isinstance(part, BodyPartReader):
            raise web.HTTPBadRequest(text="a part is a multipart itself")
        yield part


class _Parts:
    """Reads the parts of one request."""

    def __init__(self, request: web.Request, functions: FunctionStore) -> None:
        config = request.app[BROKER].config
        self.config: dict[str, Any] | None = None
        self.package: Package | None = None
        self._request = request
        self._functions = functions
        self._most = config.functions_max_package_size_in_mb << 20
        self._seconds = config.http_server_idle_timeout / 1000

    async def read(self) -> None:
        """All parts. HTTPBadRequest, HTTPRequestEntityTooLarge, Refusal; ValueError for what is no multipart."""
        async for part in _each_part(self._request, self._seconds):
            await self._take(part)
        if self.config is None and self.package is None:
            raise web.HTTPBadRequest(text="the part functionConfig is missing")

    async def _take(self, part: BodyPartReader) -> None:
        if part.name == "data" and self.package is None:
            chunks = _chunks(part, self._seconds)
            self.package = await self._functions.put_package(_checked_name(part.filename or ""), chunks, self._most)
            return
        if part.name == "url":
            url = await _text(part, self._seconds, _URL_BYTES)
            if self.package is None:
                file = _file_of(url.decode(errors="replace").strip())
                self.package = await self._functions.put_package(_checked_name(file.name), _read(file), self._most)
            return
        text = await _text(part, self._seconds, _CONFIG_BYTES)
        if part.name == "functionConfig":
            self.config = _json(text)


def _checked_name(found: str) -> str:
    """A name without a path. HTTPBadRequest for anything else."""
    if _FILE.fullmatch(found) is None:
        raise web.HTTPBadRequest(
            text=f"the package {found[:80]!r} should be the name of a .py, .zip or .whl file, without a path"
        )
    return found


def _file_of(url: str) -> Path:
    """The file of this machine that a URL names. HTTPBadRequest for other URLs, and where there is no such file."""
    try:
        found = urllib.parse.urlsplit(url)
    except ValueError:
        raise web.HTTPBadRequest(text=f"the package {url[:200]!r} is no URL") from None
    if found.scheme != "file" or found.netloc not in ("", "localhost"):
        raise web.HTTPBadRequest(
            text=f"packages by URL are not fetched, as {url[:200]!r}: download it and upload the file, "
            "or put it on the broker's machine and give file:///its/path"
        )
    file = Path(urllib.request.url2pathname(found.path))
    try:
        regular = stat.S_ISREG(file.stat().st_mode)
    except (OSError, ValueError):
        regular = False
    if not regular or not file.is_absolute():
        raise web.HTTPBadRequest(text=f"the package {url[:200]!r} is no file on the broker's machine; or upload the file")
    return file


async def _read(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            yield chunk


async def _chunks(part: BodyPartReader, seconds: float) -> AsyncIterator[bytes]:
    while not part.at_eof():
        async with asyncio.timeout(seconds):
            chunk = await part.read_chunk(_CHUNK_BYTES)
        yield bytes(chunk)


async def _text(part: BodyPartReader, seconds: float, most: int) -> bytes:
    found, size = [], 0
    async for chunk in _chunks(part, seconds):
        found.append(chunk)
        size += len(chunk)
        if size > most:
            raise web.HTTPRequestEntityTooLarge(most, size)
    return b"".join(found)


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise web.HTTPBadRequest(text="functionConfig should be a JSON object")
    return found
